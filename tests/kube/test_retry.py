"""When calls are repeated: not before the time that the server asks for, and not for ever."""

import pytest

from hami.errors import ClusterError, Conflict
from hami.kube.retry import CONFLICT_WAIT, WATCH_WAIT, Backoff, attempts_within, brief_retry


def busy(seconds):
    return ClusterError("too many requests", 429, seconds)


def attempts(*errors, **options):
    """What a call that fails with *errors* comes to, and the waits between its attempts."""
    script, waits = list(errors), []

    def call():
        if script:
            raise script.pop(0)
        return "done"

    try:
        return brief_retry(lambda error: True, waits.append, **options)(call), waits
    except ClusterError as error:
        return error, waits


@pytest.mark.parametrize("seconds", [1.0, 7.0])
def test_a_call_is_not_repeated_before_the_server_wants_it(seconds):
    result, [wait] = attempts(busy(seconds))
    assert result == "done"
    assert seconds <= wait <= seconds + 0.5


def test_a_call_is_given_up_when_the_server_wants_it_too_late():
    error, waits = attempts(busy(30.0))
    assert error.status == 429
    assert waits == []
    error, waits = attempts(busy(5.0), stop=attempts_within(4.0))
    assert error.status == 429
    assert waits == []


def test_a_call_is_given_up_after_three_attempts():
    error, waits = attempts(*[busy(1.0)] * 3)
    assert error.status == 429
    assert len(waits) == 2


@pytest.mark.parametrize(("error", "least"), [(busy(20.0), 20.0), (ClusterError("reset"), 0.0)])
def test_a_loop_does_not_try_before_the_server_wants_it(error, least):
    backoff = Backoff(WATCH_WAIT)
    assert all(least < backoff.next(error) <= least + 10.0 for _ in range(20))


def test_replicas_that_conflict_wait_for_times_that_differ():
    backoffs = [Backoff(CONFLICT_WAIT) for _ in range(3)]
    waits = [[backoff.next(Conflict("changed", 409)) for _ in range(10)] for backoff in backoffs]
    assert all(0 <= wait <= 1.0 for row in waits for wait in row)
    assert len({tuple(row) for row in waits}) == 3
