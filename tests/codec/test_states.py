"""Handshake, node lock and lock-free vendors."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.states import (
    LOCK_FREE_LIMIT,
    Handshake,
    HandshakeState,
    NodeLock,
    parse_handshake,
    parse_lock,
    parse_lock_free,
    render_lock,
    render_lock_free,
    render_request,
)
from hami.errors import MalformedInput
from testing.cases import cases

TEN = datetime(2026, 8, 21, 10, tzinfo=UTC)
OTHER, REPORTED = Handshake(HandshakeState.OTHER), Handshake(HandshakeState.REPORTED)
seconds = st.datetimes(
    min_value=datetime(1970, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC)
).map(lambda at: at.replace(microsecond=0))
names = st.from_regex(r"[a-z0-9.-]+", fullmatch=True)


@cases(
    "text, expected",
    ("absent", None, OTHER),
    ("requested", "Requesting_2026-08-21 10:00:00", Handshake(HandshakeState.REQUESTED, TEN)),
    (
        "requested by v2.4",
        "Requesting_2026.08.21 10:00:00",
        Handshake(HandshakeState.REQUESTED, TEN),
    ),
    ("reported", "Reported 2024-01-23 04:30:04.434037031 +0000 UTC m=+1104711.777756895", REPORTED),
    ("reported by another vendor", "Reported_2026-08-21 10:00:00", REPORTED),
    ("deleted by v2.4", "Deleted_2026.08.21 10:00:00", OTHER),
    ("no time", "Requesting", OTHER),
    ("empty time", "Requesting_", OTHER),
    ("no date", "Requesting_yesterday", OTHER),
    ("no such day", "Requesting_2026-02-30 10:00:00", OTHER),
    ("another form", "Requesting_2026-08-21T10:00:00Z", OTHER),
    ("empty", "", OTHER),
)
def test_handshake(text, expected):
    assert parse_handshake(text) == expected


@given(seconds)
def test_request_round_trip(at):
    assert parse_handshake(render_request(at)) == Handshake(HandshakeState.REQUESTED, at)


def test_requests_are_written_in_utc():
    at = datetime(2026, 8, 21, 12, 0, 15, tzinfo=timezone(timedelta(hours=2)))
    assert render_request(at) == "Requesting_2026-08-21 10:00:15"


@cases(
    "text, lock",
    ("with pod", "2026-08-21T10:00:00Z,default,a", NodeLock(TEN, ("default", "a"))),
    ("another zone", "2026-08-21T18:00:00+08:00,default,a", NodeLock(TEN, ("default", "a"))),
    ("legacy", "2026-08-21T10:00:00Z", NodeLock(TEN, None)),
    ("fraction of a second", "2026-08-21T10:00:00.000Z,ns,a", NodeLock(TEN, ("ns", "a"))),
)
def test_lock(text, lock):
    assert parse_lock(text) == lock


@given(seconds, names, names)
def test_lock_round_trip(at, namespace, name):
    assert parse_lock(render_lock(at, namespace, name)) == NodeLock(at, (namespace, name))


def test_locks_are_written_in_utc_to_the_second():
    at = datetime(2026, 8, 21, 18, 0, 0, 999999, tzinfo=timezone(timedelta(hours=8)))
    assert render_lock(at, "default", "pod1") == "2026-08-21T10:00:00Z,default,pod1"


@cases(
    "text, problem",
    ("no time", "lock", "expected an RFC 3339 time first"),
    ("empty", "", "expected an RFC 3339 time first"),
    ("no time", "yesterday,default,a", "expected an RFC 3339 time first"),
    ("no zone", "2026-08-21T10:00:00,default,a", "expected an RFC 3339 time with a zone first"),
    ("two parts", "2026-08-21T10:00:00Z,a", "malformed lock annotation: expected 3 parts, got 2"),
    (
        "four parts",
        "2026-08-21T10:00:00Z,a,b,c",
        "malformed lock annotation: expected 3 parts, got 4",
    ),
)
def test_malformed_lock(text, problem):
    with pytest.raises(MalformedInput) as caught:
        parse_lock(text)
    assert (caught.value.field, caught.value.text, caught.value.problem) == (
        "hami.io/mutex.lock",
        text,
        problem,
    )


@cases(
    "text, vendors",
    ("absent", None, set()),
    ("empty", "", set()),
    ("one", "NVIDIA", {"NVIDIA"}),
    ("blanks and repetitions", " NVIDIA, ,DCU,NVIDIA,", {"NVIDIA", "DCU"}),
    ("not a vendor that we know", "later", {"later"}),
    ("too long", "NVIDIA," + "x" * LOCK_FREE_LIMIT, set()),
)
def test_lock_free_vendors(text, vendors):
    assert parse_lock_free(text) == vendors


def test_lock_free_round_trip():
    assert parse_lock_free(render_lock_free({"NVIDIA", "DCU"})) == {"DCU", "NVIDIA"}
    assert render_lock_free({"NVIDIA", "DCU"}) == "DCU,NVIDIA"


@given(st.text() | st.text(st.sampled_from("0123456789-:TZW+., ")))
def test_anything_is_read_or_malformed(text):
    parse_handshake(text), parse_handshake(f"Requesting_{text}"), parse_lock_free(text)
    try:
        assert parse_lock(text).at.tzinfo is not None
    except MalformedInput as error:
        assert error.field == "hami.io/mutex.lock"


def test_long_texts_are_not_cached():
    assert parse_handshake("Reported" + "x" * 5000) is parse_handshake("Reported" + "x" * 6000)
    long = "NVIDIA" + "x" * LOCK_FREE_LIMIT
    assert parse_lock_free(long) == frozenset()
    assert parse_lock_free(long) is not parse_lock_free(long)
