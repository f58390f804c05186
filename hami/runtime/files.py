"""Files that others read while they are replaced."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


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
