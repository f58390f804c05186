"""Selections that vendors share: what they return is always legal, and they find what there is."""

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.vendors.select import grouped, on_wings, positions_of, whole_pairs
from testing.builders import usage, usages
from testing.cases import cases

WINGS = [{0, 1, 2, 3}, {4, 5, 6, 7}]
PAIRS = {(a, b) for wing in WINGS for a, b in combinations(sorted(wing), 2)} | {
    (0, 4),
    (1, 5),
    (2, 6),
    (3, 7),
}
FOURS = [*WINGS, {0, 1, 4, 5}, {2, 3, 6, 7}, {0, 2, 4, 6}, {1, 3, 5, 7}, {0, 3, 4, 7}, {1, 2, 5, 6}]
LEGAL = {
    1: [{place} for place in range(8)],
    2: [set(pair) for pair in PAIRS],
    4: FOURS,
    8: [set(range(8))],
}
EVERY = usages(*(f"c{index}" for index in range(8)))


def indexes(found):
    return [usage.device.index for usage in found]


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_wings_give_a_linked_set_whenever_there_is_one(count):
    for mask in range(256):
        free = {place for place in range(8) if mask >> place & 1}
        found = indexes(on_wings([EVERY[place] for place in free], count, EVERY))
        assert set(found) <= free
        assert len(found) in (0, count)
        assert len(set(found)) == len(found)
        assert (
            set(found) in LEGAL[count]
            if found
            else not any(legal <= free for legal in LEGAL[count])
        ), free


def wings_in_the_words_of_the_reference(free, count):
    """The selection as upstream describes it, including its rule for six free devices."""
    left, right = sorted(free & WINGS[0]), sorted(free & WINGS[1])
    if count == 8:
        return sorted(free) if len(free) == 8 else []
    if len(left) >= count or len(right) >= count:
        for target in {1: (1, 3, 2, 4), 2: (2, 3, 4), 4: (4,)}[count]:
            if target in (len(left), len(right)):
                return (left if len(left) == target else right)[:count]
    if count == 2:
        return next(([low, low + 4] for low in range(4) if {low, low + 4} <= free), [])
    squares = [square for square in FOURS[2:] if square <= free and count == 4]
    good = [square for square in squares if len(free) < 6 or tuple(sorted(free - square)) in PAIRS]
    return sorted(good[0]) if good else sorted(squares[-1]) if squares else []


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_wings_are_those_of_the_reference(count):
    for mask in range(256):
        free = {place for place in range(8) if mask >> place & 1}
        expected = wings_in_the_words_of_the_reference(free, count)
        assert indexes(on_wings([EVERY[place] for place in free], count, EVERY)) == expected, free


@given(
    order=st.permutations(range(8)),
    free=st.sets(st.integers(0, 7)),
    count=st.sampled_from([1, 2, 3, 4, 5, 8]),
)
def test_wings_do_not_depend_on_the_order_of_trying(order, free, count):
    shuffled = [EVERY[place] for place in order]
    tried = [usage for usage in shuffled if usage.device.index in free]
    found = indexes(on_wings(tried, count, shuffled))
    assert found == indexes(on_wings([EVERY[place] for place in sorted(free)], count, EVERY))
    assert count in LEGAL or not found


@cases(
    "free, count, found",
    ((0, 1, 2, 3, 4, 6, 7), 1, (4,)),
    ((0, 1, 4), 1, (4,)),
    ((0, 1, 4, 5, 6), 1, (4,)),
    ((0, 1, 4, 5), 1, (0,)),
    ((0, 1, 4, 5, 6), 2, (0, 1)),
    ((0, 1, 2, 4, 5, 6, 7), 2, (0, 1)),
    ((0, 1, 2, 3, 5, 6, 7), 2, (5, 6)),
    ((1, 2, 3, 4, 5, 6, 7), 4, (4, 5, 6, 7)),
    ((1, 2, 3, 5, 6, 7), 4, (2, 3, 6, 7)),
    ((0, 1, 2, 5, 6, 7), 4, (1, 2, 5, 6)),
)
def test_wings_spare_what_is_whole(free, count, found):
    assert indexes(on_wings([EVERY[place] for place in free], count, EVERY)) == list(found)


def test_a_card_that_is_not_registered_leaves_the_others_in_their_places():
    listed = [one for one in EVERY if one.device.index != 3]
    assert indexes(on_wings([listed[2], listed[3]], 2, listed)) == [], "2 and 4 are not linked"


@cases(
    "listed, places",
    ("in order", usages("a", "b"), {"a": 0, "b": 1}),
    ("by index", [usage("a", index=5), usage("b", index=2)], {"a": 5, "b": 2}),
    ("no indexes", [usage("a"), usage("b"), usage("c")], {"a": 0, "b": 1, "c": 2}),
    ("none", [], {}),
)
def test_places(listed, places):
    assert positions_of(listed) == places


GROUPED = st.lists(st.none() | st.integers(0, 3), min_size=1, max_size=12)


@given(names=GROUPED, data=st.data())
def test_groups_have_the_size_asked_for_and_are_few(names, data):
    count = data.draw(st.integers(1, len(names)))
    listed = [usage(f"d{place}", info={"name": name}) for place, name in enumerate(names)]
    found = grouped(listed, count, name_of)
    assert len({one.device.uuid for one in found}) == len(found) == count
    sizes = sorted(Counter(name for name in names if name is not None).values(), reverse=True)
    largest = min(count, sizes[0]) if sizes and count > 1 and count < len(names) else 0
    taken = Counter(name_of(one) for one in found)
    assert max((number for name, number in taken.items() if name is not None), default=0) >= largest
    known = count - taken[None]
    assert known == min(count, sum(sizes)) or count in (1, len(names)), (
        "a device without a group before one with"
    )


@given(names=GROUPED, count=st.integers(1, 12))
def test_more_than_there_are_is_never_made_up(names, count):
    listed = [usage(f"d{place}", info={"name": name}) for place, name in enumerate(names)]
    assert len(grouped(listed, count, name_of)) == min(count, len(names))


def name_of(one):
    return one.device.info["name"]


@given(
    free=st.sets(st.integers(0, 15)),
    order=st.randoms(use_true_random=False),
    count=st.integers(1, 16),
)
def test_pairs_are_whole_and_lowest_first(free, order, count):
    tried = [usage(f"d{index}", index=index) for index in sorted(free)]
    order.shuffle(tried)
    found = indexes(whole_pairs(tried, count))
    there = [place for place in range(8) if {2 * place, 2 * place + 1} <= free]
    assert sorted(found) == sorted(
        index for place in there[: count // 2] for index in (2 * place, 2 * place + 1)
    )
    assert len(found) == min(count // 2, len(there)) * 2


def test_chips_of_one_index_are_no_pair():
    assert whole_pairs([usage("a", index=2), usage("b", index=2)], 2) == []


def test_two_of_a_pair_come_in_the_order_of_trying():
    assert indexes(whole_pairs([usage("a", index=3), usage("b", index=2)], 2)) == [3, 2]
