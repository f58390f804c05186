"""What the steps need that is compiled: packed into one folder, for a machine that has a GPU and no network."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from testing.limiter.builds import ROOT, Builds, Unavailable

__all__ = ["FOLDER", "Packed", "pack"]

FOLDER = ROOT / "libvgpu" / "build" / "gpu"
"""Ignored by git. ``carry`` takes it to the other machine."""
HAMI_CORE = "hami-core.so"


def pack(folder: Path = FOLDER, hami_core: Path | None = None) -> list[str]:
    """Builds all of it into *folder*; returns lines to print. *hami_core*: a library of HAMi-core to compare with.

    Raises: Unavailable, or WheelMissing, if a compiler or a header is missing.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    builds = Builds()
    shutil.copy(builds.release()[os.uname().machine], folder / "libvgpu.so")
    shutil.copy(builds.client, folder / "client")
    shutil.copy(builds.deep, folder / "deep.so")
    sources = shutil.ignore_patterns("*.c", "cuda", "nvml")
    shutil.copytree(builds.driver, folder / "driver", symlinks=True, ignore=sources)
    if hami_core is not None:
        shutil.copy(hami_core, folder / HAMI_CORE)
    for file in folder.rglob("*.so*"):
        if not file.is_symlink():
            subprocess.run(["strip", "--strip-unneeded", file], check=False)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return [
        f"{folder}: {size / 1e6:.1f} MB",
        "carry it to the machine with the GPU, and run python -m e2e.gpu there",
    ]


class Packed(Builds):
    """What `pack` has built."""

    def __init__(self, folder: Path = FOLDER) -> None:
        """Raises: Unavailable if it is not there."""
        super().__init__(folder)
        if not (folder / "libvgpu.so").exists():
            raise Unavailable(
                f"{folder} is missing: python -m e2e.gpu --pack makes it, with a compiler and a network"
            )

    @property
    def driver(self) -> Path:  # type: ignore[override]
        return self.folder / "driver"

    @property
    def client(self) -> Path:  # type: ignore[override]
        return self.folder / "client"

    def library(self, variant: str = "plain") -> Path:  # type: ignore[override]
        return self.folder / "libvgpu.so"

    @property
    def deep(self) -> Path:  # type: ignore[override]
        return self.folder / "deep.so"

    @property
    def hami_core(self) -> Path | None:
        """The library to compare with, if there is one."""
        path = self.folder / HAMI_CORE
        return path if path.exists() else None
