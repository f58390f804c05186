"""Metrics of the cluster as Prometheus parses them."""

import textwrap
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis.strategies import randoms
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from hami.codec.claims import AllocatedClaim, ClaimedDevice, ClaimedRequest
from hami.codec.slices import PublishedSlice
from hami.model import DeviceUsage, Partition, PodRef, QuotaLimits, ScopeRequirement
from hami.scheduler.cluster_metrics import MAX_MODELS, MAX_USUAL_PODS, families
from hami.scheduling.usual_pods import UsualPod
from hami.state.bookings import Booking
from hami.state.claims import ClaimCache
from hami.state.rooms import Usual
from hami.state.store import Store
from hami.state.view import Policies, View
from hami.state.workload import FIRST
from hami.vendors.spec import Catalog
from hami.web.exposition import SLICE, Family, build_info, render
from testing.builders import (
    NVIDIA,
    ONLY_NVIDIA,
    booking,
    charge,
    gpu,
    gpus,
    node,
    pod,
    quota,
    usage,
)
from testing.cases import cases
from testing.metric_pages import small_cache
from testing.vendor_chart import CHART

GIB = 1 << 30


def view(nodes=None, bookings=(), pods=(), used=None, quotas=(), vendor="NVIDIA"):
    """What metrics read of a view whose *nodes* have these device usages; *pods* hold the bookings of their uid."""
    by_namespace = {}
    for one in quotas:
        by_namespace.setdefault(one.namespace, {})[one.uid] = one
    return SimpleNamespace(
        nodes={name: {vendor: usages} for name, usages in (nodes or {}).items()},
        used=used or {},
        bookings={held.uid: held for held in bookings},
        ref={pod.ref.uid: pod.ref for pod in pods}.get,
        facts=SimpleNamespace(quotas=by_namespace, usual=Usual()),
    )


def page(found, *, vendors=ONLY_NVIDIA, legacy=False):
    """The metrics page of a view."""
    return "".join(render(families(found, vendors, legacy=legacy)))


def samples(text, name):
    """The labels and values of one family's samples."""
    return [
        (sample.labels, sample.value)
        for family in parse_text(text)
        if family.name == name
        for sample in family.samples
    ]


def test_the_page_of_a_small_cluster():
    assert page(small_cache().view()) == textwrap.dedent("""\
        # HELP hami_gpu_core_allocated_ratio Cores of a device that pods have been given, in percent
        # TYPE hami_gpu_core_allocated_ratio gauge
        hami_gpu_core_allocated_ratio{device_index="0",device_type="NVIDIA A40",device_uuid="GPU-a",node="gpu-0",zone="vGPU"} 30
        hami_gpu_core_allocated_ratio{device_index="1",device_type="NVIDIA A40",device_uuid="GPU-b",node="gpu-0",zone="vGPU"} 0
        # HELP hami_gpu_core_limit_ratio Allocatable cores of a device, in percent
        # TYPE hami_gpu_core_limit_ratio gauge
        hami_gpu_core_limit_ratio{device_index="0",device_type="NVIDIA A40",device_uuid="GPU-a",node="gpu-0",zone="vGPU"} 100
        hami_gpu_core_limit_ratio{device_index="1",device_type="NVIDIA A40",device_uuid="GPU-b",node="gpu-0",zone="vGPU"} 100
        # HELP hami_gpu_memory_allocated_bytes Memory of a device that pods have been given
        # TYPE hami_gpu_memory_allocated_bytes gauge
        hami_gpu_memory_allocated_bytes{device_cores="100",device_index="0",device_type="NVIDIA A40",device_uuid="GPU-a",node="gpu-0",zone="vGPU"} 8589934592
        hami_gpu_memory_allocated_bytes{device_cores="100",device_index="1",device_type="NVIDIA A40",device_uuid="GPU-b",node="gpu-0",zone="vGPU"} 4294967296
        # HELP hami_gpu_memory_limit_bytes Allocatable memory of a device
        # TYPE hami_gpu_memory_limit_bytes gauge
        hami_gpu_memory_limit_bytes{device_index="0",device_type="NVIDIA A40",device_uuid="GPU-a",node="gpu-0",zone="vGPU"} 17179869184
        hami_gpu_memory_limit_bytes{device_index="1",device_type="NVIDIA A40",device_uuid="GPU-b",node="gpu-0",zone="vGPU"} 17179869184
        # HELP hami_gpu_shared_count Containers that share a device
        # TYPE hami_gpu_shared_count gauge
        hami_gpu_shared_count{device_index="0",device_type="NVIDIA A40",device_uuid="GPU-a",node="gpu-0",zone="vGPU"} 1
        hami_gpu_shared_count{device_index="1",device_type="NVIDIA A40",device_uuid="GPU-b",node="gpu-0",zone="vGPU"} 1
        # HELP hami_node_gpu_memory_allocated_ratio Part of a device's memory that pods have been given, 0 to 1
        # TYPE hami_node_gpu_memory_allocated_ratio gauge
        hami_node_gpu_memory_allocated_ratio{device_index="0",device_type="NVIDIA A40",device_uuid="GPU-a",node="gpu-0",zone="vGPU"} 0.5
        hami_node_gpu_memory_allocated_ratio{device_index="1",device_type="NVIDIA A40",device_uuid="GPU-b",node="gpu-0",zone="vGPU"} 0.25
        # HELP hami_node_gpu_mig_instance_info A MIG instance that the device plugin has made, always 1
        # TYPE hami_node_gpu_mig_instance_info gauge
        # HELP hami_node_gpu_overview A device with its limits; the value is its memory that pods have been given
        # TYPE hami_node_gpu_overview gauge
        hami_node_gpu_overview{device_cores="100",device_index="0",device_memory_limit="16384",device_type="NVIDIA A40",device_uuid="GPU-a",node="gpu-0",zone="vGPU"} 8589934592
        hami_node_gpu_overview{device_cores="100",device_index="1",device_memory_limit="16384",device_type="NVIDIA A40",device_uuid="GPU-b",node="gpu-0",zone="vGPU"} 4294967296
        # HELP hami_resource_quota_limit Limit of a namespace on a resource, as its ResourceQuota has it
        # TYPE hami_resource_quota_limit gauge
        hami_resource_quota_limit{namespace="team-a",quota_name="nvidia.com/gpumem",zone="vGPU"} 40000
        # HELP hami_resource_quota_used What a namespace's pods take of a resource that can be limited
        # TYPE hami_resource_quota_used gauge
        hami_resource_quota_used{limit="0",namespace="team-a",quota_name="nvidia.com/gpucores",zone="vGPU"} 30
        hami_resource_quota_used{limit="40000",namespace="team-a",quota_name="nvidia.com/gpumem",zone="vGPU"} 8192
        hami_resource_quota_used{limit="0",namespace="team-b",quota_name="nvidia.com/gpucores",zone="vGPU"} 0
        hami_resource_quota_used{limit="0",namespace="team-b",quota_name="nvidia.com/gpumem",zone="vGPU"} 4096
        # HELP hami_resource_quota_used_ratio Part of a namespace's limit on a resource that its pods take, 0 to 1
        # TYPE hami_resource_quota_used_ratio gauge
        hami_resource_quota_used_ratio{namespace="team-a",quota_name="nvidia.com/gpumem",zone="vGPU"} 0.2048
        # HELP hami_vgpu_core_allocated_ratio Cores of a device that a pod has been given, in percent
        # TYPE hami_vgpu_core_allocated_ratio gauge
        hami_vgpu_core_allocated_ratio{container_index="0",device_uuid="GPU-a",namespace="team-a",node="gpu-0",pod="running",zone="vGPU"} 30
        hami_vgpu_core_allocated_ratio{container_index="0",device_uuid="GPU-b",namespace="team-b",node="gpu-0",pod="promised",zone="vGPU"} 0
        # HELP hami_vgpu_memory_allocated_bytes Memory of a device that a pod has been given
        # TYPE hami_vgpu_memory_allocated_bytes gauge
        hami_vgpu_memory_allocated_bytes{container_index="0",device_uuid="GPU-a",namespace="team-a",node="gpu-0",pod="running",zone="vGPU"} 8589934592
        hami_vgpu_memory_allocated_bytes{container_index="0",device_uuid="GPU-b",namespace="team-b",node="gpu-0",pod="promised",zone="vGPU"} 4294967296
        """)  # noqa: E501  # a line of the page is a line here


DEVICE, OLD_DEVICE = (
    {"node", "device_uuid", "device_index", "device_type"},
    {"nodeid", "deviceuuid", "deviceidx"},
)
POD = {"namespace", "node", "pod", "container_index", "device_uuid"}
OLD_POD = {"podnamespace", "nodename", "podname", "containeridx", "deviceuuid"}


@cases(
    "name, labels, value",
    ("GPUDeviceMemoryLimit", OLD_DEVICE | {"devicetype"}, 16 * GIB),
    ("GPUDeviceCoreLimit", OLD_DEVICE | {"devicetype"}, 100),
    ("GPUDeviceMemoryAllocated", OLD_DEVICE | {"devicetype", "devicecores"}, 8 * GIB),
    ("GPUDeviceSharedNum", OLD_DEVICE | {"devicetype"}, 1),
    ("GPUDeviceCoreAllocated", OLD_DEVICE | {"devicetype"}, 30),
    ("nodeGPUOverview", OLD_DEVICE | {"devicetype", "devicecores", "devicememorylimit"}, 8 * GIB),
    ("nodeGPUMemoryPercentage", OLD_DEVICE, 0.5),
    ("vGPUMemoryAllocated", OLD_POD, 8 * GIB),
    ("vGPUCoreAllocated", OLD_POD, 30),
    ("QuotaUsed", {"quotanamespace", "quotaName", "limit"}, 30),
    ("hami_gpu_memory_limit_bytes", DEVICE, 16 * GIB),
    ("hami_vgpu_memory_allocated_bytes", POD, 8 * GIB),
)
def test_legacy_names_are_added_to_the_new_ones(name, labels, value):
    found = samples(page(small_cache().view(), legacy=True), name)
    assert all(given.keys() == labels | {"zone"} and given["zone"] == "vGPU" for given, _ in found)
    assert value in [amount for _, amount in found]


def test_families_are_sorted_by_name():
    names = [family.name for family in families(view(), ONLY_NVIDIA, legacy=True)]
    assert names == sorted(set(names))


def test_legacy_names_are_off_by_default():
    assert {family.name[:5] for family in families(small_cache().view(), ONLY_NVIDIA)} == {"hami_"}


def test_empty_cluster_has_families_and_no_samples():
    found = {family.name: len(family.samples) for family in parse_text(page(view()))}
    assert set(found.values()) == {0}
    assert "hami_gpu_memory_limit_bytes" in found


def test_build_info_has_upstreams_labels_and_no_zone():
    (family,) = parse_text("".join(render([build_info("1.2.3", "abcdef", "2026-08-21")])))
    (sample,) = family.samples
    assert sample.value == 1
    assert sample.labels.keys() == {
        "version",
        "revision",
        "build_date",
        "go_version",
        "compiler",
        "platform",
    }
    assert (sample.labels["version"], sample.labels["revision"]) == ("1.2.3", "abcdef")


@cases("legacy", ("new", False), ("with legacy", True))
def test_page_is_valid_in_both_formats(legacy):
    text = page(small_cache().view(), legacy=legacy) + "".join(render([build_info()]))
    plain, open_ = list(parse_text(text)), list(parse_openmetrics(text + "# EOF\n"))
    assert [family.name for family in plain] == [family.name for family in open_]
    assert len({family.name for family in plain}) == len(plain)
    assert [family.samples for family in plain] == [family.samples for family in open_]
    assert {family.type for family in plain} == {"gauge"}


@pytest.mark.parametrize("odd", ['a"b', "a\\b", "a\nb", 'a\\"\n\\n', "GPU-ü→", "", "a,b}c 1"])
def test_special_characters_are_escaped_in_labels(odd):
    found = view(
        {odd: [usage("GPU-0", model=odd)]},
        [booking("u", odd, charge("GPU-0"), namespace=odd)],
        [pod(name=odd, uid="u")],
        {(odd, "NVIDIA"): (1, 1)},
    )
    text = page(found)
    ((card, _),) = samples(text, "hami_gpu_shared_count")
    ((held, _),) = samples(text, "hami_vgpu_core_allocated_ratio")
    assert (card["node"], card["device_type"]) == (odd, odd)
    assert (held["node"], held["namespace"], held["pod"]) == (odd, odd, odd)
    assert {labels["namespace"] for labels, _ in samples(text, "hami_resource_quota_used")} == {odd}


@cases(
    "usages, uuids",
    ("without uuid", [usage("GPU-0"), usage("")], ["GPU-0"]),
    ("registered twice", [usage("GPU-0"), usage("GPU-0", slots_used=3)], ["GPU-0"]),
    ("in the order registered", [usage("GPU-1"), usage("GPU-0")], ["GPU-1", "GPU-0"]),
)
def test_each_device_has_one_sample(usages, uuids):
    text = page(view({"n1": usages}))
    assert [labels["device_uuid"] for labels, _ in samples(text, "hami_gpu_shared_count")] == uuids


def test_device_without_memory_has_no_ratio():
    text = page(view({"n1": [usage("GPU-0", memory_mib=0)]}))
    assert samples(text, "hami_node_gpu_memory_allocated_ratio") == []
    assert len(samples(text, "hami_gpu_memory_limit_bytes")) == 1


def test_same_uuid_on_two_nodes_is_two_devices():
    text = page(view({"n2": [usage("GPU-0")], "n1": [usage("GPU-0", slots_used=1)]}))
    assert [(labels["node"], used) for labels, used in samples(text, "hami_gpu_shared_count")] == [
        ("n1", 1),
        ("n2", 0),
    ]


@cases(
    "charges, expected",
    (
        "two devices",
        [charge("GPU-0", memory_mib=1), charge("GPU-1", memory_mib=2)],
        {"GPU-0": 1, "GPU-1": 2},
    ),
    ("without uuid", [charge("", memory_mib=1)], {}),
    ("nothing", [], {}),
)
def test_pod_has_a_sample_for_each_device(charges, expected):
    text = page(view(bookings=[booking("u", "n1", *charges)], pods=[pod(uid="u")]))
    found = samples(text, "hami_vgpu_memory_allocated_bytes")
    assert {labels["device_uuid"]: value / (1 << 20) for labels, value in found} == expected


def test_pods_of_one_name_share_one_sample():
    old, new = (
        booking(uid, "n1", charge("GPU-0", memory_mib=1024, cores=10)) for uid in ("old", "new")
    )
    text = page(
        view(bookings=[old, new], pods=[pod(name="p", uid="old"), pod(name="p", uid="new")])
    )
    assert [value for _, value in samples(text, "hami_vgpu_memory_allocated_bytes")] == [2 * GIB]
    assert [value for _, value in samples(text, "hami_vgpu_core_allocated_ratio")] == [20]


def test_reserved_devices_are_shown_with_their_pod():
    cache = small_cache()
    promised = pod(gpus(memory=4096), name="promised", namespace="team-b")
    before = page(cache.view())
    reservation = cache.bindings.get(promised.ref.uid)
    cache.bindings.start(promised.ref, "gpu-0")
    cache.bindings.prepare(reservation)
    cache.bindings.finish(reservation)
    assert page(cache.view()) == before
    cache.pods.upsert(
        pod(
            gpus(memory=4096),
            name="promised",
            namespace="team-b",
            node_name="gpu-0",
            annotations=reservation.annotations,
        )
    )
    assert page(cache.view()) == before


def view_with_usual(kinds, *nodes, bookings=()):
    """A cluster with *kinds* of usual pods."""
    store = Store(
        ONLY_NVIDIA, Policies(), clock=lambda: 0.0, now=lambda: datetime(2026, 8, 21, tzinfo=UTC)
    )
    for one in nodes:
        store.nodes.upsert(one)
    found = store.view().what_if(with_=bookings)
    return View(found.merged.table, replace(found.facts, usual=Usual(kinds)))


IDLE_NODE = node("n1", gpu("GPU-a"), gpu("GPU-b", index=1), allocatable={"cpu": "4"})
L4_NODE = node("n2", gpu("GPU-c", model="NVIDIA L4"), allocatable={"cpu": "4"})


def test_what_is_stranded_is_shown_by_model_and_cause():
    kinds = {UsualPod("NVIDIA", 1, 80, milli_cpu=3000, nouse_types=("L4",)): 1.0}
    text = page(view_with_usual(kinds, IDLE_NODE, L4_NODE))
    found = {}
    for labels, value in samples(text, "hami_gpu_stranded_ratio"):
        found[labels["model"], labels["cause"]] = value
    assert found == {
        ("NVIDIA A40", "cpu"): 0.4,
        ("NVIDIA A40", "crumbs"): 0.2,
        ("NVIDIA A40", "model"): 0.0,
        ("NVIDIA L4", "cpu"): 0.0,
        ("NVIDIA L4", "crumbs"): 0.0,
        ("NVIDIA L4", "model"): 1.0,
    }


def test_of_a_model_of_which_nothing_is_free_nothing_is_stranded():
    full = [
        booking(f"p{place}", "n1", charge(uuid, 1, 0, 100))
        for place, uuid in enumerate(("GPU-a", "GPU-b"))
    ]
    kinds = {UsualPod("NVIDIA", 1, 80): 1.0}
    text = page(view_with_usual(kinds, IDLE_NODE, bookings=full))
    assert [value for _, value in samples(text, "hami_gpu_stranded_ratio")] == [0.0, 0.0, 0.0]


def test_the_room_for_the_most_common_usual_pods_is_shown():
    kinds = {UsualPod("NVIDIA", 1, cores): 1.0 for cores in range(1, 60)}
    kinds[UsualPod("NVIDIA", 2, 0, memory_percent=50, milli_cpu=1500, use_types=("A40", "L4"))] = (
        2.0
    )
    found = samples(page(view_with_usual(kinds, IDLE_NODE)), "hami_usual_pod_room")
    assert len(found) == MAX_USUAL_PODS
    labels = {"vendor": "NVIDIA", "count": "2", "cores": "0", "memory": "50%", "cpu": "1.5"}
    assert found[0] == ({**labels, "models": "A40,L4", "zone": "vGPU"}, 2)


def test_no_two_samples_have_the_same_labels_and_tenants_write_short_ones():
    text = "x" * 1000
    kinds = {
        UsualPod("NVIDIA", 1, 50): 3.0,
        UsualPod("NVIDIA", 1, 50, alone=True): 2.0,
        UsualPod("NVIDIA", 1, 50, use_types=(text, 'a"b')): 1.0,
        UsualPod("NVIDIA", 1, 50, use_types=(text, 'a"c')): 1.0,
    }
    found = samples(page(view_with_usual(kinds, IDLE_NODE)), "hami_usual_pod_room")
    assert [(labels["models"], value) for labels, value in found] == [
        ("", 4),
        ("x" * MAX_MODELS, 0),
    ]


def test_nothing_is_said_before_the_usual_pods_are_known():
    text = page(view_with_usual({}, IDLE_NODE))
    assert samples(text, "hami_gpu_stranded_ratio") == samples(text, "hami_usual_pod_room") == []


def test_the_store_learns_from_its_decisions_which_pods_are_usual():
    store = small_cache()
    for number in range(FIRST):
        store.filtering.assume(pod(gpus(memory=1024), name=f"p{number}"), ["gpu-0"])
    found = samples(page(store.view()), "hami_usual_pod_room")
    assert {labels["memory"] for labels, _ in found} == {"1024", "8192", "4096"}
    assert found[0][0]["memory"] == "1024"


def test_mig_instances_are_shown_once_they_exist():
    made = Partition(2, 2, "2g.10gb", ("MIG-7", "3", "0"))
    cut = DeviceUsage(
        gpu("GPU-m", index=1, mode="mig"), 3, partitions=(Partition(4, 2, "2g.10gb"), made, made)
    )
    text = page(view({"n1": [usage("GPU-0"), cut]}), legacy=True)
    assert samples(text, "hami_node_gpu_mig_instance_info") == [
        (
            {
                "node": "n1",
                "device_uuid": "GPU-m",
                "device_index": "1",
                "mig_uuid": "MIG-7",
                "profile": "2g.10gb",
                "gpu_instance_id": "3",
                "compute_instance_id": "0",
                "placement_start": "2",
                "placement_size": "2",
                "zone": "vGPU",
            },
            1,
        )
    ]
    assert samples(text, "nodeGPUMigInstance") == [
        (
            {
                "nodeid": "n1",
                "deviceuuid": "GPU-m",
                "deviceidx": "1",
                "migname": "2g.10gb-3",
                "zone": "vGPU",
            },
            1,
        )
    ]


def amd_page(*charges, units=304):
    """An AMD device with compute units, some of which a pod holds."""
    card = gpu("AMD-0", vendor="AMD", model="AMD Instinct MI300X VF", cores=units)
    held = Booking("u", "default", "n1", (("AMD", tuple(charges)),))
    found = view(
        {"n1": [DeviceUsage(card, 1, 0, sum(one.cores for one in charges))]},
        [held],
        [pod(uid="u")],
        vendor="AMD",
    )
    return page(found, vendors=CHART, legacy=True)


@cases(
    "name, value",
    ("hami_gpu_core_limit_ratio", 100),
    ("hami_gpu_core_allocated_ratio", 33),
    ("hami_vgpu_core_allocated_ratio", 33),
    ("GPUDeviceCoreLimit", 304),
    ("GPUDeviceCoreAllocated", 100),
    ("vGPUCoreAllocated", 100),
)
def test_compute_units_are_shown_in_percent_under_the_new_names(name, value):
    text = amd_page(charge("AMD-0", cores=100))
    assert [amount for _, amount in samples(text, name)] == [value]


@cases(
    "charges, units",
    ("a card without units", [charge("AMD-0", cores=10)], 0),
    ("a card that is gone", [charge("AMD-9", cores=10)], 304),
)
def test_an_unknown_percentage_is_not_shown(charges, units):
    text = amd_page(*charges, units=units)
    assert samples(text, "hami_vgpu_core_allocated_ratio") == []
    assert len(samples(text, "hami_vgpu_memory_allocated_bytes")) == 1


MEM, CORES = "nvidia.com/gpumem", "nvidia.com/gpucores"
AMD = CHART["AMD"]
IN_GIB = replace(
    NVIDIA, resources=replace(NVIDIA.resources, memory_factor=1024, memory_units=True)
)  # or as written


@cases(
    "used, quotas, shown, limits",
    ("nothing", {}, [], {}, {}),
    ("no quota", {("a", "NVIDIA"): (10, 5)}, [], {("a", MEM, "0"): 10, ("a", CORES, "0"): 5}, {}),
    ("nothing used", {}, [quota(namespace="a", gpumem=7)], {("a", MEM, "7"): 0}, {("a", MEM): 7}),
    (
        "nothing allowed",
        {},
        [quota(namespace="a", gpumem=0)],
        {("a", MEM, "0"): 0},
        {("a", MEM): 0},
    ),
    (
        "the lowest holds",
        {("a", "NVIDIA"): (10, 5)},
        [quota("q1", "a", gpumem=9), quota("q2", "a", gpumem=7)],
        {("a", MEM, "7"): 10, ("a", CORES, "0"): 5},
        {("a", MEM): 7},
    ),
    ("not ours", {}, [quota(namespace="a", pods=3)], {}, {}),
)
def test_quotas(used, quotas, shown, limits):
    text = page(view(used=used, quotas=quotas))
    assert {
        (labels["namespace"], labels["quota_name"], labels["limit"]): value
        for labels, value in samples(text, "hami_resource_quota_used")
    } == shown
    assert {
        (labels["namespace"], labels["quota_name"]): value
        for labels, value in samples(text, "hami_resource_quota_limit")
    } == limits


def ratios(vendor, used, *quotas):
    """The used ratio by resource in a namespace where *used* (MiB, percent) of *vendor*'s devices is allocated."""
    text = page(view(used={("a", vendor.key): used}, quotas=quotas), vendors=Catalog([vendor]))
    return {
        labels["quota_name"]: value
        for labels, value in samples(text, "hami_resource_quota_used_ratio")
    }


def limits(amounts, name="q", binary=(), scopes=()):
    """A quota on resources of any vendor."""
    return QuotaLimits(
        namespace="a",
        name=name,
        uid=name,
        limits=amounts,
        binary=frozenset(binary),
        scopes=tuple(scopes),
    )


@pytest.mark.parametrize(
    "vendor", [vendor for vendor in CHART if vendor.resources.memory], ids=lambda vendor: vendor.key
)
def test_memory_limits_are_in_the_vendors_unit(vendor):
    unit = vendor.resources.quota_mib(1, is_binary=False)
    assert ratios(vendor, (3 * unit, 0), limits({vendor.resources.memory: 4})) == {
        vendor.resources.memory: 0.75
    }


@cases(
    "vendor, used, quotas, ratio",
    ("cores", NVIDIA, (0, 30), [limits({CORES: 120})], {CORES: 0.25}),
    ("a limit that was lowered", NVIDIA, (30, 0), [limits({MEM: 20})], {MEM: 1.5}),
    (
        "the lowest holds",
        NVIDIA,
        (30, 0),
        [limits({MEM: 60}, "x"), limits({MEM: 40}, "y")],
        {MEM: 0.75},
    ),
    (
        "one with scopes",
        NVIDIA,
        (30, 0),
        [limits({MEM: 60}, "x"), limits({MEM: 40}, "y", scopes=[ScopeRequirement("Terminating")])],
        {MEM: 0.5},
    ),
    ("nothing allowed", NVIDIA, (30, 0), [limits({MEM: 0})], {}),
    ("no limit", NVIDIA, (30, 5), [], {}),
    ("GiB", IN_GIB, (3072, 0), [limits({MEM: 4})], {MEM: 0.75}),
    ("4Gi", IN_GIB, (3072, 0), [limits({MEM: 4 << 30}, binary=[MEM])], {MEM: 0.75}),
    ("cores that are not held to", AMD, (0, 30), [limits({AMD.resources.cores: 60})], {}),
)
def test_the_used_ratio_of_a_limit(vendor, used, quotas, ratio):
    assert ratios(vendor, used, *quotas) == ratio


@settings(max_examples=20)
@given(rng=randoms(use_true_random=True))
def test_the_page_does_not_depend_on_the_order_of_arrival(rng):
    nodes = {f"n{i}": [usage(f"GPU-{i}-{k}", slots_used=k) for k in range(3)] for i in range(5)}
    bookings = [
        booking(f"u{i}", f"n{i % 5}", charge(f"GPU-{i % 5}-0", memory_mib=i)) for i in range(20)
    ]
    pods = [pod(name=f"p{i}", uid=f"u{i}") for i in range(20)]
    mixed = view(
        dict(rng.sample(list(nodes.items()), 5)), rng.sample(bookings, 20), rng.sample(pods, 20)
    )
    assert page(mixed) == page(view(nodes, bookings, pods))


def test_samples_are_rendered_while_they_are_read():
    read = []
    slices = render([Family("f", "Help", (read.append(i) or f"f {i}" for i in range(3 * SLICE)))])
    assert next(slices) == "# HELP f Help\n# TYPE f gauge\n"
    assert read == []
    assert next(slices).count("\n") == len(read) == SLICE


@pytest.mark.parametrize("count", [0, 1, SLICE - 1, SLICE, SLICE + 1, 3 * SLICE])
def test_slices_lose_nothing(count):
    text = "".join(render([Family("f", "Help", (f"f {i}" for i in range(count)))]))
    assert text.splitlines()[2:] == [f"f {i}" for i in range(count)]


def test_what_claims_hold_is_shown_once_and_as_what_annotations_say():
    """Also where each allocation mode of a node has cards of its own."""
    cache, claims = small_cache(), ClaimCache()
    part = ClaimedDevice(
        pool="hami/dra-0", device="gpu-c", memory_mib=1024, cores=5, share_milli=10_000
    )
    for uid, held in enumerate((PodRef("team-c", "claims", "u"), None)):
        claims.set_claim(
            str(uid),
            AllocatedClaim(
                namespace="team-c",
                name="c",
                uid=str(uid),
                pods=(held,) if held else (),
                requests=(ClaimedRequest(name="r", devices=(part,)),),
            ),
        )
    claims.set_slice("s", PublishedSlice("dra-0", 1, (gpu("GPU-c", memory_mib=8192),)))
    claims.set_slice(
        "twice", PublishedSlice("gpu-0", 1, (gpu("GPU-a", memory_mib=16384), gpu("GPU-d")))
    )
    for name in "ad":
        beside = ClaimedDevice(
            pool="hami/gpu-0", device=f"gpu-{name}", memory_mib=2048, share_milli=10_000
        )
        claims.set_claim(
            name,
            AllocatedClaim(
                namespace="team-c",
                name=name,
                uid=name,
                pods=(PodRef("team-c", f"claims-{name}", name),),
                requests=(ClaimedRequest(name="r", devices=(beside,)),),
            ),
        )
    found = cache.view()
    text = "".join(render(families(found, ONLY_NVIDIA, claimed=claims.at_once(found.facts).view)))
    assert [
        (labels["node"], labels["device_uuid"])
        for labels, _ in samples(text, "hami_gpu_memory_limit_bytes")
    ] == [("gpu-0", "GPU-a"), ("gpu-0", "GPU-b"), ("dra-0", "GPU-c"), ("gpu-0", "GPU-d")]
    assert [
        (labels["pod"], value)
        for labels, value in samples(text, "hami_vgpu_memory_allocated_bytes")
        if labels["node"] == "dra-0"
    ] == [("", 1 << 30), ("claims", 1 << 30)]
    assert [
        (labels["device_uuid"], value)
        for labels, value in samples(text, "hami_vgpu_memory_allocated_bytes")
        if labels["pod"].startswith("claims-")
    ] == [("GPU-d", 2 << 30)]


def test_nodes_that_should_offer_devices_are_counted():
    cache = small_cache()
    cache.nodes.upsert(node("away", gpu("GPU-c"), allocatable={NVIDIA.resources.count: "0"}))
    families_of_nodes = families(cache.view(), ONLY_NVIDIA, registered=["gpu-0", "away"])
    counts = samples("".join(render(families_of_nodes)), "hami_node_devices")
    assert [(labels["node"], value) for labels, value in counts] == [("away", 0), ("gpu-0", 2)]


def test_what_hami_allocates_by_claims_is_shown_once():
    cache, claims = small_cache(), ClaimCache()
    before = page(cache.view())
    part = ClaimedDevice(
        pool="hami/gpu-0", device="gpu-a", memory_mib=1024, cores=5, share_milli=10_000
    )
    claims.set_slice(
        "s", PublishedSlice("gpu-0", 1, (gpu("GPU-a", memory_mib=16384, by_claims=True),))
    )
    claims.set_claim(
        "c",
        AllocatedClaim(
            namespace="team-a",
            name="c",
            uid="c",
            requests=(ClaimedRequest(name="r", devices=(part,)),),
        ),
    )
    claimed = claims.at_once(cache.view().facts).view
    assert "".join(render(families(cache.view(), ONLY_NVIDIA, claimed=claimed))) == before


def test_a_view_does_not_change_with_the_store():
    cache = small_cache()
    found = cache.view()
    before = page(found)
    cache.pods.remove(pod(name="running", namespace="team-a"))
    cache.nodes.remove(node("gpu-0"))
    cache.pods.remove(pod(name="promised", namespace="team-b"))
    assert page(found) == before
    assert found.ref("uid-running") == PodRef("team-a", "running", "uid-running")
