"""The controller: carries out what ``reconcile`` decides, and the duties that come with time. It never places a pod."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TypeVar

from hami.cache.cache import Cache
from hami.cache.pods import PodRecord
from hami.cache.reservations import Reservation
from hami.codec.keys import ASSIGNED_NODE, ROOM
from hami.codec.states import render_request
from hami.errors import ClusterError, Conflict, HamiError, NotFound
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.model import Pod, PodRef
from hami.runtime.once import OncePerKey
from hami.runtime.periodic import PeriodicTask
from hami.scheduler.leadership import Leadership
from hami.scheduler.node_lock import NodeLocks
from hami.scheduler.reconcile import Annotate, Label, Warn, pod_moves
from hami.scheduler.settings import Settings
from hami.vendors.spec import Vendor

__all__ = ["Controller"]

log = logging.getLogger(__name__)

PERIOD_S = 1.0  # between rounds
LABEL_EVERY = 15  # rounds between looks at the scheduler's own pods
HANDSHAKES_PER_ROUND = 100  # so that a fresh cluster does not delay placing
REPORTED_LIMIT = 10_000  # warnings that are remembered as reported
SCHEDULER_PODS = "app.kubernetes.io/component=hami-scheduler"
RELEASE = ("app.kubernetes.io/name", "app.kubernetes.io/instance")  # labels in which installations differ
ROLE = "hami.io/scheduler-role"

T = TypeVar("T")


class Controller(PeriodicTask):
    """One loop for all duties."""

    def __init__(self, cluster: Cluster, cache: Cache, locks: NodeLocks, events: EventRecorder, leadership: Leadership,
                 settings: Settings, *, now: Callable[[], datetime]) -> None:
        super().__init__(PERIOD_S)
        self._cluster = cluster
        self._cache = cache
        self._locks = locks
        self._events = events
        self._leadership = leadership
        self._settings = settings
        self._now = now
        self._reported = OncePerKey(REPORTED_LIMIT)
        self._round = 0
        self.handshakes_requested = 0

    def tick(self) -> None:
        """Runs one round. A duty that fails is logged and tried again in the next round; the others still run."""
        for duty in self._duties():
            try:
                duty()
            except ClusterError as error:
                log.warning("controller duty failed", extra={"duty": duty.__name__.strip("_"), "error": error})
            except Exception:
                log.exception("controller duty failed", extra={"duty": duty.__name__.strip("_")})
        self._round += 1

    def _duties(self) -> Iterator[Callable[[], None]]:
        """Yields the duties of every replica, then the leader's; leadership may end between any two of them."""
        yield from (self._expire, self._resolve_unknown_bindings, self._locks.retry_releases)
        for duty in (self._remind_kube_scheduler, self._request_reports, self._reconcile_pods, self._release_locks,
                     self._report_problems, self._label_replicas):
            if self._leadership.leads():
                yield duty

    def _for_each(self, items: Iterable[T], act: Callable[[T], object]) -> None:
        """Calls *act* with every item; a failure does not stop the others.

        Raises: ClusterError when the API server does not answer, as the others would fail the same way.
        """
        for item in items:
            try:
                act(item)
            except (NotFound, Conflict):
                continue  # deleted or changed meanwhile: the next round sees what has become of it
            except HamiError as error:
                if isinstance(error, ClusterError) and error.status is None:
                    raise
                log.warning("request failed", extra={"duty": act.__name__.strip("_"), "error": error})

    def _expire(self) -> None:
        for reservation in self._cache.expire():
            log.warning("reservation expired", extra={"pod": reservation.ref, "node": reservation.node})

    def _resolve_unknown_bindings(self) -> None:
        self._for_each(self._cache.reservations.unknown_bindings(), self._resolve_unknown_binding)

    def _resolve_unknown_binding(self, reservation: Reservation) -> None:
        pod = self._cluster.pod(reservation.ref.namespace, reservation.ref.name)
        if pod is not None:
            self._cache.pods.upsert(pod)
        if pod is None or pod.ref.uid != reservation.ref.uid or not pod.node_name:
            self._cache.reservations.clear_unknown(reservation)

    def _remind_kube_scheduler(self) -> None:
        """Annotates a node that a pending pod fits by now: kube-scheduler retries pods when a node changes."""
        node = self._cache.node_for_pending_pod()
        if node is None:
            return
        with contextlib.suppress(NotFound):
            answer = self._cluster.annotate_node(node, {ROOM: f"{self._now():%Y-%m-%dT%H:%M:%S.%fZ}"})
            self._cache.nodes.upsert_unwatched(answer)
            log.info("kube-scheduler reminded of a pending pod", extra={"node": node})

    def _request_reports(self) -> None:
        """Asks device plugins to report."""
        self._for_each(self._cache.nodes.reports_due()[:HANDSHAKES_PER_ROUND], self._request_report)

    def _request_report(self, due: tuple[str, Vendor]) -> None:
        node, vendor = due
        if (known := self._cache.nodes.lock_of(node)) is None:
            return
        # Only if the node is as we know it: the answer would hide a lock that has come and gone meanwhile.
        answer = self._cluster.annotate_node(node, {vendor.handshake: render_request(self._now())}, str(known[1]))
        self.handshakes_requested += 1
        self._cache.nodes.upsert(answer)

    def _reconcile_pods(self) -> None:
        self._for_each(self._cache.pods.unsettled(), self._reconcile_pod)

    def _reconcile_pod(self, record: PodRecord) -> None:
        moves = pod_moves(record, self._cache.vendors, self._settings, self._now().timestamp())
        self._for_each(moves, self._carry_out)

    def _carry_out(self, move: Annotate | Label | Warn) -> None:
        match move:
            case Annotate(ref, version, annotations, reason, message, labels):
                self._cache.pods.upsert(self._cluster.annotate_pod(ref, annotations, labels, resource_version=version))
                log.warning("pod repaired", extra={"pod": ref, "reason": reason})
                self._events.record(ref, "Warning", reason, message)
            case Label(ref, node):
                self._cache.pods.upsert(self._cluster.annotate_pod(ref, {}, {ASSIGNED_NODE: node}))
                log.info("pod labeled", extra={"pod": ref, "node": node})
            case Warn(ref, reason, message):
                self._warn(ref, reason, message)

    def _release_locks(self) -> None:
        """Releases locks whose holders no longer need them."""
        self._for_each(self._cache.nodes.locks(), self._release_lock)

    def _release_lock(self, found: tuple[str, str, str]) -> None:
        node, key, text = found
        if self._locks.release_unneeded(node, key):
            log.warning("node lock released, its holder is done", extra={"node": node, "lock": text})

    def _report_problems(self) -> None:
        for (node, vendor), problem in self._cache.nodes.problems().items():
            self._warn(node, "InventoryUnreadable", f"the devices of {vendor} on this node cannot be read: {problem}")

    def _label_replicas(self) -> None:
        """Labels this replica's pod as the leader and the other pods of its release as followers, for Services."""
        if not self._settings.pod_name or self._round % LABEL_EVERY:
            return
        pods = self._cluster.pods_labelled(self._settings.pod_namespace, SCHEDULER_PODS)
        ours = [_release(pod) for pod in pods if pod.ref.name == self._settings.pod_name]
        self._for_each([pod for pod in pods if _release(pod) in ours], self._label_replica)

    def _label_replica(self, pod: Pod) -> None:
        role = "leader" if pod.ref.name == self._settings.pod_name else "follower"
        if pod.labels.get(ROLE) != role:
            self._cluster.annotate_pod(pod.ref, {}, {ROLE: role})

    def _warn(self, about: PodRef | str, reason: str, message: str) -> None:
        """Records an event and a log line, once for each message."""
        if self._reported.is_new((about, message)):
            log.warning("pod or node needs attention", extra={"about": about, "reason": reason, "detail": message})
            self._events.record(about, "Warning", reason, message)


def _release(pod: Pod) -> tuple[str | None, ...]:
    """Returns the values of the labels that name *pod*'s release."""
    return tuple(pod.labels.get(label) for label in RELEASE)
