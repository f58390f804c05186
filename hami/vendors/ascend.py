"""Huawei Ascend chips: whole, partitioned by templates (hard split) or shared by HAMi's limiter (soft split).

A pod requests the soft split with an annotation; only some nodes support it. In hard split, memory is rounded up to the
size of a template, which also determines the cores.
Source: HAMi v2.10, pkg/device/ascend/device.go.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hami.codec.device_config import AscendChip, Template
from hami.errors import MalformedInput
from hami.model import Allocation, Device, DeviceUsage, Node, NodePolicy, Reason, Request, Share
from hami.vendors import inventory
from hami.vendors.admission import Draft, Step, admit_with
from hami.vendors.select import concentration, grouped, whole_pairs
from hami.vendors.shares import common_share
from hami.vendors.spec import (
    Admission, Admit, Annotate, AnnotationContext, CheckDevice, FitContext, Inventory, MakeShare, NoCombination,
    SelectDevices, Vendor,
)

__all__ = [
    "MODE", "NODE_MODE", "annotate", "check_node", "is_networked", "make_admit", "make_share", "no_room",
    "node_score", "registered", "select_devices", "written_keys",
]

MODE = "huawei.com/vnpu-mode"
SOFT = "hami-core"
NODE_MODE = "hami-vnpu-core"  # node annotation and key of Device.info: the node supports the soft split
VISIBLE = "ASCEND_VISIBLE_DEVICES"
NETWORK = "NetworkID"
NETWORK_WEIGHT = 10


def is_networked(chip: AscendChip) -> bool:
    """Reports whether chips of this kind are linked in networks, if their device plugin reports it."""
    return chip.common_word.startswith("Ascend910")


def registered(soft: bool) -> Inventory:
    """Returns an inventory of the registered devices. *soft*: the default for the node's support of the soft split."""

    def read(vendor: Vendor, node: Node) -> tuple[Device, ...] | None:
        devices = inventory.registered(vendor, node)
        mode = node.annotations.get(NODE_MODE)
        supported = soft if mode is None else mode == "true"
        return devices and tuple(replace(device, info={**device.info, NODE_MODE: supported}) for device in devices)

    return read


def make_admit(chip: AscendChip, family: Collection[str], *, hides: bool) -> Admit:
    """Returns the admission function for *chip*. *family*: the count resources of all Ascend chips.

    *hides*: containers that request none of them see no chips; one chip's function does that for all.
    Raises (the returned function): MalformedInput with a message for the pod's author.
    """
    admit_chip = admit_with(_whole_modules(chip), _cores_only_in_software, _round_memory(chip),
                            lambda draft: draft.set_runtime_class(chip.runtime_class))

    def admit(vendor: Vendor, pod: Mapping[str, Any], container: Mapping[str, Any]) -> Admission:
        draft = Draft(vendor, pod, container)
        if hides and not any(name in draft.limits or name in draft.requests for name in family):
            draft.set_env(VISIBLE, "")
            return draft.result(found=False)
        return admit_chip(vendor, pod, container)

    return admit


def check_node(request: Request, context: FitContext) -> Reason | None:
    """Rejects a node without the soft split if the pod requests it."""
    return Reason.MODE if _is_soft(context) and not all(usage.device.info.get(NODE_MODE)
                                                        for usage in context.usages) else None


def no_room(chip: AscendChip) -> CheckDevice:
    """Returns a check for enough free memory for the template."""

    def check(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
        return Reason.NO_MEMORY if usage.memory_free_mib < _sized(
            chip, request, context).memory_on(usage.device) else None

    return check


def make_share(chip: AscendChip) -> MakeShare:
    """Returns a function that makes shares with the memory of the template in hard split."""

    def make(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Share:
        return common_share(usage, _sized(chip, request, context), context, picks)

    return make


def select_devices(chip: AscendChip) -> SelectDevices:
    """Returns a function that selects whole modules of two for chips that come in pairs.

    Otherwise it selects chips of few networks, if each chip of the node is in one, or the first chips.
    """

    def choice(eligible: Sequence[DeviceUsage], request: Request,
               context: FitContext) -> Sequence[DeviceUsage] | NoCombination:
        if chip.super_pod and request.count > 1:
            found = whole_pairs(eligible, request.count)
            if len(found) < request.count:
                return NoCombination(Reason.TOO_FEW_FITTING, len(found), request.count)
            return found
        if is_networked(chip) and all(NETWORK in usage.device.info for usage in context.usages):
            return grouped(eligible, request.count, _network)
        return eligible[:request.count]

    return choice


def annotate(chip: AscendChip) -> Annotate:
    """Returns a function that renders the time of scheduling and the template, memory and cores of each chip."""

    def texts(vendor: Vendor, context: AnnotationContext) -> Mapping[str, str]:
        soft = context.pod.annotations.get(MODE) == SOFT
        entries = [_entry(one, None if soft else _size(chip, one.memory_mib))
                   for shares in context.shares for one in shares]
        time, chips = written_keys(vendor.key)
        return {time: context.seconds, chips: json.dumps(entries, separators=(",", ":"))}

    return texts


def written_keys(word: str) -> tuple[str, str]:
    """Returns the keys of the annotations with the time and the chips of the vendor *word*."""
    return "predicate-time", f"huawei.com/{word}"


def node_score(usages: Sequence[DeviceUsage], placement: Allocation, policy: NodePolicy) -> float:
    """Returns how well the containers' chips are kept in one network, at most 10 for each container."""
    return NETWORK_WEIGHT * concentration(usages, placement, _network)


def _whole_modules(chip: AscendChip) -> Step:
    """Returns a step that rounds one chip up to a pair, for chips that come in pairs."""

    def step(draft: Draft) -> None:
        name = draft.vendor.count
        count = draft.rounded(name) or 0
        if not chip.super_pod or count % 2 == 0:
            return
        if count > 1:
            problem = f"{chip.common_word} device request must be 1 or 2*n, got {count}"
            raise MalformedInput(name, count, "expected 1 or an even number", message=problem)
        draft.set_amount(name, 2)

    return step


def _cores_only_in_software(draft: Draft) -> None:
    name = draft.vendor.cores
    if not _wants_soft(draft) and (draft.rounded(name) or 0) > 0:
        problem = f"{name} is only supported in {SOFT} (soft split) mode"
        raise MalformedInput(name, draft.given[name], f"expected none without {MODE}: {SOFT}", message=problem)


def _round_memory(chip: AscendChip) -> Step:
    """Returns a step that sets the memory that the container will get, in units of the resource.

    It is rounded down; the fit rounds it up to the same template again.
    """

    def step(draft: Draft) -> None:
        vendor = draft.vendor
        if not vendor.memory:
            return
        amount, factor = draft.rounded(vendor.memory), max(vendor.memory_factor, 1)
        memory = chip.memory_allocatable if amount is None else amount * factor
        if amount is not None and not _wants_soft(draft):
            memory = _template_mib(chip, draft, amount, memory)
        for write in (draft.set_limit, draft.set_request):
            write(vendor.memory, max(memory // factor, 1))

    return step


def _template_mib(chip: AscendChip, draft: Draft, amount: int, memory_mib: int) -> int:
    name = draft.vendor.memory
    if (size := _size(chip, memory_mib)) is None:
        raise MalformedInput(name, amount, f"expected at most {chip.memory_capacity} MiB",
                             message=f"{name} {amount} is invalid")
    if size.name and (draft.rounded(draft.vendor.count) or 0) > 1:
        raise MalformedInput(name, amount, "expected whole chips where there are several",
                             message="vNPU not supported for multiple devices")
    return size.memory_mib


def _size(chip: AscendChip, memory_mib: int) -> Template | None:
    """Returns the smallest template with *memory_mib*, or the whole chip, which has no name; ``None`` if none has."""
    for template in chip.templates:
        if memory_mib <= template.memory_mib:
            return template
    return Template("", chip.memory_allocatable) if memory_mib <= chip.memory_capacity else None


def _sized(chip: AscendChip, request: Request, context: FitContext) -> Request:
    """Returns *request* with the memory of its template. More than a chip has is kept and fits nowhere."""
    if _is_soft(context) or request.memory_mib <= 0 or (size := _size(chip, request.memory_mib)) is None:
        return request
    return replace(request, memory_mib=size.memory_mib)


def _entry(one: Share, size: Template | None) -> Mapping[str, str | int]:
    entry: dict[str, str | int] = {"UUID": one.uuid, "temp": size.name if size else "", "memory": one.memory_mib,
                                   "core": one.cores}
    return {key: value for key, value in entry.items() if value}


def _is_soft(context: FitContext) -> bool:
    return context.annotation(MODE) == SOFT


def _wants_soft(draft: Draft) -> bool:
    return draft.annotation(MODE) == SOFT


def _network(usage: DeviceUsage) -> float | None:
    network = usage.device.info.get(NETWORK)
    return network if isinstance(network, (int, float)) and not isinstance(network, bool) else None
