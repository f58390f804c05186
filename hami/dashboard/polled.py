"""Values that are polled while somebody views them: pages read the latest value, a thread fetches it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class PollTimes:
    """Seconds. *interval*: between two polls of a value. *shown*: after which a value is too old to be shown.

    *viewed*: after the last view, until a value is no longer polled.
    """

    interval: float
    shown: float
    viewed: float


@dataclass(slots=True)
class _PolledValue(Generic[V]):
    viewed: float
    due: float
    until: float = 0.0
    value: V | None = None


class PolledValues(Generic[K, V]):
    """The latest values of what has been viewed recently. Threads may share it."""

    def __init__(self, times: PollTimes, limit: int, *, clock: Callable[[], float]) -> None:
        """*limit*: values that are kept; the one that was not viewed for longest is dropped first."""
        self._times = times
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()  # guards all that follows; not held during a poll
        self._values: OrderedDict[K, _PolledValue[V]] = OrderedDict()
        self.changes = 0
        """How often what is shown has changed."""

    def view(self, key: K) -> V | None:
        """Returns the latest value of *key*, which is polled from now on; ``None`` if there is none."""
        now = self._clock()
        with self._lock:
            found = self._values.setdefault(key, _PolledValue(viewed=now, due=now))
            found.viewed = now
            self._values.move_to_end(key)
            if len(self._values) > self._limit:
                self._values.popitem(last=False)
            return found.value if now < found.until else None

    def due(self) -> list[K]:
        """Returns the keys to poll now. Forgets what is no longer viewed, and values that are too old."""
        now = self._clock()
        with self._lock:
            for key in [key for key, one in self._values.items() if now - one.viewed > self._times.viewed]:
                del self._values[key]
            for one in self._values.values():
                if one.value is not None and now >= one.until:
                    one.value = None
                    self.changes += 1
            return [key for key, one in self._values.items() if now >= one.due]

    def put(self, key: K, value: V | None, *, wait: float | None = None) -> None:
        """Stores what a poll of *key* returned; ``None``: nothing. *wait*: seconds until the next poll."""
        now = self._clock()
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return
            found.due = now + (self._times.interval if wait is None else wait)
            if value is not None:
                self.changes += value != found.value
                found.value, found.until = value, now + self._times.shown
