"""Opens files that tenants can write to, exchange and enlarge at any time.

A file is looked at before it is opened: opening a FIFO or a device node can hang, or do worse.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from hami.errors import HostError

MAX_ENTRIES = 64
"""Directory entries that are looked at: the plugin leaves five, tenants of HAMi's can make any number."""


@contextlib.contextmanager
def opened_directory(path: str | Path) -> Iterator[int]:
    """Opens a directory, and no link to one. Raises: OSError."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield directory
    finally:
        os.close(directory)


def list_names(directory: int) -> list[str]:
    """Returns the names in a directory, at most `MAX_ENTRIES`."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in islice(entries, MAX_ENTRIES)]


@contextlib.contextmanager
def located_file(directory: int, name: str) -> Iterator[tuple[int, os.stat_result]]:
    """Finds a regular file of this file system without opening it, for `reopened`. Raises: OSError, HostError.

    ``O_PATH`` opens nothing that could hang or act. A file of another file system was mounted there.
    """
    seen = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        about = os.fstat(seen)
        if not stat.S_ISREG(about.st_mode):
            raise HostError(f"{name!r}: not a regular file")
        if about.st_dev != os.fstat(directory).st_dev:
            raise HostError(f"{name!r}: on another file system")
        yield seen, about
    finally:
        os.close(seen)


@contextlib.contextmanager
def reopened(seen: int) -> Iterator[int]:
    """Opens what `located_file` has found, and nothing else, for reading and writing. Raises: OSError."""
    file = os.open(f"/proc/self/fd/{seen}", os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)
