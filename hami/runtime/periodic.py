"""A task that runs at intervals until it is stopped."""

from __future__ import annotations

import abc
import threading

from hami.runtime.watchdog import beat, beat_before_wait


class PeriodicTask(abc.ABC):
    """Calls `tick` after each interval until stopped. `tick` may change the interval."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval = interval_seconds
        self._stopped = threading.Event()

    def run(self) -> None:
        """Calls `tick` after each interval. Returns when stopped."""
        while not self._is_stopped_within_interval():
            beat()
            self.tick()

    def _is_stopped_within_interval(self) -> bool:
        beat_before_wait(self._interval)
        return self._stopped.wait(self._interval)

    def stop(self) -> None:
        """Ends `run` after the current tick."""
        self._stopped.set()

    @abc.abstractmethod
    def tick(self) -> None:
        """Does the work once. Failures are logged, not raised; the next tick retries."""
