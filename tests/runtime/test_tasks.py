"""Loops as tasks: those that die or hang are reported; those that wait or retry are not, however long."""

import math
import re
import threading
import time

import pytest

from hami.errors import ClusterError
from hami.kube.reflector import Reflector, WatchedResource
from hami.runtime.tasks import HUNG_S, PeriodicTask, Task, problems
from testing.cases import cases
from testing.eventually import PATIENCE_S, eventually


class Scripted(Task):
    """A task whose steps call *body* with the task."""

    def __init__(self, body, **options):
        super().__init__("loop", **options)
        self.body, self.blocked, self.released, self.steps = (
            body,
            threading.Event(),
            threading.Event(),
            0,
        )

    def step(self):
        self.steps += 1
        return self.body(self)

    def block(self):
        self.blocked.set()
        self.released.wait(PATIENCE_S)

    def finish(self):
        self.finished = True


@pytest.fixture
def started():
    made = []

    def start(body, **options):
        made.append(Scripted(body, **options))
        made[-1].start()
        return made[-1]

    yield start
    for task in made:
        task.released.set()
        task.stop()
        task.join(20)
        assert not task._thread.is_alive()


def after(seconds, *tasks):
    """What is wrong with *tasks* in so many seconds."""
    return problems(tasks, time.monotonic() + seconds)


def exit_thread(task):
    raise SystemExit("over")


def test_a_thread_that_dies_is_named(started):
    task = started(exit_thread)
    task.join(20)
    assert problems([task]) == "thread loop died: SystemExit: over"


def test_a_task_that_has_ended_or_was_not_started_is_no_problem(started):
    task = started(lambda task: None)
    task.join(20)
    assert task.steps == 1
    assert task.finished
    assert after(1e9, task, Scripted(print)) == ""
    Scripted(print).join(20)


def test_a_task_that_hangs_is_named_until_it_goes_on(started, caplog):
    task = started(lambda task: task.block())
    assert task.blocked.wait(20)
    assert after(HUNG_S - PATIENCE_S, task) == ""
    reason = r"thread loop hangs: no sign of life for \d+ s more than it asked for"
    assert re.fullmatch(reason, after(HUNG_S + 15, task))
    assert "in block" in caplog.records[-1].stack, "the log shows where"
    task.beat(50)
    assert after(HUNG_S + 15, task) == ""


def test_a_task_is_silent_once_it_should_have_shown_that_it_works():
    task = PeriodicTask("loop", print, 5.0)
    assert task.silence_s(1e9) == 0.0, "it was not started"
    before = time.monotonic()
    task.beat(5.0)
    assert task.silence_s(before + 4) == 0.0
    assert task.silence_s(time.monotonic() + 105) >= 100


def test_a_task_that_has_died_is_silent_for_ever(started):
    task = started(exit_thread)
    task.join(20)
    assert task.silence_s(time.monotonic()) == math.inf


@cases(
    "delay, seconds, hangs",
    (math.inf, 1e9, False),
    (3600.0, 3600, False),
    (3600.0, 3600 + HUNG_S + 1, True),
)
def test_a_task_may_wait_as_long_as_it_says(started, delay, seconds, hangs):
    task = started(lambda task: delay)
    eventually(lambda: task._due > time.monotonic() + HUNG_S + 1, "the task waits", interval=0.001)
    assert bool(after(seconds, task)) is hangs


def test_a_step_may_be_granted_more_time(started):
    task = started(lambda task: task.block(), limit_s=900.0)
    assert task.blocked.wait(20)
    assert after(800, task) == ""
    assert after(901, task)


def test_each_part_of_a_long_step_is_granted_the_time_of_a_step():
    task = Scripted(print)
    due = []
    for _ in task.each(range(3)):
        due.append(task._due)
        time.sleep(0.001)
    assert due == sorted(set(due))


def test_a_step_that_fails_is_retried(started, caplog, monkeypatch):
    monkeypatch.setattr("hami.runtime.tasks.RETRY_S", 3600.0)
    task = started(lambda task: 1 / 0)
    eventually(lambda: task._due > time.monotonic() + HUNG_S + 1, "the task waits", interval=0.001)
    task.wake()
    eventually(lambda: task.steps == 2, "the task tries again", interval=0.001)
    assert caplog.records[0].task == "loop"
    assert problems([task]) == ""


def test_waking_is_not_forgotten_while_a_step_runs():
    def body(task):
        if task.steps == 1:
            task.wake()
            return math.inf
        return None

    task = Scripted(body)
    task.run()
    assert task.steps == 2


def test_a_task_that_is_stopped_within_a_step_does_not_wait():
    def body(task):
        task.stop()
        assert task.pause(1e6)
        return 1e6

    task = Scripted(body)
    task.run()
    assert task.steps == 1
    assert task.finished


def test_a_periodic_task_works_at_once_and_again():
    def work():
        done.append(1)
        if len(done) == 3:
            task.stop()

    done = []
    task = PeriodicTask("work", work, 0.001)
    task.run()
    assert len(done) == 3


# loops of ours


class Source:
    """An API server: *answer* makes each response."""

    def __init__(self, answer):
        self.answer = answer

    def request(self, *arguments, **options):
        return self.answer()


def reflector(source, sink):
    pods = WatchedResource(name="pods", path="/p", parse=bytes, key=lambda item: "k")
    return Reflector(source, pods, sink)


def test_an_outage_of_the_api_server_is_no_reason_to_restart():
    def refuse():
        raise ClusterError("connection refused")

    watching = reflector(Source(refuse), None)
    delays = [watching.step() for _ in range(500)]
    assert all(0 < delay <= 10 for delay in delays)


def test_a_reflector_whose_sink_hangs_is_reported():
    page = b'{"metadata": {"resourceVersion": "1"}, "items": [{}]}'
    blocked, released = threading.Event(), threading.Event()

    class Hanging:
        def upsert(self, item, as_of):
            blocked.set()
            released.wait(20)

        def prune(self, seen, started):
            watching.stop()

    watching = reflector(Source(lambda: page), Hanging())
    watching.start()
    assert blocked.wait(20)
    assert "thread pods hangs" in after(HUNG_S + 1, watching)
    released.set()
    watching.stop()
    watching.join(20)
