"""What the table of all vendors does not say of those that are data alone: inventories, quotas, requests of pods that
came past admission, and what upstream does wrong."""

import pytest

from hami.codec.keys import NODE_LOCK
from hami.errors import MalformedInput
from hami.model import Node, QuotaLimits
from hami.scheduling.quota import remaining_budget
from hami.scheduling.refusal import Choice
from hami.vendors.request import device_request
from testing.builders import APP, INIT, container, pod, within_quota
from testing.cases import cases
from testing.vendor_chart import CHART, on_node
from testing.vendor_placing import cache_of
from testing.vendor_rows import admit, asked, given

AMD, BIREN, DCU, GCU, MLU, MT, V150 = (
    CHART[key] for key in ("AMD", "Biren", "DCU", "GCU", "MLU", "Mthreads", "BI-V150")
)


@cases(
    "vendor, limits, requests, expected",
    ("one device without more", MT, given(MT, 1), {}, asked(MT, 1, 0, 100, 0)),
    ("no device count", AMD, given(AMD, None, 16384, 25), {}, None),
    ("no percentage of cores", AMD, given(AMD, 1, None, 0), {}, asked(AMD, 1, 0, 100, 0)),
    ("several of Iluvatar's cards", V150, given(V150, 2), {}, asked(V150, 2, 0, 100, 0)),
)
def test_pods_that_came_past_admission(vendor, limits, requests, expected):
    assert device_request(vendor, container(limits, requests=requests)) == expected


def described(usages):
    return [
        (usage.device.uuid, usage.device.slots, usage.device.memory_mib, usage.device.cores)
        for usage in usages
    ]


@cases(
    "vendor, capacity, first, count",
    ("MLU", MLU, dict(memory=400, cores=400), ("n-cambricon-mlu-0", 100, 25600, 100), 4),
    (
        "MLU part of a card",
        MLU,
        dict(memory=400, cores=350),
        ("n-cambricon-mlu-0", 100, 29257, 100),
        4,
    ),
    ("Mthreads", MT, dict(memory=768, cores=128), ("n-mthreads-0", 100, 49152, 16), 8),
    ("capacity of one core", MT, dict(memory=1, cores=1), ("n-mthreads-0", 100, 8192, 16), 1),
    ("GCU", GCU, dict(count=2), ("n-GCU-0", 1, 100, 100), 2),
    ("MetaX", CHART["Metax-GPU"], dict(count=8), ("n-metax-0", 1, 65536, 100), 8),
)
def test_cards_by_capacity(vendor, capacity, first, count):
    usages = on_node(vendor, **capacity)
    assert described(usages)[0] == first
    assert [usage.device.index for usage in usages] == list(range(count))
    assert len({usage.device.uuid for usage in usages}) == count


@cases(
    "vendor, capacity, problem",
    ("count alone", MLU, dict(count=4), f"device not found {MLU.resources.cores}"),
    ("memory alone", MLU, dict(memory=400), f"device not found {MLU.resources.cores}"),
    ("no cores", MLU, dict(memory=400, cores=0), f"device not found {MLU.resources.cores}"),
    ("cores alone", MT, dict(cores=128), f"device not found {MT.resources.memory}"),
    ("negative", MT, dict(memory=768, cores=-16), "expected no negative amount"),
    ("no amount", MT, dict(memory="lots", cores=16), f"capacity of {MT.resources.memory}"),
    ("absurd", GCU, dict(count=100000), "expected at most 256 devices"),
)
def test_capacity_that_cannot_be_used(vendor, capacity, problem):
    with pytest.raises(MalformedInput, match=problem):
        on_node(vendor, **capacity)


@pytest.mark.parametrize("vendor", [MLU, MT, GCU], ids=repr)
def test_a_node_without_such_a_capacity_has_no_inventory(vendor):
    assert vendor.decision.inventory(vendor, Node(name="n", capacity={"cpu": "8"})) is None


def test_biren_counts_all_cores_of_its_cards():
    (usage,) = on_node(
        BIREN,
        annotations={
            BIREN.annotations.register: '[{"id":"c0","count":1,"devmem":32768,"type":"Biren166","health":true,'
            '"custominfo":{"zone":1}}]'
        },
    )
    assert (usage.device.cores, usage.device.model, usage.device.info) == (
        100,
        "Biren166",
        {"zone": 1},
    )


def test_hygon_without_any_card():
    with pytest.raises(MalformedInput, match="no gpu found on node"):
        on_node(DCU, annotations={DCU.annotations.register: ":"})


@cases(
    "vendor, limits, left",
    (
        "MLU in units of 256 MiB",
        MLU,
        {MLU.resources.memory: 50, MLU.resources.cores: 100},
        (12800, 100),
    ),
    ("Mthreads in units of 512 MiB", MT, {MT.resources.memory: 96}, (49152, None)),
    ("Hygon", DCU, {DCU.resources.memory: 2000}, (2000, None)),
    ("sGPU in GiB", CHART["Metax-SGPU"], {CHART["Metax-SGPU"].resources.memory: 4}, (4096, None)),
    (
        "AMD compute units are no percentage",
        AMD,
        {AMD.resources.memory: 100, AMD.resources.cores: 50},
        (100, None),
    ),
)
def test_quotas(vendor, limits, left):
    quota = QuotaLimits(namespace="default", name="quota", uid="uid", limits=limits)
    found = remaining_budget(vendor, [quota], {})
    assert (found.memory_mib, found.cores) == left


@pytest.mark.parametrize("limit, covered", [(200, True), (199, False)])
def test_cores_of_several_cards_count_once_for_each_card(limit, covered):
    """Iluvatar's admission sets the total of all cards: 200 for two, which is 100 on each."""
    cache = cache_of(Node(name="n"))
    cache.quotas.upsert(
        QuotaLimits(namespace="default", name="q", uid="uid", limits={V150.resources.cores: limit})
    )
    assert (
        within_quota(cache.admissions, "default", pod(container(given(V150, 2, None, 200))))
        is covered
    )


@cases(
    "wire, env",
    ("set", {"name": "c"}, [{"name": "SOL_CONTINER_NAME", "value": "c"}]),
    (
        "the container's own stays",
        {"name": "c", "env": [{"name": "SOL_CONTINER_NAME", "value": "mine"}]},
        [{"name": "SOL_CONTINER_NAME", "value": "mine"}],
    ),
    ("no name", {}, None),
)
def test_iluvatar_containers_know_their_name(wire, env):
    asking = wire | {"resources": {"limits": given(V150, 1)}}
    assert admit(V150, asking).container.get("env") == env


CAPABLE = {
    MLU.resources.count: "4",
    MLU.resources.cores: "400",
    MLU.resources.memory: "400",
    AMD.resources.count: "1",
}
REGISTERED = {
    DCU.annotations.register: "DCU-a,30,32752,100,DCU-K100_AI,0,true:",
    DCU.annotations.handshake: "Reported",
    AMD.annotations.register: '[{"id":"amd-0","count":10,"devmem":196608,"devcore":304,"type":"AMD MI300X",'
    '"health":true}]',
}


@cases(
    "vendor, lock",
    ("Hygon", DCU, NODE_LOCK),
    ("AMD", AMD, NODE_LOCK),
    ("MLU", MLU, "cambricon.com/dsmlu.lock"),
)
@cases("kind", ("init", INIT), ("app", APP))
def test_pods_whose_init_containers_alone_ask_for_devices_lock_the_node(vendor, lock, kind):
    cache = cache_of(Node(name="n", annotations=REGISTERED, capacity=CAPABLE, allocatable=CAPABLE))
    asking = pod(container(given(vendor, 1), kind=kind), container({"cpu": "1"}))
    assert isinstance(cache.filtering.assume(asking, ["n"]), Choice)
    assert cache.bindings.get(asking.ref.uid).lock_keys == (lock,)


@cases(
    "capacity, offered",
    ("some", CAPABLE, True),
    ("none", {AMD.resources.count: "0"}, False),
    ("not said", {}, False),
)
def test_amd_cards_count_while_the_kubelet_has_any(capacity, offered):
    cache = cache_of(
        Node(name="n", annotations=REGISTERED, capacity=capacity, allocatable=capacity)
    )
    asking = pod(container(given(AMD, 1)))
    assert isinstance(cache.filtering.assume(asking, ["n"]), Choice) is offered
