"""The page of the documents that commands print with ``-o json`` and ``-o yaml``, written from the records themselves.

``python -m tools.generate`` writes it to ``docs/documents.md``. The meanings are those of the records' docstrings, so
that a field has one description.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from hami.inspect.audit import Finding
from hami.inspect.claims import ClaimingReport
from hami.inspect.cluster import SchedulingEvent
from hami.inspect.explain import BoundReport, WaitingReport
from hami.inspect.moves import MovesReport, ShapeRoom
from hami.inspect.simulate import NodeCapacity, ReplayedDecision, SimulationReport
from hami.inspect.stranded import FreeReport
from hami.inspect.tables import API_VERSION
from hami.inspect.top import DeviceRow, NamespaceRow, NodeRow, PodRow
from hami.inspect.twin_report import TwinReport
from hami.inspect.usage import UsageReport

__all__ = ["render"]

HEAD = f"""\
# Documents

<!-- written by `python -m tools.generate` from the records -->

Commands print documents with `-o json` and `-o yaml`, as `{API_VERSION}`. Fields may be added to a version;
other changes make a new one. Memory is in MiB, `cores` are percent of one device (or their number, where a vendor
counts cores), ages are in seconds. A field that is left out has no value.
"""
KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "PodExplanation": ("`hami explain`", (WaitingReport, BoundReport, ClaimingReport)),
    "Simulation": ("`hami simulate`", (SimulationReport,)),
    "Capacity": (
        "`hami capacity`: `pods` is the sum, `nodes` has an item for each node, `free` is what is left over, "
        "`defragmentation` the moves of `--defragment`",
        (NodeCapacity, FreeReport, MovesReport),
    ),
    "CompactionList": ("`hami compact`: in `items`", (ShapeRoom,)),
    "FindingList": ("`hami audit`: in `items`", (Finding,)),
    "UpgradeFindingList": ("`hami audit --before-upgrade`: in `items`", (Finding,)),
    "ReplayedDecisionList": ("`hami replay` of a snapshot: in `items`", (ReplayedDecision,)),
    "TwinReport": ("`hami replay` of a recording or a trace", (TwinReport,)),
    "NodeUsageList": ("`hami top nodes`: in `items`", (NodeRow,)),
    "CardUsageList": ("`hami top cards`: in `items`", (DeviceRow,)),
    "PodUsageList": ("`hami top pods`: in `items`", (PodRow,)),
    "NamespaceUsageList": ("`hami top namespaces`: in `items`", (NamespaceRow,)),
    "UsageReport": ("`hami usage`", (UsageReport,)),
}
"""What each kind is the answer of, and its records."""
_NAMES = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null"}
_MEANING = re.compile(r"((?:\*\w+\*(?:, )?)+): (.*?)(?=\s\*\w+\*[:,]|$)", re.S)


def render() -> str:
    """Returns the page."""
    parts = [HEAD]
    records: dict[type, None] = {}
    for kind, (command, kinds) in KINDS.items():
        links = ", ".join(_link(record) for record in kinds)
        parts.append(f"## {kind}\n\n{command}: {links}.\n")
        for record in kinds:
            records.update(dict.fromkeys(_reachable(record)))
    parts.append("## Records\n")
    for record in records:
        parts.append(_section(record))
    return "\n".join(parts)


def _reachable(record: type) -> Iterator[type]:
    """Yields *record* and all records in its fields."""
    yield record
    for _, type_ in _fields(record):
        for part in _parts(type_):
            if isinstance(part, type) and _is_record(part):
                yield from _reachable(part)


def _parts(type_: Any) -> Iterator[Any]:
    yield type_
    for argument in get_args(type_):
        yield from _parts(argument)


def _is_record(type_: type) -> bool:
    return issubclass(type_, msgspec.Struct) or type_ is SchedulingEvent


def _fields(record: type) -> Iterator[tuple[str, Any]]:
    """Yields the fields of *record* by their names in documents, with their types."""
    hints = get_type_hints(record)
    names = dict(zip(hints, hints))
    if issubclass(record, msgspec.Struct):
        names = dict(zip(record.__struct_fields__, record.__struct_encode_fields__))
    for name, encoded in names.items():
        yield encoded, hints[name]


def _section(record: type) -> str:
    summary, meanings = _described(record)
    lines = [
        f"### {record.__name__}",
        "",
        summary,
        "",
        "| field | type | meaning |",
        "|---|---|---|",
    ]
    if issubclass(record, msgspec.Struct) and record.__struct_config__.tag:
        config = record.__struct_config__
        lines.append(f"| `{config.tag_field}` | text | `{config.tag}` |")
    for name, type_ in _fields(record):
        lines.append(f"| `{name}` | {_type_text(type_)} | {meanings.get(name, '')} |")
    return "\n".join(lines) + "\n"


def _described(record: type) -> tuple[str, dict[str, str]]:
    """Returns the summary in the docstring of *record*, and the meanings of fields by their names in documents."""
    text = " ".join((record.__doc__ or "").split()).replace("``None``", "null")
    encoded = dict(zip(get_type_hints(record), [name for name, _ in _fields(record)]))
    meanings: dict[str, str] = {}
    for match in _MEANING.finditer(text):
        for name in re.findall(r"\*(\w+)\*", match[1]):
            meanings[encoded.get(name, name)] = _plain(match[2].rstrip(" ;."), encoded)
    summary = text.partition(". ")[0].removesuffix(".")
    return f"{_plain(summary, encoded)}.", meanings


def _plain(text: str, encoded: dict[str, str]) -> str:
    text = re.sub(r"\*(\w+)\*", lambda match: f"`{encoded.get(match[1], match[1])}`", text)
    return text.replace("``", "`").replace("|", "\\|").strip()


def _type_text(type_: Any) -> str:
    if type_ in _NAMES:
        return _NAMES[type_]
    arguments = [argument for argument in get_args(type_) if argument is not Ellipsis]
    origin = get_origin(type_)
    if origin is tuple:
        return f"list of {_type_text(arguments[0])}"
    if origin is UnionType:
        return " or ".join(map(_type_text, arguments))
    if arguments:
        return f"map to {_type_text(arguments[-1])}"
    return _link(type_)


def _link(record: type) -> str:
    return f"[{record.__name__}](#{record.__name__.lower()})"
