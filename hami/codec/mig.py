"""MIG instances of a pod's containers, as in the annotation beside the allocation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from hami.codec.documents import decode
from hami.errors import MalformedInput
from hami.model import Partition

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


class _Placement(msgspec.Struct):
    start: int
    size: int


class _MigEntry(msgspec.Struct, rename="camel", omit_defaults=True):
    container_index: int
    device_index: int
    gpu_uuid: str = msgspec.field(name="gpuUUID")
    profile: str
    placement: _Placement
    mig_uuid: str | None = msgspec.field(name="migUUID", default=None)
    gpu_instance_id: int | None = msgspec.field(name="gpuInstanceID", default=None)
    compute_instance_id: int | None = msgspec.field(name="computeInstanceID", default=None)


_ENTRIES = msgspec.json.Decoder(list[_MigEntry])


def parse_mig_allocations(field: str, text: str) -> tuple[MigAllocation, ...]:
    """The instances in the annotation *text*.

    Shape: ``[{"containerIndex", "deviceIndex", "gpuUUID", "profile", "placement": {"start", "size"}}]``, the
    device plugin adds ``migUUID``, ``gpuInstanceID`` and ``computeInstanceID``.
    Raises: MalformedInput for an incomplete entry, or two entries for the same share.
    Source: HAMi v2.10, pkg/device/nvidia, DecodeMigAllocations.
    """
    found: dict[tuple[int, int], MigAllocation] = {}
    entries = decode(field, _ENTRIES, text, "a list of MIG allocations")
    for position, entry in enumerate(entries):
        where = f"{field}[{position}]"
        _check(where, entry)
        key = entry.container_index, entry.device_index
        if key in found:
            raise MalformedInput(where, key, "expected one entry for each container and device")
        identity: tuple[str, ...] = ()
        if entry.mig_uuid:
            identity = entry.mig_uuid, str(entry.gpu_instance_id), str(entry.compute_instance_id)
        found[key] = MigAllocation(container=key[0], device=key[1], gpu=entry.gpu_uuid, partition=Partition(
            entry.placement.start, entry.placement.size, entry.profile, identity))
    return tuple(found.values())


def cards_without_places(text: str) -> frozenset[str]:
    """UUIDs of the devices that have instances in *text*, an allocation of HAMi v2.5 to v2.9.

    Shape: ``uuid[template-position],type,memory,cores:``. The template is a list of instances in the configuration of
    that release, the position an index in it: the places of the instances are unknown.
    """
    return frozenset(_NUMBERED.findall(text))


def render_mig_allocations(allocations: Iterable[MigAllocation]) -> str:
    """The text that :func:`parse_mig_allocations` reads."""
    return msgspec.json.encode([_entry(allocation) for allocation in allocations]).decode()


def _entry(allocation: MigAllocation) -> _MigEntry:
    place = allocation.partition
    entry = _MigEntry(allocation.container, allocation.device, allocation.gpu, place.name,
                      _Placement(place.start, place.size))
    if place.instance:
        entry.mig_uuid = place.instance[0]
        entry.gpu_instance_id, entry.compute_instance_id = map(int, place.instance[1:])
    return entry


def _check(where: str, entry: _MigEntry) -> None:
    runtime = (entry.mig_uuid or None, entry.gpu_instance_id, entry.compute_instance_id)
    place = entry.placement
    for problem, broken in (
        ("expected indexes from 0", entry.container_index < 0 or entry.device_index < 0),
        ("expected gpuUUID and profile", not entry.gpu_uuid or not entry.profile),
        ("expected a placement with a start from 0 and a size from 1", place.start < 0 or place.size < 1),
        ("expected migUUID, gpuInstanceID and computeInstanceID, or none of them",
         any(part is None for part in runtime) and any(part is not None for part in runtime)),
    ):
        if broken:
            raise MalformedInput(where, msgspec.json.encode(entry).decode(), problem)
