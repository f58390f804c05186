"""Pods that a kubelet has rejected for good, as after a reboot before the device plugin runs, and their controllers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from testing.nodes import gpu
from testing.pods import pod, replica_set
from testing.sandbox import Sandbox
from testing.scheduler import Scheduler

Object = dict[str, Any]
MESSAGE = (
    "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices "
    "nvidia.com/gpu, which is unexpected"
)


def reject(sandbox: Sandbox, name: str) -> None:
    """Writes what a kubelet writes that has no healthy devices when it starts, after kwok has written its part."""
    sandbox.wait_phase("Running", name)
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": MESSAGE}
    sandbox.kube.merge_patch(
        "Pod", name, {"status": status}, sandbox.namespace, subresource="status"
    )


def wait_gated(sandbox: Sandbox, count: int) -> None:
    """Waits until the ReplicaSet has created *count* pods that wait for `ungate`."""
    sandbox.kube.wait(
        "Pod",
        lambda pods: sum("schedulingGates" in item["spec"] for item in pods.values()) == count,
        sandbox.namespace,
        what=f"{count} pods are gated",
    )


def ungate(sandbox: Sandbox) -> None:
    """Lets kube-scheduler place all pods that wait for it."""
    for item in sandbox.kube.list("Pod", sandbox.namespace):
        if item["spec"].get("schedulingGates"):
            sandbox.kube.merge_patch(
                "Pod",
                item["metadata"]["name"],
                {"spec": {"schedulingGates": None}},
                sandbox.namespace,
            )


def phases(pods: dict[str, Object]) -> list[str]:
    return sorted(item["status"]["phase"] for item in pods.values())


@pytest.fixture
def replicas(sandbox: Sandbox) -> Iterator[list[str]]:
    """The names of two pods of a ReplicaSet that run, each with more than half of the memory of a GPU. Those that
    replace them wait for `ungate`."""
    sandbox.add_gpu_node("n0", gpu(), gpu())
    template = pod("r", gpu=1, gpumem=50_000)
    template["spec"]["schedulingGates"] = [{"name": "hami-e2e/gate"}]
    sandbox.create(replica_set("r", template, count=2))
    wait_gated(sandbox, 2)
    ungate(sandbox)
    yield list(sandbox.started(wait_for=2))
    sandbox.kube.delete("ReplicaSet", "r", sandbox.namespace)


def test_rejected_pods_go_when_their_replacements_run_and_those_without_an_owner_are_told(
    sandbox: Sandbox, replicas: list[str], scheduler: Scheduler
) -> None:
    sandbox.create(pod("bare", gpu=1, gpumem=1000))
    sandbox.started(wait_for=3)
    for name in (*replicas, "bare"):
        reject(sandbox, name)
    wait_gated(sandbox, 2)
    ungate(sandbox)
    sandbox.kube.wait(
        "Pod",
        lambda pods: phases(pods) == ["Failed", "Running", "Running"],
        sandbox.namespace,
        what="the rejected pods of the ReplicaSet are gone, and no other",
    )
    assert not set(replicas) & set(sandbox.bound(3))
    assert "Deployment or Job, or with a claim" in sandbox.event("bare", "DevicesNotReady")
    assert replicas[0] in sandbox.event("r", "RejectedPodDeleted", replicas[0])


def test_a_rejected_pod_stays_while_its_replacement_waits(
    sandbox: Sandbox, replicas: list[str], scheduler: Scheduler
) -> None:
    """One of the two cards becomes too small for the second replacement, and is large again later."""
    sandbox.create(pod("other", gpu=2, gpumem=25_000))
    sandbox.started(wait_for=3)
    sandbox.create(pod("more", gpu=1, gpumem=50_000))
    for name in replicas:
        reject(sandbox, name)
    wait_gated(sandbox, 2)
    sandbox.wait_phase("Running", "more")  # in the place of a rejected pod
    ungate(sandbox)
    sandbox.kube.wait(
        "Pod",
        lambda pods: phases(pods) == ["Failed", "Pending", "Running", "Running", "Running"],
        sandbox.namespace,
        what="one of the rejected pods is left, for the replacement that waits",
    )
    sandbox.delete("more")
    sandbox.kube.wait(
        "Pod",
        lambda pods: phases(pods) == ["Running"] * 3,
        sandbox.namespace,
        what="the last rejected pod is gone",
    )
