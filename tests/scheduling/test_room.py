"""The room of nodes for usual pods: what columns say is what the decision itself would place."""

import random

import numpy
import pytest
from hypothesis import given
from hypothesis.strategies import integers
from pytest import param

from hami.scheduling.fit import Unfit
from hami.scheduling.node_resources import NodeResources
from hami.scheduling.placement import place_pod
from hami.scheduling.room import UsualPods, device_room, node_room
from hami.scheduling.usage import charge_shares
from hami.scheduling.usual_pods import COMMON, MERGED, UsualPod, few, usual_pod
from testing.builders import cluster, gpus, pod_request, usage
from testing.seeds import some_pod_request, some_usages


def placed_until_full(usages, request):
    """How often the pod that makes *request* can be placed on *usages*."""
    count = 0
    while not isinstance(placement := place_pod({"NVIDIA": usages}, request), Unfit):
        usages = charge_shares(usages, placement[0])
        count += 1
    return count


def room_of(usages, *kinds, milli_cpu=10**6):
    """The room that columns say for each of *kinds* on a node with these devices."""
    table = cluster(n1=usages)
    table.refresh()
    pods = UsualPods.of(dict.fromkeys(kinds, 1.0), table.columns.all())
    columns = table.columns.of(numpy.array([table.rows["n1"]]))
    devices = device_room(columns.facts, pods).sum(axis=0, keepdims=True)
    return node_room(devices, numpy.array([milli_cpu]), pods)[0].tolist()


def one_device(rng):
    """A request of one container for one device, whose place depends on nothing but amounts."""
    while True:
        request = some_pod_request(rng, containers=1)
        selector = request.vendor_requests[0].selector
        if request.distinct_requests[0].count == 1 and selector.use_uuids is None:
            if selector.nouse_uuids is None and selector.mode is None:
                return request


@given(seed=integers(0, 2**32))
def test_room_is_what_the_decision_places(seed):
    rng = random.Random(seed)
    usages, request = some_usages(rng, least=1), one_device(rng)
    kind = usual_pod(request, NodeResources())
    assert room_of(usages, kind) == [placed_until_full(usages, request)]


def gpu_pod(count=1, cores=0, **fields):
    return UsualPod("NVIDIA", count, cores, **fields)


IDLE = [usage(f"GPU-{place}") for place in range(4)]
BUSY = [usage("GPU-0", 1, 1000, 50), *IDLE[1:]]


@pytest.mark.parametrize(
    ("usages", "kind", "milli_cpu", "room"),
    [
        param(IDLE, gpu_pod(cores=50), 10**6, 8.0, id="two on each device"),
        param(IDLE, gpu_pod(cores=50, milli_cpu=2000), 5000, 2.5, id="CPU for two and a half"),
        param(IDLE, gpu_pod(cores=50, milli_cpu=2000), 1999, 0.0, id="CPU for none"),
        param(IDLE, gpu_pod(cores=50, milli_cpu=2000), -1, 0.0, id="more CPU booked than there is"),
        param(IDLE, gpu_pod(4, 100), 10**6, 1.0, id="a whole node"),
        param(IDLE, gpu_pod(3, 100), 10**6, 1.0, id="devices that are left over do not count"),
        param(BUSY, gpu_pod(4, 100), 10**6, 0.75**4, id="three of four devices: partial room"),
        param(IDLE, gpu_pod(4, 100, milli_cpu=1000), 500, 0.5**4, id="half of the CPU"),
        param(BUSY, gpu_pod(cores=100), 10**6, 3.0, id="whole devices"),
        param(BUSY, gpu_pod(alone=True), 10**6, 3.0, id="devices alone"),
        param(IDLE, gpu_pod(memory_mib=20000), 10**6, 8.0, id="memory"),
        param(IDLE, gpu_pod(memory_percent=30), 10**6, 12.0, id="part of the memory"),
        param(IDLE, gpu_pod(cores=50, use_types=("A40",)), 10**6, 8.0, id="models that it uses"),
        param(IDLE, gpu_pod(cores=50, nouse_types=("A40",)), 10**6, 0.0, id="others"),
        param(IDLE, gpu_pod(cores=50, by_claims=True), 10**6, 0.0, id="devices for claims"),
        param(IDLE, UsualPod("DCU", 1), 10**6, 0.0, id="another vendor"),
    ],
)
def test_room_by_devices_and_cpu(usages, kind, milli_cpu, room):
    assert room_of(usages, kind, milli_cpu=milli_cpu) == pytest.approx([room])


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        param(
            pod_request(gpus(2, 1000, 30)),
            gpu_pod(2, 30, memory_mib=1000, milli_cpu=4000),
            id="one container",
        ),
        param(
            pod_request(gpus(1, 1000, 30), gpus(1, 3000, 10)),
            gpu_pod(2, 30, memory_mib=3000, milli_cpu=4000),
            id="two containers: devices of both, each as large as the largest",
        ),
        param(
            pod_request(gpus(1, percent=50), policy="mutex"),
            gpu_pod(memory_percent=50, milli_cpu=4000, alone=True),
            id="alone",
        ),
        param(
            pod_request(gpus(), annotations={"nvidia.com/use-gputype": "A100,L4"}),
            gpu_pod(memory_percent=100, milli_cpu=4000, use_types=("A100", "L4")),
            id="models",
        ),
    ],
)
def test_the_kind_of_a_pod_is_what_its_room_depends_on(request_, kind):
    assert usual_pod(request_, NodeResources(4000, 8000)) == kind


def test_rare_kinds_that_are_alike_are_merged_into_one_that_needs_as_much_as_the_largest():
    common = {gpu_pod(cores=cores): 1000.0 for cores in range(COMMON)}
    rare = {gpu_pod(8, 100, milli_cpu=1024 + cpu): 1.0 for cpu in range(MERGED)}
    other = {gpu_pod(8, 100, milli_cpu=9000): 1.0}
    assert few(common | rare | other) == common | other | {
        gpu_pod(8, 100, milli_cpu=1024 + MERGED - 1): MERGED
    }


def test_of_too_many_different_rare_kinds_the_rarest_are_merged():
    common = {gpu_pod(cores=cores): 1000.0 for cores in range(COMMON)}
    usual = {gpu_pod(count, milli_cpu=1 << bits): 3.0 for count in (2, 4) for bits in range(8)}
    rare = {gpu_pod(8, milli_cpu=1 << bits): 1.0 for bits in range(20)}
    assert few(common | usual | rare) == common | usual | {gpu_pod(8, milli_cpu=1 << 19): 20.0}


@given(seed=integers(0, 2**32))
def test_no_kind_is_dropped_and_few_are_left(seed):
    rng = random.Random(seed)
    kinds = {
        gpu_pod(rng.randint(1, 40), rng.randrange(101), milli_cpu=rng.randrange(9)): rng.random()
        for _ in range(rng.randrange(200))
    }
    left = few(kinds)
    assert len(left) <= COMMON + MERGED
    assert sum(left.values()) == pytest.approx(sum(kinds.values()))
    for kind in kinds:
        assert any(kind.count <= other.count and kind.cores <= other.cores for other in left)
