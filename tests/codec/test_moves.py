"""The record of moves on the pod that waits: whatever somebody writes there, it is read within bounds or not at all."""

import msgspec
import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists, text

from hami.codec.keys import MAKE_ROOM, MOVES, SCHEDULERS_ALONE, is_scheduler_owned
from hami.codec.moves import (
    MAX_TEXT,
    MOST_MOVES,
    MovesRecord,
    parse_most_moves,
    parse_moves_record,
    render_moves_record,
)
from hami.errors import MalformedInput

UIDS = lists(text("abcdef-0123456789", min_size=36, max_size=36), max_size=MOST_MOVES)


@given(UIDS, integers(0, MOST_MOVES), integers(0, 1000))
def test_what_is_written_is_read_again(uids, made, pods):
    record = MovesRecord("gpu-0", tuple(uids), made, "uid-rs", pods)
    written = render_moves_record(record)
    assert len(written) <= MAX_TEXT
    assert parse_moves_record({MOVES: written}) == record


@given(text())
def test_any_text_is_read_or_ignored(written):
    assert parse_moves_record({MOVES: written}) is None


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": 0},
        {"node": ""},
        {"node": "n" * 254},
        {"moves": ["u"] * (MOST_MOVES + 1)},
        {"moves": [""]},
        {"made": -1},
        {"made": MOST_MOVES + 1},
        {"pods": 10_000_000},
        {"controller": "c" * 129},
    ],
    ids=str,
)
def test_a_record_beyond_its_bounds_counts_as_none(change):
    valid = msgspec.to_builtins(MovesRecord("gpu-0", ("u",)))
    assert parse_moves_record({MOVES: msgspec.json.encode(valid).decode()}) is not None
    written = msgspec.json.encode(valid | change).decode()
    assert parse_moves_record({MOVES: written}) is None


@pytest.mark.parametrize("number", [1, 9, 20])
def test_a_label_says_how_many_moves(number):
    assert parse_most_moves({MAKE_ROOM: str(number)}) == number


@pytest.mark.parametrize("written", ["", "0", "21", "-1", "1.5", "true", "٣", "1" * 63])
def test_a_label_that_is_no_number_of_moves_is_refused(written):
    with pytest.raises(MalformedInput, match="hami.io/make-room"):
        parse_most_moves({MAKE_ROOM: written})


def test_without_the_label_nobody_asks():
    assert parse_most_moves({}) is None


def test_only_the_scheduler_writes_the_record():
    assert MOVES in SCHEDULERS_ALONE
    assert is_scheduler_owned(MOVES)
    assert not is_scheduler_owned(MAKE_ROOM), "a label with a policy of its own"
