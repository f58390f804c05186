"""Requests in flight, so that a background task leaves the interpreter to them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class InFlight:
    """Counts the requests that are being worked on."""

    def __init__(self) -> None:
        self._idle = threading.Condition()
        self._count = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Counts a request meanwhile."""
        with self._idle:
            self._count += 1
        try:
            yield
        finally:
            with self._idle:
                self._count -= 1
                if not self._count:
                    self._idle.notify_all()

    def wait_idle(self, timeout_s: float) -> bool:
        """Waits until no request is in flight, for at most so many seconds. Reports whether none is."""
        if not self._count:
            return True
        with self._idle:
            return self._idle.wait_for(lambda: not self._count, timeout_s)
