"""Pods that a test places by itself, with the annotations and locks of a scheduler."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from testing.eventually import eventually
from testing.realnode import RealNode
from testing.sandbox import Sandbox

__all__ = ["LOCK", "Part", "place", "place_as_upstream", "share_text"]

Object = dict[str, Any]
ALLOCATED = "hami.io/vgpu-devices-allocated"
LOCK = "hami.io/mutex.lock"
LOCK_FREE = "hami.io/lock-free"
PHASE = "hami.io/bind-phase"
REMAINING = "hami.io/vgpu-devices-to-allocate"
NOBODY = "a-scheduler-that-does-not-exist"


class Part(NamedTuple):
    """A part of a GPU."""

    card: str
    memory_mib: int
    cores: int = 0


def share_text(*containers: Sequence[Part]) -> str:
    """Returns an allocation in the form of the annotation."""
    return "".join(
        "".join(f"{one.card},NVIDIA,{one.memory_mib},{one.cores}:" for one in parts) + ";"
        for parts in containers
    )


def place(sandbox: Sandbox, node: RealNode, item: Object, *containers: Sequence[Part]) -> None:
    """Binds the pod *item* in the way of our scheduler on a lock-free node: one write."""
    bind(
        sandbox,
        node,
        unscheduled(sandbox, item),
        assigned(node, share_text(*containers)) | {PHASE: "success"},
    )


def place_as_upstream(
    sandbox: Sandbox, node: RealNode, item: Object, *containers: Sequence[Part]
) -> None:
    """Binds the pod *item* as HAMi v2.10's scheduler does: it waits until the node is unlocked."""
    name, text = unscheduled(sandbox, item), share_text(*containers)

    def annotate(values: dict[str, str]) -> None:
        sandbox.kube.merge_patch(
            "Pod", name, {"metadata": {"annotations": values}}, sandbox.namespace
        )

    annotate(assigned(node, text) | {REMAINING: text})
    eventually(
        lambda: LOCK not in (node.node()["metadata"].get("annotations") or {}),
        "the node is unlocked",
        interval=0.02,
    )
    held = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ},{sandbox.namespace},{name}"
    sandbox.kube.merge_patch("Node", node.name, {"metadata": {"annotations": {LOCK: held}}})
    annotate({PHASE: "allocating", "hami.io/bind-time": f"{time.time():.0f}"})
    bind(sandbox, node, name, {})


def unscheduled(sandbox: Sandbox, item: Object) -> str:
    """Creates the pod *item*, which no webhook changes and no scheduler places; returns its name."""
    meta = item["metadata"] | {
        "labels": {**item["metadata"]["labels"], "hami.io/webhook": "ignore"}
    }
    sandbox.create({**item, "metadata": meta, "spec": item["spec"] | {"schedulerName": NOBODY}})
    return str(meta["name"])


def assigned(node: RealNode, text: str) -> dict[str, str]:
    return {
        "hami.io/vgpu-node": node.name,
        "hami.io/vgpu-time": f"{time.time():.0f}",
        ALLOCATED: text,
    }


def bind(sandbox: Sandbox, node: RealNode, name: str, annotations: dict[str, str]) -> None:
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "annotations": annotations},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node.name},
    }
    sandbox.kube.call(
        "POST", f"/api/v1/namespaces/{sandbox.namespace}/pods/{name}/binding", binding
    )
