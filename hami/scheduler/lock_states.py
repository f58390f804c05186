"""Binds that wait for node locks, and what this process remembers about each lock."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


class LockId(NamedTuple):
    """One lock of one node; *key* is its annotation."""

    node: str
    key: str


@dataclass(slots=True, eq=False)
class LockState:
    """The state of one lock in this process.

    *local* is held by the thread of this process that works on the lock, also across I/O. *changed* is set when that
    thread should look at the lock again. *leftover*: the text of a lock that this process may have failed to release.
    *written*: the text that we wrote last, and the uid of its pod. *kept*: the text of a lock that a later bind of the
    same pod has taken over: it may be the text that an earlier one wrote within the same second.
    """

    local: threading.Lock = field(default_factory=threading.Lock)
    changed: threading.Event = field(default_factory=threading.Event)
    leftover: str = ""
    written: tuple[str, str] = ("", "")
    kept: str = ""
    _noted: dict[str, tuple[str, float]] = field(default_factory=dict)

    def since(self, fact: str, text: str, clock: float) -> float:
        """Returns when *fact* was first noted about the lock *text*, which is now unless it was noted before."""
        noted = self._noted.get(fact)
        if noted is None or noted[0] != text:
            noted = self._noted[fact] = text, clock
        return noted[1]

    def record_leftover(self, text: str) -> None:
        """Records that this process may have failed to release the lock *text*."""
        self.leftover = text

    def record_written(self, text: str, uid: str, *, again: bool) -> None:
        """Records that this process has written *text* for the pod. *again*: for one that held the lock already."""
        self.leftover, self.written, self.kept = "", (text, uid), text if again else ""


class LockStates:
    """The states of all locks, and the binds that wait for them.

    *on_wait* is called with the seconds that a bind has waited for a lock. *_mutex* guards the states and the numbers.
    It may be taken while the cache's lock is held; nothing is called while it is held.
    """

    def __init__(self, on_wait: Callable[[float], None]) -> None:
        self._on_wait = on_wait
        self._mutex = threading.Lock()
        self._states: defaultdict[str, defaultdict[str, LockState]] = defaultdict(lambda: defaultdict(LockState))
        self._waiting = Counter[str]()
        self.closed = False

    def state(self, lock: LockId) -> LockState:
        """Returns the state of *lock*."""
        with self._mutex:
            return self._states[lock.node][lock.key]

    @contextlib.contextmanager
    def join(self, node: str) -> Iterator[None]:
        """Counts and times a bind that waits for *node*."""
        begun = time.monotonic()
        with self._mutex:
            self._waiting[node] += 1
        try:
            yield
        finally:
            with self._mutex:
                self._waiting[node] -= 1
            self._on_wait(time.monotonic() - begun)

    def wake_node(self, node: str) -> None:
        """Makes the binds that work on the locks of *node* look at them again."""
        with self._mutex:
            for state in self._states[node].values():
                state.changed.set()

    def close(self) -> None:
        """Makes every bind that waits fail."""
        self.closed = True
        with self._mutex:
            nodes = list(self._states)
        for node in nodes:
            self.wake_node(node)

    def waiting(self) -> dict[str, int]:
        """Returns how many pods wait for each node."""
        with self._mutex:
            return dict(+self._waiting)
