"""Device scores and the order in which devices are tried."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.policies import parse_device_policy
from hami.model import Weights
from hami.scheduling.order import device_scores, in_order_of_trying
from testing.builders import request, usage
from testing.cases import cases
from tests.scheduling.precision import f32

G3 = request(1, 3000, cores=30)
G11 = request(1, memory_percent=40)
A = usage("a", 1, 10, 90, memory_mib=100)


@cases(
    "device, asked, weights, score",
    ("idle", usage(), G3, Weights(), "4.65"),
    ("memory counts more", A, G11, Weights(memory=3), "26.00"),
    ("cores count more", A, G11, Weights(core=3), "34.00"),
    (
        "four cores",
        usage("z", 2, 2048, 1, cores=4, memory_mib=8192),
        request(1, 1024, cores=1),
        Weights(),
        "11.75",
    ),
    ("no slots", usage(slots=0), G3, Weights(), "0.00"),
    ("no cores", usage(cores=0), G3, Weights(), "0.00"),
    ("no memory", usage(memory_mib=0), G3, Weights(), "0.00"),
    (
        "many devices are one slot",
        usage(memory_mib=100),
        request(3, 10, cores=0),
        Weights(),
        "2.00",
    ),
    ("percent before memory", usage(memory_mib=100), request(1, 10, 50), Weights(), "6.00"),
    (
        "weights of nothing",
        usage(memory_mib=100),
        request(1, 10, cores=0),
        Weights(0, 0, 1),
        "1.00",
    ),
)
def test_score(device, asked, weights, score):
    (found,) = device_scores([device], asked, weights)
    assert f"{found:.2f}" == score


amounts = st.integers(0, 100_000)


@given(
    st.integers(1, 100),
    st.integers(0, 100),
    amounts,
    amounts,
    st.integers(0, 300),
    amounts,
    st.integers(0, 9),
)
def test_score_is_rounded_to_single_precision_after_each_step(
    slots, used, memory, taken, cores, more, weight
):
    (found,) = device_scores(
        [usage("x", used, taken, cores, slots=slots, memory_mib=memory + 1)],
        request(1, more, cores=7),
        Weights(weight, 1, 3),
    )
    parts = [
        f32(w * f32(Fraction(n, d)))
        for w, n, d in (
            (weight, used + 1, slots),
            (1, cores + 7, 100),
            (3, taken + more, memory + 1),
        )
    ]
    assert found == f32(10 * f32(f32(parts[0] + parts[1]) + parts[2]))


@pytest.mark.parametrize("weights", [Weights(2**63 - 1, 2**63 - 1, 2**63 - 1), Weights(0, 0, 1)])
@pytest.mark.parametrize(
    "device",
    [usage("x", 2**50, 2**50, 2**50, slots=1, cores=1, memory_mib=1), usage(slots=2**31 - 1)],
)
def test_extreme_scores_are_numbers(device, weights):
    (found,) = device_scores([device], request(1, 2**31 - 1, cores=2**31 - 1), weights)
    assert 0 <= found < float("inf")


def tried(policy, devices, numa_bind=False):
    """The uuids in the order in which they are tried; *devices*: (uuid, score, NUMA node, slots used, index)."""
    usages = [usage(uuid, used, numa=numa, index=index) for uuid, _, numa, used, index in devices]
    scores = [score for _, score, _, _, _ in devices]
    ordered = in_order_of_trying(usages, parse_device_policy(policy, numa_bind=numa_bind), scores)
    return "".join(usage.device.uuid for usage in ordered)


MIXED = [("a", 5.0, 0, 2, 3), ("b", 5.0, 1, 0, 2), ("c", 1.0, 0, 1, 1), ("d", 9.0, 1, 1, 0)]
EQUAL = [("a", 5.0, 0, 0, 5), ("b", 5.0, 0, 0, 2), ("c", 5.0, 0, 0, 3)]


@cases(
    "policy, numa_bind, order",
    ("binpack", False, "dbac"),
    ("spread", False, "cbad"),
    ("mutex", False, "bdca"),
    ("binpack", True, "acdb"),
    ("numa", False, "bdac"),
    ("binpack,numa", True, "dbac"),
)
def test_order(policy, numa_bind, order):
    assert tried(policy, MIXED, numa_bind) == order


@cases(
    "policy, numa_bind, order",
    ("the last registered", "binpack", False, "cba"),
    ("the highest index", "binpack,numa", False, "acb"),
)
def test_ties(policy, numa_bind, order):
    assert tried(policy, EQUAL, numa_bind) == order


def test_long_lists_are_sorted_stably():
    many = [(chr(ord("a") + place), float(place % 2), 0, 0, 0) for place in range(26)]
    assert tried("spread", many) == "ywusqomkigecazxvtrpnljhfdb"
