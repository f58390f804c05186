"""Background work leaves the interpreter to requests, but not for ever."""

import threading

import pytest

from hami.runtime.in_flight import InFlight


def test_it_waits_until_the_last_request_has_ended():
    in_flight, waits = InFlight(), threading.Event()
    assert in_flight.wait_idle(0)
    outcome = []

    def wait():
        waits.set()
        outcome.append(in_flight.wait_idle(30))

    waiter = threading.Thread(target=wait)
    with in_flight.request():
        with in_flight.request():
            assert not in_flight.wait_idle(0.001)
        assert not in_flight.wait_idle(0.001)
        waiter.start()
        waits.wait(30)
        assert waiter.is_alive()
    waiter.join(30)
    assert outcome == [True]


def test_a_request_that_fails_is_counted_no_longer():
    in_flight = InFlight()
    with pytest.raises(ValueError, match="failed"), in_flight.request():
        raise ValueError("failed")
    assert in_flight.wait_idle(0)
