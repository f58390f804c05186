"""The nodes to which another process may have bound pods since their pods were last read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class ForeignMark:
    """Another process may have bound pods to a node since *since* (monotonic clock)."""

    since: float


class ForeignNodes:
    """Marks of nodes. *lock* is the store's and guards them. *clock* is monotonic."""

    def __init__(self, lock: threading.RLock, clock: Callable[[], float]) -> None:
        self._lock = lock
        self._clock = clock
        self._marks: dict[str, ForeignMark] = {}
        self._locked: set[str] = set()

    def mark(self, node: str) -> None:
        """Records that another process may have bound pods to *node*."""
        with self._lock:
            self._marks[node] = ForeignMark(self._clock())

    def mark_of(self, node: str) -> ForeignMark | None:
        """Returns the mark of a node whose pods have to be read; ``None`` if it has none."""
        return self._marks.get(node)

    def set_locked(self, node: str, is_locked: bool) -> None:
        """Records whether *node* is locked."""
        with self._lock:
            if is_locked:
                self._locked.add(node)
            else:
                self._locked.discard(node)

    def clear(self, node: str, mark: ForeignMark | None) -> None:
        """Records that *node*'s pods have been read since it had *mark*. A later mark stays."""
        with self._lock:
            if self._marks.get(node) is mark:
                self._marks.pop(node, None)

    def clear_before(self, started: float) -> None:
        """Records that all pods have been listed since *started*. Nodes that are locked now stay foreign."""
        with self._lock:
            for node, mark in list(self._marks.items()):
                if node not in self._locked and mark.since < started:
                    del self._marks[node]

    def remove(self, node: str) -> None:
        """Forgets *node*, which is gone."""
        with self._lock:
            self._marks.pop(node, None)
            self._locked.discard(node)
