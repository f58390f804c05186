"""Inventories: a node's devices, registered in an annotation or derived from its capacity."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from hami.codec.keys import ALLOCATION_MODE, CORDON, LOCK_FREE
from hami.codec.node_template import NODE_TEMPLATE, VENDOR, parse_node_template
from hami.codec.policies import parse_list
from hami.codec.register import check_number, parse_devices, parse_pair_scores, render_devices_json
from hami.errors import MalformedInput
from hami.model import Device, Node
from hami.quantity import INT32_MAX, rounded_up
from hami.vendors.spec import Inventory, Vendor, read_with

PAIR_SCORES = "hami.io/node-nvidia-score"
CLAIMS = "dra"  # the allocation mode of a node whose registered devices HAMi's scheduler allocates to claims
# Characters of each annotation and label that an inventory is read from. 256 devices take 47,000, 64 devices with the
# MIG profiles of an A100 80,000, and the link scores of 32 devices 50,000. Kubernetes permits 256 KiB for all together.
MAX_TEXT = 128 * 1024


def read_inventory(vendor: Vendor, node: Node) -> tuple[Device, ...]:
    """Returns *vendor*'s devices on *node*, within bounds that hold for every vendor, those of third parties too.

    Raises: MalformedInput if they cannot be read or are too many, or if a text is too long; it is not parsed then.
    """
    for key in (vendor.annotations.register, CORDON, *vendor.annotations.node_keys):
        if len(text := node.annotations.get(key, node.labels.get(key, ""))) > MAX_TEXT:
            raise MalformedInput(key, text, f"{len(text)} characters, expected at most {MAX_TEXT}")
    devices = read_with(vendor.decision.inventory, vendor, node) or ()
    check_number(f"node {node.name}", vendor.key, len(devices))
    return with_cordons(devices, node)


def with_cordons(devices: tuple[Device, ...], node: Node) -> tuple[Device, ...]:
    """Returns *devices* of *node*, of which operators exclude some with the annotation ``hami.io/device-cordon``."""
    uuids = parse_list(node.annotations.get(CORDON))
    if not uuids:
        return devices
    cordoned = set(uuids)
    made = []
    for device in devices:
        made.append(replace(device, cordoned=True) if device.uuid in cordoned else device)
    return tuple(made)


def registered(
    vendor: Vendor,
    node: Node,
    *,
    parse: Callable[[str, str, str], Sequence[Device]] = parse_devices,
    noun: str = "gpu",
) -> tuple[Device, ...] | None:
    """Returns the devices in *vendor*'s register annotation, in its order; the first of several with the same uuid.

    The node says whether pods get them by claims.
    *parse*: decodes the annotation, given its key, its text and the vendor's key. *noun*: a device, in the error.
    Raises: MalformedInput if the annotation cannot be read or has no device.
    """
    key = vendor.annotations.register
    text = node.annotations.get(key)
    if text is None:
        return None
    parsed = parse(key, text, vendor.key)
    if not parsed:
        raise MalformedInput(key, text, f"no {noun} found on node")
    devices: dict[str, Device] = {}
    for device in parsed:
        if device.uuid:
            devices.setdefault(device.uuid, device)
    for uuid, facts in _facts(vendor, node, devices).items():
        if facts:
            devices[uuid] = replace(devices[uuid], **facts)
    return tuple(devices.values())


def _facts(vendor: Vendor, node: Node, uuids: Collection[str]) -> dict[str, dict[str, Any]]:
    """Returns the fields of devices that come from elsewhere than the register annotation, by uuid."""
    facts: dict[str, dict[str, Any]] = defaultdict(dict)
    if vendor.decision.device_cores:
        for uuid in uuids:
            facts[uuid]["cores"] = vendor.decision.device_cores
    if gives_by_claims(vendor, node):
        for uuid in uuids:
            facts[uuid]["by_claims"] = True
    pairs = node.annotations.get(PAIR_SCORES)
    if pairs and PAIR_SCORES in vendor.annotations.node_keys:
        scores = parse_pair_scores(PAIR_SCORES, pairs)
        for uuid in uuids:
            facts[uuid]["pair_scores"] = scores.get(uuid, {})
    return facts


def gives_by_claims(vendor: Vendor, node: Node) -> bool:
    """Reports whether pods get *vendor*'s devices on *node* by claims that HAMi's scheduler makes."""
    key = vendor.annotations.allocation_mode
    return bool(key) and node.annotations.get(key) == CLAIMS


def with_template(vendors: Iterable[Vendor], node: Node) -> Node:
    """Returns *node* as it will be once its device plugin has registered the devices that its label tells; as it is if
    it has registered some, or the label cannot be read."""
    text = node.labels.get(NODE_TEMPLATE)
    register = {vendor.key: vendor.annotations.register for vendor in vendors}.get(VENDOR)
    if not text or not register or register in node.annotations:
        return node
    try:
        devices = parse_node_template(text)
    except MalformedInput:
        return node
    annotations = {**node.annotations, register: render_devices_json(devices)}
    if node.labels.get(ALLOCATION_MODE) == CLAIMS:
        annotations |= {ALLOCATION_MODE: CLAIMS, LOCK_FREE: VENDOR}
    return replace(node, annotations=annotations)


def counted(
    word: str,
    *,
    slots: int,
    memory_mib: int,
    cores: int,
    numa: Callable[[int, int], int] = lambda index, count: 0,
) -> Inventory:
    """Returns an inventory of equal devices, as many as the node's capacity of the vendor's count.

    Their uuids are ``<node>-<word>-<index>``. *numa*: returns the NUMA node for a device's index and the device count.
    Raises (the returned function): MalformedInput if the capacity is not a number of devices.
    """

    def inventory(vendor: Vendor, node: Node) -> tuple[Device, ...] | None:
        count = capacity_of(node, vendor.resources.count)
        if count is None:
            return None
        check_number(f"capacity of {vendor.resources.count}", count, count)
        return tuple(
            Device(
                uuid=f"{node.name}-{word}-{index}",
                vendor=vendor.key,
                model=vendor.key,
                slots=slots,
                memory_mib=memory_mib,
                cores=cores,
                index=index,
                numa=numa(index, count),
            )
            for index in range(count)
        )

    return inventory


def divided(word: str, *, slots: int, cores: int, model_label: str = "") -> Inventory:
    """Returns an inventory of equal devices that share the node's capacity of the vendor's cores and memory.

    *cores*: the cores of one device; a remainder counts as a device too. *model_label*: the label of nodes that has the
    model of their devices. Memory is divided by the number of cores, in units of the vendor's *memory_factor* MiB.
    Uuids are as with :func:`counted`.
    Raises (the returned function): MalformedInput if either capacity is missing or not an amount.
    """

    def inventory(vendor: Vendor, node: Node) -> tuple[Device, ...] | None:
        resources = vendor.resources
        capacity = capacity_of(node, resources.cores)
        if not capacity:
            for name in (resources.count, resources.memory):
                if capacity_of(node, name):
                    raise _missing(resources.cores, capacity)
            return None
        memory = capacity_of(node, resources.memory) or 0
        if resources.memory and not memory:
            raise _missing(resources.memory, memory)
        count = -(-capacity // cores)
        check_number(f"capacity of {resources.cores}", capacity, count)
        memory_mib = min(memory * resources.memory_factor * cores // capacity, INT32_MAX)
        return tuple(
            Device(
                uuid=f"{node.name}-{word}-{index}",
                vendor=vendor.key,
                model=_labelled_model(vendor, node, model_label),
                slots=slots,
                memory_mib=memory_mib,
                cores=cores,
                index=index,
            )
            for index in range(count)
        )

    return inventory


def _missing(resource: str, capacity: int | None) -> MalformedInput:
    return MalformedInput(f"capacity of {resource}", capacity, f"device not found {resource}")


def _labelled_model(vendor: Vendor, node: Node, label: str) -> str:
    """Returns the model in the label, which contains the vendor's key; the key if there is none."""
    model = node.labels.get(label, "").strip()
    return model if vendor.key.lower() in model.lower() else vendor.key


def capacity_of(node: Node, resource: str) -> int | None:
    """Returns the node's capacity of *resource*, ``None`` if it has none. Raises: MalformedInput."""
    text = node.capacity.get(resource) if resource else None
    if text is None:
        return None
    try:
        value = rounded_up(text)
    except MalformedInput as error:
        raise MalformedInput(f"capacity of {resource}", text, error.problem) from error
    if value < 0:
        raise MalformedInput(f"capacity of {resource}", text, "expected no negative amount")
    return value
