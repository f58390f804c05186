"""Lists and watches against a scripted server: late, lost, repeated, broken, expired, hung and malformed."""

import itertools
import json
import logging
import random
import threading
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis.strategies import randoms

from hami.errors import ClusterError, Gone, MalformedInput
from hami.kube.reflector import Reflector, WatchedResource
from testing.cases import cases
from testing.scripted_source import (
    HANG,
    RecordingSink,
    ScriptedSource,
    bookmark,
    error,
    event,
    obj,
    page,
)

BROKEN = ClusterError("connection reset")
GONE = Gone("410: expired", 410)


@dataclass(frozen=True)
class Item:
    name: str
    version: int


def parse(raw):
    thing = json.loads(raw)
    if not isinstance(thing, dict) or thing.get("bad"):
        raise MalformedInput("thing", raw, "must not be bad")
    return Item(thing["metadata"]["name"], int(thing["metadata"]["resourceVersion"]))


def things(**more):
    return WatchedResource(
        name="things", path="/things", parse=parse, key=lambda item: item.name, **more
    )


def reflect(pages, watches=(), *, sink=None, resource=None, **options):
    """Run a reflector until its script is over; source and sink afterwards."""
    source, sink = ScriptedSource(pages, watches), sink or RecordingSink()
    reflector = Reflector(
        source, resource or things(), sink, **{"clock": itertools.count().__next__} | options
    )
    run(reflector, source)
    return source, sink


def run(reflector, source):
    """Takes steps until the script is over, and notes the waits between them."""
    source.on_end, source.reflector = reflector.stop, reflector
    while not reflector.is_stopping():
        if delay := reflector.step():
            source.waits.append(delay)


@pytest.fixture
def threaded():
    """Starts a reflector in a thread of its own; stopped at the end."""
    started = []

    def start(pages, watches):
        source, sink = ScriptedSource(pages, watches), RecordingSink()
        reflector = Reflector(source, things(), sink)
        source.on_end = reflector.stop
        started.append((reflector, threading.Thread(target=run, args=(reflector, source))))
        started[-1][1].start()
        return reflector, source, sink, started[-1][1]

    yield start
    for reflector, thread in started:
        reflector.stop()
        thread.join(10)
        assert not thread.is_alive()


def test_first_list_is_consistent_and_in_pages():
    source, sink = reflect(
        [page(obj("a", 1), token="t"), page(obj("b", 2))],
        resource=things(query={"fieldSelector": "x=y"}),
    )
    assert source.lists == [
        {"fieldSelector": "x=y", "limit": "500"},
        {"fieldSelector": "x=y", "limit": "500", "continue": "t"},
    ]
    assert sink.calls == [("upsert", "a", 1), ("upsert", "b", 2), ("prune", ("a", "b"), 0)]
    assert source.reflector.synced.is_set()


def test_a_page_is_requested_while_the_one_before_is_passed_on():
    requested, in_time = threading.Event(), []

    def second_page():
        requested.set()
        return page(obj("b", 2))

    class Slow(RecordingSink):
        def upsert(self, item, as_of=None):
            super().upsert(item)
            in_time.append(requested.wait(20))

    _, sink = reflect([page(obj("a", 1), token="t"), second_page], sink=Slow())
    assert in_time == [True, True]
    assert sink.state == {"a": 1, "b": 2}


def test_a_reflector_that_stops_within_a_list_passes_on_nothing_more():
    class Stopping(RecordingSink):
        def upsert(self, item, as_of=None):
            super().upsert(item)
            source.reflector.stop()

    source, sink = (
        ScriptedSource([page(obj("a", 1), obj("b", 1), token="t"), page(obj("c", 2))]),
        Stopping(),
    )
    source.reflector = Reflector(source, things(), sink)
    source.reflector.run()
    assert sink.calls == [("upsert", "a", 1)]
    assert not source.reflector.synced.is_set()


def test_watch_follows_the_list_and_asks_for_bookmarks():
    source, _ = reflect([page(version=7)])
    [query] = source.watched
    assert 300 <= int(query.pop("timeoutSeconds")) <= 360
    assert query == {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": "7"}


def test_events_reach_the_sink_in_order():
    _, sink = reflect(
        [page(obj("a", 1))],
        [
            [
                event("ADDED", obj("b", 101)),
                event("MODIFIED", obj("a", 102)),
                event("DELETED", obj("b", 103)),
            ]
        ],
    )
    assert sink.calls[2:] == [("upsert", "b", 101), ("upsert", "a", 102), ("remove", "b", 103)]


@cases(
    "end, options",
    ("clean end", [], {}),
    ("broken", [BROKEN], {"resumes": True}),
    ("hung until the read timeout", [ClusterError("read timed out")], {"resumes": True}),
)
def test_watch_goes_on_where_it_ended_without_a_list(end, options):
    source, sink = reflect(
        [page(obj("a", 1))],
        [[event("MODIFIED", obj("a", 101)), *end], [event("MODIFIED", obj("a", 102))]],
        **options,
    )
    assert [query["resourceVersion"] for query in source.watched] == ["100", "101", "102"]
    assert len(source.lists) == 1
    assert sink.state == {"a": 102}


def test_a_clean_end_is_followed_at_once():
    source, _ = reflect([page()], [[bookmark(101)], [bookmark(102)]])
    assert source.waits == []


def test_a_bookmark_is_no_object_but_moves_on():
    source, sink = reflect([page()], [[bookmark(150)]])
    assert source.watched[-1]["resourceVersion"] == "150"
    assert [name for name, *_ in sink.calls] == ["prune"]


@cases(
    "watch",
    ("410 as status", GONE),
    ("410 as event", [error(410)]),
    ("another error event", [error(500, "etcd stumbled")]),
    ("version refused", ClusterError("400: invalid resource version", 400)),
    ("line that is no event", [b'{"type":"ADDED","obj']),
    ("object that is none", [event("ADDED", "text")]),
)
def test_what_only_a_list_can_heal_is_followed_by_a_list(watch):
    source, sink = reflect(
        [page(obj("a", 1), obj("b", 1)), page(obj("b", 2), version=200)], [watch]
    )
    assert len(source.lists) == 2
    assert sink.state == {"b": 2}
    assert source.watched[-1]["resourceVersion"] == "200"


@cases(
    "watch",
    ("turned away", ClusterError("429: too many requests", 429)),
    ("stumbled", ClusterError("500: stumbled", 500)),
)
def test_a_server_that_answers_with_an_error_is_no_reason_to_list(watch):
    source, _ = reflect([page()], [watch, [bookmark(101)]])
    assert len(source.lists) == 1
    assert len(source.waits) == 1


def test_a_page_that_the_server_is_too_busy_to_send_is_no_reason_to_start_again():
    busy = ClusterError("429: too many requests", 429)
    source, sink = reflect([busy, page(obj("a", 1), token="t"), busy, page(obj("b", 2))])
    assert [query.get("continue") for query in source.lists] == [None, None, "t", "t"]
    assert sink.state == {"a": 1, "b": 2}
    assert source.waits == []


def test_a_server_that_is_too_busy_for_a_watch_is_left_alone_as_long_as_it_asks():
    source, _ = reflect([page()], [ClusterError("429: too many requests", 429, 20.0)])
    assert len(source.waits) == 1
    assert source.waits[0] > 20


def test_an_expired_continue_token_starts_the_list_again():
    source, sink = reflect([page(obj("a", 1), token="t"), GONE, page(obj("b", 2), version=200)])
    assert [query.get("continue") for query in source.lists] == [None, "t", None]
    assert sink.state == {"b": 2}
    assert source.watched[0]["resourceVersion"] == "200"
    assert sink.calls[-1] == ("prune", ("b",), 2)  # counted from the start of the second attempt


@cases("shown, version, is_read", (120, 119, True), (120, 120, False), (None, 99, True))
def test_versions_that_went_back_are_noticed_at_the_next_watch_and_all_is_read_anew(
    shown, version, is_read, caplog
):
    """As after a restore of etcd: a watch from a version of the future would show nothing."""
    caplog.set_level("INFO")
    source, sink = (
        ScriptedSource(
            [page(obj("a", 1), obj("b", 1)), page(obj("b", 40), version=version)],
            [[bookmark(shown)] if shown else [], [bookmark(9)]],
        ),
        RecordingSink(),
    )
    source.version = version
    run(Reflector(source, things(), sink), source)
    assert [call for call in sink.calls[3:] if call[0] != "prune"] == (
        [("upsert", "b", 40)] if is_read else []
    )
    assert sink.state == ({"b": 40} if is_read else {"a": 1, "b": 1})
    noticed = any(
        "etcd has been restored" in getattr(record, "error", "") for record in caplog.records
    )
    assert noticed == (
        is_read and shown is not None
    )  # else the watch has shown nothing, so a list is due anyway


@cases(
    "watch",
    ("broken", [bookmark(101), BROKEN]),
    ("refused", BROKEN),
    ("hung until the read timeout", [bookmark(101), ClusterError("read timed out")]),
)
def test_a_lost_connection_is_followed_by_a_list(watch):
    """Meanwhile etcd may have been restored from a backup, and versions may have grown again."""
    source, sink = reflect(
        [page(obj("a", 1)), page(obj("b", 1), version=200)], [watch, [bookmark(201)]]
    )
    assert [query["resourceVersion"] for query in source.watched[:2]] == ["100", "200"]
    assert sink.state == {"b": 1}


def test_the_sink_learns_when_a_list_began_and_nothing_of_a_watch():
    class Sink(RecordingSink):
        def upsert(self, item, *as_of):
            super().upsert(item)
            times.append(as_of)

    times = []
    reflect(
        [page(obj("a", 1), token="t"), page(obj("b", 1))],
        [[event("ADDED", obj("c", 101))]],
        sink=Sink(),
    )
    assert times[0] == times[1]
    assert len(times[0]) == 1
    assert times[2] == ()


def test_the_version_is_checked_before_a_watch_goes_on_but_not_after_a_list():
    source, _ = reflect([page(), page(version=200)], [[bookmark(101)], [bookmark(102)], GONE])
    assert source.checks == 2
    assert len(source.lists) == 2
    assert len(source.watched) == 4


def test_attempts_draw_apart_up_to_a_limit_and_recover():
    random.seed(1)
    source, _ = reflect([BROKEN] * 12 + [page()], [[bookmark(101), BROKEN]], resumes=True)
    fulls = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4]
    assert all(0.5 * full <= wait <= full for wait, full in zip(source.waits, fulls, strict=False))
    assert max(source.waits) <= 10
    assert source.waits[-1] <= 0.2


def test_a_server_that_hangs_up_at_once_is_not_asked_without_pause():
    source, _ = reflect([page()], [[], [], []], clock=lambda: 5.0, resumes=True)
    assert len(source.waits) == 3


@given(rng=randoms(use_true_random=True))
def test_any_mishap_ends_in_the_state_of_the_server(rng):
    """Events late, lost, doubled, in another order, cut off: after the next list all is as it should be."""
    sent = [
        event(rng.choice(["ADDED", "MODIFIED", "DELETED"]), obj(rng.choice("abcd"), 101 + n))
        for n in range(20)
    ]
    kept = [line for line in sent if rng.random() > 0.2]
    doubled = [line for line in kept for _ in range(rng.choice([1, 1, 2]))]
    rng.shuffle(doubled)
    cut = rng.randrange(len(doubled))
    truth = {name: 300 for name in "abcde" if rng.random() > 0.5}
    last = page(*(obj(name, version) for name, version in truth.items()), version=300)
    _, sink = reflect(
        [page(obj("a", 1)), last, last],
        [[*doubled[:cut], BROKEN], [*doubled[cut:], error(410)]],
        resumes=rng.random() > 0.5,
    )
    assert sink.state == truth


def test_one_bad_object_never_hides_the_others(caplog):
    bad = [obj("bad", version, bad=True) for version in (1, 102, 103)]
    _, sink = reflect(
        [page(obj("a", 1), bad[0], obj("b", 1))],
        [[event("MODIFIED", bad[1]), event("MODIFIED", obj("a", 104)), event("MODIFIED", bad[2])]],
    )
    assert sink.state == {"a": 104, "b": 1}
    assert ("prune", ("a", "b", "bad"), 0) in sink.calls  # it exists, so it must not be pruned
    assert [
        record.object for record in caplog.records if record.msg == "object cannot be read"
    ] == ["bad"]


@cases(
    "meta, key",
    ("namespaced", {"namespace": "n", "name": "a", "uid": "u"}, "u"),
    ("cluster-wide", {"name": "a", "uid": "u"}, "a"),
    ("nothing to go by", {"name": 7}, ""),
)
def test_an_unreadable_object_has_the_key_of_a_readable_one(meta, key):
    _, sink = reflect([page({"metadata": meta, "bad": True})])
    assert ("prune", (key,), 0) in sink.calls


def test_a_deleted_object_that_cannot_be_read_is_pruned_by_a_list():
    source, sink = reflect(
        [page(obj("a", 1)), page(version=200)], [[event("DELETED", obj("a", 101, bad=True))]]
    )
    assert len(source.lists) == 2
    assert sink.state == {}


def test_an_unreadable_page_is_asked_for_again():
    source, sink = reflect([b"<html>", page(obj("a", 1))])
    assert sink.state == {"a": 1}
    assert len(source.waits) == 1


@pytest.mark.parametrize("where", ["upsert", "remove", "prune"])
def test_an_exception_of_the_sink_is_logged_and_followed_by_a_list(where, caplog):
    class Sink(RecordingSink):
        faults = 1

        def _maybe(self, name):
            if name == where and self.faults:
                self.faults = 0
                raise ZeroDivisionError("a bug")

        def upsert(self, item, as_of=None):
            self._maybe("upsert")
            super().upsert(item)

        def remove(self, item):
            self._maybe("remove")
            super().remove(item)

        def prune(self, seen, started):
            self._maybe("prune")
            super().prune(seen, started)

    watch = [event("DELETED", obj("b", 101))]
    source, sink = reflect(
        [page(obj("a", 1), obj("b", 1)), page(obj("a", 2), version=200)], [watch], sink=Sink()
    )
    assert len(source.lists) == 2
    assert sink.state == {"a": 2}
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info[0] is ZeroDivisionError


def test_stop_interrupts_the_handing_over_of_a_list():
    class Sink(RecordingSink):
        def upsert(self, item, as_of=None):
            super().upsert(item)
            source.reflector.stop()

    sink, source = Sink(), ScriptedSource([page(obj("a", 1), obj("b", 1))])
    source.reflector = Reflector(source, things(), sink)
    source.reflector.run()
    assert sink.calls == [("upsert", "a", 1)]
    assert not source.reflector.synced.is_set()


def test_stop_closes_a_watch_that_says_nothing(threaded):
    reflector, _, _, thread = threaded([page()], [[HANG]])
    assert reflector.synced.wait(10)
    reflector.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_stop_wakes_a_reflector_that_waits_for_its_next_attempt():
    def fail():
        threading.Timer(0, reflector.stop).start()
        return BROKEN

    source = ScriptedSource([fail, BROKEN, BROKEN, BROKEN])
    reflector = Reflector(source, things(), RecordingSink())
    reflector.run()


def test_relist_interrupts_the_watch_and_waits_for_a_list_that_began_afterwards(threaded):
    reflector, source, sink, _ = threaded(
        [page(obj("a", 1)), page(obj("b", 2), version=200)], [[HANG], [HANG]]
    )
    assert reflector.synced.wait(10)
    reflector.relist(10)
    assert sink.state == {"b": 2}
    assert len(source.lists) == 2


def test_relist_is_not_content_with_a_list_under_way():
    def asked_meanwhile():
        with pytest.raises(ClusterError):
            source.reflector.relist(0)
        return page(obj("a", 1))

    source, sink = (
        ScriptedSource([asked_meanwhile, page(obj("a", 2), version=200)]),
        RecordingSink(),
    )
    source.reflector = Reflector(source, things(), sink)
    source.on_end = source.reflector.stop
    source.reflector.run()
    assert sink.state == {"a": 2}
    assert len(source.lists) == 2


def test_relist_rides_out_failures(threaded):
    reflector, _, sink, _ = threaded([page(), BROKEN, GONE, page(obj("a", 5))], [[HANG], [HANG]])
    assert reflector.synced.wait(10)
    reflector.relist(10)
    assert sink.state == {"a": 5}


def test_relist_gives_up_in_time_and_says_why():
    reflector = Reflector(ScriptedSource([]), things(), RecordingSink())
    with pytest.raises(
        ClusterError, match="no list of things: no answer within 0 s: the reflector does not run"
    ):
        reflector.relist(0)


def test_relist_of_a_stopped_reflector_fails_at_once():
    reflector = Reflector(ScriptedSource([]), things(), RecordingSink())
    reflector.stop()
    with pytest.raises(ClusterError, match="stopped"):
        reflector.relist(50)


def test_age_counts_from_the_last_word_of_the_server():
    now = [100.0]
    ages = []
    source = ScriptedSource(
        [page()],
        [
            [
                lambda: now.__setitem__(0, 130.0),
                lambda: ages.append(reflector.age()),
                bookmark(101),
                lambda: ages.append(reflector.age()),
            ]
        ],
    )
    reflector = Reflector(source, things(), RecordingSink(), clock=lambda: now[0])
    ages.append(reflector.age())
    run(reflector, source)
    assert ages == [float("inf"), 30.0, 0.0]


def test_a_reflector_is_connected_while_a_watch_is_open():
    class Sink(RecordingSink):
        def upsert(self, item, as_of=None):
            super().upsert(item)
            seen.append((item.name, reflector.is_connected))

    seen = []
    source = ScriptedSource([page(obj("listed", 1))], [[event("ADDED", obj("watched", 101))], GONE])
    reflector = Reflector(source, things(), Sink())
    run(reflector, source)
    assert seen[:2] == [("listed", False), ("watched", True)]
    assert not reflector.is_connected
