"""Values that many viewers share, so that they cost as much as one: answers, renderings and polled values."""

from __future__ import annotations

import gzip
import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from hami.dashboard.errors import PageError
from hami.errors import HamiError
from hami.runtime.tasks import Task

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

log = logging.getLogger(__name__)

MAX_ANSWERS = 512
MAX_RENDERINGS = 64
MAX_BYTES = 32 << 20  # of all renderings together
MIN_AGE_S, MAX_AGE_S = 1.0, 10.0  # until a rendering is replaced because the cluster has changed
AGE_FACTOR = 20.0  # how much longer a rendering is used than it took, between these
WAIT_S = 10.0  # for a rendering that others are waiting for
POLL_PAUSE_S = 0.5
STEP_S = 0.5  # for which what is due is polled before it is looked for again, which takes long in a large cluster
FAILED_S = 30.0  # until a failed poll is repeated
GIVE_WAY_S = 0.2  # that a batch of polls waits for a page that is made


class _Recent(OrderedDict[K, V]):
    """The *limit* values that were used last."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def use(self, key: K, value: V) -> None:
        """Stores the value of *key* as the one that was used last."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._limit:
            self.popitem(last=False)


class Answers(Generic[V]):
    """Answers of the API server by key, each used for *accepted_s* seconds, or *refused_s* if it is false. Threads may
    share it."""

    def __init__(
        self, clock: Callable[[], float], *, accepted_s: float, refused_s: float = 0.0
    ) -> None:
        self._clock = clock
        self._accepted_s = accepted_s
        self._refused_s = refused_s
        self._lock = threading.Lock()  # guards _kept; not held while the API server is asked
        self._kept = _Recent[Hashable, tuple[float, V]](MAX_ANSWERS)

    def get(self, key: Hashable, ask: Callable[[], V]) -> V:
        """Returns the answer to *key*, with *ask* if none is kept."""
        with self._lock:
            kept = self._kept.get(key)
        if kept is not None and self._clock() < kept[0]:
            return kept[1]
        answer = ask()
        with self._lock:
            self._kept.use(
                key, (self._clock() + (self._accepted_s if answer else self._refused_s), answer)
            )
        return answer

    def forget(self, key: Hashable) -> None:
        """Drops the answer to *key*."""
        with self._lock:
            self._kept.pop(key, None)


@dataclass(frozen=True, slots=True)
class Rendering:
    """A body, and the same compressed by gzip. *etag*: differs where the body does."""

    body: bytes
    compressed: bytes
    content_type: str
    etag: str

    @property
    def size(self) -> int:
        """The bytes that it occupies."""
        return len(self.body) + len(self.compressed)


@dataclass(frozen=True, slots=True)
class _Kept:
    rendering: Rendering
    version: Hashable
    until: float


class Renderings:
    """Renderings by key. They are made one at a time."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._making = threading.Lock()  # held while one is made
        self._lock = threading.Lock()  # guards _kept
        self._kept = _Recent[Hashable, _Kept](MAX_RENDERINGS)

    def get(
        self,
        key: Hashable,
        version: Callable[[], Hashable],
        make: Callable[[], tuple[str, str]],
        *,
        prepare: Callable[[], object] = lambda: None,
    ) -> Rendering:
        """Returns the rendering of *key* as of *version*, or one that is little older.

        *make* returns text and content type. *prepare*: is called before, and may wait: nobody else waits for it.
        Raises: PageError if others take too long, or what *make* or *prepare* raises.
        """
        if (current := self._current(key, version())) is not None:
            return current
        prepare()
        if not self._making.acquire(timeout=WAIT_S):
            raise PageError("the dashboard is busy, try again later", 503)
        try:
            now = version()
            if (current := self._current(key, now)) is not None:
                return current
            begun = self._clock()
            text, content_type = make()
            made = _rendering(text.encode(), content_type)
            ended = self._clock()
            until = ended + min(MAX_AGE_S, max(MIN_AGE_S, AGE_FACTOR * (ended - begun)))
            self._keep(key, _Kept(made, now, until))
            return made
        finally:
            self._making.release()

    def wait_until_made(self, seconds: float) -> None:
        """Waits while one is made, for so many seconds at most: what nobody waits for gives way to what a viewer does.
        Both need the interpreter."""
        if self._making.acquire(timeout=seconds):
            self._making.release()

    def _current(self, key: Hashable, version: Hashable) -> Rendering | None:
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or (kept.version != version and self._clock() >= kept.until):
                return None
            self._kept.move_to_end(key)
            return kept.rendering

    def _keep(self, key: Hashable, made: _Kept) -> None:
        with self._lock:
            self._kept.use(key, made)
            excess = sum(kept.rendering.size for kept in self._kept.values()) - MAX_BYTES
            while excess > 0 and len(self._kept) > 1:
                excess -= self._kept.popitem(last=False)[1].rendering.size


def _rendering(body: bytes, content_type: str) -> Rendering:
    etag = hashlib.sha256(body).hexdigest()[:32]
    return Rendering(body, gzip.compress(body, 1, mtime=0), content_type, etag)


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

    def __init__(
        self,
        name: str,
        fetch: Callable[[K], Any],
        limits: PollLimits,
        *,
        clock: Callable[[], float],
        parse: Callable[[Any], V] = lambda fetched: fetched,
        version: Callable[[], Hashable] | None = None,
        give_way: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """*fetch*: returns what *parse* makes the value of; raises HamiError, and may run in several threads.

        *version*: returns the version of that from which all values are made: a value is polled again only if it has
        changed; ``None``: it always has. *give_way*: waits for what is more urgent than a poll, for so many seconds at
        most.
        """
        super().__init__(name)
        self._fetch = fetch
        self._parse = parse
        self._limits = limits
        self._clock = clock
        self._version = version or clock
        self._give_way = give_way
        self._pool = ThreadPoolExecutor(limits.at_once, f"dashboard-{name}")
        self._lock = threading.Lock()  # guards all that follows; not held during a poll
        self._values = _Recent[K, _PolledValue[V]](limits.values)
        self._arrived = threading.Condition(self._lock)  # notified when there is a value
        self.changes = 0
        """How often what is shown has changed."""

    def view(self, key: K) -> V | None:
        """Returns the latest value of *key*, which is polled from now on; ``None`` if there is none."""
        now = self._clock()
        with self._lock:
            if (polled := self._values.get(key)) is None:
                polled = _PolledValue(viewed=now, due=now)
                self.wake()
            polled.viewed = now
            self._values.use(key, polled)
            return polled.value if now < polled.until else None

    def wait(self, keys: Collection[K], seconds: float) -> None:
        """Waits until there is a value of each of *keys*, which are polled from now on, for so many seconds at most."""
        for key in keys:
            self.view(key)
        with self._arrived:
            self._arrived.wait_for(lambda: all(map(self._has_value, keys)), seconds)

    def _has_value(self, key: K) -> bool:
        polled = self._values.get(key)
        return polled is None or polled.value is not None

    def due(self) -> list[K]:
        """Returns the keys to poll now, those that wait for longest first. Drops values that are too old."""
        now, version = self._clock(), self._version()
        with self._lock:
            for polled in self._values.values():
                if polled.value is not None and now >= polled.until:
                    polled.value = None
                    self.changes += 1
            due: dict[K, float] = {}
            for key, polled in self._values.items():
                if now < polled.due or now - polled.viewed > self._limits.viewed:
                    continue
                if version != polled.version:
                    due[key] = polled.due
            return sorted(due, key=due.__getitem__)

    def put(self, key: K, value: V | None, version: Hashable = None) -> None:
        """Stores what a poll of *key* returned at *version*; ``None``: it has failed."""
        now = self._clock()
        with self._lock:
            if (
                polled := self._values.get(key)
            ) is None or now - polled.viewed > self._limits.viewed:
                return
            polled.due = now + (FAILED_S if value is None else self._limits.interval)
            if value is not None:
                self.changes += value != polled.value
                polled.value, polled.until, polled.version = (
                    value,
                    now + self._limits.shown,
                    version,
                )
                self._arrived.notify_all()

    def step(self) -> float:
        """Polls what is due, for STEP_S at most and a poll. Values are fetched at the same time, and parsed here one
        after the other."""
        due, begun = self.due(), self._clock()
        polled = 0
        while polled < len(due) and (not polled or self._clock() - begun < STEP_S):
            self._give_way(GIVE_WAY_S)
            keys, version = due[polled : polled + self._limits.at_once], self._version()
            polled += len(keys)
            for key, fetched in [(key, self._start(key)) for key in keys]:
                self.put(key, self._value(key, fetched), version)
        self.pause(self._limits.pause * (self._clock() - begun))
        return 0.0 if polled < len(due) else POLL_PAUSE_S

    def _value(self, key: K, fetched: Callable[[], Any]) -> V | None:
        """Returns what is made of the fetched value of *key*; ``None``: it has failed."""
        try:
            return self._parse(fetched())
        except HamiError as error:
            log.debug(
                "dashboard poll without a result", extra={"key": str(key), "error": str(error)}
            )
        except Exception:
            log.exception("dashboard poll failed", extra={"key": str(key)})
        return None

    def _start(self, key: K) -> Callable[[], Any]:
        """Returns what waits for the fetched value. A single one is fetched in this thread: the process, which ends
        only after those of the pool, need not wait for it."""
        if self._limits.at_once == 1:
            return partial(self._fetch, key)
        return self._pool.submit(self._fetch, key).result

    def finish(self) -> None:
        """Waits for the polls in progress."""
        self._pool.shutdown()
