"""Garbage among frozen objects is collected by the next freeze, and not before; threads switch often."""

import gc
import sys
import weakref

import pytest

from hami.runtime.interpreter import (
    FILLING_OBJECTS,
    YOUNG_OBJECTS,
    FreezeGc,
    collect_rarely,
    freeze_gc,
    set_switch_interval,
)


class Cycle:
    """An object that refers to itself, so only the garbage collector can free it."""

    def __init__(self):
        self.itself = self


def test_frozen_garbage_is_collected_by_the_next_freeze_only():
    cycle = Cycle()
    reference = weakref.ref(cycle)
    try:
        freeze_gc()
        del cycle
        gc.collect()
        assert gc.get_freeze_count() > 0
        assert reference() is not None
        freeze_gc()
        assert reference() is None
    finally:
        gc.unfreeze()


def test_a_busy_thread_yields_after_half_a_millisecond():
    before = sys.getswitchinterval()
    try:
        set_switch_interval()
        assert sys.getswitchinterval() == pytest.approx(0.0005)
    finally:
        sys.setswitchinterval(before)


def test_collections_are_rare_and_old_objects_are_still_looked_at():
    before = gc.get_threshold()
    try:
        collect_rarely()
        assert gc.get_threshold() == (YOUNG_OBJECTS, *before[1:])
        collect_rarely(7)
        assert gc.get_threshold() == (7, *before[1:])
    finally:
        gc.set_threshold(*before)


def test_collections_are_rarer_still_until_the_caches_have_been_filled():
    gc.unfreeze()
    before, answers = gc.get_threshold(), iter([False, True])
    freeze = FreezeGc(lambda seconds: next(answers))
    try:
        collect_rarely(FILLING_OBJECTS)
        assert freeze.step() == 0
        assert gc.get_threshold()[0] == FILLING_OBJECTS
        assert gc.get_freeze_count() == 0
        assert freeze.step() is None
        assert gc.get_threshold()[0] == YOUNG_OBJECTS
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
