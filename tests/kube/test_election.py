"""Leader election on a fake lease: terms by the monotonic clock, hung and refused API servers, release, hand-over."""

import logging
import math
import threading
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis.strategies import randoms

from hami.errors import ClusterError, Conflict, MalformedInput
from hami.kube.election import (
    HANDOVER_KEY,
    IDLE_S,
    SETTLE_S,
    AlwaysLeader,
    Election,
    LeaseTimes,
    Participant,
)
from hami.kube.leases import LeaseRecord
from testing.cases import cases
from testing.fake_cluster import FakeCluster, no_answer

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, UTC)
STAMP = "2026-01-02T03:04:05.000678Z"


class World:
    """A lease, a clock, and candidates whose steps are made when they are due."""

    def __init__(self):
        self.now, self.cluster, self.candidates, self.log = 1000.0, FakeCluster(), {}, []
        self.due, self.needs = {}, {}

    def utc(self):
        return NOW + timedelta(seconds=self.now - 1000)

    def join(
        self,
        identity,
        *,
        is_needed=lambda: True,
        is_writing=lambda: False,
        has_ended=lambda identity: False,
        **options,
    ):
        election = Election(
            self.cluster,
            Participant(
                namespace="hami",
                lease="scheduler",
                identity=identity,
                has_ended=has_ended,
                is_writing=is_writing,
            ),
            clock=lambda: self.now,
            now=self.utc,
            **options,
        )
        self.candidates[identity], self.due[identity], self.needs[identity] = (
            election,
            self.now,
            is_needed,
        )
        return election

    def step(self, identity):
        """Returns the seconds until the next step; logs a term that has begun or ended."""
        election = self.candidates[identity]
        if election.is_leader() and self.needs[identity]():
            election.need()
        term = election.term
        delay = election.step()
        self.note(identity, term)
        return delay

    def note(self, identity, term):
        for number in range(term + 1, self.candidates[identity].term + 1):
            self.log.append((identity, "started" if number % 2 else "stopped", self.now))

    def leave(self, identity):
        """The process ends in order."""
        election = self.candidates[identity]
        term = election.term
        election.stop()
        election.run()
        self.note(identity, term)

    def kill(self, identity):
        """The process is gone, without a word."""
        del self.candidates[identity], self.due[identity]

    def run(self, seconds):
        end = self.now + seconds
        while self.due and min(self.due.values()) <= end:
            identity = min(self.due, key=self.due.get)
            self.now = max(self.now, self.due[identity])
            self.due[identity] = self.now + max(0.001, self.step(identity))
            assert len(self.leaders()) <= 1
        self.now = max(self.now, end)

    def run_until_leader(self, identity, limit=60):
        began = self.now
        while not self.candidates[identity].is_leader():
            assert self.now - began < limit, f"{identity} does not lead after {limit} s"
            self.run(0.1)
        return self.now - began

    def wake(self, identity):
        self.due[identity] = self.now

    def leaders(self):
        return [identity for identity, election in self.candidates.items() if election.is_leader()]

    @property
    def lease(self):
        return self.cluster.leases["hami", "scheduler"]

    def hang(self, call):
        """The API server takes a request and says nothing: the caller's time runs out."""
        self.now += call.timeout
        raise no_answer()


@pytest.fixture
def world():
    return World()


def test_first_candidate_creates_the_lease(world):
    a = world.join("a")
    world.run(0)
    assert a.is_leader()
    assert a.leads_until() == 1007.0
    assert (world.lease.holder, world.lease.duration_s, world.lease.transitions) == ("a", 10, 0)
    assert world.lease.acquire_time == world.lease.renew_time == STAMP


def test_the_term_counts_from_before_the_write(world):
    a = world.join("a")
    world.cluster.on_call = lambda call: setattr(world, "now", world.now + 0.5)
    a.step()
    assert a.leads_until() == 1000.5 + 7.0  # one read, then the write was sent


def test_a_leader_renews_and_others_wait(world):
    a, b = world.join("a"), world.join("b")
    world.run(100)
    assert world.leaders() == ["a"]
    assert a.leads_until() > world.now + 4.9
    assert b.leads_until() == 0
    assert world.log == [("a", "started", 1000.0)]


def test_a_killed_leader_is_followed_within_the_target(world):
    world.join("a"), world.run(0), world.join("b")
    world.run(31.3)
    world.kill("a")
    assert world.run_until_leader("b") < 12
    assert (world.lease.holder, world.lease.transitions, world.lease.acquire_time) == (
        "b",
        1,
        world.lease.renew_time,
    )


def test_a_released_lease_is_followed_at_once(world):
    a = world.join("a")
    world.run(0)
    world.join("b")
    world.run(10)
    world.leave("a")
    assert (world.lease.holder, world.lease.duration_s) == ("", 1)
    assert not a.is_leader()
    world.kill("a")
    assert world.run_until_leader("b") < 3


def test_release_looks_again_after_a_conflict_and_never_takes_from_others(world):
    world.join("a")
    world.run(0)
    world.cluster.put_lease(
        LeaseRecord(namespace="hami", name="scheduler", holder="b", duration_s=10)
    )
    world.leave("a")
    assert world.lease.holder == "b"


def test_a_leader_that_stops_during_a_write_lets_its_lease_expire(world):
    a = world.join("a", is_writing=lambda: True)
    world.run(0)
    world.join("b")
    world.run(10)
    world.leave("a")
    assert world.lease.holder == "a"
    assert not a.is_leader()
    assert world.log[-1][:2] == ("a", "stopped")
    world.kill("a")
    assert world.run_until_leader("b") > 8


def test_a_write_without_answer_is_released_too(world):
    a = world.join("a")
    world.cluster.fail("write_lease", no_answer(), after=True)
    world.run(0)
    assert not a.is_leader()
    assert world.lease.holder == "a"
    world.leave("a")
    assert world.lease.holder == ""


@cases(
    "trouble",
    ("hung", lambda world, call: world.hang(call)),
    ("refused", lambda world, call: (_ for _ in ()).throw(ClusterError("connection refused"))),
    ("malformed", lambda world, call: (_ for _ in ()).throw(MalformedInput("lease", "", "broken"))),
    ("bug", lambda world, call: (_ for _ in ()).throw(RuntimeError("a bug"))),
)
def test_a_leader_that_cannot_renew_stops_when_its_term_ends_and_comes_back(world, trouble):
    a = world.join("a")
    world.run(20)
    end = a.leads_until()
    world.cluster.on_call = lambda call: trouble(world, call)
    world.run(30)
    [_, (_, what, at)] = world.log
    assert what == "stopped"
    assert end <= at < end + 0.2
    assert not a.is_leader()
    world.cluster.on_call = lambda call: None
    assert world.run_until_leader("a") <= 2.1
    assert world.lease.transitions == 0


def test_no_request_takes_as_long_as_a_retry_period(world):
    world.join("a"), world.join("b")
    world.run(60)
    assert all(0 < call.timeout < 2 for call in world.cluster.calls)


def test_a_leader_that_was_stopped_past_its_term_knows_it_at_once(world):
    a = world.join("a")
    world.run(10)
    b = world.join("b")
    world.run(0)
    world.due.pop("a")  # SIGSTOP
    world.run_until_leader("b")
    assert not a.is_leader()
    assert b.is_leader()
    world.due["a"] = world.now  # SIGCONT
    world.run(5)
    assert world.log[-1][:2] == ("a", "stopped")
    assert world.leaders() == ["b"]


def test_a_lost_answer_costs_nothing(world):
    a = world.join("a")
    world.run(0)
    world.cluster.fail("write_lease", no_answer(), after=True)
    world.run(30)
    assert a.is_leader()
    assert world.log == [("a", "started", 1000.0)]


def test_expiry_is_judged_by_what_was_seen_not_by_the_time_written(world):
    world.cluster.put_lease(
        LeaseRecord(
            namespace="hami",
            name="scheduler",
            holder="x",
            duration_s=10,
            transitions=4,
            renew_time="1999-01-01T00:00:00.000000Z",
        )
    )
    world.join("a")
    world.run(9.9)
    assert world.leaders() == []
    world.run(0.2)
    assert world.leaders() == ["a"]
    assert world.lease.transitions == 5


@cases("duration_s, until", ("none given: ours", 0, 10), ("the holder's own", 30, 30))
def test_a_lease_lasts_as_its_holder_says(world, duration_s, until):
    world.cluster.put_lease(
        LeaseRecord(namespace="hami", name="scheduler", holder="x", duration_s=duration_s)
    )
    world.join("a")
    assert until - 0.2 < world.run_until_leader("a") < until + 0.2


def test_a_deleted_lease_ends_the_term(world):
    a = world.join("a")
    world.run(5)
    world.cluster.leases.clear()
    world.step("a")
    assert not a.is_leader()
    assert world.log[-1][1] == "stopped"
    world.run(2)
    assert a.is_leader()


def test_losing_the_race_for_a_free_lease_is_no_trouble(world, caplog):
    world.join("a"), world.join("b")
    world.cluster.fail("write_lease", Conflict("exists", 409))
    world.run(3)
    assert world.leaders() == ["b"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_what_others_wrote_on_the_lease_survives(world):
    world.cluster.put_lease(
        LeaseRecord(namespace="hami", name="scheduler", annotations={"theirs": "x"})
    )
    world.join("a")
    world.run(10)
    assert world.lease.annotations == {"theirs": "x"}


def test_trouble_is_logged_once_while_it_lasts(world, caplog):
    world.join("a")
    world.cluster.fail("lease", ClusterError("connection refused"), times=20)
    world.run(15)
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


def test_who_waits_for_a_term_is_told_of_its_beginning_renewal_and_end(world):
    a = world.join("a")
    told = []
    a.changed.notify_all = lambda: told.append((a.term, a.is_leader()))
    for _ in range(2):
        a.step()
    world.leave("a")
    assert told == [(1, True), (1, True), (2, False)]


def hand_over_world(world, allowed=True, **options):
    """Leader a, standbys b and c; b asks."""
    world.join("a", is_needed=lambda: not allowed, **options)
    world.run(0)
    world.join("b"), world.join("c")
    world.run(20.5)
    world.candidates["b"].need()
    world.wake("b")


def test_a_leader_hands_over_to_the_one_that_asks(world):
    hand_over_world(world)
    assert world.run_until_leader("b") < 3
    assert world.lease.annotations == {}
    assert world.lease.transitions == 1
    assert [entry[:2] for entry in world.log] == [
        ("a", "started"),
        ("a", "stopped"),
        ("b", "started"),
    ]
    world.run(60)
    assert world.leaders() == ["b"]


def test_a_leader_may_refuse_and_goes_on(world):
    hand_over_world(world, allowed=False)
    world.run(60)
    assert world.leaders() == ["a"]
    assert world.lease.annotations == {HANDOVER_KEY: "b"}
    world.needs["a"] = lambda: False
    world.run(IDLE_S + 3)
    assert world.leaders() == ["b"]


def test_a_leader_does_not_hand_over_during_a_write(world):
    writing = [True]
    hand_over_world(world, is_writing=lambda: writing[0])
    world.run(60)
    assert world.leaders() == ["a"]
    assert world.log == [("a", "started", 1000.0)]
    writing.clear()
    writing.append(False)
    assert world.run_until_leader("b") < 3


def test_a_write_that_begins_just_before_the_hand_over_ends_the_term_but_keeps_the_lease(world):
    """The write has seen a leader; the election sees the write only when the term has ended."""
    writing = iter([False, True])
    hand_over_world(world, is_writing=lambda: next(writing, False))
    world.run_until_leader("b")
    assert [entry[:2] for entry in world.log[1:]] == [
        ("a", "stopped"),
        ("a", "started"),
        ("a", "stopped"),
        ("b", "started"),
    ]


def test_others_leave_the_lease_to_the_one_that_asked_but_not_for_ever(world):
    hand_over_world(world)
    world.run(0)
    world.kill("b")
    world.run(3.9)
    assert world.leaders() == []
    world.run(3)
    assert len(world.leaders()) == 1
    assert world.lease.annotations == {}


def test_a_request_that_crosses_a_renewal_is_still_granted(world):
    hand_over_world(world)
    world.run(0)
    world.cluster.fail("write_lease", Conflict("modified", 409))  # hits the leader's release
    assert world.run_until_leader("b") < 3


def test_a_hand_over_whose_answer_is_lost_completes(world):
    hand_over_world(world)
    world.run(0)
    world.cluster.fail("write_lease", no_answer(), after=True)
    assert world.run_until_leader("b") < 3


def test_a_hand_over_that_did_not_arrive_is_tried_again(world):
    hand_over_world(world)
    world.run(0)
    world.cluster.on_call = lambda call: (
        world.cluster.fail("write_lease", no_answer())
        if call.method == "write_lease" and call.lease.holder == "" and len(world.log) == 2
        else None
    )
    assert world.run_until_leader("b") < 8


def test_requests_in_quick_succession_are_one(world):
    hand_over_world(world, allowed=False)
    for _ in range(50):
        world.candidates["b"].need()
    before = len(world.cluster.calls_of("lease"))
    world.run(1.9)
    asked = [
        call
        for call in world.cluster.calls_of("write_lease")
        if call.lease.annotations.get(HANDOVER_KEY)
    ]
    assert len([call for call in asked if call.lease.holder == "a"]) >= 1
    assert len(world.cluster.calls_of("lease")) - before < 12


def test_a_leader_asks_nobody(world):
    a = world.join("a")
    world.run(0)
    a.need()
    world.run(10)
    assert world.lease.annotations == {}
    assert a.is_leader()


@settings(max_examples=60)
@given(rng=randoms(use_true_random=True))
def test_never_two_leaders_and_always_one_in_the_end(rng):
    """Hung, refused and lost answers, stopped and resumed processes, requests for hand-over: `World.run` asserts."""
    world = World()

    def mishap(call):
        match rng.random():
            case x if x < 0.1:
                world.hang(call)
            case x if x < 0.15:
                raise ClusterError("connection refused")
            case x if x < 0.25:
                world.cluster.fail(call.method, no_answer(), after=True)
            case x if x < 0.3:
                world.now += call.timeout * rng.random()

    for identity in "abc":
        world.join(identity, is_needed=lambda: rng.random() < 0.5)
    world.cluster.on_call = mishap
    for _ in range(40):
        world.run(rng.uniform(0, 8))
        identity = rng.choice("abc")
        world.due[identity] = world.now + rng.choice([0, 0, 3, 15])
        world.candidates[rng.choice("abc")].need()
    world.cluster.on_call = lambda call: None
    world.cluster.heal()
    world.run(30)
    assert len(world.leaders()) == 1
    for identity in "abc":
        what = [entry[1] for entry in world.log if entry[0] == identity]
        assert what == (["started", "stopped"] * len(what))[: len(what)]


def test_run_waits_between_steps_and_a_request_wakes_it():
    """With threads: a standby whose next look is far away asks at once."""
    cluster = FakeCluster()
    cluster.put_lease(LeaseRecord(namespace="n", name="l", holder="x", duration_s=3600))
    looked, asked = threading.Event(), threading.Event()

    def watch(call):
        looked.set()
        if call.method == "write_lease":
            asked.set()

    cluster.on_call = watch
    election = Election(
        cluster,
        Participant(namespace="n", lease="l", identity="b"),
        times=LeaseTimes(duration=3000, renew=2000, retry=1000),
    )
    thread = threading.Thread(target=election.run)
    thread.start()
    assert looked.wait(10)
    election.need()
    assert asked.wait(10)
    election.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_always_leader_leads_for_ever():
    leader = AlwaysLeader()
    leader.need()
    assert leader.is_leader()
    assert leader.leads_until() == math.inf
    assert leader.term == 1


@pytest.mark.parametrize(("released", "settles"), [(True, False), (False, True)])
def test_only_a_leader_whose_predecessor_did_not_release_the_lease_waits_for_late_writes(
    world, released, settles
):
    world.join("a")
    world.run(1)
    b = world.join("b")
    if released:
        world.leave("a")
    world.kill("a")
    world.run_until_leader("b")
    assert (b.settles_at() > world.now - 0.1 + SETTLE_S / 2) is settles
    assert AlwaysLeader().settles_at() == 0
