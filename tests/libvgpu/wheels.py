"""Wheels that the tests of the limiter use: headers, CUDA runtimes and clients, each in a folder of its own.

They cannot all be installed in one environment, since several versions of one package are wanted. They are fetched
with pip once, into the user's cache. What cannot be had is a skip.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

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
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hami" / "wheels"


def download(requirement: str, folder: Path) -> Path:
    """The wheel's file."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
               "--disable-pip-version-check", "--dest", str(folder), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
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
    """A folder with the files of the wheels that PINS gives under *name*. Raises: WheelMissing."""
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    target = cache() / "-".join([name, version, *(pin.partition("==")[2] for pin in PINS[name])])
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        unpacked = Path(folder, "unpacked")
        for number, requirement in enumerate(PINS[name]):
            wheel = download(requirement, Path(folder, str(number)))
            with zipfile.ZipFile(wheel) as archive:
                for member in archive.infolist():
                    path = Path(archive.extract(member, unpacked))
                    if mode := member.external_attr >> 16 & 0o777:
                        path.chmod(mode)
        try:
            unpacked.rename(target)
        except OSError:  # another run was faster
            shutil.rmtree(unpacked)
    return target
