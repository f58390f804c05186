from __future__ import annotations

import pytest

from hami.codec.keys import GPU_ALLOCATED, RESIZE_TARGET, RESIZED
from hami.codec.resize import (
    MAX_CONTAINERS,
    MAX_MESSAGE,
    MAX_TEXT,
    AppliedSizes,
    ResizeState,
    ResizeStatus,
    Size,
    held_text,
    parse_applied,
    parse_resize,
    parse_status,
    render_applied,
    render_resize,
    render_status,
    wanted_text,
)
from hami.errors import MalformedInput
from testing.cases import cases

SIZES = {
    "main": Size(memory_mib=8192, cores=40),
    "half": Size(memory_percent=50),
    "slow": Size(cores=1),
}


def test_a_resize_is_read_as_it_was_written():
    assert (
        parse_resize(
            '{"main": {"memory": "8Gi", "cores": 40}, "half": {"memory": "50%"}, "slow": {"cores": 1}}'
        )
        == SIZES
    )
    assert parse_resize(render_resize(SIZES)) == SIZES


@cases("memory, mib", ("5000", 5000), ("1Mi", 1), ("1048577k", 1001), ("1M", 1), ("3G", 2862))
def test_memory_is_rounded_up_to_mib(memory, mib):
    text = f'{{"main": {{"memory": "{memory}"}}}}'
    assert parse_resize(text) == {"main": Size(memory_mib=mib)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "{",
        '{"main": {}}',
        '{"main": null}',
        '{"main": {"memory": ""}}',
        '{"main": {"memory": 8192}}',
        '{"main": {"memory": "0Gi"}}',
        '{"main": {"memory": "-8Gi"}}',
        '{"main": {"memory": "0%"}}',
        '{"main": {"memory": "101%"}}',
        '{"main": {"memory": "1e18Gi"}}',
        '{"main": {"memory": "1e18"}}',
        '{"main": {"memory": "1000000000000000000E"}}',
        '{"main": {"cores": 0}}',
        '{"main": {"cores": 101}}',
        '{"main": {"cores": "40"}}',
        '{"main": {"cores": 1e18}}',
        '{"main": {"gpumem": "8Gi"}}',
        '{"../main": {"cores": 40}}',
        '{"main\\n": {"cores": 40}}',
        '{"\ud800": {"cores": 40}}',
        "[" * 4000,
        "{"
        + ", ".join(f'"c{number}": {{"cores": 1}}' for number in range(MAX_CONTAINERS + 1))
        + "}",
        '{"main": {"cores": 1}}' + " " * MAX_TEXT,
    ],
)
def test_what_is_no_resize_is_refused(text):
    with pytest.raises(MalformedInput, match="hami.io/resize"):
        parse_resize(text)


def test_what_is_held_is_never_less_than_what_is_wanted():
    annotations = {GPU_ALLOCATED: "a"}
    assert (held_text({}), wanted_text({})) == (None, None)
    assert (held_text(annotations), wanted_text(annotations)) == ("a", "a")
    annotations |= {RESIZED: "b"}
    assert (held_text(annotations), wanted_text(annotations)) == ("b", "b")
    annotations |= {RESIZE_TARGET: "c"}
    assert (held_text(annotations), wanted_text(annotations)) == ("b", "c")


def test_answers_are_read_as_they_were_written_and_bounded():
    status = ResizeStatus(ResizeState.DEFERRED, '{"main": {"cores": 40}}', "no room")
    assert parse_status(render_status(status)) == status
    assert parse_applied(render_applied(AppliedSizes("a;"))) == AppliedSizes("a;")
    long = parse_applied(render_applied(AppliedSizes("a;", "x" * 5000)))
    assert long is not None
    assert len(long.problem) == MAX_MESSAGE


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", '{"state": "Done"}', '{"sizes": 3}', "\ud800", " " * 300_000]
)
def test_answers_that_cannot_be_read_are_none(text):
    assert parse_status(text) is None
    assert parse_applied(text) is None
