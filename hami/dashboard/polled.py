"""Values that are polled while somebody views them: pages read the latest value and never wait, a thread fetches it."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hami.errors import HamiError
from hami.runtime.tasks import Task

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

log = logging.getLogger(__name__)

CONCURRENCY = 4  # polls at a time
PAUSE_S = 0.5
FAILED_S = 30.0  # until a failed poll is repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class PollLimits:
    """Seconds: *interval*: between two polls of a value. *shown*: after which a value is too old to be shown.

    *viewed*: after the last view, until a value is no longer polled. *values*: the number that is kept; the value that
    was not viewed for longest is dropped first.
    """

    interval: float
    shown: float
    viewed: float
    values: int


@dataclass(slots=True)
class _PolledValue(Generic[V]):
    viewed: float
    due: float
    until: float = 0.0
    value: V | None = None


class Poller(Task, Generic[K, V]):
    """The latest values of what has been viewed recently. Threads may share it."""

    def __init__(self, name: str, fetch: Callable[[K], Any], limits: PollLimits, *, clock: Callable[[], float],
                 parse: Callable[[Any], V] = lambda fetched: fetched) -> None:
        """*fetch*: returns what *parse* makes the value of; raises HamiError, and runs in several threads."""
        super().__init__(name)
        self._fetch = fetch
        self._parse = parse
        self._limits = limits
        self._clock = clock
        self._pool = ThreadPoolExecutor(CONCURRENCY, f"dashboard-{name}")
        self._lock = threading.Lock()  # guards all that follows; not held during a poll
        self._values: OrderedDict[K, _PolledValue[V]] = OrderedDict()
        self.changes = 0
        """How often what is shown has changed."""

    def view(self, key: K) -> V | None:
        """Returns the latest value of *key*, which is polled from now on; ``None`` if there is none."""
        now = self._clock()
        with self._lock:
            polled = self._values.setdefault(key, _PolledValue(viewed=now, due=now))
            polled.viewed = now
            self._values.move_to_end(key)
            if len(self._values) > self._limits.values:
                self._values.popitem(last=False)
            return polled.value if now < polled.until else None

    def due(self) -> list[K]:
        """Returns the keys to poll now. Forgets what is no longer viewed, and values that are too old."""
        now = self._clock()
        with self._lock:
            for key in [key for key, polled in self._values.items() if now - polled.viewed > self._limits.viewed]:
                del self._values[key]
            for polled in self._values.values():
                if polled.value is not None and now >= polled.until:
                    polled.value = None
                    self.changes += 1
            return [key for key, polled in self._values.items() if now >= polled.due]

    def put(self, key: K, value: V | None) -> None:
        """Stores what a poll of *key* returned; ``None``: it has failed."""
        now = self._clock()
        with self._lock:
            if (polled := self._values.get(key)) is None:
                return
            polled.due = now + (FAILED_S if value is None else self._limits.interval)
            if value is not None:
                self.changes += value != polled.value
                polled.value, polled.until = value, now + self._limits.shown

    def step(self) -> float:
        """Polls what is due. Several values are fetched at a time, and parsed here one after the other."""
        due = self.due()
        for start in range(0, len(due), CONCURRENCY):
            if self.is_stopping():
                break
            self.beat()
            polls = [(key, self._pool.submit(self._fetch, key)) for key in due[start:start + CONCURRENCY]]
            for key, poll in polls:
                value = None
                try:
                    value = self._parse(poll.result())
                except HamiError as error:
                    log.debug("dashboard poll without a result", extra={"key": str(key), "error": str(error)})
                except Exception:
                    log.exception("dashboard poll failed", extra={"key": str(key)})
                self.put(key, value)
        return PAUSE_S

    def finish(self) -> None:
        """Waits for the polls in progress."""
        self._pool.shutdown()
