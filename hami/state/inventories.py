"""The devices that a node shows, by vendor: what they are read from, and what is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hami.codec.keys import CORDON
from hami.codec.register import MAX_DEVICES
from hami.errors import MalformedInput
from hami.model import Device, Node
from hami.quantity import rounded_up
from hami.vendors.inventory import read_inventory
from hami.vendors.spec import Vendor

Sources = tuple[str | None, ...]


def inventory_sources(vendor: Vendor, node: Node) -> Sources | None:
    """Returns the texts that *vendor*'s inventory is read from, its register annotation first.

    Returns ``None`` when the node shows nothing of the vendor.
    """
    key = vendor.annotations.register
    register = None
    if key:
        register = node.annotations.get(key)
        if register is None:
            return None
    sources = [register, node.annotations.get(CORDON)]
    if vendor.annotations.allocation_mode:
        sources.append(node.annotations.get(vendor.annotations.allocation_mode))
    for name in vendor.annotations.node_keys:
        sources.append(node.annotations.get(name, node.labels.get(name)))
    if key and not vendor.decision.needs_capacity:
        return tuple(sources)
    resources = vendor.resources
    names = (resources.count, resources.memory, resources.cores)
    capacity = [node.capacity.get(name) for name in names]
    if not key and not any(capacity):
        return None
    return (*sources, *capacity)


def devices_on(vendor: Vendor, node: Node) -> tuple[tuple[Device, ...], str | None]:
    """Returns *vendor*'s devices on *node*, and why they cannot be read."""
    if vendor.decision.needs_capacity:
        if not device_count(node.capacity.get(vendor.resources.count)):
            return (), None
    try:
        return read_inventory(vendor, node), None
    except MalformedInput as error:
        return (), str(error)


def devices_of(vendors: Iterable[Vendor], node: Node) -> dict[str, tuple[Device, ...]]:
    """Returns the devices that *node* offers, by vendor. Inventories that cannot be read count as empty."""
    devices: dict[str, tuple[Device, ...]] = {}
    counts: dict[str, int] = {}
    for vendor in vendors:
        of_vendor, _ = devices_on(vendor, node)
        if of_vendor:
            devices[vendor.key] = of_vendor
            counts[vendor.key] = len(of_vendor)
    return devices if excess_of(counts) is None else {}


def excess_of(devices: Mapping[str, int]) -> str | None:
    """Returns why a node with so many *devices* of each vendor offers none of them: they are too many together.

    No vendor comes first, so none can hide another's.
    """
    total = sum(devices.values())
    if total <= MAX_DEVICES:
        return None
    counts = ", ".join([f"{count} {key}" for key, count in sorted(devices.items()) if count])
    return (
        f"{total} devices ({counts}), expected at most {MAX_DEVICES} devices of all vendors on a node: "
        "none of them is used"
    )


def device_count(text: str | None) -> int | None:
    """Returns how many devices the kubelet offers; ``None`` if it does not say."""
    if not text:
        return None
    try:
        return max(0, rounded_up(text))
    except MalformedInput:
        return None
