"""The usual pods as an operator lists them, in place of those that are learnt."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated

import msgspec
from msgspec import Meta

from hami.codec.device_config import Count, Percent, PositiveCount
from hami.codec.documents import decode_yaml, places_in
from hami.errors import MalformedInput
from hami.scheduling.usual_pods import COMMON, MERGED, UsualPod, has_room
from hami.vendors.spec import Catalog

MAX_KINDS = COMMON + MERGED
MAX_TYPES, MAX_LETTERS = 64, 256

Types = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=MAX_LETTERS)], ...],
    Meta(
        min_length=1,
        max_length=MAX_TYPES,
        description=f"a list of 1 to {MAX_TYPES} parts of models' names, each of 1 to {MAX_LETTERS} "
        "characters",
    ),
]


class UsualPodEntry(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """A kind of pods in the file. *pods*: how many come while the file's other numbers come. The others are those of
    UsualPod; without an amount of memory, it is all of each device."""

    pods: PositiveCount
    vendor: str
    count: PositiveCount
    cores: Percent = 0
    memory_mib: Count = msgspec.field(default=0, name="memoryMiB")
    memory_percent: Percent | None = None
    milli_cpu: Count = msgspec.field(default=0, name="milliCPU")
    alone: bool = False
    by_claims: bool = False
    use_types: Types | None = None
    nouse_types: Types | None = None


def parse_usual_pods(text: str, source: str, vendors: Catalog) -> dict[UsualPod, float]:
    """Returns the kinds of pods in *text* (YAML), each with how often it comes. *source*: the name of the file.

    Raises: MalformedInput, which names file, entry and field.
    """
    entries = decode_yaml(text, tuple[UsualPodEntry, ...], source, unique_keys=True)
    if not 1 <= len(entries) <= MAX_KINDS:
        raise MalformedInput(source, len(entries), f"expected 1 to {MAX_KINDS} kinds of pods")
    kinds: dict[UsualPod, float] = defaultdict(float)
    for place, entry in enumerate(entries):
        kinds[_kind(entry, f"[{place}]", source, vendors)] += entry.pods
    return dict(kinds)


def _kind(entry: UsualPodEntry, path: str, source: str, vendors: Catalog) -> UsualPod:
    place = places_in(source)
    keys = [vendor.key for vendor in vendors if has_room(vendor)]
    if entry.vendor not in keys:
        problem = f"expected one of {', '.join(keys)}"
        raise MalformedInput(place(f"{path}.vendor"), entry.vendor, problem)
    percent = entry.memory_percent
    if entry.memory_mib and percent:
        problem = "expected none beside memoryMiB"
        raise MalformedInput(place(f"{path}.memoryPercent"), percent, problem)
    if percent is None:
        percent = 0 if entry.memory_mib else 100
    fields = msgspec.structs.asdict(entry) | {"memory_percent": percent}
    del fields["pods"]
    return UsualPod(**fields)
