"""kube-scheduler evicts pods for a pod with devices only where its devices fit then."""

import re
import time

import pytest

from testing.eventually import eventually
from testing.nodes import gpu
from testing.pods import pod, replica_set
from testing.priorities import of_priority
from testing.scheduler import kill_leader, second_replica

WATCHED_S = 20
pytestmark = pytest.mark.usefixtures("priorities")


@pytest.fixture
def cpu_is_full(sandbox):
    """Two nodes of one GPU each, whose CPU is full of pods of low priority that a controller replaces."""
    sandbox.add_gpu_nodes({"gpu-0": [gpu()], "gpu-1": [gpu()]})
    template = of_priority("low", pod("cpu", cpu=900, scheduler="hami-scheduler"))
    sandbox.create(replica_set("cpu", template, count=2))
    nodes = sandbox.bound(2)
    assert sorted(nodes.values()) == ["gpu-0", "gpu-1"]
    yield {node: name for name, node in nodes.items()}
    sandbox.kube.delete("ReplicaSet", "cpu", sandbox.namespace)


def wants():
    """A pod of high priority that needs a GPU, and CPU of pods of low priority."""
    return of_priority("high", pod("wants", gpu=1, gpumem=1000, cpu=500))


def take_whole_cards(sandbox, *nodes):
    for node in nodes:
        sandbox.create(
            of_priority(
                "high",
                pod(
                    f"holds-{node}",
                    gpu=1,
                    annotations={"nvidia.com/use-gpuuuid": sandbox.uuid(node)},
                ),
            )
        )
    sandbox.started(len(nodes))


def preempted(sandbox):
    return {
        event["involvedObject"]["name"]
        for event in sandbox.kube.list("Event", sandbox.namespace)
        if event["reason"] == "Preempted"
    }


def vetoes(scheduler):
    return int(
        float(
            re.search(
                r'request_duration_seconds_count\{outcome="refused",verb="preempt"\} (\S+)',
                scheduler.metrics(),
            )[1]
        )
    )


def uids(sandbox):
    """Returns the pods that hold something."""
    return {
        item["metadata"]["uid"]
        for item in sandbox.kube.list("Pod", sandbox.namespace)
        if item["metadata"]["name"] != "wants"
    }


def test_nobody_is_evicted_where_the_cards_stay_full(sandbox, scheduler, cpu_is_full):
    """Without the verb, kube-scheduler evicts eight pods a second here, for as long as they are replaced."""
    take_whole_cards(sandbox, "gpu-0", "gpu-1")
    before = uids(sandbox)
    vetoed = vetoes(scheduler)
    sandbox.create(wants())
    sandbox.event("wants", "FailedScheduling", "Insufficient cpu")
    time.sleep(WATCHED_S)
    assert uids(sandbox) == before
    assert preempted(sandbox) == set()
    assert vetoes(scheduler) > vetoed


def test_the_next_leader_evicts_nobody_until_a_card_is_free(sandbox, scheduler, cpu_is_full):
    take_whole_cards(sandbox, "gpu-0", "gpu-1")
    before = uids(sandbox)
    with second_replica(scheduler) as standby:
        sandbox.create(wants())
        sandbox.event("wants", "FailedScheduling", "no candidate node")
        kill_leader(scheduler, standby)
        eventually(lambda: vetoes(standby), "the next leader has vetoed an eviction")
        assert uids(sandbox) == before
        assert preempted(sandbox) == set()
        sandbox.delete("holds-gpu-0")
        sandbox.kube.wait(
            "Pod",
            lambda pods: pods["wants"]["spec"].get("nodeName"),
            sandbox.namespace,
            what="the pod is bound",
        )
        eventually(
            lambda: preempted(sandbox) == {cpu_is_full["gpu-0"]},
            "exactly the pod that was in the way is evicted",
        )


def test_victims_are_evicted_where_a_card_is_free(sandbox, cpu_is_full):
    take_whole_cards(sandbox, "gpu-1")
    sandbox.create(wants())
    assert sandbox.kube.wait(
        "Pod",
        lambda pods: pods["wants"]["spec"].get("nodeName"),
        sandbox.namespace,
        what="the pod is bound",
    ).endswith("gpu-0")
    eventually(
        lambda: preempted(sandbox) == {cpu_is_full["gpu-0"]},
        "exactly the pod that was in the way is evicted",
    )
    assert sandbox.pod(cpu_is_full["gpu-1"])["spec"]["nodeName"].endswith("gpu-1")


def test_a_pod_that_was_vetoed_gets_the_card_when_another_ends(sandbox, cpu_is_full):
    """Repeated, because kube-scheduler may learn of the end before our cache, retry at once, and then
    not for minutes."""
    for _ in range(8):
        take_whole_cards(sandbox, "gpu-0", "gpu-1")
        sandbox.create(wants())
        sandbox.event("wants", "FailedScheduling", "no candidate node")
        sandbox.delete("holds-gpu-0")
        sandbox.kube.wait(
            "Pod",
            lambda pods: pods["wants"]["spec"].get("nodeName"),
            sandbox.namespace,
            what="the pod is bound",
        )
        sandbox.delete("holds-gpu-1")
        sandbox.delete("wants")
        sandbox.kube.delete_all("Event", sandbox.namespace)
        sandbox.bound(2)
