"""The limiter and a machine with fake GPUs: builds both, writes limits, runs clients."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.libvgpu.layout import Bucket, Machine, Region
from tests.libvgpu.wheels import WheelMissing, fetch

__all__ = ["MIB", "REGION_SOURCES", "Builds", "Client", "Rig", "Times", "Unavailable", "limits_text",
           "uuid_of"]

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "libvgpu"
MIB = 1 << 20
TARGETS = ("x86_64", "aarch64")
"""Architectures of the release."""
REGION_SOURCES = ("account.c", "lock.c", "region.c", "liveness.c", "log.c", "control.c", "compute.c", "shares.c",
                  "slots.c", "table.c")
"""Sources of the library that a program needs to open a region."""
SANITIZERS = {"asan": "address,undefined", "tsan": "thread"}
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0:handle_segv=0:abort_on_error=0",
           "TSAN_OPTIONS": "die_after_fork=0:report_signal_unsafe=0", "UBSAN_OPTIONS": "print_stacktrace=1"}


class Unavailable(Exception):
    """Something that a build needs is not there; says what."""


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
        words = [f"{key}={device[key]}" for key in ("memory", "context", "cores", "cores-most") if key in device]
        lines.append(" ".join(["device", device.get("uuid", uuid_of(number)), *words]))
    return "\n".join(lines) + "\n"


class Builds:
    """What is compiled, once each."""

    def __init__(self, folder: Path, compiler: Sequence[str] = ("gcc",)) -> None:
        """*compiler*: of the driver and the programs; the library is compiled with gcc."""
        self.folder = folder
        self._compiler = compiler

    def _compile(self, *words: str | Path) -> None:
        done = subprocess.run([*self._compiler, *map(str, words)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)

    @functools.cached_property
    def headers(self) -> Path:
        """Headers of the newest CUDA release. Raises: Unavailable."""
        if shutil.which("gcc") is None or shutil.which("make") is None:
            raise Unavailable("no C compiler")
        try:
            runtime, crt = fetch("runtime-13.5"), fetch("crt-13.5")
        except WheelMissing as error:
            raise Unavailable(str(error)) from error
        include = self.folder / "include"
        for source in (runtime, crt):
            shutil.copytree(source / "nvidia" / "cu13" / "include", include, dirs_exist_ok=True)
        return include

    @functools.cached_property
    def driver(self) -> Path:
        """A folder with the fake libcuda.so.1 and libnvidia-ml.so.1. Raises: Unavailable."""
        fake, folder = SOURCE / "tests" / "fake", self.folder / "driver"
        try:
            nvml = fetch("nvml-13.5") / "nvidia" / "cu13" / "include"
        except WheelMissing as error:
            raise Unavailable(str(error)) from error
        for kind, include in (("cuda", self.headers), ("nvml", nvml)):
            own = fake / f"fake{kind}.c"
            subprocess.run([sys.executable, fake / "generate.py", kind, include, own, folder / kind], check=True)
        common = ["-std=gnu11", "-shared", "-fPIC", "-O2", "-g", "-Wall", "-D_GNU_SOURCE", "-I", fake,
                  "-Wl,-Bsymbolic", "-lpthread", "-ldl", fake / "machine.c", fake / "card.c"]
        self._compile(*common, "-I", self.headers, "-Wl,-soname,libcuda.so.1", "-o", folder / "libcuda.so.1",
                      fake / "fakecuda.c", fake / "oldcuda.c", folder / "cuda" / "stubs.c", folder / "cuda" / "table.c")
        self._compile(*common, "-I", nvml, "-Wl,-soname,libnvidia-ml.so.1", "-o", folder / "libnvidia-ml.so.1",
                      fake / "fakenvml.c", folder / "nvml" / "stubs.c")
        (folder / "libcuda.so").symlink_to("libcuda.so.1")
        return folder

    @functools.cache
    def library(self, variant: str = "plain") -> Path:
        """libvgpu.so. *variant*: ``plain``; ``points``, which can be killed at numbered points; ``asan``; ``tsan``."""
        if shutil.which("gcc") is None or shutil.which("make") is None:
            raise Unavailable("no C compiler")
        folder = self.folder / variant
        words = ["make", "--silent", "-C", str(SOURCE), f"BUILD={folder}", f"PYTHON={sys.executable}"]
        if variant in SANITIZERS:
            words.append(f"SANITIZE={SANITIZERS[variant]}")
        if variant == "points":
            words.append("POINTS=1")
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return folder / "libvgpu.so"

    @functools.cached_property
    def client(self) -> Path:
        """The C program that does what it is told."""
        rows = [line.split("\t") for line in (SOURCE / "abi" / "cuda.tsv").read_text().splitlines()[1:]]
        folder = self.folder / "client"
        folder.mkdir(exist_ok=True)
        (folder / "names.inc").write_text("".join(f'{{"{row[0]}", "{row[1]}", {row[2]}, {row[3]}}},\n' for row in rows))
        self._compile("-std=gnu11", "-O2", "-g", "-Wall", "-I", self.headers, "-I", folder, "-o", folder / "client",
                      SOURCE / "tests" / "clients" / "client.c", "-Wl,--no-as-needed", "-L", self.driver, "-lcuda",
                      "-lpthread", "-ldl")
        return folder / "client"

    @functools.cache
    def program(self, name: str, *sources: str, variant: str = "plain") -> Path:
        """A program of libvgpu/tests/clients that is compiled with some of the limiter's own sources, if any.

        *variant*: ``plain``, ``asan`` or ``tsan``. With sanitizers, it must run without a preloaded library.
        """
        path = self.folder / f"{name}-{variant}"
        flags = ["-fno-sanitize=alignment", "-fno-sanitize-recover=all", f"-fsanitize={SANITIZERS[variant]}"] \
            if variant in SANITIZERS else []
        self._compile("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", *flags, "-I", SOURCE / "src", "-o", path,
                      SOURCE / "tests" / "clients" / f"{name}.c", *(SOURCE / "src" / one for one in sources), "-lm",
                      "-ldl", "-lpthread")
        return path

    def sanitizer(self, variant: str) -> list[str]:
        """Libraries that have to be preloaded before a library of that variant."""
        name = {"asan": "libasan.so", "tsan": "libtsan.so"}.get(variant)
        if name is None:
            return []
        found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        path = Path(found.stdout.strip())
        if not path.is_absolute():
            raise Unavailable(f"no {name}")
        return [str(path.resolve())]


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
            assert "Sanitizer" not in told and "runtime error:" not in told, told
            return told
        return ""


class Rig:
    """One container on one machine: a library with limits beside it, a region, fake cards."""

    def __init__(self, folder: Path, builds: Builds, variant: str = "plain") -> None:
        self.folder, self.builds, self.variant = folder, builds, variant
        self.library = folder / "libvgpu.so"
        self.library.symlink_to(builds.library(variant))
        self.path = folder / "0f0e.cache"
        self.state = folder / "machine"
        self._clients: list[Client] = []

    def limit(self, *devices: dict[str, Any], **keys: Any) -> None:
        """Writes the limits file; without devices one with a limit of 2,048 MiB."""
        text = limits_text(*(devices or ({"memory": 2048 * MIB},)), region=str(self.path), **keys)
        (self.folder / "limits").write_text(text)

    def environment(self, *, preload: bool = True, **more: str) -> dict[str, str]:
        """Variables of a process in the container."""
        env = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(self.builds.driver),
               "FAKE_CUDA_STATE": str(self.state), "FAKE_CUDA_CTX_MIB": "0", **OPTIONS}
        if preload:
            env["LD_PRELOAD"] = " ".join([*self.builds.sanitizer(self.variant), str(self.library)])
        return env | more

    def client(self, how: str = "symbol", within: Sequence[str] = (), **more: Any) -> Client:
        """A running C client. *how*: by which way it finds the driver's functions. *within*: a program that runs it."""
        process = subprocess.Popen([*within, self.builds.client, how], env=self.environment(**more), text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._clients.append(Client(process))
        return self._clients[-1]

    def python(self, code: str, *paths: Path, **more: str) -> str:
        """What a Python program prints. *paths*: folders of modules."""
        env = self.environment(PYTHONPATH=os.pathsep.join(map(str, paths)), **more)
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120,
                              check=False)
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
        assert "Sanitizer" not in told and "runtime error:" not in told, told


@contextlib.contextmanager
def rig(builds: Builds, variant: str = "plain") -> Iterator[Rig]:
    """A rig in a folder that goes with it, in memory where there is such a file system."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="hami-limiter-", dir=shared if shared.is_dir() else None) as folder:
        made = Rig(Path(folder), builds, variant)
        try:
            yield made
        finally:
            made.close()


def make_release(folder: Path, targets: Sequence[str] = TARGETS, *, source: Path = SOURCE,
                 **environment: str) -> dict[str, Path]:
    """Libraries of the release by architecture, stripped. Raises: WheelMissing."""
    subprocess.run(["make", "--silent", "-C", source, "release", f"BUILD={folder}", f"TARGETS={' '.join(targets)}",
                    f"ZIG={fetch('zig') / 'ziglang' / 'zig'}", f"PYTHON={sys.executable}"],
                   env=os.environ | environment, check=True)
    return {target: folder / target / "libvgpu.so" for target in targets}


def supported() -> bool:
    return platform.system() == "Linux" and platform.machine() in ("x86_64", "aarch64")
