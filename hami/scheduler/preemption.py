"""The preemptor: evicts pods of lower priority for a pod with devices that no node fits, if it fits then.

What a plan frees is held for the pod before anybody is evicted, so nobody is evicted in vain. kube-scheduler still
places the pod. Only the leader evicts. A new leader takes over: the pod's nomination and the condition of the victims
are written before the first of them is deleted.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from datetime import datetime

from hami.codec.keys import PREEMPTING
from hami.errors import ClusterError, Conflict, HamiError, MalformedInput, NotFound
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.model import Pod
from hami.runtime.tasks import Task
from hami.scheduler.attempts import Attempts
from hami.scheduler.evictor import REFUSED_S, RETRY_S, EvictionPaused, EvictionStopped, Evictor
from hami.scheduler.leadership import Leadership
from hami.scheduler.metrics import Metrics
from hami.scheduler.planner import PreemptionPlanner
from hami.scheduling.preemption import EvictionUnit, PreemptionPlan
from hami.state.evictions import PlanUnderWay
from hami.state.pending import PendingPod
from hami.state.promises import Promise, PromiseEnd, Stage
from hami.state.store import Store
from hami.state.victims import Plans, PreemptionRules, plan_together, pods_together
from hami.state.view import View

log = logging.getLogger(__name__)

IDLE_S = 1.0  # between looks at what waits, unless a filter has refused a pod
# for which a pod does not wait for room on a node where a victim did not end in time
AVOIDED_S = 300.0
PAUSES = 4.0  # each plan is followed by a pause so many times as long as it has used the processor

_IN_VAIN = (PromiseEnd.EXPIRED, PromiseEnd.UNFIT)


class Preemptor(Task):
    """One task for all plans, which are made while no request is in flight. *clock* is monotonic."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        events: EventRecorder,
        leadership: Leadership,
        planner: PreemptionPlanner,
        metrics: Metrics,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        super().__init__("preemptor")
        self._cluster = cluster
        self._store = store
        self._events = events
        self._leadership = leadership
        self._planner = planner
        self._metrics = metrics
        self._clock = clock
        self._evictor = Evictor(
            cluster,
            store.evictions,
            store.pods,
            events,
            leadership,
            metrics,
            clock=clock,
            now=now,
        )
        self._is_new_term = False
        self._attempts = Attempts()
        self._plan_from = -math.inf
        self._clear_from = -math.inf
        self._promised_at: dict[str, float] = {}
        self._avoided: dict[tuple[str, str], float] = {}  # pods and nodes, until when

    def step(self) -> float:
        """Makes plans for refused pods and carries them out. Returns the seconds until the next step."""
        if not self._planner.is_enabled or not self._leadership.leads():
            return IDLE_S
        if self._is_new_term:
            self._is_new_term = False
            self._evictor.take_over()
        self._store.preemptions.promised()  # ends those that do not fit any more
        self._report_ended()
        self._follow_plans()
        delay = self._plan()
        self._evictor.begin_step()
        for promise in self.each(
            sorted(self._store.preemptions.promised(), key=lambda promise: len(promise.victims))
        ):
            is_due = self._attempts.is_due(promise.ref, self._clock())
            if promise.stage is Stage.PLANNED and is_due and self._leadership.leads():
                self._evict(promise)
        if self._leadership.leads():
            self._evictor.settle(self.beat)
        return 0.0 if self._evictor.is_paused else delay

    def take_over(self) -> None:
        """Promises what an earlier leader frees, and nothing else. A new leader calls this before it decides."""
        if self._planner.is_enabled:
            self._store.preemptions.release_all()  # of an earlier term
            self._promised_at.clear()
            self._is_new_term = True  # its thread may still be in a call of the earlier term
            for plan in self._store.preemptions.under_way():
                self._promise([(plan.pod, _plan_of(plan))])

    def _follow_plans(self) -> None:
        """Promises what kube-scheduler frees. Removes what is left of plans of our own that have been given up."""
        for plan in self._store.preemptions.under_way():
            pod, node = plan.pod, plan.node
            if not plan.units:
                self._clear(pod)
                continue
            is_theirs = pod.nominated_node == node and plan.is_of_kube_scheduler
            if is_theirs and (pod.ref.uid, node) not in self._avoided:
                self._promise([(pod, _plan_of(plan))])

    def _clear(self, pod: Pod) -> None:
        """Removes the annotation of *pod*, which has no promise and for which nobody is evicted: others would be kept
        from growing on that node. kube-scheduler clears a nomination by itself."""
        if PREEMPTING not in pod.annotations or self._clock() < self._clear_from:
            return
        try:
            self._cluster.annotate_pod(
                pod.ref, {PREEMPTING: None}, resource_version=pod.resource_version
            )
        except (NotFound, Conflict):
            pass  # the watch shows what has changed
        except ClusterError as error:
            log.warning(
                "annotation not removed",
                extra={"pod": pod.ref, "annotation": PREEMPTING, "error": error},
            )
            self._clear_from = self._clock() + (RETRY_S if error.is_temporary else REFUSED_S)

    def _plan(self) -> float:
        """Plans for the pods that are due. Returns the seconds until the next look."""
        if (rest_s := self._plan_from - self._clock()) > 0:  # refusals wake the task at any time
            return rest_s
        delay, view = IDLE_S, None
        for pending in self.each(self._attempts.in_order(self._store.preemptions.preemptors())):
            ref, clock, used = pending.pod.ref, self._clock(), self._planner.used()
            if (
                self._planner.is_left_to_kube_scheduler(ref)
                or self._store.preemptions.promise_for(ref.uid) is not None
            ):
                continue  # it may have got a promise with its gang
            if (wait_s := self._attempts.due(pending) - clock) > 0:
                delay = min(delay, wait_s)
                continue
            view = view or self._store.view()
            if self._plan_for(pending, view):
                self._attempts.succeed(ref)
                view = None  # what is held now is taken
            else:
                self._attempts.fail(ref, clock)
            if (pause_s := PAUSES * (self._planner.used() - used)) > 0:
                self._plan_from = self._clock() + pause_s
                return pause_s
        return delay

    def _plan_for(self, pending: PendingPod, view: View) -> bool:
        """Plans for a pod, or for its whole gang, and promises what is freed. Reports whether it does."""
        pod = pending.pod
        try:
            plans = self._plans(pending, view, self._planner.rules())
        except MalformedInput:
            return False  # its next filter says why
        except HamiError as error:
            log.warning("no plan of preemption", extra={"pod": pod.ref, "error": error})
            return False
        frees = any(
            plan.victims for _, plan in plans
        )  # else the pod only waits for pods that are being deleted
        takes_over = not self._store.preemptions.planned_victims().isdisjoint(
            uid for _, plan in plans for uid in plan.awaited
        )
        found = (frees or takes_over) and self._promise(plans)
        self._metrics.preemption("planned" if found else "none")
        return found

    def _plans(self, pending: PendingPod, view: View, rules: PreemptionRules) -> Plans:
        """Returns the plans for the pod, or for the pods that its gang still needs; empty if one has none."""
        pods, clock = self._members(pending.pod, view), self._clock()
        self._avoided = {key: until for key, until in self._avoided.items() if until > clock}
        names = [
            name
            for name in (view.nodes if pending.nodes is None else pending.nodes)
            if (pending.pod.ref.uid, name) not in self._avoided
        ]
        return plan_together(
            view,
            pods,
            names,
            rules,
            before_trial=self._yield,
            planned=self._store.preemptions.planned_victims(pending.pod.priority),
        )

    def _yield(self) -> None:
        self.beat()
        self._planner.leave_to_requests()

    def _members(self, pod: Pod, view: View) -> Sequence[Pod]:
        """Returns the pods that are planned for together, see `pods_together`."""
        if not pod.group:
            return [pod]
        gang = pod.ref.namespace, pod.group
        waiting = [
            other
            for other in self._store.pods.waiting()
            if (other.ref.namespace, other.group) == gang
        ]
        bound = sum(
            (record.ref.namespace, record.group) == gang
            and bool(record.node)
            and not record.terminated
            for record in view.facts.pods.values()
        )
        return pods_together(pod, waiting, bound, self._planner.gang_size(pod))

    def _promise(self, plans: Plans) -> bool:
        """Promises what *plans* free. Reports whether it does."""
        promises = self._store.preemptions.promise(plans)
        for promise in promises:
            self._promised_at[promise.ref.uid] = self._clock()
            log.info(
                "preemption planned",
                extra={"pod": promise.ref, "node": promise.node, "victims": len(promise.victims)},
            )
        return bool(promises)

    def _evict(self, promise: Promise) -> None:
        """Evicts the victims of *promise*, or none of them if the pod fits by now or does not wait any more."""
        units = self._store.evictions.units_of(promise)
        if not units:
            self._store.evictions.mark_evicted(promise)
            return
        try:
            self._nominate(promise)
            evicted = self._evictor.evict(promise, units, self.beat)
        except (EvictionStopped, EvictionPaused):
            return
        except ClusterError as error:
            self._failed(promise, error)
            return
        self._store.evictions.mark_evicted(promise)
        what = (
            f"{evicted} pod{'s' if evicted != 1 else ''} of lower priority evicted"
            if evicted
            else "pods of lower priority are being evicted"
        )
        self._events.record(
            promise.ref,
            "Warning",
            "Preempting",
            (f"{what} on node {promise.node}: the devices that they leave are held for this pod"),
            replaces=True,
        )
        log.info(
            "pods preempted", extra={"pod": promise.ref, "node": promise.node, "victims": evicted}
        )

    def _nominate(self, promise: Promise) -> None:
        """Shows the node to the next leader, kube-scheduler and autoscalers. Raises: ClusterError."""
        try:
            self._cluster.annotate_pod(
                promise.ref, {PREEMPTING: promise.node}
            )  # kube-scheduler may clear a nomination
            if not promise.pod.group:  # kube-scheduler decides on the nodes of a gang as a whole
                self._cluster.nominate(promise.ref, promise.node)
        except ClusterError as error:
            if not isinstance(error, (NotFound, Conflict)) and error.status != 422:
                raise
            log.info(
                "preemption given up",
                extra={"pod": promise.ref, "node": promise.node, "error": error},
            )
            self._store.preemptions.release(promise)  # it is bound or gone, as the watch shows soon
            self._attempts.put_off(promise.ref, self._clock() + RETRY_S)
            raise EvictionStopped(f"pod {promise.ref} waits no longer") from error

    def _failed(self, promise: Promise, error: ClusterError) -> None:
        log.warning(
            "preemption failed", extra={"pod": promise.ref, "node": promise.node, "error": error}
        )
        self._attempts.put_off(promise.ref, self._clock() + RETRY_S)
        if error.status in (400, 403, 422):  # trying again at once does not help
            self._events.record(
                promise.ref,
                "Warning",
                "PreemptionFailed",
                f"no pod can be evicted: {error}",
                replaces=True,
            )
            self._store.preemptions.release(promise)
            self._attempts.put_off(promise.ref, self._clock() + REFUSED_S)

    def _report_ended(self) -> None:
        for promise, end in self._store.preemptions.ended():
            since = self._promised_at.pop(promise.ref.uid, self._clock())
            if end is PromiseEnd.EXPIRED:
                self._avoided[promise.ref.uid, promise.node] = self._clock() + AVOIDED_S
            if end is PromiseEnd.BOUND:
                self._metrics.preemptor_bound(self._clock() - since)
            elif end in _IN_VAIN and promise.stage is not Stage.PLANNED and promise.victims:
                self._metrics.preempted_in_vain()
                log.warning(
                    "pods preempted in vain",
                    extra={"pod": promise.ref, "node": promise.node, "reason": end.value},
                )
            else:
                log.info(
                    "hold ended",
                    extra={"pod": promise.ref, "node": promise.node, "reason": end.value},
                )


def _plan_of(plan: PlanUnderWay) -> PreemptionPlan:
    units = []
    for unit in plan.units:
        uids, priorities = zip(*((record.ref.uid, record.priority) for record in unit))
        units.append(EvictionUnit(uids=uids, priorities=priorities))
    return PreemptionPlan(plan.node, tuple(units))
