"""Files that others read while they are replaced."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

FileVersion = tuple[int, int, int, int]
"""Distinguishes the content of a file, or a socket, from an earlier one at the same path: device, inode, time of the
last change, and size. An inode alone may be reused."""

_PROBE_BYTES = 4096


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
    missing file. The error names a file, also that of a full disk. *durable*: waits until the disk has the data.
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
    except BaseException as error:
        os.unlink(temporary)
        if (
            isinstance(error, OSError) and error.filename is None
        ):  # a write knows only the number of its file
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    return True


def check_writable(folder: Path) -> None:
    """Raises: OSError, which names *folder*, if no file can be written there. Leaves none behind.

    A folder that does not exist yet is made by the first write. A file system without unnamed files is not checked.
    """
    try:
        handle = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EISDIR, errno.EOPNOTSUPP):
            return
        raise
    try:
        os.write(handle, bytes(_PROBE_BYTES))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error
    finally:
        os.close(handle)


def _holds(path: Path, data: bytes) -> bool:
    """Reports whether *path* is a regular file with this content. Waits for nobody, such as the holder of a lease."""
    try:
        with open(
            os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb"
        ) as file:
            return stat.S_ISREG(os.fstat(file.fileno()).st_mode) and file.read() == data
    except OSError:
        return False
