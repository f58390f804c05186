"""Claims as users write them, and what an administrator installs for them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import jsonpatch

from hami.codec.claim_spec import render_claim_spec
from hami.codec.documents import parse_own_yaml
from hami.codec.slices import DRIVER
from hami.model import Request, Selector
from testing import binaries
from testing.cluster import MANIFESTS, LocalCluster
from testing.device_plugin import Card, DevicePlugin
from testing.eventually import WaitTimeout, eventually
from testing.kube import ApiError, Kube
from testing.pods import pod
from testing.realnode import RealNode
from testing.sandbox import Sandbox
from testing.scheduler import Certificates, Scheduler, install, webhook_configuration
from testing.yaml_text import read_documents

__all__ = [
    "ALLOCATE",
    "FIRST",
    "SLOTS_PER_POD",
    "call_webhooks",
    "claiming",
    "class_and_rights",
    "component",
    "emptied",
    "in_mig_mode",
    "installed",
    "instances",
    "missing",
    "nudged",
    "refused",
    "running",
    "serving",
    "share",
    "spec_of",
    "specifications",
    "template",
    "wait_called",
    "wait_published",
]

Object = dict[str, Any]
T = TypeVar("T")
COMPONENT = MANIFESTS.parent / "components" / "dra"
ALLOCATE = MANIFESTS.parent / "components" / "dra-allocate"
CDI = "/run/cdi"
ATTEMPTS = 30  # until pods do what they shall, each of ten seconds
FIRST = (1, 36)  # the version of Kubernetes that has all of it without feature gates
SLOTS_PER_POD = 2
"""Slots for each of the pods with claims that are created at once. kube-scheduler counts a claim twice while it writes
its allocation, so the pods that need the last slots may wait for five minutes (docs/troubleshooting.md)."""


def missing() -> str:
    """Returns why this Kubernetes has no claims for cards; empty if it has. Raises: BinariesMissing."""
    programs = binaries.find()
    return (
        ""
        if programs.minor >= FIRST
        else f"claims need Kubernetes 1.36, this is {programs.kube_version}"
    )


def component() -> list[Object]:
    """Returns what the component installs: the class of cards, rights, policies."""
    return [
        item
        for name in ("device-class", "rbac", "policies")
        for item in read_documents((COMPONENT / f"{name}.yaml").read_text())
    ]


def class_and_rights(kube: Kube) -> None:
    """Installs the component, without policies."""
    for item in component():
        if not item["kind"].startswith("ValidatingAdmissionPolicy"):
            kube.apply(item)


def installed(cluster: LocalCluster, certificates: Certificates, folder: Path) -> Path:
    """Installs HAMi with the component, and with that of *folder*, which gives pods claims. Returns the kubeconfig of
    the extender's account."""
    kubeconfig = install(cluster, certificates)
    for item in component():
        cluster.kube.apply(item)
    for name in ("policies", "rbac"):
        cluster.kube.apply_yaml((folder / f"{name}.yaml").read_text())
    return kubeconfig


@contextlib.contextmanager
def serving(
    cluster: LocalCluster, certificates: Certificates, kubeconfig: Path, dra: str
) -> Iterator[Scheduler]:
    """Runs a scheduler in the mode *dra*, whose webhooks for claims the API server calls."""
    scheduler = Scheduler(cluster, certificates, kubeconfig, dra=dra)
    try:
        call_webhooks(cluster.kube, certificates, scheduler.port)
        scheduler.start()
        wait_called(cluster.kube)
        yield scheduler
    finally:
        scheduler.close()


def share(memory_mib: int, cores: int = 0) -> Request:
    """Returns the request for a part of a card."""
    return Request(vendor="NVIDIA", count=1, memory_mib=memory_mib, cores=cores)


def spec_of(selector: Selector = Selector(), /, **requests: Request) -> Object:
    """Returns the specification of a claim with a request for each container, as of a pod with *selector*."""
    return render_claim_spec(requests, selector)


def template(name: str, spec: Object) -> Object:
    """Returns the template *name* of claims."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": spec},
    }


def claiming(item: Object, name: str) -> Object:
    """Returns the pod *item* with a claim of the template *name*, of which each container uses its own request."""
    containers = [
        {
            **one,
            "resources": {
                **one.get("resources", {}),
                "claims": [{"name": "gpu", "request": one["name"]}],
            },
        }
        for one in item["spec"]["containers"]
    ]
    return {
        **item,
        "spec": {
            **item["spec"],
            "containers": containers,
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}],
        },
    }


def wait_published(plugin: DevicePlugin) -> None:
    """Waits until kube-scheduler can allocate the cards of *plugin*, and the kubelet prepare them."""
    plugin.wait_registered()

    def is_published(slices: dict[str, Object]) -> bool:
        return len(plugin.cards) <= sum(
            len(item["spec"].get("devices", ()))
            for item in slices.values()
            if item["spec"]["driver"] == DRIVER and item["spec"].get("nodeName") == plugin.node.name
        )

    plugin.node.kube.wait("ResourceSlice", is_published, what="all cards of the node")
    eventually(lambda: plugin.readiness()[0] == 200, lambda: f"ready:\n{plugin.log()[-3000:]}")


def call_webhooks(kube: Kube, certificates: Certificates, port: int) -> None:
    """Applies the webhooks for claims with the address of a process on this machine."""
    base = parse_own_yaml((MANIFESTS / "webhook.yaml").read_text())
    patched = jsonpatch.apply_patch(base, parse_own_yaml((ALLOCATE / "webhook.yaml").read_text()))
    kube.apply(webhook_configuration(certificates, port, configuration=patched))


def wait_called(kube: Kube) -> None:
    """Waits until the API server calls the webhooks for claims. It applies a new configuration with a delay."""
    probe = pod("probe", gpu=1, gpumem=1, labels={"hami.io/allocation-mode": "dra"})

    def is_called() -> bool:
        with contextlib.suppress(ApiError):
            return "resourceClaims" in kube.dry_run(probe, "default")["spec"]
        return False

    eventually(is_called, "the API server calls the webhooks")


def running(sandbox: Sandbox, *names: str) -> None:
    """Waits until pods run."""
    nudged(sandbox, names, lambda seconds: sandbox.running(*names, timeout=seconds))


def refused(sandbox: Sandbox, name: str, containing: str) -> str:
    """Waits until the kubelet says why it cannot prepare the claim of a pod; returns its message."""
    reason = "FailedPrepareDynamicResources"
    return nudged(
        sandbox, [name], lambda seconds: sandbox.event(name, reason, containing, timeout=seconds)
    )


def nudged(sandbox: Sandbox, names: Sequence[str], wait: Callable[[float], T]) -> T:
    """Returns what *wait*, which is given seconds, returns in time. Until then, the annotations of the pods change: the
    kubelet then tries again at once what has failed, else only after a minute. An API server that is late forbids it
    to read the claim of a new pod. The class changes, too: kube-scheduler then tries pods again that it may have
    forgotten, else only after five minutes.
    """
    _nudge(sandbox, "Pod", names, 0)
    for attempt in range(1, ATTEMPTS):
        try:
            return wait(10)
        except WaitTimeout as error:
            print(error)
        _nudge(sandbox, "Pod", names, attempt)
        _nudge(sandbox, "DeviceClass", [DRIVER], attempt)
    return wait(10)


def _nudge(sandbox: Sandbox, kind: str, names: Sequence[str], attempt: int) -> None:
    patch = {"metadata": {"annotations": {"hami-e2e/attempt": str(attempt)}}}
    for name in names:
        sandbox.kube.merge_patch(kind, name, patch, sandbox.namespace if kind == "Pod" else None)


def emptied(sandbox: Sandbox, real: RealNode) -> None:
    """Deletes all pods, and waits until the kubelet has unprepared their claims, and none is allocated: kube-scheduler
    may forget to try a pod again that came before."""
    sandbox.kube.delete_all("Pod", sandbox.namespace)
    eventually(
        lambda: not specifications(real), lambda: f"nothing is prepared: {specifications(real)}"
    )
    sandbox.kube.wait(
        "ResourceClaim",
        lambda found: not any(item.get("status", {}).get("allocation") for item in found.values()),
        sandbox.namespace,
        what="no claim is allocated",
    )


def in_mig_mode(card: Card) -> Card:
    """Returns *card* with two profiles of MIG instances."""
    profiles = [
        {
            "name": "1g.10gb",
            "memory": 9728,
            "cores": 15,
            "slices": 1,
            "placements": [{"start": start, "size": 1} for start in range(7)],
        },
        {
            "name": "3g.40gb",
            "memory": 40_192,
            "cores": 43,
            "slices": 3,
            "placements": [{"start": start, "size": 4} for start in (0, 4)],
        },
    ]
    return replace(card, mig={"enabled": True, "profiles": profiles})


def instances(real: RealNode) -> dict[str, tuple[str, int]]:
    """Returns profile and place of the MIG instances that exist on the node, by UUID."""
    found = json.loads((real.folder / "cards.yaml.state").read_text())["instances"]
    return {each["uuid"]: (each["profile"], each["start"]) for each in found}


def specifications(real: RealNode) -> list[str]:
    """Returns the names of the specifications of claims that are prepared on the node."""
    return sorted(path.name for path in real.path(CDI).glob("hami.io-claim-*.json"))
