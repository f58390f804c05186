"""Nodes whose device plugins need no lock: one write a pod, beside nodes with locks and after a change of the node."""

import pytest

from testing.cases import cases
from testing.eventually import eventually
from testing.nodes import LOCK_FREE, gpu, gpus
from testing.pods import pod
from testing.vendors import MUTEX, PHASE

TO_ALLOCATE, ALLOCATED = "hami.io/vgpu-devices-to-allocate", "hami.io/vgpu-devices-allocated"
SMALL = {"gpu": 1, "gpumem": 1000}


def notes(sandbox, name):
    return sandbox.pod(name)["metadata"]["annotations"]


def announce(sandbox, node, text):
    """The node says anew which vendors need no lock."""
    name = sandbox.node(node)["metadata"]["name"]
    sandbox.kube.merge_patch(
        "Node", name, {"metadata": {"annotations": dict.fromkeys(LOCK_FREE, text)}}
    )


def test_the_binding_says_that_the_pod_is_done(sandbox, agent):
    sandbox.add_gpu_node("n0", annotations=LOCK_FREE)
    served = agent.served
    sandbox.create(pod("a", **SMALL))
    sandbox.started()
    found = notes(sandbox, "a")
    assert found[PHASE] == "success"
    assert found[ALLOCATED]
    assert TO_ALLOCATE not in found
    assert MUTEX not in sandbox.node("n0")["metadata"]["annotations"]
    assert agent.served == served


@pytest.mark.installation
def test_pods_at_once_on_lock_free_and_other_nodes(sandbox):
    sandbox.add_gpu_nodes({f"free-{number}": gpus(2) for number in range(3)}, annotations=LOCK_FREE)
    sandbox.add_gpu_nodes({f"lock-{number}": gpus(2) for number in range(3)})
    sandbox.create_all([pod(f"p{number:02}", gpu=1, gpumem=20_000) for number in range(40)])
    placed = sandbox.started(wait_for=40)
    assert {node.partition("-")[0] for node in placed.values()} == {"free", "lock"}
    assert {name: TO_ALLOCATE in notes(sandbox, name) for name in placed} == {
        name: node.startswith("lock") for name, node in placed.items()
    }


@cases("before", ("to locks", "NVIDIA"), ("to lock-free", None))
def test_a_node_changes_under_running_pods(sandbox, before):
    sandbox.add_gpu_node("n0", gpu(slots=40), annotations=LOCK_FREE if before else None)
    sandbox.create_all([pod(f"early-{number}", **SMALL) for number in range(10)])
    announce(sandbox, "n0", None if before else "NVIDIA")
    sandbox.started(wait_for=10)
    probes = []

    def is_known() -> bool:
        probes.append(f"probe-{len(probes)}")
        sandbox.create(pod(probes[-1], **SMALL))
        sandbox.started(wait_for=10 + len(probes))
        return (TO_ALLOCATE in notes(sandbox, probes[-1])) is bool(before)

    eventually(is_known, "the scheduler knows of the change", interval=0.5)
    sandbox.create_all([pod(f"late-{number}", **SMALL) for number in range(10)])
    assert len(sandbox.started(wait_for=20 + len(probes))) == 20 + len(probes)
    assert (TO_ALLOCATE in notes(sandbox, "late-0")) is bool(before)


def test_the_lock_of_another_scheduler_does_not_hold_up_pods(sandbox, agent):
    sandbox.add_gpu_node("n0")
    agent.pause()
    sandbox.create(pod("waits", **SMALL))
    sandbox.bound()
    announce(sandbox, "n0", "NVIDIA")
    sandbox.create(pod("next", **SMALL))
    sandbox.bound(wait_for=2)
    assert notes(sandbox, "next")[PHASE] == "success"
    assert notes(sandbox, "waits")[PHASE] == "allocating"
    agent.resume()
    assert len(sandbox.started(wait_for=2)) == 2
