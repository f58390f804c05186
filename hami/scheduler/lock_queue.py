"""Binds that wait for node locks, first come, first served."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from hami.model import PodRef


class LockId(NamedTuple):
    """One lock of one node; *key* is its annotation."""

    node: str
    key: str


class Waiter:
    """A bind of the pod *ref* that waits for a lock. *woken* is set when it should look at the lock again."""

    def __init__(self, ref: PodRef) -> None:
        self.ref = ref
        self.woken = threading.Event()


class LockQueue:
    """A queue for each lock.

    *_mutex* guards the queues. It may be taken while the cache's lock is held; nothing is called while it is held.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._queues: dict[LockId, deque[Waiter]] = {}
        self.closed = False

    @contextlib.contextmanager
    def join(self, lock: LockId, ref: PodRef) -> Iterator[Waiter]:
        """Joins the queue for *lock*, and leaves it at the end."""
        waiter = Waiter(ref)
        with self._mutex:
            self._queues.setdefault(lock, deque()).append(waiter)
        try:
            yield waiter
        finally:
            with self._mutex:
                queue = self._queues[lock]
                queue.remove(waiter)
                if queue:
                    queue[0].woken.set()
                else:
                    del self._queues[lock]

    def is_first(self, lock: LockId, waiter: Waiter) -> bool:
        """Reports whether it is *waiter*'s turn to take *lock*."""
        with self._mutex:
            return self._queues[lock][0] is waiter

    def wake_node(self, node: str) -> None:
        """Lets the first in each queue for *node* look at its lock."""
        with self._mutex:
            for lock, queue in self._queues.items():
                if lock.node == node:
                    queue[0].woken.set()

    def wake_pod(self, uid: str) -> None:
        """Lets the binds of the pod find out whether they are still wanted."""
        self._wake(lambda waiter: waiter.ref.uid == uid)

    def close(self) -> None:
        """Makes every bind that waits fail."""
        self.closed = True
        self._wake(lambda waiter: True)

    def waiting(self) -> dict[str, int]:
        """Returns how many pods wait for each node."""
        with self._mutex:
            return Counter(lock.node for lock, queue in self._queues.items() for _ in queue)

    def _wake(self, matches: Callable[[Waiter], bool]) -> None:
        with self._mutex:
            for queue in self._queues.values():
                for waiter in queue:
                    if matches(waiter):
                        waiter.woken.set()
