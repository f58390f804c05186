"""The limiter and a machine with fake GPUs: writes limits, runs clients."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testing.limiter.builds import Builds
from testing.limiter.layout import Bucket, Machine, Region

__all__ = ["MIB", "Client", "Rig", "Times", "limits_text", "rig", "supported", "uuid_of"]

MIB = 1 << 20
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0:handle_segv=0:abort_on_error=0",
    "TSAN_OPTIONS": "die_after_fork=0:report_signal_unsafe=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def uuid_of(device: int) -> str:
    """UUID of a fake card."""
    digits = f"{0x11 * (device + 1):02x}" * 16
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def limits_text(*devices: dict[str, Any], region: str = "", **keys: Any) -> str:
    """The file that the device plugin puts beside the library. *devices*: ``uuid``, ``memory``, ``cores``, as far as
    they are limited; ``context``: bytes, where they are known; ``cores-most``."""
    lines = ["hami-limits 1"] + ([f"region {region}"] if region else [])
    lines += [f"{key.replace('_', '-')} {value}" for key, value in keys.items()]
    for number, device in enumerate(devices):
        words = [
            f"{key}={device[key]}"
            for key in ("memory", "context", "cores", "cores-most")
            if key in device
        ]
        lines.append(" ".join(["device", device.get("uuid", uuid_of(number)), *words]))
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of the thread that has done a command. How busy the machine is changes only what it waits for a CPU."""

    asleep: float
    """Neither on a CPU nor ready to run: it has slept, or waited for a lock or for the card."""
    on_cpu: float
    ready: float
    """Ready to run, while the CPUs had something else to do."""


class Client:
    """A program that does one command at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def send(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self) -> list[int]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EOFError(f"the client ended with {self.process.wait()}")
        return [int(float(word)) if "." not in word else float(word) for word in line.split()]  # type: ignore[misc]

    def do(self, command: str) -> Any:
        """The answer: a number, or a list of several."""
        self.send(command)
        numbers = self.answer()
        return numbers[0] if len(numbers) == 1 else numbers

    def timed(self, command: str) -> tuple[Any, Times]:
        """The answer, and what the command has taken."""
        answer = self.do(f"timed {command}")
        return answer, Times(*(number / 1e6 for number in self.answer()))

    def start(self, device: int = 0) -> Client:
        """Initializes CUDA and makes a context."""
        assert self.do("init") == 0
        assert self.do(f"ctx {device}") == 0
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> str:
        """Ends the client. Returns what it wrote to standard error."""
        with contextlib.suppress(BrokenPipeError):
            _, told = self.process.communicate(timeout=30)
            assert "Sanitizer" not in told, told
            assert "runtime error:" not in told, told
            return told
        return ""


class Rig:
    """One container on one machine: a library with limits beside it, a region, fake cards."""

    def __init__(
        self, folder: Path, builds: Builds, variant: str = "plain", *, library: Path | None = None
    ) -> None:
        """*library*: in place of that of the *variant*."""
        self.folder, self.builds, self.variant = folder, builds, variant
        self.library = folder / "libvgpu.so"
        self.library.symlink_to(library or builds.library(variant))
        self.path = folder / "0f0e.cache"
        self.state = folder / "machine"
        self._clients: list[Client] = []

    def limit(self, *devices: dict[str, Any], **keys: Any) -> None:
        """Writes the limits file; without devices one with a limit of 2,048 MiB."""
        text = limits_text(*(devices or ({"memory": 2048 * MIB},)), region=str(self.path), **keys)
        (self.folder / "limits").write_text(text)

    def environment(self, *, preload: bool = True, **more: str) -> dict[str, str]:
        """Variables of a process in the container."""
        env = {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(self.builds.driver),
            "FAKE_CUDA_STATE": str(self.state),
            "FAKE_CUDA_CTX_MIB": "0",
            **OPTIONS,
        }
        if preload:
            env["LD_PRELOAD"] = " ".join([*self.builds.sanitizer(self.variant), str(self.library)])
        return env | more

    def client(self, how: str = "symbol", within: Sequence[str] = (), **more: Any) -> Client:
        """A running C client. *how*: by which way it finds the driver's functions. *within*: a program that runs it."""
        process = subprocess.Popen(
            [*within, self.builds.client, how],
            env=self.environment(**more),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._clients.append(Client(process))
        return self._clients[-1]

    def python(self, code: str, *paths: Path, **more: str) -> str:
        """What a Python program prints. *paths*: folders of modules."""
        env = self.environment(PYTHONPATH=os.pathsep.join(map(str, paths)), **more)
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def region(self) -> Region:
        return Region(self.path)

    @property
    def machine(self) -> Machine:
        return Machine(self.state)

    def bucket(self, device: int = 0) -> Bucket:
        """What launches on the device were charged, and have waited."""
        return Bucket(self.path.with_suffix(".sm"), device)

    def close(self) -> None:
        """Ends all clients. Raises: AssertionError if a sanitizer has found something."""
        told = ""
        for client in self._clients:
            if client.process.poll() is None:
                client.process.send_signal(signal.SIGKILL)
            with contextlib.suppress(ValueError):  # what was closed before has been read
                told += client.process.communicate(timeout=10)[1]
        assert "Sanitizer" not in told, told
        assert "runtime error:" not in told, told


@contextlib.contextmanager
def rig(builds: Builds, variant: str = "plain") -> Iterator[Rig]:
    """A rig in a folder that goes with it, in memory where there is such a file system."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="hami-limiter-", dir=shared if shared.is_dir() else None
    ) as folder:
        made = Rig(Path(folder), builds, variant)
        try:
            yield made
        finally:
            made.close()


def supported() -> bool:
    return platform.system() == "Linux" and platform.machine() in ("x86_64", "aarch64")
