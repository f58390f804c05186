"""The sums of its devices in the status of a node."""

import random
from dataclasses import replace

import pytest

from hami.codec.device_config import chart_config
from hami.codec.keys import ALLOCATION_MODE, CAPACITY, CLAIM_RESOURCE, CORDON
from hami.errors import ClusterError
from hami.model import Node
from hami.plugin.capacity import publish_capacity
from hami.state.inventories import devices_on
from hami.vendors.capacity import capacity_names, total_name
from hami.vendors.entry_points import full_catalog
from hami.vendors.request import requests_devices
from testing.builders import NVIDIA, container, gpu, node, nvidia, pod
from testing.cases import cases
from testing.fake_cluster import FakeCluster
from testing.vendor_placing import cache_of, place_pod
from tools.policies import render_managed_resources, render_match_conditions

GPU, MEMORY, PERCENT, CORES = (
    f"nvidia.com/{name}" for name in ("gpu", "gpumem", "gpumem-percentage", "gpucores")
)
TOTAL_MEMORY, TOTAL_CORES = map(total_name, (MEMORY, CORES))
ALLOCATED = NVIDIA.annotations.allocated
CARDS = gpu("GPU-a", memory_mib=1000), gpu("GPU-b", memory_mib=3000, cores=150)


def published(*devices, mode="totals", vendor=NVIDIA, pods=(), before=(), annotations=None):
    """Returns the capacity of a node with *devices* after two rounds, of which the second writes nothing."""
    made = node("n1", *devices, annotations=annotations)
    cluster = FakeCluster(
        nodes=[replace(made, capacity=dict(before), allocatable=dict(before))], pods=pods
    )
    for _ in range(2):
        publish_capacity(cluster, cluster.node("n1"), vendor, mode)
    after = cluster.nodes["n1"]
    assert after.capacity == after.allocatable
    assert len(cluster.calls_of("publish_capacity")) <= 1
    assert set(
        filter(None, after.annotations.get(CAPACITY, "").split(","))
    ) >= after.capacity.keys() - dict(before)
    return dict(after.capacity)


def bound(name="p", memory=0, cores=0, uuid="GPU-a", percent=0, **fields):
    """A pod on the node that requests these amounts, and holds a device."""
    annotations = {ALLOCATED: f"{uuid},NVIDIA,{memory},{cores}:;"} if uuid else {}
    return pod(
        container(requests={MEMORY: memory, CORES: cores, PERCENT: percent}),
        name=name,
        node_name="n1",
        **{"annotations": annotations} | fields,
    )


@cases(
    "devices, annotations, memory, cores",
    ("all", CARDS, {}, 4000, 250),
    ("healthy ones", (CARDS[0], replace(CARDS[1], healthy=False)), {}, 1000, 100),
    ("without a cordoned one", CARDS, {CORDON: "GPU-a"}, 3000, 150),
    ("all are cordoned", CARDS, {CORDON: "GPU-a,GPU-b"}, 0, 0),
)
def test_totals_are_the_sums_of_what_is_offered(devices, annotations, memory, cores):
    assert published(*devices, annotations=annotations) == {
        TOTAL_MEMORY: str(memory),
        TOTAL_CORES: str(cores),
    }


def test_amounts_have_the_unit_and_the_names_of_requests():
    vendor = nvidia(
        memory_factor=1000, resource_memory_name="example.com/mem", resource_core_name=""
    )
    assert published(*CARDS, gpu("GPU-c", memory_mib=999), vendor=vendor) == {
        "example.com/total-mem": "4"
    }


def test_a_node_that_shows_them_already_is_not_written():
    """The API server writes 4000 as 4k."""
    before = {TOTAL_MEMORY: "4k", TOTAL_CORES: "250"}
    names = ",".join(sorted(before))
    cluster = FakeCluster(
        nodes=[
            replace(
                node("n1", *CARDS, annotations={CAPACITY: names}),
                capacity=before,
                allocatable=before,
            )
        ]
    )
    publish_capacity(cluster, cluster.node("n1"), NVIDIA, "totals")
    assert not cluster.calls_of("publish_capacity")


def test_what_a_kubelet_has_reset_is_restored():
    zero = {TOTAL_MEMORY: "0", TOTAL_CORES: "0"}
    assert published(*CARDS, before=zero) == {TOTAL_MEMORY: "4000", TOTAL_CORES: "250"}


@cases("mode, devices", ("switched off", "off", CARDS), ("without devices", "totals", ()))
def test_names_that_were_published_are_removed_and_others_stay(mode, devices):
    before = {TOTAL_MEMORY: "4000", MEMORY: "4000", CORES: "7", "cpu": "8"}
    made = replace(
        node("n1", *devices, annotations={CAPACITY: f"{MEMORY},{TOTAL_CORES},{TOTAL_MEMORY}"}),
        capacity=before,
        allocatable=before,
    )
    cluster = FakeCluster(nodes=[made])
    publish_capacity(cluster, cluster.node("n1"), NVIDIA, mode)
    assert cluster.nodes["n1"].capacity == {CORES: "7", "cpu": "8"}
    assert CAPACITY not in cluster.nodes["n1"].annotations


def test_switched_off_nothing_is_written():
    assert published(*CARDS, mode="off", before={MEMORY: "1"}) == {MEMORY: "1"}


def test_requests_also_have_the_names_that_pods_request():
    assert published(*CARDS, mode="requests", pods=[bound(memory=800)]) == {
        MEMORY: "4000",
        PERCENT: "200",
        CORES: "250",
        TOTAL_MEMORY: "4000",
        TOTAL_CORES: "250",
    }


@cases(
    "pods, memory",
    ("nothing bound", [], 3000),
    ("bound there", [bound(memory=800)], 3800),
    ("bound on another", [bound(memory=800, uuid="GPU-b")], 3000),
    ("bound on one that is gone", [bound(memory=800, uuid="GPU-gone")], 3800),
    ("without an allocation", [bound(memory=800, uuid="")], 3800),
    ("with a malformed allocation", [bound(memory=800, annotations={ALLOCATED: "?,"})], 3800),
    ("without an amount", [bound(memory=0)], 3000),
    ("ended", [bound(memory=800, phase="Succeeded")], 3000),
    ("both", [bound("p", 900), bound("q", 2500, uuid="GPU-b")], 3900),
    ("more than there is", [bound("q", 5000, uuid="GPU-b")], 5000),
)
def test_what_is_bound_on_an_unhealthy_device_leaves_room_for_the_others(pods, memory):
    """The kubelet compares the sum of all requests with the capacity."""
    devices = replace(CARDS[0], healthy=False), CARDS[1]
    after = published(*devices, mode="requests", pods=pods)
    assert after[MEMORY] == str(memory)
    assert after[TOTAL_MEMORY] == "3000"


@cases(
    "pods, percent",
    ("nothing bound", [], 100),
    ("bound on another", [bound(percent=40, uuid="GPU-b")], 100),
    ("bound there", [bound(percent=40)], 140),
    ("beside MiB, which take precedence", [bound(percent=40, memory=1, uuid="GPU-b")], 140),
    ("both", [bound(percent=40, memory=1)], 140),
)
def test_percentages_that_no_device_is_charged_leave_room_for_the_others(pods, percent):
    devices = replace(CARDS[0], healthy=False), CARDS[1]
    assert published(*devices, mode="requests", pods=pods)[PERCENT] == str(percent)


@cases(
    "pods, slots",
    ("nothing bound", 0, 20),
    ("on the devices", 3, 20),
    ("more than there is", 25, 25),
)
def test_of_devices_that_are_given_out_by_claims_slots_are_counted(pods, slots):
    """A pod requests none of their amounts, and the resource of such claims once."""
    claimed = [
        pod(
            container(requests={CLAIM_RESOURCE: 1}),
            name=f"p{number}",
            node_name="n1",
            annotations={ALLOCATED: "GPU-a,NVIDIA,1,0:;"},
        )
        for number in range(pods)
    ]
    assert published(
        *CARDS, mode="requests", pods=claimed, annotations={ALLOCATION_MODE: "dra"}
    ) == {CLAIM_RESOURCE: str(slots), TOTAL_MEMORY: "4000", TOTAL_CORES: "250"}
    cordoned = {ALLOCATION_MODE: "dra", CORDON: "GPU-a,GPU-b"}
    assert published(*CARDS, mode="requests", pods=claimed, annotations=cordoned) == {
        CLAIM_RESOURCE: str(pods),
        TOTAL_MEMORY: "0",
        TOTAL_CORES: "0",
    }


def test_the_priority_is_never_published():
    """The kubelet would add up levels, and fail pods."""
    assert NVIDIA.resources.priority not in published(*CARDS, mode="requests")
    assert NVIDIA.resources.priority not in capacity_names(NVIDIA.resources)


@pytest.mark.parametrize("seed", range(30))
def test_pods_that_are_placed_never_exceed_what_was_published_before(seed):
    """The kubelet would fail them: 34 percent of 120 MiB are 40 MiB, which three pods get."""
    chance = random.Random(seed)
    device = gpu(
        "GPU-a", memory_mib=chance.choice([120, 1000, 40_960]), slots=chance.randint(1, 10)
    )
    capacity, cache = published(device, mode="requests"), cache_of(node("n1", device))
    percent, cores = chance.choice([9, 34, 50]), chance.choice([0, 10])
    amounts = {GPU: 1, PERCENT: percent, CORES: cores}
    placed = [
        place_pod(cache, f"p{number}", container(limits=amounts, requests=amounts))
        for number in range(12)
    ]
    assert placed[0] is not None
    count = sum(pod is not None for pod in placed)
    assert count * percent <= int(capacity[PERCENT])
    assert count * cores <= int(capacity[CORES])


def test_cores_of_mig_instances_are_rounded_up():
    """Seven pods with 15 of 100 cores share one device."""
    device = gpu("GPU-a", memory_mib=1000, mode="mig", slots=7)
    after = published(device, mode="requests")
    assert int(after[CORES]) >= 7 * 15
    assert after[TOTAL_CORES] == "100"


@cases(
    "watched, is_listed",
    ("nothing to write", [bound(memory=800)], False),
    ("the watch is late", [], True),
    ("there is no watch yet", None, True),
)
def test_only_a_list_of_pods_lowers_the_capacity(watched, is_listed):
    """A pod that the watch does not show yet counts."""
    devices = replace(CARDS[0], healthy=False), CARDS[1]
    cluster = FakeCluster(nodes=[node("n1", *devices)], pods=[bound(memory=800)])
    for number in range(2):
        publish_capacity(cluster, cluster.node("n1"), NVIDIA, "requests", lambda: watched)
        assert cluster.nodes["n1"].capacity[MEMORY] == "3800"
        assert (
            len(cluster.calls_of("pods_on")) == 1 + number * is_listed
        )  # the first round has something to write
    assert len(cluster.calls_of("publish_capacity")) == 1


def test_without_requests_nobody_asks_for_pods():
    cluster = FakeCluster(nodes=[node("n1", *CARDS)])
    publish_capacity(cluster, cluster.node("n1"), NVIDIA, "totals", lambda: 1 / 0)
    assert not cluster.calls_of("pods_on")


def test_a_failure_is_an_error():
    cluster = FakeCluster(nodes=[node("n1", *CARDS)])
    cluster.fail("publish_capacity", ClusterError("no right", 403))
    with pytest.raises(ClusterError):
        publish_capacity(cluster, cluster.node("n1"), NVIDIA, "totals")


def test_a_node_without_an_inventory_gets_nothing():
    cluster = FakeCluster(nodes=[Node(name="n1", annotations={NVIDIA.annotations.register: "?"})])
    publish_capacity(cluster, cluster.node("n1"), NVIDIA, "totals")
    assert not cluster.calls_of("publish_capacity")


def test_a_total_is_no_request():
    """Neither of a pod, nor in what kube-scheduler ignores: it counts the name itself, should a pod request it."""
    catalog = full_catalog(chart_config())
    names = {name for vendor in catalog for name in vendor.resources.names}
    assert not names & {TOTAL_MEMORY, TOTAL_CORES}
    assert not requests_devices(catalog, [container(limits={TOTAL_MEMORY: 1, TOTAL_CORES: 1})])
    assert "total-" not in render_managed_resources(catalog) + render_match_conditions(catalog)


def test_an_inventory_is_the_same_with_sums_in_the_capacity():
    made = node("n1", *CARDS)
    shown = replace(made, capacity=dict.fromkeys((TOTAL_MEMORY, TOTAL_CORES, MEMORY, CORES), "7"))
    for vendor in full_catalog(chart_config()):
        assert devices_on(vendor, shown) == devices_on(vendor, made)
