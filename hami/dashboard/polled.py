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

PAUSE_S = 0.5
FAILED_S = 30.0  # until a failed poll is repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class PollLimits:
    """Seconds: *interval*: between two polls of a value. *shown*: after which a value is too old to be shown.

    *viewed*: after the last view, until a value is no longer polled. *values*: the number that is kept; the value that
    was not viewed for longest is dropped first. *at_once*: polls at a time. *pause*: after a poll, as a multiple of the
    time that it took.
    """

    interval: float
    shown: float
    viewed: float
    values: int
    at_once: int = 4
    pause: float = 0.0


@dataclass(slots=True)
class _PolledValue(Generic[V]):
    viewed: float
    due: float
    until: float = 0.0
    value: V | None = None
    version: Hashable = None


class Poller(Task, Generic[K, V]):
    """The latest values of what has been viewed recently. Threads may share it."""

    def __init__(self, name: str, fetch: Callable[[K], Any], limits: PollLimits, *, clock: Callable[[], float],
                 parse: Callable[[Any], V] = lambda fetched: fetched,
                 version: Callable[[], Hashable] | None = None) -> None:
        """*fetch*: returns what *parse* makes the value of; raises HamiError, and runs in threads of its own.

        *version*: returns the version of that from which all values are made: a value is polled again only if it has
        changed; ``None``: it always has.
        """
        super().__init__(name)
        self._fetch = fetch
        self._parse = parse
        self._limits = limits
        self._clock = clock
        self._version = version or clock
        self._pool = ThreadPoolExecutor(limits.at_once, f"dashboard-{name}")
        self._lock = threading.Lock()  # guards all that follows; not held during a poll
        self._values: OrderedDict[K, _PolledValue[V]] = OrderedDict()
        self.changes = 0
        """How often what is shown has changed."""

    def view(self, key: K) -> V | None:
        """Returns the latest value of *key*, which is polled from now on; ``None`` if there is none."""
        now = self._clock()
        with self._lock:
            if key not in self._values:
                self._values[key] = _PolledValue(viewed=now, due=now)
                self.wake()
            polled = self._values[key]
            polled.viewed = now
            self._values.move_to_end(key)
            if len(self._values) > self._limits.values:
                self._values.popitem(last=False)
            return polled.value if now < polled.until else None

    def due(self) -> list[K]:
        """Returns the keys to poll now, those that wait for longest first. Drops values that are too old."""
        now, version = self._clock(), self._version()
        with self._lock:
            for polled in self._values.values():
                if polled.value is not None and now >= polled.until:
                    polled.value = None
                    self.changes += 1
            due = {key: polled.due for key, polled in self._values.items() if now >= polled.due
                   and now - polled.viewed <= self._limits.viewed and version != polled.version}
            return sorted(due, key=due.__getitem__)

    def put(self, key: K, value: V | None, version: Hashable = None) -> None:
        """Stores what a poll of *key* returned at *version*; ``None``: it has failed."""
        now = self._clock()
        with self._lock:
            if (polled := self._values.get(key)) is None or now - polled.viewed > self._limits.viewed:
                return
            polled.due = now + (FAILED_S if value is None else self._limits.interval)
            if value is not None:
                self.changes += value != polled.value
                polled.value, polled.until, polled.version = value, now + self._limits.shown, version

    def step(self) -> float:
        """Polls some of what is due. Values are fetched at the same time, and parsed here one after the other."""
        due, version, begun = self.due(), self._version(), self._clock()
        polls = [(key, self._pool.submit(self._fetch, key)) for key in due[:self._limits.at_once]]
        for key, poll in polls:
            value = None
            try:
                value = self._parse(poll.result())
            except HamiError as error:
                log.debug("dashboard poll without a result", extra={"key": str(key), "error": str(error)})
            except Exception:
                log.exception("dashboard poll failed", extra={"key": str(key)})
            self.put(key, value, version)
        self.pause(self._limits.pause * (self._clock() - begun))
        return 0.0 if len(due) > len(polls) else PAUSE_S

    def finish(self) -> None:
        """Waits for the polls in progress."""
        self._pool.shutdown()
