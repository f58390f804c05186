"""When calls to the API server are repeated: tenacity's exponential back-off, with jitter between replicas, and never
before the time that the server has asked for (Retry-After), as in client-go."""

from __future__ import annotations

from collections.abc import Callable

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    stop_before_delay,
    wait_exponential,
    wait_random_exponential,
)
from tenacity.stop import stop_base
from tenacity.wait import wait_base

from hami.errors import ClusterError, Conflict

EVENT_WAIT = wait_exponential(multiplier=1.0, max=30.0)
"""Events: from 1 s to 30 s."""
WATCH_WAIT = wait_exponential(multiplier=0.1, max=5.0) + wait_random_exponential(
    multiplier=0.1, max=5.0
)
"""Watches: from 0.2 s to 10 s, of which half is random, so that replicas do not reconnect together."""
CONFLICT_WAIT = wait_random_exponential(multiplier=0.1, max=1.0)
"""Conflicts between replicas that start together: at random, up to 1 s."""
CONFLICT_S = 0.01
"""Conflicts: the longest first wait, since the object only has to be read again."""


def attempts_within(seconds: float) -> stop_base:
    """Returns the limit of a single call: three attempts, the last of which begins within so many *seconds*."""
    return stop_after_attempt(3) | stop_before_delay(seconds)


BRIEFLY = attempts_within(15.0)
"""The usual limit of a single call: kube-scheduler waits 30 s for a bind."""


class Backoff:
    """The waits of a loop that never gives up. Not for use by several threads."""

    def __init__(self, wait: wait_base) -> None:
        self._wait = wait
        self.reset()

    def next(self, error: BaseException) -> float:
        """Returns the seconds until the next attempt, after one more *error*."""
        seconds = self._wait(self._state)
        self._state.prepare_for_next_attempt()
        return _retry_after(error) + seconds

    def reset(self) -> None:
        """Starts again with the shortest wait, after a success."""
        self._state = RetryCallState(Retrying(), None, (), {})


def brief_retry(
    retriable: Callable[[BaseException], bool],
    sleep: Callable[[float], None],
    stop: Callable[[RetryCallState], bool] = BRIEFLY,
    *,
    first_s: float = 0.1,
) -> Retrying:
    """The policy of a single call: attempts at most half a second apart, or as far as the server asks, for *retriable*
    errors, until *stop*.

    *first_s*: seconds until the second attempt, at most; short if it is likely to succeed, as after a conflict.
    """
    jitter = wait_random_exponential(multiplier=first_s, max=0.5)

    def wait(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        return _retry_after(error) + jitter(state)

    return Retrying(
        retry=retry_if_exception(retriable), stop=stop, sleep=sleep, wait=wait, reraise=True
    )


def is_conflict(error: BaseException) -> bool:
    """Reports whether somebody else has changed the object, so that it is to be read again."""
    return isinstance(error, Conflict)


def _retry_after(error: BaseException | None) -> float:
    """Returns the seconds for which the server asks to wait; 0 if it does not."""
    return error.retry_after_s if isinstance(error, ClusterError) else 0.0
