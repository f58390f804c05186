"""The node locks: on each node, one pod at a time waits for its device plugin.

A lock is an annotation of the node that device plugins read. Other schedulers use it too, and it outlives a process.
Each vendor names the key of its lock. Most use ``hami.io/mutex.lock``, whose value names the pod that holds it. The
value of a vendor's own key is only a time; such a lock ends when it is removed or expires.

Binds of this process wait for a lock in a queue. The first takes it with one compare-and-swap when the node watch shows
it free. A lock is taken over only when its holder has finished, is gone, or has been revoked. To revoke a pod is to
clear its to-allocate annotations, so that no device plugin can allocate them any more.
"""

from __future__ import annotations

import enum
import logging
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from hami.cache.binding import failed_allocation
from hami.cache.cache import Cache
from hami.codec.keys import BIND_PHASE, NODE_LOCK
from hami.codec.states import parse_lock, render_lock
from hami.errors import ClusterError, Conflict, MalformedInput, NodeLocked, NotFound
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.model import BindPhase, Pod, PodRef
from hami.scheduler.lock_queue import LockId, LockQueue

log = logging.getLogger(__name__)

RECHECK_S = 1.0  # the first in the queue looks at the lock's holder this often
ATTEMPTS = 5  # conflicts in a row, each followed by a fresh look at the node

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")  # names that a namespace or a pod can have


@dataclass(frozen=True, slots=True)
class LockTimeouts:
    """Seconds after which a lock may be taken over.

    *allocation*: the holder has not been allocated its devices. *unbound*: the holder has not been bound (a bind gives
    up long before). *inherited*: the same for a lock that is older than this replica's term: its writer can send no
    Binding any more. *finished*: the holder has finished, and its device plugin should have released the lock.
    *deleted*: the holder was deleted after it was bound and before its device plugin answered. Its kubelet may still
    call Allocate for it, and a plugin that trusts the lock would then serve the next holder's devices to that call, and
    be one pod off from there on. A kubelet hears of a deletion within a second; the rest is for a slow one.
    """

    allocation: float = 300.0
    unbound: float = 40.0
    inherited: float = 2.0
    finished: float = 5.0
    deleted: float = 10.0


VENDOR_TIMEOUTS = LockTimeouts(allocation=120.0)  # of vendors' own locks. Source: HAMi v2.10, cambricon/device.go


@dataclass(slots=True)
class _LockState:
    """The state of one lock in this process.

    *claimed*: one of our threads works on it. *releasable*: the lock that this thread may release. *leftover*: a lock
    that this process may have failed to release. *first_seen*: the text seen last and when it was seen first.
    *holder_gone*: the text whose holder was found deleted last, and since when. *written*: the text that we wrote last,
    and the uid of its pod.
    """

    claimed: bool = False
    releasable: str = ""
    leftover: str | None = None
    first_seen: tuple[str, float] = ("", 0.0)
    holder_gone: tuple[str, float] = ("", 0.0)
    written: tuple[str, str] = ("", "")


class _Need(enum.Enum):
    """Whether the holder still needs its lock."""

    NEEDED = "needed"
    DONE = "done"
    OVERDUE = "overdue"  # the holder has to be revoked first


@dataclass(frozen=True, slots=True)
class _FoundLock:
    """Seconds since a lock was written (*age*) and since this process has seen it.

    *inherited_for*: for how long this replica has led and seen the lock; 0 if the lock may be from its own term.
    """

    lock: LockId
    age: float
    seen_for: float
    inherited_for: float


class NodeLocks:
    """The locks of all nodes.

    *leading_since* returns when this replica's term began. *_mutex* guards the claims; a claim, not the mutex, is held
    across I/O, so at most one of our threads works on a lock.
    """

    def __init__(self, cluster: Cluster, cache: Cache, queue: LockQueue, events: EventRecorder, timeouts: LockTimeouts,
                 *, leading_since: Callable[[], datetime], clock: Callable[[], float],
                 now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._nodes = cache.nodes
        self._pods = cache.pods
        self._queue = queue
        self._events = events
        self._lock_timeouts = timeouts
        self._leading_since = leading_since
        self._clock = clock
        self._now = now
        self._revoked = failed_allocation(cache.vendors)
        self._vendors = cache.vendors
        self._mutex = threading.Lock()
        self._states: defaultdict[LockId, _LockState] = defaultdict(_LockState)

    def acquire(self, node: str, keys: Sequence[str], ref: PodRef, deadline: float,
                is_wanted: Callable[[], bool]) -> None:
        """Takes the locks *keys* of *node* for the pod, one after the other in the order of the keys.

        *is_wanted* is called whenever there is news. If it is false, or at *deadline* (monotonic clock), or when the
        process stops, no lock is left behind.
        Raises: NodeLocked; ClusterError when the API server fails.
        """
        taken: list[str] = []
        try:
            for key in sorted(keys):
                self._acquire(LockId(node, key), ref, deadline, is_wanted)
                taken.append(key)
        except BaseException:
            self.release(node, taken, ref)
            raise

    def release(self, node: str, keys: Sequence[str], ref: PodRef) -> None:
        """Removes locks whose pod was not bound. A failed release is retried by :meth:`retry_releases`."""
        for lock in (LockId(node, key) for key in keys):
            state = self._states[lock]
            try:
                self._remove(lock, state.releasable)
            except ClusterError as error:
                log.warning("node lock not released, will retry", extra={"node": node, "pod": ref, "error": error})
                state.leftover = state.releasable
            finally:
                self._unclaim(lock)

    def hand_over(self, node: str, keys: Sequence[str]) -> None:
        """Leaves the locks to the device plugin, which releases them after it has allocated the pod's devices."""
        for key in keys:
            self._unclaim(LockId(node, key))

    def retry_releases(self) -> None:
        """Releases locks that could not be released before. Raises: ClusterError if the API server does not answer."""
        with self._mutex:
            leftovers = [(lock, state) for lock, state in self._states.items() if state.leftover is not None]
        for lock, state in leftovers:
            text = state.leftover
            if text is None or not self._claim(lock):
                continue  # the thread that works on the lock takes it over or leaves it as it is
            try:
                self._read(lock)
                self._remove(lock, text)
                state.leftover = None
            except ClusterError as error:
                if error.status is None:
                    raise
                log.warning("node lock still not released", extra={"node": lock.node, "error": error})
            finally:
                self._unclaim(lock)

    def release_unneeded(self, node: str, key: str = NODE_LOCK) -> bool:
        """Releases the lock if its holder no longer needs it. Reports whether it was released."""
        lock, known = LockId(node, key), self._nodes.lock_of(node, key)
        if known is None or known[0] is None or not self._claim(lock):
            return False
        try:
            if not self._is_free(lock, known[0]):
                return False
            self._nodes.upsert_answer(self._cluster.annotate_node(node, {key: None}, str(known[1])))
            return True
        finally:
            self._unclaim(lock)

    def _acquire(self, lock: LockId, ref: PodRef, deadline: float, is_wanted: Callable[[], bool]) -> None:
        with self._queue.join(lock, ref) as waiter:
            while True:
                waiter.woken.clear()  # before looking: news that comes meanwhile makes us look again
                if self._queue.closed:
                    raise NodeLocked(f"scheduler shutting down while waiting for node {lock.node} to be unlocked")
                if not is_wanted():
                    raise NodeLocked(f"pod {ref} was filtered again or deleted while it waited for node {lock.node}")
                known = self._nodes.lock_of(*lock)
                held_by = known[0] or "" if known is not None else ""
                # a lock that names the pod is from an earlier bind of it: the queue waits for the pod, not the reverse
                may_try = self._queue.is_first(lock, waiter) or _names(held_by, ref)
                if may_try and self._try(lock, ref):
                    return
                left = deadline - self._clock()
                if left <= 0:
                    raise NodeLocked(f"timed out waiting for node {lock.node} to be unlocked"
                                     f"{f' (held by {held_by})' if held_by else ''}: node lock contention")
                waiter.woken.wait(min(left, RECHECK_S) if may_try else left)

    def _claim(self, lock: LockId) -> bool:
        """Lets only this thread work on *lock* until it is unclaimed. Reports whether that was possible."""
        with self._mutex:
            state = self._states[lock]
            if state.claimed:
                return False
            state.claimed, state.releasable = True, ""
            return True

    def _unclaim(self, lock: LockId) -> None:
        with self._mutex:
            state = self._states[lock]
            state.claimed, state.releasable = False, ""
        self._queue.wake_node(lock.node)

    def _try(self, lock: LockId, ref: PodRef) -> bool:
        """Takes the lock if it is free. Its claim is kept then."""
        if not self._claim(lock):
            return False
        state, taken = self._states[lock], False
        try:
            taken = self._take_free(lock, ref)
        finally:
            state.claimed = taken
        return taken

    def _take_free(self, lock: LockId, ref: PodRef) -> bool:
        """Takes the lock if it is free, or names the pod already.

        In that case a Binding of the pod may be on its way, from another process or an earlier attempt of ours. Only
        what becomes of the pod can end that lock, not a failure of this attempt, so it is not releasable.
        """
        state = self._states[lock]
        for _ in range(ATTEMPTS):
            known = self._nodes.lock_of(*lock) or self._read(lock)
            if known is None:
                raise NotFound(f'node "{lock.node}" not found', 404)
            text, version = known
            again = text is not None and _names(text, ref) and not self._is_orphaned(lock, text)
            if text is not None and not again and not self._is_free(lock, text):
                return False
            ours = render_lock(self._now(), *((ref.namespace, ref.name) if lock.key == NODE_LOCK else ()))
            releasable = "" if again else ours
            self._nodes.expect_lock(lock.node, ours, lock.key)
            try:
                answer = self._cluster.annotate_node(lock.node, {lock.key: ours}, str(version))
            except Conflict:
                self._read(lock)
                continue
            except NotFound:
                raise
            except ClusterError:
                state.leftover = releasable  # it may have been written all the same
                raise
            state.releasable, state.leftover, state.written = releasable, None, (ours, ref.uid)
            self._nodes.upsert_answer(answer)
            return True
        return False

    def _read(self, lock: LockId) -> tuple[str | None, int] | None:
        """Reads the node from the API server. Returns as :meth:`NodeCache.lock_of`."""
        fresh = self._cluster.node(lock.node)
        if fresh is None:
            return None
        self._nodes.upsert_unwatched(fresh)
        return self._nodes.lock_of(*lock)

    def _remove(self, lock: LockId, text: str) -> None:
        """Removes the lock if it still reads *text*. Raises: ClusterError."""
        for _ in range(ATTEMPTS):
            known = self._nodes.lock_of(*lock)
            if known is None or known[0] != text:
                return
            try:
                self._nodes.upsert_answer(self._cluster.annotate_node(lock.node, {lock.key: None}, str(known[1])))
                return
            except Conflict:
                self._read(lock)
            except NotFound:
                return
        raise ClusterError(f"node {lock.node}: lock still contended after {ATTEMPTS} attempts")

    # Whether a lock may be taken over

    def _is_free(self, lock: LockId, text: str) -> bool:
        """Reports whether the lock *text* may be replaced. Revokes its holder if necessary."""
        if self._is_orphaned(lock, text):
            return (not self._pods.was_allocating(self._states[lock].written[1])
                    or self._is_holder_long_gone(lock, text))
        try:
            parsed = parse_lock(text)
            if parsed.holder is not None and not all(map(_NAME.fullmatch, parsed.holder)):
                raise MalformedInput(lock.key, text, "names no pod")
        except MalformedInput as error:
            log.warning("node lock unreadable, taking it over", extra={"node": lock.node, "error": error})
            return True
        seen_for, leading_for = self._seen_for(lock, text), (self._now() - self._leading_since()).total_seconds()
        age = max((self._now() - parsed.at).total_seconds(), seen_for)
        found = _FoundLock(lock, age, seen_for, min(seen_for, leading_for) if age > leading_for + 1.0 else 0.0)
        if parsed.holder is not None:
            return self._is_holder_done(found, text, *parsed.holder)
        return age > self._timeouts(lock).allocation or self._is_abandoned(found)

    def _is_orphaned(self, lock: LockId, text: str) -> bool:
        """Reports whether we wrote *text* for a pod that is deleted; a later pod of its name does not hold the lock."""
        written, uid = self._states[lock].written
        return written == text and self._pods.is_deleted(uid)

    def _is_abandoned(self, found: _FoundLock) -> bool:
        """Reports whether a bare lock is from an earlier term and no pod on the node waits for the vendor's agent.

        Whoever wrote it was killed before it bound its pod, and will send no Binding.
        """
        if found.lock.key == NODE_LOCK or found.inherited_for <= VENDOR_TIMEOUTS.inherited:
            return False
        allocated = [vendor.allocated for vendor in self._vendors if vendor.lock == found.lock.key]
        return not any(pod.phase == "Pending" and any(key in pod.annotations for key in allocated)
                       for pod in self._cluster.pods_on(found.lock.node))

    def _is_holder_done(self, found: _FoundLock, text: str, namespace: str, name: str) -> bool:
        """Reports whether the holder no longer needs the lock, or has been revoked.

        The API server is asked before a lock is taken over: the watch may be late.
        """
        known = self._pods.named(namespace, name)
        if known is not None and self._need(found, known.node, known.bind_phase, known.terminated) is _Need.NEEDED:
            return False
        pod = self._cluster.pod(namespace, name)
        if pod is None:
            return found.age > self._timeouts(found.lock).allocation or self._is_holder_long_gone(found.lock, text)
        self._pods.upsert(pod)
        need = self._need(found, pod.node_name, pod.annotations.get(BIND_PHASE, ""), pod.is_terminated)
        return need is _Need.DONE or (need is _Need.OVERDUE and self._revoke(found.lock.node, pod))

    def _need(self, found: _FoundLock, bound_to: str, phase: str, terminated: bool) -> _Need:
        timeouts = self._timeouts(found.lock)
        if terminated or bound_to not in ("", found.lock.node):
            return _Need.DONE
        if bound_to and phase in (BindPhase.SUCCESS, BindPhase.FAILED):
            return _Need.DONE if found.seen_for > timeouts.finished else _Need.NEEDED
        if not bound_to and found.inherited_for > timeouts.inherited:
            return _Need.OVERDUE
        timeout = timeouts.allocation if bound_to else timeouts.unbound
        return _Need.OVERDUE if found.age > timeout else _Need.NEEDED

    def _revoke(self, node: str, holder: Pod) -> bool:
        """Clears the holder's devices to allocate, so that its lock may be taken over.

        Reports whether that is done; it is not if the holder has changed since it was read.
        """
        if not holder.node_name and not any(key in holder.annotations for key in self._revoked):
            return True  # never bound, and without anything that a device plugin could hand out
        try:
            answer = self._cluster.annotate_pod(holder.ref, self._revoked, resource_version=holder.resource_version)
        except NotFound:
            return True
        except Conflict:
            return False
        self._pods.upsert(answer)
        log.warning("allocation revoked, node lock expired", extra={"node": node, "pod": holder.ref})
        self._events.record(holder.ref, "Warning", "AllocationRevoked",
                            f"the device plugin of node {node} did not allocate the devices in time")
        return True

    def _timeouts(self, lock: LockId) -> LockTimeouts:
        return self._lock_timeouts if lock.key == NODE_LOCK else VENDOR_TIMEOUTS

    def _is_holder_long_gone(self, lock: LockId, text: str) -> bool:
        """Reports whether the holder of *text* was found deleted long enough ago. No kubelet asks for it any more."""
        clock, state = self._clock(), self._states[lock]
        if state.holder_gone[0] != text:
            state.holder_gone = text, clock
        return clock - state.holder_gone[1] > self._timeouts(lock).deleted

    def _seen_for(self, lock: LockId, text: str) -> float:
        """Returns for how many seconds this process has seen the lock read *text*."""
        clock, state = self._clock(), self._states[lock]
        if state.first_seen[0] != text:
            state.first_seen = text, clock
        return clock - state.first_seen[1]


def _names(text: str, ref: PodRef) -> bool:
    """Reports whether the lock *text* names the pod."""
    return text.endswith(f",{ref.namespace},{ref.name}")
