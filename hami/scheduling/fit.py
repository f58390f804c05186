"""Filter: which devices of a node a container gets, or why it gets none. One rule, one function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy
from numpy.typing import NDArray

from hami.model import ContainerKind, Reason, Request, Selector, Share, DeviceUsage
from hami.scheduling.order import device_score, sort_views
from hami.scheduling.topology import best_linked
from hami.scheduling.usage import collapse, total
from hami.vendors.request import WHOLE
from hami.vendors.shares import common_share
from hami.vendors.spec import FitContext, Check, Choose, Rule, Short

__all__ = ["Unfit", "accepts_model", "fit", "objection"]


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a container does not fit a node: how many of *devices* devices each reason rules out."""

    reasons: tuple[tuple[Reason, int], ...]
    devices: int

    def __str__(self) -> str:
        """As users see it: ``1/4 CardInsufficientMemory, 3/4 CardNotHealth``, sorted as text."""
        if self.reasons and self.reasons[0][0] is Reason.TOO_FEW_DEVICES:
            return Reason.TOO_FEW_DEVICES
        return ", ".join(sorted(f"{count}/{self.devices} {reason}" for reason, count in self.reasons))


@dataclass(slots=True)
class _Walk:
    """What has been found on the way through the devices."""

    picks: list[Share] = field(default_factory=list)
    reasons: Counter[Reason] = field(default_factory=Counter)


def fit(request: Request, case: FitContext) -> tuple[Share, ...] | Unfit:
    """Shares of the devices of ``case.views`` that *request* gets, in the order in which they were taken."""
    views, vendor = case.views, case.vendor
    if vendor.gate is not None and (reason := vendor.gate(request, case)) is not None:
        return Unfit(((reason, 1),), len(views))
    if request.count > len(views) and not (vendor.repeats is not None and any(map(vendor.repeats, views))):
        return Unfit(((Reason.TOO_FEW_DEVICES, len(views)),), len(views))
    scores = [device_score(view, request, case.weights) for view in views]
    ordered = sort_views(views, case.policy, scores)
    ordered.reverse()
    if vendor.choose is not None:
        return _chosen(vendor.choose, ordered, request, case)
    if case.policy.topology_aware:
        return _best_linked(ordered, request, case)
    return _first_that_fit(ordered, request, case)


def objection(view: DeviceUsage, request: Request, case: FitContext, picks: Sequence[Share] = (),
              rules: Iterable[Rule | Check] | None = None) -> Reason | None:
    """The first of *rules* (all of the vendor's, if not given) that *view* breaks."""
    for rule in case.vendor.rules if rules is None else rules:
        check = _RULES[rule] if isinstance(rule, Rule) else rule
        if (reason := check(view, request, case, picks)) is not None:
            return reason
    return None


def accepts_model(selector: Selector, model: str) -> bool:
    """*model* is one that the pod's type lists let through: parts of its name, without regard to case."""
    name = model.lower()
    if selector.use_types is not None and not any(item.lower() in name for item in selector.use_types):
        return False
    return selector.nouse_types is None or not any(item.lower() in name for item in selector.nouse_types)


def _first_that_fit(ordered: Sequence[DeviceUsage], request: Request, case: FitContext) -> tuple[Share, ...] | Unfit:
    """The first devices that can serve. With numa-bind, leaving a NUMA node means starting over."""
    walk, numa = _Walk(), None
    before, after = _split(case)
    repeats = case.vendor.repeats
    for view in ordered:
        reason = objection(view, request, case, walk.picks, before)
        if reason is None and _binds_numa(case) and view.device.numa != numa:
            _drop(walk)
            numa = view.device.numa
        while reason is None and (reason := objection(view, request, case, walk.picks, after)) is None:
            walk.picks.append(_share(view, request, case, walk.picks))
            if len(walk.picks) == request.count:
                return tuple(walk.picks)
            if repeats is None or not repeats(view):
                break
        if reason is not None:
            walk.reasons[reason] += 1
    return _unfit(walk, len(ordered))


def _chosen(choose: Choose, ordered: Sequence[DeviceUsage], request: Request, case: FitContext) -> tuple[Share, ...] | Unfit:
    """Of all devices that can serve, those that the vendor chooses; or why none do."""
    walk, eligible = _Walk(), list[DeviceUsage]()
    for view in ordered:
        if (reason := objection(view, request, case)) is None:
            eligible.append(view)
        else:
            walk.reasons[reason] += 1
    if len(eligible) < request.count:
        walk.picks = [_share(view, request, case, ()) for view in eligible]
        return _unfit(walk, len(ordered))
    chosen = choose(eligible, request, case)
    if isinstance(chosen, Short):
        walk.reasons[chosen.reason] = chosen.count
        return _unfit(walk, len(ordered) if chosen.devices is None else chosen.devices)
    for view in chosen:
        if (reason := _over_quota(view, request, case, walk.picks)) is not None:
            walk.reasons[reason] += 1
            return _unfit(walk, len(ordered))
        walk.picks.append(_share(view, request, case, walk.picks))
    return tuple(walk.picks)


def _best_linked(ordered: Sequence[DeviceUsage], request: Request, case: FitContext) -> tuple[Share, ...] | Unfit:
    """Of all devices that can serve, those that are linked best; else the first that fit, or why none do.

    With numa-bind they are of one NUMA node: the first, in the order of trying, that has enough.
    """
    groups: dict[int, list[DeviceUsage]] = {}
    for view in ordered:
        if objection(view, request, case) is None:
            groups.setdefault(view.device.numa if _binds_numa(case) else 0, []).append(view)
    for group in groups.values():
        if len(group) >= request.count:
            *others, last = (group[place] for place in best_linked(_links(group), request.count))
            if _over_quota(last, request, case, [_share(view, request, case, ()) for view in others]) is None:
                return tuple(_share(view, request, case, ()) for view in (*others, last))
    return _first_that_fit(ordered, request, case)


def _links(group: Sequence[DeviceUsage]) -> NDArray[numpy.int64]:
    """How well each two of *group* are linked; a pair that is not known, or a device with itself, not at all."""
    return numpy.array([[a.device.pair_scores.get(b.device.uuid, 0) if a is not b else 0 for b in group]
                        for a in group], dtype=numpy.int64)


def _split(case: FitContext) -> tuple[tuple[Rule | Check, ...], tuple[Rule | Check, ...]]:
    """The rules before and after the place where numa-bind starts over."""
    rules = case.vendor.rules
    if not _binds_numa(case):
        return (), rules
    place = rules.index(Rule.NUMA)
    return rules[:place], rules[place:]


def _binds_numa(case: FitContext) -> bool:
    """The pod wants one NUMA node, and its vendor is one whose pods may."""
    return case.policy.numa_bind and Rule.NUMA in case.vendor.rules


def _drop(walk: _Walk) -> None:
    if walk.picks:
        walk.reasons[Reason.NUMA] += len(walk.picks)
        walk.picks = []


def _unfit(walk: _Walk, devices: int) -> Unfit:
    if walk.picks:
        walk.reasons[Reason.TOO_FEW_FITTING] = len(walk.picks)
    return Unfit(tuple(walk.reasons.items()), devices)


def _share(view: DeviceUsage, request: Request, case: FitContext, picks: Sequence[Share]) -> Share:
    return (case.vendor.share or common_share)(view, request, case, picks)


def _cores(request: Request) -> int:
    return min(request.cores, WHOLE)


def _unhealthy(view: DeviceUsage, request: Request, case: FitContext, picks: Sequence[Share]) -> Reason | None:
    return None if view.device.healthy else Reason.UNHEALTHY


def _cordoned(view: DeviceUsage, request: Request, case: FitContext, picks: Sequence[Share]) -> Reason | None:
    return Reason.CORDONED if view.device.cordoned else None


def _other_type(view: DeviceUsage, request: Request, case: FitContext, picks: Sequence[Share]) -> Reason | None:
    selector = case.selector
    if selector.mode is not None and view.device.mode not in selector.mode:
        return Reason.TYPE_MISMATCH
    return None if accepts_model(selector, view.device.model) else Reason.TYPE_MISMATCH


def _other_uuid(view: DeviceUsage, request: Request, case: FitContext, picks: Sequence[Share]) -> Reason | None:
    selector, uuid = case.selector, view.device.uuid
    if selector.use_uuids is not None and uuid not in selector.use_uuids:
        return Reason.UUID_MISMATCH
    return Reason.UUID_MISMATCH if selector.nouse_uuids is not None and uuid in selector.nouse_uuids else None


def _no_slot(view: DeviceUsage, request: Request, case: FitContext, picks: Sequence[Share]) -> Reason | None:
    return Reason.NO_SLOT if view.slots_used >= view.device.slots else None


def _shared(view: DeviceUsage, request: Request, case: FitContext, picks: Sequence[Share]) -> Reason | None:
    return Reason.NOT_ALONE if case.policy.mutex and view.slots_used > 0 else None


def _over_quota(view: DeviceUsage, request: Request, case: FitContext, picks: Sequence[Share]) -> Reason | None:
    budget = case.budget
    if budget.memory_mib is None and budget.cores is None:
        return None
    containers = [*(shares for _, shares in case.mine), (*picks, _share(view, request, case, picks))]
    charges = collapse([*(kind for kind, _ in case.placed), case.kind], containers)
    return None if budget.covers(*total(charges)) else Reason.QUOTA


def _no_memory(view: DeviceUsage, request: Request, case: FitContext, picks: Sequence[Share]) -> Reason | None:
    free = view.device.memory_mib - view.memory_used_mib
    return Reason.NO_MEMORY if free < request.memory_on(view.device) else None


def _no_cores(view: DeviceUsage, request: Request, case: FitContext, picks: Sequence[Share]) -> Reason | None:
    free = view.device.cores - view.cores_used
    return Reason.NO_CORES if free < _cores(request) and not view.device.is_cut else None


def _not_alone(view: DeviceUsage, request: Request, case: FitContext, picks: Sequence[Share]) -> Reason | None:
    """A request for all cores wants the device to itself."""
    exclusive = view.device.cores == WHOLE and _cores(request) == WHOLE
    return Reason.NOT_ALONE if exclusive and view.slots_used > 0 else None


def _used_up(view: DeviceUsage, request: Request, case: FitContext, picks: Sequence[Share]) -> Reason | None:
    """A request without cores cannot run beside others that hold them all."""
    full = view.device.cores != 0 and view.cores_used == view.device.cores and not view.device.is_cut
    return Reason.NO_CORES_LEFT if full and request.cores == 0 else None


def _used(view: DeviceUsage, request: Request, case: FitContext, picks: Sequence[Share]) -> Reason | None:
    """Nobody else has anything of the device."""
    return Reason.NOT_ALONE if view.slots_used > 0 else None


def _another_device(view: DeviceUsage, request: Request, case: FitContext, picks: Sequence[Share]) -> Reason | None:
    """All containers of a pod share one device, so one that has several leaves none for the others."""
    elsewhere = any(share.uuid != view.device.uuid for kind, shares in case.mine for share in shares
                    if kind is not ContainerKind.INIT)
    return Reason.CUSTOM_RULE if elsewhere else None


def _passed(view: DeviceUsage, request: Request, case: FitContext, picks: Sequence[Share]) -> Reason | None:
    return None


_RULES: dict[Rule, Check] = {
    Rule.HEALTH: _unhealthy,
    Rule.CORDON: _cordoned,
    Rule.TYPE: _other_type,
    Rule.NUMA: _passed,
    Rule.UUID: _other_uuid,
    Rule.SLOTS: _no_slot,
    Rule.MUTEX: _shared,
    Rule.QUOTA: _over_quota,
    Rule.MEMORY: _no_memory,
    Rule.CORES: _no_cores,
    Rule.EXCLUSIVE: _not_alone,
    Rule.FULL: _used_up,
    Rule.UNUSED: _used,
    Rule.SAME_DEVICE: _another_device,
}
