"""Huawei Ascend chips: whole, divided by templates (hard split) or by the software of HAMi (soft split).

A pod asks for the soft split by an annotation; only some nodes have it. Hard split knows a few sizes, to which memory
is rounded up; cores go with them.
Source: HAMi v2.10, pkg/device/ascend/device.go.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hami.codec.device_config import AscendChip, Template
from hami.errors import MalformedInput
from hami.model import Device, Node, NodePolicy, Reason, Request, Share, DeviceUsage
from hami.vendors import inventory
from hami.vendors.admission import Draft, Step
from hami.vendors.admission import admission as common_admission
from hami.vendors.select import concentration, grouped, whole_pairs
from hami.vendors.shares import common_share
from hami.vendors.spec import (
    Admission, Admit, Annotate, AnnotationContext, CheckDevice, FitContext, Inventory, MakeShare, NoCombination,
    SelectDevices, Vendor,
)

__all__ = [
    "MODE", "NODE_MODE", "admission", "annotate", "check_node", "is_networked", "no_room", "node_score", "registered",
    "select_devices", "share", "written_keys",
]

MODE = "huawei.com/vnpu-mode"
SOFT = "hami-core"
NODE_MODE = "hami-vnpu-core"  # of a node: has it the soft split? Kept under this name in Device.info, too
VISIBLE = "ASCEND_VISIBLE_DEVICES"
NETWORK = "NetworkID"
NETWORK_WEIGHT = 10


def is_networked(chip: AscendChip) -> bool:
    """Chips of this kind are linked in networks, where their plugin says so."""
    return chip.common_word.startswith("Ascend910")


def registered(soft: bool) -> Inventory:
    """The devices as registered, with whether their node has the soft split; *soft* holds where it does not say."""

    def read(vendor: Vendor, node: Node) -> tuple[Device, ...] | None:
        devices = inventory.registered(vendor, node)
        said = node.annotations.get(NODE_MODE)
        has = soft if said is None else said == "true"
        return devices and tuple(replace(device, info={**device.info, NODE_MODE: has}) for device in devices)

    return read


def admission(chip: AscendChip, family: Collection[str], *, hides: bool) -> Admit:
    """Admission for *chip*. *family*: the counts of all Ascend chips. *hides*: containers that ask for none of them
    are kept from seeing any; one chip does that for all.

    Raises (the returned function): MalformedInput in words for the pod's author.
    """
    wanted = common_admission(_whole_modules(chip), _cores_only_in_software, _round_memory(chip),
                              lambda draft: draft.set_runtime_class(chip.runtime_class))

    def admit(vendor: Vendor, pod: Mapping[str, Any], container: Mapping[str, Any]) -> Admission:
        draft = Draft(vendor, pod, container)
        if hides and not any(name in draft.limits or name in draft.requests for name in family):
            draft.set_env(VISIBLE, "")
            return draft.result(found=False)
        return wanted(vendor, pod, container)

    return admit


def check_node(request: Request, context: FitContext) -> Reason | None:
    """The pod wants the soft split and the node has none."""
    return Reason.MODE if _is_soft(context) and not all(usage.device.info.get(NODE_MODE)
                                                        for usage in context.usages) else None


def no_room(chip: AscendChip) -> CheckDevice:
    """Too little memory is left for the template."""

    def check(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
        return Reason.NO_MEMORY if usage.memory_free_mib < _sized(
            chip, request, context).memory_on(usage.device) else None

    return check


def share(chip: AscendChip) -> MakeShare:
    """The memory of the template in hard split, else what was asked for."""

    def make(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Share:
        return common_share(usage, _sized(chip, request, context), context, picks)

    return make


def select_devices(chip: AscendChip) -> SelectDevices:
    """Whole modules of two, where chips come in pairs; else chips of few networks, where all are in one; else the
    first."""

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
    """When the chips were chosen, and what the device plugin does with each: its template, memory and cores."""

    def texts(vendor: Vendor, context: AnnotationContext) -> Mapping[str, str]:
        soft = context.pod.annotations.get(MODE) == SOFT
        entries = [_entry(one, None if soft else _size(chip, one.memory_mib))
                   for shares in context.shares for one in shares]
        time, chips = written_keys(vendor.key)
        return {time: context.seconds, chips: json.dumps(entries, separators=(",", ":"))}

    return texts


def written_keys(word: str) -> tuple[str, str]:
    """The annotations with the time and the chips, of the vendor *word*."""
    return "predicate-time", f"huawei.com/{word}"


def node_score(usages: Sequence[DeviceUsage], placement: tuple[tuple[Share, ...], ...], policy: NodePolicy) -> float:
    """How much chips are kept in one network, 10 at most for each container."""
    return NETWORK_WEIGHT * concentration(usages, placement, _network)


def _whole_modules(chip: AscendChip) -> Step:
    """Where chips come in pairs, one is a pair."""

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
    """Write down the memory that the container will get, in units of the resource, rounded down: the fit rounds up
    again to the same template."""

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
    """The smallest template that holds *memory_mib*, or the whole chip, which has no name; ``None`` if that is too
    small."""
    for template in chip.templates:
        if memory_mib <= template.memory_mib:
            return template
    return Template("", chip.memory_allocatable) if memory_mib <= chip.memory_capacity else None


def _sized(chip: AscendChip, request: Request, context: FitContext) -> Request:
    """*request* with the memory of its template. More than a chip has stays, and fits nowhere."""
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
