"""How full a node is."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from hami.scheduling.score import node_score
from testing.builders import usage
from testing.cases import cases
from tests.scheduling.precision import f32

HALF = usage("half", 5, 4000, 50, memory_mib=8000)
IDLE = usage("idle", memory_mib=8000)


@cases(
    "usages, score",
    ("no device", [], "0.00"),
    ("idle", [IDLE], "0.00"),
    ("half", [HALF], "15.00"),
    ("half and idle", [HALF, IDLE], "7.50"),
    ("no slots", [usage(slots=0)], "0.00"),
    ("no cores", [usage(cores=0)], "0.00"),
    ("no memory", [usage(memory_mib=0)], "0.00"),
    ("a device of nothing beside one", [HALF, usage(slots=0, cores=0, memory_mib=0)], "15.00"),
    ("unhealthy devices count", [usage("sick", 10, 46068, 100, healthy=False)], "30.00"),
)
def test_score(usages, score):
    assert f"{node_score(usages):.2f}" == score


@given(st.lists(st.tuples(*[st.integers(1, 50_000)] * 6), min_size=1, max_size=8))
def test_score_is_rounded_to_single_precision_after_each_step(devices):
    slots, memory, cores, slots_used, memory_used, cores_used = map(sum, zip(*devices))
    parts = [
        f32(Fraction(slots_used, slots)),
        f32(Fraction(cores_used, cores)),
        f32(Fraction(memory_used, memory)),
    ]
    assert node_score(
        usage("x", su, mu, cu, slots=s, memory_mib=m, cores=c) for s, m, c, su, mu, cu in devices
    ) == f32(10 * f32(f32(parts[0] + parts[1]) + parts[2]))
