"""Policies, weights and lists as users write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.policies import parse_device_policy, parse_list, parse_node_policy, parse_weights
from hami.errors import MalformedInput
from hami.model import NodePolicy, OrderKey, Weights
from testing.cases import cases

SCORE, DOWN, NUMA, NUMA_DOWN = (
    OrderKey.SCORE,
    OrderKey.SCORE_DESCENDING,
    OrderKey.NUMA,
    OrderKey.NUMA_DESCENDING,
)
USED, INDEX = OrderKey.USED_DESCENDING, OrderKey.INDEX


@cases(
    "text, policy",
    ("spread", NodePolicy.SPREAD),
    ("binpack", NodePolicy.BINPACK),
    ("", NodePolicy.BINPACK),
    ("Spread", NodePolicy.BINPACK),
    (" spread", NodePolicy.BINPACK),
    ("spread,binpack", NodePolicy.BINPACK),
)
def test_node_policy(text, policy):
    assert parse_node_policy(text) is policy


@cases(
    "text, numa_bind, order",
    ("binpack", False, (SCORE, NUMA)),
    ("spread", False, (DOWN, NUMA)),
    ("", False, (DOWN, NUMA)),
    ("what", False, (DOWN, NUMA)),
    ("topology-aware", False, (DOWN, NUMA)),
    ("mutex", False, (USED, NUMA)),
    ("binpack", True, (NUMA_DOWN, SCORE)),
    ("spread", True, (NUMA, DOWN)),
    ("topology-aware", True, (NUMA, DOWN)),
    ("mutex", True, (USED, NUMA)),
    ("numa", False, (NUMA, INDEX)),
    ("numa", True, (NUMA, INDEX)),
    ("numa,spread", False, (NUMA, DOWN, INDEX)),
    ("binpack,numa", False, (SCORE, NUMA, INDEX)),
    ("binpack,numa", True, (NUMA, SCORE, INDEX)),
    ("binpack,spread", True, (NUMA, SCORE, DOWN, INDEX)),
    ("mutex,spread", False, (DOWN, INDEX)),
    ("mutex,", False, (DOWN, INDEX)),
    (",", True, (NUMA, DOWN, INDEX)),
    (" numa , numa,binpack ", False, (NUMA, SCORE, INDEX)),
    ("binpack,what", False, (SCORE, INDEX)),
)
def test_device_order(text, numa_bind, order):
    assert parse_device_policy(text, numa_bind=numa_bind).order == order


@cases(
    "text, mutex, topology_aware",
    ("spread", False, False),
    ("mutex", True, False),
    ("topology-aware", False, True),
    ("mutex,binpack", True, False),
    ("topology-aware, mutex", True, True),
    ("mutexes", False, False),
)
def test_words_that_change_the_fit(text, mutex, topology_aware):
    policy = parse_device_policy(text)
    assert (policy.mutex, policy.topology_aware) == (mutex, topology_aware)


@cases(
    "text, weights",
    ("slot=1,core=1,memory=3", Weights(1, 1, 3)),
    ("memory=0, core = 2 ,slot=+1", Weights(1, 2, 0)),
)
def test_weights(text, weights):
    assert parse_weights(text) == weights


@cases(
    "text, problem",
    ("a weight is missing", "slot=1,core=1", "expected slot, core, and memory weights"),
    ("", "expected slot, core, and memory weights"),
    ("slot=1,core=1,memory=1,", "expected slot, core, and memory weights"),
    ("slot=1,core=1,memory", "expected key=value entries"),
    ("slot=1,slot=1,memory=1", 'duplicate "slot" weight'),
    ("slot=1,core=x,memory=1", '"core" weight must be an integer'),
    ("slot=1.5,core=1,memory=1", '"slot" weight must be an integer'),
    (f"slot=1,core={'9' * 5000},memory=1", '"core" weight must be an integer'),
    ("slot=1,core=NaN,memory=1", '"core" weight must be an integer'),
    ("slot=1,core=-1,memory=1", '"core" weight must not be negative'),
    ("slot=1,core=1,power=1", 'unknown weight "power"'),
    ("slot=0,core=0,memory=0", "at least one weight must be positive"),
)
def test_malformed_weights(text, problem):
    with pytest.raises(MalformedInput) as caught:
        parse_weights(text)
    assert (
        str(caught.value)
        == f'invalid hami.io/device-scoring-weights annotation "{text}": {problem}'
    )
    assert (caught.value.field, caught.value.problem) == ("hami.io/device-scoring-weights", problem)


@given(
    st.text()
    | st.lists(st.sampled_from(["slot=1", "core=", "memory=-1", "=", "slot", "x=1"])).map(",".join)
)
def test_any_weights_are_read_or_malformed(text):
    try:
        assert sum(getattr(parse_weights(text), name) for name in ("slot", "core", "memory")) > 0
    except MalformedInput as error:
        assert error.field == "hami.io/device-scoring-weights"


@cases(
    "text, items",
    (None, None),
    ("", None),
    ("  ", None),
    ("a", ("a",)),
    (" a , b", ("a", "b")),
    ("a,,b,", ("a", "b")),
    (", ", ()),
)
def test_list(text, items):
    assert parse_list(text) == items
