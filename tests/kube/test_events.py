"""Events in the background: merged, bounded, rate limited, and never in the way."""

import logging
import math
import threading
from datetime import UTC, datetime, timedelta

import pytest

from hami.errors import ClusterError, NotFound
from hami.kube.events import ATTEMPTS, EventLimits, EventRecorder
from hami.model import PodRef
from testing.cases import cases
from testing.fake_cluster import FakeCluster, no_answer

POD = PodRef("team", "train", "uid-1")
START = datetime(2026, 1, 2, 3, 4, 5, 999_999, UTC)


class Bench:
    def __init__(self, **limits):
        self.now, self.cluster = 0.0, FakeCluster()
        self.recorder = EventRecorder(
            self.cluster,
            "hami-scheduler",
            EventLimits(**limits),
            clock=lambda: self.now,
            now=lambda: START + timedelta(seconds=self.now),
        )

    def write_all(self, limit=10_000):
        """Write until nothing waits, letting the clock run; the seconds it took."""
        began = self.now
        for _ in range(limit):
            if math.isinf(delay := self.recorder.step()):
                return self.now - began
            self.now += delay
        raise AssertionError("there is no end")

    @property
    def events(self):
        return list(self.cluster.events.values())


@pytest.fixture
def bench():
    return Bench()


def test_an_event_about_a_pod(bench):
    bench.recorder.record(POD, "Warning", "FilteringFailed", "no card")
    bench.write_all()
    [((namespace, name), event)] = bench.cluster.events.items()
    assert namespace == "team"
    assert name.startswith("train.")
    assert len(name) == len("train.") + 16
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "team", "name": name},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "team",
            "name": "train",
            "uid": "uid-1",
        },
        "type": "Warning",
        "reason": "FilteringFailed",
        "message": "no card",
        "source": {"component": "hami-scheduler"},
        "reportingComponent": "hami-scheduler",
        "firstTimestamp": "2026-01-02T03:04:05Z",
        "lastTimestamp": "2026-01-02T03:04:05Z",
        "count": 1,
    }


def test_an_event_about_a_node(bench):
    bench.recorder.record("gpu-0", "Normal", "Registered", "8 cards")
    bench.write_all()
    [((namespace, name), event)] = bench.cluster.events.items()
    assert namespace == event["metadata"]["namespace"] == "default"
    assert name.startswith("gpu-0.")
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "gpu-0",
        "uid": "gpu-0",
    }


@pytest.mark.parametrize(("length", "shown"), [(1024, 1024), (1025, 1024), (9000, 1024)])
def test_a_message_is_cut_with_an_ellipsis(bench, length, shown):
    bench.recorder.record(POD, "Normal", "R", "x" * length)
    bench.write_all()
    assert len(bench.events[0]["message"]) == shown
    assert bench.events[0]["message"].endswith("…") == (length > 1024)


def test_the_name_of_an_event_is_never_too_long(bench):
    bench.recorder.record(PodRef("team", "a" * 235 + "." + "b" * 17, "u"), "Normal", "R", "m")
    bench.write_all()
    name = bench.events[0]["metadata"]["name"]
    assert len(name) == 235 + 17
    assert ".." not in name


def test_equal_events_are_merged_while_they_wait(bench):
    for bench.now in (0.0, 5.0, 9.0):
        bench.recorder.record(POD, "Warning", "R", "m")
    bench.write_all()
    [event] = bench.events
    assert (event["count"], event["firstTimestamp"][-3:], event["lastTimestamp"][-3:]) == (
        3,
        "05Z",
        "14Z",
    )


def test_an_equal_event_within_ten_minutes_raises_the_count(bench):
    for bench.now in (0.0, 500.0, 1000.0):
        bench.recorder.record(POD, "Warning", "R", "m")
        bench.write_all()
    [event] = bench.events
    assert event["count"] == 3
    assert event["lastTimestamp"] == "2026-01-02T03:20:45Z"
    assert [call.method for call in bench.cluster.calls] == [
        "create_event",
        "patch_event",
        "patch_event",
    ]


def replaced(bench, message):
    bench.recorder.record(POD, "Warning", "FilteringFailed", message, replaces=True)


def test_one_event_has_the_latest_message(bench):
    for bench.now, message in enumerate(["8 of 8", "7 of 8", "7 of 8", "6 of 8"]):
        replaced(bench, message)
        bench.write_all()
    [event] = bench.events
    assert event["message"] == "6 of 8"
    assert event["count"] == 4
    assert event["firstTimestamp"].endswith(":05Z")
    assert event["lastTimestamp"].endswith(":08Z")


def test_one_event_has_the_latest_of_the_messages_that_waited(bench):
    for message in ("8 of 8", "7 of 8"):
        replaced(bench, message)
    bench.write_all()
    assert [(event["message"], event["count"]) for event in bench.events] == [("7 of 8", 2)]
    assert [call.method for call in bench.cluster.calls] == ["create_event"]


def test_an_event_that_could_not_be_written_has_the_message_that_came_meanwhile(bench):
    replaced(bench, "8 of 8")
    bench.cluster.fail("create_event", no_answer(), times=1)
    bench.recorder.step()
    replaced(bench, "7 of 8")
    bench.now += 60
    bench.write_all()
    assert [(event["message"], event["count"]) for event in bench.events] == [("7 of 8", 2)]


@cases(
    "times, counts",
    ("when its count has doubled", [0] * 20, [1, 2, 4, 8, 16]),
    ("or after a minute", [0, 0, 0, 59, 59, 118, 119, 180], [1, 2, 4, 7, 8]),
)
def test_an_event_that_is_repeated_all_the_time_is_written_ever_more_rarely(bench, times, counts):
    told = []
    for bench.now in map(float, times):
        bench.recorder.record(POD, "Warning", "R", "m")
        before = len(bench.cluster.calls)
        bench.write_all()
        told += [event["count"] for event in bench.events if len(bench.cluster.calls) > before]
    assert told == counts
    assert bench.recorder.written == counts[-1]
    assert bench.recorder.dropped == 0


def test_repetitions_while_an_event_is_written_are_counted(bench):
    def record():
        bench.recorder.record(POD, "Warning", "R", "m")

    for _ in range(8):
        record()
    bench.write_all()
    create, bench.cluster.events = bench.cluster.create_event, {}  # it has expired

    def create_slowly(*words):
        record()
        return create(*words)

    bench.cluster.create_event = create_slowly
    for _ in range(8):
        record()
    bench.write_all()
    bench.now = 60.0
    record()
    bench.write_all()
    assert bench.recorder.written == 18


def test_repetitions_of_an_event_that_is_forgotten_are_dropped():
    bench = Bench(capacity=1)
    for message in ("m", "m", "m", "n"):
        bench.recorder.record(POD, "Warning", "R", message)
        bench.write_all()
    assert (bench.recorder.written, bench.recorder.dropped) == (3, 1)


@cases(
    "later, other",
    ("later", 600.0, {}),
    ("a later pod of that name", 1.0, {"subject": PodRef("team", "train", "uid-2")}),
    ("another reason", 1.0, {"reason": "S"}),
    ("another message", 1.0, {"message": "n"}),
)
def test_what_is_another_event(bench, later, other):
    same = {"subject": POD, "type": "Warning", "reason": "R", "message": "m"}
    bench.recorder.record(**same)
    bench.write_all()
    bench.now += later
    bench.recorder.record(**same | other)
    bench.write_all()
    assert [event["count"] for event in bench.events] == [1, 1]


def test_an_event_that_has_expired_is_written_anew(bench):
    bench.recorder.record(POD, "Normal", "R", "m")
    bench.write_all()
    bench.cluster.events.clear()
    bench.recorder.record(POD, "Normal", "R", "m")
    bench.write_all()
    assert bench.events[0]["count"] == 1
    assert bench.recorder.dropped == 0


def test_a_full_queue_drops_the_oldest_normal_event_and_keeps_warnings():
    bench = Bench(capacity=3)
    for type, message in (
        ("Warning", "w1"),
        ("Normal", "n1"),
        ("Normal", "n2"),
        ("Warning", "w2"),
        ("Normal", "n3"),
        ("Warning", "w3"),
        ("Normal", "n4"),
        ("Warning", "w4"),
    ):
        bench.recorder.record(POD, type, "R", message)
    bench.write_all()
    assert [event["message"] for event in bench.events] == ["w2", "w3", "w4"]
    assert bench.recorder.dropped == 5


def of(namespace, name="train"):
    return PodRef(namespace, name, f"uid-{namespace}")


def test_a_namespace_with_very_many_events_pushes_out_and_delays_none_of_others():
    bench = Bench(capacity=100, rate=50.0, burst=1)
    bench.recorder.record(of("early"), "Normal", "R", "first")
    for number in range(300):
        bench.recorder.record(of("noisy"), "Warning", "R", str(number))
    bench.recorder.record(of("late"), "Normal", "R", "last")
    bench.recorder.record("gpu-0", "Warning", "R", "about a node")
    for _ in range(4):
        bench.now += bench.recorder.step()
        bench.now += bench.recorder.step()
    assert {event["message"] for event in bench.events} >= {"first", "last", "about a node"}
    bench.write_all()
    assert len(bench.events) == 100
    assert bench.recorder.dropped == 203


def test_a_namespace_that_may_write_no_normal_event_now_keeps_no_other_from_a_warning():
    bench = Bench(normal_rate=0.1, normal_burst=1)
    for number in range(2):
        bench.recorder.record(of("a"), "Normal", "R", str(number))
        bench.recorder.record(of("b"), "Warning", "R", str(number))
    for _ in range(3):
        assert bench.recorder.step() >= 0.0
    assert [event["type"] for event in bench.events] == ["Normal", "Warning", "Warning"]
    assert bench.write_all() == pytest.approx(10.0, abs=0.05)


def test_what_was_written_of_others_is_remembered_beside_very_many_events_of_one_namespace():
    bench = Bench(capacity=10)
    bench.recorder.record(of("quiet"), "Warning", "R", "m")
    for number in range(50):
        bench.recorder.record(of("noisy"), "Warning", "R", str(number))
        bench.write_all()
    bench.recorder.record(of("quiet"), "Warning", "R", "m")
    bench.write_all()
    (quiet,) = (event for event in bench.events if event["metadata"]["namespace"] == "quiet")
    assert quiet["count"] == 2


def test_dropping_a_merged_event_counts_each_time_it_happened():
    bench = Bench(capacity=1)
    for message in ("a", "a", "a", "b"):
        bench.recorder.record(POD, "Normal", "R", message)
    assert bench.recorder.dropped == 3


@pytest.mark.parametrize(("type", "seconds"), [("Warning", 2.0), ("Normal", 10.0)])
def test_writing_is_rate_limited(type, seconds):
    bench = Bench(rate=50.0, burst=10, normal_rate=10.0, normal_burst=10)
    for n in range(110):
        bench.recorder.record(POD, type, "R", str(n))
    assert bench.write_all() == pytest.approx(seconds, abs=0.05)
    assert len(bench.events) == 110


def test_warnings_do_not_wait_for_the_rate_of_normal_events():
    bench = Bench(rate=50.0, burst=10, normal_rate=0.1, normal_burst=1)
    for type, message in (("Normal", "n1"), ("Normal", "n2"), ("Warning", "w1"), ("Warning", "w2")):
        bench.recorder.record(POD, type, "R", message)
    while len(bench.events) < 3:
        assert bench.recorder.step() == 0.0 or len(bench.events) == 3
    assert [event["message"] for event in bench.events] == ["w1", "w2", "n1"]
    assert bench.write_all() == pytest.approx(10.0, abs=0.05)


@cases(
    "error",
    ("no namespace", NotFound("no namespace", 404)),
    ("forbidden", ClusterError("forbidden", 403)),
    ("invalid", ClusterError("invalid", 422)),
)
def test_what_the_server_does_not_want_is_dropped_counted_and_logged_once(bench, error, caplog):
    bench.cluster.fail("create_event", error, times=2)
    for message in "abc":
        bench.recorder.record(POD, "Normal", "R", message)
    bench.write_all()
    assert [event["message"] for event in bench.events] == ["c"]
    assert bench.recorder.dropped == 2
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


@cases(
    "error",
    ("no answer", no_answer()),
    ("stumbled", ClusterError("stumbled", 500)),
    ("turned away", ClusterError("too many", 429)),
)
def test_what_may_succeed_later_is_tried_later_and_merged_meanwhile(bench, error):
    bench.cluster.fail("create_event", error, times=3)
    bench.recorder.record(POD, "Normal", "R", "m")
    assert bench.recorder.step() >= 1.0
    bench.recorder.record(POD, "Normal", "R", "m")
    assert bench.write_all() == 1 + 2 + 4
    assert bench.events[0]["count"] == 2
    assert bench.recorder.dropped == 0


def test_an_event_that_the_server_always_chokes_on_is_given_up(bench):
    bench.cluster.fail("create_event", ClusterError("stumbled", 500), times=ATTEMPTS)
    bench.recorder.record(POD, "Warning", "R", "bad")
    bench.recorder.record(POD, "Warning", "R", "good")
    bench.write_all()
    assert [event["message"] for event in bench.events] == ["good"]
    assert bench.recorder.dropped == 1


def test_an_event_whose_answer_was_lost_is_not_written_twice(bench):
    bench.cluster.fail("create_event", no_answer(), after=True)
    bench.recorder.record(POD, "Normal", "R", "m")
    bench.write_all()
    assert len(bench.events) == 1
    assert bench.recorder.dropped == 0


def test_a_bug_costs_one_event(bench, caplog):
    bench.cluster.fail("create_event", ZeroDivisionError("a bug"))
    bench.recorder.record(POD, "Normal", "R", "a")
    bench.recorder.record(POD, "Normal", "R", "b")
    bench.write_all()
    assert len(bench.events) == 1
    assert bench.recorder.dropped == 1
    assert caplog.records[0].exc_info


def test_the_background_thread_writes_drains_and_stops():
    cluster = FakeCluster()
    recorder = EventRecorder(cluster, "c")
    thread = threading.Thread(target=recorder.run)
    thread.start()
    for n in range(20):
        recorder.record(POD, "Normal", "R", str(n))
    assert recorder.drain(10)
    assert len(cluster.events) == 20
    recorder.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_recording_does_not_wait_for_a_hung_server_but_drain_gives_up():
    cluster, reached, go = FakeCluster(), threading.Event(), threading.Event()
    cluster.on_call = lambda call: (reached.set(), go.wait(10))
    recorder = EventRecorder(cluster, "c")
    thread = threading.Thread(target=recorder.run)
    thread.start()
    recorder.record(POD, "Normal", "R", "a")
    assert reached.wait(10)
    recorder.record(POD, "Normal", "R", "b")  # returns although the thread hangs
    assert not recorder.drain(0)
    recorder.stop()
    go.set()
    thread.join(10)
    assert not thread.is_alive()
