"""MIG instances of a pod's containers, as in the annotation beside the allocation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec

from hami.codec.documents import decode
from hami.errors import MalformedInput
from hami.model import MigProfile, Partition

_FROM_THE_TOP = ("1g.", "3g.")  # profiles whose placements are tried from the highest start down
_NUMBERED = re.compile(r"(?<![^;:,\[\]])([^;:,\[\]]++)\[\d+-\d+\],")  # possessive: linear time


@dataclass(frozen=True, slots=True, kw_only=True)
class MigAllocation:
    """One instance. *container*: index in the pod, init containers first; *device*: index of the container's share.

    *partition*: its place on the device in memory slices, the profile's name, and its identity once the device plugin
    has created it.
    """

    container: int
    device: int
    gpu: str
    partition: Partition


_Index = Annotated[int, msgspec.Meta(ge=0)]
_Word = Annotated[str, msgspec.Meta(min_length=1)]


class _Placement(msgspec.Struct):
    start: _Index
    size: Annotated[int, msgspec.Meta(ge=1)]


class _MigEntry(msgspec.Struct, rename="camel", omit_defaults=True):
    container_index: _Index
    device_index: _Index
    gpu_uuid: _Word = msgspec.field(name="gpuUUID")
    profile: _Word
    placement: _Placement
    mig_uuid: str | None = msgspec.field(name="migUUID", default=None)
    gpu_instance_id: int | None = msgspec.field(name="gpuInstanceID", default=None)
    compute_instance_id: int | None = msgspec.field(name="computeInstanceID", default=None)


_ENTRIES = msgspec.json.Decoder(list[_MigEntry])


def possible_instances(profiles: Iterable[MigProfile]) -> Iterator[tuple[MigProfile, Partition]]:
    """Yields each profile with each of its placements, named after it, in the order in which allocators try them:
    smaller profiles first, and placements that leave room for larger instances.

    Source: HAMi v2.10, pkg/device/nvidia, CustomFilterRule.
    """
    for profile in sorted(profiles, key=lambda profile: (profile.memory_mib, profile.slices)):
        from_the_top = profile.name.startswith(_FROM_THE_TOP)
        for placement in sorted(
            profile.placements, key=lambda placement: placement.start, reverse=from_the_top
        ):
            yield profile, replace(placement, name=profile.name)


def most_instances(profiles: Iterable[MigProfile]) -> int:
    """Returns the maximum number of instances on a card: the most that one profile allows without overlap."""
    return max(map(_disjoint, profiles), default=0)


def parse_mig_allocations(field: str, text: str) -> tuple[MigAllocation, ...]:
    """The instances in the annotation *text*.

    Shape: ``[{"containerIndex", "deviceIndex", "gpuUUID", "profile", "placement": {"start", "size"}}]``, the
    device plugin adds ``migUUID``, ``gpuInstanceID`` and ``computeInstanceID``.
    Raises: MalformedInput for an incomplete entry, or two entries for the same share.
    Source: HAMi v2.10, pkg/device/nvidia, DecodeMigAllocations.
    """
    allocations: dict[tuple[int, int], MigAllocation] = {}
    entries = decode(field, _ENTRIES, text, "a list of MIG allocations")
    for position, entry in enumerate(entries):
        where = f"{field}[{position}]"
        key = entry.container_index, entry.device_index
        if key in allocations:
            raise MalformedInput(where, key, "expected one entry for each container and device")
        parts = (entry.mig_uuid or None, entry.gpu_instance_id, entry.compute_instance_id)
        instance = tuple(str(part) for part in parts if part is not None)
        if len(instance) not in (0, len(parts)):
            raise MalformedInput(
                where,
                msgspec.json.encode(entry).decode(),
                "expected migUUID, gpuInstanceID and computeInstanceID, or none of them",
            )
        place = Partition(entry.placement.start, entry.placement.size, entry.profile, instance)
        allocations[key] = MigAllocation(
            container=key[0], device=key[1], gpu=entry.gpu_uuid, partition=place
        )
    return tuple(allocations.values())


def cards_without_places(text: str) -> frozenset[str]:
    """UUIDs of the devices that have instances in *text*, an allocation of HAMi v2.5 to v2.9.

    Shape: ``uuid[template-position],type,memory,cores:``. The template is a list of instances in the configuration of
    that release, the position an index in it: the places of the instances are unknown.
    """
    if "[" not in text:
        return frozenset()
    return frozenset(_NUMBERED.findall(text))


def render_mig_allocations(allocations: Iterable[MigAllocation]) -> str:
    """The text that :func:`parse_mig_allocations` reads."""
    return msgspec.json.encode([_entry(allocation) for allocation in allocations]).decode()


def _entry(allocation: MigAllocation) -> _MigEntry:
    place = allocation.partition
    entry = _MigEntry(
        allocation.container,
        allocation.device,
        allocation.gpu,
        place.name,
        _Placement(place.start, place.size),
    )
    if place.instance:
        entry.mig_uuid = place.instance[0]
        entry.gpu_instance_id, entry.compute_instance_id = map(int, place.instance[1:])
    return entry


def _disjoint(profile: MigProfile) -> int:
    count, end = 0, 0
    for place in sorted(profile.placements, key=lambda place: place.start + place.size):
        if place.start >= end:
            count, end = count + 1, place.start + place.size
    return count
