"""NVIDIA's GPU Operator replaces the driver of a node: device plugin and monitor leave, and come back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from testing.cluster import MANIFESTS
from testing.nodes import gpu
from testing.sandbox import LABEL, Sandbox
from testing.yaml_text import read_documents

Object = dict[str, Any]
STATE, CLIENT = "nvidia.com/gpu-driver-upgrade-state", "nvidia.com/gpu.deploy.client"
UPGRADE = (
    "upgrade-required",
    "cordon-required",
    "wait-for-jobs-required",
    "pod-deletion-required",
    "drain-required",
    "pod-restart-required",
    "validation-required",
    "uncordon-required",
    "upgrade-done",
)


@pytest.fixture(params=["device-plugin", "monitor"])
def daemon(request: pytest.FixtureRequest, sandbox: Sandbox) -> Iterator[str]:
    """The shipped DaemonSet, on the nodes of the sandbox, with the label of the component gpu-operator-client."""
    sandbox.add_gpu_node("n0", gpu(), labels={CLIENT: "true"})
    documents = read_documents((MANIFESTS / f"{request.param}.yaml").read_text())
    (item,) = [document for document in documents if document["kind"] == "DaemonSet"]
    item["metadata"] = {"name": "daemon"}
    spec = item["spec"]["template"]["spec"]
    spec["nodeSelector"] = {LABEL: sandbox.namespace, CLIENT: "true"}
    spec["schedulerName"] = "hami-scheduler"
    del spec["serviceAccountName"]
    del spec["priorityClassName"]
    sandbox.kube.create(item, sandbox.namespace)
    yield request.param
    sandbox.kube.delete("DaemonSet", "daemon", sandbox.namespace)


def wait_there(sandbox: Sandbox, count: int, what: str) -> None:
    def judged(pods: dict[str, Object]) -> bool:
        staying = [item for item in pods.values() if "deletionTimestamp" not in item["metadata"]]
        return len(staying) == count

    sandbox.kube.wait("Pod", judged, sandbox.namespace, what=f"{count} pods: {what}")


def test_the_daemons_leave_while_the_driver_is_replaced(sandbox: Sandbox, daemon: str) -> None:
    """They stay while the upgrade of the node waits for its turn, or for jobs, whose containers may start again."""
    for state in UPGRADE:
        sandbox.label_node("n0", {STATE: state})
        is_away = state in ("pod-deletion-required", "drain-required", "pod-restart-required")
        wait_there(sandbox, 0 if is_away else 1, state)
    sandbox.label_node("n0", {STATE: None})
    wait_there(sandbox, 1, "without the label")
    sandbox.label_node("n0", {CLIENT: "paused-for-driver-upgrade"})
    wait_there(sandbox, 0, "paused")
    sandbox.label_node("n0", {CLIENT: "true"})
    wait_there(sandbox, 1, "the label is back")
