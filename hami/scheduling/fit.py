"""Filter: which devices of a node a container gets, or why it gets none. One rule, one function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy
from numpy.typing import NDArray

from hami.model import ContainerKind, Reason, Request, Selector, Share
from hami.scheduling.ask import Ask, Claim
from hami.scheduling.order import device_score, sort_views
from hami.scheduling.topology import best_linked
from hami.scheduling.usage import View, collapse, total
from hami.vendors.spec import Rule

__all__ = ["Context", "Unfit", "accepts_model", "fit", "objection"]

WHOLE = 100


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


@dataclass(frozen=True, slots=True)
class Context:
    """What a rule may look at besides the device and the request.

    *placed*: the shares of the pod's containers placed so far. *kind*: that of the container now being placed.
    """

    ask: Ask
    claim: Claim
    kind: ContainerKind = ContainerKind.APP
    placed: tuple[tuple[ContainerKind, tuple[Share, ...]], ...] = ()


@dataclass(slots=True)
class _Walk:
    """What has been found on the way through the devices."""

    picks: list[Share] = field(default_factory=list)
    reasons: Counter[Reason] = field(default_factory=Counter)


def fit(views: Sequence[View], request: Request, context: Context) -> tuple[Share, ...] | Unfit:
    """Shares of the devices that *request* gets, in the order in which they were taken.

    *views*: the devices of the request's vendor on one node, as registered.
    """
    if request.count > len(views):
        return Unfit(((Reason.TOO_FEW_DEVICES, len(views)),), len(views))
    ask = context.ask
    scores = [device_score(view, request, ask.weights) for view in views]
    ordered = sort_views(views, ask.policy, scores)
    ordered.reverse()
    if ask.policy.topology_aware:
        return _best_linked(ordered, request, context)
    return _first_that_fit(ordered, request, context)


def objection(view: View, request: Request, context: Context, picks: Sequence[Share] = (),
              rules: Iterable[Rule] | None = None) -> Reason | None:
    """The first of *rules* (all of the vendor's, if not given) that *view* breaks."""
    for rule in context.claim.rules if rules is None else rules:
        if (reason := _RULES[rule](view, request, context, picks)) is not None:
            return reason
    return None


def accepts_model(selector: Selector, model: str) -> bool:
    """*model* is one that the pod's type lists let through: parts of its name, without regard to case."""
    name = model.lower()
    if selector.use_types is not None and not any(item.lower() in name for item in selector.use_types):
        return False
    return selector.nouse_types is None or not any(item.lower() in name for item in selector.nouse_types)


def _first_that_fit(ordered: Sequence[View], request: Request, context: Context) -> tuple[Share, ...] | Unfit:
    """The first devices that can serve. With numa-bind, leaving a NUMA node means starting over."""
    walk, numa = _Walk(), None
    before, after = _split(context)
    for view in ordered:
        reason = objection(view, request, context, walk.picks, before)
        if reason is None and context.ask.policy.numa_bind and view.device.numa != numa:
            _drop(walk)
            numa = view.device.numa
        if reason is None:
            reason = objection(view, request, context, walk.picks, after)
        if reason is not None:
            walk.reasons[reason] += 1
            continue
        walk.picks.append(_share(view, request))
        if len(walk.picks) == request.count:
            return tuple(walk.picks)
    return _unfit(walk, len(ordered))


def _best_linked(ordered: Sequence[View], request: Request, context: Context) -> tuple[Share, ...] | Unfit:
    """Of all devices that can serve, those that are linked best; else the first that fit, or why none do.

    With numa-bind they are of one NUMA node: the first, in the order of trying, that has enough.
    """
    groups: dict[int, list[View]] = {}
    for view in ordered:
        if objection(view, request, context) is None:
            groups.setdefault(view.device.numa if context.ask.policy.numa_bind else 0, []).append(view)
    for group in groups.values():
        if len(group) >= request.count:
            *others, last = (group[place] for place in best_linked(_links(group), request.count))
            if _over_quota(last, request, context, [_share(view, request) for view in others]) is None:
                return tuple(_share(view, request) for view in (*others, last))
    return _first_that_fit(ordered, request, context)


def _links(group: Sequence[View]) -> NDArray[numpy.int64]:
    """How well each two of *group* are linked; a pair that is not known, or a device with itself, not at all."""
    return numpy.array([[a.device.pair_scores.get(b.device.uuid, 0) if a is not b else 0 for b in group]
                        for a in group], dtype=numpy.int64)


def _split(context: Context) -> tuple[tuple[Rule, ...], tuple[Rule, ...]]:
    """The rules before and after the place where numa-bind starts over."""
    rules = context.claim.rules
    if not context.ask.policy.numa_bind or Rule.NUMA not in rules:
        return (), rules
    place = rules.index(Rule.NUMA)
    return rules[:place], rules[place:]


def _drop(walk: _Walk) -> None:
    if walk.picks:
        walk.reasons[Reason.NUMA] += len(walk.picks)
        walk.picks = []


def _unfit(walk: _Walk, devices: int) -> Unfit:
    if walk.picks:
        walk.reasons[Reason.TOO_FEW_FITTING] = len(walk.picks)
    return Unfit(tuple(walk.reasons.items()), devices)


def _share(view: View, request: Request) -> Share:
    return Share(view.device.uuid, request.vendor, request.memory_on(view.device), _cores(request))


def _cores(request: Request) -> int:
    return min(request.cores, WHOLE)


def _unhealthy(view: View, request: Request, context: Context, picks: Sequence[Share]) -> Reason | None:
    return None if view.device.healthy else Reason.UNHEALTHY


def _cordoned(view: View, request: Request, context: Context, picks: Sequence[Share]) -> Reason | None:
    return Reason.CORDONED if view.device.cordoned else None


def _other_type(view: View, request: Request, context: Context, picks: Sequence[Share]) -> Reason | None:
    selector = context.claim.selector
    if selector.mode is not None and view.device.mode not in selector.mode:
        return Reason.TYPE_MISMATCH
    return None if accepts_model(selector, view.device.model) else Reason.TYPE_MISMATCH


def _other_uuid(view: View, request: Request, context: Context, picks: Sequence[Share]) -> Reason | None:
    selector, uuid = context.claim.selector, view.device.uuid
    if selector.use_uuids is not None and uuid not in selector.use_uuids:
        return Reason.UUID_MISMATCH
    return Reason.UUID_MISMATCH if selector.nouse_uuids is not None and uuid in selector.nouse_uuids else None


def _no_slot(view: View, request: Request, context: Context, picks: Sequence[Share]) -> Reason | None:
    return Reason.NO_SLOT if view.slots_used >= view.device.slots else None


def _shared(view: View, request: Request, context: Context, picks: Sequence[Share]) -> Reason | None:
    return Reason.NOT_ALONE if context.ask.policy.mutex and view.slots_used > 0 else None


def _over_quota(view: View, request: Request, context: Context, picks: Sequence[Share]) -> Reason | None:
    budget = context.claim.budget
    if budget.memory_mib is None and budget.cores is None:
        return None
    containers = [tuple(s for s in shares if s.type == request.vendor) for _, shares in context.placed]
    containers.append((*picks, _share(view, request)))
    charges = collapse([*(kind for kind, _ in context.placed), context.kind], containers)
    return None if budget.covers(*total(charges)) else Reason.QUOTA


def _in_mig_mode(view: View, request: Request, context: Context, picks: Sequence[Share]) -> Reason | None:
    """Cards in MIG mode are cut in profiles, not shared; until those are chosen here, nothing is placed on them."""
    return Reason.MIG_TOPOLOGY if view.device.mode == "mig" else None


def _no_memory(view: View, request: Request, context: Context, picks: Sequence[Share]) -> Reason | None:
    free = view.device.memory_mib - view.memory_used_mib
    return Reason.NO_MEMORY if free < request.memory_on(view.device) else None


def _no_cores(view: View, request: Request, context: Context, picks: Sequence[Share]) -> Reason | None:
    return Reason.NO_CORES if view.device.cores - view.cores_used < _cores(request) else None


def _not_alone(view: View, request: Request, context: Context, picks: Sequence[Share]) -> Reason | None:
    """A request for all cores wants the device to itself."""
    exclusive = view.device.cores == WHOLE and _cores(request) == WHOLE
    return Reason.NOT_ALONE if exclusive and view.slots_used > 0 else None


def _used_up(view: View, request: Request, context: Context, picks: Sequence[Share]) -> Reason | None:
    """A request without cores cannot run beside others that hold them all."""
    full = view.device.cores != 0 and view.cores_used == view.device.cores
    return Reason.NO_CORES_LEFT if full and request.cores == 0 else None


def _passed(view: View, request: Request, context: Context, picks: Sequence[Share]) -> Reason | None:
    return None


_RULES: dict[Rule, Callable[[View, Request, Context, Sequence[Share]], Reason | None]] = {
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
    Rule.MIG: _in_mig_mode,
}
