"""A sign for others that something is being done at the moment, or was a moment ago."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque

LATELY_S = 0.02


class InProgress:
    """Entered with ``with`` by each thread that does something; that never waits for others."""

    def __init__(self) -> None:
        self._marks: deque[None] = deque()  # appending to a deque and taking from it are atomic
        self._waiting: deque[threading.Lock] = deque()  # each is held until something ends
        self._ended = float("-inf")

    def __enter__(self) -> None:
        self._marks.append(None)

    def __exit__(self, *error: object) -> None:
        self._marks.pop()
        self._ended = time.monotonic()
        with contextlib.suppress(IndexError):  # nobody waits
            self._waiting.popleft().release()

    def is_lately(self) -> bool:
        """Reports whether any thread is at it, or was in the last LATELY_S."""
        return bool(self._marks) or time.monotonic() - self._ended < LATELY_S

    def wait_for_end(self, timeout: float) -> None:
        """Waits until a thread has done it, at most *timeout* seconds. Each end wakes one: the first that came."""
        held = threading.Lock()
        held.acquire()
        self._waiting.append(held)
        if not held.acquire(timeout=timeout):
            with contextlib.suppress(ValueError):  # taken just now
                self._waiting.remove(held)
