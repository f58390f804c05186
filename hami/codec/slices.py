"""The cards of a node as ResourceSlices (resource.k8s.io/v1), from which kube-scheduler allocates claims.

Each card is a device that several claims share. A claim consumes three capacities of it: memory, cores (percent), and
share, of which a card has 100: each claim takes at least the part of one slot, so that no more claims than slots fit,
and one that takes 100 has the card for itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hami.codec.documents import decode
from hami.codec.keys import CORDONED_TAINT, MANAGED_TAINT, UNHEALTHY_TAINT
from hami.codec.objects import RESOURCE_GROUP
from hami.codec.register import Integer
from hami.errors import MalformedInput
from hami.model import NOTHING, Device
from hami.quantity import INT32_MAX, MIB, parse_quantity, render_mib, render_milli

DRIVER = "gpu.hami.io"
"""The name of the driver, of its DeviceClass, and the domain of its attributes."""
API_VERSION = RESOURCE_GROUP
API = f"/apis/{API_VERSION}"
"""The path of the API group on the API server."""
NUMA_NODE, PCI_BUS_ID = "resource.kubernetes.io/numaNode", "resource.kubernetes.io/pciBusID"
SHARE = 100  # of each card, whatever its number of slots, so that a claim can ask for a whole card of any kind
MAX_DEVICES = 64  # of a slice with taints; without, it may have 128, but then a cordon would move cards to others
LONGEST_STRING = 64  # bytes of an attribute
_LONGEST_NODE = 253 - len(f"255-{DRIVER}-")  # characters, in the name of a slice
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def pool_name(node: str) -> str:
    """Returns the name of the pool of *node*. Not that of the node: pools of other drivers have it, and kube-scheduler
    1.36 counts the counters of pools with one name together."""
    return f"hami/{node}"


def device_name(uuid: str) -> str:
    """Returns the name of a card in slices: ``gpu-`` and its UUID in lower case, without ``GPU-``."""
    return f"gpu-{uuid.removeprefix('GPU-').lower()}"


def is_publishable(device: Device) -> bool:
    """Reports whether slices can have *device*: it is not partitioned (MIG), has 2 MiB of memory or more, and a UUID
    that makes a name."""
    return (not device.is_partitioned and device.memory_mib >= 2
            and _LABEL.fullmatch(device_name(device.uuid)) is not None)


def render_slices(node: str, devices: Iterable[Device], *, generation: int = 1, node_uid: str = "",
                  pci_bus_ids: Mapping[str, str] = NOTHING) -> tuple[dict[str, Any], ...]:
    """Returns the slices of *node*, which are its whole pool; none without devices. Equal devices make equal slices.

    The cards are in the order of their indexes, which is the order of allocation. Those that are not publishable are
    left out, and of two that differ in case only, the second.
    Those that are `by_claims` have a taint that keeps kube-scheduler from giving them out.
    *generation*: of the pool, to be raised with each change. *node_uid*: makes the node the owner. *pci_bus_ids*: by
    UUID, such as ``0000:3b:00.0``; a card without one does not have the attribute.
    Raises: MalformedInput if the name of the node is too long.
    """
    if len(node) > _LONGEST_NODE:
        raise MalformedInput("node", node, f"expected at most {_LONGEST_NODE} characters")
    in_order = sorted(filter(is_publishable, devices), key=lambda device: (device.index, device.uuid))
    named: dict[str, Device] = {}
    for device in in_order:
        named.setdefault(device_name(device.uuid), device)
    rendered = [_device(device, pci_bus_ids.get(device.uuid, "")) for device in named.values()]
    parts = [rendered[start:start + MAX_DEVICES] for start in range(0, len(rendered), MAX_DEVICES)]
    owner = {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid,
                                  "controller": True}]} if node_uid else {}
    pool = {"name": pool_name(node), "generation": generation, "resourceSliceCount": len(parts)}
    return tuple({
        "apiVersion": API_VERSION, "kind": "ResourceSlice",
        "metadata": {"name": f"{number}-{DRIVER}-{node}", **owner},
        "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": part},
    } for number, part in enumerate(parts))


def is_published(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Reports whether the slice *found* on the API server says what the slice *wanted* does, whatever its generation.
    """
    return _without_server_fields(found) == _without_server_fields(wanted)


@dataclass(frozen=True, slots=True)
class PublishedSlice:
    """A part of the cards of *node*. *generation*: of the pool; slices of an earlier one are out of date. The cards
    whose claims HAMi's scheduler allocates are `by_claims`."""

    node: str
    generation: int
    devices: tuple[Device, ...]


def parse_slice(data: bytes | msgspec.Raw) -> PublishedSlice | None:
    """The slice in *data* (JSON), as its node published it; ``None`` if it is not one of ours.

    Raises: MalformedInput, which names the part and its value.
    """
    spec = decode("resourceslice", _SLICE, data).spec
    if spec.driver != DRIVER or spec.pool.name != pool_name(spec.node_name):
        return None
    return PublishedSlice(spec.node_name, spec.pool.generation, tuple(
        _published(f"resourceslice: spec.devices[{index}]", device) for index, device in enumerate(spec.devices or ())))


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


class _Device(msgspec.Struct):
    attributes: Annotated[dict[str, _Attribute], Meta(max_length=32)] = {}
    capacity: Annotated[dict[str, _Capacity], Meta(max_length=32)] = {}
    taints: Annotated[list[_Taint], Meta(max_length=16)] | None = None


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
    def amount(name: str, unit: int | Fraction, *, least: bool = False) -> int:
        """A capacity in units, rounded down; or the *least* that a claim takes of it."""
        capacity = device.capacity.get(name)
        text = "" if capacity is None else capacity.request_policy.default or "" if least else capacity.value
        field = f"{place}.capacity[{name}]"
        try:
            value = int(parse_quantity(text) / unit)
        except MalformedInput as error:
            raise MalformedInput(field, text, error.problem) from None
        if not 0 <= value <= INT32_MAX:
            raise MalformedInput(field, text, f"expected at most {INT32_MAX}")
        return value

    def attribute(name: str) -> _Attribute:
        return device.attributes.get(name, _Attribute())

    taints = {taint.key for taint in device.taints or ()}
    return Device(
        uuid=attribute("uuid").text, vendor="NVIDIA", model=attribute("productName").text, mode=attribute("mode").text,
        slots=SHARE * 1000 // max(amount("share", Fraction(1, 1000), least=True), 1), memory_mib=amount("memory", MIB),
        cores=amount("cores", 1), index=attribute("index").number, numa=attribute(NUMA_NODE).number,
        healthy=UNHEALTHY_TAINT not in taints, cordoned=CORDONED_TAINT in taints, by_claims=MANAGED_TAINT in taints)


def _device(device: Device, pci_bus_id: str) -> dict[str, Any]:
    attributes: dict[str, str | int] = {
        "type": "gpu", "uuid": device.uuid, "productName": published_text(device.model),
        "mode": published_text(device.mode), "index": device.index, "memoryMiB": device.memory_mib,
        NUMA_NODE: device.numa}
    if pci_bus_id:
        attributes[PCI_BUS_ID] = pci_bus_id
    least, memory, cores = render_milli(least_share(device.slots)), render_mib(device.memory_mib), str(device.cores)
    taints = [{"key": key, "effect": "NoSchedule"} for key in _taints(device)]
    return {
        "name": device_name(device.uuid), "allowMultipleAllocations": True,
        "attributes": {name: {"string" if isinstance(value, str) else "int": value}
                       for name, value in attributes.items()},
        "capacity": {
            "memory": _capacity(memory, default=memory, least="1Mi", most=memory, step="1Mi"),
            # a step of 1 is no valid one if there is less
            "cores": _capacity(cores, default="0", least="0", most=str(min(device.cores, 100)),
                               step="1" if device.cores else ""),
            "share": _capacity(str(SHARE), default=least, least=least, most=str(SHARE)),
        },
        **({"taints": taints} if taints else {}),
    }


def least_share(slots: int) -> int:
    """Returns what a claim takes at least, in thousandths, so that as many fit as there are *slots* (up to 316; of more
    slots, perhaps a few more)."""
    return max(SHARE * 1000 // max(slots, 1), 1)


def published_text(text: str) -> str:
    """Returns as much of *text* as an attribute may have."""
    return text.encode()[:LONGEST_STRING].decode(errors="ignore")


def _capacity(value: str, *, default: str, least: str, most: str, step: str = "") -> dict[str, Any]:
    limits = {"min": least, "max": most, **({"step": step} if step else {})}
    return {"value": value, "requestPolicy": {"default": default, "validRange": limits}}


def _taints(device: Device) -> Iterator[str]:
    if device.cordoned:
        yield CORDONED_TAINT
    if not device.healthy:
        yield UNHEALTHY_TAINT
    if device.by_claims:
        yield MANAGED_TAINT


def _without_server_fields(slice: Mapping[str, Any]) -> dict[str, Any]:
    spec = slice.get("spec") or {}
    devices = [device if "taints" not in device else {
        **device, "taints": [{key: value for key, value in taint.items() if key != "timeAdded"}
                             for taint in device["taints"]]} for device in spec.get("devices") or ()]
    pool = {key: value for key, value in (spec.get("pool") or {}).items() if key != "generation"}
    return {**spec, "pool": pool, "devices": devices}
