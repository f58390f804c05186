"""``helm upgrade`` replaces a release of HAMi's chart in place, ``helm rollback`` brings it back, ``helm uninstall``
leaves what the chart's README names.

Pods run on kwok's nodes; one `hami scheduler` serves the webhook of both charts, with the certificate in HAMi's Secret.
`test_helm_on_kind` does it with real containers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hami.codec.documents import parse_own_yaml
from hami.kube.api import Api
from hami.kube.cluster import Cluster
from testing.accounts import may
from testing.cases import cases
from testing.cluster import SCHEDULER, LocalCluster
from testing.eventually import eventually
from testing.helm_chart import CA, CHART, Helm, HelmError
from testing.kube import ApiError, Kube
from testing.nodes import fake_node, gpu
from testing.people import DEVICE_CONFIG, hami
from testing.pods import pod
from testing.scheduler import EXTENDER, Certificates, Scheduler, account_token
from testing.takeover import ALLOCATED, NAMESPACE, SECRET, TakeOver, is_running, remains

Object = dict[str, Any]
MAINTENANCE = (CHART.parents[1] / "docs" / "maintenance.md").read_text()
NODES = ("n0", "n1")
OURS = ("hami", CHART, "--namespace", NAMESPACE)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A control plane without HAMi, whose kube-scheduler also places pods of DaemonSets."""

    def with_default(config: Object) -> None:
        config["profiles"].append({"schedulerName": "default-scheduler"})

    with LocalCluster.started(adjust=with_default, extender=False, durable=False) as started:
        started.kube.create(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        )
        for name in NODES:
            started.kube.create(fake_node(name, [gpu()]))
        yield started
        started.kube.close()


@pytest.fixture
def helm(cluster: LocalCluster, tmp_path: Path) -> Helm:
    return Helm(tmp_path, cluster.kubeconfig)


@pytest.fixture
def release(cluster: LocalCluster, helm: Helm) -> Iterator[None]:
    """A release of ours."""
    helm.run("install", *OURS, values={})
    yield
    helm.run("uninstall", "hami", "--namespace", NAMESPACE)


@pytest.fixture
def webhook(cluster: LocalCluster, tmp_path: Path) -> Iterator[Scheduler]:
    """The program behind the webhook of both charts."""
    served = Scheduler(cluster, Certificates(tmp_path / "tls"), cluster.kubeconfig)
    served.start()
    yield served
    served.close()


@pytest.fixture
def pods_of_users(cluster: LocalCluster) -> Iterator[None]:
    """A pod on each node, placed by HAMi."""
    kube = cluster.kube
    for name, node in (("a", "n0"), ("b", "n1")):
        item = pod(
            name,
            gpu=1,
            gpumem=1000,
            node_name=node,
            annotations={
                "hami.io/vgpu-node": node,
                "hami.io/bind-phase": "success",
                ALLOCATED: f"GPU-{node}-0,NVIDIA,1000,0:;",
            },
        )
        kube.create(item, "default")
    eventually(
        lambda: [is_running(item) for item in kube.list("Pod", "default")] == [True, True],
        "the pods run",
    )
    yield
    kube.delete_all("Pod", "default", grace_seconds=0)
    kube.delete("Secret", SECRET, NAMESPACE)


@pytest.mark.parametrize(("version", "client_side"), [("2.4.0", True), ("2.10.0", False)])
def test_a_release_of_hami_is_replaced_and_brought_back(
    cluster, helm, webhook, pods_of_users, tmp_path, version, client_side
):
    """Helm 3 applies on the client's side, and such a release stays so with Helm 4."""
    kube = cluster.kube
    at = {"enabled": True, "host": "127.0.0.1", "port": webhook.port, "path": "/webhook"}
    elsewhere = (
        {"customWebhook": at} if version == "2.4.0" else {"admissionWebhook": {"customURL": at}}
    )
    release = TakeOver(kube, helm, NODES)
    release.install_hamis(
        tmp_path / "hami",
        version,
        webhook.certificates,
        client_side=client_side,
        values={
            "scheduler": {**elsewhere, "service": {"schedulerPort": 31555}},
            "devicePlugin": {"deviceSplitCount": 5},
        },
    )
    pods, objects = release.pods_of_users(), release.identities()
    assert unfinished(cluster) == []
    with release:
        told = release.upgrade("--set", "image.registry=registry.example.com")
        assert "A release of HAMi's chart is being replaced." in told
        assert "no registry" not in told
        release.wait_rollout("registry.example.com/hami")
        assert release.identities() == objects
        rules = kube.get("ClusterRole", "hami-device-plugin")["rules"]
        assert "update" in rules[-1]["verbs"]
        assert bound(kube) == ["hami-scheduler-extender", "hami-scheduler"]
        config = parse_own_yaml(
            kube.get("ConfigMap", "hami-scheduler-device", NAMESPACE)["data"]["device-config.yaml"]
        )
        assert config["nvidia"]["deviceSplitCount"] == 5
        monitors = eventually(
            lambda: [
                item
                for item in kube.list("Pod", NAMESPACE)
                if is_running(item) and "hami-monitor" in item["metadata"]["name"]
            ][1:],
            "a monitor on each node",
        )
        assert monitors
        assert "Containers keep HAMi's limiter" in told
        assert "There are no NetworkPolicies" in told
        assert kept(kube) == (["limiter"], False, ["Warn", "Audit"])
        (problem,) = unfinished(cluster)
        assert "--foreign-reservations" in problem
        assert "hami-registrations" in problem
        assert "not replaced" not in problem
        assert "being replaced" not in release.upgrade()
        assert kept(kube) == (["limiter"], False, ["Deny"])
        assert unfinished(cluster) == []
        assert "update" not in kube.get("ClusterRole", "hami-device-plugin")["rules"][-1]["verbs"]
        assert bound(kube) == ["hami-scheduler-extender"]
        release.roll_back()
        assert release.identities() == objects
        assert (
            kube.get("ClusterRoleBinding", "hami-device-plugin")["roleRef"]["name"]
            == "hami-device-plugin-monitor"
        )
        assert not kube.find("DaemonSet", "hami-monitor", NAMESPACE)
        release.upgrade()
    assert release.missed == []
    assert release.admitted > 50
    assert release.crowded == [], "two device plugins on a node"
    assert release.deserted == [], "two nodes without a device plugin"
    assert release.pods_of_users() == pods
    release.uninstall()
    assert remains(cluster.kubectl) == {f"secret/{SECRET}"}


def unfinished(cluster: LocalCluster) -> list[str]:
    """Returns what an audit finds of an upgrade."""
    return [item["problem"] for item in findings(cluster, "UpgradeUnfinished", "PoliciesWarn")]


def findings(cluster: LocalCluster, *rules: str) -> list[Object]:
    """Returns what an audit finds."""
    items = hami(
        cluster.kubeconfig, "audit", "-o", "json", f"--device-config-file={DEVICE_CONFIG}"
    ).document["items"]
    return [item for item in items if item["rule"] in rules]


def bound(kube: Kube) -> list[str]:
    """Returns the accounts with the role of the extender."""
    return [
        subject["name"]
        for subject in kube.get("ClusterRoleBinding", "hami-scheduler-extender")["subjects"]
    ]


def kept(kube: Kube) -> tuple[list[str], bool, list[str]]:
    """Returns the init containers of the device plugin, whether there is a NetworkPolicy, and what the policies do."""
    plugin = kube.get("DaemonSet", "hami-device-plugin", NAMESPACE)["spec"]["template"]["spec"]
    binding = kube.get("ValidatingAdmissionPolicyBinding", "hami-allocations")
    return (
        [item["name"] for item in plugin.get("initContainers", ())],
        kube.find("NetworkPolicy", "hami-scheduler", NAMESPACE) is not None,
        binding["spec"]["validationActions"],
    )


@pytest.mark.parametrize("client_side", [True, False])
def test_a_ca_of_the_values_stays_when_the_scheduler_makes_its_own(cluster, helm, client_side):
    """Helm removes what it has written itself. API servers trust this CA until the scheduler has published another."""
    helm.run(
        "install",
        *OURS,
        f"--server-side={str(not client_side).lower()}",
        values={"certificates": {"mode": "secret", "caBundle": CA}},
    )
    assert trusted(cluster.kube) == {CA}
    helm.run(
        "upgrade",
        *OURS,
        "--reuse-values",
        values={"certificates": {"mode": "self-signed", "caBundle": ""}},
    )
    assert trusted(cluster.kube) == {CA}
    helm.run("uninstall", "hami", "--namespace", NAMESPACE)


@pytest.mark.parametrize("client_side", [True, False])
def test_a_ca_of_the_values_replaces_that_of_the_scheduler(cluster, helm, client_side):
    """As the chart's README says. The scheduler, which Helm replaces later, may then not publish its own again."""
    helm.run("install", *OURS, f"--server-side={str(not client_side).lower()}", values={})
    scheduler = Cluster(Api.connect(kubeconfig=str(cluster.kubeconfig)))
    configuration = scheduler.webhook_configuration("hami-webhook")
    assert configuration is not None
    scheduler.publish_bundle(configuration, b"of the scheduler")
    cluster.kube.delete("ClusterRoleBinding", "hami-scheduler-self-signed")
    force = () if client_side else ("--force-conflicts",)
    helm.run(
        "upgrade",
        *OURS,
        "--reuse-values",
        *force,
        values={"certificates": {"mode": "secret", "caBundle": CA}},
    )
    assert trusted(cluster.kube) == {CA}
    helm.run("uninstall", "hami", "--namespace", NAMESPACE)


@pytest.mark.parametrize("client_side", [True, False])
def test_an_upgrade_keeps_the_token_of_the_extender(cluster, helm, client_side):
    """The chart's Secret has no data. Without it, the pods would be refused by the API server."""
    kube, name = cluster.kube, f"{EXTENDER}-token"
    helm.run("install", *OURS, f"--server-side={str(not client_side).lower()}", values={})
    account_token(kube, NAMESPACE)
    before = kube.get("Secret", name, NAMESPACE)
    assert before["data"].keys() == {"token", "ca.crt", "namespace"}
    for more in ((), () if client_side else ("--force-conflicts",)):
        helm.run(
            "upgrade",
            *OURS,
            "--reuse-values",
            "--set",
            f"scheduler.replicas={3 + len(more)}",
            *more,
        )
        after = kube.get("Secret", name, NAMESPACE)
        assert (after["metadata"]["uid"], after["data"]) == (
            before["metadata"]["uid"],
            before["data"],
        )
    helm.run("uninstall", "hami", "--namespace", NAMESPACE)
    assert remains(cluster.kubectl) == set()


def test_the_token_of_the_extender_is_replaced_as_documented(cluster, helm, release):
    """With its account: a new Secret of an account gets the token of the earlier one, which would be valid again."""
    kube = cluster.kube
    (command,) = re.findall(
        r"^kubectl (-n kube-system delete secret/.*)$", MAINTENANCE, re.MULTILINE
    )
    stolen = kube.with_token(account_token(kube, NAMESPACE))
    eventually(lambda: status(stolen) == 200, "the API server has loaded the role")
    cluster.kubectl(*command.replace("kube-system", NAMESPACE).split())
    helm.run("upgrade", *OURS, "--reuse-values")
    renewed = kube.with_token(account_token(kube, NAMESPACE))
    eventually(lambda: status(renewed) == 200, "the API server has loaded the new one")
    eventually(
        lambda: status(stolen) == 401,
        "the API server has forgotten the earlier one",
        interval=1,
    )


def status(client: Kube) -> int:
    """Returns the HTTP status of a list of nodes."""
    try:
        client.list("Node")
    except ApiError as error:
        return error.status
    return 200


def test_the_scheduler_of_a_release_with_one_account_keeps_its_rights_until_it_is_replaced(
    cluster, helm, release
):
    """With the account that is now that of kube-scheduler, not with that of the process that pods reach."""
    kube = cluster.kube
    earlier = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "hami-scheduler-rights"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "hami-scheduler",
        },
        "subjects": [{"kind": "ServiceAccount", "name": SCHEDULER, "namespace": NAMESPACE}],
    }
    kube.create(earlier)
    extender, kube_scheduler = (
        f"system:serviceaccount:{NAMESPACE}:{name}" for name in (EXTENDER, SCHEDULER)
    )
    helm.run("upgrade", *OURS, "--reuse-values")
    eventually(
        lambda: may(kube, kube_scheduler, verb="patch", resource="nodes"),
        "its scheduler may lock nodes",
    )
    assert may(kube, kube_scheduler, verb="write", group="hami.io", resource="allocations")
    assert may(kube, extender, verb="patch", resource="nodes")
    assert not may(kube, extender, verb="update", resource="persistentvolumes")
    left = {
        item["subject"]: item["remedy"].partition(", ")[2]
        for item in findings(cluster, "LeftoverRights")
    }
    again = "run helm upgrade again, without takeOver=always"
    assert left == {
        "clusterrolebinding hami-scheduler-rights": (
            "kubectl delete clusterrolebinding/hami-scheduler-rights clusterrole/hami-scheduler"
        ),
        "clusterrolebinding hami-scheduler-extender": again,
        f"rolebinding {NAMESPACE}/hami-scheduler-extender": again,
    }
    kube.delete(
        "ClusterRoleBinding", "hami-scheduler-rights"
    )  # Helm does it at the end of the upgrade
    helm.run("upgrade", *OURS, "--reuse-values")
    eventually(
        lambda: not may(kube, kube_scheduler, verb="patch", resource="nodes"), "it no longer may"
    )
    assert findings(cluster, "LeftoverRights") == []
    assert not may(kube, kube_scheduler, verb="write", group="hami.io", resource="allocations")
    assert may(kube, extender, verb="patch", resource="nodes")
    assert may(kube, kube_scheduler, verb="delete", resource="pods")


def trusted(kube: Kube) -> set[str | None]:
    """Returns the CA bundles of all webhooks."""
    webhooks = kube.get("MutatingWebhookConfiguration", "hami-webhook")["webhooks"]
    return {webhook["clientConfig"].get("caBundle") for webhook in webhooks}


@cases(
    "namespace, values, expected",
    ("namespace", "nowhere", {}, 'namespaces "nowhere" not found'),
    (
        "override",
        NAMESPACE,
        {"namespaceOverride": "nowhere"},
        'names the namespace "nowhere", which does not exist: create it',
    ),
)
def test_a_missing_namespace_is_refused_before_anything_is_applied(
    cluster, helm, namespace, values, expected
):
    with pytest.raises(HelmError, match=expected):
        helm.run("install", "hami", CHART, "--namespace", namespace, values=values)
    assert not [
        item
        for item in cluster.kube.list("ClusterRole")
        if item["metadata"]["name"].startswith("hami")
    ]


@pytest.mark.since(1, 36)
@cases(
    "resource, refusal",
    ("nvidia.com/gpu", "nvidia.com/gpu, for which the DeviceClass gpu.nvidia.com already stands"),
    (
        "example.com/gpu",
        "example.com/gpu, for which the DeviceClass gpu.example.com already stands",
    ),
    ("example.com/shared-gpu", ""),
)
def test_a_resource_that_stands_for_devices_of_another_driver_is_refused(
    cluster, helm, resource, refusal
):
    """kube-scheduler would take the newer of two classes."""
    classes = {"gpu.nvidia.com": "nvidia.com/gpu", "gpu.example.com": "example.com/gpu"}
    for name, stands_for in classes.items():
        cluster.kube.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": name},
                "spec": {"extendedResourceName": stands_for},
            }
        )
    values = {"dra": {"enabled": True, "extendedResource": resource}}
    try:
        if refusal:
            with pytest.raises(HelmError, match=re.escape(f"dra.extendedResource is {refusal}")):
                helm.run("install", *OURS, "--dry-run=server", values=values)
        else:
            assert f"extendedResourceName: {resource}" in helm.run(
                "install", *OURS, "--dry-run=server", values=values
            )
    finally:
        for name in classes:
            cluster.kube.delete("DeviceClass", name)
