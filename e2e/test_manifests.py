"""Every overlay of manifests/ builds, and the API server accepts all of its objects.

``crds.yaml`` defines the types that Kubernetes does not have.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.accounts import CLAIM_CONTROLLER, may
from e2e.cluster import MANIFESTS, LocalCluster
from e2e.eventually import eventually
from e2e.pods import pod
from e2e.sandbox import Sandbox

Object = dict[str, Any]
ROOT = MANIFESTS.parent
OVERLAYS = sorted(path.parent for path in ROOT.glob("overlays/*/kustomization.yaml"))
SINCE = {"dra": (1, 34), "admission-policies": (1, 36)}
"""Earlier API servers do not know their types."""
COMPONENTS = [
    pytest.param(path.parent, marks=[pytest.mark.since(*SINCE.get(path.parent.name, (1, 0)))])
    for path in sorted(ROOT.glob("components/*/kustomization.yaml"))
]
PAGES = [ROOT.parent / "README.md", ROOT.parent / "docs" / "installation.md"]
CONFIG = "ConfigMap/hami-kube-scheduler-"
CRDS = Path(__file__).with_name("crds.yaml")


def build(local: LocalCluster, folder: Path) -> list[Object]:
    return list(yaml.safe_load_all(local.kubectl("kustomize", str(folder))))


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
    local.kubectl("apply", "-f", str(CRDS))
    local.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(CRDS))
    yield
    local.kubectl("delete", "-f", str(CRDS))


@pytest.mark.parametrize("folder", [MANIFESTS, *OVERLAYS], ids=lambda folder: folder.name)
def test_the_api_server_takes_the_whole_overlay(
    local: LocalCluster, types: None, folder: Path
) -> None:
    assert try_out(local, folder) == names(build(local, folder))


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda folder: folder.name)
def test_the_api_server_takes_the_base_with_a_component(
    local: LocalCluster, types: None, tmp_path: Path, component: Path
) -> None:
    # kustomize requires relative paths
    (tmp_path / "manifests").symlink_to(ROOT)
    here = Path(*[".."] * (len(tmp_path.resolve().parts) - 1))
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "resources": [f"{here}{MANIFESTS.resolve()}"],
                "components": [f"{here}{component.resolve()}"],
            }
        )
    )
    taken, base = try_out(local, tmp_path), names(build(local, MANIFESTS))
    (config,) = (
        name for name in taken if name.startswith(CONFIG)
    )  # with a hash, since a component may replace it
    assert taken > {config if name.startswith(CONFIG) else name for name in base} - {
        "MutatingWebhookConfiguration/hami-webhook"
    }


def test_the_api_server_rejects_an_invalid_manifest(
    local: LocalCluster, types: None, tmp_path: Path
) -> None:
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


def elsewhere(local: LocalCluster, tmp_path: Path, folder: Path) -> list[Object]:
    """Builds the overlay *folder* in the namespace hami-system."""
    shutil.copytree(ROOT, tmp_path / "manifests")
    overlay = f"manifests/overlays/{folder.name}"
    within = [{"path": f"{overlay}/{file.name}"} for file in folder.glob("replacements.yaml")]
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump({"namespace": "hami-system", "resources": [overlay], "replacements": within})
    )
    text = local.kubectl("kustomize", str(tmp_path))
    assert "kube-system" not in text
    return list(yaml.safe_load_all(text))


@pytest.mark.parametrize("folder", OVERLAYS, ids=lambda folder: folder.name)
def test_another_namespace_reaches_every_reference(
    local: LocalCluster, tmp_path: Path, folder: Path
) -> None:
    built = elsewhere(local, tmp_path, folder)
    for item in built:
        for subject in item.get("subjects", []):
            found = (
                subject["name"].split(":")[2] if subject["kind"] == "User" else subject["namespace"]
            )
            assert found == "hami-system", item["metadata"]["name"]
        for webhook in item.get("webhooks", []):
            assert webhook["clientConfig"]["service"]["namespace"] == "hami-system"
    assert {item["metadata"].get("namespace", "hami-system") for item in built} == {"hami-system"}


def test_the_documented_kustomization_builds(local: LocalCluster, tmp_path: Path) -> None:
    shutil.copytree(ROOT, tmp_path / "manifests")
    blocks = [
        yaml.safe_load(block)
        for page in PAGES
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    first, rest = next(
        pair
        for pair in pairwise(block for block in blocks if "images" in block)
        if "configMapGenerator" in pair[1]
    )
    images = [*first["images"], *rest.pop("images")]
    for generator, source in zip(
        rest["configMapGenerator"], ("device-config.yaml", "node-config.json"), strict=True
    ):
        shutil.copy(MANIFESTS / source, tmp_path / generator["files"][0])
    assert "manifests/components/dra-allocate" in rest["components"]
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump({**first, **rest, "images": images})
    )
    text = local.kubectl("kustomize", str(tmp_path))
    assert re.findall(r"\S*kube-system\S*", text) == [f"'{CLAIM_CONTROLLER}'"]
    used = {image for image in re.findall(r"image: (\S+):", text)}
    assert used == {image.get("newName", image["name"]) for image in images}
    assert {item["kind"] for item in yaml.safe_load_all(text)} >= {
        "ServiceMonitor",
        "PrometheusRule",
        "DaemonSet",
    }


def containers(items: list[Object]) -> list[Object]:
    """Returns the containers of all workloads."""
    specs = [
        item["spec"]["template"]["spec"] for item in items if "template" in item.get("spec", {})
    ]
    return [one for spec in specs for one in (*spec.get("initContainers", ()), *spec["containers"])]


@pytest.mark.parametrize("overlay", ["self-signed", "cert-manager", "upgrade-from-hami"])
def test_images_are_pinned_by_the_documented_digests(
    local: LocalCluster, tmp_path: Path, overlay: str
) -> None:
    """Those of all containers that run on a cluster, also of the component with an image of others."""
    shutil.copytree(ROOT, tmp_path / "manifests")
    blocks = re.findall(r"```yaml\n(.*?)```", PAGES[1].read_text(), re.DOTALL)
    (block,) = (found for found in blocks if "DIGEST" in found)
    digests = (hashlib.sha256(bytes([number])).hexdigest() for number in itertools.count())
    images = yaml.safe_load(re.sub("DIGEST", lambda found: next(digests), block))["images"]
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "resources": [f"manifests/overlays/{overlay}"],
                "components": ["manifests/components/hami-limiter"],
                "images": images,
            }
        )
    )
    used = {
        one["image"]
        for one in containers(list(yaml.safe_load_all(local.kubectl("kustomize", str(tmp_path)))))
    }
    assert used == {f"{image.get('newName', image['name'])}@{image['digest']}" for image in images}
    assert all(re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", image) for image in used)


def selectors(item: Any) -> Iterator[Object]:
    """Yields all label selectors in *item* as ``matchLabels``; a Service has the labels themselves."""
    if isinstance(item, dict):
        for key, value in item.items():
            if key in ("selector", "podSelector", "labelSelector") and value:
                yield (
                    value
                    if "matchLabels" in value or "matchExpressions" in value
                    else {"matchLabels": value}
                )
            else:
                yield from selectors(value)
    elif isinstance(item, list):
        for value in item:
            yield from selectors(value)


def test_selectors_do_not_match_pods_of_the_hami_chart(local: LocalCluster) -> None:
    built = build(local, ROOT / "overlays" / "upgrade-from-hami")
    found = [
        selector for item in built for selector in selectors(item) if "matchLabels" in selector
    ]
    assert len(found) >= 6  # Service, Deployment, its spreading, DaemonSet, budget, two policies
    assert {selector["matchLabels"].get("app.kubernetes.io/instance") for selector in found} == {
        "hami-next"
    }


def test_the_upgrade_gives_the_accounts_of_the_chart_their_rights(
    local: LocalCluster, tmp_path: Path
) -> None:
    """In a namespace where the accounts have no others."""
    built = elsewhere(local, tmp_path, ROOT / "overlays" / "upgrade-from-hami")
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


@pytest.mark.parametrize("overlay", ["self-signed", "upgrade-from-hami"])
def test_the_token_follows_the_names_of_its_account(
    local: LocalCluster, tmp_path: Path, overlay: str
) -> None:
    """kustomize does not know the annotation by itself. A Secret for an account that does not exist is removed."""
    shutil.copytree(ROOT, tmp_path / "manifests")
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "namespace": "hami-system",
                "namePrefix": "team-",
                "resources": [f"manifests/overlays/{overlay}"],
            }
        )
    )
    built = list(yaml.safe_load_all(local.kubectl("kustomize", str(tmp_path))))
    (secret,) = (
        item for item in built if item.get("type") == "kubernetes.io/service-account-token"
    )
    account = secret["metadata"]["annotations"]["kubernetes.io/service-account.name"]
    assert account.startswith("team-hami-scheduler-extender")
    assert f"ServiceAccount/{account}" in names(built)
    (spec,) = (item["spec"]["template"]["spec"] for item in built if item["kind"] == "Deployment")
    assert secret["metadata"]["name"] in {
        volume.get("secret", {}).get("secretName") for volume in spec["volumes"]
    }
    bound = {
        item["roleRef"]["name"]
        for item in built
        for subject in item.get("subjects", ())
        if subject["name"] == account
    }
    assert {role.removeprefix("team-").removesuffix("-next") for role in bound} == {
        "hami-scheduler-extender",
        "hami-scheduler-preemption",
        "hami-scheduler-self-signed",
    }


def test_the_upgrade_keeps_the_name_of_the_secret(local: LocalCluster) -> None:
    """In the Secret, the role and the flag: `nameSuffix` changes the first two. That of HAMi stays, too."""
    built = build(local, ROOT / "overlays" / "upgrade-from-hami")
    (secret,) = (
        item["metadata"]["name"]
        for item in built
        if item["kind"] == "Secret" and "type" not in item
    )
    named = [
        rule["resourceNames"]
        for item in built
        if item["kind"] == "Role"
        for rule in item["rules"]
        if rule["resources"] == ["secrets"]
    ]
    assert named == [[secret], ["hami-scheduler-tls"]]
    assert f"--self-signed-cert-secret={secret}" in json.dumps(built)
    assert "--self-signed-previous-secret=hami-scheduler-tls" in json.dumps(built)


@pytest.mark.parametrize("name", ["hami-device-plugin-next", "hami-monitor-next"])
def test_our_pods_of_a_node_wait_for_that_of_the_chart_to_leave(
    local: LocalCluster, sandbox: Sandbox, name: str
) -> None:
    """The plugin and the monitor of the chart are in one pod."""
    sandbox.add_gpu_node("n0")
    (daemon,) = (
        item
        for item in build(local, ROOT / "overlays" / "upgrade-from-hami")
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
