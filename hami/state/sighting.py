"""The age of what carries the time of day at which it was written.

Neither clock suffices. The time of day may be wrong or jump, here or where it was written. The monotonic clock cannot,
but it only knows for how long this process has seen something. So the time of day is asked once, when the process
starts and finds what is there; what appears later is as old as it has been seen. What was there is revoked only after
the process has watched it for a while.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime

import msgspec

OBSERVED_S = 10.0
"""Seconds for which something is watched before its own time counts against it: an allocation that is alive goes on."""

SAME_S = 0.01
"""Seconds within which sightings are the same. Ages that are compared with them are a thousand times as long."""


class Sighting(msgspec.Struct, frozen=True, gc=False):
    """When something was first seen: *at*, by the monotonic clock, and *unix* seconds of the time of day; ``None`` if
    this process saw it appear."""

    at: float
    unix: float | None = None

    def claimed_age(self, written: float, clock: float) -> float:
        """Returns the seconds since it was *written* (Unix seconds), as far as that time can be believed."""
        return clock - self.at + (self.unix - written if self.unix is not None else 0.0)

    def proven_age(self, written: float, clock: float) -> float:
        """Returns for how long it has existed, for a decision to revoke it."""
        seen_for = clock - self.at
        return (
            max(seen_for, self.claimed_age(written, clock)) if seen_for >= OBSERVED_S else seen_for
        )


class Sightings:
    """Makes the sightings of one cache. *clock* is monotonic, *now* returns the time of day."""

    def __init__(self, clock: Callable[[], float], now: Callable[[], datetime]) -> None:
        self._clock = clock
        self._now = now
        self._has_listed = False
        self._last = Sighting(-math.inf)

    def finish_list(self) -> None:
        """Records that the first list is complete: what is seen from then on is new."""
        self._has_listed = True
        self._last = Sighting(-math.inf)

    def make(self) -> Sighting:
        """Returns the sighting of what is seen for the first time. What is seen within SAME_S has the same one: a list
        brings a hundred thousand objects."""
        clock = self._clock()
        if clock - self._last.at >= SAME_S:
            self._last = Sighting(clock, None if self._has_listed else self._now().timestamp())
        return self._last
