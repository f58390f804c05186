"""Turns of users who ask for something that takes time: one at a time of a namespace, and few in all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hami.dashboard.errors import PageError

AT_ONCE = 2  # of all namespaces; of each, one
WAIT_S = 5.0  # for the end of others


class Turns:
    """The turns of one kind of question. *busy*: what a user is told whose namespace is having its turn; *full*: while
    others have theirs."""

    def __init__(self, busy: str, full: str) -> None:
        self._busy_text = busy
        self._full_text = full
        self._free = threading.BoundedSemaphore(AT_ONCE)
        self._lock = threading.Lock()  # guards _busy
        self._busy: set[str] = set()

    @contextmanager
    def of(self, namespace: str) -> Iterator[None]:
        """Waits for a turn. Users of a namespace cannot keep those of others waiting. Raises: PageError."""
        with self._lock:
            if namespace in self._busy:
                raise PageError(self._busy_text, 429)
            self._busy.add(namespace)
        try:
            if not self._free.acquire(timeout=WAIT_S):
                raise PageError(self._full_text, 503)
            try:
                yield
            finally:
                self._free.release()
        finally:
            with self._lock:
                self._busy.discard(namespace)
