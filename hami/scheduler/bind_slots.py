"""A limit on the binds that wait or write at a time: each of them occupies a thread."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from hami.errors import NodeLocked
from hami.model import PodRef


class BindSlots:
    """At most *most* binds at a time. Threads may share it.

    A namespace gets no more of them than it leaves free for others, so there is nearly always one for the first bind of
    another namespace.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._lock = threading.Lock()  # guards _free and _taken; not held while a bind waits
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, ref: PodRef) -> Iterator[None]:
        """Takes a slot for the pod meanwhile. Raises: NodeLocked if there is none for its namespace."""
        namespace = ref.namespace
        with self._lock:
            if self._taken[namespace] >= self._free:
                raise NodeLocked(
                    f"pod {ref}: too many pods are being bound already, it must be tried again"
                )
            self._taken[namespace] += 1
            self._free -= 1
        try:
            yield
        finally:
            with self._lock:
                self._free += 1
                self._taken[namespace] -= 1
                if not self._taken[namespace]:
                    del self._taken[namespace]
