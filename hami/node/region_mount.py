"""A file system of a fixed size, in memory, for the directories of containers: what they write there takes nothing from
the node's disk."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from hami.node.host import CONTAINERS, host_errors

_NOSUID, _NODEV, _NOEXEC = 2, 4, 8  # mount(2)
_LIBC = ctypes.CDLL(None, use_errno=True)


def mount_regions(hook_path: str | Path, size_mib: int) -> str:
    """Mounts a tmpfs of *size_mib* MiB on the host's ``<hook_path>/vgpu/containers``; returns what was done, in words.

    A file system that is mounted there stays as it is, and so do directories of containers: mounted files would lose
    their names. Without the privilege, too, they stay on the disk. Raises: HostError.
    """
    folder = Path(hook_path) / "vgpu" / CONTAINERS
    with host_errors(f"cannot mount a file system at {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        if os.path.ismount(folder):
            return f"{folder} is a file system of its own already"
        if names := os.listdir(folder):
            return (
                f"{folder} stays on the disk: it has the files of {len(names)} containers. Drain the node, and "
                "delete the pod of the device plugin on it once the folder is empty"
            )
        if _LIBC.mount(
            b"tmpfs",
            os.fsencode(folder),
            b"tmpfs",
            _NOSUID | _NODEV | _NOEXEC,
            f"size={size_mib}m,mode=0700".encode(),
        ):
            return f"{folder} stays on the disk: {os.strerror(ctypes.get_errno())}"
    return f"{folder} is a file system of {size_mib} MiB in memory"
