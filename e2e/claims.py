"""Claims as users write them, and what an administrator installs for them."""

from __future__ import annotations

import contextlib
from typing import Any

import jsonpatch
import yaml

from e2e import binaries
from e2e.cluster import MANIFESTS
from e2e.device_plugin import DevicePlugin
from e2e.eventually import eventually
from e2e.kube import ApiError, Kube, path_of
from e2e.pods import pod
from e2e.scheduler import Certificates, webhook_configuration
from hami.codec.claims import render_claim_spec
from hami.codec.slices import DRIVER
from hami.model import DevicePolicy, Request, Selector

__all__ = ["ALLOCATE", "FIRST", "TIMEOUT_S", "TRANSLATE", "call_webhooks", "claiming", "class_and_rights", "component",
           "dry_run", "missing", "share", "spec_of", "template", "wait_called", "wait_published"]

Object = dict[str, Any]
COMPONENT = MANIFESTS.parent / "components" / "dra"
TRANSLATE = MANIFESTS.parent / "components" / "dra-translate"
ALLOCATE = MANIFESTS.parent / "components" / "dra-allocate"
TIMEOUT_S = 90  # of a wait on a busy machine, such as until another replica leads
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


def call_webhooks(kube: Kube, certificates: Certificates, port: int) -> None:
    """Applies the webhooks for claims with the address of a process on this machine."""
    base = yaml.safe_load((MANIFESTS / "webhook.yaml").read_text())
    patches = yaml.safe_load((TRANSLATE / "webhooks" / "kustomization.yaml").read_text())["patches"]
    (operations,) = (patch["patch"] for patch in patches if patch["target"]["kind"] == "MutatingWebhookConfiguration")
    patched = jsonpatch.apply_patch(base, yaml.safe_load(operations))
    kube.apply(webhook_configuration(certificates, port, configuration=patched))


def wait_called(kube: Kube) -> None:
    """Waits until the API server calls the webhooks for claims. It applies a new configuration with a delay."""
    probe = pod("probe", gpu=1, gpumem=1, labels={"hami.io/door": "dra"})

    def is_called() -> bool:
        with contextlib.suppress(ApiError):
            return "resourceClaims" in dry_run(kube, "default", probe)["spec"]
        return False

    eventually(is_called, "the API server calls the webhooks", timeout=TIMEOUT_S)


def dry_run(kube: Kube, namespace: str, item: Object) -> Object:
    """Returns *item* as it would be created. Raises: ApiError."""
    return kube.call("POST", path_of(item["kind"], namespace), item, query={"dryRun": "All"})
