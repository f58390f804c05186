"""Where new objects lie in memory."""

from __future__ import annotations

import random

from hami.state.memory_layout import FEW_JUMPS, jumps, side_by_side

COUNT, LENGTH = 500, 400
"""The length of the texts is one that few other objects have: their gaps are those of the test."""


def texts() -> list[str]:
    return [f"{number:0{LENGTH}}" for number in range(COUNT)]


def test_new_objects_lie_side_by_side_although_there_are_gaps_between_old_ones():
    old = [text for _ in range(4) for text in texts()]
    random.Random(1).shuffle(old)
    del old[: 2 * COUNT]
    assert jumps(texts()) > FEW_JUMPS * COUNT
    made = side_by_side(texts)
    assert jumps(made) <= FEW_JUMPS * COUNT
    assert made == texts()


def test_few_or_no_objects():
    assert side_by_side(list[int]) == []
    assert side_by_side(lambda: [1000]) == [1000]
    assert jumps([]) == jumps(["a"]) == 0
