"""The queues for node locks: their order, and what is left of them."""

import contextlib

from hami.scheduler.lock_states import PLACE_S, LockId, LockStates
from testing.replicas import Clock

LOCK = LockId("n1", "key")


class Queue:
    """Binds that join and leave the queue for one lock."""

    def __init__(self):
        self.clock, self.waits = Clock(), []
        self.states = LockStates(self.waits.append, clock=self.clock)
        self.binds, self.waiters = {}, {}

    def join(self, *names):
        for name in names:
            self.binds[name] = self.states.queued(LOCK, name)
            state, self.waiters[name] = self.binds[name].__enter__()
        return state

    def leave(self, name, *, taken=False):
        if taken:
            self.states.record_taken(self.waiters[name])
        self.binds.pop(name).__exit__(None, None, None)

    def order(self):
        state = self.states._states["n1"]["key"]
        return "".join(
            name
            for waiter in state.queue
            for name, other in self.waiters.items()
            if waiter is other
        )


def test_binds_are_served_in_the_order_in_which_they_come():
    queue = Queue()
    queue.join(*"abc")
    assert queue.order() == "abc"
    assert queue.states.waiting() == {"n1": 3}
    queue.leave("b", taken=True)
    queue.join("b")
    assert queue.order() == "acb"


def test_a_bind_that_has_waited_in_vain_comes_back_to_its_place_but_not_before_the_one_that_works():
    queue = Queue()
    queue.join(*"abc")
    queue.leave("a")
    queue.join("d", "a")
    assert queue.order() == "bacd"
    queue.leave("b")
    queue.join("b")
    assert queue.order() == "abcd"


def test_a_place_is_kept_for_a_while():
    queue = Queue()
    queue.join(*"abc")
    queue.leave("b")
    queue.clock.seconds += PLACE_S + 1
    queue.states.forget_unused(lambda lock: None)
    queue.join("b")
    assert queue.order() == "acb"


def test_the_next_in_the_queue_is_woken_when_the_first_leaves_and_the_first_when_the_node_changes():
    queue = Queue()
    queue.join(*"abc")
    queue.states.wake(["n1"])
    assert [queue.waiters[name].news.is_set() for name in "abc"] == [True, False, False]
    queue.leave("b")
    assert not queue.waiters["c"].news.is_set()
    queue.leave("a")
    assert queue.waiters["c"].news.is_set()


def test_a_bind_that_has_the_lock_does_not_wait_any_more():
    queue = Queue()
    queue.join("a", "b")
    queue.states.record_taken(queue.waiters["a"])
    assert queue.states.waiting() == {"n1": 1}
    assert queue.order() == "ab"
    assert len(queue.waits) == 1
    queue.leave("b")
    assert queue.states.waiting() == {}
    assert len(queue.waits) == 2


def test_twenty_thousand_nodes_that_come_and_go_leave_nothing():
    states = LockStates(lambda seconds: None, clock=Clock())
    for number in range(20_000):
        lock = LockId(f"n{number}", "key")
        with states.queued(lock, f"uid{number}") as (state, waiter):
            states.record_taken(waiter)
            state.record_written("text", f"uid{number}", again=False)
        with states.unused(lock):
            pass
        states.wake([lock.node])
        states.wake([f"never locked {number}"])
    states.forget_unused(lambda lock: None)
    assert states._states == {}


def test_what_is_still_needed_is_not_forgotten():
    locked, unlocked, gone = ("text", 7), (None, 7), None
    for known, leftover, kept in (
        (locked, "", True),
        (unlocked, "", False),
        (unlocked, "text", True),
        (gone, "text", False),
    ):
        states = LockStates(lambda seconds: None)
        with states.unused(LOCK) as state:
            state.record_leftover(leftover)
        states.forget_unused(lambda lock: known)
        assert bool(states._states) is kept


def test_a_queue_is_not_forgotten():
    queue = Queue()
    state = queue.join("a")
    queue.states.forget_unused(lambda lock: None)
    assert queue.join("b") is state
    assert queue.order() == "ab"


def test_only_a_lock_without_a_queue_is_unused():
    queue = Queue()
    queue.join("a")
    with queue.states.unused(LOCK) as state:
        assert state is None
    queue.leave("a")
    with queue.states.unused(LOCK) as state, contextlib.ExitStack() as stack:
        assert state is not None
        _, waiter = stack.enter_context(queue.states.queued(LOCK, "b"))
        assert state.queue[1] is waiter
        assert queue.states.waiting() == {"n1": 1}
