"""Reports a condition once, until it changes or ends."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable


class OncePerKey:
    """Remembers what was last reported for each key. Threads may share it.

    At most *limit* keys are remembered; the one reported longest ago is dropped first and may then be reported again.
    """

    def __init__(self, limit: int = 1000) -> None:
        self._limit = limit
        self._lock = threading.Lock()  # guards _reported; never held across I/O
        self._reported: OrderedDict[Hashable, object] = OrderedDict()

    def is_new(self, key: Hashable, value: object = None) -> bool:
        """Reports whether *value* differs from the last one for *key*, and remembers it."""
        with self._lock:
            is_new = key not in self._reported or self._reported[key] != value
            self._reported[key] = value
            self._reported.move_to_end(key)
            if len(self._reported) > self._limit:
                self._reported.popitem(last=False)
            return is_new

    def clear(self, key: Hashable) -> bool:
        """Forgets *key*, whose condition has ended. Returns whether it had been reported."""
        with self._lock:
            return self._reported.pop(key, self) is not self

    def keep_only(self, keys: Collection[Hashable]) -> None:
        """Forgets all keys but *keys*."""
        with self._lock:
            for key in self._reported.keys() - set(keys):
                del self._reported[key]
