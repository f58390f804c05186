"""Answers of the API server that are used again for some time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_ANSWERS = 512


class Answers(Generic[T]):
    """Answers by key, each used for *accepted_s* seconds, or *refused_s* if it is false. Threads may share it."""

    def __init__(self, clock: Callable[[], float], *, accepted_s: float, refused_s: float = 0.0) -> None:
        self._clock = clock
        self._accepted_s = accepted_s
        self._refused_s = refused_s
        self._lock = threading.Lock()  # guards _kept; not held while the API server is asked
        self._kept: OrderedDict[object, tuple[float, T]] = OrderedDict()

    def get(self, key: object, ask: Callable[[], T]) -> T:
        """Returns the answer to *key*, with *ask* if none is kept."""
        with self._lock:
            kept = self._kept.get(key)
        if kept is not None and self._clock() < kept[0]:
            return kept[1]
        answer = ask()
        with self._lock:
            self._kept[key] = self._clock() + (self._accepted_s if answer else self._refused_s), answer
            self._kept.move_to_end(key)
            if len(self._kept) > MAX_ANSWERS:
                self._kept.popitem(last=False)
        return answer

    def forget(self, key: object) -> None:
        """Drops the answer to *key*."""
        with self._lock:
            self._kept.pop(key, None)
