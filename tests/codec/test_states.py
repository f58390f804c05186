"""Handshake, node lock and lock-free vendors."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import param

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

TEN = datetime(2026, 8, 21, 10, tzinfo=UTC)
OTHER, REPORTED = Handshake(HandshakeState.OTHER), Handshake(HandshakeState.REPORTED)
seconds = st.datetimes(
    min_value=datetime(1970, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC)
).map(lambda at: at.replace(microsecond=0))
names = st.from_regex(r"[a-z0-9.-]+", fullmatch=True)


@pytest.mark.parametrize(
    "text, expected",
    [
        param(None, OTHER, id="absent"),
        param(
            "Requesting_2026-08-21 10:00:00",
            Handshake(HandshakeState.REQUESTED, TEN),
            id="requested",
        ),
        param(
            "Requesting_2026.08.21 10:00:00",
            Handshake(HandshakeState.REQUESTED, TEN),
            id="requested by v2.4",
        ),
        param(
            "Reported 2024-01-23 04:30:04.434037031 +0000 UTC m=+1104711.777756895",
            REPORTED,
            id="reported",
        ),
        param("Reported_2026-08-21 10:00:00", REPORTED, id="reported by another vendor"),
        param("Deleted_2026.08.21 10:00:00", OTHER, id="deleted by v2.4"),
        param("Requesting", OTHER, id="no time"),
        param("Requesting_", OTHER, id="empty time"),
        param("Requesting_yesterday", OTHER, id="no date"),
        param("Requesting_2026-02-30 10:00:00", OTHER, id="no such day"),
        param("Requesting_2026-08-21T10:00:00Z", OTHER, id="another form"),
        param("", OTHER, id="empty"),
    ],
)
def test_handshake(text, expected):
    assert parse_handshake(text) == expected


@given(seconds)
def test_request_round_trip(at):
    assert parse_handshake(render_request(at)) == Handshake(HandshakeState.REQUESTED, at)


def test_requests_are_written_in_utc():
    at = datetime(2026, 8, 21, 12, 0, 15, tzinfo=timezone(timedelta(hours=2)))
    assert render_request(at) == "Requesting_2026-08-21 10:00:15"


@pytest.mark.parametrize(
    "text, lock",
    [
        param("2026-08-21T10:00:00Z,default,a", NodeLock(TEN, ("default", "a")), id="with pod"),
        param(
            "2026-08-21T18:00:00+08:00,default,a",
            NodeLock(TEN, ("default", "a")),
            id="another zone",
        ),
        param("2026-08-21T10:00:00Z", NodeLock(TEN, None), id="legacy"),
        param(
            "2026-08-21T10:00:00.000Z,ns,a", NodeLock(TEN, ("ns", "a")), id="fraction of a second"
        ),
    ],
)
def test_lock(text, lock):
    assert parse_lock(text) == lock


@given(seconds, names, names)
def test_lock_round_trip(at, namespace, name):
    assert parse_lock(render_lock(at, namespace, name)) == NodeLock(at, (namespace, name))


def test_locks_are_written_in_utc_to_the_second():
    at = datetime(2026, 8, 21, 18, 0, 0, 999999, tzinfo=timezone(timedelta(hours=8)))
    assert render_lock(at, "default", "pod1") == "2026-08-21T10:00:00Z,default,pod1"


@pytest.mark.parametrize(
    "text, problem",
    [
        param("lock", "expected an RFC 3339 time first", id="no time"),
        param("", "expected an RFC 3339 time first", id="empty"),
        param("yesterday,default,a", "expected an RFC 3339 time first", id="no time"),
        param(
            "2026-08-21T10:00:00,default,a",
            "expected an RFC 3339 time with a zone first",
            id="no zone",
        ),
        param(
            "2026-08-21T10:00:00Z,a",
            "malformed lock annotation: expected 3 parts, got 2",
            id="two parts",
        ),
        param(
            "2026-08-21T10:00:00Z,a,b,c",
            "malformed lock annotation: expected 3 parts, got 4",
            id="four parts",
        ),
    ],
)
def test_malformed_lock(text, problem):
    with pytest.raises(MalformedInput) as caught:
        parse_lock(text)
    assert (caught.value.field, caught.value.text, caught.value.problem) == (
        "hami.io/mutex.lock",
        text,
        problem,
    )


@pytest.mark.parametrize(
    "text, vendors",
    [
        param(None, set(), id="absent"),
        param("", set(), id="empty"),
        param("NVIDIA", {"NVIDIA"}, id="one"),
        param(" NVIDIA, ,DCU,NVIDIA,", {"NVIDIA", "DCU"}, id="blanks and repetitions"),
        param("later", {"later"}, id="not a vendor that we know"),
        param("NVIDIA," + "x" * LOCK_FREE_LIMIT, set(), id="too long"),
    ],
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
