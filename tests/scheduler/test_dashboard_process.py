"""The dashboard's process is told the reservations, is started again when it has ended, and ends with the scheduler."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from e2e.eventually import eventually
from hami.scheduler.dashboard_process import DashboardProcess
from hami.scheduler.settings import Settings
from tests.builders import gpus, pod
from tests.state.caches import SmallStore, bound_to

# writes what it is told as lines, and accepts clients
STAND_IN = """
import json, os, signal, socket, sys
from multiprocessing.connection import Connection
out = open(sys.argv[1], "a", buffering=1)
pipe, listener = Connection(int(sys.argv[2])), socket.socket(fileno=int(sys.argv[3]))
if sys.argv[1].endswith("stubborn"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(json.dumps(["started", os.getpid(), pipe.recv().scheduler_name, listener.getsockname()[1]]), file=out)
try:
    while True:
        reserved, ended = pipe.recv()
        print(json.dumps(["told", sorted((ref.name, booking.node) for ref, booking in reserved), ended]), file=out)
except EOFError:
    print(json.dumps(["closed"]), file=out)
    if sys.argv[1].endswith("stubborn"):
        signal.pause()
"""


class Running:
    """A process that stands in for the dashboard, and what it has been told."""

    def __init__(self, folder, name="told"):
        self.cache, self._file = SmallStore(), folder / name
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.process = DashboardProcess(
            Settings(scheduler_name="ours"), self.listener, self.cache.reservations, restart_s=0.05,
            command=(sys.executable, "-c", STAND_IN, str(self._file)))
        self._thread = threading.Thread(target=self.process.run)

    def heard(self, count):
        """Returns what the process has written, once it is so many lines."""
        def lines():
            return self._file.read_text().splitlines() if self._file.exists() else []

        eventually(lambda: len(lines()) >= count, lambda: f"{count} lines, not {lines()}")
        return [json.loads(line) for line in lines()]

    @contextmanager
    def running(self):
        self._thread.start()
        try:
            yield
        finally:
            self.end()

    def end(self):
        self.process.stop()
        self._thread.join(20)
        assert not self._thread.is_alive()
        self.listener.close()


def has_ended(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_it_is_told_the_settings_and_each_change_of_the_reservations_once(tmp_path):
    made = Running(tmp_path)
    port = made.listener.getsockname()[1]
    made.cache.place(pod(gpus(1, memory=3000), name="a"))
    with made.running():
        made.heard(2)
        made.cache.place(pod(gpus(1, memory=3000), name="b"))
        made.heard(3)
        made.cache.reservations.forget("uid-a")
        started, *told = made.heard(4)
    assert started[2:] == ["ours", port]
    assert told == [["told", [["a", "n1"]], []], ["told", [["b", "n1"]], []], ["told", [], ["uid-a"]]]
    assert made.heard(5)[-1] == ["closed"]


def test_one_that_has_ended_is_started_again_and_told_everything(tmp_path, caplog):
    made = Running(tmp_path)
    made.cache.place(pod(gpus(1, memory=3000), name="a"))
    with made.running():
        (_, pid, *_), told = made.heard(2)
        os.kill(pid, signal.SIGKILL)
        assert made.heard(4)[3] == told == ["told", [["a", "n1"]], []]
    assert "the dashboard has ended and is started again" in caplog.text


def test_one_that_cannot_be_started_is_tried_again(tmp_path, monkeypatch, caplog):
    made, start, tries = Running(tmp_path), subprocess.Popen, []

    def popen(*args, **options):
        tries.append(args)
        if len(tries) < 3:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return start(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    with made.running():
        made.heard(1)
    assert len(tries) == 3
    assert "the dashboard cannot be started and is tried again" in caplog.text


@pytest.mark.parametrize("name", ["gentle", "stubborn"])
def test_it_ends_with_the_scheduler(tmp_path, name):
    made = Running(tmp_path, name)
    with made.running():
        ((_, pid, *_),) = made.heard(1)
    assert has_ended(pid)


def test_a_cache_follows_the_reservations_of_another():
    ours, theirs = SmallStore(), SmallStore()
    ours.place(pod(gpus(1, memory=3000), name="a"))
    ours.place(pod(gpus(1, memory=2000), name="b"))
    ours.reservations.start_following()
    theirs.follow(*ours.reservations.take_changes())
    assert theirs.snapshot() == ours.snapshot()
    theirs.time.seconds += 3600
    assert theirs.expire() == [], "the other one says when they end"
    ours.reservations.forget("uid-a")
    ours.place(pod(gpus(1, memory=4000), name="b"))
    theirs.follow(*ours.reservations.take_changes())
    assert theirs.snapshot() == ours.snapshot()
    ours.pods.upsert(bound_to("b", "GPU-1,NVIDIA,4000,0:;"))
    assert ours.reservations.take_changes() == ([], ["uid-b"])
    assert ours.reservations.take_changes() == ([], [])


def test_changes_that_nobody_takes_are_given_up(monkeypatch):
    monkeypatch.setattr("hami.state.reservations.MAX_CHANGES", 2)
    cache = SmallStore()
    assert cache.reservations.take_changes() is None
    cache.reservations.start_following()
    for name in "ab":
        cache.place(pod(gpus(1, memory=10), name=name))
    assert [ref.name for ref, _ in cache.reservations.take_changes()[0]] == ["a", "b"]
    for name in "cde":
        cache.place(pod(gpus(1, memory=10), name=name))
    assert cache.reservations.take_changes() is None
    cache.reservations.start_following()
    assert [ref.name for ref, _ in cache.reservations.take_changes()[0]] == ["a", "b", "c", "d", "e"]


def test_a_reservation_that_is_told_late_does_not_replace_what_the_watch_has_shown():
    ours, theirs = SmallStore(), SmallStore()
    ours.place(pod(gpus(1, memory=3000), name="pod1"))
    ours.reservations.start_following()
    told, _ = ours.reservations.take_changes()
    bound = bound_to("pod1", "GPU-1,NVIDIA,2000,10:;")
    theirs.pods.upsert(bound)
    shown = theirs.snapshot()
    theirs.follow(told, [])
    assert theirs.snapshot() == shown
    theirs.follow([], ["uid-pod1"])
    assert theirs.snapshot() == shown
    theirs.pods.remove(bound)
    theirs.follow(told, [])
    assert not theirs.snapshot().bookings
