"""The queues of binds for node locks, and what this process remembers about each lock."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from hami.model import Node
from hami.state.nodes import NodeCache

T = TypeVar("T")

PLACE_S = 60.0
"""Seconds for which a pod whose bind has waited in vain keeps its place: kube-scheduler tries it again meanwhile."""


class LockId(NamedTuple):
    """One lock of one node; *key* is its annotation."""

    node: str
    key: str


@dataclass(slots=True, eq=False)
class Waiter:
    """A thread in the queue for a lock; it stays there while it uses the lock. *number*: its place. *news*: set when it
    should look at the lock again. *is_waiting*: it is a bind without the lock."""

    number: int
    news: threading.Event = field(default_factory=threading.Event)
    is_waiting: bool = True
    since: float = field(default_factory=time.monotonic)


@dataclass(slots=True, eq=False)
class LockState:
    """The state of one lock in this process.

    *queue*: the first in it works on the lock, also across I/O. *places*: numbers of pods whose bind has waited in
    vain, and when it gave up. *leftover*: the text of a lock that this process may have failed to release. *written*:
    the text that this process wrote last, and the uid of its pod. *kept*: the text of a lock that a later bind of the
    same pod has taken over: it may be the text that an earlier one wrote within the same second.
    """

    queue: list[Waiter] = field(default_factory=list)
    places: dict[str, tuple[int, float]] = field(default_factory=dict)
    leftover: str = ""
    written: tuple[str, str] = ("", "")
    kept: str = ""
    _noted: dict[str, tuple[str, Any]] = field(default_factory=dict)

    def note_first(self, fact: str, text: str, value: T) -> T:
        """Returns the first value of *fact* that was noted about the lock *text*; that is *value* unless there was one
        before."""
        noted = self._noted.get(fact)
        if noted is None or noted[0] != text:
            noted = self._noted[fact] = text, value
        first: T = noted[1]
        return first

    def wake_first(self) -> None:
        """Makes the bind that works on the lock look at it again."""
        for waiter in self.queue[:1]:
            waiter.news.set()

    def forget_places(self, before: float) -> None:
        """Forgets the places of pods whose bind gave up *before* that time or then."""
        for uid, (_, at) in list(self.places.items()):
            if at <= before:
                del self.places[uid]

    def record_leftover(self, text: str) -> None:
        """Records that this process may have failed to release the lock *text*."""
        self.leftover = text

    def record_written(self, text: str, uid: str, *, again: bool) -> None:
        """Records that this process has written *text* for the pod. *again*: for one that held the lock already.

        The answer of an earlier write may come after that of a later one.
        """
        kept = text if again or text == self.kept else ""
        self.leftover, self.written, self.kept = "", (text, uid), kept


class LockStates:
    """The states of all locks, and the queues for them.

    *on_wait* is called with the seconds that a bind has waited for a lock. *_mutex* guards the states, the queues and
    the places; nothing is called while it is held.
    """

    def __init__(
        self, on_wait: Callable[[float], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._on_wait = on_wait
        self._clock = clock
        self._mutex = threading.Lock()
        self._states: dict[str, dict[str, LockState]] = {}
        self._numbers = itertools.count(1)
        self.closed = False

    @contextlib.contextmanager
    def queued(self, lock: LockId, uid: str) -> Iterator[tuple[LockState, Waiter]]:
        """Queues a bind of the pod *uid*: first come, first served. A pod that has waited in vain before returns to its
        place, but never ahead of the thread that works on the lock."""
        with self._mutex:
            state = self._states.setdefault(lock.node, {}).setdefault(lock.key, LockState())
            number, _ = state.places.pop(uid, (0, 0.0))
            waiter = Waiter(number or next(self._numbers))
            place = 1
            while place < len(state.queue) and state.queue[place].number <= waiter.number:
                place += 1
            state.queue.insert(place, waiter)
        try:
            yield state, waiter
        finally:
            if waiter.is_waiting:
                self._on_wait(time.monotonic() - waiter.since)
            self._leave(state, waiter, uid)

    def record_taken(self, waiter: Waiter) -> None:
        """Records that the bind has the lock."""
        waiter.is_waiting = False
        self._on_wait(time.monotonic() - waiter.since)

    @contextlib.contextmanager
    def unused(self, lock: LockId) -> Iterator[LockState | None]:
        """Works on the lock if no bind does, while new binds wait; otherwise yields ``None``."""
        waiter = Waiter(0, is_waiting=False)
        with self._mutex:
            state = self._states.setdefault(lock.node, {}).setdefault(lock.key, LockState())
            is_unused = not state.queue
            if is_unused:
                state.queue.append(waiter)
        try:
            yield state if is_unused else None
        finally:
            if is_unused:
                self._leave(state, waiter, "")

    def wake(self, nodes: Iterable[str]) -> None:
        """Makes the binds that work on the locks of *nodes* look at them again."""
        with self._mutex:
            for node in nodes:
                for state in self._states.get(node, {}).values():
                    state.wake_first()

    def close(self) -> None:
        """Makes every bind that waits fail."""
        self.closed = True
        with self._mutex:
            for _, state in self._every():
                for waiter in state.queue:
                    waiter.news.set()

    def waiting(self) -> dict[str, int]:
        """Returns how many pods wait for each node."""
        counts: Counter[str] = Counter()
        with self._mutex:
            for lock, state in self._every():
                counts[lock.node] += sum(waiter.is_waiting for waiter in state.queue)
        return dict(+counts)

    def forget_unused(self, read: Callable[[LockId], tuple[str | None, int] | None]) -> None:
        """Forgets the states of locks that no pod holds or waits for. *read*: as :meth:`NodeCache.lock_of`."""
        now = self._clock()
        with self._mutex:
            every = list(self._every())
            for _, state in every:
                state.forget_places(now - PLACE_S)
        for lock, state in every:
            current = read(lock)
            if current is not None and (current[0] is not None or state.leftover):
                continue
            with self._mutex:
                if not state.queue and not state.places:
                    del self._states[lock.node][lock.key]
                    if not self._states[lock.node]:
                        del self._states[lock.node]

    def _every(self) -> Iterator[tuple[LockId, LockState]]:
        """Yields all states. The mutex must be held."""
        for node, states in self._states.items():
            for key, state in states.items():
                yield LockId(node, key), state

    def _leave(self, state: LockState, waiter: Waiter, uid: str) -> None:
        with self._mutex:
            state.queue.remove(waiter)
            if waiter.is_waiting:
                state.places[uid] = waiter.number, self._clock()
            state.wake_first()


class WatchedNodes:
    """The nodes of the store, as the scheduler changes them: binds that wait for a lock look at each change of it."""

    def __init__(self, nodes: NodeCache, states: LockStates) -> None:
        self._nodes = nodes
        self._states = states

    def upsert(self, node: Node, as_of: float = -math.inf) -> None:
        """As :meth:`NodeCache.upsert`."""
        self._states.wake(self._nodes.upsert(node, as_of))

    def upsert_answer(self, node: Node) -> None:
        """As :meth:`NodeCache.upsert_answer`."""
        self._states.wake(self._nodes.upsert_answer(node))

    def upsert_unwatched(self, node: Node) -> None:
        """As :meth:`NodeCache.upsert_unwatched`."""
        self._states.wake(self._nodes.upsert_unwatched(node))

    def remove(self, node: Node) -> None:
        """As :meth:`NodeCache.remove`."""
        self._states.wake(self._nodes.remove(node))

    def prune(self, seen: set[str], started: float) -> None:
        """As :meth:`NodeCache.prune`."""
        self._states.wake(self._nodes.prune(seen, started))
