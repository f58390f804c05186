"""Writes to the API server that an Allocate call does not wait for, or could not make."""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping

from hami.codec.allocation import render_shares
from hami.codec.keys import BIND_PHASE, NODE_LOCK
from hami.codec.states import names_pod
from hami.errors import ClusterError, Conflict, NotFound
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.kube.retry import CONFLICT_S, brief_retry, is_conflict
from hami.model import BindPhase, Node, PodRef
from hami.plugin.container_match import has_outstanding
from hami.runtime.tasks import Task

log = logging.getLogger(__name__)

ALLOCATION_FAILED = "AllocationFailed"
RETRY_WRITES_S = 2.0
"""Seconds between attempts to make a write."""
CALLS_S = 900.0
"""Seconds for work that calls the API server once for each container, which may hang."""


class DeferredWrites(Task):
    """Queues writes, and makes them in the task's thread; a write that fails stays queued. Threads may share it."""

    def __init__(
        self,
        cluster: Cluster,
        node: str,
        to_allocate: str,
        events: EventRecorder,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """*to_allocate*: the annotation that is cleared on a pod whose allocation fails. *sleep* waits between
        attempts while others keep changing the node."""
        super().__init__("writes", limit_s=CALLS_S)
        self._cluster = cluster
        self._node = node
        self._to_allocate = to_allocate
        self._events = events
        self._retry_conflicts = brief_retry(is_conflict, sleep, first_s=CONFLICT_S)
        # one flush at a time, I/O included, so that no write is made twice
        self._flush_lock = threading.Lock()
        self._lock = threading.Lock()  # guards _writes; never held across I/O
        self._writes: dict[
            PodRef | str, Callable[[], None]
        ] = {}  # by the pod that fails, or the node lock

    def release_lock(self, lock: str, node: Node | None = None) -> None:
        """Queues the release of the node lock *lock*. *node*: the node as last read, which saves a read."""
        self._queue(lock, functools.partial(self._release_lock, lock, node))

    def fail_pod(self, ref: PodRef, reason: str, lock: str | None) -> None:
        """Queues the failure of a pod's allocation, then the release of *lock*, if it holds that node lock."""
        self._queue(ref, functools.partial(self._fail_pod, ref, reason, lock))

    def complete_pod(self, ref: PodRef, other_keys: Collection[str]) -> None:
        """Queues the record that a pod has its devices, then the release of the node lock that names it.

        *other_keys*: to-allocate annotations of other vendors; while one of them lists devices, their plugin is to
        complete the pod.
        """
        self._queue(ref, functools.partial(self._complete_pod, ref, other_keys))

    def record_failure(self, subject: PodRef | str, reason: str) -> None:
        """Records an event about a pod, or about the node of that name, for which an Allocate call failed."""
        self._events.record(subject, "Warning", ALLOCATION_FAILED, reason)

    def step(self) -> float:
        """Makes the queued writes; those that fail are due again after a while."""
        self.flush()
        with self._lock:
            return RETRY_WRITES_S if self._writes else math.inf

    def flush(self, seconds_left: Callable[[], float] = lambda: math.inf) -> bool:
        """Makes all queued writes; returns whether any was made. Logs what fails. Never raises a HamiError.

        *seconds_left*: no write is begun when it returns 0 or less, nor after one that the API server did not answer:
        the next would wait as long.
        """
        if not self._flush_lock.acquire(
            timeout=min(max(seconds_left(), 0.0), threading.TIMEOUT_MAX)
        ):
            return False
        try:
            with self._lock:
                writes = dict(self._writes)
            return self._make(writes, seconds_left)
        finally:
            self._flush_lock.release()

    def _make(
        self, writes: Mapping[PodRef | str, Callable[[], None]], seconds_left: Callable[[], float]
    ) -> bool:
        is_any_made = False
        for key, write in writes.items():
            if seconds_left() <= 0:
                break
            try:
                write()
            except ClusterError as error:
                log.warning("deferred write failed", extra={"subject": str(key), "error": error})
                if error.status is None:
                    break
                continue
            is_any_made = True
            with self._lock:
                if self._writes.get(key) is write:
                    del self._writes[key]
        return is_any_made

    def _queue(self, key: PodRef | str, write: Callable[[], None]) -> None:
        with self._lock:
            self._writes[key] = write
        self.wake()

    def _fail_pod(self, ref: PodRef, reason: str, lock: str | None) -> None:
        try:
            self._cluster.annotate_pod(
                ref, {BIND_PHASE: BindPhase.FAILED.value, self._to_allocate: ""}
            )
            self.record_failure(ref, reason)
        except (NotFound, Conflict):
            pass  # the pod is gone; another pod of that name is not affected
        if (
            lock is not None
        ):  # only now: the next pod must not find devices that are still to be allocated to this one
            self._release_lock(lock, None)

    def _complete_pod(self, ref: PodRef, other_keys: Collection[str]) -> None:
        try:
            finished = self._retry_conflicts(lambda: self._record_allocation(ref, other_keys))
        except NotFound:
            return
        node = self._cluster.node(self._node) if finished else None
        lock = node.annotations.get(NODE_LOCK, "") if node is not None else ""
        if names_pod(lock, ref):
            self._release_lock(lock, node)

    def _record_allocation(self, ref: PodRef, other_keys: Collection[str]) -> bool:
        """Records that the pod has its devices; returns whether no vendor has any left to hand out. Raises: Conflict"""
        pod = self._cluster.pod(ref.namespace, ref.name)
        if (
            pod is None
            or pod.ref.uid != ref.uid
            or pod.annotations.get(BIND_PHASE) != BindPhase.ALLOCATING
        ):
            return False
        finished = not any(has_outstanding(pod, key) for key in other_keys)
        handed_out = {self._to_allocate: render_shares(((),) * len(pod.containers))}
        self._cluster.annotate_pod(
            ref,
            handed_out | ({BIND_PHASE: BindPhase.SUCCESS.value} if finished else {}),
            resource_version=pod.resource_version,
        )
        return finished

    def _release_lock(self, lock: str, node: Node | None) -> None:
        if node is not None:
            try:
                return self._remove_lock(lock, node)
            except Conflict:
                pass
        self._retry_conflicts(lambda: self._remove_lock(lock, self._cluster.node(self._node)))

    def _remove_lock(self, lock: str, node: Node | None) -> None:
        """Releases *lock* unless *node* is locked for another pod by now. Raises: Conflict if the node has changed."""
        if node is not None and node.annotations.get(NODE_LOCK) == lock:
            try:
                self._cluster.annotate_node(node.name, {NODE_LOCK: None}, node.resource_version)
            except NotFound:
                pass
