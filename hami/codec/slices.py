"""The cards of a node as ResourceSlices (resource.k8s.io/v1), from which kube-scheduler allocates claims.

Each card is a device that several claims share. A claim consumes three capacities of it: memory, cores (percent), and
share, of which a card has 100: each claim takes at least the part of one slot, so that no more claims than slots fit,
and one that takes 100 has the card for itself.

A card in MIG mode has a device for each instance that may be made: a profile at one of its placements. Devices of one
card consume counters of it, one for each memory slice. So those that are allocated never overlap, which is all that the
hardware asks for: the placements of NVIDIA's profiles leave enough multiprocessors to any that do not.
Source: dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin, partitions.go, for the names of counters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hami.codec.documents import decode
from hami.codec.keys import CORDONED_TAINT, MANAGED_TAINT, UNHEALTHY_TAINT
from hami.codec.mig import most_instances, possible_instances
from hami.codec.objects import RESOURCE_GROUP
from hami.codec.register import Integer
from hami.errors import MalformedInput
from hami.model import NOTHING, Device, MigProfile, Partition
from hami.quantity import INT32_MAX, MIB, parse_quantity, render_mib, render_milli

DRIVER = "gpu.hami.io"
"""The name of the driver, of its DeviceClass, and the domain of its attributes."""
MIG_CLASS = "mig.hami.io"
"""The name of the DeviceClass of MIG instances."""
API_VERSION = RESOURCE_GROUP
API = f"/apis/{API_VERSION}"
"""The path of the API group on the API server."""
NUMA_NODE, PCI_BUS_ID = "resource.kubernetes.io/numaNode", "resource.kubernetes.io/pciBusID"
SHARE = 100  # of each card, whatever its number of slots, so that a claim can ask for a whole card of any kind
MAX_DEVICES = 64  # of a slice with taints or counters; without, it may have 128, but a cordon would then move cards
MAX_COUNTER_SETS, MAX_COUNTERS = 8, 32  # of a slice, which then has no devices, and of a set
LONGEST_STRING = 64  # bytes of an attribute
_LONGEST_NODE = 253 - len(f"255-{DRIVER}-")  # characters, in the name of a slice
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_MEMORY_SLICE = re.compile(r"memory-slice-([0-9]{1,2})")
_INSTANCE = "-mig-"  # in names of MIG instances, and in no others


def pool_name(node: str) -> str:
    """Returns the name of the pool of *node*. Not that of the node: pools of other drivers have it, and kube-scheduler
    1.36 counts the counters of pools with one name together."""
    return f"hami/{node}"


def device_name(uuid: str) -> str:
    """Returns the name of a card in slices: ``gpu-`` and its UUID in lower case, without ``GPU-``."""
    return f"gpu-{uuid.removeprefix('GPU-').lower()}"


def card_name(name: str) -> str:
    """Returns the name of the card that the device of this name in slices is, or is on."""
    return name.partition(_INSTANCE)[0]


def card_of(name: str) -> str:
    """Returns the UUID of that card: NVIDIA writes UUIDs in lower case."""
    return f"GPU-{card_name(name).removeprefix('gpu-')}"


def is_publishable(device: Device) -> bool:
    """Reports whether claims can share *device*: it is not partitioned (MIG), has 2 MiB of memory or more, and a UUID
    that makes a name."""
    name = device_name(device.uuid)
    return (
        not device.is_partitioned
        and device.memory_mib >= 2
        and _LABEL.fullmatch(name) is not None
        and not is_instance(name)
    )


def is_claimable(device: Device) -> bool:
    """Reports whether claims can have shares of *device*, or MIG instances on it."""
    return is_publishable(device) or bool(mig_devices(device.uuid, device.mig_profiles))


def is_instance(name: str) -> bool:
    """Reports whether a device of this name is a MIG instance."""
    return _INSTANCE in name


def mig_devices(
    uuid: str, profiles: Iterable[MigProfile]
) -> dict[str, tuple[MigProfile, Partition]]:
    """Returns the MIG instances of these *profiles* that may be made on the card *uuid*, by their names in slices, in
    the order of allocation.

    A name is that of the card, ``-mig-``, the profile and the first memory slice: ``gpu-…-mig-3g-40gb-4``. It does not
    have the index of the card, which may change while a claim has the instance. What has no valid name is left out,
    and of two with one name, the second.
    """
    named: dict[str, tuple[MigProfile, Partition]] = {}
    for profile, placement in possible_instances(profiles):
        name = instance_name(uuid, placement)
        if _LABEL.fullmatch(name) is not None and placement.start + placement.size <= MAX_COUNTERS:
            named.setdefault(name, (profile, placement))
    return named


def instance_name(uuid: str, place: Partition) -> str:
    """Returns the name of a MIG instance on the card *uuid* at *place*, whose name is that of the profile."""
    words = "-".join(re.findall("[a-z0-9]+", place.name.lower()))
    return f"{device_name(uuid)}{_INSTANCE}{words}-{place.start}"


def render_slices(
    node: str,
    devices: Iterable[Device],
    *,
    generation: int = 1,
    node_uid: str = "",
    pci_bus_ids: Mapping[str, str] = NOTHING,
) -> tuple[dict[str, Any], ...]:
    """Returns the slices of *node*, which are its whole pool; none without devices. Equal devices make equal slices.

    The cards are in the order of their indexes, which is the order of allocation. Those that slices cannot have are
    left out, and of two that differ in case only, the second.
    Those that are `by_claims` have a taint that keeps kube-scheduler from giving them out.
    *generation*: of the pool, to be raised with each change. *node_uid*: makes the node the owner. *pci_bus_ids*: by
    UUID, such as ``0000:3b:00.0``; a card without one does not have the attribute.
    Raises: MalformedInput if the name of the node is too long.
    """
    if len(node) > _LONGEST_NODE:
        raise MalformedInput("node", node, f"expected at most {_LONGEST_NODE} characters")
    named: dict[str, Device] = {}
    for device in sorted(devices, key=lambda device: (device.index, device.uuid)):
        if is_claimable(device):
            named.setdefault(device_name(device.uuid), device)
    shared: list[dict[str, Any]] = []
    counter_sets: list[dict[str, Any]] = []
    instances: list[dict[str, Any]] = []
    for device in named.values():
        pci_bus_id = pci_bus_ids.get(device.uuid, "")
        if is_publishable(device):
            shared.append(_device(device, pci_bus_id))
        else:
            counter_sets.append(_counter_set(device))
            instances += _instances(device, pci_bus_id)
    contents = [
        *_parts("devices", shared, MAX_DEVICES),
        *_parts("sharedCounters", counter_sets, MAX_COUNTER_SETS),
        *_parts("devices", instances, MAX_DEVICES),
    ]
    pool = {"name": pool_name(node), "generation": generation, "resourceSliceCount": len(contents)}
    slices: list[dict[str, Any]] = []
    for number, content in enumerate(contents):
        slices.append(
            {
                "apiVersion": API_VERSION,
                "kind": "ResourceSlice",
                "metadata": {"name": f"{number}-{DRIVER}-{node}", **_owner(node, node_uid)},
                "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, **content},
            }
        )
    return tuple(slices)


def _owner(node: str, uid: str) -> dict[str, Any]:
    """Returns the field of metadata that makes *node* the owner; none without its *uid*."""
    if not uid:
        return {}
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True}
    return {"ownerReferences": [owner]}


def is_published(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Reports whether the slice *found* on the API server says what the slice *wanted* does, whatever
    its generation."""
    return _without_server_fields(found) == _without_server_fields(wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedInstance:
    """A MIG instance that may be made. *card*: without its profiles. *profile*: with the place of the instance only."""

    name: str
    card: Device
    profile: MigProfile


@dataclass(frozen=True, slots=True)
class PublishedSlice:
    """A part of the devices of *node*. *generation*: of the pool; slices of an earlier one are out of date. *devices*:
    cards that are shared; those whose claims HAMi's scheduler allocates are `by_claims`."""

    node: str
    generation: int
    devices: tuple[Device, ...]
    instances: tuple[PublishedInstance, ...] = ()


def parse_slice(data: bytes | msgspec.Raw) -> PublishedSlice | None:
    """The slice in *data* (JSON), as its node published it; ``None`` if it is not one of ours.

    Raises: MalformedInput, which names the part and its value.
    """
    spec = decode("resourceslice", _SLICE, data).spec
    if spec.driver != DRIVER or spec.pool.name != pool_name(spec.node_name):
        return None
    devices: list[Device] = []
    instances: list[PublishedInstance] = []
    for index, device in enumerate(spec.devices or ()):
        place = f"resourceslice: spec.devices[{index}]"
        if is_instance(device.name):
            instances.append(_published_instance(place, device))
        else:
            devices.append(_published(place, device))
    return PublishedSlice(spec.node_name, spec.pool.generation, tuple(devices), tuple(instances))


def divided_cards(instances: Iterable[PublishedInstance]) -> tuple[Device, ...]:
    """Returns the cards in MIG mode on which *instances* of one node may be made."""
    cards: dict[str, Device] = {}
    profiles: dict[str, dict[str, MigProfile]] = {}
    for instance in instances:
        uuid, profile = cards.setdefault(instance.card.uuid, instance.card).uuid, instance.profile
        known = profiles.setdefault(uuid, {}).setdefault(
            profile.name, replace(profile, placements=())
        )
        profiles[uuid][profile.name] = replace(
            known, placements=known.placements + profile.placements
        )
    return tuple(
        replace(
            card,
            mig_profiles=tuple(profiles[uuid].values()),
            slots=most_instances(tuple(profiles[uuid].values())),
        )
        for uuid, card in cards.items()
    )


class _Attribute(msgspec.Struct, rename={"number": "int", "text": "string"}):
    number: Integer = 0
    text: Annotated[str, Meta(max_length=LONGEST_STRING)] = ""


class _Policy(msgspec.Struct, frozen=True):
    default: str | None = None


class _Capacity(msgspec.Struct, rename="camel"):
    value: Annotated[str, Meta(max_length=64)]
    request_policy: _Policy = _Policy()


class _Taint(msgspec.Struct):
    key: str


class _Consumption(msgspec.Struct):
    counters: Annotated[
        dict[Annotated[str, Meta(max_length=63)], Any], Meta(max_length=MAX_COUNTERS)
    ] = {}


class _Device(msgspec.Struct):
    name: Annotated[str, Meta(max_length=63)] = ""
    attributes: Annotated[dict[str, _Attribute], Meta(max_length=32)] = {}
    capacity: Annotated[dict[str, _Capacity], Meta(max_length=32)] = {}
    taints: Annotated[list[_Taint], Meta(max_length=16)] | None = None
    consumption: Annotated[list[_Consumption], Meta(max_length=2)] | None = msgspec.field(
        name="consumesCounters", default=None
    )

    def attribute(self, name: str) -> _Attribute:
        return self.attributes.get(name, _Attribute())


class _Pool(msgspec.Struct, frozen=True):
    name: str = ""
    generation: int = 0


class _Spec(msgspec.Struct, rename="camel"):
    driver: str = ""
    node_name: str = ""
    pool: _Pool = _Pool()
    devices: Annotated[list[_Device], Meta(max_length=128)] | None = None


class _Slice(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)


_SLICE = msgspec.json.Decoder(_Slice)


def _published(place: str, device: _Device) -> Device:
    """The card that *device* describes."""
    least = _amount(place, device, "share", Fraction(1, 1000), least=True)
    return _published_card(
        device,
        uuid=device.attribute("uuid").text,
        mode=device.attribute("mode").text,
        slots=SHARE * 1000 // max(least, 1),
        memory_mib=_amount(place, device, "memory", MIB),
        cores=_amount(place, device, "cores", 1),
    )


def _published_instance(place: str, device: _Device) -> PublishedInstance:
    """The MIG instance that *device* describes."""
    names = [name for part in device.consumption or () for name in part.counters]
    numbers = sorted(
        int(match[1]) for name in names if (match := _MEMORY_SLICE.fullmatch(name)) is not None
    )
    if not numbers or numbers != list(range(numbers[0], numbers[0] + len(names))):
        raise MalformedInput(
            f"{place}.consumesCounters", ", ".join(names), "expected memory slices in a row"
        )
    name, parent = device.attribute("profile").text, device.attribute("parentMemoryMiB").number
    profile = MigProfile(
        name=name,
        memory_mib=_amount(place, device, "memory", MIB),
        slices=0,
        cores=_amount(place, device, "cores", 1),
        placements=(Partition(numbers[0], len(numbers)),),
    )
    card = _published_card(
        device, uuid=device.attribute("parentUUID").text, mode="mig", slots=0, memory_mib=parent
    )
    return PublishedInstance(name=device.name, card=card, profile=profile)


def _published_card(device: _Device, **fields: Any) -> Device:
    """The card with what all devices say of it, and *fields*."""
    taints = {taint.key for taint in device.taints or ()}
    return Device(
        vendor="NVIDIA",
        model=device.attribute("productName").text,
        index=device.attribute("index").number,
        numa=device.attribute(NUMA_NODE).number,
        healthy=UNHEALTHY_TAINT not in taints,
        cordoned=CORDONED_TAINT in taints,
        by_claims=MANAGED_TAINT in taints,
        **fields,
    )


def _amount(
    place: str, device: _Device, name: str, unit: int | Fraction, *, least: bool = False
) -> int:
    """A capacity in units, rounded down; or the *least* that a claim takes of it."""
    capacity = device.capacity.get(name)
    text = (
        ""
        if capacity is None
        else capacity.request_policy.default or ""
        if least
        else capacity.value
    )
    field = f"{place}.capacity[{name}]"
    try:
        value = int(parse_quantity(text) / unit)
    except MalformedInput as error:
        raise MalformedInput(field, text, error.problem) from None
    if not 0 <= value <= INT32_MAX:
        raise MalformedInput(field, text, f"expected at most {INT32_MAX}")
    return value


def _device(device: Device, pci_bus_id: str) -> dict[str, Any]:
    attributes: dict[str, str | int] = {
        "type": "gpu",
        "uuid": device.uuid,
        "productName": published_text(device.model),
        "mode": published_text(device.mode),
        "index": device.index,
        "memoryMiB": device.memory_mib,
        NUMA_NODE: device.numa,
    }
    if pci_bus_id:
        attributes[PCI_BUS_ID] = pci_bus_id
    least, memory, cores = (
        render_milli(least_share(device.slots)),
        render_mib(device.memory_mib),
        str(device.cores),
    )
    return {
        "name": device_name(device.uuid),
        "allowMultipleAllocations": True,
        "attributes": _attributes(attributes),
        "capacity": {
            "memory": _capacity(memory, default=memory, least="1Mi", most=memory, step="1Mi"),
            # a step of 1 is no valid one if there is less
            "cores": _capacity(
                cores,
                default="0",
                least="0",
                most=str(min(device.cores, 100)),
                step="1" if device.cores else "",
            ),
            "share": _capacity(str(SHARE), default=least, least=least, most=str(SHARE)),
        },
        **_taints(device),
    }


def _instances(device: Device, pci_bus_id: str) -> Iterator[dict[str, Any]]:
    """Yields a device for each instance that may be made on a card."""
    for name, (profile, placement) in mig_devices(device.uuid, device.mig_profiles).items():
        attributes: dict[str, str | int] = {
            "type": "mig",
            "profile": published_text(profile.name),
            "parentUUID": device.uuid,
            "productName": published_text(device.model),
            "index": device.index,
            "memoryMiB": profile.memory_mib,
            "parentMemoryMiB": device.memory_mib,
            NUMA_NODE: device.numa,
        }
        if pci_bus_id:
            attributes[PCI_BUS_ID] = pci_bus_id
        yield {
            "name": name,
            "attributes": _attributes(attributes),
            "capacity": {
                "memory": {"value": render_mib(profile.memory_mib)},
                "cores": {"value": str(profile.cores)},
            },
            "consumesCounters": [
                {
                    "counterSet": device_name(device.uuid),
                    "counters": _counters(range(placement.start, placement.start + placement.size)),
                }
            ],
            **_taints(device),
        }


def _counter_set(device: Device) -> dict[str, Any]:
    """Returns the memory slices of a card that its instances can have."""
    places = [placement for _, placement in mig_devices(device.uuid, device.mig_profiles).values()]
    most = max(placement.start + placement.size for placement in places)
    return {"name": device_name(device.uuid), "counters": _counters(range(most))}


def _counters(memory_slices: Iterable[int]) -> dict[str, Any]:
    return {f"memory-slice-{number}": {"value": "1"} for number in memory_slices}


def _parts(field: str, items: Sequence[dict[str, Any]], most: int) -> Iterator[dict[str, Any]]:
    """Yields the contents of slices with at most so many *items* each."""
    for start in range(0, len(items), most):
        yield {field: items[start : start + most]}


def _attributes(values: Mapping[str, str | int]) -> dict[str, Any]:
    return {
        name: {"string" if isinstance(value, str) else "int": value}
        for name, value in values.items()
    }


def least_share(slots: int) -> int:
    """Returns what a claim takes at least, in thousandths, so that as many fit as there are *slots* (up to 316; of more
    slots, perhaps a few more)."""
    return max(SHARE * 1000 // max(slots, 1), 1)


def published_text(text: str) -> str:
    """Returns as much of *text* as an attribute may have."""
    return text.encode()[:LONGEST_STRING].decode(errors="ignore")


def _capacity(value: str, *, default: str, least: str, most: str, step: str = "") -> dict[str, Any]:
    limits = {"min": least, "max": most}
    if step:
        limits["step"] = step
    return {"value": value, "requestPolicy": {"default": default, "validRange": limits}}


def _taints(device: Device) -> dict[str, Any]:
    """Returns the field of the taints, if there are any."""
    keys: list[str] = []
    if device.cordoned:
        keys.append(CORDONED_TAINT)
    if not device.healthy:
        keys.append(UNHEALTHY_TAINT)
    if device.by_claims:
        keys.append(MANAGED_TAINT)
    if not keys:
        return {}
    return {"taints": [{"key": key, "effect": "NoSchedule"} for key in keys]}


def _without_server_fields(slice: Mapping[str, Any]) -> dict[str, Any]:
    spec = slice.get("spec") or {}
    devices: list[Mapping[str, Any]] = []
    for device in spec.get("devices") or ():
        if "taints" in device:
            taints = [_without(taint, "timeAdded") for taint in device["taints"]]
            device = {**device, "taints": taints}
        devices.append(device)
    pool = _without(spec.get("pool") or {}, "generation")
    return {**spec, "pool": pool, "devices": devices}


def _without(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}
