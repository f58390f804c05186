"""Pods on a device that harms them are evicted, and replaced on another device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hami.codec.health import DeviceHealth, render_device_health
from hami.codec.keys import DEVICE_HEALTH
from testing.cluster import MANIFESTS
from testing.kube import ApiError, path_of
from testing.nodes import gpus
from testing.pods import pod, replica_set
from testing.sandbox import Sandbox
from testing.scheduler import Scheduler, account_token
from testing.yaml_text import read_documents

Object = dict[str, Any]
COMPONENT = MANIFESTS.parent / "components" / "remediation"
FAULT = DeviceHealth(
    cause="the driver asks: reset the GPU", remedy="reset the GPU", harms_pods=True
)
pytestmark = [
    pytest.mark.flags(remediation="evict", remediation_after="1s", remediation_rate="60"),
    pytest.mark.usefixtures("rights"),
]


@pytest.fixture(scope="module")
def rights(local: Any) -> Iterator[None]:
    """The roles and policies of the component."""
    items = []
    for name in ("rbac.yaml", "policies.yaml"):
        items += read_documents((COMPONENT / name).read_text())
    for item in items:
        local.kube.apply(item)
    yield
    for item in items:
        local.kube.delete(item["kind"], item["metadata"]["name"])


@pytest.fixture
def replicas(sandbox: Sandbox) -> Iterator[list[str]]:
    """Two pods of a ReplicaSet, each alone on one of four devices."""
    sandbox.add_gpu_node("n0", *gpus(4))
    sandbox.create(replica_set("r", pod("r", gpu=1, gpumem=70_000), count=2))
    yield sorted(sandbox.started(wait_for=2))
    sandbox.kube.delete("ReplicaSet", "r", sandbox.namespace)


def fail_device(sandbox: Sandbox, name: str) -> str:
    """Makes the device of the pod *name* one that harms it, and returns its UUID."""
    (card,) = sandbox.cards(name)
    node, _, index = card.partition("/")
    uuid = sandbox.uuid(node, int(index))
    sandbox.annotate_node(node, {DEVICE_HEALTH: render_device_health({uuid: FAULT})})
    return uuid


def protect(sandbox: Sandbox) -> None:
    """Creates a PodDisruptionBudget that permits no eviction."""
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "r"}}}
    sandbox.kube.create(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "all"},
            "spec": spec,
        },
        sandbox.namespace,
    )


def test_a_pod_is_replaced_and_others_of_the_node_stay(
    sandbox: Sandbox, replicas: list[str], scheduler: Scheduler
) -> None:
    ill, well = replicas
    uuid = fail_device(sandbox, ill)

    def replaced(pods: dict[str, Object]) -> bool:
        return ill not in pods and well in pods and len(pods) == 2

    sandbox.kube.wait("Pod", replaced, sandbox.namespace, what=f"{ill} is replaced")
    assert uuid in sandbox.event(ill, "Evicted")
    sandbox.annotate_node("n0", {DEVICE_HEALTH: None})
    assert well in sandbox.started(wait_for=2)


def test_a_pod_without_a_controller_and_a_budget_are_respected(
    sandbox: Sandbox, replicas: list[str], scheduler: Scheduler
) -> None:
    protect(sandbox)
    ill, _ = replicas
    fail_device(sandbox, ill)
    assert "PodDisruptionBudget" in sandbox.event(ill, "NotEvicted")
    sandbox.create(pod("bare", gpu=1, gpumem=70_000))
    sandbox.started(wait_for=3)
    fail_device(sandbox, "bare")
    assert "no controller replaces it" in sandbox.event("bare", "NotEvicted")
    assert set(sandbox.started(wait_for=3)) == {*replicas, "bare"}
    sandbox.annotate_node("n0", {DEVICE_HEALTH: None})


def test_the_extender_evicts_only_pods_that_it_names_by_uid(
    sandbox: Sandbox, replicas: list[str], scheduler: Scheduler
) -> None:
    extender = sandbox.kube.with_token(account_token(sandbox.kube))
    name, _ = replicas

    def evict(**options: object) -> None:
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": sandbox.namespace},
            "deleteOptions": options,
        }
        extender.call("POST", path_of("Pod", sandbox.namespace, name, "eviction"), eviction)

    uid = {"uid": sandbox.pod(name)["metadata"]["uid"]}
    for options in ({}, {"preconditions": uid, "gracePeriodSeconds": 0}):
        with pytest.raises(ApiError, match="hami-remediation"):
            evict(**options)
    evict(preconditions=uid)
    extender.close()
