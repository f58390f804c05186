"""Waiting for a condition. Standard library only."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["PATIENCE_S", "WaitTimeout", "eventually"]

PATIENCE_S = 90.0
"""Of a wait for something that shall happen. No test measures time by it, and any process may stand still meanwhile."""

T = TypeVar("T")


class WaitTimeout(AssertionError):
    """A condition did not hold in time; the message contains the last observed state."""


def eventually(
    check: Callable[[], T | None],
    message: str | Callable[[], str],
    *,
    timeout: float = PATIENCE_S,
    interval: float = 0.05,
) -> T:
    """Returns the first true result of *check*, which is called every *interval* seconds.

    An exception in *check* ends the wait. Raises: WaitTimeout with *message* after *timeout* seconds. The last call
    begins after that time, since this process may have stood still.
    """
    deadline = time.monotonic() + timeout
    is_last = False
    while not (result := check()):
        if is_last:
            raise WaitTimeout(
                f"not within {timeout:g} s: {message() if callable(message) else message}"
            )
        time.sleep(interval)
        is_last = time.monotonic() > deadline
    return result
