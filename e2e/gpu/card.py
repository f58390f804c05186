"""The card of the steps, real or fake, and the four ways to run a program on it."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from e2e.gpu.builds import Packed
from testing.limiter.rig import MIB, Client, Rig, uuid_of

__all__ = ["LIMIT", "Card", "Skipped", "Way"]

LIMIT = 4096 * MIB


class Skipped(Exception):
    """A step cannot be done here; says why."""


class Way(enum.StrEnum):
    """How a program runs."""

    BARE = "bare"
    UNLIMITED = "unlimited"
    LIMITED = "limited"
    HAMI_CORE = "HAMi-core"


class Container(Rig):
    """One way to run programs. *card*: where."""

    def __init__(self, folder: Path, card: Card, way: Way, cores: int, memory: int) -> None:
        super().__init__(folder, card.builds)
        self.card, self.way, self.cores, self.memory = card, way, cores, memory
        self.state = card.state
        if way is Way.LIMITED:
            self.limit({"uuid": card.uuid, "memory": memory, "cores": cores})
        elif way is Way.UNLIMITED:
            self.limit({"uuid": card.uuid})

    def environment(self, *, preload: bool = True, **more: str) -> dict[str, str]:
        env = super().environment(
            preload=preload and self.way in (Way.UNLIMITED, Way.LIMITED), **more
        )
        if not self.card.is_fake:
            env = {
                **os.environ,
                **{key: value for key, value in env.items() if not key.startswith("FAKE_")},
            }
            env["LD_LIBRARY_PATH"] = os.environ.get("LD_LIBRARY_PATH", "")
        if self.way is Way.HAMI_CORE:
            env |= {
                "LD_PRELOAD": str(self.card.builds.hami_core),
                "CUDA_DEVICE_SM_LIMIT": str(self.cores),
                "CUDA_DEVICE_MEMORY_LIMIT": f"{self.memory // MIB}m",
                "LIBCUDA_LOG_LEVEL": "0",
                "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(self.path),
            }
        return env

    def run_python(self, code: str, *words: str, timeout: float = 120) -> str:
        """What a program prints. Raises: RuntimeError with the last line of its errors."""
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(
                (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            )
        return done.stdout


class Card:
    """One card without other users. *results*: the file for what a step has found."""

    def __init__(self, results: Path, *, is_fake: bool) -> None:
        self.builds = Packed()
        self.is_fake = is_fake
        self._results = results
        self._folder = tempfile.TemporaryDirectory(prefix="hami-gpu-")
        self.state = Path(self._folder.name) / "machine"
        if is_fake:  # of this process, which asks the driver itself, too
            os.environ["FAKE_CUDA_STATE"] = str(self.state)
        self.uuid = uuid_of(0) if is_fake else _first_uuid()

    def keep(self, found: dict[str, Any]) -> dict[str, Any]:
        """Writes what a step has found so far: that is left of it if it is cut off. Returns it."""
        self._results.write_text(json.dumps(found))
        return found

    def driver(self) -> ctypes.CDLL:
        """The driver's library, in this process."""
        return ctypes.CDLL(
            str(self.builds.driver / "libcuda.so.1") if self.is_fake else "libcuda.so.1"
        )

    def seconds(self, real: float) -> float:
        """How long to measure: a fraction on the fake card, where it shows only that the step works."""
        return real / 10 if self.is_fake else real

    def ways(self) -> list[Way]:
        """Those that can be had here, in the order in which they take turns."""
        return [
            way
            for way in Way
            if way is not Way.HAMI_CORE or (self.builds.hami_core is not None and not self.is_fake)
        ]

    @contextlib.contextmanager
    def container(
        self, way: Way = Way.LIMITED, *, cores: int = 100, memory: int = LIMIT
    ) -> Iterator[Container]:
        with tempfile.TemporaryDirectory(dir=self._folder.name) as folder:
            made = Container(Path(folder), self, way, cores, memory)
            try:
                yield made
            finally:
                made.close()

    def needs(self, way: Way) -> None:
        """Raises: Skipped if programs cannot run that way here."""
        if way is Way.HAMI_CORE and (self.is_fake or self.builds.hami_core is None):
            raise Skipped(
                "no library of HAMi-core was packed"
                if not self.is_fake
                else "needs a card: it asks NVML"
            )

    def needs_module(self, name: str) -> None:
        """Raises: Skipped if programs that import a module cannot run here."""
        if self.is_fake:
            raise Skipped(f"needs a card: {name} computes")
        if importlib.util.find_spec(name) is None:
            raise Skipped(f"{name} is not installed")


def rate(client: Client, load: str, seconds: float) -> float:
    """Kernels in a second."""
    begun = time.monotonic()
    count: Any = client.do(f"load {load} {seconds * 1000:.0f}")
    return float(count) / (time.monotonic() - begun)


def _first_uuid() -> str:
    """Raises: Skipped if there is no card."""
    code = (
        "import ctypes; cu = ctypes.CDLL('libcuda.so.1'); u = (ctypes.c_ubyte * 16)()\n"
        "r = cu.cuInit(0) or cu.cuDeviceGetUuid(u, 0)\n"
        "if r:\n    raise SystemExit(f'the driver answers {r}')\nprint(bytes(u).hex())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Skipped(
            f"no card: {(done.stderr.strip().splitlines() or ['the driver ends the process'])[-1]}"
        )
    digits = done.stdout.strip()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
