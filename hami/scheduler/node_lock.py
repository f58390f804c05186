"""The node lock: one allocation at a time on each node, first come, first served.

The lock is an annotation that device plugins read, so it is shared with other schedulers and outlives a process.
Within this process pods that want the same node stand in line; the first in line takes the lock with one
compare-and-swap as soon as the node watch shows it free. A lock is taken from its holder only when that has
finished, is gone, or has been revoked: its devices to allocate are cleared first, so that no device plugin can give
them out to it any more.
"""

from __future__ import annotations

import enum
import logging
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from hami.cache.nodes import NodeCache
from hami.cache.pods import PodCache
from hami.codec.keys import BIND_PHASE, NODE_LOCK
from hami.codec.states import parse_lock, render_lock
from hami.errors import ClusterError, Conflict, MalformedInput, NodeLocked, NotFound
from hami.model import BindPhase, Node, Pod, PodRef
from hami.vendors.spec import Vendor

__all__ = ["LockTimes", "NodeLocks"]

log = logging.getLogger(__name__)

BARE_EXPIRE = 120.0  # seconds after which a vendor's own lock counts no more. Source: HAMi v2.10, cambricon/device.go
LOOK_AGAIN = 1.0  # seconds after which the first in line looks at the lock's holder again
ATTEMPTS = 5  # conflicts in a row, each with a fresh look at the node

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")  # what a namespace or a pod can be called


@dataclass(frozen=True, slots=True)
class LockTimes:
    """Seconds. *expire*: a holder that has not finished by then is revoked. *unbound*: a holder that was never bound
    by then never will be (a bind gives up long before); *orphaned*: the same for a lock from before this replica acted:
    the one before it sent no Binding that could come later. *finished*: how long a holder that has finished may leave
    the lock behind."""

    expire: float = 300.0
    unbound: float = 40.0
    orphaned: float = 2.0
    finished: float = 5.0


BARE_TIMES = LockTimes(expire=BARE_EXPIRE)


class NodeLockCalls(Protocol):
    """What the node lock needs of the cluster."""

    def pod(self, namespace: str, name: str) -> Pod | None: ...
    def node(self, name: str) -> Node | None: ...
    def pods_on(self, node: str) -> list[Pod]: ...
    def annotate_pod(self, ref: PodRef, annotations: dict[str, str | None], *, resource_version: str = "") -> Pod: ...
    def annotate_node(self, name: str, annotations: dict[str, str | None], resource_version: str = "") -> Node: ...


@dataclass(slots=True, eq=False)
class _Ticket:
    ref: PodRef
    turn: threading.Event = field(default_factory=threading.Event)


class _Use(enum.Enum):
    """What its lock still is to a holder."""

    NEEDED = "needed"
    OVER = "over"
    OVERDUE = "overdue"  # the holder has to be revoked first


@dataclass(frozen=True, slots=True)
class _Lock:
    """A lock as it was found: who holds it, and for how many seconds it has been written, this process has seen it, and
    this replica has acted."""

    node: str
    holder: tuple[str, str] | None
    age: float
    known_for: float
    acting_for: float

    @property
    def inherited_for(self) -> float:
        """Seconds for which this replica has acted and found the lock there already; 0 if it may be one of its own."""
        return min(self.known_for, self.acting_for) if self.age > self.acting_for + 1.0 else 0.0


class NodeLocks:
    """The locks of the nodes: ``hami.io/mutex.lock``, and those that vendors have of their own.

    *revoked* is told of every pod whose lock was taken away from it.
    """

    def __init__(self, cluster: NodeLockCalls, nodes: NodeCache, pods: PodCache, vendors: Iterable[Vendor], times: LockTimes, *,
                 clock: Callable[[], float], now: Callable[[], datetime],
                 revoked: Callable[[PodRef, str], None] = lambda ref, node: None) -> None:
        vendors = tuple(vendors)
        begun = now()
        self.acting_since: Callable[[], datetime] = lambda: begun
        self._locks = {key: _Locks(cluster, nodes, pods, vendors, times if key == NODE_LOCK else BARE_TIMES, key,
                                   clock=clock, now=now, revoked=revoked, acting_since=lambda: self.acting_since())
                       for key in sorted({NODE_LOCK, *(vendor.lock for vendor in vendors if vendor.lock)})}

    def take(self, node: str, ref: PodRef, deadline: float, wanted: Callable[[], bool],
             keys: Sequence[str] = (NODE_LOCK,)) -> None:
        """Wait in line for *node* and take its locks *keys* for *ref*, one after the other, in the order of the keys.

        *wanted* is asked whenever there is news; when it says no, or at *deadline* (on the steady clock), or when
        the process stops, the place in line is given up and no lock is left behind.
        Raises: NodeLocked; ClusterError when the API server fails.
        """
        taken: list[str] = []
        try:
            for key in sorted(keys):
                self._locks[key].take(node, ref, deadline, wanted)
                taken.append(key)
        except BaseException:
            self.release(node, ref, taken)
            raise

    def release(self, node: str, ref: PodRef, keys: Sequence[str] = (NODE_LOCK,)) -> None:
        """Give back locks whose pod was not bound. What cannot be done now is done by :meth:`tidy`."""
        for key in keys:
            self._locks[key].release(node, ref)

    def settled(self, node: str, keys: Sequence[str] = (NODE_LOCK,)) -> None:
        """The bind for which this process held *node* is over, well or not."""
        for key in keys:
            self._locks[key].settled(node)

    def wake(self, node: str) -> None:
        """There is news of *node*: let the first in line look."""
        for lock in self._locks.values():
            lock.wake(node)

    def wake_pod(self, uid: str) -> None:
        """There is news of a pod that may stand in line. Called under the cache's lock, so it asks nobody."""
        for lock in self._locks.values():
            lock.wake_pod(uid)

    def close(self) -> None:
        """Everybody who waits gives up."""
        for lock in self._locks.values():
            lock.close()

    def tidy(self) -> None:
        """Release again what could not be released before. Raises: ClusterError when the API server does not answer."""
        for lock in self._locks.values():
            lock.tidy()

    def reap(self, node: str, key: str = NODE_LOCK) -> bool:
        """Release the lock of *node* if its holder has no use for it any more; whether that was done."""
        return self._locks[key].reap(node)

    def waiting(self) -> dict[str, int]:
        """How many pods stand in line before each node."""
        waiting: Counter[str] = Counter()
        for lock in self._locks.values():
            waiting.update(lock.waiting())
        return dict(waiting)


class _Locks:
    """The lines before one lock of each node. Vendors' own locks are a bare time: nobody can tell whose they are, so
    they end by being released or by their age alone."""

    def __init__(self, cluster: NodeLockCalls, nodes: NodeCache, pods: PodCache, vendors: Iterable[Vendor], times: LockTimes,
                 key: str, *, clock: Callable[[], float], now: Callable[[], datetime],
                 revoked: Callable[[PodRef, str], None], acting_since: Callable[[], datetime]) -> None:
        self._key = key
        self._agents = () if key == NODE_LOCK else tuple(vendor.allocated for vendor in vendors if vendor.lock == key)
        self._acting_since = acting_since
        self._cluster = cluster
        self._nodes = nodes
        self._pods = pods
        self._times = times
        self._clock = clock
        self._now = now
        self._revoked = revoked
        self._clears: dict[str, str | None] = {vendor.to_allocate: "" for vendor in vendors if vendor.to_allocate}
        self._guard = threading.Lock()
        self._lines: dict[str, deque[_Ticket]] = {}
        self._mine: dict[str, str] = {}  # nodes whose lock one of our threads works on, and the lock it may release
        self._seen: dict[str, tuple[str, float]] = {}
        self._takers: dict[str, tuple[str, str]] = {}  # the lock that we wrote last, and the uid of its pod
        self._left: dict[str, str] = {}  # locks of ours that may still be there and should not
        self._closed = False

    def take(self, node: str, ref: PodRef, deadline: float, wanted: Callable[[], bool]) -> None:
        """As :meth:`NodeLocks.take`."""
        ticket = _Ticket(ref)
        with self._guard:
            line = self._lines.setdefault(node, deque())
            line.append(ticket)
        try:
            while True:
                ticket.turn.clear()  # before looking: news that comes meanwhile makes us look again
                if self._closed:
                    raise NodeLocked(f"scheduler shutting down while waiting for node {node} to be unlocked")
                if not wanted():
                    raise NodeLocked(f"pod {ref} was filtered again or deleted while it waited for node {node}")
                first = line[0] is ticket or self._is_held_for(node, ref)
                if first and self._try(node, ref):
                    return
                left = deadline - self._clock()
                if left <= 0:
                    raise NodeLocked(f"timed out waiting for node {node} to be unlocked{self._held_by(node)}")
                ticket.turn.wait(min(left, LOOK_AGAIN) if first else left)
        finally:
            self._leave(node, ticket)

    def release(self, node: str, ref: PodRef) -> None:
        """As :meth:`NodeLocks.release`."""
        with self._guard:
            text = self._mine.get(node, "")
        try:
            self._clear(node, text)
        except ClusterError as error:
            log.warning("node lock could not be released yet", extra={"node": node, "pod": ref, "error": error})
            with self._guard:
                self._left[node] = text
        finally:
            self.settled(node)

    def settled(self, node: str) -> None:
        """As :meth:`NodeLocks.settled`."""
        with self._guard:
            self._mine.pop(node, None)
        self.wake(node)

    def wake(self, node: str) -> None:
        """As :meth:`NodeLocks.wake`."""
        with self._guard:
            if line := self._lines.get(node):
                line[0].turn.set()

    def wake_pod(self, uid: str) -> None:
        """As :meth:`NodeLocks.wake_pod`."""
        with self._guard:
            for line in self._lines.values():
                for ticket in line:
                    if ticket.ref.uid == uid:
                        ticket.turn.set()

    def close(self) -> None:
        """As :meth:`NodeLocks.close`."""
        self._closed = True
        with self._guard:
            for line in self._lines.values():
                for ticket in line:
                    ticket.turn.set()

    def tidy(self) -> None:
        """As :meth:`NodeLocks.tidy`."""
        with self._guard:
            left = list(self._left.items())
        for node, text in left:
            if not self._claim(node):
                continue  # whoever works on it takes the lock over, or leaves it here
            try:
                self._look(node)
                self._clear(node, text)
                with self._guard:
                    self._left.pop(node, None)
            except ClusterError as error:
                if error.status is None:
                    raise
                log.warning("node lock can still not be released", extra={"node": node, "error": error})
            finally:
                self.settled(node)

    def reap(self, node: str) -> bool:
        """As :meth:`NodeLocks.reap`."""
        known = self._nodes.lock_of(node, self._key)
        if known is None or known[0] is None or not self._claim(node):
            return False
        try:
            if not self._is_free(node, known[0]):
                return False
            self._nodes.upsert(self._cluster.annotate_node(node, {self._key: None}, str(known[1])))
            return True
        finally:
            self.settled(node)

    def waiting(self) -> dict[str, int]:
        """As :meth:`NodeLocks.waiting`."""
        with self._guard:
            return {node: len(line) for node, line in self._lines.items()}

    def _leave(self, node: str, ticket: _Ticket) -> None:
        with self._guard:
            line = self._lines[node]
            line.remove(ticket)
            if line:
                line[0].turn.set()
            else:
                del self._lines[node]

    def _claim(self, node: str) -> bool:
        """From now on, until :meth:`settled`, only this thread works on the lock of *node*; false if another does."""
        with self._guard:
            if node in self._mine:
                return False
            self._mine[node] = ""
            return True

    def _try(self, node: str, ref: PodRef) -> bool:
        """Take the lock if it is free; false when the line has to wait on."""
        if not self._claim(node):
            return False
        taken = False
        try:
            taken = self._take_free(node, ref)
        finally:
            if not taken:
                with self._guard:
                    self._mine.pop(node, None)
        return taken

    def _take_free(self, node: str, ref: PodRef) -> bool:
        """Take the lock if it is free, or names the pod already.

        In that case a Binding of it may be on its way, of another process or from an earlier attempt of ours, so that
        only what becomes of the pod can end that lock, not a failure of this attempt.
        """
        for _ in range(ATTEMPTS):
            known = self._nodes.lock_of(node, self._key) or self._look(node)
            if known is None:
                raise NotFound(f'node "{node}" not found', 404)
            text, version = known
            again = text is not None and _names(text, ref) and not self._is_orphaned(node, text)
            if text is not None and not again and not self._is_free(node, text):
                return False
            lock = self._text(ref)
            if self._swap(node, version, lock, "" if again else lock):
                self._takers[node] = lock, ref.uid
                return True
        return False

    def _text(self, ref: PodRef) -> str:
        return render_lock(self._now(), *(ref.namespace, ref.name) if self._key == NODE_LOCK else ())

    def _swap(self, node: str, version: int, text: str, ours: str) -> bool:
        """Lock *node* with *text* unless it has changed since *version*; *ours* is what we may release again.

        Raises: ClusterError.
        """
        self._nodes.expect_lock(node, text, self._key)
        try:
            answer = self._cluster.annotate_node(node, {self._key: text}, str(version))
        except Conflict:
            self._look(node)
            return False
        except NotFound:
            raise
        except ClusterError:
            with self._guard:
                self._left[node] = ours  # it may have been written all the same
            raise
        with self._guard:
            self._mine[node] = ours
            self._left.pop(node, None)
        self._nodes.upsert(answer)
        return True

    def _look(self, node: str) -> tuple[str | None, int] | None:
        """PodRequest the API server for *node*."""
        fresh = self._cluster.node(node)
        if fresh is None:
            return None
        self._nodes.learn(fresh)
        return self._nodes.lock_of(node, self._key)

    def _is_free(self, node: str, text: str) -> bool:
        """The lock *text* may be replaced. Revokes the holder where that has to come first."""
        if self._is_orphaned(node, text):
            return True
        try:
            lock = parse_lock(text)
            if lock.holder is not None and not all(map(_NAME.fullmatch, lock.holder)):
                raise MalformedInput(self._key, text, "names no pod")
        except MalformedInput as error:
            log.warning("node lock cannot be read, taking it over", extra={"node": node, "error": error})
            return True
        known_for = self._known_for(node, text)
        age = max((self._now() - lock.at).total_seconds(), known_for)
        acting_for = (self._now() - self._acting_since()).total_seconds()
        found = _Lock(node, lock.holder, age, known_for, acting_for)
        if lock.holder is None:
            return age > self._times.expire or self._is_forsaken(found)
        return self._is_over(found, *lock.holder)

    def _is_orphaned(self, node: str, text: str) -> bool:
        """We wrote the lock *text* for a pod that has been deleted, whether or not a later one bears its name."""
        taken, uid = self._takers.get(node, ("", ""))
        return taken == text and self._pods.is_deleted(uid)

    def _is_forsaken(self, lock: _Lock) -> bool:
        """A vendor's own lock is from before this replica acted, and no pod on the node waits for that vendor's agent:
        whoever took it was killed before a pod was bound, and sends no Binding any more."""
        if not self._agents or lock.inherited_for <= self._times.orphaned:
            return False
        return not any(pod.phase == "Pending" and any(key in pod.annotations for key in self._agents)
                       for pod in self._cluster.pods_on(lock.node))

    def _is_over(self, lock: _Lock, namespace: str, name: str) -> bool:
        """The holder has no use for the lock, or has been revoked. Before that is believed of what the watch has shown,
        the API server is asked: the watch may be late."""
        known = self._pods.named(namespace, name)
        if known is not None and self._use_of(lock, known.node, known.bind_phase, known.terminated) is _Use.NEEDED:
            return False
        pod = self._cluster.pod(namespace, name)
        if pod is None:
            return True
        self._pods.upsert(pod)
        use = self._use_of(lock, pod.node_name, pod.annotations.get(BIND_PHASE, ""), pod.is_terminated)
        return use is _Use.OVER or (use is _Use.OVERDUE and self._revoke(lock.node, pod))

    def _use_of(self, lock: _Lock, bound_to: str, phase: str, terminated: bool) -> _Use:
        if terminated or bound_to not in ("", lock.node):
            return _Use.OVER
        if bound_to and phase in (BindPhase.SUCCESS, BindPhase.FAILED):
            return _Use.OVER if lock.known_for > self._times.finished else _Use.NEEDED
        if not bound_to and lock.inherited_for > self._times.orphaned:
            return _Use.OVERDUE
        timeout = self._times.expire if bound_to else self._times.unbound
        return _Use.OVERDUE if lock.age > timeout else _Use.NEEDED

    def _revoke(self, node: str, holder: Pod) -> bool:
        """Take the holder's devices out of the device plugin's reach; only then may its lock be taken.

        False when the holder has changed since it was looked at: look again.
        """
        if not holder.node_name and not any(key in holder.annotations for key in (*self._clears, BIND_PHASE)):
            return True  # it was never bound and has nothing that a device plugin could hand out
        try:
            answer = self._cluster.annotate_pod(holder.ref, {**self._clears, BIND_PHASE: BindPhase.FAILED},
                                                resource_version=holder.resource_version)
        except NotFound:
            return True
        except Conflict:
            return False
        self._pods.upsert(answer)
        log.warning("allocation revoked, its node lock had expired", extra={"node": node, "pod": holder.ref})
        self._revoked(holder.ref, node)
        return True

    def _known_for(self, node: str, text: str) -> float:
        """Seconds since this process first saw *node* locked by *text*."""
        clock = self._clock()
        seen = self._seen.get(node)
        if seen is None or seen[0] != text:
            seen = self._seen[node] = (text, clock)
        return clock - seen[1]

    def _clear(self, node: str, text: str) -> None:
        """Remove the lock if it is still *text*. Raises: ClusterError."""
        for _ in range(ATTEMPTS):
            known = self._nodes.lock_of(node, self._key)
            if known is None or known[0] is None or known[0] != text:
                return
            try:
                self._nodes.upsert(self._cluster.annotate_node(node, {self._key: None}, str(known[1])))
                return
            except Conflict:
                self._look(node)
            except NotFound:
                return
        raise ClusterError(f"node {node}: lock still contended after {ATTEMPTS} attempts")

    def _is_held_for(self, node: str, ref: PodRef) -> bool:
        """The lock names this pod, from a bind that did not come to its end: the line waits for it, not the reverse."""
        known = self._nodes.lock_of(node, self._key)
        return known is not None and known[0] is not None and _names(known[0], ref)

    def _held_by(self, node: str) -> str:
        known = self._nodes.lock_of(node, self._key)
        return f" (held by {known[0]}): node lock contention" if known and known[0] else ": node lock contention"


def _names(text: str, ref: PodRef) -> bool:
    return text.endswith(f",{ref.namespace},{ref.name}")
