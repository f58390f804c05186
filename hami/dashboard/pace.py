"""Pauses in long computations, so that they take little from the threads that place pods."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from hami.runtime.in_progress import InProgress

T = TypeVar("T")

SLICE_S = 0.001  # of computing between two pauses: shorter slices cost filters more, by the changes of threads
REST = 0.5  # pauses of a page, as a multiple of the time for which it computes
ITEMS = 32  # small ones, between two looks at the time
ASIDE_S = 0.025  # of a pause at most while pods are being placed; more than LATELY_S, after which they no longer are


class Pace:
    """Called often by a computation, it pauses after each slice of time, *rest* times as long as the slice took.

    While pods are being *placed*, computations continue one at a time, each when a pod has been placed: a slice that
    begins then does not interrupt the thread that places the next one.
    """

    def __init__(self, rest: float, *, placed: InProgress | None = None,
                 clock: Callable[[], float] = time.perf_counter,
                 sleep: Callable[[float], object] = time.sleep) -> None:
        self._rest = rest
        self._placed = placed
        self._clock = clock
        self._sleep = sleep
        self._begun = clock()

    def __call__(self) -> None:
        """Pauses if the slice is over."""
        taken = self._clock() - self._begun
        if taken >= SLICE_S:
            if self._placed is not None and self._placed.is_lately():
                self._placed.wait_for_end(ASIDE_S)
            else:
                self._sleep(taken * self._rest)
            self._begun = self._clock()


def paced(items: Iterable[T], pace: Callable[[], None]) -> Iterator[T]:
    """Yields *items*, of which each costs some microseconds, and lets *pace* pause after every few of them."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % ITEMS == 0:
            pace()


MakePace = Callable[[float], Pace]
"""Makes a pace with a rest."""
