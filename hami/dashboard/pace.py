"""Pauses in long computations, so that they take little from the threads that place pods."""

from __future__ import annotations

import time
from collections.abc import Callable

SLICE_S = 0.00025  # of computing between two pauses


class Pace:
    """Called often by a computation, it pauses after each slice of time: *rest* times as long as the slice took."""

    def __init__(self, rest: float, *, clock: Callable[[], float] = time.perf_counter,
                 sleep: Callable[[float], object] = time.sleep) -> None:
        self._rest = rest
        self._clock = clock
        self._sleep = sleep
        self._begun = clock()

    def __call__(self) -> None:
        """Pauses if the slice is over."""
        taken = self._clock() - self._begun
        if taken >= SLICE_S:
            self._sleep(taken * self._rest)
            self._begun = self._clock()
