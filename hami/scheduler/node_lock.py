"""The node locks: on each node, one pod at a time waits for its device plugin.

A lock is an annotation of the node that device plugins read. Other schedulers use it too, and it outlives a process.
Each vendor names the key of its lock. Most use ``hami.io/mutex.lock``, whose value names the pod that holds it. The
value of a vendor's own key is only a time; such a lock ends when it is removed or expires.

One bind of this process at a time works on a lock: it waits until the node watch shows the lock free, and takes it with
one compare-and-swap. A lock is taken over only when its holder has finished, is gone, or has been revoked. To
revoke a pod is to clear its to-allocate annotations, so that no device plugin can allocate them any more.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from hami.codec.keys import BIND_PHASE, NODE_LOCK
from hami.codec.states import names_pod, parse_lock, render_lock
from hami.errors import ClusterError, Conflict, HamiError, MalformedInput, NodeLocked, NotFound
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.model import BindPhase, Pod, PodRef
from hami.scheduler.lock_states import LockId, LockState, LockStates
from hami.state.binding import failed_allocation
from hami.state.store import Store

log = logging.getLogger(__name__)

RECHECK_S = 1.0  # a bind that works on a lock looks at its holder this often
ATTEMPTS = 5  # conflicts in a row, each followed by a fresh look at the node

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")  # names that a namespace or a pod can have


# Seconds after which a lock may be taken over.
UNBOUND_S = 40.0  # the holder has not been bound (a bind gives up long before)
INHERITED_S = 2.0  # the same for a lock older than this replica's term: its writer can send no Binding any more
FINISHED_S = 5.0  # the holder has finished, and its device plugin should have released the lock
VENDOR_ALLOCATION_S = 120.0  # the age of a vendor's own lock. Source: HAMi v2.10, cambricon/device.go
DELETED_S = 10.0
"""The holder was deleted after it was bound and before its device plugin answered. Its kubelet may still call Allocate
for it, and a plugin that trusts the lock would then serve the next holder's devices to that call, and be one pod off
from there on. A kubelet hears of a deletion within a second; the rest is for a slow one."""


class KeepsLocks(HamiError):
    """The bind failed, and the pod is bound all the same or may be. Its device plugin needs the locks then."""


class _Need(enum.Enum):
    """Whether the holder still needs its lock."""

    NEEDED = "needed"
    DONE = "done"
    OVERDUE = "overdue"  # the holder has to be revoked first


@dataclass(frozen=True, slots=True)
class _FoundLock:
    """Seconds since a lock was written (*age*) and since this process looked at it first.

    *inherited_for*: for how long this replica has led and seen the lock; 0 if the lock may be from its own term or its
    own process.
    *allocation_timeout*: the age after which its holder has not been allocated its devices in time.
    """

    lock: LockId
    text: str
    age: float
    seen_for: float
    inherited_for: float
    allocation_timeout: float


class NodeLocks:
    """The locks of all nodes.

    *allocation_timeout*: seconds after which a bound holder that has not been allocated its devices is revoked.
    *leading_since* returns when this replica began to act in its term, on the *clock*.
    """

    def __init__(self, cluster: Cluster, cache: Store, states: LockStates, events: EventRecorder,
                 allocation_timeout: float, *, leading_since: Callable[[], float], clock: Callable[[], float],
                 now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._nodes = cache.nodes
        self._pods = cache.pods
        self._states = states
        self._events = events
        self._allocation_timeout = allocation_timeout
        self._leading_since = leading_since
        self._clock = clock
        self._now = now
        self._revoked = failed_allocation(cache.vendors)
        self._vendors = cache.vendors

    @contextlib.contextmanager
    def held(self, node: str, keys: Iterable[str], ref: PodRef, deadline: float,
             is_wanted: Callable[[], bool]) -> Iterator[None]:
        """Holds the locks *keys* of *node* for the pod, taken one after the other in the order of the keys.

        They are left to the device plugin at the end, or removed after an error other than `KeepsLocks`. If *is_wanted*
        becomes false, or at *deadline* (monotonic clock), or when the process stops, no lock is left behind.
        Raises: NodeLocked; ClusterError when the API server fails.
        """
        with contextlib.ExitStack() as stack:
            for key in sorted(keys):
                stack.enter_context(self._held(LockId(node, key), ref, deadline, is_wanted))
            yield

    def release_unneeded(self, node: str, key: str = NODE_LOCK) -> bool:
        """Releases the lock if its holder no longer needs it. Reports whether it was released."""
        lock = LockId(node, key)
        local = self._states.state(lock).local
        if not local.acquire(blocking=False):
            return False  # the thread that works on the lock takes it over or leaves it as it is
        try:
            known = self._nodes.lock_of(node, key)
            if known is None or known[0] is None or not self._is_free(lock, known[0]):
                return False
            self._remove(lock, known[1])
            return True
        finally:
            local.release()

    @contextlib.contextmanager
    def _held(self, lock: LockId, ref: PodRef, deadline: float, is_wanted: Callable[[], bool]) -> Iterator[None]:
        state = self._states.state(lock)
        with contextlib.ExitStack() as stack:
            with self._states.join(lock.node):
                releasable = self._wait(lock, state, ref, deadline, is_wanted, stack)
            try:
                yield
            except KeepsLocks:
                raise
            except BaseException:
                self._release(lock, state, releasable)
                raise

    def _wait(self, lock: LockId, state: LockState, ref: PodRef, deadline: float, is_wanted: Callable[[], bool],
              stack: contextlib.ExitStack) -> str:
        """Takes the lock, and leaves the local one to *stack*. Returns the text that may be released, as `_try`."""
        has_local, wait = False, 0.0
        while True:
            if has_local:
                state.changed.wait(wait)
                state.changed.clear()  # before looking: news that comes meanwhile makes us look again
            elif has_local := state.local.acquire(timeout=wait):
                stack.callback(state.local.release)
            if self._states.closed:
                raise NodeLocked(f"scheduler shutting down while waiting for node {lock.node} to be unlocked")
            if not is_wanted():
                raise NodeLocked(f"pod {ref} was filtered again or deleted while it waited for node {lock.node}")
            if (releasable := self._try(lock, state, ref, has_local)) is not None:
                return releasable
            wait = min(deadline - self._clock(), RECHECK_S)
            if wait <= 0:
                known = self._nodes.lock_of(*lock)
                held_by = f" (held by {known[0]})" if known is not None and known[0] else ""
                if self._comes_later(lock):
                    held_by = " (a pod that was bound without a lock has not been allocated its devices)"
                raise NodeLocked(
                    f"timed out waiting for node {lock.node} to be unlocked{held_by}: node lock contention")

    def _try(self, lock: LockId, state: LockState, ref: PodRef, has_local: bool) -> str | None:
        """Takes the lock if it names the pod already, or it is free and this thread works on it (*has_local*).

        Returns the text of the lock, if a failure of this bind may release it. If it named the pod, a Binding may be on
        its way, from another process or an earlier attempt of ours: only what becomes of the pod can end that lock, and
        the result is empty.
        """
        for _ in range(ATTEMPTS):
            known = self._nodes.lock_of(*lock) or self._read(lock)
            if known is None:
                raise NotFound(f'node "{lock.node}" not found', 404)
            text, version = known
            again = text is not None and names_pod(text, ref) and not self._is_orphaned(lock, text)
            if not again and not (has_local and (text is None or self._is_free(lock, text))):
                return None
            if self._comes_later(lock):
                return None
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
                state.record_leftover(releasable)  # it may have been written all the same
                raise
            state.record_written(ours, ref.uid, again=again)
            self._nodes.upsert_answer(answer)
            return releasable
        return None

    def _comes_later(self, lock: LockId) -> bool:
        """Reports whether pods that were bound before the device plugin needed the lock get their devices first."""
        return lock.key == NODE_LOCK and self._pods.awaits_allocation(lock.node)

    def _release(self, lock: LockId, state: LockState, text: str) -> None:
        """Removes the lock if it still reads *text*. After a failure, :meth:`release_unneeded` tries it again."""
        known = self._nodes.lock_of(*lock)
        try:
            if known is not None and known[0] and known[0] == text != state.kept:
                self._remove(lock, known[1])
        except NotFound:
            pass
        except ClusterError as error:
            log.warning("node lock not released, will retry", extra={"node": lock.node, "error": error})
            state.record_leftover(text)

    def _read(self, lock: LockId) -> tuple[str | None, int] | None:
        """Reads the node from the API server. Returns as :meth:`NodeCache.lock_of`."""
        fresh = self._cluster.node(lock.node)
        if fresh is None:
            return None
        self._nodes.upsert_unwatched(fresh)
        return self._nodes.lock_of(*lock)

    def _remove(self, lock: LockId, version: int) -> None:
        """Removes the lock if the node is still at *version*. Raises: ClusterError."""
        self._nodes.upsert_answer(self._cluster.annotate_node(lock.node, {lock.key: None}, str(version)))

    # Whether a lock may be taken over

    def _is_free(self, lock: LockId, text: str) -> bool:
        """Reports whether the lock *text* may be replaced. Revokes its holder if necessary."""
        state = self._states.state(lock)
        if text == state.leftover:
            return True
        if self._is_orphaned(lock, text):
            return not self._pods.was_allocating(state.written[1]) or self._is_holder_long_gone(lock, text)
        try:
            parsed = parse_lock(text)
            if parsed.holder is not None and not all(map(_NAME.fullmatch, parsed.holder)):
                raise MalformedInput(lock.key, text, "names no pod")
        except MalformedInput as error:
            log.warning("node lock unreadable, taking it over", extra={"node": lock.node, "error": error})
            return True
        clock, leading_since, sighting = self._clock(), self._leading_since(), self._nodes.lock_sighting(*lock, text)
        age, seen_for = sighting.proven_age(parsed.at.timestamp(), clock), clock - state.since("seen", text, clock)
        # a Binding of ours, also one from an earlier term of this process, may still be on its way
        is_inherited = sighting.at <= leading_since and text != state.written[0]
        found = _FoundLock(lock, text, age, seen_for, min(seen_for, clock - leading_since) if is_inherited else 0.0,
                           self._allocation_timeout if lock.key == NODE_LOCK else VENDOR_ALLOCATION_S)
        if parsed.holder is not None:
            return self._is_holder_done(found, *parsed.holder)
        return age > found.allocation_timeout or self._is_abandoned(found)

    def _is_orphaned(self, lock: LockId, text: str) -> bool:
        """Reports whether we wrote *text* for a pod that is deleted; a later pod of its name does not hold the lock."""
        written, uid = self._states.state(lock).written
        return written == text and self._pods.is_deleted(uid)

    def _is_abandoned(self, found: _FoundLock) -> bool:
        """Reports whether a bare lock is from an earlier term and no pod on the node waits for the vendor's agent.

        Whoever wrote it was killed before it bound its pod, and will send no Binding.
        """
        if found.lock.key == NODE_LOCK or found.inherited_for <= INHERITED_S:
            return False
        allocated = [keys.allocated for keys in (vendor.annotations for vendor in self._vendors)
                     if keys.lock == found.lock.key]
        return not any(pod.phase == "Pending" and any(key in pod.annotations for key in allocated)
                       for pod in self._cluster.pods_on(found.lock.node))

    def _is_holder_done(self, found: _FoundLock, namespace: str, name: str) -> bool:
        """Reports whether the holder no longer needs the lock, or has been revoked.

        The API server is asked before a lock is taken over: the watch may be late.
        """
        known = self._pods.named(namespace, name)
        if known is not None and _need(found, known.node, known.bind_phase, known.terminated) is _Need.NEEDED:
            return False
        pod = self._cluster.pod(namespace, name)
        if pod is None:
            return found.age > found.allocation_timeout or self._is_holder_long_gone(found.lock, found.text)
        self._pods.upsert(pod)
        need = _need(found, pod.node_name, pod.annotations.get(BIND_PHASE, ""), pod.is_terminated)
        return need is _Need.DONE or (need is _Need.OVERDUE and self._revoke(found.lock.node, pod))

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

    def _is_holder_long_gone(self, lock: LockId, text: str) -> bool:
        """Reports whether the holder of *text* was found deleted long enough ago. No kubelet asks for it any more."""
        clock = self._clock()
        return clock - self._states.state(lock).since("holder gone", text, clock) > DELETED_S


def _need(found: _FoundLock, bound_to: str, phase: str, terminated: bool) -> _Need:
    if terminated or bound_to not in ("", found.lock.node):
        return _Need.DONE
    if bound_to and phase in (BindPhase.SUCCESS, BindPhase.FAILED):
        return _Need.DONE if found.seen_for > FINISHED_S else _Need.NEEDED
    if not bound_to and found.inherited_for > INHERITED_S:
        return _Need.OVERDUE
    return _Need.OVERDUE if found.age > (found.allocation_timeout if bound_to else UNBOUND_S) else _Need.NEEDED
