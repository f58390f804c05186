"""The node lock: one allocation at a time on each node, first come, first served.

The lock is an annotation that device plugins read, so it is shared with other schedulers and outlives a process.
Within this process pods that want the same node stand in line; the first in line takes the lock with one
compare-and-swap as soon as the node watch shows it free. A lock is taken from its holder only when that has
finished, is gone, or has been revoked: its devices to allocate are cleared first, so that no device plugin can give
them out to it any more.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from hami.cluster.nodes import NodeBook
from hami.cluster.pods import PodBook, PodRecord
from hami.codec.keys import BIND_PHASE, NODE_LOCK
from hami.codec.states import NodeLock, parse_lock, render_lock
from hami.errors import ClusterError, Conflict, MalformedInput, NodeLocked, NotFound
from hami.model import BindPhase, Node, Pod, PodRef
from hami.vendors.spec import Vendor

__all__ = ["LockTimes", "NodeLocks"]

log = logging.getLogger(__name__)

LOOK_AGAIN = 1.0  # seconds after which the first in line looks at the lock's holder again
ATTEMPTS = 5  # conflicts in a row, each with a fresh look at the node


@dataclass(frozen=True, slots=True)
class LockTimes:
    """Seconds. *expire*: a holder that has not finished by then is revoked. *unbound*: a holder that was never bound
    by then never will be (a bind gives up long before). *finished*: how long a holder that has finished may leave
    the lock behind."""

    expire: float = 300.0
    unbound: float = 40.0
    finished: float = 5.0


class Writes(Protocol):
    """What the node lock needs of the cluster."""

    def pod(self, namespace: str, name: str) -> Pod | None: ...
    def node(self, name: str) -> Node | None: ...
    def annotate_pod(self, ref: PodRef, annotations: dict[str, str | None]) -> Pod: ...
    def annotate_node(self, name: str, annotations: dict[str, str | None], resource_version: str = "") -> Node: ...


@dataclass(slots=True, eq=False)
class _Ticket:
    ref: PodRef
    turn: threading.Event = field(default_factory=threading.Event)


class NodeLocks:
    """The lines before the nodes. *revoked* is told of every pod whose lock was taken away from it."""

    def __init__(self, cluster: Writes, nodes: NodeBook, pods: PodBook, vendors: Sequence[Vendor], times: LockTimes, *,
                 clock: Callable[[], float], now: Callable[[], datetime],
                 revoked: Callable[[PodRef, str], None] = lambda ref, node: None) -> None:
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
        self._mine: dict[str, PodRef] = {}
        self._seen: dict[str, tuple[str, float]] = {}
        self._left: dict[str, PodRef] = {}
        self._closed = False

    def take(self, node: str, ref: PodRef, deadline: float, wanted: Callable[[], bool]) -> None:
        """Wait in line for *node* and take its lock for *ref*.

        *wanted* is asked whenever there is news; when it says no, or at *deadline* (on the steady clock), or when
        the process stops, the place in line is given up and no lock is left behind.
        Raises: NodeLocked; ClusterError when the API server fails.
        """
        ticket = _Ticket(ref)
        with self._guard:
            line = self._lines.setdefault(node, deque())
            line.append(ticket)
        try:
            while True:
                if self._closed:
                    raise NodeLocked(f"scheduler shutting down while waiting for node {node} to be unlocked")
                if not wanted():
                    raise NodeLocked(f"pod {ref} was filtered again or deleted while it waited for node {node}")
                ticket.turn.clear()
                if line[0] is ticket and self._try(node, ref):
                    return
                left = deadline - self._clock()
                if left <= 0:
                    raise NodeLocked(f"timed out waiting for node {node} to be unlocked{self._held_by(node)}")
                ticket.turn.wait(min(left, LOOK_AGAIN) if line[0] is ticket else left)
        finally:
            self._leave(node, ticket)

    def release(self, node: str, ref: PodRef) -> None:
        """Give back a lock whose pod was not bound. What cannot be done now is done by :meth:`tidy`."""
        try:
            self._clear(node, ref)
        except ClusterError as error:
            log.warning("node lock could not be released yet", extra={"node": node, "pod": ref, "error": error})
            with self._guard:
                self._left[node] = ref
        self.settled(node)

    def settled(self, node: str) -> None:
        """The bind for which this process held *node* is over, well or not."""
        with self._guard:
            self._mine.pop(node, None)
        self.wake(node)

    def wake(self, node: str) -> None:
        """There is news of *node*: let the first in line look."""
        with self._guard:
            if line := self._lines.get(node):
                line[0].turn.set()

    def wake_pod(self, uid: str) -> None:
        """There is news of a pod that may stand in line. Called under the ledger's lock, so it asks nobody."""
        with self._guard:
            for line in self._lines.values():
                for ticket in line:
                    if ticket.ref.uid == uid:
                        ticket.turn.set()

    def close(self) -> None:
        """Everybody who waits gives up."""
        self._closed = True
        with self._guard:
            for line in self._lines.values():
                for ticket in line:
                    ticket.turn.set()

    def tidy(self) -> None:
        """Release again what could not be released before."""
        with self._guard:
            left = list(self._left.items())
        for node, ref in left:
            self._clear(node, ref)
            with self._guard:
                self._left.pop(node, None)

    def reap(self, node: str) -> bool:
        """Release the lock of *node* if its holder has no use for it any more; whether that was done."""
        known = self._nodes.lock_of(node)
        if known is None or known[0] is None or node in self._mine or not self._is_free(node, known[0]):
            return False
        self._nodes.upsert(self._cluster.annotate_node(node, {NODE_LOCK: None}, str(known[1])))
        return True

    def waiting(self) -> dict[str, int]:
        """How many pods stand in line before each node."""
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

    def _try(self, node: str, ref: PodRef) -> bool:
        """Take the lock if it is free; false when the line has to wait on."""
        for _ in range(ATTEMPTS):
            known = self._nodes.lock_of(node) or self._look(node)
            if known is None:
                raise NotFound(f'node "{node}" not found', 404)
            text, version = known
            if node in self._mine:
                return False
            if text is not None and text.endswith(f",{ref.namespace},{ref.name}"):
                with self._guard:
                    self._mine[node] = ref
                return True
            if text is not None and not self._is_free(node, text):
                return False
            try:
                answer = self._cluster.annotate_node(
                    node, {NODE_LOCK: render_lock(self._now(), ref.namespace, ref.name)}, str(version))
            except Conflict:
                self._look(node)
                continue
            with self._guard:
                self._mine[node] = ref
            self._nodes.upsert(answer)
            return True
        return False

    def _look(self, node: str) -> tuple[str | None, int] | None:
        """Ask the API server for *node*."""
        fresh = self._cluster.node(node)
        if fresh is None:
            return None
        self._nodes.upsert(fresh)
        return self._nodes.lock_of(node)

    def _is_free(self, node: str, text: str) -> bool:
        """The lock *text* may be replaced. Revokes the holder where that has to come first."""
        try:
            lock = parse_lock(text)
        except MalformedInput as error:
            log.warning("node lock cannot be read, taking it over", extra={"node": node, "error": error})
            return True
        age = max((self._now() - lock.at).total_seconds(), self._known_for(node, text))
        if lock.holder is None:
            return age > self._times.expire
        return self._holder_is_done(node, lock, age, text)

    def _holder_is_done(self, node: str, lock: NodeLock, age: float, text: str) -> bool:
        assert lock.holder is not None
        holder = self._pods.named(*lock.holder) or self._ask_for(*lock.holder)
        if holder is None or holder.terminated:
            return True
        if not holder.node:
            return age > self._times.unbound and self._revoke(node, holder)
        if holder.node != node:
            return True
        if holder.bind_phase in (BindPhase.SUCCESS, BindPhase.FAILED):
            return self._known_for(node, text) > self._times.finished
        return age > self._times.expire and self._revoke(node, holder)

    def _ask_for(self, namespace: str, name: str) -> PodRecord | None:
        """The holder, from the API server: the watch may not have shown it yet."""
        pod = self._cluster.pod(namespace, name)
        if pod is None:
            return None
        self._pods.upsert(pod)
        return self._pods.get(pod.ref.uid)

    def _revoke(self, node: str, holder: PodRecord) -> bool:
        """Take the holder's devices out of the device plugin's reach; only then may its lock be taken."""
        fresh = self._ask_for(holder.ref.namespace, holder.ref.name)
        if fresh is not None and fresh.ref == holder.ref and (fresh.node, fresh.bind_phase) != (
                holder.node, holder.bind_phase):
            return False  # the watch was behind: look again
        try:
            self._cluster.annotate_pod(holder.ref, {**self._clears, BIND_PHASE: BindPhase.FAILED})
        except (NotFound, Conflict):
            return True  # it is gone, or another pod of its name is there
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

    def _clear(self, node: str, ref: PodRef) -> None:
        """Remove the lock if it is that of *ref*. Raises: ClusterError."""
        for attempt in range(ATTEMPTS):
            known = self._nodes.lock_of(node) if attempt == 0 else self._look(node)
            if known is None or known[0] is None or not known[0].endswith(f",{ref.namespace},{ref.name}"):
                return
            try:
                self._nodes.upsert(self._cluster.annotate_node(node, {NODE_LOCK: None}, str(known[1])))
                return
            except Conflict:
                continue
            except NotFound:
                return
        raise ClusterError(f"node {node}: lock still contended after {ATTEMPTS} attempts")

    def _held_by(self, node: str) -> str:
        known = self._nodes.lock_of(node)
        return f" (held by {known[0]}): node lock contention" if known and known[0] else ": node lock contention"
