"""Threads that die or hang are reported; those that wait or retry are not, however long."""

import threading

import pytest

from hami.errors import ClusterError
from hami.kube.reflector import Reflector, WatchedResource
from hami.runtime.periodic import PeriodicTask
from hami.runtime.watchdog import HUNG_S, WatchedThread, beat, beat_before_wait, problems
from tests.world import Clock


class Loop:
    """A watched thread that calls *body* with the event that ends it."""

    def __init__(self, body):
        self.clock, self.blocked, self.over = Clock(), threading.Event(), threading.Event()
        self.thread = WatchedThread("loop", lambda: body(self), clock=self.clock)
        self.thread.start()

    def block(self):
        self.blocked.set()
        self.over.wait(20)

    def end(self):
        self.over.set()
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture
def loop():
    made = []

    def make(body):
        made.append(Loop(body))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_a_thread_that_dies_is_named(loop):
    made = loop(lambda loop: 1 / 0)
    made.thread.join(20)
    assert problems([made.thread]) == "thread loop died: ZeroDivisionError: division by zero"


def test_a_thread_that_returns_or_was_not_started_is_no_problem(loop):
    made = loop(lambda loop: None)
    made.thread.join(20)
    made.clock.seconds += 1e9
    assert problems([made.thread, WatchedThread("later", print)]) == ""


def test_a_thread_that_hangs_is_named_until_it_goes_on(loop, caplog):
    def body(loop):
        loop.block()
        beat()
        loop.blocked.set()
        loop.later.wait(20)

    made = loop(body)
    made.later = threading.Event()
    assert made.blocked.wait(20)
    made.clock.seconds += HUNG_S
    assert problems([made.thread]) == ""
    made.clock.seconds += 1
    assert problems([made.thread]) == "thread loop hangs: no sign of life for 1 s more than it asked for"
    assert "in block" in caplog.records[-1].stack, "the log shows where"
    made.blocked.clear()
    made.over.set()
    assert made.blocked.wait(20) and problems([made.thread]) == ""
    made.later.set()


@pytest.mark.parametrize(("seconds", "after", "hangs"), [
    (None, 1e9, False), (3600, 3600, False), (3600, 3600 + HUNG_S + 1, True)])
def test_a_thread_says_how_long_it_waits(loop, seconds, after, hangs):
    made = loop(lambda loop: (beat_before_wait(seconds), loop.block()))
    assert made.blocked.wait(20)
    made.clock.seconds += after
    assert bool(problems([made.thread])) is hangs


def test_beats_of_other_threads_are_ignored():
    beat()
    beat_before_wait()


# loops of ours

class Source:
    """An API server: *answer* makes each response."""

    def __init__(self, answer):
        self.answer = answer

    def request(self, *arguments, **options):
        return self.answer()


class Blocking:
    """A sink that hangs."""

    def __init__(self, loop):
        self.upsert = lambda item: loop.block()
        self.prune = lambda seen, started: None


def reflector(source, sink, **options):
    pods = WatchedResource(name="pods", path="/p", parse=bytes, key=lambda item: "k")
    return Reflector(source, pods, sink, **options)


def test_an_outage_of_the_api_server_is_no_reason_to_restart(loop):
    def refuse():
        raise ClusterError("connection refused")

    seen = []

    def wait(delay):
        made.clock.seconds += delay
        seen.append(problems([made.thread]))
        if made.clock.seconds > 1000 + 2 * 3600:
            watching.stop()

    watching = reflector(Source(refuse), None, wait=wait)
    ready = threading.Event()
    made = loop(lambda loop: (ready.wait(20), watching.run()))
    ready.set()
    made.thread.join(60)
    assert len(seen) > 500 and set(seen) == {""}


def test_a_reflector_whose_sink_hangs_is_reported(loop):
    page = b'{"metadata": {"resourceVersion": "1"}, "items": [{}]}'
    watching = []

    def body(loop):
        watching.append(reflector(Source(lambda: page), Blocking(loop)))
        watching[0].run()

    made = loop(body)
    assert made.blocked.wait(20)
    made.clock.seconds += HUNG_S + 1
    assert "thread loop hangs" in problems([made.thread])
    watching[0].stop()


class Work(PeriodicTask):
    """A periodic task that hangs in its first tick."""

    def __init__(self, loop):
        super().__init__(0.0)
        self.loop = loop

    def tick(self):
        self.loop.block()
        self.stop()


def test_a_periodic_task_that_hangs_is_reported(loop):
    made = loop(lambda loop: Work(loop).run())
    assert made.blocked.wait(20) and problems([made.thread]) == ""
    made.clock.seconds += HUNG_S + 1
    assert "thread loop hangs" in problems([made.thread])
