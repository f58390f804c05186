"""Loops as tasks: each has a thread, and shows whether it works, so that a liveness probe can restart the process if a
task has died or hangs.

A task works in steps, each limited in time; `Task.beat` extends the limit within a step. A step that fails is retried:
an outage of the API server, however long, is no reason to restart.
"""

from __future__ import annotations

import abc
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

HUNG_S = 180.0
"""Seconds that a step may take, or the part of one between two beats."""
RETRY_S = 5.0
"""Seconds until a step is retried that has failed unexpectedly."""


class Task(abc.ABC):
    """A loop in a daemon thread. All methods but `step`, `finish`, `beat`, `each` and `pause` may be called by any
    thread."""

    def __init__(self, name: str, *, limit_s: float = HUNG_S) -> None:
        """*name*: of the thread, in ``/healthz`` and in the log. *limit_s*: seconds for a step, instead of HUNG_S."""
        self.name = name
        self._limit_s = limit_s
        self._due = math.inf  # by the monotonic clock; of the next beat
        self._died = ""
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run_to_the_end, name=name, daemon=True)

    @abc.abstractmethod
    def step(self) -> float | None:
        """Does the work once. Returns the seconds until the next step, or ``None`` if there is none."""

    def finish(self) -> None:
        """Cleans up after the last step, in the task's thread."""

    def run(self) -> None:
        """Takes steps until `stop`, in the calling thread."""
        delay: float | None = 0.0
        while delay is not None and not self.is_stopping():
            self._woken.clear()
            self.beat()
            try:
                delay = self.step()
            except Exception:
                log.exception("task failed, will retry", extra={"task": self.name})
                delay = RETRY_S
            if delay and not self.is_stopping():
                self.beat(delay)
                self._woken.wait(None if delay == math.inf else delay)
        self.beat()
        self.finish()

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Makes the task end after the current step."""
        self._stopping.set()
        self.wake()

    def join(self, timeout_s: float) -> None:
        """Waits until the thread has ended, for at most so many seconds; not at all if it was not started."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def wake(self) -> None:
        """Makes the next step begin at once, or right after the current one."""
        self._woken.set()

    def is_stopping(self) -> bool:
        """Reports whether `stop` has been called."""
        return self._stopping.is_set()

    def pause(self, seconds: float) -> bool:
        """Waits within a step, until `stop` at most. Reports whether to stop."""
        self.beat(seconds)
        is_stopping = self._stopping.wait(seconds)
        self.beat()
        return is_stopping

    def beat(self, wait_s: float = 0.0) -> None:
        """Grants the step its full time again, after a wait of *wait_s* seconds, which may be infinite."""
        self._due = time.monotonic() + wait_s + self._limit_s

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """Yields *items*, each of which is granted the time of a step."""
        for item in items:
            self.beat()
            yield item

    def silence_s(self, now: float) -> float:
        """Returns the seconds since the task should have shown that it works; infinite if it has died, and 0 if it has
        ended or was not started. *now*: by the monotonic clock."""
        if self._died:
            return math.inf
        return max(0.0, now - (self._due - self._limit_s))

    def problem(self, now: float) -> str:
        """Returns why the process must be restarted; empty if the task works, has ended or was not started.

        *now*: by the monotonic clock.
        """
        if self._died or now <= self._due:
            return self._died
        frame = sys._current_frames().get(self._thread.ident or 0)
        log.error(
            "thread hangs",
            extra={"task": self.name, "stack": "".join(traceback.format_stack(frame))},
        )
        return f"thread {self.name} hangs: no sign of life for {now - self._due:.0f} s more than it asked for"

    def _run_to_the_end(self) -> None:
        try:
            self.run()
        except BaseException as error:  # the outermost frame: no caller could handle it
            self._died = f"thread {self.name} died: {type(error).__name__}: {error}"
            log.exception("thread died", extra={"task": self.name})
        self._due = math.inf


class PeriodicTask(Task):
    """Calls *work* at once, and again *interval_s* seconds after each call has ended. *work* may be long: see *limit_s*
    of `Task`."""

    def __init__(
        self, name: str, work: Callable[[], object], interval_s: float, *, limit_s: float = HUNG_S
    ) -> None:
        super().__init__(name, limit_s=limit_s)
        self._work = work
        self._interval_s = interval_s

    def step(self) -> float:
        """Calls *work*."""
        self._work()
        return self._interval_s


def problems(tasks: Iterable[Task], now: float | None = None) -> str:
    """Returns which of *tasks* have died or hang; empty if none. *now*: by the monotonic clock."""
    if now is None:
        now = time.monotonic()
    reasons = [task.problem(now) for task in tasks]
    return "; ".join(filter(None, reasons))
