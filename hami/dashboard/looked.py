"""Keeps answers about what somebody looks at: pages ask, a thread finds the answers out."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds. *every*: between two questions. *shown*: after which an answer is no longer shown.

    *looked*: after which nobody looks any more.
    """

    every: float
    shown: float
    looked: float


@dataclass(slots=True)
class _Entry(Generic[V]):
    looked: float
    due: float
    until: float = 0.0
    value: V | None = None


class Looked(Generic[K, V]):
    """The latest answers about what has been looked at lately. Threads may share it."""

    def __init__(self, times: Times, most: int, *, clock: Callable[[], float]) -> None:
        """*most*: things that are kept; the one that nobody has looked at for longest is dropped first."""
        self._times = times
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()  # guards all that follows; not held while a question is asked
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()
        self.changes = 0
        """How often what is shown has changed."""

    def get(self, key: K) -> V | None:
        """Returns the latest answer about *key*, at which somebody looks; ``None`` if there is none."""
        now = self._clock()
        with self._lock:
            entry = self._entries.setdefault(key, _Entry(looked=now, due=now))
            entry.looked = now
            self._entries.move_to_end(key)
            if len(self._entries) > self._most:
                self._entries.popitem(last=False)
            return entry.value if now < entry.until else None

    def due(self) -> list[K]:
        """Returns about what to ask now. Forgets what nobody looks at, and answers that are too old."""
        now = self._clock()
        with self._lock:
            for key in [key for key, entry in self._entries.items() if now - entry.looked > self._times.looked]:
                del self._entries[key]
            for entry in self._entries.values():
                if entry.value is not None and now >= entry.until:
                    entry.value = None
                    self.changes += 1
            return [key for key, entry in self._entries.items() if now >= entry.due]

    def put(self, key: K, value: V | None, *, wait: float | None = None) -> None:
        """Keeps the answer about *key*. ``None``: there is no new one. *wait*: seconds until the next question."""
        now = self._clock()
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return
            entry.due = now + (self._times.every if wait is None else wait)
            if value is not None:
                self.changes += value != entry.value
                entry.value, entry.until = value, now + self._times.shown
