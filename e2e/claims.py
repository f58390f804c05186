"""Claims as users write them, and what an administrator installs for them."""

from __future__ import annotations

from typing import Any

import yaml

from e2e import binaries
from e2e.cluster import MANIFESTS
from e2e.device_plugin import DevicePlugin
from e2e.eventually import eventually
from e2e.kube import Kube

__all__ = ["claiming", "class_and_rights", "missing", "template", "wait_published"]

Object = dict[str, Any]
COMPONENT = MANIFESTS.parent / "components" / "dra"
FIRST = (1, 36)  # the version of Kubernetes that has all of it without feature gates
CLASS = DRIVER = "gpu.hami.io"


def missing() -> str:
    """Returns why this Kubernetes has no claims for cards; empty if it has. Raises: BinariesMissing."""
    programs = binaries.find()
    return "" if programs.minor >= FIRST else f"claims need Kubernetes 1.36, this is {programs.kube_version}"


def class_and_rights(kube: Kube) -> None:
    """Installs the class of cards, and what a device plugin may do with claims."""
    for name in ("device-class", "rbac"):
        for item in yaml.safe_load_all((COMPONENT / f"{name}.yaml").read_text()):
            kube.apply(item)


def template(name: str, memory_mib: int, cores: int = 0, request: str = "main") -> Object:
    """Returns the template *name* of claims for a part of a card."""
    amounts = {"memory": f"{memory_mib}Mi", "cores": str(cores)}
    wanted = {"name": request, "exactly": {"deviceClassName": CLASS, "capacity": {"requests": amounts}}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name},
            "spec": {"spec": {"devices": {"requests": [wanted]}}}}


def claiming(item: Object, name: str) -> Object:
    """Returns the pod *item* with a claim of the template *name*, of which each container uses its own request."""
    containers = [{**one, "resources": {
        **one.get("resources", {}), "claims": [{"name": "gpu", "request": one["name"]}]}}
        for one in item["spec"]["containers"]]
    return {**item, "spec": {**item["spec"], "containers": containers,
                             "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}]}}


def wait_published(plugin: DevicePlugin) -> None:
    """Waits until kube-scheduler can allocate the cards of *plugin*, and the kubelet prepare them."""
    plugin.wait_registered()

    def is_published(slices: dict[str, Object]) -> bool:
        return any(item["spec"]["driver"] == DRIVER and item["spec"].get("nodeName") == plugin.node.name
                   for item in slices.values())

    plugin.node.kube.wait("ResourceSlice", is_published, what="the slice of the node")
    eventually(lambda: plugin.readiness()[0] == 200, lambda: f"ready:\n{plugin.log()[-3000:]}", timeout=30)
