"""Recordings: what came, where it was placed and when it ended, as lines of JSON that a replay needs and no more.

`KINDS` declares what is kept, by the fields of each record: numbers and words of Kubernetes as they are, names as
hashes with a salt of the recording. What has no kind here is not recorded. A segment begins with a `Head` and the
whole state up to a line that says so, and ends with a checksum. A file may come from anybody: each number, text and
list has a bound, and the decoder names the field that breaks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from hami.codec.register import MAX_DEVICES
from hami.inspect.snapshot import Fields, Kind, Name
from hami.model import Device, MigProfile, Partition
from hami.quantity import INT32_MAX
from hami.scheduling.usage import Charge
from hami.vendors.request import MAX_CONTAINERS

FORMAT = "HamiRecording"
VERSION = 2
WITH_TAINTS = 2
"""The first version that has taints and tolerations."""
LATEST_S = 1 << 36

Amount = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Integer = Annotated[int, Meta(ge=-INT32_MAX - 1, le=INT32_MAX)]
Seconds = Annotated[float, Meta(ge=0, le=LATEST_S)]
ShortText = Annotated[str, Meta(max_length=128)]
LongText = Annotated[str, Meta(max_length=16_384)]
Words = Annotated[dict[ShortText, LongText], Meta(max_length=64)]


class RecordStruct(
    msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """A part of a line. Fields with their default are left out."""


class Head(RecordStruct, frozen=True):
    """The first line of a segment. *recording*: the same for all segments of one. *policies*: of the scheduler, for
    nodes and devices. *device_config*: YAML, without comments."""

    format: ShortText
    version: Amount
    recording: ShortText
    segment: Amount
    node_policy: ShortText = "binpack"
    device_policy: ShortText = "spread"
    device_config: Annotated[str, Meta(max_length=1 << 19)] = ""


class RecordedPlace(RecordStruct, frozen=True):
    """Where a MIG instance lies or may lie: first slice, number of slices, and the name of the profile."""

    start: Amount
    size: Amount = 1
    name: ShortText = ""


class RecordedProfile(RecordStruct, frozen=True):
    """A MIG profile."""

    name: ShortText
    memory_mib: Amount
    cores: Amount
    slices: Amount
    placements: Annotated[tuple[RecordedPlace, ...], Meta(max_length=64)] = ()


class RecordedDevice(RecordStruct, frozen=True):
    """A device of *vendor*, as its node registered it."""

    uuid: ShortText
    vendor: ShortText
    model: ShortText
    slots: Amount
    memory_mib: Amount
    cores: Amount = 100
    index: Amount = 0
    numa: Integer = 0
    mode: ShortText = "hami-core"
    healthy: bool = True
    cordoned: bool = False
    mig_profiles: Annotated[tuple[RecordedProfile, ...], Meta(max_length=64)] = ()


class RecordedLabel(RecordStruct, frozen=True):
    """A label of a node."""

    key: ShortText
    value: ShortText = ""


class RecordedTaint(RecordStruct, frozen=True):
    """A taint of a node that keeps pods away."""

    key: ShortText = ""
    value: ShortText = ""
    effect: ShortText = ""


class RecordedToleration(RecordStruct, frozen=True):
    """A toleration of a pod. An empty *key* or *effect* means all."""

    key: ShortText = ""
    operator: ShortText = ""
    value: ShortText = ""
    effect: ShortText = ""


class RecordedNode(RecordStruct, frozen=True):
    """A node. *after*: the one before it by name, so that ties come out as they did. *milli_cpu*, *memory_mib*: what
    pods without devices leave of it for others."""

    name: ShortText
    after: ShortText = ""
    devices: Annotated[tuple[RecordedDevice, ...], Meta(max_length=MAX_DEVICES)] = ()
    labels: Annotated[tuple[RecordedLabel, ...], Meta(max_length=256)] = ()
    milli_cpu: Integer = 0
    memory_mib: Integer = 0
    unschedulable: bool = False
    taints: Annotated[tuple[RecordedTaint, ...], Meta(max_length=64)] = ()


class RecordedLeft(RecordStruct, frozen=True):
    """The part of *node* that pods without devices leave now."""

    node: ShortText
    milli_cpu: Integer = 0
    memory_mib: Integer = 0


class RecordedContainer(RecordStruct, frozen=True):
    """A container. *kind*: ``init``, ``sidecar`` or ``app``."""

    kind: ShortText = "app"
    limits: Words = {}
    requests: Words = {}


class RecordedRequirement(RecordStruct, frozen=True):
    """A condition on the labels of a node, or on its name: then *nodes* are those of the condition."""

    operator: ShortText
    key: ShortText = ""
    values: Annotated[tuple[ShortText, ...], Meta(max_length=256)] = ()
    nodes: Annotated[tuple[ShortText, ...], Meta(max_length=256)] = ()


class RecordedTerm(RecordStruct, frozen=True):
    """Conditions that a node must meet together. *weight*: of a preference."""

    requirements: Annotated[tuple[RecordedRequirement, ...], Meta(max_length=64)] = ()
    weight: Annotated[int, Meta(ge=0, le=100)] = 0


Terms = Annotated[tuple[RecordedTerm, ...], Meta(max_length=64)]


class RecordedShape(RecordStruct, frozen=True):
    """The requests of a pod: most pods of a cluster have one of few shapes. *protected*: others never evict it.
    *soft*: kube-scheduler has the last word on its node."""

    containers: Annotated[tuple[RecordedContainer, ...], Meta(max_length=MAX_CONTAINERS)]
    annotations: Words = {}
    requests: Words = {}
    overhead: Words = {}
    priority: Integer = 0
    preempts: bool = True
    protected: bool = False
    soft: bool = False
    terms: Terms = ()
    preferences: Terms = ()
    tolerations: Annotated[tuple[RecordedToleration, ...], Meta(max_length=64)] = ()


class RecordedPod(RecordStruct, frozen=True):
    """A pod that requests devices. *shape*: a `RecordedShape`. *created*: Unix seconds, as the API server says."""

    uid: ShortText
    namespace: ShortText
    shape: msgspec.Raw
    created: Seconds = 0.0
    group: ShortText = ""
    controller: ShortText = ""
    owner_kind: ShortText = ""


class RecordedCharge(RecordStruct, frozen=True):
    """The part of a device that a pod holds."""

    vendor: ShortText
    uuid: ShortText
    slots: Amount
    memory_mib: Amount
    cores: Amount
    partitions: Annotated[tuple[RecordedPlace, ...], Meta(max_length=64)] = ()


class RecordedBinding(RecordStruct, frozen=True):
    """The pod *uid* is bound to *node* with *charges*. *decided*: when, in Unix seconds, 0 if that is not known."""

    uid: ShortText
    node: ShortText
    charges: Annotated[tuple[RecordedCharge, ...], Meta(max_length=MAX_DEVICES)] = ()
    decided: Seconds = 0.0


class RecordedEnd(RecordStruct, frozen=True):
    """The pod *uid* holds nothing any more. *how*: ``finished``, ``deleted`` or ``preempted``."""

    uid: ShortText
    how: ShortText = "deleted"


class SegmentEnd(RecordStruct, frozen=True):
    """The last line of a segment: how many *lines* are before it, and the SHA-256 of them."""

    lines: Amount
    sha256: ShortText


class Line(RecordStruct, frozen=True):
    """One line: *at*, in Unix seconds, and what has changed then. *is_whole*: the state at the beginning of a segment
    is complete, and what is not in it has gone."""

    at: Seconds = 0.0
    head: Head | None = None
    node: RecordedNode | None = None
    node_gone: ShortText = ""
    left: RecordedLeft | None = None
    pod: RecordedPod | None = None
    bound: RecordedBinding | None = None
    ended: RecordedEnd | None = None
    is_whole: bool = False
    end: SegmentEnd | None = None


_DEVICE: Fields = {
    "uuid": Name("device"),
    **dict.fromkeys(
        "vendor model slots memory_mib cores index numa mode healthy cordoned mig_profiles".split(),
        Kind.KEPT,
    ),
}
_CHARGE: Fields = {
    "uuid": Name("device"),
    **dict.fromkeys("vendor slots memory_mib cores partitions".split(), Kind.KEPT),
}
_TERM: Fields = {
    "requirements": {
        "operator": Kind.KEPT,
        "key": Name("label"),
        "values": Name("value"),
        "nodes": Name("node"),
    },
    "weight": Kind.KEPT,
}
_TAINT: Fields = {"key": Name("taint"), "value": Name("value"), "effect": Kind.KEPT}
KINDS: Mapping[type[RecordStruct], Fields] = {
    RecordedNode: {
        "name": Name("node"),
        "after": Name("node"),
        "devices": _DEVICE,
        "labels": {"key": Name("label"), "value": Name("value")},
        "taints": _TAINT,
        **dict.fromkeys(("milli_cpu", "memory_mib", "unschedulable"), Kind.KEPT),
    },
    RecordedLeft: {"node": Name("node"), "milli_cpu": Kind.KEPT, "memory_mib": Kind.KEPT},
    RecordedShape: {
        "annotations": Kind.WORDS,
        "terms": _TERM,
        "preferences": _TERM,
        "tolerations": {**_TAINT, "operator": Kind.KEPT},
        **dict.fromkeys(
            "containers requests overhead priority preempts protected soft".split(), Kind.KEPT
        ),
    },
    RecordedPod: {
        "uid": Name("uid"),
        "namespace": Name("namespace"),
        "shape": Kind.KEPT,  # its own fields have kinds
        "created": Kind.KEPT,
        "group": Name("group"),
        "controller": Name("controller"),
        "owner_kind": Kind.TEXT,
    },
    RecordedBinding: {
        "uid": Name("uid"),
        "node": Name("node"),
        "charges": _CHARGE,
        "decided": Kind.KEPT,
    },
    RecordedEnd: {"uid": Name("uid"), "how": Kind.KEPT},
}
"""What is kept of each record that a line has."""


def device_of(record: RecordedDevice) -> Device:
    """Returns the device."""
    profiles: list[MigProfile] = []
    for profile in record.mig_profiles:
        profiles.append(
            MigProfile(
                name=profile.name,
                memory_mib=profile.memory_mib,
                cores=profile.cores,
                slices=profile.slices,
                placements=_partitions(profile.placements),
            )
        )
    return Device(
        uuid=record.uuid,
        vendor=record.vendor,
        model=record.model,
        slots=record.slots,
        memory_mib=record.memory_mib,
        cores=record.cores,
        index=record.index,
        numa=record.numa,
        mode=record.mode,
        healthy=record.healthy,
        cordoned=record.cordoned,
        mig_profiles=tuple(profiles),
    )


def record_device(device: Device) -> RecordedDevice:
    """Returns the record of *device*."""
    profiles: list[RecordedProfile] = []
    for profile in device.mig_profiles:
        profiles.append(
            RecordedProfile(
                name=profile.name,
                memory_mib=profile.memory_mib,
                cores=profile.cores,
                slices=profile.slices,
                placements=_places(profile.placements),
            )
        )
    return RecordedDevice(
        uuid=device.uuid,
        vendor=device.vendor,
        model=device.model,
        slots=device.slots,
        memory_mib=device.memory_mib,
        cores=device.cores,
        index=device.index,
        numa=device.numa,
        mode=device.mode,
        healthy=device.healthy,
        cordoned=device.cordoned,
        mig_profiles=tuple(profiles),
    )


def record_charge(vendor: str, charge: Charge) -> RecordedCharge:
    """Returns the record of *charge*."""
    return RecordedCharge(
        vendor=vendor,
        uuid=charge.uuid,
        slots=charge.slots,
        memory_mib=charge.memory_mib,
        cores=charge.cores,
        partitions=_places(charge.partitions),
    )


def charge_of(record: RecordedCharge) -> Charge:
    """Returns the charge."""
    return Charge(
        record.uuid,
        record.slots,
        record.memory_mib,
        record.cores,
        _partitions(record.partitions),
    )


def _places(partitions: tuple[Partition, ...]) -> tuple[RecordedPlace, ...]:
    return tuple(
        RecordedPlace(start=part.start, size=part.size, name=part.name) for part in partitions
    )


def _partitions(places: tuple[RecordedPlace, ...]) -> tuple[Partition, ...]:
    return tuple(Partition(place.start, place.size, place.name) for place in places)
