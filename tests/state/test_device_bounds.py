"""A node with more devices than a node can have: it offers none, and costs the others nothing."""

import json
import threading

from hami.codec.register import MAX_DEVICES, render_devices_json
from hami.model import Device, Node
from hami.scheduler.cluster_metrics import families
from hami.state.nodes import NodeCache
from hami.state.pods import ForeignNodes, PodRecords
from hami.state.promises import Promises
from hami.state.store import Store
from hami.state.table import Table
from hami.state.view import Policies
from hami.vendors.inventory import PAIR_SCORES
from testing.builders import NVIDIA, gpu, gpus, node, pod
from testing.cases import cases
from testing.replicas import Clock
from testing.stores import SmallStore, bound_to
from testing.vendor_chart import CHART

COUNTED = {
    "GCU": 1,
    "MLU": 100,
    "Metax-GPU": 1,
    "Mthreads": 16,
    "kunlun": 1,
}  # what one device adds to the capacity
HONEST = [node(f"n{number}", gpu(f"GPU-{number}", memory_mib=8000)) for number in range(300)]


def array(entry, number):
    return f"[{','.join([entry] * number)}]"


def capacities(devices):
    """Returns the capacity of a kubelet that reports this number of devices of each vendor whose
    devices are counted."""
    found = {}
    for key, units in COUNTED.items():
        vendor = CHART[key]
        resource = vendor.resources.count if units == 1 else vendor.resources.cores
        found |= {resource: str(devices * units)}
        if units > 1:
            found[vendor.resources.memory] = str(devices * 64)
    return found


def cache_of(*nodes):
    clock = Clock()
    made = Store(CHART, Policies(), clock=clock, now=clock.now)
    for one in nodes:
        made.nodes.upsert(one)
    return made


def devices(number):
    return tuple(gpu(f"GPU-{index}", index=index) for index in range(number))


@cases(
    "evil, problem",
    (
        "ids",
        {"register": array('{"id":"a"}', 20_000)},
        "220001 characters, expected at most 131072",
    ),
    ("empty", {"register": array("{}", 80_000)}, "240001 characters, expected at most 131072"),
    ("empty, shorter", {"register": array("{}", 40_000)}, "40000 devices, expected at most 256"),
    (
        "unknown keys",
        {"register": array('{"more":1}', 10_000)},
        "10000 devices, expected at most 256",
    ),
    ("text form", {"register": "a,1,1,1,m,0,true:" * 7_000}, "7000 devices, expected at most 256"),
    (
        "65 profiles",
        {"register": '[{"id":"a","migProfiles":%s}]' % array('{"name":"a"}', 65)},
        "migProfiles: expected",
    ),
    (
        "MIG profiles",
        {"register": '[{"id":"a","migProfiles":%s}]' % array('{"name":"a"}', 18_000)},
        "characters, expected",
    ),
    (
        "link scores",
        {"register": '[{"id":"a"}]', PAIR_SCORES: array('{"uuid":"a"}', 18_000)},
        f"{PAIR_SCORES}: ",
    ),
)
def test_a_node_at_the_limit_of_the_api_server_leaves_the_columns_narrow(evil, problem):
    table, clock = Table(), Clock()
    lock = threading.RLock()
    nodes = NodeCache(
        CHART,
        lock,
        table,
        PodRecords(table, Promises(table.bookings, clock)),
        ForeignNodes(lock, clock),
        clock=clock,
        now=clock.now,
    )
    texts = {
        NVIDIA.annotations.register if key == "register" else key: text
        for key, text in evil.items()
    }
    for one in [*HONEST[:150], Node(name="evil", annotations=texts), *HONEST[150:]]:
        nodes.upsert(one)
    table.refresh()
    assert (len(table.nodes), table.columns.all().facts.shape[1]) == (300, 300)
    assert list(nodes.problems()) == [("evil", "NVIDIA")]
    assert problem in nodes.problems()["evil", "NVIDIA"]


@cases(
    "number, problem",
    (1024, "1024 devices, expected at most 256 devices on a node"),
    (
        200,
        "1000 devices (200 GCU, 200 MLU, 200 Metax-GPU, 200 Mthreads, 200 kunlun), expected at most 256 devices of "
        "all vendors on a node: none of them is used",
    ),
)
def test_a_kubelet_that_reports_too_many_devices_of_several_vendors(number, problem):
    cache = cache_of(*HONEST, Node(name="evil", capacity=capacities(number)))
    assert cache.view().nodes.keys() == {one.name for one in HONEST}
    found = cache.nodes.problems()
    assert found.keys() == {("evil", key) for key in COUNTED}
    assert all(problem in text for text in found.values())
    asked = pod(gpus(1, memory=7000))
    assert cache.filtering.assume(asked, ["evil", *(one.name for one in HONEST)]).node != "evil"


def test_as_many_devices_as_a_node_may_have():
    cache = cache_of(
        Node(
            name="n",
            capacity=capacities(51),
            annotations={NVIDIA.annotations.register: render_devices_json((gpu("GPU-0"),))},
        )
    )
    assert sum(map(len, cache.view().usages("n").values())) == MAX_DEVICES == 256
    assert not cache.nodes.problems()


def test_all_vendors_of_a_node_with_too_many_devices_offer_none_until_there_are_fewer():
    cache = cache_of(node("n", *devices(2), capacity=capacities(50), resource_version="1"))
    assert set(cache.view().usages("n")) == {"NVIDIA", *COUNTED}
    cache.nodes.upsert(node("n", *devices(7), capacity=capacities(50), resource_version="2"))
    assert not cache.view().usages("n")
    assert {vendor for _, vendor in cache.nodes.problems()} == {"NVIDIA", *COUNTED}
    cache.nodes.upsert(node("n", *devices(6), capacity=capacities(50), resource_version="3"))
    assert set(cache.view().usages("n")) == {"NVIDIA", *COUNTED}
    assert not cache.nodes.problems()


def test_a_silent_device_plugin_does_not_bring_back_what_is_too_much():
    cache = cache_of(
        node(
            "n",
            *devices(7),
            capacity=capacities(50),
            allocatable={NVIDIA.resources.count: "0"},
            annotations={NVIDIA.annotations.handshake: "Reported_now"},
        )
    )
    cache.expire()
    assert not cache.view().usages("n")


def test_the_pods_of_a_node_that_registers_too_much_keep_what_they_hold():
    cache = SmallStore()
    cache.pods.upsert(bound_to("a", "GPU-0,NVIDIA,3000,30:;"))
    cache.nodes.upsert(node("n1", *devices(MAX_DEVICES + 1), resource_version="9"))
    assert cache.place(pod(gpus(1, memory=10))) is None
    cache.pods.upsert(bound_to("late", "GPU-1,NVIDIA,500,5:;"))
    assert set(cache.view().bookings) == {"uid-a", "uid-late"}
    assert list(families(cache.view(), cache.vendors, legacy=True))
    cache.nodes.upsert(node("n1", *devices(2), resource_version="10"))
    assert (cache.used("GPU-0"), cache.used("GPU-1")) == ((1, 3000, 30), (1, 500, 5))


def test_what_honest_nodes_register_is_within_the_bounds():
    uuids = [f"GPU-01234567-89ab-cdef-0123-4567890{index:05}" for index in range(MAX_DEVICES)]
    found = tuple(
        Device(
            uuid=uuid,
            vendor="NVIDIA",
            model="NVIDIA-NVIDIA A100-SXM4-80GB",
            slots=100,
            cores=100,
            numa=1,
            memory_mib=81920,
            index=index,
        )
        for index, uuid in enumerate(uuids)
    )
    scores = json.dumps(
        [{"uuid": one, "score": {other: 100 for other in uuids[:32]}} for one in uuids[:32]]
    )
    cache = cache_of(node("n", *found, annotations={PAIR_SCORES: scores}))
    assert len(cache.view().usages("n")["NVIDIA"]) == MAX_DEVICES
    assert not cache.nodes.problems()
