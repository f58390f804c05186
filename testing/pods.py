"""Builders of pods with defaults, so that a test names only what matters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["container", "init", "job", "pod", "replica_set", "sidecar"]

Object = dict[str, Any]
RESOURCES = {
    "gpu": "nvidia.com/gpu",
    "gpumem": "nvidia.com/gpumem",
    "percent": "nvidia.com/gpumem-percentage",
    "gpucores": "nvidia.com/gpucores",
    "priority": "nvidia.com/priority",
}


def container(name: str = "main", *, privileged: bool = False, **asked: int | str) -> Object:
    """Returns a container. *asked*: its limits as ``gpu``, ``gpumem`` (MiB), ``percent``, ``gpucores``, ``priority``,
    or as whole resource names (``**{"hygon.com/dcunum": 1}``).
    """
    limits = {RESOURCES.get(key, key): str(value) for key, value in asked.items()}
    made: Object = {"name": name, "image": "box:1", "command": ["sleep", "inf"]}
    if limits:
        made["resources"] = {"limits": limits}
    if privileged:
        made["securityContext"] = {"privileged": True}
    return made


def init(name: str = "init", **asked: int | str) -> Object:
    return container(name, **asked)


def sidecar(name: str = "sidecar", **asked: int | str) -> Object:
    return container(name, **asked) | {"restartPolicy": "Always"}


def pod(
    name: str,
    *,
    containers: Iterable[Object] | None = None,
    inits: Iterable[Object] = (),
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    scheduler: str | None = None,
    node_name: str | None = None,
    **asked: int | str,
) -> Object:
    """Returns a pod with one container that requests *asked*, or with *containers*."""
    spec: Object = {
        "containers": list(containers) if containers is not None else [container(**asked)],
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
    }
    if inits := list(inits):
        spec["initContainers"] = inits
    if scheduler is not None:
        spec["schedulerName"] = scheduler
    if node_name is not None:
        spec["nodeName"] = node_name
    metadata = {"name": name, "annotations": dict(annotations or {}), "labels": dict(labels or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def replica_set(name: str, template: Object, *, count: int) -> Object:
    """Returns a ReplicaSet of *count* pods like *template*, with the label ``app``. It takes over those that there
    are."""
    labels = {"app": name}
    metadata = {
        "annotations": template["metadata"]["annotations"],
        "labels": template["metadata"]["labels"] | labels,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": count,
            "selector": {"matchLabels": labels},
            "template": {"metadata": metadata, "spec": template["spec"]},
        },
    }


def job(name: str, template: Object, *, count: int) -> Object:
    """Returns a Job that runs *count* pods of *template* in parallel."""
    spec = {**template["spec"], "restartPolicy": "Never"}
    metadata = {
        "annotations": template["metadata"]["annotations"],
        "labels": template["metadata"]["labels"],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completions": count,
            "parallelism": count,
            "backoffLimit": 0,
            "template": {"metadata": metadata, "spec": spec},
        },
    }
