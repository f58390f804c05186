"""A replica acts only while it leads and has read the cluster in its own term."""

import math
import threading

import pytest

from e2e.eventually import eventually
from hami.errors import ClusterError
from hami.scheduler.leadership import IDLE_S, Leadership
from tests.world import Clock


class Election:
    """An election whose result the test sets."""

    def __init__(self):
        self.until, self.asked, self.settled = 0.0, 0, 0.0

    def leads_until(self):
        return self.until

    def settles_at(self):
        return self.settled

    def request_handover(self):
        self.asked += 1


class Role:
    """A Leadership in a thread of its own."""

    def __init__(self, catch_up=lambda: None):
        self.clock, self.election, self.lists = Clock(), Election(), 0
        self.listed, self.catch_up = threading.Semaphore(0), catch_up
        self.acting = Leadership(lambda leadership: self.election, self._list, clock=self.clock)
        self.thread = threading.Thread(target=self.acting.run, daemon=True)

    def _list(self):
        self.lists += 1
        try:
            self.catch_up()
        finally:
            self.listed.release()

    def lead(self, until=math.inf):
        self.election.until = until
        self.acting.started()

    def acts(self):
        return self.acting.leads_until() > self.clock()

    def become_acting(self):
        eventually(self.acts, "the replica acts", interval=0.001)


@pytest.fixture
def role():
    made = Role()
    made.thread.start()
    yield made
    made.acting.stop()
    made.thread.join(10)
    assert not made.thread.is_alive()


def test_a_replica_does_not_act_before_its_first_term(role):
    role.election.until = math.inf
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
            role.acting._wake.set()  # no need to wait
            raise ClusterError("no answer")

    role.catch_up = fail_once
    role.lead()
    role.become_acting()
    assert role.lists == 2


def test_nothing_is_read_while_writes_of_the_last_leader_may_arrive(role):
    role.election.settled = role.clock() + 1
    role.lead()
    assert not role.acting._try_to_catch_up(role.acting._term) and role.lists == 0
    role.clock.seconds += 1
    role.acting._wake.set()
    role.become_acting()


def test_each_term_begins_with_reading(role):
    for term in (1, 2, 3):
        role.lead()
        role.become_acting()
        assert role.lists == term
        role.acting.stopped()
        assert not role.acts()


def test_what_was_read_in_an_earlier_term_does_not_count(role):
    gate, begun = threading.Event(), threading.Event()

    def read():
        begun.set()
        assert role.lists > 1 or gate.wait(10)

    role.catch_up = read
    role.lead()
    assert begun.wait(10)
    role.acting.stopped()
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
    role.election.until = math.inf  # renewed in the same term: no callback
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


def test_a_verb_waits_for_the_leadership_and_requests_it():
    role = Role()
    seconds = iter(range(100))
    role.acting._clock = lambda: 1000.0 + next(seconds)
    assert role.acting.wait_until_leading(3.0) is False and role.election.asked > 0


def test_a_verb_does_not_wait_when_the_process_stops():
    role = Role()
    role.acting.stop()
    assert role.acting.wait_until_leading(1e9) is False


def test_an_idle_leader_may_hand_over(role):
    assert role.acting.is_idle()
    role.lead()
    role.become_acting()
    assert role.acting.wait_until_leading(1.0)
    assert not role.acting.is_idle()
    role.clock.seconds += IDLE_S + 1
    assert role.acting.is_idle()
