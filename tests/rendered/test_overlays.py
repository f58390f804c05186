"""Overlays as the documentation builds them: every reference follows a namespace, a prefix and other images."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shutil
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import yaml

from hami.cli.twin import record_command
from hami.codec.documents import parse_own_yaml
from testing.accounts import CLAIM_CONTROLLER
from testing.cluster import MANIFESTS
from testing.kustomize import FOLDER, OVERLAYS, build, elsewhere, kustomize
from testing.yaml_text import read_documents

pytestmark = pytest.mark.files
Object = dict[str, Any]
PAGES = [FOLDER.parent / "README.md", FOLDER.parent / "docs" / "installation.md"]


@pytest.mark.parametrize("folder", OVERLAYS, ids=lambda folder: folder.name)
def test_another_namespace_reaches_every_reference(tmp_path, folder):
    built = elsewhere(tmp_path, folder)
    for item in built:
        for subject in item.get("subjects", []):
            found = (
                subject["name"].split(":")[2] if subject["kind"] == "User" else subject["namespace"]
            )
            assert found == "hami-system", item["metadata"]["name"]
        for webhook in item.get("webhooks", []):
            assert webhook["clientConfig"]["service"]["namespace"] == "hami-system"
    assert {item["metadata"].get("namespace", "hami-system") for item in built} == {"hami-system"}


def test_the_documented_kustomization_builds(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "manifests")
    blocks = [
        parse_own_yaml(block)
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
    components = {path.name for path in (FOLDER / "components").iterdir()} - {"self-signed"}
    assert sorted(rest["components"]) == sorted(f"manifests/components/{one}" for one in components)
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump({**first, **rest, "images": images})
    )
    text = kustomize(tmp_path)
    assert re.findall(r"\S*kube-system\S*", text) == [f"'{CLAIM_CONTROLLER}'"]
    used = {image for image in re.findall(r"image: (\S+):", text)}
    assert used == {image.get("newName", image["name"]) for image in images}
    assert {item["kind"] for item in read_documents(text)} >= {
        "ServiceMonitor",
        "PrometheusRule",
        "DaemonSet",
    }


def test_the_recorder_builds_and_has_flags_that_exist():
    """It stands beside the overlays, in a namespace of its own."""
    items = {item["kind"]: item for item in build(FOLDER / "record")}
    assert {item["metadata"].get("namespace") for item in items.values()} == {
        None,
        "hami-record",
        "kube-system",
    }
    (container,) = containers([items["Deployment"]])
    program, command, folder, *flags = container["command"]
    assert (program, command) == ("hami", "record")
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == [folder]
    known = {name for option in record_command.params for name in option.opts}
    assert {flag.partition("=")[0] for flag in flags} <= known


def containers(items: list[Object]) -> list[Object]:
    """Returns the containers of all workloads."""
    specs = [
        item["spec"]["template"]["spec"] for item in items if "template" in item.get("spec", {})
    ]
    return [one for spec in specs for one in (*spec.get("initContainers", ()), *spec["containers"])]


@pytest.mark.parametrize("overlay", ["self-signed", "cert-manager", "upgrade-from-hami"])
def test_images_are_pinned_by_the_documented_digests(tmp_path, overlay):
    """Those of all containers that run on a cluster, also of the component with an image of others."""
    shutil.copytree(FOLDER, tmp_path / "manifests")
    blocks = re.findall(r"```yaml\n(.*?)```", PAGES[1].read_text(), re.DOTALL)
    (block,) = (found for found in blocks if "DIGEST" in found)
    digests = (hashlib.sha256(bytes([number])).hexdigest() for number in itertools.count())
    images = parse_own_yaml(re.sub("DIGEST", lambda found: next(digests), block))["images"]
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "resources": [f"manifests/overlays/{overlay}"],
                "components": ["manifests/components/hami-limiter"],
                "images": images,
            }
        )
    )
    used = {one["image"] for one in containers(build(tmp_path))}
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


def test_selectors_do_not_match_pods_of_the_hami_chart():
    built = build(FOLDER / "overlays" / "upgrade-from-hami")
    found = [
        selector for item in built for selector in selectors(item) if "matchLabels" in selector
    ]
    assert len(found) >= 6  # Service, Deployment, its spreading, DaemonSet, budget, two policies
    assert {selector["matchLabels"].get("app.kubernetes.io/instance") for selector in found} == {
        "hami-next"
    }


@pytest.mark.parametrize("overlay", ["self-signed", "upgrade-from-hami"])
def test_the_token_follows_the_names_of_its_account(tmp_path, overlay):
    """kustomize does not know the annotation by itself. A Secret for an account that does not exist is removed."""
    shutil.copytree(FOLDER, tmp_path / "manifests")
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "namespace": "hami-system",
                "namePrefix": "team-",
                "resources": [f"manifests/overlays/{overlay}"],
            }
        )
    )
    built = build(tmp_path)
    (secret,) = (
        item for item in built if item.get("type") == "kubernetes.io/service-account-token"
    )
    account = secret["metadata"]["annotations"]["kubernetes.io/service-account.name"]
    assert account.startswith("team-hami-scheduler-extender")
    assert f"ServiceAccount/{account}" in {
        f"{item['kind']}/{item['metadata']['name']}" for item in built
    }
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
        "hami-scheduler-rejected",
        "hami-scheduler-self-signed",
    }


def test_the_upgrade_keeps_the_name_of_the_secret():
    """In the Secret, the role and the flag: `nameSuffix` changes the first two. That of HAMi stays, too."""
    built = build(FOLDER / "overlays" / "upgrade-from-hami")
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
