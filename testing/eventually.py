"""Waiting for a condition. Standard library only."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["WaitTimeout", "eventually"]

T = TypeVar("T")


class WaitTimeout(AssertionError):
    """A condition did not hold in time; the message contains the last observed state."""


def eventually(
    check: Callable[[], T],
    message: str | Callable[[], str],
    *,
    timeout: float = 30,
    interval: float = 0.05,
) -> T:
    """Returns the first true result of *check*, which is called every *interval* seconds.

    An exception in *check* ends the wait. Raises: WaitTimeout with *message* after *timeout* seconds.
    """
    deadline = time.monotonic() + timeout
    while not (result := check()):
        if time.monotonic() > deadline:
            raise WaitTimeout(
                f"not within {timeout:g} s: {message() if callable(message) else message}"
            )
        time.sleep(interval)
    return result
