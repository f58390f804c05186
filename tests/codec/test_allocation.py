"""Allocations in annotations."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import param

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

amounts = st.integers(0, 2**31 - 1)
words = st.text(st.characters(codec="utf-8", exclude_characters=",:;"))
shares = st.builds(Share, words.filter(bool), words, amounts, amounts)


@pytest.mark.parametrize(
    "text, containers",
    [
        param(
            "GPU-8,NVIDIA,500,3:;GPU-e,NVIDIA,500,3:;",
            ((share("GPU-8", 500, 3),), (share("GPU-e", 500, 3),)),
            id="two containers",
        ),
        param(";u,T,1,2:;", ((), (share("u", 1, 2, "T"),)), id="first container without"),
        param(
            ";GPU-a0,NVIDIA,1000,30:;;", ((), (share("GPU-a0", 1000, 30),), ()), id="in the middle"
        ),
        param(
            "a,T,1,2:b,T,3,4:;", ((share("a", 1, 2, "T"), share("b", 3, 4, "T")),), id="two devices"
        ),
        param("", (), id="nothing"),
        param(";;", ((), ()), id="consumed by the plugin"),
        param(",,0,0:;a,T,1,2:;", ((), (share("a", 1, 2, "T"),)), id="placeholder of v2.5"),
        param("a,T,1,2,more,fields:;", ((share("a", 1, 2, "T"),),), id="more fields"),
        param("junk:a,T,1,2:;", ((share("a", 1, 2, "T"),),), id="a part without comma"),
        param("a,T,1,2", ((share("a", 1, 2, "T"),),), id="nothing closed"),
        param("a,T,+1,002:;", ((share("a", 1, 2, "T"),),), id="as Go reads numbers"),
    ],
)
def test_parse(text, containers):
    assert parse_shares("allocated", text) == containers


@given(st.lists(st.lists(shares, max_size=3).map(tuple), max_size=4).map(tuple))
def test_round_trip(containers):
    assert parse_shares("allocated", render_shares(containers)) == containers


MISSING = "pod annotation format error, missing fields, do not use nodeName in task spec"


@pytest.mark.parametrize(
    "text, quoted, problem",
    [
        param("uuid,type,100:;", "uuid,type,100", MISSING, id="a field is missing"),
        param("a,T,1,2:;b,T:;", "b,T", MISSING, id="in a later container"),
        param("a,T,x,y:;", "x", "invalid memory field", id="memory first"),
        param("a,T,1,:;", "", "invalid core field", id="no cores"),
        param("a,T,1.5,0:;", "1.5", "invalid memory field", id="fraction"),
        param("a,T, 1,0:;", " 1", "invalid memory field", id="blank"),
        param("a,T,2147483648,0:;", "2147483648", "invalid memory field", id="above int32"),
        param(f"a,T,0,{'9' * 5000}:;", "9" * 200 + "…", "invalid core field", id="huge"),
        param("a,T,-5000,0:;", "-5000", "invalid memory field", id="would make room"),
        param("a,T,NaN,0:;", "NaN", "invalid memory field", id="NaN"),
    ],
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


@pytest.mark.parametrize(
    "text",
    ["x" * (LONGEST + 1), "a,,0,0:" * (MOST + 1), ";" * (MOST + 1), "a,,0,0:;" * 100_000],
    ids=["characters", "shares", "containers", "all"],
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


@pytest.mark.parametrize(
    "requested, text, positions",
    [
        param({"x": 1, "y": 1}, ONE + ONE, {"x": 0, "y": 1}, id="an entry for each"),
        param({"x": 0, "y": 1}, f";{ONE}", {"y": 1}, id="one without devices"),
        param({"x": 0, "y": 1}, ONE, {"y": 0}, id="v2.10 leaves it out"),
        param(
            {"x": 0, "y": 1, "z": 0},
            f"{ONE};;",
            {"y": 0},
            id="v2.10 leaves it out, padded at the end",
        ),
        param({"x": 0, "y": 0}, f";{ONE}", {"y": 1}, id="by its place, though it requests none"),
        param({"i": 1, "x": 1}, ONE, {}, id="v2.8 leaves out init containers with devices"),
        param({"x": 1}, "", {}, id="nothing"),
        param({"x": 0}, ";", {}, id="nothing for one without devices"),
    ],
)
def test_whose_shares_they_are(requested, text, positions):
    containers = [
        replace(gpus(kind=INIT), name=name) if name == "i" else replace(gpus(), name=name)
        for name in requested
    ]
    requesting = [name for name, count in requested.items() if count]
    found = container_positions(containers, parse_shares("allocated", text), requesting)
    assert found == positions
