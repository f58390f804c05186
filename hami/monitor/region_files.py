"""Reads and writes the files of containers, which tenants can change at any time.

Nothing is mapped, since a file that shrinks would end the process, and no lock is taken.
"""

from __future__ import annotations

import contextlib
import enum
import os
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hami.errors import HostError
from hami.monitor.regions import Region, Write, parse_region, parse_throttled, slot_count
from hami.node.host import directory_name
from hami.node.instances import GivenInstance, read_instances
from hami.node.limits import ContainerLimits, parse_limits
from hami.node.live_limits import LimitsText, read_limits, write_use
from hami.node.region_layout import (
    COMPUTE_HEARTBEAT,
    COMPUTE_SIZE,
    COMPUTE_SUFFIX,
    LAYOUTS,
    REGION_SUFFIX,
    identify,
)
from hami.node.tenant_files import HELD_SUFFIX, list_names, located_file, opened_directory, reopened

_REGION_SIZES = frozenset(size for layout in LAYOUTS for size in (layout.size, layout.size + 1))
_EMPTY = 0  # while a library makes its region
_HEARTBEAT = struct.Struct("<Q")


class _UnknownSize(HostError):
    """A file has a size that no known version has."""


class RegionState(enum.StrEnum):
    """Why a container has a region that can be read, or has none."""

    OK = "ok"
    ABSENT = "absent"
    UNINITIALIZED = "uninitialized"
    UNKNOWN = "unknown"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionReading:
    """The region of a container, or why there is none.

    *name*, *inode*, *changed_ns*: of its file, the latter Unix nanoseconds. *problem*: a reason for the log, empty if
    there is nothing to say. *throttled*: nanoseconds that launches on each device of the region have waited, ``None``
    without our limiter. *is_held*: the container keeps the device plugin from truncating a file with which it fills the
    disk.
    """

    state: RegionState
    problem: str = ""
    region: Region | None = None
    name: str = ""
    inode: int = 0
    changed_ns: int = 0
    throttled: tuple[int, ...] | None = None
    is_held: bool = False

    @property
    def version(self) -> str:
        """The version of the region; empty if there is none."""
        return self.region.version if self.region is not None else ""

    @property
    def limiter(self) -> str:
        """The limiter that has made the region: ``libvgpu`` for ours, ``hami`` for HAMi's; empty if there is none."""
        return "" if self.region is None else "hami" if self.throttled is None else "libvgpu"


class RegionFiles:
    """The regions below one host directory."""

    def __init__(self, hook_path: str | Path) -> None:
        """*hook_path*: the directory above ``vgpu``."""
        self._containers = str(Path(hook_path) / "vgpu" / "containers")

    def read(self, uid: str, container: str, *, heartbeat: int | None = None) -> RegionReading:
        """Returns the newest readable region of a container. Never raises.

        *heartbeat*: monotonic nanoseconds, written to the compute file to say that a monitor decides who is blocked.
        """
        try:
            with self._directory(uid, container) as directory:
                names = list_names(directory)
                is_held = any(
                    _is_held(directory, name) for name in names if name.endswith(HELD_SUFFIX)
                )
                readings = [
                    _read_region(directory, name, names, heartbeat)
                    for name in names
                    if name.endswith(REGION_SUFFIX)
                ]
        except FileNotFoundError:
            return RegionReading(state=RegionState.ABSENT)
        except (OSError, HostError) as error:
            return RegionReading(state=RegionState.UNREADABLE, problem=str(error))
        newest = max(
            readings,
            key=lambda reading: (reading.state is RegionState.OK, reading.changed_ns),
            default=RegionReading(state=RegionState.ABSENT),
        )
        return replace(newest, is_held=is_held)

    def limits(self, uid: str, container: str) -> ContainerLimits | None:
        """Returns the limits of a container, in a file that it cannot change; ``None`` without one."""
        limits = self.limits_text(uid, container)
        return parse_limits(limits.text) if limits is not None else None

    def instances(self, uid: str, container: str) -> tuple[GivenInstance, ...]:
        """Returns the MIG instances that a container has by a claim, from a file that it cannot change.
        Never raises."""
        try:
            with self._directory(uid, container) as directory:
                return read_instances(directory)
        except (OSError, HostError):
            return ()

    def limits_text(self, uid: str, container: str) -> LimitsText | None:
        """Returns the file with the limits of a container; ``None`` without one. Never raises."""
        try:
            with self._directory(uid, container) as directory:
                return read_limits(directory)
        except (OSError, HostError):
            return None

    def write_use(self, uid: str, container: str, limits_ns: int, used: Mapping[str, int]) -> None:
        """Writes for the device plugin what a container uses, by device, if it does not know that yet. *limits_ns*: as
        for `live_limits.write_use`. Raises: OSError, HostError."""
        with self._directory(uid, container) as directory:
            write_use(directory, limits_ns, used)

    def write(
        self, uid: str, container: str, reading: RegionReading, writes: Collection[Write]
    ) -> None:
        """Writes to the region of *reading*. Does nothing if it is no longer the same file. Raises: OSError, HostError
        if it cannot be written."""
        if not writes:
            return
        with (
            self._directory(uid, container) as directory,
            _opened(directory, reading.name, _REGION_SIZES) as (file, about),
        ):
            if about.st_ino == reading.inode:
                for offset, data in writes:
                    os.pwrite(file, data, offset)

    def _directory(self, uid: str, container: str) -> contextlib.AbstractContextManager[int]:
        return opened_directory(f"{self._containers}/{directory_name(uid, container)}")


def _read_region(
    directory: int, name: str, names: Collection[str], heartbeat: int | None
) -> RegionReading:
    try:
        with _opened(directory, name, _REGION_SIZES | {_EMPTY}) as (file, about):
            state, region, problem = _content(file, about.st_size)
        compute = name.removesuffix(REGION_SUFFIX) + COMPUTE_SUFFIX
        throttled = _read_compute(directory, compute, heartbeat) if compute in names else None
    except _UnknownSize as error:
        return RegionReading(state=RegionState.UNKNOWN, problem=str(error))
    except (OSError, HostError) as error:
        return RegionReading(state=RegionState.UNREADABLE, problem=str(error))
    return RegionReading(
        state=state,
        problem=problem,
        region=region,
        name=name,
        inode=about.st_ino,
        changed_ns=about.st_mtime_ns,
        throttled=throttled,
    )


def _is_held(directory: int, name: str) -> bool:
    """Reports whether a file that the device plugin has set aside still cannot be opened: its container holds it."""
    try:
        with located_file(directory, name) as (seen, _), reopened(seen):
            return False
    except FileNotFoundError:
        return False
    except (OSError, HostError):
        return True


def _content(file: int, size: int) -> tuple[RegionState, Region | None, str]:
    head = os.pread(file, max(layout.slots for layout in LAYOUTS), 0)
    if size == _EMPTY or head[:4] == bytes(4):
        return RegionState.UNINITIALIZED, None, ""
    if (identified := identify(size, head)) is None:
        return (
            RegionState.UNKNOWN,
            None,
            f"no known version of a region, {size} bytes begin with {head[:12].hex()}",
        )
    layout, version = identified
    tail = os.pread(file, layout.tail_size, layout.slots_used)
    used = slot_count(tail) if len(tail) == layout.tail_size else 0
    slots = os.pread(file, used * layout.slot_size, layout.slots) if used else b""
    if (region := parse_region(version, layout, head, slots, tail)) is None:
        return RegionState.UNREADABLE, None, "the file shrinks while it is read"
    return RegionState.OK, region, ""


def _read_compute(directory: int, name: str, heartbeat: int | None) -> tuple[int, ...]:
    with _opened(directory, name, (COMPUTE_SIZE,)) as (file, _):
        content = os.pread(file, COMPUTE_SIZE, 0)
        if len(content) < COMPUTE_SIZE:
            raise HostError(f"{name}: the file shrinks while it is read")
        if heartbeat is not None:
            os.pwrite(file, _HEARTBEAT.pack(heartbeat), COMPUTE_HEARTBEAT)
    return parse_throttled(content)


@contextlib.contextmanager
def _opened(
    directory: int, name: str, sizes: Collection[int]
) -> Iterator[tuple[int, os.stat_result]]:
    """Opens a regular file of one of *sizes* for reading and writing.
    Raises: OSError, HostError if it is no such file."""
    with located_file(directory, name) as (seen, about):
        if about.st_size not in sizes:
            raise _UnknownSize(f"{name!r}: {about.st_size} bytes, which no known version has")
        with reopened(seen) as file:
            yield file, about
