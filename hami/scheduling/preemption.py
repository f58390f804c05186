"""Preemption: which pods of lower priority must end so that a pod fits, decided as kube-scheduler decides it.

Whether the pod fits without some pods is asked of the decision itself, which is handed in.
Source: k8s.io/kubernetes, pkg/scheduler/framework/preemption and plugins/defaultpreemption.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from hami.model import PodGroup, PodGroupRef

PRIORITY_OFFSET = 1 << 31  # makes all priorities positive, so that more victims are a larger sum
MAX_SEARCHED = 10  # candidates of a node among which every combination is considered
MAX_EQUAL = 16  # nodes with a plan that none can beat, of which the one of the least loss is chosen

Fits = Callable[[frozenset[str]], bool]
"""Reports whether the pod fits the node without the pods with these uids."""
Loss = Callable[[frozenset[str]], float]
"""Returns what the pod would cost the usual pods on the node without the pods with these uids."""
PodGroups = Callable[[PodGroupRef], PodGroup | None]
"""Returns what a PodGroup says of its pods; ``None`` if that is not known, and then they are evicted together."""


def no_pod_group(ref: PodGroupRef) -> None:
    """Knows no PodGroup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionUnit:
    """Pods that are evicted together or not at all: one pod, or the members of a gang, also those on other nodes.

    *uids*: of those pods. *priorities*: of each of them. *started*: when the first of them was started, in Unix
    seconds, 0 if that is not known. *budgets*: the PodDisruptionBudgets that select each of them. *gang*: the name of
    the gang to which the pod, or all of them, belong; empty for none.
    """

    uids: tuple[str, ...]
    priorities: tuple[int, ...]
    started: int = 0
    budgets: tuple[tuple[str, ...], ...] = ()
    gang: str = ""

    @property
    def priority(self) -> int:
        """The highest priority of the pods."""
        return max(self.priorities)

    @property
    def importance(self) -> tuple[int, bool, int, int, tuple[str, ...]]:
        """A key that sorts the most important candidate first: by priority, then pods of gangs before others, the most
        pods, and the one that runs longest."""
        return -self.priority, not self.gang, -len(self.uids), self.started, self.uids


Cost = tuple[int, int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """The *victims* whose end makes room on *node*, most important first. *violations*: how many of their pods are
    evicted against a PodDisruptionBudget. *awaited*: uids of pods there that are being deleted anyway. *broken*: how
    many gangs lack pods then. *surplus*: how many of the pods a gang has more than it needs."""

    node: str
    victims: tuple[EvictionUnit, ...]
    violations: int = 0
    awaited: tuple[str, ...] = ()
    broken: int = 0
    surplus: int = 0

    @property
    def uids(self) -> tuple[str, ...]:
        """The uids of the pods that are evicted."""
        return tuple(itertools.chain.from_iterable(victim.uids for victim in self.victims))

    @property
    def cost(self) -> Cost:
        """A key that sorts the best plan first: fewest violations, lowest highest priority, fewest gangs that lack pods
        then, lowest sum of priorities, fewest pods, most of them more than their gangs need, and last the victims of
        the highest priority that were started latest."""
        if not self.victims:
            return (0, -PRIORITY_OFFSET, 0, 0, 0, 0, 0)
        priorities: list[int] = []
        for victim in self.victims:
            priorities += victim.priorities
        highest, count = max(priorities), len(priorities)
        latest = min(victim.started for victim in self.victims if victim.priority == highest)
        return (
            self.violations,
            highest,
            self.broken,
            sum(priorities) + count * PRIORITY_OFFSET,
            count,
            count - self.surplus,
            -latest,
        )


@dataclass(frozen=True, slots=True)
class PreemptionNode:
    """A node with the *candidates* for eviction whose pods hold devices there. *awaited*: uids of pods that are being
    deleted anyway, without which *fits* judges. *loss*: ``None`` where the node policy of the pod does not ask."""

    name: str
    candidates: tuple[EvictionUnit, ...]
    fits: Fits
    awaited: tuple[str, ...] = ()
    loss: Loss | None = None


_NodePlan = tuple[PreemptionPlan, PreemptionNode]
"""A plan with its node."""


@dataclass(frozen=True, slots=True)
class _Limits:
    """The numbers of pods that may be evicted: *allowed* by each PodDisruptionBudget, *surplus* of each gang that needs
    the others."""

    allowed: Mapping[str, int]
    surplus: Mapping[str, int]


NO_SURPLUS: Mapping[str, int] = MappingProxyType({})


def best_plan(
    nodes: Iterable[PreemptionNode],
    allowed: Mapping[str, int],
    *,
    max_trials: int,
    lowest: int,
    surplus: Mapping[str, int] = NO_SURPLUS,
    strict: bool = False,
    before_trial: Callable[[], object] = lambda: None,
) -> PreemptionPlan | None:
    """Returns the plan of the lowest cost for one of *nodes*, and of equal ones that of the least loss; ``None`` if the
    pod fits none without the candidates.

    *allowed*: how many pods may be evicted within each PodDisruptionBudget. *surplus*: how many pods each gang that
    lacks none has more than it needs: none if its pods are evicted together. *max_trials*: after so many questions the
    best plan so far is good enough. *lowest*: the lowest priority of all candidates; a plan that evicts only one pod of
    it ends the search, or MAX_EQUAL of them where losses count. *strict*: no plan may violate a PodDisruptionBudget.
    *before_trial*: called before each question.
    """
    trials = 0

    def counted(fits: Fits) -> Fits:
        def fits_and_counts(ended: frozenset[str]) -> bool:
            nonlocal trials
            trials += 1
            before_trial()
            return fits(ended)

        return fits_and_counts

    def is_exhausted() -> bool:
        return trials >= max_trials

    limits = _Limits(allowed, surplus)
    cheapest = (0, lowest, 0, lowest + PRIORITY_OFFSET, 1)
    plans: list[_NodePlan] = []
    unbeaten = 0
    for node in nodes:
        if is_exhausted():
            break
        node = replace(node, fits=counted(node.fits))
        plan = _first_plan(node, limits, strict, is_exhausted)
        if plan is None:
            continue
        plans.append((plan, node))
        unbeaten += plan.cost[:5] <= cheapest
        if unbeaten == (1 if node.loss is None else MAX_EQUAL):
            break
    if not plans:
        return None
    return _best_of(plans, limits, is_exhausted)


def _best_of(
    plans: Sequence[_NodePlan], limits: _Limits, is_exhausted: Callable[[], bool]
) -> PreemptionPlan:
    """Returns the best of *plans*, or a better one for a node of theirs."""
    lowest = min(plan.cost for plan, _ in plans)
    best = min([item for item in plans if item[0].cost == lowest], key=_loss)
    for first, node in sorted(plans, key=lambda item: (item[0].cost, item[0].node)):
        bound: tuple[int, ...] = best[0].cost
        if node.loss is not None and first.cost > bound:
            bound = (*bound, 0)  # a plan that costs as much as the best may have a smaller loss
        found = _search(node, limits, bound, is_exhausted)
        if found is None:
            continue
        if found.cost < best[0].cost or _loss((found, node)) < _loss(best):
            best = found, node
    return best[0]


def _loss(item: _NodePlan) -> tuple[float, str]:
    """Returns the key by which plans of one cost are sorted."""
    plan, node = item
    if node.loss is None:
        return 0.0, node.name
    return node.loss(frozenset(plan.uids)), node.name


def _first_plan(
    node: PreemptionNode, limits: _Limits, strict: bool, is_exhausted: Callable[[], bool]
) -> PreemptionPlan | None:
    plan = plan_node(node, limits.allowed, limits.surplus)
    if strict and plan is not None and plan.violations:
        return _search(node, limits, (1,), is_exhausted)
    return plan


def plan_node(
    node: PreemptionNode, allowed: Mapping[str, int], surplus: Mapping[str, int] = NO_SURPLUS
) -> PreemptionPlan | None:
    """Returns a plan for *node* in which no victim can be spared; ``None`` if the pod does not fit without all
    candidates.

    As in kube-scheduler, those whose eviction violates a budget are spared first, then the most important ones. Among
    equal priorities, those that a gang needs come before all others, and those that it does not need after them.
    """
    candidates = sorted(node.candidates, key=_importance)
    if not node.fits(_uids(candidates)):
        return None
    violations = dict(zip(candidates, _violations(candidates, allowed)))
    spare = _surplus_of(candidates, surplus)

    def rank(candidate: EvictionUnit) -> tuple[object, ...]:
        return (
            not violations[candidate],
            -candidate.priority,
            candidate.uids in spare,
            candidate.importance,
        )

    victims = sorted(candidates, key=rank)
    has_spared = True
    while has_spared:  # the decision is not monotone: who was needed at first may be spared later
        has_spared = False
        for candidate in victims:
            rest = [other for other in victims if other is not candidate]
            if node.fits(_uids(rest)):
                victims, has_spared = rest, True
    return _plan(node, victims, _Limits(allowed, surplus))


def _search(
    node: PreemptionNode, limits: _Limits, bound: tuple[int, ...], is_exhausted: Callable[[], bool]
) -> PreemptionPlan | None:
    """Returns the cheapest plan for *node* among all combinations if it costs less than *bound*, else ``None``."""
    if len(node.candidates) > MAX_SEARCHED or is_exhausted():
        return None
    plans = []
    for size in range(1, len(node.candidates) + 1):
        for victims in itertools.combinations(node.candidates, size):
            plan = _plan(node, victims, limits)
            if plan.cost < bound:
                plans.append(plan)
    plans.sort(key=lambda plan: plan.cost)
    for plan in plans:
        if is_exhausted():
            return None
        if node.fits(frozenset(plan.uids)):
            return plan
    return None


def _plan(node: PreemptionNode, victims: Sequence[EvictionUnit], limits: _Limits) -> PreemptionPlan:
    ordered = sorted(victims, key=_importance)
    evicted = Counter(victim.gang for victim in ordered if victim.gang in limits.surplus)
    broken = sum(count > limits.surplus[gang] for gang, count in evicted.items())
    return PreemptionPlan(
        node.name,
        tuple(ordered),
        sum(_violations(ordered, limits.allowed)),
        node.awaited,
        broken,
        len(_surplus_of(ordered, limits.surplus)),
    )


def _surplus_of(
    candidates: Sequence[EvictionUnit], surplus: Mapping[str, int]
) -> set[tuple[str, ...]]:
    """Returns those (uids) of *candidates*, which are sorted by importance, that their gangs do not need: the least
    important pods of each."""
    remaining, spare = dict(surplus), set[tuple[str, ...]]()
    for candidate in reversed(candidates):
        if remaining.get(candidate.gang, 0) > 0:
            remaining[candidate.gang] -= 1
            spare.add(candidate.uids)
    return spare


def _violations(candidates: Iterable[EvictionUnit], allowed: Mapping[str, int]) -> list[int]:
    """Returns how many pods of each of *candidates*, evicted one after the other, are evicted against a budget."""
    remaining, violations = Counter(allowed), list[int]()
    for candidate in candidates:
        violations.append(0)
        for budgets in candidate.budgets:
            if any(remaining[budget] <= 0 for budget in budgets):
                violations[-1] += 1
            remaining.subtract(budgets)
    return violations


def _uids(candidates: Iterable[EvictionUnit]) -> frozenset[str]:
    return frozenset(itertools.chain.from_iterable(candidate.uids for candidate in candidates))


def _importance(candidate: EvictionUnit) -> tuple[int, bool, int, int, tuple[str, ...]]:
    return candidate.importance
