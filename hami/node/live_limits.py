"""The limits of a container that may be running, and what it uses of them: files in its directory.

The file with the limits is mounted into the container, so it stays the same file: it is written in place. Only root
may write to the directory and to that file; the shared region belongs to the tenant.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from hami.errors import HostError
from hami.node.limits import LIMITS, DeviceLimit, parse_limits, resized_text
from hami.node.region_layout import LAYOUTS, REGION_SUFFIX, RegionLayout, device_places, identify
from hami.node.tenant_files import list_names, located_file, reopened
from hami.runtime.files import write_atomically

USE = "use"
"""Name of the file in which the monitor says how much a container uses."""
SETTLED_NS = 2_000_000_000
"""Nanoseconds after a change of limits from which on all processes follow them: they look once a second."""
LOOK_AGAIN_S = 0.02
"""Seconds between a write and a second change of the file's time: it differs then from what a reader saw before the
write. Earlier libraries, which do not know `BEING_WRITTEN`, read again."""
BEING_WRITTEN = stat.S_ISVTX
"""Bit of the file's mode, without any other meaning for a file: as long as it is set, nobody reads the limits."""
_MOST = 16_384  # bytes of a limits file, as the limiter reads it
_READABLE, _WRITABLE = 0o444, 0o644
_HEAD = max(layout.slots for layout in LAYOUTS)
_WORD = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class LimitsText:
    """The content of a limits file. *changed_ns*: its time of change, which nobody can choose, in Unix nanoseconds.
    *whole*: nobody was writing it, nor has died while writing it."""

    text: str
    changed_ns: int
    whole: bool = True


class _Use(msgspec.Struct):
    """*limits_ns*: time of change of the limits file for which *used*, bytes by device, was measured."""

    limits_ns: int
    used: dict[str, int]


_USES = msgspec.json.Decoder(_Use)


def read_limits(directory: int) -> LimitsText | None:
    """Returns the limits file in a directory; ``None`` without one. Waits for no lease. Raises: OSError, HostError."""
    try:
        with located_file(directory, LIMITS) as (seen, about), reopened(seen, os.O_RDONLY) as file:
            return LimitsText(
                os.pread(file, _MOST, 0).decode(errors="replace"),
                about.st_ctime_ns,
                whole=not about.st_mode & BEING_WRITTEN,
            )
    except FileNotFoundError:
        return None


def resize(directory: int, sizes: Sequence[DeviceLimit], *, cores: bool) -> tuple[DeviceLimit, ...]:
    """Gives the devices of a container new limits; returns those that it has then. Writes only what differs.

    *cores*: its library reads limits of cores again; otherwise they stay as they are. Without a limits file, the
    memory in its region can grow, which HAMi's library reads: nobody could say from when on all its processes follow a
    lower limit. Raises: OSError; HostError, also if the container has other devices.
    """
    limits = read_limits(directory)
    if limits is None:
        return _resize_regions(directory, sizes)
    present = _devices(limits)
    limited = tuple(sizes) if cores else _with_cores(sizes, present)
    if {size.uuid for size in sizes} != {device.uuid for device in present}:
        raise HostError("the container has other devices")
    text = resized_text(limits.text, limited)
    if text != limits.text or not limits.whole:
        _rewrite(directory, text.encode())
    with contextlib.suppress(
        OSError, HostError
    ):  # it shows the limits to monitors, and a tenant may have spoilt it
        _write_region(directory, _region_name(limits.text), limited)
    return limited


def present_limits(directory: int) -> tuple[DeviceLimit, ...]:
    """Returns the limits that a container has, without a limits file those in its region.
    Raises: OSError; HostError."""
    limits = read_limits(directory)
    if limits is None:
        return _in_regions(directory)
    return _devices(limits)


def read_use(directory: int) -> Mapping[str, int] | None:
    """Returns the bytes that a container uses, by device; ``None`` if the monitor has not said so since all processes
    follow the present limits. Raises: OSError, HostError."""
    limits = read_limits(directory)
    try:
        with located_file(directory, USE) as (seen, about), reopened(seen, os.O_RDONLY) as file:
            use = _USES.decode(os.pread(file, _MOST, 0))
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    if limits is None or use.limits_ns != limits.changed_ns:
        return None
    if about.st_ctime_ns - limits.changed_ns < SETTLED_NS:
        return None
    return use.used


def write_use(directory: int, limits_ns: int, used: Mapping[str, int]) -> None:
    """Writes what `read_use` returns, unless it does already. *limits_ns*: time of change of the limits file, at least
    SETTLED_NS before *used* was measured. Raises: OSError, HostError."""
    with contextlib.suppress(OSError, HostError):
        if read_use(directory) == used:
            return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(USE, dir_fd=directory)  # one with this content may be from before its time
    write_atomically(
        Path(f"/proc/self/fd/{directory}/{USE}"),
        msgspec.json.encode(_Use(limits_ns, dict(used))),
        0o600,
        durable=False,
    )


def _devices(limits: LimitsText) -> tuple[DeviceLimit, ...]:
    if (parsed := parse_limits(limits.text)) is None:
        raise HostError(f"{LIMITS}: not a file with limits")
    return parsed.devices


def _with_cores(
    sizes: Sequence[DeviceLimit], present: Sequence[DeviceLimit]
) -> tuple[DeviceLimit, ...]:
    """Returns *sizes* with the cores of *present*."""
    cores = {device.uuid: device.cores for device in present}
    return tuple(replace(size, cores=cores.get(size.uuid, size.cores)) for size in sizes)


def _rewrite(directory: int, text: bytes) -> None:
    """Writes the limits file in place. Root has no right to write to it before, where capabilities are dropped.

    The mode says so before the first byte is written, and no longer after the last one: a reader that sees neither it
    nor another time of modification, before and after it reads, has read one text, however long the writer was stopped.
    """
    with located_file(directory, LIMITS) as (seen, _), reopened(seen, os.O_RDONLY) as shown:
        mode = _READABLE | BEING_WRITTEN
        os.fchmod(shown, _WRITABLE | BEING_WRITTEN)
        try:
            with reopened(seen, os.O_WRONLY) as file:
                if os.pwrite(file, text, 0) < len(text):
                    raise HostError(f"{LIMITS}: the disk is full")
                time.sleep(LOOK_AGAIN_S)
                os.utime(file)
            mode = _READABLE
        finally:
            os.fchmod(shown, mode)


def _region_name(text: str) -> str:
    for line in text.splitlines():
        word, _, path = line.partition(" ")
        if word == "region":
            return Path(path).name or "no region"
    return "no region"


def _region_names(directory: int) -> list[str]:
    return [name for name in list_names(directory) if name.endswith(REGION_SUFFIX)]


def _in_regions(directory: int) -> tuple[DeviceLimit, ...]:
    """Returns the limits in the region of a container that has no limits file. Its tenant can write to them."""
    for name in _region_names(directory):
        with (
            contextlib.suppress(OSError, HostError),
            _opened_region(directory, name) as (_, layout, head),
        ):
            return tuple(
                DeviceLimit(
                    uuid,
                    _number(head, layout.memory_limits, place),
                    _number(head, layout.core_limits, place),
                )
                for uuid, place in device_places(layout, head).items()
            )
    raise HostError("the container has no shared region yet")


def _resize_regions(directory: int, sizes: Sequence[DeviceLimit]) -> tuple[DeviceLimit, ...]:
    present = _in_regions(directory)
    memory = {device.uuid: device.memory for device in present}
    limited = tuple(
        replace(size, memory=max(size.memory, memory.get(size.uuid, 0)))
        for size in _with_cores(sizes, present)
    )
    for name in _region_names(directory):
        _write_region(directory, name, limited)
    return limited


def _write_region(directory: int, name: str, sizes: Sequence[DeviceLimit]) -> None:
    with _opened_region(directory, name) as (file, layout, head):
        places = device_places(layout, head)
        for size in sizes:
            for base, amount in (
                (layout.memory_limits, size.memory),
                (layout.core_limits, size.cores),
            ):
                place = places.get(size.uuid)
                if place is not None and _number(head, base, place) != amount:
                    os.pwrite(file, _WORD.pack(amount), base + _WORD.size * place)


def _number(head: bytes, base: int, place: int) -> int:
    number: int = _WORD.unpack_from(head, base + _WORD.size * place)[0]
    return number


@contextlib.contextmanager
def _opened_region(directory: int, name: str) -> Iterator[tuple[int, RegionLayout, bytes]]:
    """Opens a region for reading and writing; yields also its layout and the bytes before the slots. Raises: OSError;
    HostError if it is none."""
    with located_file(directory, name) as (seen, about), reopened(seen) as file:
        head = os.pread(file, _HEAD, 0)
        identified = identify(about.st_size, head)
        if identified is None or len(head) < identified[0].slots:
            raise HostError(f"{name}: not a shared region")
        yield file, identified[0], head
