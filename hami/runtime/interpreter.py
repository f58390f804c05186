"""How Python is set in a process that has to answer within milliseconds."""

from __future__ import annotations

import gc
import sys

__all__ = ["freeze_gc", "set_switch_interval"]

SWITCH_SECONDS = 0.0005


def set_switch_interval() -> None:
    """Let a thread that computes give way to others after half a millisecond: Python's own five cost each filter beside
    it twenty."""
    sys.setswitchinterval(SWITCH_SECONDS)


def freeze_gc() -> None:
    """Take what is there now as lasting: the search for garbage leaves it out from here on. It would hold up all
    answers, for 15 ms with nothing but our libraries, for 100 ms with 5,000 nodes. Called anew, it first looks through
    what was set aside before."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
