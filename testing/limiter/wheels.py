"""Wheels that the tests of the limiter use: headers, CUDA runtimes and clients, each in a folder of its own.

They cannot all be installed in one environment, since several versions of one package are wanted. They are fetched
with pip once, into the user's cache. What cannot be had is a skip.
"""

from __future__ import annotations

import functools
import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from testing import reaper
from testing.binaries import (
    SCRATCH,
    cache_root,
    exclusive,
    may_build,
    python_with_pip,
    require_permission,
)

__all__ = ["PINS", "WheelMissing", "fetch"]

COMPILER = Path(__file__).parents[2] / "libvgpu" / "requirements.txt"
PINS = {
    # cuda.h of the newest release: the symbol table and the fake driver; the newest runtime
    "runtime-13.5": ("nvidia-cuda-runtime==13.5.37",),
    # headers that cuda.h of 13 includes
    "crt-13.5": ("nvidia-cuda-crt==13.5.37",),
    # nvml.h: the fake NVML
    "nvml-13.5": ("nvidia-nvml-dev==13.5.37",),
    # older runtimes, which ask the driver for functions in their own way
    "runtime-12.9": ("nvidia-cuda-runtime-cu12==12.9.79",),
    "runtime-12.1": ("nvidia-cuda-runtime-cu12==12.1.105",),
    "runtime-11.8": ("nvidia-cuda-runtime-cu11==11.8.89",),
    # NVIDIA's bindings of both major releases: real clients that ask by cuGetProcAddress
    "bindings-13": ("cuda-bindings==13.5.0", "cuda-pathfinder==1.9.0"),
    "bindings-12": ("cuda-bindings==12.9.10", "cuda-pathfinder==1.9.0"),
    # NVIDIA's Pythonic layer: allocates from pools
    "core": ("cuda-core==1.2.2", "cuda-bindings==13.5.0", "cuda-pathfinder==1.9.0", "numpy==2.4.6"),
    # a real client of NVML
    "nvml-py": ("nvidia-ml-py==13.615.71",),
    # the C compiler of the release build: any glibc version, both architectures; pinned by hash, too
    "zig": (re.findall(r"^ziglang==\S+", COMPILER.read_text(), flags=re.MULTILINE)[0],),
}


class WheelMissing(Exception):
    """A wheel cannot be had; says which and why."""


def cache() -> Path:
    return cache_root() / "wheels"


def download(requirement: str, folder: Path) -> Path:
    """The wheel's file. Raises: WheelMissing."""
    folder.mkdir()
    words = [
        python_with_pip(folder),
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--disable-pip-version-check",
        "--dest",
        str(folder),
        requirement,
    ]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WheelMissing(f"{requirement}: {error}") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise WheelMissing(f"{requirement}: {done.stderr.strip().splitlines()[-1:]}")
    digest = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if requirement in PINS["zig"] and f"sha256:{digest}" not in COMPILER.read_text():
        raise RuntimeError(f"{wheels[0].name} is not the file that was pinned")
    return wheels[0]


@functools.cache
def fetch(name: str) -> Path:
    """A folder with the files of the wheels that PINS gives under *name*.

    Raises: WheelMissing if it cannot be had, or could not before the tests began; BinariesMissing if nothing may be
    fetched now, and nobody has tried before.
    """
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    target = cache() / "-".join([name, version, *(pin.partition("==")[2] for pin in PINS[name])])
    reason = target.with_name(f"{target.name}.missing")
    if target.is_dir():
        return target
    if reason.exists() and not may_build():
        raise WheelMissing(reason.read_text())
    require_permission([target])
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(target.with_name(f"{target.name}.lock"), lambda: None):
        try:
            if not target.is_dir():  # another process may have been faster
                unpack(PINS[name], target)
        except WheelMissing as error:
            reason.write_text(str(error))
            raise
        reason.unlink(missing_ok=True)
    return target


def unpack(requirements: Sequence[str], target: Path) -> None:
    """Makes *target* of the files of all wheels; it appears when it is complete. Raises: WheelMissing."""
    with reaper.claimed(target.parent, SCRATCH) as folder:
        unpacked = Path(folder, "unpacked")
        for number, requirement in enumerate(requirements):
            with zipfile.ZipFile(download(requirement, Path(folder, str(number)))) as archive:
                for member in archive.infolist():
                    path = Path(archive.extract(member, unpacked))
                    if mode := member.external_attr >> 16 & 0o777:
                        path.chmod(mode)
        unpacked.rename(target)
