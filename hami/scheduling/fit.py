"""Filter: the devices of a node that a container gets, or why it gets none. Each rule is one function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from hami.model import ContainerKind, DeviceUsage, Reason, Request, Selector, Share
from hami.scheduling.order import device_score, sort_usages
from hami.scheduling.topology import best_linked
from hami.scheduling.usage import peak_charges, total_charge
from hami.vendors.request import WHOLE
from hami.vendors.shares import common_share
from hami.vendors.spec import CheckDevice, FitContext, NoCombination, Rule, SelectDevices


@dataclass(frozen=True, slots=True)
class Unfit:
    """The reasons why a container does not fit a node, each with the number of *devices* that it excludes."""

    reasons: tuple[tuple[Reason, int], ...]
    devices: int

    def __str__(self) -> str:
        """The text for users: ``1/4 CardInsufficientMemory, 3/4 CardNotHealth``, sorted as text."""
        if self.reasons and self.reasons[0][0] is Reason.TOO_FEW_DEVICES:
            return Reason.TOO_FEW_DEVICES
        return ", ".join(sorted(f"{count}/{self.devices} {reason}" for reason, count in self.reasons))


def fit(request: Request, context: FitContext) -> tuple[Share, ...] | Unfit:
    """Returns the shares of the devices in ``context.usages`` that *request* gets, in the order of picking."""
    usages, vendor = context.usages, context.vendor
    if vendor.check_node is not None and (reason := vendor.check_node(request, context)) is not None:
        return Unfit(((reason, 1),), len(usages))
    if request.count > len(usages) and (vendor.allows_repeats is None or not any(map(vendor.allows_repeats, usages))):
        return Unfit(((Reason.TOO_FEW_DEVICES, len(usages)),), len(usages))
    scores = [device_score(usage, request, context.weights) for usage in usages]
    ordered = sort_usages(usages, context.policy, scores)
    ordered.reverse()
    if vendor.select_devices is not None:
        return _selected(vendor.select_devices, ordered, request, context)
    if context.policy.topology_aware:
        return _best_linked(ordered, request, context)
    return _first_that_fit(ordered, request, context)


def objection(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share] = (),
              rules: Iterable[Rule | CheckDevice] | None = None) -> Reason | None:
    """Returns the reason of the first of *rules* (default: all of the vendor's) that *usage* fails."""
    for rule in context.vendor.rules if rules is None else rules:
        check = _RULES[rule] if isinstance(rule, Rule) else rule
        if (reason := check(usage, request, context, picks)) is not None:
            return reason
    return None


def accepts_model(selector: Selector, model: str) -> bool:
    """Reports whether the type lists accept *model*. Their items are parts of its name, in any case."""
    name = model.lower()
    if selector.use_types is not None and not any(item.lower() in name for item in selector.use_types):
        return False
    return selector.nouse_types is None or not any(item.lower() in name for item in selector.nouse_types)


def _first_that_fit(ordered: Sequence[DeviceUsage], request: Request, context: FitContext) -> tuple[Share, ...] | Unfit:
    """Picks the first devices that pass. With numa-bind, a device on another NUMA node drops the earlier picks."""
    picks, reasons, numa = list[Share](), Counter[Reason](), None
    rules, binds_numa, allows_repeats = context.vendor.rules, _binds_numa(context), context.vendor.allows_repeats
    split = rules.index(Rule.NUMA) if binds_numa else 0
    for usage in ordered:
        reason = objection(usage, request, context, picks, rules[:split])
        if reason is None and binds_numa and usage.device.numa != numa:
            if picks:
                reasons[Reason.NUMA] += len(picks)
                picks = []
            numa = usage.device.numa
        while reason is None and (reason := objection(usage, request, context, picks, rules[split:])) is None:
            picks.append(_share(usage, request, context, picks))
            if len(picks) == request.count:
                return tuple(picks)
            if allows_repeats is None or not allows_repeats(usage):
                break
        if reason is not None:
            reasons[reason] += 1
    return _too_few(len(picks), reasons, len(ordered))


def _selected(select_devices: SelectDevices, ordered: Sequence[DeviceUsage], request: Request,
              context: FitContext) -> tuple[Share, ...] | Unfit:
    """Lets the vendor select among all devices that pass."""
    picks, reasons, eligible = list[Share](), Counter[Reason](), list[DeviceUsage]()
    for usage in ordered:
        if (reason := objection(usage, request, context)) is None:
            eligible.append(usage)
        else:
            reasons[reason] += 1
    if len(eligible) < request.count:
        return _too_few(len(eligible), reasons, len(ordered))
    selected = select_devices(eligible, request, context)
    if isinstance(selected, NoCombination):
        reasons[selected.reason] = selected.count
        return _too_few(0, reasons, len(ordered) if selected.devices is None else selected.devices)
    for usage in selected:
        if (reason := _over_quota(usage, request, context, picks)) is not None:
            reasons[reason] += 1
            return _too_few(len(picks), reasons, len(ordered))
        picks.append(_share(usage, request, context, picks))
    return tuple(picks)


def _too_few(fitting: int, reasons: Counter[Reason], devices: int) -> Unfit:
    """Returns the result if only *fitting* of *devices* fit, and *reasons* exclude the others."""
    if fitting:
        reasons[Reason.TOO_FEW_FITTING] = fitting
    return Unfit(tuple(reasons.items()), devices)


def _best_linked(ordered: Sequence[DeviceUsage], request: Request, context: FitContext) -> tuple[Share, ...] | Unfit:
    """Picks the devices with the best links among all that pass; if their sum exceeds the quota, the first that fit.

    With numa-bind they are on one NUMA node: the first, in the order of trying, that has enough devices.
    """
    groups: dict[int, list[DeviceUsage]] = {}
    for usage in ordered:
        if objection(usage, request, context) is None:
            groups.setdefault(usage.device.numa if _binds_numa(context) else 0, []).append(usage)
    for group in groups.values():
        if len(group) >= request.count:
            *others, last = (group[index] for index in best_linked(_links(group), request.count))
            if _over_quota(last, request, context, [_share(usage, request, context, ()) for usage in others]) is None:
                return tuple(_share(usage, request, context, ()) for usage in (*others, last))
    return _first_that_fit(ordered, request, context)


def _links(group: Sequence[DeviceUsage]) -> NDArray[numpy.int64]:
    """Returns the link score of each pair in *group*; 0 for an unknown pair and for a device with itself."""
    return numpy.array([[a.device.pair_scores.get(b.device.uuid, 0) if a is not b else 0 for b in group]
                        for a in group], dtype=numpy.int64)


def _binds_numa(context: FitContext) -> bool:
    """Reports whether the pod requests numa-bind and the vendor supports it."""
    return context.policy.numa_bind and Rule.NUMA in context.vendor.rules


def _share(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Share:
    return (context.vendor.make_share or common_share)(usage, request, context, picks)


def _cores(request: Request) -> int:
    return min(request.cores, WHOLE)


def _unhealthy(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    return None if usage.device.healthy else Reason.UNHEALTHY


def _cordoned(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    return Reason.CORDONED if usage.device.cordoned else None


def _other_type(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    selector, device = context.selector, usage.device
    fits = (selector.mode is None or device.mode in selector.mode) and accepts_model(selector, device.model)
    return None if fits else Reason.TYPE_MISMATCH


def _other_uuid(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    selector, uuid = context.selector, usage.device.uuid
    fits = (selector.use_uuids is None or uuid in selector.use_uuids) and uuid not in (selector.nouse_uuids or ())
    return None if fits else Reason.UUID_MISMATCH


def _no_slot(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    return Reason.NO_SLOT if usage.slots_used >= usage.device.slots else None


def _in_use_for_mutex(usage: DeviceUsage, request: Request, context: FitContext,
                      picks: Sequence[Share]) -> Reason | None:
    return Reason.NOT_ALONE if context.policy.mutex and usage.slots_used > 0 else None


def _over_quota(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    budget = context.budget
    if budget.memory_mib is None and budget.cores is None:
        return None
    containers = [*(shares for _, shares in context.placed_of_vendor),
                  (*picks, _share(usage, request, context, picks))]
    charges = peak_charges([*(kind for kind, _ in context.placed), context.kind], containers)
    return None if budget.covers(*total_charge(charges)) else Reason.QUOTA


def _no_memory(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    free = usage.device.memory_mib - usage.memory_used_mib
    return Reason.NO_MEMORY if free < request.memory_on(usage.device) else None


def _no_cores(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    free = usage.device.cores - usage.cores_used
    return Reason.NO_CORES if free < _cores(request) and not usage.device.is_partitioned else None


def _not_alone(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    """A request for all cores needs an unused device."""
    exclusive = usage.device.cores == WHOLE and _cores(request) == WHOLE
    return Reason.NOT_ALONE if exclusive and usage.slots_used > 0 else None


def _full(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    """A request without cores cannot use a device whose cores are all taken."""
    full = usage.device.cores != 0 and usage.cores_used == usage.device.cores and not usage.device.is_partitioned
    return Reason.NO_CORES_LEFT if full and request.cores == 0 else None


def _in_use(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    return Reason.NOT_ALONE if usage.slots_used > 0 else None


def _another_device(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    """All containers of a pod share one device, so a container with several devices excludes all others."""
    elsewhere = any(share.uuid != usage.device.uuid for kind, shares in context.placed_of_vendor for share in shares
                    if kind is not ContainerKind.INIT)
    return Reason.CUSTOM_RULE if elsewhere else None


_RULES: dict[Rule, CheckDevice] = {
    Rule.HEALTH: _unhealthy,
    Rule.CORDON: _cordoned,
    Rule.TYPE: _other_type,
    Rule.NUMA: lambda usage, request, context, picks: None,  # marks the point at which numa-bind drops earlier picks
    Rule.UUID: _other_uuid,
    Rule.SLOTS: _no_slot,
    Rule.MUTEX: _in_use_for_mutex,
    Rule.QUOTA: _over_quota,
    Rule.MEMORY: _no_memory,
    Rule.CORES: _no_cores,
    Rule.EXCLUSIVE: _not_alone,
    Rule.FULL: _full,
    Rule.UNUSED: _in_use,
    Rule.SAME_DEVICE: _another_device,
}
