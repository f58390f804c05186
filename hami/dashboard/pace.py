"""Pauses in long computations, so that they take little from the threads that place pods."""

from __future__ import annotations

import time
from collections.abc import Callable

SLICE_S = 0.00025  # of computing between two pauses
ASIDE_S = 0.002  # of a pause while pods are being placed: a slice then takes a tenth of their time


class Pace:
    """Called often by a computation, it pauses after each slice of time: *rest* times as long as the slice took, and
    for ASIDE_S or longer while *is_busy* says that others need the processor."""

    def __init__(self, rest: float, *, is_busy: Callable[[], bool] = lambda: False,
                 clock: Callable[[], float] = time.perf_counter,
                 sleep: Callable[[float], object] = time.sleep) -> None:
        self._rest = rest
        self._is_busy = is_busy
        self._clock = clock
        self._sleep = sleep
        self._begun = clock()

    def __call__(self) -> None:
        """Pauses if the slice is over."""
        taken = self._clock() - self._begun
        if taken >= SLICE_S:
            pause = taken * self._rest
            self._sleep(max(pause, ASIDE_S) if self._is_busy() else pause)
            self._begun = self._clock()


MakePace = Callable[[float], Pace]
"""Makes a pace with a rest."""
