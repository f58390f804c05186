"""Selectors of claims that say which devices a pod accepts, and the other way round."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.claim_amounts import MAX_EXPRESSION
from hami.codec.device_selectors import ATTRIBUTES, parse_selectors, render_selectors
from hami.model import Selector
from testing.cases import cases

UUID, MODEL = f"{ATTRIBUTES}.uuid", f"{ATTRIBUTES}.productName.lowerAscii()"
ITEMS = st.text(
    st.characters(
        codec="utf-8", max_codepoint=0xFFFF, exclude_categories=["C"], exclude_characters=","
    ),
    min_size=1,
    max_size=9,
).filter(lambda text: text == text.strip() == text.lower())
LISTS = st.none() | st.lists(ITEMS, min_size=1, max_size=4).map(tuple)


@given(st.builds(Selector, use_types=LISTS, nouse_types=LISTS, use_uuids=LISTS, nouse_uuids=LISTS))
def test_what_is_said_is_read_back(selector):
    assert parse_selectors(render_selectors(selector)) == selector


@cases(
    "expressions, selector",
    ([], Selector()),
    ([f"  {UUID}  ==  'GPU-1' "], Selector(use_uuids=("GPU-1",))),
    ([f"{UUID} in ['a', \"b\",]"], Selector(use_uuids=("a", "b"))),
    ([f"!({UUID} == 'a')", f"!({UUID} in ['b'])"], Selector(nouse_uuids=("a", "b"))),
    (
        [f"!{MODEL}.contains('a')", f"!({MODEL}.contains('b') || {MODEL}.contains('c'))"],
        Selector(nouse_types=("a", "b", "c")),
    ),
)
def test_other_ways_to_say_it(expressions, selector):
    assert parse_selectors(expressions) == selector


@pytest.mark.parametrize(
    "expressions",
    [
        [""],
        ["true"],
        [MODEL],
        [f"{UUID} != 'a'"],
        [f"{UUID} == 'a' && true"],
        [f"{UUID} in []"],
        [f"{UUID} in ['a' 'b']"],
        [f"{UUID} in ['a'"],
        [f"{UUID} in 'a'"],
        [f"{UUID} == 1"],
        [f"{UUID} == ''"],
        [f"{UUID} == 'a,b'"],
        [f"{UUID} == ' a'"],
        [f"{UUID} == 'a'", f"{UUID} == 'b'"],
        [f"{UUID} == 'a' || {UUID} == 'b'"],
        [f"!{UUID} in ['a']"],
        [f"!({UUID} == 'a'"],
        [f"!!({UUID} == 'a')"],
        [f"({UUID} == 'a')"],
        [f"{MODEL}.contains('A')"],
        [f"{MODEL}.contains('a') ||"],
        [f"{MODEL}.contains('a') && {MODEL}.contains('b')"],
        [f"!{MODEL}.contains('a') || {MODEL}.contains('b')"],
        [f"{MODEL}.startsWith('a')"],
        [f"{ATTRIBUTES}.productName.contains('a')"],
        [f"{ATTRIBUTES}.memoryMiB == 5"],
        ['device.driver == "gpu.hami.io"'],
        [f'{UUID} == "\\x41"'],
        [f"{UUID} == '{'a' * MAX_EXPRESSION}'"],
    ],
)
def test_anything_else_is_not_read(expressions):
    assert parse_selectors(expressions) is None
