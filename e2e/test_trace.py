"""A part of a published cluster, filled by a stock kube-scheduler with the extender, and by the core of the scheduler
alone, on which `python -m benchmarks trace` measures."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from testing import audit, binaries
from testing.cluster import SCHEDULER, LocalCluster
from testing.kube import Kube
from testing.nodes import LOCK_FREE, fake_node, gpus
from testing.pods import pod
from testing.scheduler import Certificates, Scheduler, install, wait_for_webhook
from testing.trace_cluster import (
    LEAST_WASTE,
    MEMORY_MIB,
    TraceCluster,
    annotations_of,
    limits_of,
)
from testing.traces import (
    TraceNode,
    TracePod,
    missing,
    part_of,
    trace_nodes,
    trace_pods,
    until_requested,
)

Object = dict[str, Any]
FIRST = (1, 37)  # the version by which `testing.kube_scores` places pods without GPUs
pytestmark = [
    pytest.mark.since(*FIRST),
]
NODES = 200
ARRIVED = 1.1
SEED = 42
RUNS = 3
"""Of the core. Which of equal nodes is chosen is chance, and moves the figure by some tenths of a percent."""
NAMESPACE = "default"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A control plane whose kube-scheduler places pods without devices, too."""
    if reason := missing():
        pytest.skip(reason)
    if (programs := binaries.find()).minor < FIRST:
        pytest.skip(f"{programs.kube_version} may place pods without GPUs otherwise")
    with LocalCluster.started(adjust=with_default_profile, durable=False) as started:
        yield started
        started.kube.close()


def with_default_profile(config: Object) -> None:
    config["profiles"].append({"schedulerName": "default-scheduler"})


def test_a_real_cluster_allocates_as_much_as_the_core_that_benchmarks_measure(cluster):
    nodes = part_of(trace_nodes(), NODES / len(trace_nodes()))
    total = sum(node.gpus for node in nodes)
    pods = until_requested(trace_pods("default"), ARRIVED * total, random.Random(SEED))
    names = [f"n{number:03}" for number in range(len(nodes))]
    random.Random(SEED).shuffle(names)
    kube, certificates = cluster.kube, Certificates(cluster.folder / "tls")
    with ThreadPoolExecutor(4) as clients:
        list(clients.map(kube.create, map(a_node, names, nodes)))
    kube.wait("Node", lambda seen: all(map(is_untainted, seen.values())), timeout=120)
    scheduler = Scheduler(cluster, certificates, install(cluster, certificates)).start()
    wait_for_webhook(kube)
    for number, asked in enumerate(pods):
        kube.create(a_pod(f"p{number}", asked), NAMESPACE)
    allocated = 100 * given(kube, pods) / total
    found = audit.audit(kube)
    scheduler.close()
    expected = statistics.mean(of_core(nodes, pods, seed) for seed in range(RUNS))
    assert found == []
    assert allocated == pytest.approx(expected, abs=1)


def a_node(name: str, node: TraceNode) -> Object:
    cards = gpus(node.gpus, model=node.model, memory_mib=MEMORY_MIB)
    made = fake_node(name, cards, annotations=LOCK_FREE)
    room = {"cpu": f"{node.milli_cpu}m", "memory": f"{node.memory_mib}Mi"}
    room = made["status"]["capacity"] | room
    made["status"] = {"capacity": room, "allocatable": room}
    return made


def is_untainted(node: Object) -> bool:
    return not node["spec"].get("taints")


def a_pod(name: str, asked: TracePod) -> Object:
    room = {"cpu": f"{asked.milli_cpu}m", "memory": f"{asked.memory_mib}Mi"}
    if not asked.gpus:
        return pod(name, scheduler="default-scheduler", **room)
    return pod(
        name,
        annotations=annotations_of(asked),
        scheduler=SCHEDULER,
        **limits_of(asked),
        **room,
    )


def given(kube: Kube, pods: Sequence[TracePod]) -> float:
    """Waits until each of *pods* has a node or has been refused by all. Returns the GPUs of those that have one."""

    def are_decided(seen: dict[str, Object]) -> list[str] | None:
        if len(seen) < len(pods) or not all(map(is_decided, seen.values())):
            return None
        return [name for name, item in seen.items() if item["spec"].get("nodeName")]

    bound = kube.wait("Pod", are_decided, NAMESPACE, timeout=400, what="all pods are decided")
    return sum(pods[int(name.removeprefix("p"))].size for name in bound)


def is_decided(item: Object) -> bool:
    if item["spec"].get("nodeName"):
        return True
    conditions = item["status"].get("conditions") or []
    return any(one.get("reason") == "Unschedulable" for one in conditions)


def of_core(nodes: Sequence[TraceNode], pods: Sequence[TracePod], seed: int) -> float:
    """Returns the percent of all GPUs that the core allocates."""
    core = TraceCluster(nodes, LEAST_WASTE, seed)
    for number, asked in enumerate(pods):
        core.place(f"p{number}", asked)
    return 100 * core.given / core.gpus
