"""Why a pod waits, in one sentence."""

import pytest

from hami.codec.device_config import chart_config
from hami.model import DeviceUsage, Node, Partition, Reason, Unfit
from hami.scheduling.placement import place_pod
from hami.scheduling.refusal import Refusal, explain_node
from hami.scheduling.refusal_text import MAX_LENGTH, device_clause, refusal_sentence
from hami.vendors.catalog import vendors
from testing.builders import container, gpus, pod_request, usage
from testing.cases import cases

NODES = dict(
    node2=[usage("a", 1, 46000), usage("b", healthy=False)],
    node1=[usage("c", 1, 46000, 90)],
    node3=[usage("d", 10, 6068), usage("e", 10, 100)],
)
ASK = pod_request(gpus(1, 3000, 30))


def refusal(asked=ASK, nodes=NODES, unknown=()):
    groups = {}
    for name, usages in nodes.items():
        verdict = place_pod({"NVIDIA": usages}, asked)
        assert isinstance(verdict, Unfit)
        groups.setdefault(verdict, []).append(name)
    return Refusal(asked, tuple((unfit, tuple(names)) for unfit, names in groups.items()), unknown)


def nearest(nodes, asked=ASK, vendor="NVIDIA"):
    return [
        explain_node(name, {vendor: usages}, Refusal(asked, ())) for name, usages in nodes.items()
    ]


def test_reasons_are_counted_most_frequent_first():
    assert refusal_sentence(refusal()) == (
        "1 × NVIDIA with 3,000 MiB and 30 cores fits none of 3 nodes: 2 of 5 devices have too little free memory, "
        "2 have no free slot, 1 is unhealthy"
    )


def test_what_the_nearest_device_lacks_is_said():
    assert refusal_sentence(refusal(), nearest(NODES)).endswith(
        "; the nearest, device 0 of node2, lacks 2,932 MiB"
    )


def test_a_device_that_lacks_no_amount_is_not_the_nearest():
    ill = {"node1": [usage("a", healthy=False)]}
    assert "nearest" not in refusal_sentence(refusal(nodes=ill), nearest(ill))


@cases(
    "asked, said",
    (
        "one more would fit than the node has",
        pod_request(gpus(3)),
        "3 × NVIDIA with 100 % memory fit none of 3 nodes; 3 nodes have fewer devices than requested",
    ),
    (
        "several containers",
        pod_request(gpus(1, 47_000), gpus(1, 48_000), gpus(1, 49_000)),
        "1 × NVIDIA with 47,000 MiB and 1 × NVIDIA with 48,000 MiB and 1 more fit none of 3 nodes",
    ),
)
def test_what_is_asked(asked, said):
    assert refusal_sentence(refusal(asked)).startswith(said)


def test_devices_that_would_fit_are_too_few():
    nodes = {"node1": [usage("a"), usage("b", 1, 46000)]}
    assert refusal_sentence(refusal(pod_request(gpus(2, 3000)), nodes)) == (
        "2 × NVIDIA with 3,000 MiB fit none of 1 node: 1 of 2 devices would fit, too few on each node, "
        "1 has too little free memory"
    )


@cases(
    "nodes, unknown, said",
    ("none", {}, ("other",), "fits no node: none has registered such devices"),
    (
        "some",
        {"node1": NODES["node1"]},
        ("x", "y"),
        "fits none of 1 node: 1 of 1 device has too little free memory; 2 more nodes have no such devices",
    ),
)
def test_nodes_without_devices(nodes, unknown, said):
    text = refusal_sentence(refusal(nodes=nodes, unknown=unknown))
    assert text == f"1 × NVIDIA with 3,000 MiB and 30 cores {said}"


@cases(
    "limits, said",
    ("slices", {"enflame.com/drs-gcu": 3}, "1 × Enflame with 3 slices fits no node"),
    ("devices alone", {"aws.amazon.com/neuron": 4}, "4 × AWSNeuron fit no node"),
)
def test_devices_without_amounts(limits, said):
    found = pod_request(container(limits), vendors=vendors(chart_config()))
    assert refusal_sentence(refusal(found, {})).startswith(said)


def test_cores_that_are_a_mask_are_counted():
    node = Node(
        name="neuron",
        capacity={"aws.amazon.com/neuron": "1", "aws.amazon.com/neuroncore": "2"},
        labels={"node.kubernetes.io/instance-type": "inf2.24xlarge"},
    )
    known = vendors(chart_config())
    vendor = known["AWSNeuron"]
    (device,) = vendor.decision.inventory(vendor, node)
    taken = DeviceUsage(device, slots_used=1, cores_used=0b10, partitions=(Partition(1),))
    asked = pod_request(container({vendor.resources.cores: 2}), vendors=known)
    unfit = Unfit(((Reason.NO_CORES, 1),), 1)
    text = refusal_sentence(
        Refusal(asked, ((unfit, ("neuron",)),)), nearest({"neuron": [taken]}, asked, vendor.key)
    )
    assert text == (
        "1 × AWSNeuron with 2 cores fits none of 1 node: 1 of 1 device has too few free cores; "
        "the nearest, device 0 of neuron, lacks 1 core"
    )


def test_a_sentence_is_short_however_many_reasons_there_are():
    reasons = tuple((reason, 1000) for reason in sorted(Reason))
    asked = pod_request(gpus(2, 100_000, 30), gpus(1, 3000, 20))
    node = nearest({"n" * 253: [usage("a", 1, 46000)]})
    text = refusal_sentence(Refusal(asked, ((Unfit(reasons, 20_000), ("n1",)),), ("x",)), node)
    assert len(text) <= MAX_LENGTH
    assert not text.endswith(", ")
    assert "nnn" not in text


@pytest.mark.parametrize("reason", sorted(set(Reason) - {Reason.TOO_FEW_DEVICES}))
def test_every_reason_has_words(reason):
    assert str(reason) not in device_clause(reason, 2)
