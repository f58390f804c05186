"""Pods and nodes that come and go, old and new device plugins, and device plugins that fail."""

import re

import pytest

from testing.agent import Mishap
from testing.eventually import eventually
from testing.nodes import REGISTER, gpu, gpus, registered
from testing.pods import job, pod

LOCK = "hami.io/mutex.lock"
HANDSHAKE = "hami.io/node-handshake"
PHASE = "hami.io/bind-phase"


def unlocked(annotations):
    return LOCK not in annotations


@pytest.mark.installation
def test_a_job_of_forty_pods_on_one_node(sandbox):
    sandbox.add_gpu_node("n0", *gpus(8))
    sandbox.create(job("train", pod("_", gpu=1, gpumem=8000, gpucores=10), count=40))
    sandbox.kube.wait(
        "Job",
        lambda jobs: jobs["train"]["status"].get("succeeded") == 40,
        sandbox.namespace,
        what="40 pods have run",
    )
    pods = sandbox.kube.list("Pod", sandbox.namespace)
    assert [item["metadata"]["annotations"][PHASE] for item in pods] == ["success"] * 40
    failed = [
        message
        for item in pods
        for message in sandbox.events(item["metadata"]["name"], "BindingFailed")
    ]
    assert failed == []


def test_binds_to_one_node_are_queued(sandbox, agent):
    """A slow plugin delays its node; no bind fails."""
    agent.delay = 0.3
    sandbox.add_gpu_node("n0", *gpus(2))
    sandbox.create_all([pod(f"p{number}", gpu=1, gpumem=8000) for number in range(10)], clients=1)
    assert len(sandbox.started()) == 10
    assert [
        message for number in range(10) for message in sandbox.events(f"p{number}", "BindingFailed")
    ] == []


@pytest.mark.installation
def test_a_node_is_removed_and_comes_back(sandbox):
    sandbox.add_gpu_nodes({"n0": [gpu()], "n1": [gpu()]})
    sandbox.create(pod("a", gpu=1, gpumem=60_000))
    (node,) = sandbox.started().values()
    sandbox.remove_node(node)
    sandbox.create(pod("b", gpu=1, gpumem=60_000))
    (other,) = {"n0", "n1"} - {node}
    assert sandbox.started()["b"] == other
    sandbox.create(pod("c", gpu=1, gpumem=60_000))
    sandbox.refusal("c")
    sandbox.delete("a")
    sandbox.restore_node(node)
    assert sandbox.started(wait_for=2)["c"] == node


def test_a_node_that_comes_back_still_holds_its_pods(sandbox):
    sandbox.add_gpu_node("n0")
    sandbox.create(pod("a", gpu=1, gpumem=60_000))
    sandbox.started()
    sandbox.remove_node("n0")
    sandbox.restore_node("n0")
    sandbox.create(pod("b", gpu=1, gpumem=60_000))
    assert sandbox.refusal("b", "too little free memory")


def test_cards_that_appear_are_used(sandbox):
    sandbox.add_gpu_node("n0", gpu(memory_mib=8000))
    sandbox.create(pod("a", gpu=2, gpumem=6000))
    sandbox.refusal("a")
    sandbox.register("n0", gpu(memory_mib=8000), gpu(memory_mib=8000))
    assert sandbox.started() == {"a": "n0"}


def test_an_unhealthy_card_gets_no_more_pods(sandbox, scheduler):
    sandbox.add_gpu_node("n0", gpu())
    sandbox.create(pod("a", gpu=1, gpumem=1000))
    sandbox.started()
    sandbox.register("n0", gpu(memory_mib=81_919, healthy=False))
    size = rf'^hami_gpu_memory_limit_bytes{{.*"{sandbox.uuid("n0")}".*}} (\S+)$'

    def is_seen() -> bool:
        found = re.search(size, scheduler.metrics(), re.MULTILINE)
        return found is not None and float(found[1]) == 81_919 * 2**20

    eventually(is_seen, "the scheduler has read the node")
    sandbox.create(pod("b", gpu=1, gpumem=1000))
    assert sandbox.refusal("b", "unhealthy")


@pytest.mark.installation
def test_the_scheduler_asks_a_new_node(sandbox):
    sandbox.add_gpu_node("n0")
    asked = sandbox.wait_node(
        "n0", lambda annotations: annotations.get(HANDSHAKE), what="the scheduler asks the node"
    )
    assert asked.startswith("Requesting_")


def test_an_old_plugin_that_reports_is_understood(sandbox, agent):
    agent.answers_handshake = True
    sandbox.add_gpu_node("n0")
    sandbox.wait_node(
        "n0",
        lambda annotations: annotations.get(HANDSHAKE, "").startswith("Reported"),
        what="the plugin answers",
    )
    sandbox.create(pod("a", gpu=1, gpumem=1000))
    assert sandbox.started() == {"a": "n0"}


@pytest.mark.parametrize(
    "stale", ["Deleted_2024.11.19 03:10:32", "Requesting_2020.01.01 00:00:00", "who knows"]
)
def test_a_node_recovers_from_any_handshake(sandbox, stale):
    sandbox.add_gpu_node("n0", annotations={HANDSHAKE: stale})
    sandbox.create(pod("a", gpu=1, gpumem=1000))
    assert sandbox.started() == {"a": "n0"}


def test_a_node_registered_in_the_old_text_form(sandbox):
    sandbox.add_gpu_node("n0", gpu())
    card = registered("x", [gpu()])[0]
    uuid = sandbox.uuid("n0")
    sandbox.annotate_node(
        "n0", {REGISTER: f"{uuid},10,{card.memory_mib},100,NVIDIA-{card.model},0,true:"}
    )
    sandbox.create(pod("a", gpu=1, gpumem=1000))
    assert sandbox.started() == {"a": "n0"}


def test_one_garbled_node_does_not_hide_the_others(sandbox):
    sandbox.add_gpu_nodes({"good": [gpu()], "bad": [gpu()]})
    sandbox.annotate_node("bad", {REGISTER: '[{"id": 7, "devmem": "much"}, null'})
    sandbox.node_event("bad", "InventoryUnreadable")
    sandbox.create(pod("a", gpu=1, gpumem=1000))
    assert sandbox.started() == {"a": "good"}
    sandbox.annotate_node("bad", {REGISTER: None})


def test_a_silent_plugin_blocks_only_its_own_node(sandbox, agent):
    sandbox.add_gpu_nodes({"n0": [gpu()], "n1": [gpu()]})
    agent.mishap = lambda namespace, name: Mishap.DIES_BEFORE if name == "stuck" else None
    sandbox.create(pod("stuck", gpu=1, gpumem=1000))
    (held,) = sandbox.bound().values()
    (free,) = {"n0", "n1"} - {held}
    sandbox.create(
        pod("next", gpu=1, gpumem=1000, annotations={"hami.io/node-scheduler-policy": "spread"})
    )
    assert sandbox.started(wait_for=1) == {"next": free}
    sandbox.delete("stuck")
    sandbox.wait_node(held, unlocked, what="the lock of a pod that is gone is released")


def test_deleting_the_lock_holder_unblocks_the_next_pod(sandbox, agent):
    sandbox.add_gpu_node("n0")
    agent.mishap = lambda namespace, name: Mishap.DIES_BEFORE if name == "stuck" else None
    sandbox.create(pod("stuck", gpu=1, gpumem=1000))
    sandbox.bound()
    sandbox.create(pod("next", gpu=1, gpumem=1000))
    sandbox.delete("stuck")
    assert sandbox.started() == {"next": "n0"}


@pytest.mark.installation
def test_a_failed_allocation_frees_the_node(sandbox, agent):
    sandbox.add_gpu_node("n0")
    agent.mishap = lambda namespace, name: Mishap.FAILS if name == "broken" else None
    sandbox.create(pod("broken", gpu=1, gpumem=1000))
    sandbox.bound()
    sandbox.create(pod("next", gpu=1, gpumem=1000))
    assert sandbox.started(wait_for=1) == {"next": "n0"}
    assert sandbox.pod("broken")["metadata"]["annotations"][PHASE] == "failed"


@pytest.mark.flags(node_lock_timeout="15s")
@pytest.mark.parametrize(
    "mishap",
    [Mishap.DIES_BEFORE, Mishap.DIES_HALFWAY, Mishap.DIES_UNLOCKED],
    ids=lambda mishap: mishap.name,
)
def test_the_lock_of_a_dead_plugin_expires(sandbox, agent, mishap):
    """After the timeout the allocation of the holder is revoked, and the next pod takes the lock."""
    sandbox.add_gpu_node("n0")
    agent.mishap = lambda namespace, name: mishap if name == "stuck" else None
    sandbox.create(pod("stuck", gpu=1, gpumem=1000))
    sandbox.bound()
    sandbox.create(pod("next", gpu=1, gpumem=1000))
    sandbox.kube.wait(
        "Pod",
        lambda pods: pods["next"]["metadata"].get("annotations", {}).get(PHASE) == "success",
        sandbox.namespace,
        what="the next pod has its devices",
    )
    expected = "success" if mishap is Mishap.DIES_UNLOCKED else "failed"
    assert sandbox.pod("stuck")["metadata"]["annotations"][PHASE] == expected


def test_a_pod_that_waits_for_quota_is_placed_when_the_quota_is_raised(sandbox):
    """kube-scheduler does not retry when a quota changes."""
    sandbox.add_gpu_node("gpu-0", gpu(memory_mib=80_000))
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": "50000"}},
    }
    sandbox.kube.create(quota, sandbox.namespace)
    sandbox.create(
        pod("half", gpu=1, percent=50)
    )  # only the filter knows the memory of a percentage
    sandbox.started()
    sandbox.create(pod("more", gpu=1, percent=50))
    sandbox.refusal("more", "the quota of the namespace")
    sandbox.kube.merge_patch(
        "ResourceQuota",
        "gpus",
        {"spec": {"hard": {"limits.nvidia.com/gpumem": "80000"}}},
        sandbox.namespace,
    )
    assert sandbox.started() == {"half": "gpu-0", "more": "gpu-0"}
