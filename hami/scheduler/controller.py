"""Carries out what ``reconcile`` decides, and the duties that come with time. Never decides about placing a pod."""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Protocol, TypeVar

from hami.kube.events import Recorder
from hami.kube.lease import LeaderTerm
from hami.cache.cache import Cache, Reservation
from hami.cache.pods import PodRecord
from hami.scheduler.node_lock import NodeLocks
from hami.codec.keys import ASSIGNED_NODE, ROOM
from hami.codec.states import render_request
from hami.scheduler.reconcile import Annotate, Label, Rules, Warn, pod_moves
from hami.runtime.periodic import PeriodicTask
from hami.errors import ClusterError, Conflict, HamiError, NotFound
from hami.model import Node, Pod, PodRef
from hami.vendors.spec import Vendor

__all__ = ["Controller"]

log = logging.getLogger(__name__)

TICK = 1.0  # seconds between rounds
LABEL_EVERY = 15  # rounds between looks at the scheduler's own pods
REQUESTS_A_ROUND = 100  # handshakes written in one round, so that a fresh cluster does not stall placing
REMEMBERED = 10_000  # things that have been told
SCHEDULER_PODS = "app.kubernetes.io/component=hami-scheduler"
RELEASE = ("app.kubernetes.io/name", "app.kubernetes.io/instance")  # what installations in one namespace differ in
ROLE = "hami.io/scheduler-role"

T = TypeVar("T")


class ControllerCalls(Protocol):
    """What the controller needs of the cluster."""

    def pod(self, namespace: str, name: str) -> Pod | None: ...
    def pods_labelled(self, namespace: str, selector: str) -> list[Pod]: ...
    def annotate_pod(self, ref: PodRef, annotations: Mapping[str, str | None],
                     labels: Mapping[str, str | None] = ..., *, resource_version: str = "") -> Pod: ...

    def annotate_node(self, name: str, annotations: Mapping[str, str | None], resource_version: str = "") -> Node: ...


class Controller(PeriodicTask):
    """One loop for all duties. *pod* is the scheduler pod that this process runs in, if that is known."""

    def __init__(self, cluster: ControllerCalls, cache: Cache, locks: NodeLocks, events: Recorder, role: LeaderTerm, rules: Rules, *,
                 pod: tuple[str, str] | None, clock: Callable[[], float], now: Callable[[], datetime]) -> None:
        super().__init__(TICK)
        self._cluster = cluster
        self._cache = cache
        self._locks = locks
        self._events = events
        self._role = role
        self._rules = rules
        self._pod = pod
        self._clock = clock
        self._now = now
        self._told: OrderedDict[tuple[object, str], None] = OrderedDict()
        self._round = 0
        self.requests_written = 0

    def tick(self) -> None:
        """One round. What fails is logged and tried again in the next one; no duty holds up another."""
        for duty in self._duties():
            try:
                duty()
            except ClusterError as error:
                log.warning("duty failed", extra={"duty": duty.__name__.strip("_"), "error": error})
            except Exception:
                log.exception("duty failed", extra={"duty": duty.__name__.strip("_")})
        self._round += 1

    def _duties(self) -> Iterator[Callable[[], None]]:
        """Those of every replica, then those of the leader; asked anew before each, as leadership may end."""
        yield from (self._sweep, self._resolve_unknown_bindings, self._locks.tidy)
        for duty in (self._nudge, self._request_reports, self._look_after_pods, self._reap_locks, self._report_problems,
                     self._label_replicas):
            if self._role.leads_until() > self._clock():
                yield duty

    def _each(self, items: Iterable[T], act: Callable[[T], object]) -> None:
        """*act* on every item; one that cannot be served holds up no other.

        Raises: ClusterError when the API server gives no answer, as it would give the others none.
        """
        for item in items:
            try:
                act(item)
            except (NotFound, Conflict):
                continue  # it is gone, or somebody was faster: the next round sees what has become of it
            except HamiError as error:
                if isinstance(error, ClusterError) and error.status is None:
                    raise
                log.warning("refused", extra={"duty": act.__name__.strip("_"), "error": error})

    def _sweep(self) -> None:
        for reservation in self._cache.sweep():
            log.warning("reservation lapsed", extra={"pod": reservation.ref, "node": reservation.node})

    def _resolve_unknown_bindings(self) -> None:
        """See what became of Bindings that nobody answered."""
        self._each(self._cache.unknown_bindings(), self._resolve_unknown_binding)

    def _resolve_unknown_binding(self, reservation: Reservation) -> None:
        pod = self._cluster.pod(reservation.ref.namespace, reservation.ref.name)
        if pod is not None:
            self._cache.pods.upsert(pod)
        if pod is None or pod.ref.uid != reservation.ref.uid or not pod.node_name:
            self._cache.clear_unknown(reservation)

    def _nudge(self) -> None:
        """Let kube-scheduler know of room that it was told there is not: a node that changes makes it ask again."""
        node = self._cache.missed_room()
        if node is None:
            return
        with contextlib.suppress(NotFound):
            self._cache.nodes.learn(self._cluster.annotate_node(node, {ROOM: f"{self._now():%Y-%m-%dT%H:%M:%S.%fZ}"}))
            log.info("kube-scheduler nudged: a waiting pod has room now", extra={"node": node})

    def _request_reports(self) -> None:
        """PodRequest device plugins to report, where nobody does."""
        self._each(self._cache.nodes.unasked()[:REQUESTS_A_ROUND], self._request_report)

    def _request_report(self, unasked: tuple[str, Vendor]) -> None:
        node, vendor = unasked
        if (known := self._cache.nodes.lock_of(node)) is None:
            return
        # on top of what is known, lest the answer hide a lock that has come and gone meanwhile
        answer = self._cluster.annotate_node(node, {vendor.handshake: render_request(self._now())}, str(known[1]))
        self.requests_written += 1
        self._cache.nodes.upsert(answer)

    def _look_after_pods(self) -> None:
        self._each(self._cache.pods.unsettled(), self._look_after)

    def _look_after(self, record: PodRecord) -> None:
        self._each(pod_moves(record, self._rules, self._now().timestamp()), self._carry_out)

    def _carry_out(self, move: Annotate | Label | Warn) -> None:
        match move:
            case Annotate(ref, version, annotations, reason, message, labels):
                self._cache.pods.upsert(self._cluster.annotate_pod(ref, dict(annotations), dict(labels),
                                                                    resource_version=version))
                log.warning("pod mended", extra={"pod": ref, "reason": reason})
                self._events.record(ref, "Warning", reason, message)
            case Label(ref, node):
                self._cache.pods.upsert(self._cluster.annotate_pod(ref, {}, {ASSIGNED_NODE: node}))
            case Warn(ref, reason, message):
                self._tell(ref, reason, message)

    def _reap_locks(self) -> None:
        """Release locks whose holders have no use for them any more."""
        self._each(self._cache.nodes.locks(), self._reap_lock)

    def _reap_lock(self, locked: tuple[str, str, str]) -> None:
        node, key, text = locked
        if self._locks.reap(node, key):
            log.warning("node lock released, its holder is done", extra={"node": node, "lock": text})

    def _report_problems(self) -> None:
        for (node, vendor), problem in self._cache.nodes.problems().items():
            self._tell(node, "InventoryUnreadable", f"the devices of {vendor} on this node cannot be read: {problem}")

    def _label_replicas(self) -> None:
        """Mark this replica's pod as the leader, for Services that select by it, and no pod of another release."""
        if self._pod is None or self._round % LABEL_EVERY:
            return
        namespace, name = self._pod
        pods = self._cluster.pods_labelled(namespace, SCHEDULER_PODS)
        ours = [_release(pod) for pod in pods if pod.ref.name == name]
        self._each([pod for pod in pods if _release(pod) in ours], self._label_replica)

    def _label_replica(self, pod: Pod) -> None:
        role = "leader" if (pod.ref.namespace, pod.ref.name) == self._pod else "follower"
        if pod.labels.get(ROLE) != role:
            self._cluster.annotate_pod(pod.ref, {}, {ROLE: role})

    def _tell(self, about: PodRef | str, reason: str, message: str) -> None:
        """Record an event and a log line, once for each thing there is to say."""
        key = (about, message)
        if key in self._told:
            return
        self._told[key] = None
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)
        log.warning(reason, extra={"about": about, "detail": message})
        self._events.record(about, "Warning", reason, message)


def _release(pod: Pod) -> tuple[str | None, ...]:
    """What *pod* belongs to, by its labels."""
    return tuple(pod.labels.get(label) for label in RELEASE)
