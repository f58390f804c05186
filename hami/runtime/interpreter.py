"""Interpreter settings for processes that must answer within milliseconds."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

from hami.runtime.tasks import Task

SWITCH_INTERVAL_S = 0.0005
YOUNG_OBJECTS = 50_000  # that are allocated between two collections; Python's default is 700
FILLING_OBJECTS = 2_000_000  # the same while caches are filled, which leaves next to no garbage
WAIT_S = 1.0  # between two looks whether the process ends, while caches are filled


def set_switch_interval() -> None:
    """Makes a computing thread yield to others after 0.5 ms. With Python's default of 5 ms, a busy thread adds 20 ms to
    each filter request."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def collect_rarely(young: int = YOUNG_OBJECTS) -> None:
    """Makes garbage collections rare while many objects are allocated that stay: filling a cache takes a fifth less.

    *young*: objects that are allocated between two collections.
    """
    gc.set_threshold(young, *gc.get_threshold()[1:])


def freeze_gc() -> None:
    """Excludes all live objects from later garbage collections.

    A full collection blocks every thread: 15 ms for the imported libraries alone, 100 ms with a cache of 5,000 nodes.
    A second call first collects what has become garbage among the objects frozen before.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class FreezeGc(Task):
    """Excludes all objects from later garbage collections, once, when the caches have been filled. Collections are as
    frequent as usual from then on. *is_filled*: reports whether they have, after at most so many seconds."""

    def __init__(self, is_filled: Callable[[float], bool]) -> None:
        super().__init__("gc")
        self._is_filled = is_filled

    def step(self) -> float | None:
        """Waits for a while, or does it."""
        if not self._is_filled(WAIT_S):
            return 0.0
        gc.freeze()  # without a collection before: with 20,000 nodes the first pods would wait 0.7 s for it
        collect_rarely()
        return None
