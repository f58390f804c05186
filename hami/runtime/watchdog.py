"""Threads that show whether they work, so that a liveness probe can restart a process in which one has died or hangs.

A watched thread calls `beat` in its loop. A beat says within how many seconds the next one follows, longer before a
wait. Calls to the API server beat, too, and loops that retry: an outage, however long, is no reason to restart.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable

log = logging.getLogger(__name__)

HUNG_S = 180.0
"""Seconds until the next beat, at most, while a thread computes or waits for one call."""


class WatchedThread(threading.Thread):
    """A daemon thread. It may return; it has died if it ends with an error."""

    def __init__(self, name: str, run: Callable[[], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(target=run, name=name, daemon=True)
        self._clock = clock
        self._due = math.inf
        self._died = ""

    def run(self) -> None:
        """Runs the target, which beats."""
        self.beat(HUNG_S)
        try:
            super().run()
        except BaseException as error:  # the outermost frame: there is nobody else to tell
            self._died = f"thread {self.name} died: {type(error).__name__}: {error}"
            log.exception("thread died", extra={"loop": self.name})
        self._due = math.inf

    def beat(self, within: float) -> None:
        """Reports that the thread works, and that the next beat follows *within* so many seconds."""
        self._due = self._clock() + within

    def problem(self) -> str:
        """Returns why the process must be restarted; empty if the thread works, has returned or was not started."""
        if self._died or self._clock() <= self._due:
            return self._died
        frame = sys._current_frames().get(self.ident or 0)
        log.error("thread hangs", extra={"loop": self.name, "stack": "".join(traceback.format_stack(frame))})
        return f"thread {self.name} hangs: no sign of life for {self._clock() - self._due:.0f} s more than it asked for"


def beat(within: float = HUNG_S) -> None:
    """Reports that the current thread works. Does nothing in a thread that is not watched."""
    thread = threading.current_thread()
    if isinstance(thread, WatchedThread):
        thread.beat(within)


def beat_before_wait(seconds: float | None = None) -> None:
    """Reports that the current thread waits; ``None``: until something happens."""
    beat(math.inf if seconds is None else seconds + HUNG_S)


def problems(threads: Iterable[WatchedThread]) -> str:
    """Returns which of *threads* have died or hang; empty if none."""
    return "; ".join(problem for thread in threads if (problem := thread.problem()))
