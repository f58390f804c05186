"""How far devices and nodes are from serving a request."""

from hami.codec.device_config import chart_config
from hami.model import DeviceUsage, Node, Partition, Reason
from hami.scheduling.refusal import Refusal, distance_of, explain_node
from hami.vendors.catalog import vendors
from testing.builders import container, gpus, pod_request, usage


def test_a_request_beyond_all_cores_lacks_what_a_whole_device_lacks():
    """A share has 100 percent at most, so no more can be short."""
    asked = pod_request(gpus(1, 10, 150))
    node = explain_node("node1", {"NVIDIA": [usage("a", 1, 0, 60)]}, Refusal(asked, ()))
    (device,) = node.closest_devices
    assert (device.requested.cores, device.short.cores, device.reason) == (100, 60, Reason.NO_CORES)


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
