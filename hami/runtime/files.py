"""Files that others read while they are replaced."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

FileVersion = tuple[int, int, int, int]
"""Distinguishes the content of a file, or a socket, from an earlier one at the same path: device, inode, time of the
last change, and size. An inode alone may be reused."""


def file_version(path: str | Path) -> FileVersion | None:
    """Returns the version of the file at *path*, following links; ``None`` if there is none. Raises: OSError."""
    try:
        return version_of(os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def version_of(about: os.stat_result) -> FileVersion:
    """Returns the version of the file that *about* describes."""
    return about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size


def write_atomically(path: Path, data: bytes, mode: int = 0o644, *, durable: bool = True) -> bool:
    """Writes *data* to *path* by renaming; returns whether the content changed. Raises: OSError.

    Creates missing directories. Replaces links, and an empty directory, which container runtimes create in place of a
    missing file. *durable*: waits until the disk has the data.
    """
    if _holds(path, data):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(handle, mode)
            if durable:
                os.fsync(handle)
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return True


def _holds(path: Path, data: bytes) -> bool:
    """Reports whether *path* is a regular file with this content. Waits for nobody, such as the holder of a lease."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            return stat.S_ISREG(os.fstat(file.fileno()).st_mode) and file.read() == data
    except OSError:
        return False
