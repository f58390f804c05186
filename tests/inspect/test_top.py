"""``hami top``: rows of nodes, cards, pods and namespaces."""

import json

import pytest
from hypothesis import given, settings
from hypothesis.strategies import randoms

from hami.cli.targets import TYPES as KINDS
from hami.codec.keys import CORES_LIMIT, RESIZE_TARGET, RESIZED
from hami.codec.slices import render_slices
from hami.errors import HamiError
from hami.inspect.cluster import InspectedCluster
from hami.inspect.read import Reader
from hami.inspect.tables import Style
from hami.inspect.top import TopQuery, age_of, age_text, render_top
from testing import builders as cards
from testing.cases import cases
from testing.fake_api import FakeApi, bound, claimed, node, pending, quota
from testing.nodes import gpu

GPU = {"memory_mib": 10_000, "model": "A100"}
WALL = {"hami.io/memory-wall": "off: the driver is older than release 615"}
NODES = [
    node("n1", gpu(**GPU), gpu(**GPU), labels={"zone": "a"}),
    node(
        "n2",
        gpu(**GPU),
        gpu(**GPU, healthy=False),
        annotations={"hami.io/device-cordon": "GPU-n2-0"},
    ),
    node("n3", gpu(**GPU), unschedulable=True),
    {"metadata": {"name": "plain"}},
]
PODS = [
    bound("a", "n1", (0, 6000, 50), gpu=1, labels={"app": "x"}),
    bound("b", "n1", (0, 2000, 10), (1, 1000, 10)),
    bound("c", "n3", (0, 1000, 0), namespace="other"),
    pending("waits", gpu=2, gpumem=20_000),
]


def cluster(nodes=NODES, pods=PODS, quotas=()):
    return InspectedCluster(Reader(FakeApi(list(nodes), list(pods), list(quotas)).request).record())


def items(kind, of=None, **wanted):
    """Returns the rows as JSON."""
    return json.loads(render_top(of or cluster(), TopQuery(kind=kind, **wanted), Style("json")))[
        "items"
    ]


def lines(kind, form="table", **wanted):
    return render_top(cluster(), TopQuery(kind=kind, **wanted), Style(form)).splitlines()


def test_a_row_for_each_node_with_devices():
    assert lines("nodes") == [
        "NODE  MODEL  CARDS  MEMORY           CORES            LARGEST FREE MIB  PODS  STATE",
        "n1    A100   2      ████░░░░░░  45%  ████░░░░░░  35%  9,000             2     ok",
        "n2    A100   2      ░░░░░░░░░░   0%  ░░░░░░░░░░   0%  0                 0     "
        "1 card unhealthy, 1 card cordoned",
        "n3    A100   1      █░░░░░░░░░  10%  ░░░░░░░░░░   0%  9,000             1     cordoned",
        "",
        "3 nodes, 5 cards: 9.8 of 48.8 GiB allocated; largest free slice 9,000 MiB",
    ]


def test_how_the_driver_of_a_node_limits_memory_is_shown_on_request():
    (row,) = items("nodes", cluster([node("n1", gpu(**GPU), annotations=WALL)]))
    assert row["memoryWall"] == "off: the driver is older than release 615"
    assert "MEMORY WALL" in lines("nodes", "wide")[0]


def test_what_claims_hold_is_shown_as_what_annotations_say():
    others = {
        "resourceslices": list(
            render_slices("d", [cards.gpu("GPU-d-0", memory_mib=10_000, model="T4")])
        ),
        "resourceclaims": [claimed("a", "d"), claimed("gone", "d")],
    }
    holder = pending("a")
    holder["spec"]["nodeName"] = "d"
    api = FakeApi([node("n"), {"metadata": {"name": "d"}}], [holder], others=others)
    of = InspectedCluster(Reader(api.request).record())
    (row,) = [row for row in items("nodes", of) if row["name"] == "d"]
    assert [row[key] for key in ("models", "memoryUsedMib", "coresUsed", "slotsUsed", "pods")] == [
        ["T4"],
        6000,
        20,
        2,
        1,
    ]
    (card,) = [row for row in items("cards", of) if row["node"] == "d"]
    assert (card["uuid"], card["memoryUsedMib"], card["pods"]) == ("GPU-d-0", 6000, ["default/a"])
    (pod,) = items("pods", of)
    assert (pod["name"], pod["node"], pod["cards"], pod["memoryMib"], pod["cores"]) == (
        "a",
        "d",
        ["0"],
        3000,
        10,
    )


def test_a_node_whose_claims_hami_allocates_is_shown_once():
    managed = node("d", gpu(**GPU))
    managed["metadata"]["annotations"] |= {
        "hami.io/allocation-mode": "dra",
        "hami.io/lock-free": "NVIDIA",
    }
    slices = render_slices("d", [cards.gpu("GPU-d-0", memory_mib=10_000, by_claims=True)])
    api = FakeApi(
        [managed],
        [bound("a", "d", (0, 3000, 10))],
        others={"resourceslices": list(slices), "resourceclaims": [claimed("a", "d")]},
    )
    of = InspectedCluster(Reader(api.request).record())
    ((row,), (card,), (pod,)) = (items(kind, of) for kind in ("nodes", "cards", "pods"))
    assert [row[key] for key in ("cards", "memoryUsedMib", "slotsUsed", "pods")] == [1, 3000, 1, 1]
    assert (card["uuid"], card["memoryUsedMib"], card["pods"]) == ("GPU-d-0", 3000, ["default/a"])
    assert (pod["name"], pod["cards"], pod["memoryMib"]) == ("a", ["0"], 3000)


def test_a_card_that_is_overcommitted_has_nothing_free():
    of = cluster([node("n1", gpu(**GPU))], [bound("a", "n1", (0, 9000, 50), (0, 2000, 10))])
    (row,) = items("nodes", of)
    assert (row["memoryUsedMib"], row["largestFreeMib"]) == (11_000, 0)


def test_a_row_for_each_card():
    rows = {(row["node"], row["index"]): row for row in items("cards")}
    assert (
        rows["n1", 0]["memoryUsedMib"],
        rows["n1", 0]["coresUsed"],
        rows["n1", 0]["slotsUsed"],
    ) == (8000, 60, 2)
    assert rows["n1", 0]["pods"] == ["default/a", "default/b"]
    assert [rows[key]["state"] for key in (("n2", 0), ("n2", 1), ("n3", 0))] == [
        ["cordoned"],
        ["unhealthy"],
        ["node cordoned"],
    ]


def test_a_row_for_each_pod():
    assert [
        (row["name"], row["state"], row["cards"], row["memoryMib"]) for row in items("pods")
    ] == [
        ("a", "Running", ["0"], 6000),
        ("b", "Running", ["0", "1"], 3000),
        ("waits", "Pending", [], 0),
        ("c", "Running", ["0"], 1000),
    ]
    (request,) = items("pods")[2]["requests"]
    (device,) = request["devices"]
    assert (device["count"], device["memoryMib"]) == (2, 20_000)
    assert device["text"] == "2 × NVIDIA with 20,000 MiB"


def test_what_a_pod_is_to_have_and_may_use_is_shown_beside_what_it_holds():
    shrinks = bound("a", "n1", (0, 8192, 40))
    shrinks["metadata"]["annotations"] |= {
        RESIZED: "GPU-n1-0,NVIDIA,8192,40:;",
        RESIZE_TARGET: "GPU-n1-0,NVIDIA,3072,20:;",
        CORES_LIMIT: "60",
    }
    of = cluster(pods=[shrinks, bound("b", "n1", (0, 1000, 10))])
    assert [
        (
            row["memoryMib"],
            row["memoryWantedMib"],
            row["cores"],
            row["coresWanted"],
            row["coresLimit"],
        )
        for row in items("pods", of)
    ] == [(8192, 3072, 40, 20, 60), (1000, 1000, 10, 10, None)]
    head, *rows = render_top(of, TopQuery(kind="pods"), Style()).splitlines()
    first = head.index("MIB")
    assert [row[first:].split()[:3] for row in (head, *rows)] == [
        ["MIB", "CORES", "CORE"],
        ["8,192→3,072", "40→20", "60"],
        ["1,000", "10", "–"],
    ]


def test_a_row_for_each_namespace():
    rows = items(
        "namespaces", cluster(quotas=[quota("default", gpumem=12_000), quota("free", gpucores=10)])
    )
    assert [
        (row["name"], row["pods"], row["memoryUsedMib"], row["memoryLimitMib"], row["coresLimit"])
        for row in rows
    ] == [
        ("default", 2, 9000, 12_000, None),
        ("free", 0, 0, None, 10),
        ("other", 1, 1000, None, None),
    ]


def test_the_limit_of_a_namespace_is_that_of_quotas_for_all_pods():
    scoped = quota("default", "scoped", gpumem=10)
    scoped["spec"]["scopes"] = ["Terminating"]
    rows = items("namespaces", cluster(quotas=[quota("default", gpumem=12_000), scoped]))
    assert [(row["name"], row["memoryLimitMib"]) for row in rows] == [
        ("default", 12_000),
        ("other", None),
    ]


def test_what_another_scheduler_has_just_reserved_is_shown():
    reserved = bound("r", "n1", (1, 500, 0))
    del reserved["spec"]["nodeName"]
    record = Reader(FakeApi(NODES, [reserved]).request).record()
    reserved["metadata"]["annotations"]["hami.io/vgpu-time"] = str(int(record.taken.timestamp()))
    made = cluster(pods=[reserved])
    assert [(row["name"], row["reserved"]) for row in items("nodes", made)] == [
        ("n1", 1),
        ("n2", 0),
        ("n3", 0),
    ]
    assert [(row["state"], row["node"]) for row in items("pods", made)] == [("Reserved", "n1")]


def test_an_unreadable_allocation_and_an_unreadable_inventory_are_shown():
    broken = bound("a", "n1", (0, 1, 1))
    broken["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"] = "GPU-n1-0,NVIDIA,x"
    dark = node("dark")
    dark["metadata"]["annotations"]["hami.io/node-nvidia-register"] = "{"
    made = cluster([*NODES, dark], [broken])
    assert [row["state"] for row in items("pods", made)] == ["Unreadable"]
    assert items("nodes", made, names=("dark",))[0]["state"] == ["inventory unreadable"]
    assert items("cards", made, names=("n1",))[0]["memoryUsedMib"] == 10_000


@cases(
    "kind, wanted, names",
    ("nodes", {"sort": "memory"}, ["n1", "n3", "n2"]),
    ("nodes", {"sort": "pods"}, ["n1", "n3", "n2"]),
    ("nodes", {"selector": "zone=a"}, ["n1"]),
    ("nodes", {"names": ("n3", "n1")}, ["n1", "n3"]),
    ("pods", {"namespace": "other"}, ["c"]),
    ("pods", {"selector": "app"}, ["a"]),
    ("pods", {"sort": "memory"}, ["a", "b", "c", "waits"]),
    ("pods", {"names": ("b",)}, ["b"]),
    ("namespaces", {"sort": "memory"}, ["default", "other"]),
    ("namespaces", {"namespace": "other"}, ["other"]),
)
def test_which_rows_and_in_which_order(kind, wanted, names):
    assert [row["name"] for row in items(kind, **wanted)] == names


def neuron(name, node, mask):
    """A pod with the cores *mask* of the first device of *node*, whose device plugin counts cores, not percent."""
    made = bound(name, node)
    made["metadata"]["annotations"]["hami.io/aws-neuron-devices-allocated"] = (
        f"{node}-AWSNeuron-0,AWSNeuron,0,{mask}:;"
    )
    made["spec"]["containers"][0]["resources"] = {
        "limits": {"aws.amazon.com/neuroncore": str(mask.bit_count())}
    }
    return made


def neuron_node(name):
    labels = {"node.kubernetes.io/instance-type": "inf2.24xlarge"}
    capacity = {"aws.amazon.com/neuron": "1", "aws.amazon.com/neuroncore": "2"}
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def test_cores_are_counted_and_compared_as_parts_of_what_there_is():
    """Percent of a card and cores of a chip are no numbers of one kind, and a sum of masks is no mask."""
    made = cluster(
        [*NODES, neuron_node("chip-1"), neuron_node("chip-2")],
        [
            *PODS,
            neuron("x", "chip-1", 0b01),
            neuron("y", "chip-1", 0b10),
            neuron("z", "chip-2", 0b01),
        ],
    )
    assert [
        (row["name"], row["coresUsed"], row["cores"]) for row in items("nodes", made, sort="cores")
    ] == [("chip-1", 2, 2), ("chip-2", 1, 2), ("n1", 70, 200), ("n2", 0, 200), ("n3", 0, 100)]
    assert [
        (row["pods"], row["coresUsed"])
        for row in items("namespaces", made)
        if row["vendor"] == "AWSNeuron"
    ] == [(3, 3)]


@cases(
    "kind, wanted, said",
    ("nodes", {"names": ("n9",)}, "there is no node n9; did you mean n"),
    ("cards", {"names": ("zzzzzz",)}, "there is no node zzzzzz$"),
    (
        "pods",
        {"names": ("wait",), "namespace": "default"},
        "there is no pod with devices in namespace default: wait; did you mean waits",
    ),
    ("namespaces", {"names": ("defautl",)}, "did you mean default"),
    ("pods", {"sort": "free"}, "pods cannot be sorted by free; expected name, memory, cores, age"),
    ("nodes", {"selector": "a="}, None),
    ("nodes", {"selector": "a b"}, "label selector"),
)
def test_errors(kind, wanted, said):
    if said is None:
        assert items(kind, **wanted) == []
        return
    with pytest.raises(HamiError, match=said):
        items(kind, **wanted)


def away(name, health=None):
    """A node whose kubelet offers none of its devices, so that a request to its plugin is unanswered."""
    made = node(name, gpu(**GPU), annotations={"hami.io/device-health": health} if health else {})
    made["metadata"]["annotations"]["hami.io/node-handshake"] = "Requesting_2020-01-01 00:00:00"
    made["status"] = {"capacity": {"nvidia.com/gpu": "0"}, "allocatable": {"nvidia.com/gpu": "0"}}
    return made


@pytest.mark.parametrize(
    "health, state",
    [
        (None, "offers nothing: device plugin away"),
        (
            '{"GPU-n9-0":{"cause":"the driver has not answered for 20 s"}}',
            "offers nothing: the driver has not answered for 20 s",
        ),
        ("garbled", "offers nothing: device plugin away"),
    ],
)
@pytest.mark.parametrize("others", [[], [NODES[0]]])
def test_a_node_that_offers_nothing_now_says_why(others, health, state):
    of = cluster([*others, away("n9", health)], [bound("c", "n9", (0, 1000, 0))])
    row = items("nodes", of)[-1]
    assert (row["name"], row["state"], row["pods"]) == ("n9", [state], 1)


def test_a_cluster_that_offers_nothing_now_is_an_error_with_its_cause():
    with pytest.raises(HamiError, match="no node offers devices now; node n9: device plugin away"):
        cluster([away("n9")], []).check_has_devices()


@pytest.mark.parametrize("kind", KINDS)
def test_a_cluster_without_hami_is_an_error(kind):
    with pytest.raises(HamiError, match="no node has registered devices"):
        items(kind, cluster([NODES[3]], []))


@cases(
    "seconds, text",
    (None, ""),
    (0, "0s"),
    (119, "119s"),
    (120, "2m"),
    (10_799, "179m"),
    (10_800, "3h"),
    (172_799, "47h"),
    (172_800, "2d"),
)
def test_ages(seconds, text):
    assert age_text(seconds) == text


def test_the_time_of_creation_may_be_unreadable():
    assert age_of("yesterday", cluster().record.taken) is None


@settings(max_examples=20)
@given(chance=randoms(use_true_random=True))
def test_cards_nodes_pods_and_namespaces_agree(chance):
    """Whatever is bound where, the sums of all views are the same."""
    nodes = [
        node(f"n{number}", *[gpu(**GPU)] * chance.randrange(1, 5))
        for number in range(chance.randrange(1, 5))
    ]
    pods = []
    for number in range(chance.randrange(20)):
        where = chance.choice(nodes)
        cards = int(where["status"]["capacity"]["nvidia.com/gpu"]) // 10
        pods.append(
            bound(
                f"p{number}",
                where["metadata"]["name"],
                (chance.randrange(cards), chance.randrange(5000), chance.randrange(50)),
                namespace=chance.choice("xyz"),
            )
        )
    made = cluster(nodes, pods)
    for field, other in (("memoryUsedMib", "memoryMib"), ("coresUsed", "cores")):
        sums = [
            sum(row[field] for row in items(kind, made))
            for kind in ("nodes", "cards", "namespaces")
        ]
        assert sums == [sum(row[other] for row in items("pods", made))] * 3
