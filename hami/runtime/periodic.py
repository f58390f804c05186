"""A loop with a pause between its rounds."""

from __future__ import annotations

import abc
import threading

__all__ = ["PeriodicTask"]


class PeriodicTask(abc.ABC):
    """Goes round every *pause* seconds, the first time after one, until it is stopped. A round may change that."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._stopped = threading.Event()

    def run(self) -> None:
        """Go round until stopped."""
        while not self._stopped.wait(self._pause):
            self.tick()

    def stop(self) -> None:
        """End :meth:`run` after the present round."""
        self._stopped.set()

    @abc.abstractmethod
    def tick(self) -> None:
        """One round. What fails is logged and tried again in the next."""
