"""The catalog of vendors for users and programs: a table in plain text or Markdown, or JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from hami.codec.device_config import DeviceConfig
from hami.inspect.tables import Column, Style, render_document, render_rows
from hami.vendors.entry_points import full_catalog
from hami.vendors.spec import Catalog, Vendor
from hami.vendors.terms import Author, Place, Term
from hami.vendors.vocabulary import Vocabulary

CHIP = "‹chip›"  # the name of a vendor in a shared row
# names and flags, shown as code in Markdown
_NAME = re.compile(r"--[-a-z]+|[-\w.]+/[-\w.‹›]*[a-zA-Z›][-\w.‹›]*")


@dataclass(frozen=True, slots=True)
class Entry:
    """One vendor of the catalog. *switch*: the flag that enables it, empty if none is needed."""

    vendor: Vendor
    switch: str = ""
    is_on: bool = True

    @property
    def memory_unit(self) -> str:
        """The unit of memory in requests; empty without a memory resource."""
        return self.vendor.resources.memory_unit

    @property
    def cores_unit(self) -> str:
        """The unit of cores in requests; empty without a core resource."""
        return self.vendor.resources.cores_unit

    @property
    def default(self) -> str:
        """The amounts of a container that requests devices only."""
        resources, parts = self.vendor.resources, []
        if resources.has_memory:
            parts.append(
                f"{resources.default_memory} MiB" if resources.default_memory else "all memory"
            )
        if resources.cores and resources.default_cores:
            parts.append(f"{resources.default_cores} cores")
        if resources.cores and resources.defaults_to_all_cores:
            parts.append("all cores if no memory is requested")
        return resources.default_description or ", ".join(parts) or "whole devices"


def entries(
    devices: DeviceConfig, *, ascend: bool = False, iluvatar: bool = False
) -> tuple[Entry, ...]:
    """Returns all vendors that the device configuration names, including disabled ones.

    Raises: HamiError if two of them claim one name, or one of a third party cannot be loaded.
    """
    switches = {chip.common_word: ("--enable-ascend", ascend) for chip in devices.ascends}
    switches |= {chip.common_word: ("--enable-iluvatar", iluvatar) for chip in devices.iluvatars}
    return tuple(
        Entry(vendor, *switches.get(vendor.key, ("", True))) for vendor in full_catalog(devices)
    )


_TABLES: Mapping[str, tuple[Column[Entry], ...]] = MappingProxyType(
    {
        "Resources": (
            Column("backend", "vendor.key"),
            Column("devices", "vendor.resources.count"),
            Column(
                "memory",
                lambda entry: ", ".join(
                    filter(
                        None, (entry.vendor.resources.memory, entry.vendor.resources.memory_percent)
                    )
                ),
            ),
            Column(
                "in",
                lambda entry: (
                    entry.memory_unit + (", %" if entry.vendor.resources.memory_percent else "")
                ),
            ),
            Column("cores", "vendor.resources.cores"),
            Column("in", "cores_unit"),
            Column("default", "default"),
            Column(
                "switch",
                lambda entry: (
                    entry.switch if entry.is_on or not entry.switch else f"{entry.switch} (off)"
                ),
            ),
        ),
        "Annotations": (
            Column("backend", "vendor.key"),
            Column("node: devices", "vendor.annotations.register"),
            Column("node: handshake", "vendor.annotations.handshake"),
            Column("node: lock", "vendor.annotations.lock"),
            Column("pod: to allocate", "vendor.annotations.to_allocate"),
            Column("pod: allocated", "vendor.annotations.allocated"),
            Column("pod: selectors", "vendor.annotations.selectors.names"),
            Column("node: also read", "vendor.annotations.node_keys"),
            Column("pod: also read", "vendor.annotations.pod_keys"),
        ),
    }
)


_WORDS: tuple[Column[Term], ...] = (
    Column("key", "key"),
    Column("is", "place.value"),
    Column("for", "vendor"),
    Column("written by", "author.value"),
    Column("text", "form.expected"),
    Column("meaning", "meaning"),
)


def words(entries: Iterable[Entry]) -> list[Term]:
    """Returns the terms that people write beside the resources: for pods with devices of *entries*, and for all."""
    vocabulary = Vocabulary(Catalog(entry.vendor for entry in entries))
    found = []
    for term in vocabulary.terms:
        if term.place is not Place.RESOURCE and term.author is not Author.HAMI:
            found.append(term)
    return found


def _text(entries: Sequence[Entry]) -> str:
    parts = []
    for title, columns in _TABLES.items():
        parts.append(f"{title}\n\n{render_rows(entries, columns, Style())}")
    parts.append(f"Words\n\n{render_rows(words(entries), _WORDS, Style())}")
    return "\n\n".join(parts)


def _markdown(entries: Sequence[Entry]) -> str:
    """Returns both tables. Vendors that differ only in their name share a row, such as the chips of one maker."""
    return "\n\n".join(_piped(columns, entries) for columns in _TABLES.values())


def _piped(columns: Sequence[Column[Entry]], entries: Sequence[Entry]) -> str:
    rows: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for entry in entries:
        cells = tuple(column.cell(entry) for column in columns)
        rows.setdefault(tuple(cell.replace(cells[0], CHIP) for cell in cells[1:]), []).append(cells)
    lines = [[column.title for column in columns], ["---"] * len(columns)]
    for shared, same in rows.items():
        cells = shared if len(same) > 1 else same[0][1:]
        lines.append(
            [", ".join(name for name, *_ in same), *(_NAME.sub(r"`\g<0>`", cell) for cell in cells)]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _json(entries: Sequence[Entry]) -> str:
    terms = words(entries)
    return render_document([_object(entry, terms) for entry in entries], "json")


def _object(entry: Entry, terms: Iterable[Term]) -> dict[str, object]:
    vendor, resources, keys = entry.vendor, entry.vendor.resources, entry.vendor.annotations
    return {
        "backend": vendor.key,
        "resources": {
            "count": resources.count,
            "memory": resources.memory,
            "memoryPercent": resources.memory_percent,
            "cores": resources.cores,
            "priority": resources.priority,
        },
        "units": {"memory": entry.memory_unit, "cores": entry.cores_unit},
        "default": entry.default,
        "annotations": {
            "register": keys.register,
            "handshake": keys.handshake,
            "toAllocate": keys.to_allocate,
            "allocated": keys.allocated,
            "lock": keys.lock,
            "selectors": list(keys.selectors.names),
            "node": list(keys.node_keys),
            "pod": list(keys.pod_keys),
        },
        "words": [_word(term) for term in terms if term.vendor in ("", vendor.key)],
        "switch": entry.switch,
        "on": entry.is_on,
    }


def _word(term: Term) -> dict[str, str]:
    return {
        "key": term.key,
        "is": term.place.value,
        "writtenBy": term.author.value,
        "text": term.form.expected,
        "meaning": term.meaning,
    }


FORMATS: Mapping[str, Callable[[Sequence[Entry]], str]] = MappingProxyType(
    {"text": _text, "markdown": _markdown, "json": _json}
)


def render(entries: Iterable[Entry], form: str = "text") -> str:
    """Renders *entries* in one of :data:`FORMATS`: ``text`` and ``markdown`` are tables, ``json`` an array."""
    return FORMATS[form](tuple(entries))
