"""The part of the store for preemption: plans."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from hami.model import Pod
from hami.scheduling.preemption import PreemptionPlan
from hami.state import dry_run
from hami.state.decisions import Decisions, State
from hami.state.evictions import PlanUnderWay, plans_under_way
from hami.state.pending import PendingPod
from hami.state.plans import planned_promise
from hami.state.promises import Promise, PromiseEnd
from hami.state.read_pod import MAX_GRACE_S
from hami.state.table import NO_POD, Table

PLAN_S = 120.0  # after the last victim should have ended; kube-scheduler may try the pod again a minute later
MAX_PLANS = 512
MAX_PLANS_OF_NAMESPACE = 256  # among them: as many as a gang may have

Units = tuple[frozenset[str], ...]
"""The uids of pods, by those that end together."""


class Preemptions:
    """Promises to pods what others leave that are evicted for them."""

    def __init__(self, state: State, decisions: Decisions) -> None:
        self._state = state
        self._decisions = decisions

    def preemptors(self) -> list[PendingPod]:
        """Returns the refused pods for which others may be evicted and which have no promise, highest priority
        first."""
        with self._state.lock:
            self._decisions.settle()
            lowest = _lowest_priority(self._state.table)
            found: list[PendingPod] = []
            for pending in self._state.pending.all():
                pod = pending.pod
                if not pod.preempts:
                    continue
                if pod.priority <= lowest:
                    continue
                if self._state.promises.get(pod.ref.uid) is not None:
                    continue
                if not self._state.waits_no_longer(pod.ref.uid):
                    found.append(pending)
            return sorted(found, key=_urgency)

    def promise(self, plans: Sequence[tuple[Pod, PreemptionPlan]]) -> list[Promise]:
        """Promises what the *plans* free to their pods: all of them, or none if one cannot be carried out any more.

        The plans of several pods are those of a gang, for which devices may be assumed while it waits for its rest.
        """
        promises = self._state.promises
        with self._state.lock:
            self._decisions.settle()
            dropped: list[Promise] = []
            for pod, _ in plans:
                assumed = promises.assumed(pod.ref.uid)
                if pod.group and assumed is not None and not assumed.is_wanted:
                    dropped.append(assumed)
                    promises.forget(pod.ref.uid)
            made = self._make_all(plans)
            if not made:
                for assumed in dropped:
                    promises.assume(assumed)
                return []
            self._decisions.settle()
            for promise in made:
                self._decisions.end_lower_plans(promise.pod, promise.node)
            self._decisions.settle()
        return made

    def promised(self) -> list[Promise]:
        """Returns the plans that stand. Those whose pod can no longer get what is planned have ended."""
        promises, table = self._state.promises, self._state.table
        with self._state.lock:
            self._decisions.settle()
            checked: list[Promise] = []
            for plan in sorted(promises.plans(), key=lambda plan: -plan.pod.priority):
                stands = promises.get(plan.ref.uid) is plan and not plan.is_assumed
                if not stands or plan.checked == table.version_of(plan.node):
                    continue
                if self._decisions.renew(plan, plan.victims):
                    checked.append(plan)
                else:
                    self._decisions.end(plan, PromiseEnd.UNFIT)
            self._decisions.settle()
            for plan in checked:
                plan.mark_checked(table.version_of(plan.node))
            return promises.plans()

    def promise_for(self, uid: str) -> Promise | None:
        """Returns the plan for the pod."""
        with self._state.lock:
            return self._state.promises.plan_for(uid)

    def planned_victims(self, priority: int | None = None) -> frozenset[str]:
        """Returns the uids of the victims of the plans for pods of *priority* or higher, by default of all: a pod may
        take what is freed for others of lower priority."""
        with self._state.lock:
            victims = set[str]()
            for plan in self._state.promises.plans():
                if priority is None or plan.pod.priority >= priority:
                    victims |= plan.victims
            return frozenset(victims)

    def release(self, plan: Promise) -> None:
        """Ends *plan* if it stands, since its pod fits without it or others are evicted for it."""
        with self._state.lock:
            if self._state.promises.plan_for(plan.ref.uid) is plan:
                self._decisions.end(plan, PromiseEnd.RELEASED)

    def release_all(self) -> None:
        """Ends all plans, which are of an earlier term of this leader."""
        with self._state.lock:
            for plan in self._state.promises.plans():
                self._state.promises.remove(plan)
            self._state.ended_plans.clear()

    def ended(self) -> list[tuple[Promise, PromiseEnd]]:
        """Returns the plans that have ended since the last call, and how, without those of moves."""
        with self._state.lock:
            all_ended = self._state.ended_plans
            ended = [(plan, how) for plan, how in all_ended if not plan.one_by_one]
            all_ended[:] = [(plan, how) for plan, how in all_ended if plan.one_by_one]
            return ended

    def under_way(self) -> list[PlanUnderWay]:
        """Returns the plans for pods without a promise for which others are evicted, by an earlier leader or by
        kube-scheduler, with those victims that have not ended, highest priority first."""
        with self._state.lock:
            return plans_under_way(self._state)

    def _make_all(self, plans: Sequence[tuple[Pod, PreemptionPlan]]) -> list[Promise]:
        leaving = tuple(itertools.chain.from_iterable(_units_of(plan) for _, plan in plans))
        made: list[Promise] = []
        for pod, plan in plans:
            promise = self._make(pod, plan, _units_of(plan))
            if promise is None:
                promise = self._make(pod, plan, leaving)
            if promise is None:
                for earlier in made:
                    self._state.promises.remove(earlier)
                return []
            self._state.promises.plan(promise)
            made.append(promise)
        return made

    def _make(self, pod: Pod, plan: PreemptionPlan, units: Units) -> Promise | None:
        """Returns the promise that *plan* makes to *pod* once the pods of *units* have ended; ``None`` if it cannot be
        carried out any more."""
        if not all(is_running(self._state, victim) for victim in plan.uids):
            return None
        return make_promise(self._state, self._decisions, pod, plan.node, units)


def make_promise(
    state: State, decisions: Decisions, pod: Pod, node: str, units: Units
) -> Promise | None:
    """Returns the promise to *pod* of what it needs on *node* once the pods of *units* have ended; ``None`` if it does
    not wait for that, or does not fit there then. It is not booked yet."""
    uid = pod.ref.uid
    if state.promises.assumed(uid) is not None:
        return None
    if state.waits_no_longer(uid):
        return None
    if not has_room_for(state.promises.plans(), pod):
        return None
    leaving = frozenset[str]().union(*units)
    view = decisions.view_without(pod, node, leaving)
    choice = dry_run.choose(view, pod, [node])
    if choice is None:
        return None
    until = state.clock() + min(_grace_s(state, leaving), MAX_GRACE_S) + PLAN_S
    return planned_promise(view, pod, choice, units, until)


def is_running(state: State, uid: str) -> bool:
    """Reports whether the pod is bound and has not terminated."""
    record = state.pods.get(uid)
    return record is not None and record.is_running


def _grace_s(state: State, uids: Collection[str]) -> int:
    """Returns the seconds after which the last of the pods has ended."""
    grace_s = 0
    for uid in uids:
        record = state.pods.get(uid)
        if record is not None:
            grace_s = max(grace_s, record.traits.grace_s)
    return grace_s


def has_room_for(plans: Sequence[Promise], pod: Pod) -> bool:
    """Reports whether there may be a plan for *pod* beside those of *plans* that are for others."""
    others = [plan.ref.namespace for plan in plans if plan.ref.uid != pod.ref.uid]
    return len(others) < MAX_PLANS and others.count(pod.ref.namespace) < MAX_PLANS_OF_NAMESPACE


def _urgency(pending: PendingPod) -> tuple[object, ...]:
    """Returns the key by which plans are made: for the highest priority first, then for who has waited longest."""
    return (-pending.pod.priority, pending.since, pending.pod.ref.uid)


def _units_of(plan: PreemptionPlan) -> Units:
    """Returns the uids of the pods that *plan* waits for, by those that end together."""
    evicted = [frozenset(victim.uids) for victim in plan.victims]
    awaited = [frozenset({uid}) for uid in plan.awaited]
    return (*evicted, *awaited)


def _lowest_priority(table: Table) -> int:
    """Returns the lowest priority of all pods that hold devices; above all priorities if there is none."""
    table.refresh()
    return int(table.priorities[list(table.rows.values())].min(initial=NO_POD))
