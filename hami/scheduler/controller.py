"""The controller: repairs pods as ``reconcile`` decides, and does the periodic duties. It never places a pod."""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from hami.codec.keys import ASSIGNED_NODE, ROOM
from hami.codec.node_template import VENDOR as NVIDIA
from hami.codec.states import render_request
from hami.codec.times import render_micro_time
from hami.errors import ClusterError, Conflict, HamiError, NotFound
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.model import Device, Pod, PodRef
from hami.runtime.once import OncePerKey
from hami.runtime.tasks import Task
from hami.scheduler.leadership import Leadership
from hami.scheduler.locks import NodeLocks
from hami.scheduler.quota_reports import QuotaReports
from hami.scheduler.reconcile import Move, pod_moves
from hami.scheduler.rejected_pods import RejectedPods
from hami.scheduler.settings import OWNED, Settings
from hami.scheduler.wish_reports import WishReports
from hami.state.read_pod import PodRecord
from hami.state.store import Store

log = logging.getLogger(__name__)

PERIOD_S = 1.0  # between rounds
LABEL_EVERY = 15  # rounds between looks at the scheduler's own pods
TWINS_EVERY = 15  # rounds between looks at all devices
HANDSHAKES_PER_ROUND = 100  # so that a fresh cluster does not delay placing
READS_PER_ROUND = 100  # of pods that the watch has not shown
REPORTED_LIMIT = 10_000  # warnings that are remembered as reported
SCHEDULER_PODS = "app.kubernetes.io/component=hami-scheduler"
RELEASE = ("app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/managed-by")
"""Labels that tell installations apart. The pods of HAMi's chart lack the last one, and ours have it: where a release
of HAMi is replaced by ours under the same name, this label tells their pods apart."""
ROLE = "hami.io/scheduler-role"


class Controller(Task):
    """One task for all duties."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        locks: NodeLocks,
        events: EventRecorder,
        leadership: Leadership,
        settings: Settings,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        super().__init__("controller")
        self._cluster = cluster
        self._store = store
        self._locks = locks
        self._events = events
        self._leadership = leadership
        self._settings = settings
        self._clock = clock
        self._now = now
        self._reported = OncePerKey(REPORTED_LIMIT)
        self._round = 0
        self._quota_reports = QuotaReports(store.quotas, store.vendors, events)
        self._wish_reports = WishReports(store, events, leadership, settings)
        self._rejected_pods = RejectedPods(
            cluster,
            store.pods,
            events,
            is_cleaned=settings.clean_rejected == OWNED,
            clock=clock,
        )
        self.handshakes_requested = 0

    def step(self) -> float:
        """Runs one round. A duty that fails is logged and tried again in the next round; the others still run."""
        for duty in self.each(self._duties()):
            try:
                duty()
            except ClusterError as error:
                log.warning(
                    "controller duty failed",
                    extra={"duty": duty.__name__.strip("_"), "error": error},
                )
            except Exception:
                log.exception("controller duty failed", extra={"duty": duty.__name__.strip("_")})
        self._round += 1
        return PERIOD_S

    def _duties(self) -> Iterator[Callable[[], None]]:
        """Yields the duties of every replica, then the leader's; leadership may end between any two of them."""
        yield self._expire
        # while a list is read, each round would count all pods again
        if self._store.pods.is_listed:
            yield self._store.learn
        yield from (
            self._resolve_unknown_bindings,
            self._read_unshown_pods,
            self._report_edits,
            self._wish_reports.report_pods,
            self._locks.forget_unused,
        )
        for duty in (
            self._remind_kube_scheduler,
            self._request_reports,
            self._reconcile_pods,
            self._release_locks,
            self._report_problems,
            self._quota_reports.report,
            self._wish_reports.report_nodes,
            self._rejected_pods.settle,
            self._label_replicas,
        ):
            if self._leadership.leads():
                yield duty

    def _expire(self) -> None:
        for promise in self._store.expire():
            log.warning("reservation expired", extra={"pod": promise.ref, "node": promise.node})

    def _resolve_unknown_bindings(self) -> None:
        for promise in self.each(self._store.open_bindings.unknown()):
            with _one_may_fail("resolve_unknown_binding"):
                pod = self._cluster.pod(promise.ref.namespace, promise.ref.name)
                if pod is not None:
                    self._store.pods.upsert(pod)
                if pod is None or pod.ref.uid != promise.ref.uid or not pod.node_name:
                    self._store.open_bindings.clear_unknown(promise)

    def _read_unshown_pods(self) -> None:
        """Ends the reservations of pods that do not exist: whoever may call /filter can name any. Only the API server
        knows whether they do, since the watch may be late."""
        for promise in self.each(self._store.open_bindings.unshown()[:READS_PER_ROUND]):
            with _one_may_fail("read_unshown_pod"):
                pod = self._cluster.pod(promise.ref.namespace, promise.ref.name)
                if pod is not None and pod.ref.uid == promise.ref.uid:
                    self._store.pods.upsert(pod)
                else:
                    self._store.pods.remove(promise.pod)
                    log.warning(
                        "reservation ended, its pod does not exist",
                        extra={
                            "pod": promise.ref,
                            "uid": promise.ref.uid,
                            "node": promise.node,
                        },
                    )

    def _report_edits(self) -> None:
        """Tells of edits of bound pods' allocations. Only the leader does, but every replica sees them."""
        edited = self._store.pods.take_edited()
        for ref in edited if self._leadership.leads() else ():
            record = self._store.pods.named(ref.namespace, ref.name)
            if record is None or _is_of_another_scheduler(record, self._store):
                continue
            log.warning("edit of an allocation refused", extra={"pod": ref})
            self._events.record(
                ref,
                "Warning",
                "AllocationEditRefused",
                (
                    "the annotations of the pod's allocation were changed after it was "
                    "bound: it still holds the devices "
                    "that its Binding named"
                ),
            )

    def _remind_kube_scheduler(self) -> None:
        """Annotates a node that a pending pod fits by now: kube-scheduler retries pods when a node changes."""
        node = self._store.filtering.node_for_pending_pod()
        if node is None:
            return
        with contextlib.suppress(NotFound):
            answer = self._cluster.annotate_node(node, {ROOM: render_micro_time(self._now())})
            self._locks.watched.upsert_unwatched(answer)
            log.info("kube-scheduler reminded of a pending pod", extra={"node": node})

    def _request_reports(self) -> None:
        """Asks device plugins to report."""
        for node, vendor in self.each(self._store.nodes.reports_due()[:HANDSHAKES_PER_ROUND]):
            current = self._store.nodes.lock_of(node)
            if current is None:
                continue
            with _one_may_fail("request_report"):
                # only if the node is as the store has it: the answer would hide a lock that was set and removed
                request = {vendor.annotations.handshake: render_request(self._now())}
                answer = self._cluster.annotate_node(node, request, str(current[1]))
                self.handshakes_requested += 1
                self._locks.watched.upsert(answer)

    def _reconcile_pods(self) -> None:
        for record in self.each(self._store.pods.unsettled()):
            if _is_of_another_scheduler(record, self._store):
                continue
            for move in pod_moves(record, self._store.vendors, self._settings, self._clock()):
                with _one_may_fail("reconcile_pod"):
                    self._carry_out(move)

    def _carry_out(self, move: Move) -> None:
        if not move.annotations and not move.labels:
            self._warn(move.ref, move.reason, move.message)
            return
        self._store.pods.upsert(
            self._cluster.annotate_pod(
                move.ref, move.annotations, move.labels, resource_version=move.version
            )
        )
        if move.reason:
            log.warning("pod repaired", extra={"pod": move.ref, "reason": move.reason})
            self._events.record(move.ref, "Warning", move.reason, move.message)
        else:
            log.info("pod labeled", extra={"pod": move.ref, "node": move.labels[ASSIGNED_NODE]})

    def _release_locks(self) -> None:
        """Releases locks whose holders no longer need them."""
        for node, key, text in self.each(self._store.nodes.locks()):
            with _one_may_fail("release_lock"):
                if self._locks.release_unneeded(node, key):
                    log.warning(
                        "node lock released, its holder is done", extra={"node": node, "lock": text}
                    )

    def _report_problems(self) -> None:
        for (node, vendor), problem in self._store.nodes.problems().items():
            self._warn(
                node,
                "InventoryUnreadable",
                f"the devices of {vendor} on this node cannot be read: {problem}",
            )
        if self._round % TWINS_EVERY:
            return
        for uuid, names in _registered_twice(self._store.nodes.registered()):
            for name in names:
                text = f"{uuid} is registered by the nodes {', '.join(names)}: delete the Node that is gone"
                self._warn(name, "CardRegisteredTwice", text)

    def _label_replicas(self) -> None:
        """Labels this replica's pod as the leader and the other pods of its release as followers, for Services."""
        if not self._settings.pod_name or self._round % LABEL_EVERY:
            return
        pods = self._cluster.pods_labeled(self._settings.pod_namespace, SCHEDULER_PODS)
        ours = [_release(pod) for pod in pods if pod.ref.name == self._settings.pod_name]
        for pod in self.each(pods):
            role = "leader" if pod.ref.name == self._settings.pod_name else "follower"
            if _release(pod) in ours and pod.labels.get(ROLE) != role:
                with _one_may_fail("label_replica"):
                    self._cluster.annotate_pod(pod.ref, {}, {ROLE: role})

    def _warn(self, about: PodRef | str, reason: str, message: str) -> None:
        """Records an event and a log line, once for each message."""
        if self._reported.is_new((about, message)):
            log.warning(
                "pod or node needs attention",
                extra={"about": about, "reason": reason, "detail": message},
            )
            self._events.record(about, "Warning", reason, message)


def _registered_twice(
    nodes: Iterable[tuple[str, object, Iterable[Device]]],
) -> Iterator[tuple[str, list[str]]]:
    """Yields GPUs that several nodes register, with these: a machine has joined again under another name, and the Node
    of the earlier one is left. The UUIDs of other vendors may not be unique."""
    of_gpus: dict[str, set[str]] = defaultdict(set)
    for name, _, devices in nodes:
        for device in devices:
            if device.vendor == NVIDIA:
                of_gpus[device.uuid].add(name)
    for uuid, names in of_gpus.items():
        if len(names) > 1:
            yield uuid, sorted(names)


def _is_of_another_scheduler(record: PodRecord, store: Store) -> bool:
    """Reports whether the pod is on a node that this scheduler does not watch."""
    return bool(record.node) and not store.nodes.is_known(record.node)


@contextlib.contextmanager
def _one_may_fail(duty: str) -> Iterator[None]:
    """Logs a failure, so that it does not stop the items that follow.

    Raises: ClusterError when the API server does not answer or is too busy: the others would fail the same way.
    """
    try:
        yield
    except (NotFound, Conflict):
        pass  # deleted or changed meanwhile: the next round sees the new state
    except HamiError as error:
        if isinstance(error, ClusterError) and error.status in (None, 429):
            raise
        log.warning("request failed", extra={"duty": duty, "error": error})


def _release(pod: Pod) -> tuple[str | None, ...]:
    """Returns the values of the labels that name *pod*'s release."""
    return tuple(pod.labels.get(label) for label in RELEASE)
