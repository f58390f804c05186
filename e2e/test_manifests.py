"""The API server accepts all objects of every overlay of manifests/, and they do what they are for.

``crds.yaml`` defines the types that Kubernetes does not have.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testing.accounts import may
from testing.cluster import MANIFESTS, LocalCluster
from testing.eventually import eventually
from testing.kustomize import FOLDER, OVERLAYS, build, elsewhere
from testing.pods import pod

Object = dict[str, Any]
SINCE = {"dra": (1, 34), "admission-policies": (1, 36)}
"""Earlier API servers do not know their types."""
COMPONENTS = [
    pytest.param(path.parent, marks=[pytest.mark.since(*SINCE.get(path.parent.name, (1, 0)))])
    for path in sorted(FOLDER.glob("components/*/kustomization.yaml"))
]
CONFIG = "ConfigMap/hami-kube-scheduler-"
CRDS = Path(__file__).with_name("crds.yaml")


def names(items: list[Object]) -> set[str]:
    return {f"{item['kind']}/{item['metadata']['name']}" for item in items}


def try_out(local: LocalCluster, folder: Path) -> set[str]:
    """Applies *folder* as a dry run; returns kind and name of all objects. Raises: CalledProcessError."""
    taken = local.kubectl(
        "apply",
        "-k",
        str(folder),
        "--server-side",
        "--field-manager=e2e",
        "--force-conflicts",
        "--dry-run=server",
        "--validate=strict",
        "-o",
        "json",
    )
    decoder, items, at = json.JSONDecoder(), [], 0
    while at < len(taken.rstrip()):  # a sequence of documents, or a list
        item, at = decoder.raw_decode(taken, at)
        items += item["items"] if item["kind"] == "List" else [item]
        at += len(taken[at:]) - len(taken[at:].lstrip())
    return names(items)


@pytest.fixture(scope="module")
def types(local: LocalCluster) -> Iterator[None]:
    """The types of other projects."""
    local.add_types(CRDS)
    yield
    local.kubectl("delete", "-f", str(CRDS))


@pytest.mark.parametrize("folder", [MANIFESTS, *OVERLAYS], ids=lambda folder: folder.name)
def test_the_api_server_takes_the_whole_overlay(local, types, folder):
    assert try_out(local, folder) == names(build(folder))


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda folder: folder.name)
def test_the_api_server_takes_the_base_with_a_component(local, types, tmp_path, component):
    # kustomize requires relative paths
    (tmp_path / "manifests").symlink_to(FOLDER)
    here = Path(*[".."] * (len(tmp_path.resolve().parts) - 1))
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "resources": [f"{here}{MANIFESTS.resolve()}"],
                "components": [f"{here}{component.resolve()}"],
            }
        )
    )
    taken, base = try_out(local, tmp_path), names(build(MANIFESTS))
    (config,) = (
        name for name in taken if name.startswith(CONFIG)
    )  # with a hash, since a component may replace it
    assert taken > {config if name.startswith(CONFIG) else name for name in base} - {
        "MutatingWebhookConfiguration/hami-webhook"
    }


def test_the_api_server_rejects_an_invalid_manifest(local, types, tmp_path):
    wrong = {
        "apiVersion": "cert-manager.io/v1",
        "kind": "Certificate",
        "metadata": {"name": "a", "namespace": "default"},
        "spec": {"secretName": "a", "issuerRef": {"name": "b"}, "dnsName": "c"},
    }
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(wrong))
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({"resources": ["wrong.yaml"]}))
    with pytest.raises(subprocess.CalledProcessError) as error:
        try_out(local, tmp_path)
    assert "dnsName" in error.value.stderr


def test_the_upgrade_gives_the_accounts_of_the_chart_their_rights(local, tmp_path):
    """In a namespace where the accounts have no others."""
    built = elsewhere(tmp_path, FOLDER / "overlays" / "upgrade-from-hami")
    bound = [item for item in built if item["metadata"]["name"].startswith("hami-upstream-")]
    roles = {item["roleRef"]["name"] for item in bound}
    items = [
        *bound,
        *(
            item
            for item in built
            if item["kind"] == "ClusterRole" and item["metadata"]["name"] in roles
        ),
    ]
    try:
        for item in items:
            local.kube.apply(item)
        for name, verb in (
            ("hami-scheduler", "write"),
            ("hami-device-plugin", "write-on-own-node"),
        ):
            user = f"system:serviceaccount:hami-system:{name}"
            for resource in ("allocations", "registrations"):
                asked = {"group": "hami.io", "resource": resource, "verb": verb}
                eventually(
                    lambda user=user, asked=asked: may(local.kube, user, **asked),
                    f"{user} may {verb} {resource}",
                )
            assert not may(local.kube, user, group="hami.io", resource="webhook", verb="skip")
    finally:
        for item in items:
            local.kube.delete(item["kind"], item["metadata"]["name"])


@pytest.mark.parametrize("name", ["hami-device-plugin-next", "hami-monitor-next"])
def test_our_pods_of_a_node_wait_for_that_of_the_chart_to_leave(local, sandbox, name):
    """The plugin and the monitor of the chart are in one pod."""
    sandbox.add_gpu_node("n0")
    (daemon,) = (
        item
        for item in build(FOLDER / "overlays" / "upgrade-from-hami")
        if item["kind"] == "DaemonSet" and item["metadata"]["name"] == name
    )
    template = daemon["spec"]["template"]
    charts = {
        "app.kubernetes.io/component": "hami-device-plugin",
        "app.kubernetes.io/name": "hami",
        "app.kubernetes.io/instance": "hami",
    }
    ours = pod("ours", labels=template["metadata"]["labels"], scheduler="hami-scheduler")
    ours["spec"]["affinity"] = template["spec"]["affinity"]
    sandbox.create(pod("charts", labels=charts, scheduler="hami-scheduler"))
    assert sandbox.bound() == {"charts": "n0"}
    sandbox.create(ours)
    sandbox.event("ours", "FailedScheduling", "anti-affinity")
    sandbox.delete("charts")
    assert sandbox.bound() == {"ours": "n0"}
