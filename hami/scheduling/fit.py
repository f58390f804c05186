"""Filter: the devices of a node that a container gets, or why it gets none. Each rule is a row of one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy
from numpy.typing import NDArray

from hami.model import ContainerKind, DeviceUsage, Reason, Request, Selector, Share, Unfit
from hami.scheduling.order import device_scores, in_order_of_trying
from hami.scheduling.topology import best_linked
from hami.scheduling.usage import peak_charges, total_charge
from hami.vendors.request import WHOLE
from hami.vendors.shares import common_share
from hami.vendors.spec import (
    Candidate,
    FitContext,
    Rule,
    SelectDevices,
)

# devices whose links are compared: each pair is looked at, while other filters wait
MAX_LINKED = 64


def fit(request: Request, context: FitContext) -> tuple[Share, ...] | Unfit:
    """Returns the shares of the devices in ``context.usages`` that *request* gets, in the order of picking."""
    usages, decision = context.usages, context.vendor.decision
    if decision.check_node is not None:
        reason = decision.check_node(request, context)
        if reason is not None:
            return Unfit(((reason, 1),), len(usages))
    if request.count > len(usages):
        allows_repeats = decision.allows_repeats
        if allows_repeats is None or not any(map(allows_repeats, usages)):
            return Unfit.too_few_devices(len(usages))
    scores = device_scores(usages, request, context.weights)
    ordered = in_order_of_trying(usages, context.policy, scores)
    if decision.select_devices is not None:
        return _selected(decision.select_devices, ordered, request, context)
    if context.policy.topology_aware:
        return _best_linked(ordered, request, context)
    return _first_that_fit(ordered, request, context)


def may_fit(request: Request, context: FitContext) -> bool:
    """Reports whether as many devices of ``context.usages`` as *request* wants pass, each by itself. False is certain,
    and found without the order in which devices are tried."""
    allows_repeats = context.vendor.decision.allows_repeats
    checks, missing = _checks(request, context), request.count
    for usage in context.usages:
        if _objection(Candidate(usage, request, context), checks) is None:
            missing -= 1
            if allows_repeats is not None and allows_repeats(usage):
                return True
            if missing == 0:
                return True
    return False


def objection(candidate: Candidate) -> Reason | None:
    """Returns the reason of the first of the vendor's rules that *candidate* fails."""
    return _objection(candidate, _checks(candidate.request, candidate.context))


_Check = tuple[Reason | None, Callable[[Candidate], object]]
"""A reason with a function that reports whether a candidate fails; without a reason, the function returns that."""


def _checks(request: Request, context: FitContext) -> list[_Check]:
    """Returns the vendor's rules, in their order, but those that all devices pass."""
    checks: list[_Check] = []
    for rule in context.vendor.decision.rules:
        if not isinstance(rule, Rule):
            checks.append((None, rule))
            continue
        may_fail = _MAY_FAIL.get(rule)
        if may_fail is None or may_fail(request, context):
            checks.append(_RULES[rule])
    return checks


def _objection(candidate: Candidate, checks: Sequence[_Check]) -> Reason | None:
    """Returns the reason of the first of *checks* that *candidate* fails."""
    for reason, check in checks:
        result = check(candidate)
        if isinstance(result, Reason):
            return result
        if result:
            return reason
    return None


def accepts_model(selector: Selector, model: str) -> bool:
    """Reports whether the type lists accept *model*. Their items are parts of its name, in any case."""
    if selector.use_types is not None and not _has_part(model, selector.use_types):
        return False
    return selector.nouse_types is None or not _has_part(model, selector.nouse_types)


def _has_part(model: str, parts: Iterable[str]) -> bool:
    name = model.lower()
    for part in parts:
        if part.lower() in name:
            return True
    return False


def accepts_mode(selector: Selector, mode: str) -> bool:
    """Reports whether the pod accepts devices in *mode*."""
    return selector.mode is None or mode in selector.mode


def _first_that_fit(
    ordered: Sequence[DeviceUsage], request: Request, context: FitContext
) -> tuple[Share, ...] | Unfit:
    """Picks the first devices that pass; with numa-bind, of the first NUMA node that has enough."""
    picks, reasons, allows_repeats = (
        list[Share](),
        Counter[Reason](),
        context.vendor.decision.allows_repeats,
    )
    checks = _checks(request, context)
    for group in _by_numa(ordered, context):
        dropped, picks = picks, []
        for usage in group:
            candidate = Candidate(usage, request, context, picks)
            while (reason := _objection(candidate, checks)) is None:
                picks.append(_share(candidate))
                if len(picks) == request.count:
                    return tuple(picks)
                if allows_repeats is None or not allows_repeats(usage):
                    break
            if reason is not None:
                reasons[reason] += 1
        if not picks:
            picks, dropped = dropped, []
        if dropped:
            reasons[Reason.NUMA] += len(dropped)
    return Unfit.of(reasons, len(picks), len(ordered))


def _by_numa(
    ordered: Sequence[DeviceUsage], context: FitContext
) -> Iterable[Sequence[DeviceUsage]]:
    """Returns *ordered* in one group, or in a group for each NUMA node if the pod and the vendor bind to one."""
    if not (context.policy.numa_bind and context.vendor.decision.binds_numa):
        return (ordered,)
    groups: dict[int, list[DeviceUsage]] = {}
    for usage in ordered:
        groups.setdefault(usage.device.numa, []).append(usage)
    return groups.values()


def _selected(
    select_devices: SelectDevices,
    ordered: Sequence[DeviceUsage],
    request: Request,
    context: FitContext,
) -> tuple[Share, ...] | Unfit:
    """Lets the vendor select among all devices that pass."""
    picks, reasons, eligible = list[Share](), Counter[Reason](), list[DeviceUsage]()
    for usage in ordered:
        reason = objection(Candidate(usage, request, context))
        if reason is None:
            eligible.append(usage)
        else:
            reasons[reason] += 1
    if len(eligible) < request.count:
        return Unfit.of(reasons, len(eligible), len(ordered))
    selected = select_devices(eligible, request, context)
    if isinstance(selected, Unfit):
        return Unfit.of({**reasons, **dict(selected.reasons)}, 0, selected.devices)
    for usage in selected:
        candidate = Candidate(usage, request, context, picks)
        if _exceeds_quota(candidate):
            reasons[Reason.QUOTA] += 1
            return Unfit.of(reasons, len(picks), len(ordered))
        picks.append(_share(candidate))
    return tuple(picks)


def _best_linked(
    ordered: Sequence[DeviceUsage], request: Request, context: FitContext
) -> tuple[Share, ...] | Unfit:
    """Picks the devices with the best links among all that pass; if their sum exceeds the quota, the first that fit.

    With numa-bind they are on one NUMA node: the first, in the order of trying, that has enough devices. Links are not
    compared among more than MAX_LINKED devices.
    """
    passing = [usage for usage in ordered if objection(Candidate(usage, request, context)) is None]
    for group in _by_numa(passing, context):
        if request.count <= len(group) <= MAX_LINKED:
            *others, last = (group[index] for index in best_linked(_links(group), request.count))
            shares = tuple(_share(Candidate(usage, request, context)) for usage in (*others, last))
            if not _exceeds_quota(Candidate(last, request, context, shares[:-1])):
                return shares
    return _first_that_fit(ordered, request, context)


def _links(group: Sequence[DeviceUsage]) -> NDArray[numpy.int64]:
    """Returns the link score of each pair in *group*; 0 for an unknown pair and for a device with itself."""
    uuids = [usage.device.uuid for usage in group]
    rows = []
    for usage in group:
        scores = usage.device.pair_scores
        rows.append([scores.get(uuid, 0) for uuid in uuids])
    links = numpy.array(rows, dtype=numpy.int64)
    numpy.fill_diagonal(links, 0)
    return links


def _share(candidate: Candidate) -> Share:
    return (candidate.context.vendor.decision.make_share or common_share)(candidate)


def _is_other_type(candidate: Candidate) -> bool:
    selector, device = candidate.context.selector, candidate.device
    return not (accepts_mode(selector, device.mode) and accepts_model(selector, device.model))


def _is_other_uuid(candidate: Candidate) -> bool:
    selector, uuid = candidate.context.selector, candidate.device.uuid
    if selector.use_uuids is not None and uuid not in selector.use_uuids:
        return True
    return selector.nouse_uuids is not None and uuid in selector.nouse_uuids


def _exceeds_quota(candidate: Candidate) -> bool:
    context = candidate.context
    if context.budget.is_unlimited:
        return False
    kinds, containers = [], []
    for kind, shares in context.placed_of_vendor:
        kinds.append(kind)
        containers.append(shares)
    kinds.append(context.kind)
    containers.append((*candidate.picks, _share(candidate)))
    return not context.budget.covers(*total_charge(peak_charges(kinds, containers)))


def _lacks_cores(candidate: Candidate) -> bool:
    free = candidate.device.cores - candidate.usage.cores_used
    return free < candidate.request.device_cores and not candidate.device.is_partitioned


def _is_shared(candidate: Candidate) -> bool:
    """A request for all cores needs an unused device."""
    return (
        candidate.device.cores == WHOLE
        and candidate.request.cores >= WHOLE
        and candidate.usage.slots_used > 0
    )


def _is_full(candidate: Candidate) -> bool:
    """A request without cores cannot use a device whose cores are all taken."""
    device = candidate.device
    if candidate.request.cores or not device.cores or device.is_partitioned:
        return False
    return candidate.usage.cores_used == device.cores


def _is_another(candidate: Candidate) -> bool:
    """All containers of a pod that run together get one device, so a container with several devices excludes all
    others."""
    for kind, shares in candidate.context.placed_of_vendor:
        if kind is ContainerKind.INIT:
            continue
        for share in shares:
            if share.uuid != candidate.device.uuid:
                return True
    return False


def _selects_types(request: Request, context: FitContext) -> bool:
    selector = context.selector
    return (selector.use_types, selector.nouse_types, selector.mode) != (None, None, None)


def _selects_uuids(request: Request, context: FitContext) -> bool:
    selector = context.selector
    return (selector.use_uuids, selector.nouse_uuids) != (None, None)


_MAY_FAIL: dict[Rule, Callable[[Request, FitContext], bool]] = {
    Rule.TYPE: _selects_types,
    Rule.UUID: _selects_uuids,
    Rule.MUTEX: lambda request, context: context.policy.mutex,
    Rule.QUOTA: lambda request, context: not context.budget.is_unlimited,
    Rule.EXCLUSIVE: lambda request, context: request.cores >= WHOLE,
    Rule.FULL: lambda request, context: not request.cores,
}
"""When a device may fail a rule; always, if the rule is not here."""

_Fails = Callable[[Candidate], bool]

_RULES: dict[Rule, tuple[Reason, _Fails]] = {
    Rule.ALLOCATION_MODE: (
        Reason.ALLOCATION_MODE,
        lambda candidate: candidate.usage.device.by_claims is not candidate.context.by_claims,
    ),
    Rule.HEALTH: (Reason.UNHEALTHY, lambda candidate: not candidate.usage.device.healthy),
    Rule.CORDON: (Reason.CORDONED, lambda candidate: candidate.usage.device.cordoned),
    Rule.TYPE: (Reason.TYPE_MISMATCH, _is_other_type),
    Rule.UUID: (Reason.UUID_MISMATCH, _is_other_uuid),
    Rule.SLOTS: (
        Reason.NO_SLOT,
        lambda candidate: candidate.usage.slots_used >= candidate.usage.device.slots,
    ),
    Rule.MUTEX: (
        Reason.NOT_ALONE,
        lambda candidate: candidate.context.policy.mutex and candidate.usage.slots_used > 0,
    ),
    Rule.QUOTA: (Reason.QUOTA, _exceeds_quota),
    Rule.MEMORY: (
        Reason.NO_MEMORY,
        lambda candidate: candidate.usage.memory_free_mib < candidate.memory_mib,
    ),
    Rule.CORES: (Reason.NO_CORES, _lacks_cores),
    Rule.EXCLUSIVE: (Reason.NOT_ALONE, _is_shared),
    Rule.FULL: (Reason.NO_CORES_LEFT, _is_full),
    Rule.UNUSED: (Reason.NOT_ALONE, lambda candidate: candidate.usage.slots_used > 0),
    Rule.SAME_DEVICE: (Reason.CUSTOM_RULE, _is_another),
}
