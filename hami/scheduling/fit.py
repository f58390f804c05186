"""Filter: the devices of a node that a container gets, or why it gets none. Each rule is a row of one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
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
    decision = vendor.decision
    if decision.check_node is not None and (reason := decision.check_node(request, context)) is not None:
        return Unfit(((reason, 1),), len(usages))
    if request.count > len(usages) and (
            decision.allows_repeats is None or not any(map(decision.allows_repeats, usages))):
        return Unfit(((Reason.TOO_FEW_DEVICES, len(usages)),), len(usages))
    scores = [device_score(usage, request, context.weights) for usage in usages]
    ordered = sort_usages(usages, context.policy, scores)
    ordered.reverse()
    if decision.select_devices is not None:
        return _selected(decision.select_devices, ordered, request, context)
    if context.policy.topology_aware:
        return _best_linked(ordered, request, context)
    return _first_that_fit(ordered, request, context)


def objection(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share] = (),
              rules: Iterable[Rule | CheckDevice] | None = None) -> Reason | None:
    """Returns the reason of the first of *rules* (default: all of the vendor's) that *usage* fails."""
    for rule in context.vendor.decision.rules if rules is None else rules:
        if isinstance(rule, Rule):
            reason, fails = _RULES[rule]
            if fails(usage, request, context, picks):
                return reason
        elif (found := rule(usage, request, context, picks)) is not None:
            return found
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
    rules, allows_repeats = context.vendor.decision.rules, context.vendor.decision.allows_repeats
    binds_numa = _binds_numa(context)
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
        if _exceeds_quota(usage, request, context, picks):
            reasons[Reason.QUOTA] += 1
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
            shares = tuple(_share(usage, request, context, ()) for usage in (*others, last))
            if not _exceeds_quota(last, request, context, shares[:-1]):
                return shares
    return _first_that_fit(ordered, request, context)


def _links(group: Sequence[DeviceUsage]) -> NDArray[numpy.int64]:
    """Returns the link score of each pair in *group*; 0 for an unknown pair and for a device with itself."""
    return numpy.array([[a.device.pair_scores.get(b.device.uuid, 0) if a is not b else 0 for b in group]
                        for a in group], dtype=numpy.int64)


def _binds_numa(context: FitContext) -> bool:
    """Reports whether the pod requests numa-bind and the vendor supports it."""
    return context.policy.numa_bind and Rule.NUMA in context.vendor.decision.rules


def _share(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Share:
    return (context.vendor.decision.make_share or common_share)(usage, request, context, picks)


def _is_other_type(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> bool:
    selector, device = context.selector, usage.device
    fits_mode = selector.mode is None or device.mode in selector.mode
    return not (fits_mode and accepts_model(selector, device.model))


def _is_other_uuid(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> bool:
    selector, uuid = context.selector, usage.device.uuid
    return (selector.use_uuids is not None and uuid not in selector.use_uuids) or uuid in (selector.nouse_uuids or ())


def _exceeds_quota(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> bool:
    budget = context.budget
    if budget.memory_mib is None and budget.cores is None:
        return False
    containers = [*(shares for _, shares in context.placed_of_vendor),
                  (*picks, _share(usage, request, context, picks))]
    charges = peak_charges([*(kind for kind, _ in context.placed), context.kind], containers)
    return not budget.covers(*total_charge(charges))


def _lacks_cores(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> bool:
    free = usage.device.cores - usage.cores_used
    return free < min(request.cores, WHOLE) and not usage.device.is_partitioned


def _is_shared(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> bool:
    """A request for all cores needs an unused device."""
    return usage.device.cores == WHOLE and request.cores >= WHOLE and usage.slots_used > 0


def _is_full(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> bool:
    """A request without cores cannot use a device whose cores are all taken."""
    full = usage.device.cores != 0 and usage.cores_used == usage.device.cores and not usage.device.is_partitioned
    return full and request.cores == 0


def _is_another(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> bool:
    """All containers of a pod share one device, so a container with several devices excludes all others."""
    return any(share.uuid != usage.device.uuid for kind, shares in context.placed_of_vendor for share in shares
               if kind is not ContainerKind.INIT)


_Fails = Callable[[DeviceUsage, Request, FitContext, Sequence[Share]], bool]

_RULES: dict[Rule, tuple[Reason, _Fails]] = {
    Rule.HEALTH: (Reason.UNHEALTHY, lambda usage, request, context, picks: not usage.device.healthy),
    Rule.CORDON: (Reason.CORDONED, lambda usage, request, context, picks: usage.device.cordoned),
    Rule.TYPE: (Reason.TYPE_MISMATCH, _is_other_type),
    Rule.NUMA: (Reason.NUMA, lambda usage, request, context, picks: False),  # where numa-bind drops earlier picks
    Rule.UUID: (Reason.UUID_MISMATCH, _is_other_uuid),
    Rule.SLOTS: (Reason.NO_SLOT, lambda usage, request, context, picks: usage.slots_used >= usage.device.slots),
    Rule.MUTEX: (Reason.NOT_ALONE, lambda usage, request, context, picks: (
        context.policy.mutex and usage.slots_used > 0)),
    Rule.QUOTA: (Reason.QUOTA, _exceeds_quota),
    Rule.MEMORY: (Reason.NO_MEMORY, lambda usage, request, context, picks: (
        usage.memory_free_mib < request.memory_on(usage.device))),
    Rule.CORES: (Reason.NO_CORES, _lacks_cores),
    Rule.EXCLUSIVE: (Reason.NOT_ALONE, _is_shared),
    Rule.FULL: (Reason.NO_CORES_LEFT, _is_full),
    Rule.UNUSED: (Reason.NOT_ALONE, lambda usage, request, context, picks: usage.slots_used > 0),
    Rule.SAME_DEVICE: (Reason.CUSTOM_RULE, _is_another),
}
