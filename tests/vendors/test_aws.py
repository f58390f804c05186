"""AWS Neuron beyond the table: what nodes offer, and what is read back of pods."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.allocation import parse_shares
from hami.codec.device_config import DeviceConfig, Names
from hami.errors import MalformedInput
from hami.model import Device, Node, Partition, Reason
from hami.vendors import aws
from hami.vendors.catalog import vendors
from hami.vendors.spec import Candidate
from testing.builders import container, device_usage, pod
from testing.cases import cases
from testing.vendor_placing import cache_of, place_pod
from tests.vendors.rows_aws import CORES, COUNT, NEURON, device

ALL = Partition(0, 31)
LABEL = "node.kubernetes.io/instance-type"


def instance(name="n", kind="inf2.48xlarge", **amounts):
    """A node with these capacities, by the last part of their names."""
    capacity = {f"aws.amazon.com/{part}": str(amount) for part, amount in amounts.items()}
    return Node(
        name=name, labels={LABEL: kind} if kind else {}, capacity=capacity, allocatable=capacity
    )


@cases(
    "amounts, each",
    (dict(neuron=2, neuroncore=4), 2),
    (dict(neuron=2, neuroncore=8), 4),
    (dict(neuron=2, neuroncore=2), 1),
    (dict(neuron=2, neuroncore=62), 31),
)
def test_devices_share_the_cores_of_their_node(amounts, each):
    assert NEURON.decision.inventory(NEURON, instance(**amounts)) == tuple(
        Device(
            uuid=f"n-AWSNeuron-{i}",
            vendor="AWSNeuron",
            model="AWSNeuron",
            slots=each,
            memory_mib=0,
            cores=2**each - 1,
            index=i,
            info={"instance_type": "inf2.48xlarge"},
        )
        for i in range(2)
    )


def test_a_device_is_one_core_where_cores_have_no_name():
    vendor = vendors(DeviceConfig(nvidia=None, names={"AWSNeuron": Names(count=COUNT)}))[
        "AWSNeuron"
    ]
    (found,) = vendor.decision.inventory(vendor, instance(neuron=1))
    assert (found.slots, found.cores) == (1, 1)


@pytest.mark.parametrize("amounts", [{}, dict(neuron=0), dict(neuron=0, neuroncore=0)])
def test_a_node_without_devices(amounts):
    assert NEURON.decision.inventory(NEURON, instance(**amounts)) is None


@cases(
    "node, problem",
    ("no label", instance(kind="", neuron=1, neuroncore=2), f"label {LABEL}: missing"),
    ("no cores", instance(neuron=1), "expected 1 to 31 cores for each"),
    ("cores alone", instance(neuroncore=2), "expected 1 to 31 cores for each of the 0 devices"),
    (
        "cores that cannot be shared out",
        instance(neuron=3, neuroncore=4),
        "expected 1 to 31 cores for each",
    ),
    (
        "more cores than a mask has",
        instance(neuron=1, neuroncore=32),
        "expected 1 to 31 cores for each",
    ),
    ("negative", instance(neuron=-1, neuroncore=2), "expected no negative amount"),
    ("no number", instance(neuron="x", neuroncore=2), f"capacity of {COUNT}"),
    ("absurd", instance(neuron=2000, neuroncore=4000), "at most 256 devices"),
)
def test_nodes_that_cannot_be_read(node, problem):
    with pytest.raises(MalformedInput, match=problem):
        NEURON.decision.inventory(NEURON, node)


def test_a_node_that_cannot_be_read_offers_nothing_and_says_why():
    cache = cache_of(
        instance("bad", kind="", neuron=1, neuroncore=2), instance("good", neuron=1, neuroncore=2)
    )
    assert list(device_usage(cache)) == ["good"]
    assert LABEL in cache.nodes.problems()["bad", "AWSNeuron"]


def read(text, *containers):
    found = aws.read_shares(NEURON, pod(*containers), parse_shares("allocated", text))
    return [[(share.cores, share.partitions) for share in shares] for shares in found]


CORE, DEVICE = container({CORES: "1"}), container({COUNT: "1"})


@cases(
    "text, containers, expected",
    ("the first core", "d,AWSNeuron,0,1:;", [CORE], [[(1, (Partition(0),))]]),
    ("the second core", "d,AWSNeuron,0,2:;", [CORE], [[(2, (Partition(1),))]]),
    ("two neighbors", "d,AWSNeuron,0,12:;", [CORE], [[(12, (Partition(2, 2),))]]),
    ("two that are not", "d,AWSNeuron,0,5:;", [CORE], [[(5, (Partition(0), Partition(2)))]]),
    ("no core, as upstream may write", "d,AWSNeuron,0,0:;", [CORE], [[(0, ())]]),
    ("a device, of which upstream names two cores", "d,AWSNeuron,0,3:;", [DEVICE], [[(3, (ALL,))]]),
    ("of the second container", ";d,AWSNeuron,0,3:;", [CORE, DEVICE], [[], [(3, (ALL,))]]),
    ("nobody knows whose", "d,AWSNeuron,0,3:;", [CORE, DEVICE], [[(3, (Partition(0, 2),))]]),
)
def test_cores_are_read_back_from_the_mask(text, containers, expected):
    assert read(text, *containers) == expected


ASKED = st.lists(
    st.lists(
        st.sampled_from([{COUNT: 1}, {COUNT: 2}, {CORES: 1}, {CORES: 2}, {CORES: 4}]),
        min_size=1,
        max_size=2,
    ),
    max_size=12,
)


@given(asked=ASKED, each=st.sampled_from([1, 2, 4, 8]), gone=st.sets(st.integers(0, 11)))
def test_no_core_is_given_twice_and_all_are_read_back(asked, each, gone):
    node = instance(neuron=4, neuroncore=4 * each)
    cache = cache_of(node)
    bound = {}
    for number, limits in enumerate(asked):
        if (found := place_pod(cache, f"p{number}", *map(container, limits))) is not None:
            bound[number] = found
        if number in gone and number in bound:
            cache.pods.remove(bound.pop(number))
        for usage in device_usage(cache).get("n", ()):
            held = [
                core
                for partition in usage.partitions
                for core in range(partition.start, min(partition.start + partition.size, each))
            ]
            assert len(held) == len(set(held)), "a core was given twice"
            assert usage.slots_used <= usage.device.slots
    again = cache_of(node)
    for found in bound.values():
        again.pods.upsert(found)
    assert [sorted(usage.partitions) for usage in device_usage(again)["n"]] == [
        sorted(usage.partitions) for usage in device_usage(cache)["n"]
    ]
    assert [usage.slots_used for usage in device_usage(again)["n"]] == [
        usage.slots_used for usage in device_usage(cache)["n"]
    ]


def test_a_count_among_requests_alone_is_of_devices():
    cache = cache_of(instance(neuron=2, neuroncore=4))
    asked = pod(container(requests={COUNT: "1"}))
    cache.filtering.assume(asked, ["n"])
    annotations = cache.bindings.get(asked.ref.uid).annotations
    assert annotations["AWS_NEURON_IDS"] == "1"
    assert "NEURON_RESOURCE_TYPE" not in annotations


def test_the_cores_of_a_device_are_those_of_its_own_node():
    """Upstream uses the number of the first node that it has seen."""
    cache = cache_of(
        instance("two", neuron=1, neuroncore=2),
        instance("four", kind="inf1", neuron=1, neuroncore=4),
    )
    found = {}
    for name in ("two", "four"):
        asked = pod(container({COUNT: "1"}), name=name)
        cache.filtering.assume(asked, [name])
        found[name] = cache.bindings.get(asked.ref.uid).annotations[NEURON.annotations.allocated]
    assert found == {
        "two": "two-AWSNeuron-0,AWSNeuron,0,3:;",
        "four": "four-AWSNeuron-0,AWSNeuron,0,15:;",
    }


def test_what_a_request_needs_is_the_cores_of_the_device_at_most():
    asked = aws.parse_request(NEURON.key, NEURON.resources, container({CORES: "4"}))
    assert aws.too_few_cores(Candidate(device(), asked, None)) is None
    assert aws.too_few_cores(Candidate(device(0, Partition(0)), asked, None)) is Reason.NO_CORES
