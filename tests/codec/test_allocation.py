"""Allocations in annotations."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.allocation import (
    LONGEST,
    LONGEST_CACHED,
    MOST,
    RECENT,
    container_positions,
    parse_shares,
    render_shares,
)
from hami.errors import MalformedInput
from hami.model import Share
from testing.builders import INIT, gpus, share
from testing.cases import cases

amounts = st.integers(0, 2**31 - 1)
words = st.text(st.characters(codec="utf-8", exclude_characters=",:;"))
shares = st.builds(Share, words.filter(bool), words, amounts, amounts)


@cases(
    "text, containers",
    (
        "two containers",
        "GPU-8,NVIDIA,500,3:;GPU-e,NVIDIA,500,3:;",
        ((share("GPU-8", 500, 3),), (share("GPU-e", 500, 3),)),
    ),
    ("first container without", ";u,T,1,2:;", ((), (share("u", 1, 2, "T"),))),
    ("in the middle", ";GPU-a0,NVIDIA,1000,30:;;", ((), (share("GPU-a0", 1000, 30),), ())),
    ("two devices", "a,T,1,2:b,T,3,4:;", ((share("a", 1, 2, "T"), share("b", 3, 4, "T")),)),
    ("nothing", "", ()),
    ("consumed by the plugin", ";;", ((), ())),
    ("placeholder of v2.5", ",,0,0:;a,T,1,2:;", ((), (share("a", 1, 2, "T"),))),
    ("more fields", "a,T,1,2,more,fields:;", ((share("a", 1, 2, "T"),),)),
    ("a part without comma", "junk:a,T,1,2:;", ((share("a", 1, 2, "T"),),)),
    ("nothing closed", "a,T,1,2", ((share("a", 1, 2, "T"),),)),
    ("as Go reads numbers", "a,T,+1,002:;", ((share("a", 1, 2, "T"),),)),
)
def test_parse(text, containers):
    assert parse_shares("allocated", text) == containers


@given(st.lists(st.lists(shares, max_size=3).map(tuple), max_size=4).map(tuple))
def test_round_trip(containers):
    assert parse_shares("allocated", render_shares(containers)) == containers


MISSING = "pod annotation format error, missing fields, do not use nodeName in task spec"


@cases(
    "text, quoted, problem",
    ("a field is missing", "uuid,type,100:;", "uuid,type,100", MISSING),
    ("in a later container", "a,T,1,2:;b,T:;", "b,T", MISSING),
    ("memory first", "a,T,x,y:;", "x", "invalid memory field"),
    ("no cores", "a,T,1,:;", "", "invalid core field"),
    ("fraction", "a,T,1.5,0:;", "1.5", "invalid memory field"),
    ("blank", "a,T, 1,0:;", " 1", "invalid memory field"),
    ("above int32", "a,T,2147483648,0:;", "2147483648", "invalid memory field"),
    ("huge", f"a,T,0,{'9' * 5000}:;", "9" * 200 + "…", "invalid core field"),
    ("would make room", "a,T,-5000,0:;", "-5000", "invalid memory field"),
    ("NaN", "a,T,NaN,0:;", "NaN", "invalid memory field"),
)
def test_malformed(text, quoted, problem):
    with pytest.raises(MalformedInput) as caught:
        parse_shares("allocated", text)
    assert (caught.value.field, caught.value.text, caught.value.problem) == (
        "allocated",
        quoted,
        problem,
    )


@given(st.text(st.sampled_from("a,:;0-9 \n٣")) | st.text())
def test_anything_is_read_or_malformed(text):
    try:
        parse_shares("allocated", text)
    except MalformedInput as error:
        assert error.field == "allocated"


def test_the_largest_allocation_is_read():
    """16 devices in each of 128 containers."""
    uuid = "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76"
    containers = 128 * ((share(uuid, 2**31 - 1, 100),) * 16,)
    assert len(text := render_shares(containers)) <= LONGEST
    assert parse_shares("allocated", text) == containers


@cases(
    "text",
    ("characters", "x" * (LONGEST + 1)),
    ("shares", "a,,0,0:" * (MOST + 1)),
    ("containers", ";" * (MOST + 1)),
    ("all", "a,,0,0:;" * 100_000),
)
def test_a_text_that_is_too_long_is_not_parsed(text):
    with pytest.raises(
        MalformedInput, match="expected at most 131072 characters, 2048 shares and 2048 containers"
    ):
        parse_shares("allocated", text)


def test_few_long_texts_are_remembered():
    """A tenant who writes long texts could otherwise fill the memory."""
    short = "a,T,1,2:" * (LONGEST_CACHED // 8)
    longer = [short + ";" * number for number in range(1, RECENT + 2)]
    first = parse_shares("allocated", short), parse_shares("allocated", longer[0])
    assert parse_shares("allocated", longer[0]) is first[1]
    for text in longer:
        parse_shares("allocated", text)
    assert parse_shares("allocated", short) is first[0]
    assert parse_shares("allocated", longer[0]) is not first[1]


def test_the_error_of_a_long_text_is_remembered_without_the_places_that_raised_it():
    text = "a,T,1,2:" * (LONGEST_CACHED // 8) + "a,T,x,2:;"
    depths = []
    for _ in range(3):
        with pytest.raises(MalformedInput, match="invalid memory field") as raised:
            parse_shares("allocated", text)
        depths.append(len(raised.traceback))
    assert depths[0] == depths[1] == depths[2]


ONE = "a,T,1,2:;"


@cases(
    "requested, text, positions",
    ("an entry for each", {"x": 1, "y": 1}, ONE + ONE, {"x": 0, "y": 1}),
    ("one without devices", {"x": 0, "y": 1}, f";{ONE}", {"y": 1}),
    ("v2.10 leaves it out", {"x": 0, "y": 1}, ONE, {"y": 0}),
    ("v2.10 leaves it out, padded at the end", {"x": 0, "y": 1, "z": 0}, f"{ONE};;", {"y": 0}),
    ("by its place, though it requests none", {"x": 0, "y": 0}, f";{ONE}", {"y": 1}),
    ("v2.8 leaves out init containers with devices", {"i": 1, "x": 1}, ONE, {}),
    ("nothing", {"x": 1}, "", {}),
    ("nothing for one without devices", {"x": 0}, ";", {}),
)
def test_whose_shares_they_are(requested, text, positions):
    containers = [
        replace(gpus(kind=INIT), name=name) if name == "i" else replace(gpus(), name=name)
        for name in requested
    ]
    requesting = [name for name, count in requested.items() if count]
    found = container_positions(containers, parse_shares("allocated", text), requesting)
    assert found == positions
