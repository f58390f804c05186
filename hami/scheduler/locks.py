"""The node locks: on each node, one pod at a time waits for its device plugin.

A lock is an annotation of the node that device plugins read. Other schedulers use it too, and it outlives a process.
Each vendor names the key of its lock. Most use ``hami.io/mutex.lock``, whose value names the pod that holds it. The
value of a vendor's own key is only a time; such a lock ends when it is removed or expires.

Binds of this process queue for each lock. The first in the queue waits until the node watch shows the lock free, and
takes it with one compare-and-swap. A lock is taken over only when its holder has finished, is gone, or has been revoked
(`lock_judgement`). To revoke a pod is to clear its to-allocate annotations, so that no device plugin can allocate them
any more.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from hami.codec.keys import NODE_LOCK
from hami.codec.states import render_lock
from hami.errors import ClusterError, Conflict, HamiError, NodeLocked, NotFound
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.model import PodRef
from hami.scheduler.lock_holders import LockHolders
from hami.scheduler.lock_judgement import Replace, Revoke
from hami.scheduler.lock_states import LockId, LockState, LockStates, Waiter, WatchedNodes
from hami.state.binding_annotations import failed_allocation
from hami.state.store import Store

log = logging.getLogger(__name__)

RECHECK_S = 1.0  # a bind that works on a lock looks at its holder this often
ATTEMPTS = 5  # conflicts in a row, each followed by a fresh look at the node


class KeepsLocks(HamiError):
    """The bind failed, and the pod is bound all the same or may be. Its device plugin needs the locks then."""


class NodeLocks:
    """The locks of all nodes.

    *allocation_timeout*: seconds after which a bound holder that has not been allocated its devices is revoked.
    *leading_since* returns when this replica began to act in its term, on the *clock*.
    """

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        states: LockStates,
        events: EventRecorder,
        allocation_timeout: float,
        *,
        leading_since: Callable[[], float],
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._cluster = cluster
        self._nodes = store.nodes
        self.watched = WatchedNodes(store.nodes, states)
        """The nodes, for whoever changes them: binds that wait for a lock must learn of it."""
        self._pods = store.pods
        self._states = states
        self._events = events
        self._clock = clock
        self._now = now
        self._revoked = failed_allocation(store.vendors)
        self._holders = LockHolders(
            cluster,
            store.nodes,
            store.pods,
            store.vendors,
            allocation_timeout,
            leading_since,
            clock,
        )

    @contextlib.contextmanager
    def held(
        self,
        node: str,
        keys: Iterable[str],
        ref: PodRef,
        deadline: float,
        is_wanted: Callable[[], bool],
    ) -> Iterator[None]:
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
        with self._states.unused(lock) as state:
            text, version = self._nodes.lock_of(*lock) or (None, 0)
            if state is None or text is None:
                return False  # a bind in the queue takes the lock over or leaves it as it is
            is_free = self._may_replace(lock, text, state)
            if is_free:
                self._remove(lock, version)
            return is_free

    def forget_unused(self) -> None:
        """Forgets the states of locks that no pod holds or waits for."""
        self._states.forget_unused(lambda lock: self._nodes.lock_of(*lock))

    @contextlib.contextmanager
    def _held(
        self, lock: LockId, ref: PodRef, deadline: float, is_wanted: Callable[[], bool]
    ) -> Iterator[None]:
        with self._states.queued(lock, ref.uid) as (state, waiter):
            releasable = self._wait(lock, state, waiter, ref, deadline, is_wanted)
            self._states.record_taken(waiter)
            try:
                yield
            except KeepsLocks:
                raise
            except BaseException:
                self._release(lock, state, releasable)
                raise

    def _wait(
        self,
        lock: LockId,
        state: LockState,
        waiter: Waiter,
        ref: PodRef,
        deadline: float,
        is_wanted: Callable[[], bool],
    ) -> str:
        """Takes the lock. Returns the text that may be released, as `_try`."""
        while True:
            waiter.news.clear()  # before looking: news that arrives meanwhile causes another look
            if self._states.closed:
                raise NodeLocked(
                    f"scheduler shutting down while waiting for node {lock.node} to be unlocked"
                )
            if not is_wanted():
                raise NodeLocked(
                    f"pod {ref} was filtered again or deleted while it waited for node {lock.node}"
                )
            releasable = self._try(lock, state, ref, is_first=state.queue[0] is waiter)
            if releasable is not None:
                return releasable
            wait = min(deadline - self._clock(), RECHECK_S)
            if wait <= 0:
                raise NodeLocked(
                    f"timed out waiting for node {lock.node} to be unlocked{self._obstacle(lock)}: "
                    "node lock contention"
                )
            waiter.news.wait(wait)

    def _obstacle(self, lock: LockId) -> str:
        if self._comes_later(lock):
            return " (a pod that was bound without a lock has not been allocated its devices)"
        text, _ = self._nodes.lock_of(*lock) or (None, 0)
        return f" (held by {text})" if text else ""

    def _try(self, lock: LockId, state: LockState, ref: PodRef, *, is_first: bool) -> str | None:
        """Takes the lock if it names the pod already, or if it may be taken and the bind is first in the queue.

        Returns the text of the lock, if a failure of this bind may release it. If the lock named the pod already, a
        Binding may be on its way, from another process or an earlier attempt of this one: only the fate of the pod can
        end that lock, and the result is empty.
        """
        for _ in range(ATTEMPTS):
            text, version = self._nodes.lock_of(*lock) or self._read(lock)
            again = self._holders.is_held_by(ref, text, state)
            may_take = again or (is_first and self._may_replace(lock, text, state))
            if not may_take or self._comes_later(lock):
                return None
            ours = self._text_for(lock, ref)
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
            self.watched.upsert_answer(answer)
            return releasable
        return None

    def _text_for(self, lock: LockId, ref: PodRef) -> str:
        """Returns the text of a lock of *ref*; that of a vendor's own key names no pod."""
        if lock.key != NODE_LOCK:
            return render_lock(self._now())
        return render_lock(self._now(), ref.namespace, ref.name)

    def _comes_later(self, lock: LockId) -> bool:
        """Reports whether pods that were bound before the device plugin needed the lock get their devices first."""
        return lock.key == NODE_LOCK and self._pods.awaits_allocation(lock.node)

    def _release(self, lock: LockId, state: LockState, text: str) -> None:
        """Removes the lock if it still reads *text*. After a failure, :meth:`release_unneeded` tries it again."""
        current, version = self._nodes.lock_of(*lock) or (None, 0)
        try:
            if text and current == text != state.kept:
                self._remove(lock, version)
        except NotFound:
            pass
        except ClusterError as error:
            log.warning(
                "node lock not released, will retry", extra={"node": lock.node, "error": error}
            )
            state.record_leftover(text)

    def _read(self, lock: LockId) -> tuple[str | None, int]:
        """Reads the node from the API server. Returns as :meth:`NodeCache.lock_of`. Raises: ClusterError."""
        node = self._cluster.node(lock.node)
        if node is not None:
            self.watched.upsert_unwatched(node)
            current = self._nodes.lock_of(*lock)
            if current is not None:
                return current
        raise NotFound(f'node "{lock.node}" not found', 404)

    def _remove(self, lock: LockId, version: int) -> None:
        """Removes the lock if the node is still at *version*. Raises: ClusterError."""
        self.watched.upsert_answer(
            self._cluster.annotate_node(lock.node, {lock.key: None}, str(version))
        )

    def _may_replace(self, lock: LockId, text: str | None, state: LockState) -> bool:
        """Reports whether the lock may be replaced now, once its holder has been revoked if need be.

        It may not if the holder has changed since it was read. Raises: ClusterError.
        """
        if text is None:
            return True
        judgement = self._holders.judge(lock, text, state)
        if not isinstance(judgement, Revoke):
            return isinstance(judgement, Replace)
        pod = judgement.pod
        try:
            answer = self._cluster.annotate_pod(
                pod, self._revoked, resource_version=judgement.version
            )
        except NotFound:
            return True
        except Conflict:
            return False
        self._pods.upsert(answer)
        log.warning("allocation revoked, node lock expired", extra={"node": lock.node, "pod": pod})
        self._events.record(
            pod,
            "Warning",
            "AllocationRevoked",
            f"the device plugin of node {lock.node} did not allocate the devices in time",
        )
        return True
