"""Why a pod waits, in words."""

from hami.codec.device_config import chart_config
from hami.model import DeviceUsage, Node, Partition, Reason, Unfit
from hami.scheduling.placement import place_pod
from hami.scheduling.refusal import Refusal, describe, distance_of, explain_node, summarize
from hami.vendors.catalog import vendors
from testing.builders import container, gpus, pod_request, usage
from testing.cases import cases

NODES = dict(
    node2=[usage("a", 1, 46000), usage("b", healthy=False)],
    node1=[usage("c", 1, 46000, 90)],
    node3=[usage("d", 10, 6068), usage("e", 10, 100)],
)
ASK = pod_request(gpus(1, 3000, 30))


def refusal(asked=ASK, nodes=NODES, unknown=("other",)):
    groups = {}
    for name, usages in nodes.items():
        verdict = place_pod({"NVIDIA": usages}, asked)
        assert isinstance(verdict, Unfit)
        groups.setdefault(verdict, []).append(name)
    return Refusal(asked, tuple((unfit, tuple(names)) for unfit, names in groups.items()), unknown)


def described(asked=ASK, nodes=NODES, vendor="NVIDIA"):
    found = Refusal(asked, ())
    return describe(
        found, [explain_node(name, {vendor: usages}, found) for name, usages in nodes.items()]
    )


def test_a_sentence_for_each_reason():
    assert summarize(refusal()) == [
        "2 nodes CardInsufficientMemory(node1,node2)",
        "1 nodes CardNotHealth(node2)",
        "1 nodes CardTimeSlicingExhausted(node3)",
    ]


def test_nodes_with_too_few_devices_have_no_sentence():
    assert summarize(refusal(pod_request(gpus(3)))) == []


def test_only_so_many_nodes_are_named():
    crowd = {f"n{number:03}": [usage(f"g{number}", 10)] for number in reversed(range(60))}
    (text,) = summarize(refusal(nodes=crowd))
    assert text.startswith("60 nodes CardTimeSlicingExhausted(n000,n001,")
    assert text.endswith(",n049,…)")


def test_what_is_asked_and_what_the_closest_nodes_have():
    assert described() == (
        "requests 1 × NVIDIA with 3000 MiB, 30 cores. "
        "node2: a 68/46068 MiB, 100/100 cores, 9/10 slots free (CardInsufficientMemory), "
        "b 46068/46068 MiB, 100/100 cores, 10/10 slots free (CardNotHealth). "
        "node1: c 68/46068 MiB, 10/100 cores, 9/10 slots free (CardInsufficientMemory). "
        "node3: d 40000/46068 MiB, 100/100 cores, 0/10 slots free (CardTimeSlicingExhausted), "
        "e 45968/46068 MiB, 100/100 cores, 0/10 slots free (CardTimeSlicingExhausted)"
    )


def test_no_node_has_such_devices():
    assert described(nodes={}) == (
        "requests 1 × NVIDIA with 3000 MiB, 30 cores. no node offers such devices"
    )


def test_a_request_beyond_all_cores_lacks_what_a_whole_device_lacks():
    """A share has 100 percent at most, so no more can be short."""
    asked = pod_request(gpus(1, 10, 150))
    node = explain_node("node1", {"NVIDIA": [usage("a", 1, 0, 60)]}, Refusal(asked, ()))
    (device,) = node.closest_devices
    assert (device.requested.cores, device.short.cores, device.reason) == (100, 60, Reason.NO_CORES)


def test_a_percentage():
    assert described(pod_request(gpus(2, cores=0, percent=50)), {}).startswith(
        "requests 2 × NVIDIA with 50 % memory, 0 cores. "
    )


@cases(
    "limits, asked",
    ("slices", {"enflame.com/drs-gcu": 3}, "requests 1 × Enflame with 3 slices. "),
    ("devices alone", {"aws.amazon.com/neuron": 4}, "requests 4 × AWSNeuron. "),
)
def test_what_is_asked_of_devices_without_amounts(limits, asked):
    found = pod_request(container(limits), vendors=vendors(chart_config()))
    assert described(found, {}).startswith(asked)


def test_cores_that_are_a_mask_are_counted():
    node = Node(
        name="neuron",
        capacity={"aws.amazon.com/neuron": "2", "aws.amazon.com/neuroncore": "4"},
        labels={"node.kubernetes.io/instance-type": "inf2.24xlarge"},
    )
    known = vendors(chart_config())
    vendor = known["AWSNeuron"]
    first, second = vendor.decision.inventory(vendor, node)
    taken = (
        DeviceUsage(first, slots_used=1, cores_used=0b10, partitions=(Partition(1),)),
        DeviceUsage(second, slots_used=2, cores_used=0b11, partitions=(Partition(0), Partition(1))),
    )
    asked = pod_request(container({vendor.resources.cores: 2}), vendors=known)
    assert described(asked, {"neuron": taken}, vendor.key) == (
        "requests 1 × AWSNeuron with 2 cores. "
        f"neuron: {first.uuid} 1/2 cores, 1/2 slots free (CardInsufficientCore), "
        f"{second.uuid} 0/2 cores, 0/2 slots free (CardTimeSlicingExhausted)"
    )


def test_the_nearest_device_lacks_the_fewest_of_the_cores_that_are_a_mask():
    """As numbers, three low cores are 7, and the highest one alone is 8."""
    node = Node(
        name="neuron",
        capacity={"aws.amazon.com/neuron": "2", "aws.amazon.com/neuroncore": "8"},
        labels={"node.kubernetes.io/instance-type": "inf2.24xlarge"},
    )
    known = vendors(chart_config())
    vendor = known["AWSNeuron"]
    first, second = vendor.decision.inventory(vendor, node)
    asked = pod_request(container({vendor.resources.cores: 4}), vendors=known)
    most = DeviceUsage(
        first,
        slots_used=3,
        cores_used=0b0111,
        partitions=(Partition(0), Partition(1), Partition(2)),
    )
    one = DeviceUsage(second, slots_used=1, cores_used=0b1000, partitions=(Partition(3),))
    refused = explain_node("neuron", {vendor.key: (most, one)}, Refusal(asked, ()))
    assert [(device.device.uuid, device.short.cores) for device in refused.closest_devices] == [
        (second.uuid, 1),
        (first.uuid, 3),
    ]
    assert distance_of({vendor.key: (one,)}, asked) < distance_of({vendor.key: (most,)}, asked)


def test_what_is_booked_beyond_a_device_leaves_nothing_free():
    over = [usage("a", 11, 50000, 102)]
    assert "a 0/46068 MiB, 0/100 cores, 0/10 slots free" in described(nodes={"node1": over})
