"""A replica acts only while it leads and has read the cluster in its own term."""

import math
import threading

import pytest

from hami.errors import ClusterError
from hami.scheduler.leadership import Leadership
from testing.eventually import eventually
from testing.replicas import Clock


class Election:
    """An election whose result the test sets."""

    def __init__(self):
        self.until, self.needed, self.settled, self.term = 0.0, 0, 0.0, 0
        self.changed = threading.Condition()

    def leads_until(self):
        return self.until

    def settles_at(self):
        return self.settled

    def is_leader(self):
        return self.until > 0

    def need(self):
        self.needed += 1

    def tell(self, until):
        """A term begins, is renewed or ends."""
        with self.changed:
            if bool(self.until) != bool(until):
                self.term += 1
            self.until = until
            self.changed.notify_all()


class Role:
    """A Leadership in a thread of its own."""

    def __init__(self, catch_up=lambda: None):
        self.clock, self.election, self.lists = Clock(), Election(), 0
        self.listed, self.catch_up = threading.Semaphore(0), catch_up
        self.acting = Leadership(self.election, self._list, clock=self.clock)

    def _list(self):
        self.lists += 1
        try:
            self.catch_up()
        finally:
            self.listed.release()

    def lead(self, until=math.inf):
        self.election.tell(until)

    def acts(self):
        return self.acting.leads_until() > self.clock()

    def become_acting(self):
        eventually(self.acts, "the replica acts", interval=0.001)


@pytest.fixture
def role():
    made = Role()
    made.acting.start()
    yield made
    made.acting.stop()
    made.acting.join(10)
    assert not made.acting._thread.is_alive()


def test_a_replica_does_not_act_before_its_first_term(role):
    assert not role.acts()


def test_a_leader_acts_once_it_has_read_the_cluster(role):
    gate = threading.Event()
    role.catch_up = lambda: gate.wait(10)
    role.lead()
    assert not role.acts()
    gate.set()
    role.become_acting()
    assert role.lists == 1


def test_reading_is_retried_until_it_succeeds(role):
    def fail_once():
        if role.lists == 1:
            role.acting.wake()  # no need to wait
            raise ClusterError("no answer")

    role.catch_up = fail_once
    role.lead()
    role.become_acting()
    assert role.lists == 2


def test_nothing_is_read_while_writes_of_the_last_leader_may_arrive():
    role = Role()
    role.election.settled = role.clock() + 1
    role.lead()
    assert role.acting.step() == 1
    assert role.lists == 0
    role.clock.seconds += 1
    role.acting.step()
    assert role.acts()


def test_each_term_begins_with_reading(role):
    for term in (1, 2, 3):
        role.lead()
        role.become_acting()
        assert role.lists == term
        role.election.tell(0.0)
        assert not role.acts()


def test_what_was_read_in_an_earlier_term_does_not_count(role):
    gate, begun = threading.Event(), threading.Event()

    def read():
        begun.set()
        assert role.lists > 1 or gate.wait(10)

    role.catch_up = read
    role.lead()
    assert begun.wait(10)
    role.election.tell(0.0)
    role.lead()
    gate.set()
    role.become_acting()
    assert role.lists == 2


def test_a_lease_that_ran_out_while_reading_counts_again_when_it_is_renewed(role):
    role.catch_up = lambda: role.lists > 1 or lapse()

    def lapse():
        role.election.until = 0.0
        raise ClusterError("no answer")

    role.lead()
    assert role.listed.acquire(timeout=10)
    role.lead()  # renewed in the same term
    role.acting.wake()
    role.become_acting()


def test_an_expired_lease_ends_the_leadership(role):
    role.lead(until=role.clock() + 7)
    role.become_acting()
    role.clock.seconds += 7
    assert not role.acts()


def test_a_term_has_a_beginning(role):
    role.clock.seconds += 100
    role.lead()
    role.become_acting()
    assert role.acting.since() == role.clock()


def test_a_verb_waits_for_the_leadership_and_requests_it(monkeypatch):
    monkeypatch.setattr("hami.scheduler.leadership.REQUEST_S", 0.001)
    role = Role()
    seconds = iter(range(100))
    role.acting._clock = lambda: 1000.0 + next(seconds)
    assert role.acting.wait_until_leading(9.0) is False
    assert role.election.needed > 1


def test_a_verb_goes_on_as_soon_as_the_replica_acts(role, monkeypatch):
    """It is told so, and does not look again and again."""
    monkeypatch.setattr("hami.scheduler.leadership.REQUEST_S", 60.0)
    answers, gate = [], threading.Event()
    role.catch_up = lambda: gate.wait(20)
    verb = threading.Thread(
        target=lambda: answers.append(role.acting.wait_until_leading(60.0)), daemon=True
    )
    verb.start()
    eventually(lambda: role.election.needed > 1, "the verb waits", interval=0.001)
    role.lead()
    eventually(
        lambda: role.election.needed > 2,
        "the verb has been told of the term and waits again",
        interval=0.001,
    )
    gate.set()
    verb.join(20)
    assert answers == [True]


def test_a_verb_does_not_wait_when_the_process_stops(role):
    verb = threading.Thread(target=role.acting.wait_until_leading, args=(1e6,), daemon=True)
    verb.start()
    eventually(lambda: role.election.needed > 1, "the verb waits", interval=0.001)
    role.acting.stop()
    verb.join(20)
    assert not verb.is_alive()
    assert role.acting.wait_until_leading(1e6) is False


def test_a_verb_tells_the_leader_too_that_it_is_needed(role):
    role.lead()
    role.become_acting()
    before = role.election.needed
    assert role.acting.wait_until_leading(1.0)
    assert role.election.needed == before + 1
