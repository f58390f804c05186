"""The catalogue as people and programs read it: a table in plain text, in Markdown, or JSON.

It shows what the records of the vendors say, in words that only people need.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from hami.codec.device_config import DeviceConfig
from hami.vendors.entry_points import full_catalog
from hami.vendors.spec import CoreUnit, Vendor

__all__ = ["FORMATS", "Entry", "entries", "entry_of", "render"]

NONE = "–"
CHIP = "‹chip›"
_NAME = re.compile(r"--[-a-z]+|[-\w.]+/[-\w.‹›]*[a-zA-Z›][-\w.‹›]*")
_CORES: Mapping[CoreUnit, str] = MappingProxyType({
    CoreUnit.PERCENT: "% of a device",
    CoreUnit.SIXTEENTHS: "1/16 of a device",
    CoreUnit.COMPUTE_UNITS: "% of a device, as compute units",
    CoreUnit.MASK: "cores",
})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One backend, in words. A resource or annotation that it does not have is empty, and so is its unit.

    *default*: what a container gets that does not say. *node_keys*, *pod_keys*: annotations and labels that are read
    beside the ones that have a name here. *switch*: the flag without which the backend is not scheduled.
    """

    backend: str
    count: str
    memory: str
    memory_unit: str
    memory_percent: str
    cores: str
    cores_unit: str
    priority: str
    default: str
    switch: str
    is_on: bool
    register: str
    handshake: str
    to_allocate: str
    allocated: str
    lock: str
    selectors: tuple[str, ...]
    node_keys: tuple[str, ...]
    pod_keys: tuple[str, ...]


def entries(devices: DeviceConfig, *, ascend: bool = False, iluvatar: bool = False) -> tuple[Entry, ...]:
    """All backends that the device configuration names, those that are switched off too.

    Raises: HamiError when two of them claim one name, or a third party's cannot be loaded.
    """
    switches = {chip.common_word: ("--enable-ascend", ascend) for chip in devices.ascends}
    switches |= {chip.common_word: ("--enable-iluvatar", iluvatar) for chip in devices.iluvatars}
    found = []
    for vendor in full_catalog(devices):
        switch, is_on = switches.get(vendor.key, ("", True))
        found.append(entry_of(vendor, switch, is_on=is_on))
    return tuple(found)


def entry_of(vendor: Vendor, switch: str = "", *, is_on: bool = True) -> Entry:
    """What *vendor*'s record says; *switch* is the flag that it needs, if any."""
    return Entry(
        backend=vendor.key,
        count=vendor.count,
        memory=vendor.memory,
        memory_unit=vendor.display.memory or _memory_unit(vendor) if vendor.memory else "",
        memory_percent=vendor.memory_percent,
        cores=vendor.cores,
        cores_unit=vendor.display.cores or _CORES[vendor.core_unit] if vendor.cores else "",
        priority=vendor.priority,
        default=vendor.display.default or _default(vendor),
        switch=switch,
        is_on=is_on,
        register=vendor.register,
        handshake=vendor.handshake,
        to_allocate=vendor.to_allocate,
        allocated=vendor.allocated,
        lock=vendor.lock,
        selectors=vendor.selectors.names,
        node_keys=vendor.node_keys,
        pod_keys=vendor.pod_keys,
    )


def _memory_unit(vendor: Vendor) -> str:
    unit = "MiB" if vendor.memory_factor <= 1 else f"{vendor.memory_factor} MiB"
    return f"{unit}, or as written (512Mi)" if vendor.memory_units else unit


def _default(vendor: Vendor) -> str:
    parts = []
    if vendor.memory or vendor.memory_percent:
        parts.append(f"{vendor.default_memory} MiB" if vendor.default_memory else "all memory")
    if vendor.cores and vendor.default_cores:
        parts.append(f"{vendor.default_cores} cores")
    if vendor.cores and vendor.defaults_to_all_cores:
        parts.append("all cores if no memory is asked for")
    return ", ".join(parts) or "whole devices"


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    cell: Callable[[Entry], str]


_TABLES: Mapping[str, tuple[_Column, ...]] = MappingProxyType({
    "Resources": (
        _Column("backend", lambda entry: entry.backend),
        _Column("devices", lambda entry: entry.count),
        _Column("memory", lambda entry: ", ".join(filter(None, (entry.memory, entry.memory_percent)))),
        _Column("in", lambda entry: entry.memory_unit + (", %" if entry.memory_percent else "")),
        _Column("cores", lambda entry: entry.cores),
        _Column("in", lambda entry: entry.cores_unit),
        _Column("unless it says", lambda entry: entry.default),
        _Column("switch", lambda entry: entry.switch if entry.is_on or not entry.switch else f"{entry.switch} (off)"),
    ),
    "Annotations": (
        _Column("backend", lambda entry: entry.backend),
        _Column("node: devices", lambda entry: entry.register),
        _Column("node: handshake", lambda entry: entry.handshake),
        _Column("node: lock", lambda entry: entry.lock),
        _Column("pod: to allocate", lambda entry: entry.to_allocate),
        _Column("pod: allocated", lambda entry: entry.allocated),
        _Column("pod: selectors", lambda entry: ", ".join(entry.selectors)),
        _Column("node: also read", lambda entry: ", ".join(entry.node_keys)),
        _Column("pod: also read", lambda entry: ", ".join(entry.pod_keys)),
    ),
})


def _text(entries: Sequence[Entry]) -> str:
    return "\n\n".join(f"{title}\n\n{_aligned(columns, entries)}" for title, columns in _TABLES.items())


def _aligned(columns: Sequence[_Column], entries: Sequence[Entry]) -> str:
    rows = [[column.title for column in columns],
            *([column.cell(entry) or NONE for column in columns] for entry in entries)]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                     for row in rows)


def _markdown(entries: Sequence[Entry]) -> str:
    """Both tables; backends that differ in their name alone share a row, as the chips of one vendor do."""
    return "\n\n".join(_piped(columns, entries) for columns in _TABLES.values())


def _piped(columns: Sequence[_Column], entries: Sequence[Entry]) -> str:
    rows: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        rest = tuple(_quoted(column.cell(entry).replace(entry.backend, CHIP)) for column in columns[1:])
        rows.setdefault(rest, []).append(entry)
    lines = [[column.title for column in columns], ["---"] * len(columns)]
    for rest, same in rows.items():
        cells = rest if len(same) > 1 else tuple(_quoted(column.cell(same[0])) for column in columns[1:])
        lines.append([", ".join(entry.backend for entry in same), *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _quoted(cell: str) -> str:
    """Names and flags as code."""
    return _NAME.sub(r"`\g<0>`", cell)


def _json(entries: Sequence[Entry]) -> str:
    return json.dumps([_object(entry) for entry in entries], indent=2, ensure_ascii=False)


def _object(entry: Entry) -> dict[str, object]:
    return {
        "backend": entry.backend,
        "resources": {"count": entry.count, "memory": entry.memory, "memoryPercent": entry.memory_percent,
                      "cores": entry.cores, "priority": entry.priority},
        "units": {"memory": entry.memory_unit, "cores": entry.cores_unit},
        "default": entry.default,
        "annotations": {"register": entry.register, "handshake": entry.handshake, "toAllocate": entry.to_allocate,
                        "allocated": entry.allocated, "lock": entry.lock, "selectors": list(entry.selectors),
                        "node": list(entry.node_keys), "pod": list(entry.pod_keys)},
        "switch": entry.switch,
        "on": entry.is_on,
    }


FORMATS: Mapping[str, Callable[[Sequence[Entry]], str]] = MappingProxyType(
    {"text": _text, "markdown": _markdown, "json": _json})


def render(entries: Iterable[Entry], form: str = "text") -> str:
    """*entries* in one of :data:`FORMATS`: ``text`` and ``markdown`` are tables, ``json`` an array of objects."""
    return FORMATS[form](tuple(entries))
