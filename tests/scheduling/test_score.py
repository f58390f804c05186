"""How full a node is."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import param

from hami.scheduling.score import node_score
from tests.builders import view
from tests.scheduling.precision import f32

HALF = view("half", 5, 4000, 50, memory_mib=8000)
IDLE = view("idle", memory_mib=8000)


@pytest.mark.parametrize("views, score", [
    param([], "0.00", id="no device"),
    param([IDLE], "0.00", id="idle"),
    param([HALF], "15.00", id="half"),
    param([HALF, HALF], "15.00", id="two halves"),
    param([HALF, IDLE], "7.50", id="half and idle"),
    param([view("a0"), view("a1")], "0.00", id="n1"),
    param([view("b0", 1, 3000, 30), view("b1")], "2.33", id="n2"),
    param([view("1", 1, 2000, 25, memory_mib=8000), IDLE], "3.00", id="node1"),
    param([IDLE, view("4", 1, 6000, 75, memory_mib=8000)], "8.00", id="node2"),
    param([view("full", 10, 46068, 100)], "30.00", id="full"),
    param([view(slots=0)], "0.00", id="no slots"),
    param([view(cores=0)], "0.00", id="no cores"),
    param([view(memory_mib=0)], "0.00", id="no memory"),
    param([HALF, view(slots=0, cores=0, memory_mib=0)], "15.00", id="a device of nothing beside one"),
    param([view("sick", 10, 46068, 100, healthy=False)], "30.00", id="unhealthy devices count"),
])
def test_score(views, score):
    assert f"{node_score(views):.2f}" == score


@given(st.lists(st.tuples(*[st.integers(1, 50_000)] * 6), min_size=1, max_size=8))
def test_score_is_rounded_to_single_precision_after_each_step(devices):
    slots, memory, cores, slots_used, memory_used, cores_used = map(sum, zip(*devices))
    parts = [f32(Fraction(slots_used, slots)), f32(Fraction(cores_used, cores)), f32(Fraction(memory_used, memory))]
    assert node_score(view("x", su, mu, cu, slots=s, memory_mib=m, cores=c) for s, m, c, su, mu, cu in devices) == f32(
        10 * f32(f32(parts[0] + parts[1]) + parts[2]))
