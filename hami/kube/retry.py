"""When calls to the API server are repeated: tenacity's exponential back-off, with jitter between replicas."""

from __future__ import annotations

from collections.abc import Callable

from tenacity import (
    RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_exponential, wait_random_exponential,
)
from tenacity.wait import wait_base

EVENT_WAIT = wait_exponential(multiplier=1.0, max=30.0)
"""Events: from 1 s to 30 s."""
WATCH_WAIT = wait_exponential(multiplier=0.1, max=5.0) + wait_random_exponential(multiplier=0.1, max=5.0)
"""Watches: from 0.2 s to 10 s, of which half is random, so that replicas do not reconnect together."""
CONFLICT_S = 0.01
"""Conflicts: the longest first wait, since the object only has to be read again."""


class Backoff:
    """The waits of a loop that never gives up. Not for use by several threads."""

    def __init__(self, wait: wait_base) -> None:
        self._wait = wait
        self.reset()

    def next(self) -> float:
        """Returns the seconds until the next attempt, after one more failure."""
        seconds = self._wait(self._state)
        self._state.prepare_for_next_attempt()
        return seconds

    def reset(self) -> None:
        """Starts again with the shortest wait, after a success."""
        self._state = RetryCallState(Retrying(), None, (), {})


def brief_retry(retriable: Callable[[BaseException], bool], sleep: Callable[[float], None],
                stop: Callable[[RetryCallState], bool] = stop_after_attempt(3), *, first_s: float = 0.1) -> Retrying:
    """The policy of a single call: attempts at most half a second apart, for *retriable* errors, until *stop*.

    *first_s*: seconds until the second attempt, at most; short if it is likely to succeed, as after a conflict.
    """
    return Retrying(retry=retry_if_exception(retriable), stop=stop, sleep=sleep, reraise=True,
                    wait=wait_random_exponential(multiplier=first_s, max=0.5))
