"""Admit, filter, bind: read what is known, decide, write the outcome, tell it in one event.

Each verb takes records and returns records; bytes and HTTP are the web's business.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from hami.kube.events import Recorder
from hami.kube.lease import LeaderTerm
from hami.cache.cache import Cache, Reservation
from hami.scheduler.node_lock import NodeLocks
from hami.codec.admission import Review
from hami.codec.keys import is_scheduler_owned
from hami.codec.objects import parse_pod
from hami.errors import ClusterError, Conflict, HamiError, MalformedInput, NodeLocked, NotFound
from hami.model import Node, Pod, PodRef
from hami.scheduling.decide import Choice, Refusal
from hami.scheduling.explain import describe, nodes_by_reason, summarize
from hami.vendors.admission import admit
from hami.vendors.request import asks
from hami.vendors.spec import Admission, Catalog, Vendor

__all__ = ["Admitted", "Binder", "Denied", "Filtered", "VerbMetrics", "Verbs"]

log = logging.getLogger(__name__)

TURN_PATIENCE = 5.0  # seconds that a filter waits for this replica to lead
BIND_DEADLINE = 25.0  # seconds; below the 30 s that kube-scheduler waits
BIND_TIMEOUT = 10.0  # seconds that a Binding may take where the leadership lasts longer
LEASE_SLACK = 2.0  # seconds after the end of our leadership in which nobody else can lead yet
UNREGISTERED = "node unregistered"


@dataclass(frozen=True, slots=True)
class Admitted:
    """The pod may come in, as *pod* (the same object: unchanged)."""

    pod: Mapping[str, Any]
    message: str = ""


@dataclass(frozen=True, slots=True)
class Denied:
    """The pod may not come in; *code* is the HTTP status that its author is shown."""

    message: str
    code: int = 403


@dataclass(frozen=True, slots=True)
class Filtered:
    """The nodes that remain (``None``: none), why others do not, and which of the nodes offered was chosen."""

    names: list[str] | None
    failed: Mapping[str, str]
    chosen: str | None = None


class _OutcomeUnknown(ClusterError):
    """A Binding was sent, and nobody can say whether it was written."""


class _Overtaken(Conflict):
    """Somebody else has bound the pod to the same node, with other devices."""


class Binder(Protocol):
    """What binding needs of the cluster."""

    def pod(self, namespace: str, name: str) -> Pod | None: ...
    def pods_on(self, node: str) -> list[Pod]: ...
    def bind(self, ref: PodRef, node: str, annotations: Mapping[str, str], labels: Mapping[str, str], *,
             timeout: float | None = None) -> None: ...


class AwaitableTerm(LeaderTerm, Protocol):
    """Whether this replica acts, and until when (a time on the steady clock)."""

    def await_turn(self, timeout: float) -> bool: ...


class VerbMetrics(Protocol):
    """Who counts refusals and waits."""

    def refused(self, reason: str) -> None: ...
    def lock_wait(self, seconds: float) -> None: ...


class Verbs:
    """What kube-scheduler and the API server ask of us."""

    def __init__(self, cache: Cache, locks: NodeLocks, cluster: Binder, events: Recorder, turn: AwaitableTerm, meter: VerbMetrics, *,
                 scheduler_name: str, force_overwrite: bool, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._locks = locks
        self._cluster = cluster
        self._events = events
        self._acting = turn
        self._metrics = meter
        self._scheduler_name = scheduler_name
        self._force_overwrite = force_overwrite
        self._clock = clock
        self._idle = threading.Condition()
        self._binding = 0

    def admit(self, review: Review) -> Admitted | Denied:
        """What becomes of the pod in *review*.

        Source: HAMi v2.10, pkg/scheduler/webhook.go, Handle; forged annotations are refused beyond that.
        """
        pod = review.pod
        if not pod:
            return Denied("there is no content to decode", 400)
        try:
            known = parse_pod(msgspec.json.encode(pod))
        except (MalformedInput, TypeError) as error:
            return Denied(str(error), 400)
        spec = pod.get("spec") or {}
        if not spec.get("containers"):
            return Denied("pod has no containers")
        if forged := next((key for key in (*known.annotations, *known.labels) if is_scheduler_owned(key)), None):
            return Denied(f"{forged} is written by the HAMi scheduler alone and may not be set on a new pod")
        if self._belongs_elsewhere(known.scheduler_name):
            return Admitted(pod, "pod already has different scheduler assigned")
        try:
            after, found = _mutate(self._cache.vendors, pod)
        except MalformedInput as error:
            return Denied(str(error), 500)
        if found and (name := _privileged(spec)) is not None:
            return Denied(f"container {name} is privileged")
        if found and self._scheduler_name:
            if known.scheduler_name != self._scheduler_name:
                after = {**after, "spec": {**after["spec"], "schedulerName": self._scheduler_name}}
            if known.node_name:
                return Denied("pod has node assigned")
        namespace = review.namespace or known.ref.namespace
        if not self._cache.covers(namespace, known if after is pod else parse_pod(msgspec.json.encode(after))):
            return Denied("exceeding resource quota")
        return Admitted(after)

    def filter(self, pod: Pod, names: Sequence[str] | None) -> Filtered:
        """The one node of *names* that shall run *pod*, its devices reserved; all of them when it asks for none.

        Raises: HamiError; the pod is then tried again.
        """
        if not pod.ref.uid:
            raise MalformedInput("Pod.metadata.uid", "", "a pod without uid cannot be scheduled")
        if not self._acting.await_turn(TURN_PATIENCE):
            raise NodeLocked("this replica of the scheduler does not lead yet")
        try:
            answer = self._cache.choose(pod, names or ())
        except MalformedInput as error:
            text = f"calcScore failed {error} for pod {pod.ref.name}"
            self._events.record(pod.ref, "Warning", "FilteringFailed", text)
            raise MalformedInput(error.field, error.text, error.problem, says=text) from error
        if answer is None:
            return Filtered(list(names) if names is not None else None, {})
        if isinstance(answer, Refusal):
            return self._refused(pod, answer)
        self._events.record(pod.ref, "Normal", "FilteringSucceed", _success(answer))
        log.info("filtered", extra={"pod": pod.ref, "node": answer.node, "candidates": answer.candidates})
        return Filtered([answer.node], {}, answer.node)

    def simulate(self, pod: Pod, nodes: Sequence[Node]) -> Filtered:
        """What :meth:`filter` would say if the cluster were *nodes* and empty. Nothing is reserved or written.

        Raises: HamiError.
        """
        answer = self._cache.simulate(pod, nodes)
        if answer is None:
            return Filtered(None, {})
        choice, refusal = answer
        return Filtered([choice.node] if choice else None, _failed(refusal), choice.node if choice else None)

    def bind(self, ref: PodRef, node: str) -> None:
        """Bind the pod to *node* with what was reserved for it, when the node's turn comes.

        Raises: HamiError; nothing is left behind then, and the pod will be tried again.
        """
        try:
            with self._counted():
                self._bind(ref, node)
        except HamiError as error:
            log.warning("bind failed", extra={"pod": ref, "node": node, "error": error})
            self._events.record(ref, "Warning", "BindingFailed", str(error))
            raise
        log.info("bound", extra={"pod": ref, "node": node})
        self._events.record(ref, "Normal", "BindingSucceed", f"Successfully binding node [{node}] to {ref}")

    def drain(self, timeout: float) -> bool:
        """Wait at most *timeout* seconds until no bind is in progress; whether that came about."""
        with self._idle:
            return self._idle.wait_for(lambda: self._binding == 0, timeout)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        with self._idle:
            self._binding += 1
        try:
            yield
        finally:
            with self._idle:
                self._binding -= 1
                self._idle.notify_all()

    def _bind(self, ref: PodRef, node: str) -> None:
        deadline = self._clock() + BIND_DEADLINE
        if self._cache.reservation(ref.uid) is None:
            if self._cache.is_bound(ref.uid, node):
                return  # asked again, because the answer did not arrive
            if self._asks_nothing(ref):
                self._cluster.bind(ref, node, {}, {})
                return
        reservation = self._cache.begin_bind(ref, node)
        try:
            with self._turn(reservation, deadline):
                self._write(reservation)
        except BaseException as error:
            self._cache.give_up(reservation, drop=isinstance(error, (NotFound, Conflict)))
            raise
        self._cache.bound(reservation)

    @contextlib.contextmanager
    def _turn(self, reservation: Reservation, deadline: float) -> Iterator[None]:
        """Hold the node's lock. On success the device plugin releases it; else nothing is left behind."""
        if not reservation.locks_node:
            yield
            return
        node, ref = reservation.node, reservation.ref
        begun = self._clock()
        try:
            self._locks.take(node, ref, deadline, lambda: self._cache.is_current(reservation), reservation.locks)
        finally:
            self._metrics.lock_wait(self._clock() - begun)
        try:
            yield
        except (_OutcomeUnknown, _Overtaken):
            # the pod may be bound here, and its device plugin needs the lock
            self._locks.settled(node, reservation.locks)
            raise
        except BaseException:
            self._locks.release(node, ref, reservation.locks)
            raise
        self._locks.settled(node, reservation.locks)

    def _write(self, reservation: Reservation) -> None:
        """Write the Binding, after a last look at what is known."""
        if reservation.locks_node:
            self._look_around(reservation.node)
            if self._cache.is_bound(reservation.ref.uid, reservation.node):
                return  # by an earlier attempt that had no answer
        leads_for = self._acting.leads_until() - self._clock()
        if leads_for <= 0:
            raise NodeLocked("this replica of the scheduler leads no more")
        annotations = self._cache.confirm(reservation)
        timeout = leads_for + LEASE_SLACK  # its successor must not find it on the way
        try:
            self._cluster.bind(reservation.ref, reservation.node, annotations, reservation.labels,
                               timeout=timeout if timeout < BIND_TIMEOUT else None)
        except ClusterError as error:
            refused = error.status is not None and error.status < 500
            if refused and not isinstance(error, Conflict):
                raise
            self._find_out(reservation, error, refused)

    def _look_around(self, node: str) -> None:
        """See what another process may have bound to *node* lately."""
        nodes = self._cache.nodes
        if not nodes.mark_foreign(node, False):
            return
        try:
            for pod in self._cluster.pods_on(node):
                self._cache.pods.upsert(pod)
        except HamiError:
            nodes.mark_foreign(node, True)
            raise

    def _find_out(self, reservation: Reservation, error: ClusterError, refused: bool) -> None:
        """See what has become of a Binding: it was *refused* because of what others did, or nobody has answered.

        Returns if it was written. Raises: _OutcomeUnknown while it may yet be, Conflict or NotFound when it never will be.
        """
        ref = reservation.ref
        doubted_before = self._cache.mark_unknown(reservation)
        try:
            pod = self._cluster.pod(ref.namespace, ref.name)
        except HamiError as unseen:
            log.warning("cannot see whether the pod was bound", extra={"pod": ref, "error": unseen})
            raise _OutcomeUnknown(f"pod {ref}: no answer whether it was bound: {error}") from error
        if pod is None or pod.ref.uid != ref.uid:
            raise NotFound(f'pod "{ref.name}" not found', 404) from error
        self._cache.pods.upsert(pod)
        if not pod.node_name:
            if refused and not doubted_before:
                raise error
            raise _OutcomeUnknown(f"pod {ref}: no answer whether it was bound: {error}") from error
        if pod.node_name != reservation.node:
            raise Conflict(f"pod {ref} is already bound to node {pod.node_name}", 409) from error
        if not self._cache.is_kept(reservation, pod):
            raise _Overtaken(f"pod {ref} is already bound to node {pod.node_name} with other devices", 409) from error

    def _asks_nothing(self, ref: PodRef) -> bool:
        """The pod asks for no device, so it is bound as it is."""
        if (record := self._cache.pods.get(ref.uid)) is not None:
            return not record.asks
        pod = self._cluster.pod(ref.namespace, ref.name)
        if pod is None or (ref.uid and pod.ref.uid != ref.uid):
            raise NotFound(f'pod "{ref.name}" not found', 404)
        return not asks(self._cache.vendors, pod.containers)

    def _belongs_elsewhere(self, scheduler: str) -> bool:
        if not scheduler or scheduler == self._scheduler_name:
            return False
        return scheduler != "default-scheduler" or not self._force_overwrite

    def _refused(self, pod: Pod, refusal: Refusal) -> Filtered:
        failed, by_reason = _failed(refusal), nodes_by_reason(refusal)
        for reason in by_reason:
            self._metrics.refused(reason)
        for text in summarize(by_reason):
            self._events.record(pod.ref, "Warning", "FilteringFailed", text)
        self._events.record(pod.ref, "Warning", "FilteringFailed",
                            f"no available node, {len(failed)} nodes do not meet")
        self._events.record(pod.ref, "Warning", "FilteringFailed", describe(refusal, self._cache.node_views))
        log.info("no node fits", extra={"pod": pod.ref, "nodes": len(failed)})
        return Filtered(None, failed)


def _failed(refusal: Refusal) -> dict[str, str]:
    return {**{name: str(unfit) for name, unfit in refusal.unfit.items()},
            **{name: UNREGISTERED for name in refusal.unknown}}


def _success(choice: Choice) -> str:
    """Upstream's sentence, with what was judged: not every node is, when there are many."""
    scores = ",".join(f"{name}:{score:.2f}" for name, score in choice.fitting)
    return f"find fit node({choice.node}), {choice.unfit} nodes not fit, {len(choice.fitting)} nodes fit({scores})"


def _mutate(vendors: Catalog, pod: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """*pod* as admission makes it (the same object when nothing changes), and whether it asks for devices."""
    found = False
    for field in ("initContainers", "containers"):
        for place, container in enumerate(pod["spec"].get(field) or ()):
            for vendor in _concerned(vendors, container):
                admission = admit(vendor, pod, pod["spec"][field][place])
                pod = _changed(pod, field, place, admission)
                found = found or admission.found
    return pod, found


def _concerned(vendors: Catalog, container: Mapping[str, Any]) -> Sequence[Vendor]:
    """The vendors that have a say about *container*."""
    resources = container.get("resources") or {}
    asked = vendors.asked_by(resources.get("limits") or {}, resources.get("requests") or {})
    return asked + tuple(vendor for vendor in vendors.admitting_all if vendor not in asked)


def _changed(pod: Mapping[str, Any], field: str, place: int, admission: Admission) -> Mapping[str, Any]:
    spec, metadata = pod["spec"], pod.get("metadata") or {}
    if admission.container is not spec[field][place]:
        spec = {**spec, field: [*spec[field][:place], admission.container, *spec[field][place + 1:]]}
    if admission.pod_spec:
        spec = {**spec, **admission.pod_spec}
    if admission.annotations:
        metadata = {**metadata, "annotations": {**(metadata.get("annotations") or {}), **admission.annotations}}
        pod = {**pod, "metadata": metadata}
    return pod if spec is pod["spec"] else {**pod, "spec": spec}


def _privileged(spec: Mapping[str, Any]) -> str | None:
    """The name of the first container that is privileged, init containers first."""
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        context = container.get("securityContext")
        if isinstance(context, dict) and context.get("privileged") is True:
            return str(container.get("name") or "")
    return None
