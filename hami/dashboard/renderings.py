"""Keeps what has been rendered, so that many viewers cost as much as one."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from hami.dashboard.access import PageError

MAX_RENDERINGS = 64
MAX_BYTES = 32 << 20  # of all renderings together
MIN_AGE_S, MAX_AGE_S = 1.0, 10.0  # until a rendering is replaced because the cluster has changed
AGE_FACTOR = 20.0  # how much longer a rendering is used than it took, between these
WAIT_S = 10.0  # for a rendering that others are waiting for


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
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()

    def get(self, key: Hashable, version: Callable[[], Hashable], make: Callable[[], tuple[str, str]]) -> Rendering:
        """Returns the rendering of *key* as of *version*, or one that is little older.

        *make* returns text and content type. Raises: PageError if others take too long, or what *make* raises.
        """
        if (current := self._current(key, version())) is not None:
            return current
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

    def _current(self, key: Hashable, version: Hashable) -> Rendering | None:
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or (kept.version != version and self._clock() >= kept.until):
                return None
            self._kept.move_to_end(key)
            return kept.rendering

    def _keep(self, key: Hashable, made: _Kept) -> None:
        with self._lock:
            self._kept[key] = made
            self._kept.move_to_end(key)
            excess = sum(kept.rendering.size for kept in self._kept.values()) - MAX_BYTES
            while len(self._kept) > MAX_RENDERINGS or (excess > 0 and len(self._kept) > 1):
                excess -= self._kept.popitem(last=False)[1].rendering.size


def _rendering(body: bytes, content_type: str) -> Rendering:
    etag = hashlib.sha256(body).hexdigest()[:32]
    return Rendering(body, gzip.compress(body, 1, mtime=0), content_type, etag)
