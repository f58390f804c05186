"""The state of the store, and what is decided in it. Whoever asks here holds the lock.

Promises for pods of lower priority, and that for the pod itself, are left out of what a decision sees.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from hami.model import Budget, Pod, PodScope
from hami.scheduling.pod_request import PodRequest, make_pod_request
from hami.scheduling.quota import QuotaCheck, budgets_of, check_quota
from hami.scheduling.refusal import Choice
from hami.state import dry_run
from hami.state.learning import Learning
from hami.state.nodes import NodeCache
from hami.state.pending import PendingPods
from hami.state.plans import is_free, planned_booking, planned_bookings, planned_uid
from hami.state.pods import PodCache
from hami.state.promises import Promise, PromiseEnd, Promises, Stage
from hami.state.quotas import QuotaCache
from hami.state.table import Table
from hami.state.verdicts import Verdicts
from hami.state.view import Facts, Policies, View
from hami.vendors.spec import Catalog


@dataclass(slots=True, kw_only=True, eq=False)
class State:
    """The content of the store. Its lock guards all of it, and is never held across I/O."""

    vendors: Catalog
    policies: Policies
    clock: Callable[[], float]
    """Monotonic."""
    now: Callable[[], datetime]
    """The time of day in UTC."""
    lock: threading.RLock
    table: Table
    verdicts: Verdicts
    nodes: NodeCache
    pods: PodCache
    quotas: QuotaCache
    promises: Promises
    learning: Learning
    pending: PendingPods = field(default_factory=PendingPods)
    ended_plans: list[tuple[Promise, PromiseEnd]] = field(default_factory=list)
    """Those that have ended since they were last asked for, and how."""

    def bound_node(self, uid: str) -> str | None:
        """Returns the node that the pod is bound to, perhaps by a Binding of ours that the watch has not shown yet."""
        record = self.pods.get(uid)
        if record is not None and record.node:
            return record.node
        promise = self.promises.get(uid)
        if promise is not None and promise.stage is Stage.FINISHED:
            return promise.node
        return None

    def waits_no_longer(self, uid: str) -> bool:
        """Reports whether the pod is gone, has terminated, or is shown bound."""
        if self.pods.is_deleted(uid):
            return True
        record = self.pods.get(uid)
        return record is not None and (bool(record.node) or record.terminated)


class Decisions:
    """Answers what would be decided about a pod, and looks after the plans for others meanwhile."""

    def __init__(self, state: State) -> None:
        self._state = state

    def budgets(self, namespace: str, scope: PodScope) -> dict[str, Budget]:
        """Returns what the quotas of *namespace* leave to pods of *scope*, by vendor."""
        return budgets_of(
            self._state.vendors,
            self._state.quotas.of(namespace),
            scope,
            partial(self._state.table.bookings.in_namespace, namespace),
        )

    def check_quota(self, pod: Pod, request: PodRequest) -> QuotaCheck:
        """Returns what the quotas of its namespace say of *pod*."""
        budgets = self.budgets(pod.ref.namespace, pod.scope)
        if not budgets:
            return QuotaCheck()
        return check_quota(request, budgets, self._state.table.sizes())

    def request_of(self, pod: Pod) -> PodRequest | None:
        """Returns what *pod* requests; ``None`` for no device."""
        return make_pod_request(pod, self._state.vendors, self._state.policies.device)

    def view_for(self, pod: Pod) -> View:
        """Returns what there is as far as decisions on *pod* depend on it. Valid while the lock is held."""
        namespace = pod.ref.namespace
        return View(
            self._state.table,
            Facts(
                vendors=self._state.vendors,
                policies=self._state.policies,
                quotas={namespace: self._state.quotas.of(namespace)},
            ),
            verdicts=self._state.verdicts,
        )

    # Plans

    @contextlib.contextmanager
    def without_plan(self, pod: Pod) -> Iterator[None]:
        """Makes what is planned for *pod* free meanwhile."""
        if not self._state.promises.plans():
            yield
            return
        self.settle()
        self._state.table.bookings.pop(planned_uid(pod.ref.uid))
        try:
            yield
        finally:
            self.settle()

    def lift_lower_plans(self, pod: Pod) -> bool:
        """Makes what is planned for pods of lower priority than *pod* free, until plans are settled. Reports whether
        anything is."""
        lower = _below(self._state.promises.plans(), pod.priority)
        for plan in lower:
            self._state.table.bookings.pop(planned_uid(plan.ref.uid))
        return bool(lower)

    def settle(self, lifted: str = "") -> None:
        """Books all plans that stand as their victims are now, except for that of the pod *lifted* (uid), and ends
        others."""
        table, promises = self._state.table, self._state.promises
        if not promises.plans():
            return
        for plan in promises.plans():
            how = self._end_of(plan)
            if how is not None:
                self.end(plan, how)
        plans: list[Promise] = []
        for plan in promises.plans():
            if not plan.is_assumed and plan.ref.uid != lifted:
                plans.append(plan)
        bookings = planned_bookings(plans, table.bookings.by_uid)
        for plan in plans:
            uid = planned_uid(plan.ref.uid)
            if uid in bookings:
                table.bookings.put(bookings[uid])
            else:
                table.bookings.pop(uid)

    def end(self, plan: Promise, how: PromiseEnd) -> None:
        """Ends *plan*, which is reported."""
        self._state.promises.remove(plan)
        self._state.ended_plans.append((plan, how))

    def end_lower_plans(self, pod: Pod, node: str) -> None:
        """Ends the plans on *node* for pods of lower priority than *pod* that do not fit beside it any more."""
        for plan in _below(self._state.promises.plans(), pod.priority):
            if plan.node != node or plan.is_assumed:
                continue
            if self._state.promises.get(plan.ref.uid) is not plan:
                continue  # it has ended meanwhile
            if not self.renew(plan, plan.victims):
                self.end(plan, PromiseEnd.TAKEN)

    def renew(self, plan: Promise, ended: Collection[str]) -> bool:
        """Reports whether the pod of *plan* gets what is planned once the pods *ended* have ended. If it gets other
        devices of the node instead, these are planned from now on."""
        view = self.view_without(plan.pod, plan.node, ended)
        if is_free(plan.booking, view.usages(plan.node)):
            return True
        choice = dry_run.choose(view, plan.pod, [plan.node])
        if choice is None:
            return False
        plan.change(choice, planned_booking(view, plan.pod, choice))
        self.end_lower_plans(plan.pod, plan.node)
        return True

    def view_without(self, pod: Pod, node: str, ended: Collection[str]) -> View:
        """Returns the view in which the pods *ended* have ended and *pod* has nothing on *node*, where nothing is
        planned for lower priorities."""
        uid = pod.ref.uid
        on_node = [plan for plan in self._state.promises.plans() if plan.node == node]
        others: list[Promise] = []
        for plan in on_node:
            if plan.is_assumed or plan.ref.uid == uid:
                continue
            if plan.pod.priority >= pod.priority:
                others.append(plan)
        planned = planned_bookings(others, self._state.table.bookings.by_uid, ended)
        uids = [planned_uid(plan.ref.uid) for plan in on_node]
        return self.view_for(pod).what_if(
            without={uid, planned_uid(uid), *ended, *uids}, with_=planned.values()
        )

    def planned_choice(
        self, uid: str, request: PodRequest, names: Sequence[str], quota: QuotaCheck
    ) -> Choice | None:
        """Returns the choice of the pod's plan if what it needs is free.

        The decision might find another placement, or none: it depends on the pods that have come since.
        """
        plan = self._state.promises.plan_for(uid)
        if plan is None or plan.node not in names or quota.decided:
            return None
        if quota.open and not quota.covers(request, plan.choice.placement):
            return None
        if not is_free(plan.booking, self._state.table.usages(plan.node)):
            return None
        return plan.choice

    def _end_of(self, plan: Promise) -> PromiseEnd | None:
        """Returns how *plan* ends; ``None`` if it stands."""
        if self._state.bound_node(plan.ref.uid):
            return PromiseEnd.BOUND
        if self._state.waits_no_longer(plan.ref.uid):
            return PromiseEnd.DELETED
        if plan.until is None or plan.is_assumed or self._state.clock() < plan.until:
            return None
        return PromiseEnd.EXPIRED


def _below(plans: Sequence[Promise], priority: int) -> list[Promise]:
    """Returns those of *plans* that are for pods of lower priority, highest priority first."""
    lower = [plan for plan in plans if plan.pod.priority < priority]
    return sorted(lower, key=lambda plan: -plan.pod.priority)
