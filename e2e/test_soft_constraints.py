"""Wishes that need not be met: preferred affinity, a spread that may be violated, and kube-scheduler's own scores."""

import contextlib
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

from testing import audit
from testing.cases import cases
from testing.kube import path_of
from testing.nodes import LOCK_FREE, gpus
from testing.pods import pod

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
KUBE = {"hami.io/node-scheduler-policy": "kube"}
SHARE = {"gpu": 1, "gpumem": 1000}


def with_spec(item, **spec):
    return {**item, "spec": {**item["spec"], **spec}}


def prefers(label, value, weight=1):
    return {
        "nodeAffinity": {
            PREFERRED: [
                {
                    "weight": weight,
                    "preference": {
                        "matchExpressions": [{"key": label, "operator": "In", "values": [value]}]
                    },
                }
            ]
        }
    }


def apart(**labels):
    """A wish to be on other nodes than the pods with *labels*."""
    return {
        "podAntiAffinity": {
            PREFERRED: [
                {
                    "weight": 100,
                    "podAffinityTerm": {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": labels},
                    },
                }
            ]
        }
    }


@pytest.fixture
def three_nodes(sandbox):
    """Nodes a, b and c, of which a is the fullest, so that binpack chooses it."""
    sandbox.add_gpu_nodes({name: gpus(2) for name in "abc"}, annotations=LOCK_FREE)
    for name in "abc":
        sandbox.label_node(name, {"kubernetes.io/hostname": name, "example.com/name": name})
    sandbox.create(pod("first", annotations={"nvidia.com/use-gpuuuid": sandbox.uuid("a")}, **SHARE))
    assert sandbox.started(1) == {"first": "a"}
    return sandbox


def test_preferred_node_affinity_goes_before_the_policy(three_nodes):
    three_nodes.create(pod("plain", **SHARE))
    three_nodes.create(with_spec(pod("wishes", **SHARE), affinity=prefers("example.com/name", "c")))
    assert three_nodes.started(3) == {"first": "a", "plain": "a", "wishes": "c"}


def test_a_preferred_node_that_is_full_is_no_reason_to_wait(three_nodes):
    whole = {"gpu": 2, "gpucores": 100}
    three_nodes.create(
        pod(
            "holds",
            annotations={
                "nvidia.com/use-gpuuuid": f"{three_nodes.uuid('c')},{three_nodes.uuid('c', 1)}"
            },
            **whole,
        )
    )
    assert three_nodes.started(2)["holds"] == "c"
    three_nodes.create(with_spec(pod("wishes", **SHARE), affinity=prefers("example.com/name", "c")))
    assert three_nodes.started(3)["wishes"] == "a"


@cases(
    "wish",
    ("anti-affinity", {"affinity": apart(app="web")}),
    (
        "spread",
        {
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": {"app": "web"}},
                }
            ]
        },
    ),
)
def test_pods_that_wish_to_be_apart_are_apart(three_nodes, wish):
    for number in range(3):
        three_nodes.create(with_spec(pod(f"web-{number}", labels={"app": "web"}, **SHARE), **wish))
        three_nodes.started(2 + number)
    nodes = three_nodes.started(4)
    assert sorted(nodes[f"web-{number}"] for number in range(3)) == ["a", "b", "c"]


def test_kube_schedulers_own_scores_count_alone_where_a_pod_asks_for_it(three_nodes):
    """It likes free CPU; binpack would choose the node a."""
    three_nodes.create(
        pod(
            "busy",
            cpu=500,
            annotations={"nvidia.com/use-gpuuuid": three_nodes.uuid("a", 1)},
            **SHARE,
        )
    )
    assert three_nodes.started(2)["busy"] == "a"
    three_nodes.create(pod("kube", annotations=KUBE, cpu=100, **SHARE))
    assert three_nodes.started(3)["kube"] in ("b", "c")


def test_five_hundred_pods_with_wishes_at_once(sandbox):
    """The node that kube-scheduler chooses may be full when it binds: the pod comes back, and all find their places. No
    card is given out twice, not even for a moment."""
    sandbox.add_gpu_nodes({f"n{number}": gpus(2) for number in range(50)}, annotations=LOCK_FREE)
    fifth = {"gpu": 1, "gpumem": 16_000, "gpucores": 20}
    pods = [
        with_spec(
            pod(f"p{number:03}", labels={"app": "web"}, scheduler="hami-scheduler", **fifth),
            affinity=apart(app="web"),
        )
        for number in range(500)
    ]
    with each_binding_audited(sandbox, len(pods)) as found:
        sandbox.create_all(pods)
        nodes = sandbox.started(len(pods), timeout=150)
    assert found == []
    assert set(Counter(nodes.values()).values()) == {10}


@contextlib.contextmanager
def each_binding_audited(sandbox, count):
    """Audits a node after each change of its pods, until *count* pods are bound. Yields what is found."""
    version = sandbox.kube.page("Pod", sandbox.namespace)["metadata"]["resourceVersion"]
    nodes = {item["metadata"]["name"]: item for item in sandbox.kube.list("Node")}
    found, on_node = [], defaultdict(dict)

    def changes():
        seen, deadline = version, time.monotonic() + 150
        while (left := deadline - time.monotonic()) > 0:  # the server may end a watch before
            for _, item in sandbox.kube.watch(path_of("Pod", sandbox.namespace), seen, left):
                seen = item["metadata"]["resourceVersion"]
                yield item

    def follow():
        for item in changes():
            if node := item.get("spec", {}).get("nodeName"):
                on_node[node][item["metadata"]["name"]] = item
                found.extend(audit.violations([nodes[node]], on_node[node].values())[0])
                if sum(map(len, on_node.values())) == count:
                    return
        found.append(f"{count} pods have not been seen bound")

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(follow)
        yield found
        watching.result()
