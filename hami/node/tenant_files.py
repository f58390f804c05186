"""Opens files that tenants can write to, exchange and enlarge at any time.

A file is looked at before it is opened: opening a FIFO or a device node can hang, or do worse. No open waits for a
process that holds a lease.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from hami.errors import HostError

MAX_ENTRIES = 64
"""Directory entries that are looked at: the plugin leaves five, tenants of HAMi's can make any number."""

_SLACK = 1 << 20  # bytes that a file system may use for a file beyond its content
_ANY_USER_WRITES = 0o666  # containers run as any user
HELD_SUFFIX = ".held"
"""Ends the name of a file whose container keeps it from being truncated. The monitor ends such a container."""


def is_held(error: OSError) -> bool:
    """Reports whether a file cannot be opened for writing because a process holds a lease on it, or executes it."""
    return error.errno in (errno.EAGAIN, errno.ETXTBSY)


def set_aside(directory: int, name: str) -> None:
    """Renames a file that a process keeps from being opened, so that another can take its place. Raises: OSError."""
    os.rename(name, name + HELD_SUFFIX, src_dir_fd=directory, dst_dir_fd=directory)


def fill(directory: int, name: str, size: int, parts: Mapping[int, bytes]) -> None:
    """Gives a file *parts*, by their offsets, and zeros elsewhere; lets all users write to it. Raises: OSError.

    Keeps the inode of an existing regular file, which monitors have mapped, unless a process keeps the file from being
    opened: then it is set aside. The kernel reserves the zeros of a new file, so that containers find room on a full
    disk; writing them takes longer than all else that a container needs.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        opened = os.open(name, flags, dir_fd=directory)
    except OSError as error:
        if not is_held(error):
            raise
        set_aside(directory, name)
        opened = os.open(name, flags, dir_fd=directory)
    with open(opened, "wb") as file:
        os.fchmod(opened, _ANY_USER_WRITES)
        if os.fstat(opened).st_size == 0:
            os.posix_fallocate(opened, 0, size)
            for offset, data in parts.items():
                os.pwrite(opened, data, offset)
        else:
            content = bytearray(size)
            for offset, data in parts.items():
                content[offset : offset + len(data)] = data
            os.ftruncate(opened, size)
            file.write(content)


def shrink(directory: int, name: str, size: int) -> bool | None:
    """Truncates a file that is longer than *size*, or has blocks beyond its end. Returns whether it was.

    ``None`` if its container keeps it from being truncated: it was set aside, and a file of zeros is in its place, from
    which the limiter starts. Touches nothing else that has taken the place of the file. Raises: OSError, HostError.
    """
    if not _is_enlarged(os.stat(name, dir_fd=directory, follow_symlinks=False), size):
        return False
    with located_file(directory, name) as (seen, about):
        if not _is_enlarged(about, size):
            return False
        try:
            with reopened(seen) as file:
                os.ftruncate(file, size)
            return True
        except OSError as error:
            if not is_held(error):
                raise
    set_aside(directory, name)
    fill(directory, name, size, {})
    return None


def remove_held(directory: int, name: str) -> None:
    """Removes a file that was set aside, once nobody keeps it from being truncated. Raises: OSError, HostError."""
    with located_file(directory, name) as (seen, _):
        try:
            with reopened(seen) as file:
                os.ftruncate(file, 0)
        except OSError as error:
            if not is_held(error):
                raise
            return
    os.unlink(name, dir_fd=directory)


def opened_directory(path: str | Path) -> contextlib.AbstractContextManager[int]:
    """Opens a directory, and no link to one. Raises: OSError."""
    return _descriptor(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def list_names(directory: int) -> list[str]:
    """Returns the names in a directory, at most `MAX_ENTRIES`."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in islice(entries, MAX_ENTRIES)]


@contextlib.contextmanager
def located_file(directory: int, name: str) -> Iterator[tuple[int, os.stat_result]]:
    """Finds a regular file of this file system without opening it, for `reopened`. Raises: OSError, HostError.

    ``O_PATH`` opens nothing that could hang or act. A file of another file system was mounted there.
    """
    with _descriptor(name, os.O_PATH | os.O_NOFOLLOW, directory) as seen:
        about = os.fstat(seen)
        if not stat.S_ISREG(about.st_mode):
            raise HostError(f"{name!r}: not a regular file")
        if about.st_dev != os.fstat(directory).st_dev:
            raise HostError(f"{name!r}: on another file system")
        yield seen, about


def reopened(seen: int, access: int = os.O_RDWR) -> contextlib.AbstractContextManager[int]:
    """Opens what `located_file` has found, and nothing else, for *access*. Raises: OSError."""
    return _descriptor(f"/proc/self/fd/{seen}", access | os.O_NONBLOCK | os.O_NOCTTY)


@contextlib.contextmanager
def _descriptor(path: str | Path, flags: int, directory: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_enlarged(status: os.stat_result, size: int) -> bool:
    return stat.S_ISREG(status.st_mode) and (
        status.st_size > size or 512 * status.st_blocks > size + _SLACK
    )
