"""Preemption over a view: the pods that may be evicted for a pod that waits, and the plan for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from hami.codec.gangs import pod_group_ref
from hami.model import DisruptionBudget, Pod, PodGroup
from hami.scheduling.preemption import (
    EvictionUnit,
    PodGroups,
    PreemptionNode,
    PreemptionPlan,
    best_plan,
    no_pod_group,
)
from hami.state import dry_run
from hami.state.bookings import Booking
from hami.state.plans import is_planned
from hami.state.read_pod import MAX_GRACE_S, PodRecord
from hami.state.view import View

MAX_GANG = 256  # pods of a gang that are planned for
# PodDisruptionBudgets of a namespace that count: each is compared with each of its pods
MAX_BUDGETS = 256
MAX_TRIALS = 400  # decisions that a plan may take: some 100 ms
SOON_S = 60  # within which a pod that is being deleted must end, so that nobody is evicted instead
OVERDUE_S = 60  # a pod that has not ended so long after its grace period may never end


Plans = list[tuple[Pod, PreemptionPlan]]
"""A plan for each of several pods, in the order in which they were planned for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionRules:
    """Who may be evicted. *strict*: nobody against a PodDisruptionBudget. *min_runtime_s*: nobody who has run for less;
    pods that are evicted together are as old as the oldest of them. *budgets*: all PodDisruptionBudgets. *pod_groups*:
    says which pods are evicted together. *now*: Unix seconds."""

    now: float
    budgets: Sequence[DisruptionBudget] = ()
    strict: bool = False
    min_runtime_s: float = 0.0
    pod_groups: PodGroups = no_pod_group


def plan_preemption(
    view: View,
    pod: Pod,
    names: Sequence[str],
    rules: PreemptionRules,
    *,
    planned: Collection[str] = (),
    before_trial: Callable[[], object] = lambda: None,
) -> PreemptionPlan | None:
    """Returns the best plan by which *pod* fits one of the nodes *names*; ``None`` if there is none.

    A plan without victims means that the pod fits once pods that are being deleted anyway have ended. A plan with
    victims waits for none that ends after them.
    *planned*: uids of the victims of other plans, which are evicted anyway and make room for others.
    *before_trial*: called before each decision, of which there are at most some MAX_TRIALS for each of two searches.
    Raises: MalformedInput for an unreadable annotation.
    """
    view = view.what_if(without=[pod.ref.uid])
    names = dry_run.may_preempt_on(view, pod, names)
    ending = [record for record in view.facts.pods.values() if record.is_ending]

    def search(within_s: float) -> PreemptionPlan | None:
        eviction = _Eviction(view, pod, rules, planned, within_s=within_s)
        return _best_plan(eviction, names, ending, before_trial)

    plan = search(SOON_S)
    if plan is not None and not plan.victims:
        return plan
    within_s = MAX_GRACE_S if plan is None else _grace_s(view, plan)
    earliest, latest = rules.now + SOON_S, rules.now + within_s
    if not any(earliest < record.ends_by <= latest for record in ending):
        return plan
    return _better_of(plan, search(within_s))


def _better_of(
    plan: PreemptionPlan | None, patient: PreemptionPlan | None
) -> PreemptionPlan | None:
    """Returns *plan* or *patient*, which waits longer for pods that end anyway."""
    if patient is None:
        return plan
    if plan is None:
        # nobody is evicted to wait for others for so long
        return None if patient.victims else patient
    return patient if patient.cost < plan.cost else plan


def _best_plan(
    eviction: _Eviction,
    names: Sequence[str],
    ending: Sequence[PodRecord],
    before_trial: Callable[[], object],
) -> PreemptionPlan | None:
    """Returns the best plan for one of the nodes *names*, which are sorted by the lowest priority there. *ending*: the
    pods that are being deleted."""
    lowest = eviction.lowest_priority(names[0]) if names else 0
    becoming_free = {record.node for record in ending if eviction.is_room(record)}
    # a plan without victims ends the search
    candidates = sorted(names, key=lambda name: name not in becoming_free)
    return best_plan(
        filter(None, map(eviction.node, candidates)),
        eviction.allowed,
        surplus=eviction.surplus,
        max_trials=MAX_TRIALS,
        lowest=lowest,
        strict=eviction.is_strict,
        before_trial=before_trial,
    )


def _grace_s(view: View, plan: PreemptionPlan) -> int:
    """Returns the seconds after which the last victim of *plan* has ended."""
    graces_s = [view.facts.pods[uid].traits.grace_s for uid in plan.uids]
    return min(max(graces_s), MAX_GRACE_S)


def plan_together(
    view: View,
    pods: Sequence[Pod],
    names: Sequence[str],
    rules: PreemptionRules,
    *,
    planned: Collection[str] = (),
    before_trial: Callable[[], object] = lambda: None,
) -> Plans:
    """Returns a plan for each of *pods*, in the room that is left by those before it; empty if one has none.

    The plan of a pod that fits has neither victims nor pods that end anyway. Arguments: as for `plan_preemption`.
    Raises: MalformedInput for an unreadable annotation.
    """
    plans, planned = Plans(), set(planned)
    view = view.what_if(without=[pod.ref.uid for pod in pods])
    for pod in pods:
        choice = dry_run.choose(view, pod, names)
        if choice is not None:
            plan = PreemptionPlan(choice.node, ())
        else:
            found = plan_preemption(
                view, pod, names, rules, planned=planned, before_trial=before_trial
            )
            if found is None:
                return []
            plan, view = found, view.what_if(without=(*found.uids, *found.awaited))
            choice = dry_run.choose(view, pod, [plan.node])
            if choice is None:  # plans of lower priority are in its way
                return [(pod, plan)] if len(pods) == 1 else []
        planned.update(plan.uids)
        plans.append((pod, plan))
        view = dry_run.placed(view, pod, choice)
    return plans


def pods_together(pod: Pod, waiting: Sequence[Pod], bound: int, size: int | None) -> Sequence[Pod]:
    """Returns the pods that are planned for together with *pod*: of its gang those that it still needs, the oldest
    first. None if they are planned for without *pod*, or have not all been created.

    *waiting*, *bound*: pods of the gang, *pod* among them, and how many have a node. *size*: how many are placed
    together, if that is known.
    """
    if not pod.group:
        return [pod]
    in_order = sorted(waiting, key=lambda other: (other.created, other.ref.name))
    if size is None:
        return in_order[:MAX_GANG]
    needed = size - bound
    if needed <= 0:
        return [pod]
    members = in_order[:needed]
    if needed > MAX_GANG or len(members) < needed:
        return []
    return members if pod.ref.uid in [member.ref.uid for member in members] else []


def plan_further(
    view: View,
    pod: Pod,
    node: str,
    ended: Collection[str],
    rules: PreemptionRules,
    *,
    planned: Collection[str] = (),
) -> PreemptionPlan | None:
    """Returns the plan by which *pod* fits *node* once the pods *ended* (uids) have ended and its victims, if any, have
    been evicted, too; ``None`` if there is none. All victims are on *node*: kube-scheduler evicts no others for it.

    Raises: MalformedInput for an unreadable annotation.
    """
    view = view.what_if(without={pod.ref.uid, *ended})
    eviction = _Eviction(view, pod, rules, planned)
    if dry_run.choose(view, pod, [node]) is not None:
        return PreemptionPlan(node, ())
    of_node = eviction.node(node, only_there=True)
    if of_node is None:
        return None
    return best_plan(
        [of_node],
        eviction.allowed,
        surplus=eviction.surplus,
        max_trials=MAX_TRIALS,
        lowest=pod.priority,
        strict=rules.strict,
    )


class _Eviction:
    """The pods that may be evicted for *pod*. *within_s*: the seconds within which pods that are being deleted must end
    to count as room.

    *allowed*: evictions within each budget. *surplus*: how many pods gangs have more than they need.
    """

    def __init__(
        self,
        view: View,
        pod: Pod,
        rules: PreemptionRules,
        planned: Collection[str],
        *,
        within_s: float = SOON_S,
    ) -> None:
        self._view = view
        self._pod = pod
        self._rules = rules
        self._planned = planned
        self._room_until = rules.now + within_s
        self.is_strict = rules.strict
        self._gangs = _Gangs(view, rules.pod_groups)
        self.surplus: dict[str, int] = {}
        self._budgets = defaultdict[str, list[DisruptionBudget]](list)
        for budget in rules.budgets:
            of_namespace = self._budgets[budget.namespace]
            if len(of_namespace) < MAX_BUDGETS:
                of_namespace.append(budget)
        self.allowed = {budget.key: budget.allowed for budget in rules.budgets}
        for uid in planned:  # the API server does not count them yet
            record = view.facts.pods.get(uid)
            if record is not None and not record.ends_by:
                for key in self._budgets_of(record):
                    self.allowed[key] -= 1

    def _lower_on(self, name: str) -> Iterator[Booking]:
        """Yields the bookings of lower priority on a node, without those of the victims of other plans."""
        for booking in self._view.bookings_on(name):
            if booking.priority >= self._pod.priority:
                continue
            if booking.uid not in self._planned:
                yield booking

    def node(self, name: str, *, only_there: bool = False) -> PreemptionNode | None:
        """Returns the node with its candidates; ``None`` if it has none, and no pod on it ends anyway. *only_there*:
        none of which a pod is on another node."""
        free: list[str] = []
        awaited: list[str] = []
        units: dict[tuple[str, ...], EvictionUnit] = {}
        for booking in self._lower_on(name):
            if is_planned(booking):
                free.append(booking.uid)
                continue
            record = self._view.facts.pods.get(booking.uid)
            if record is None:
                continue
            if self.is_room(record):
                awaited.append(booking.uid)
            else:
                members = self._evictable(record, name if only_there else None)
                if members:
                    unit = self._unit(record, members)
                    units[unit.uids] = unit
        if not units and not awaited:
            return None
        free += awaited
        uids = {*free, *chain.from_iterable(units)}
        fits = dry_run.fits_without(self._view, self._pod, name, uids)
        return PreemptionNode(
            name,
            tuple(units.values()),
            lambda ended: fits({*free, *ended}),
            tuple(awaited),
            dry_run.loss_without(self._view, self._pod, name, free),
        )

    def lowest_priority(self, name: str) -> int:
        """Returns the lowest priority of what holds devices on the node."""
        return min((booking.priority for booking in self._view.bookings_on(name)), default=0)

    def is_room(self, record: PodRecord) -> bool:
        """Reports whether the pod is being deleted and ends soon enough to be waited for. How long it takes is up to
        its owner, so who waits for it without a limit may wait for ever."""
        return record.is_ending and self._rules.now - OVERDUE_S < record.ends_by <= self._room_until

    def _evictable(self, record: PodRecord, node: str | None) -> Sequence[PodRecord]:
        """Returns the pods that are evicted together with the pod, itself among them; none if one of these may not be
        evicted, or is not on *node*, if that is given."""
        if not self._may_be_evicted(record):
            return ()
        members = self._gangs.evicted_with(record)
        for member in members:
            if node is not None and member.node != node:
                return ()
            if not self._may_be_evicted(member):
                return ()
        return () if self._is_young(members) else members

    def _unit(self, record: PodRecord, members: Sequence[PodRecord]) -> EvictionUnit:
        gang = f"{record.ref.namespace}/{record.group}" if record.group else ""
        if gang and gang not in self.surplus:
            surplus = self._gangs.surplus(record, self._planned)
            if surplus is not None:
                self.surplus[gang] = surplus
        members = sorted(members, key=lambda member: member.ref.uid)
        return EvictionUnit(
            uids=tuple(member.ref.uid for member in members),
            priorities=tuple(member.priority for member in members),
            started=min(member.started for member in members),
            budgets=tuple(self._budgets_of(member) for member in members),
            gang=gang,
        )

    def _may_be_evicted(self, record: PodRecord) -> bool:
        if not record.node or record.terminated or record.is_ending:
            return False
        if record.priority >= self._pod.priority or record.ref.uid in self._planned:
            return False
        traits = record.traits
        if traits.controller and traits.controller == self._pod.controller:
            return False
        return not traits.is_protected

    def _is_young(self, members: Sequence[PodRecord]) -> bool:
        """Reports whether *members*, which are evicted together, have run for too short a time. They are as old as the
        oldest of them: else a gang that replaces a pod now and then would never be evicted."""
        now = self._rules.now
        started = min((member.started for member in members if member.started), default=now)
        return now - started < self._rules.min_runtime_s

    def _budgets_of(self, record: PodRecord) -> tuple[str, ...]:
        namespace, keys = record.ref.namespace, []
        if namespace in self._budgets:
            labels = dict(record.traits.labels)
            for budget in self._budgets[namespace]:
                if budget.selects(namespace, labels):
                    keys.append(budget.key)
        return tuple(keys)


class _Gangs:
    """The pods of a view by their PodGroups."""

    def __init__(self, view: View, pod_groups: PodGroups) -> None:
        self._view = view
        self._pod_groups = pod_groups
        self._by_namespace: dict[str, dict[str, list[PodRecord]]] | None = None

    def evicted_with(self, record: PodRecord) -> Sequence[PodRecord]:
        """Returns the pods that hold devices and are evicted together with the pod, itself among them; none where it is
        not known who else is.

        They are those of the highest group above the pod that is disrupted as a whole. Where nothing is known of its
        group, its pods stay together.
        """
        if not record.group:
            return [record]
        group = self._group_of(record)
        if group is not None and not group.disrupted_with:
            return [record]
        gangs = self._of_namespace(record.ref.namespace)
        if group is None or group.disrupted_with.startswith("podgroup/"):
            return gangs[record.group]
        members: list[PodRecord] = []
        for gang in gangs.values():
            other = self._group_of(gang[0])
            if other is None:
                return ()
            if other.disrupted_with == group.disrupted_with:
                members += gang
        return members

    def surplus(self, record: PodRecord, planned: Collection[str]) -> int | None:
        """Returns how many pods the gang of the pod has more than it needs, without those that are *planned* to be
        evicted: none if they end together. ``None`` if it lacks pods already, or does not need any number of them."""
        group = self._group_of(record)
        if group is None or group.disrupted_with:
            return 0
        if group.min_count is None:
            return None
        gang = self._of_namespace(record.ref.namespace)[record.group]
        running = sum(member.ref.uid not in planned for member in gang)
        return running - group.min_count if running >= group.min_count else None

    def _group_of(self, record: PodRecord) -> PodGroup | None:
        return self._pod_groups(
            pod_group_ref(record.ref.namespace, record.group, dict(record.traits.labels))
        )

    def _of_namespace(self, namespace: str) -> Mapping[str, Sequence[PodRecord]]:
        """Returns the pods of each gang of *namespace* that hold devices and are not being deleted."""
        if self._by_namespace is None:
            self._by_namespace = defaultdict(lambda: defaultdict(list))
            for member in self._view.facts.pods.values():
                if not member.group or not member.node:
                    continue
                if not member.terminated and not member.is_ending:
                    self._by_namespace[member.ref.namespace][member.group].append(member)
        return self._by_namespace[namespace]
