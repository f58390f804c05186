"""Claims as users write them, and what an administrator installs for them."""

from __future__ import annotations

from typing import Any

import yaml

from e2e import binaries
from e2e.cluster import MANIFESTS
from e2e.device_plugin import DevicePlugin
from e2e.eventually import eventually
from e2e.kube import Kube
from hami.codec.claims import render_claim_spec
from hami.codec.slices import DRIVER
from hami.model import DevicePolicy, Request, Selector

__all__ = ["FIRST", "claiming", "class_and_rights", "component", "missing", "share", "spec_of", "template",
           "wait_published"]

Object = dict[str, Any]
COMPONENT = MANIFESTS.parent / "components" / "dra"
FIRST = (1, 36)  # the version of Kubernetes that has all of it without feature gates


def missing() -> str:
    """Returns why this Kubernetes has no claims for cards; empty if it has. Raises: BinariesMissing."""
    programs = binaries.find()
    return "" if programs.minor >= FIRST else f"claims need Kubernetes 1.36, this is {programs.kube_version}"


def component() -> list[Object]:
    """Returns what the component installs: the class of cards, rights, policies."""
    return [item for name in ("device-class", "rbac", "policies")
            for item in yaml.safe_load_all((COMPONENT / f"{name}.yaml").read_text())]


def class_and_rights(kube: Kube) -> None:
    """Installs the component, without policies."""
    for item in component():
        if not item["kind"].startswith("ValidatingAdmissionPolicy"):
            kube.apply(item)


def share(memory_mib: int, cores: int = 0) -> Request:
    """Returns the request for a part of a card."""
    return Request(vendor="NVIDIA", count=1, memory_mib=memory_mib, cores=cores)


def spec_of(**requests: Request) -> Object:
    """Returns the specification of a claim with a request for each container."""
    spec = render_claim_spec(requests, Selector(), DevicePolicy(()), ())
    assert isinstance(spec, dict), spec
    return spec


def template(name: str, spec: Object) -> Object:
    """Returns the template *name* of claims."""
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name},
            "spec": {"spec": spec}}


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
