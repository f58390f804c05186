"""``helm upgrade`` replaces a release of HAMi's chart in place, ``helm rollback`` brings it back, ``helm uninstall``
leaves what the chart's README names.

``hami_release`` stands for HAMi's chart. Pods run on kwok's nodes; one `hami scheduler` serves the webhook of both
charts, with the certificate in their Secret.
"""

from __future__ import annotations

import base64
import itertools
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import SCHEDULER, LocalCluster
from e2e.eventually import eventually
from e2e.helm_chart import CHART, Helm, HelmError
from e2e.kube import ApiError, Kube, path_of, summary
from e2e.nodes import fake_node, gpu
from e2e.pods import pod
from e2e.scheduler import Certificates, Scheduler
from tools.chart import upstream_values

Object = dict[str, Any]
NAMESPACE = "hami-system"
NODES = ("n0", "n1")
ALLOCATED = "hami.io/vgpu-devices-allocated"
RELEASE = Path(__file__).with_name("hami_release")
ROLLOUT_SECONDS = 90


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A control plane without HAMi, whose kube-scheduler also places pods of DaemonSets."""
    def with_default(config: Object) -> None:
        config["profiles"].append({"schedulerName": "default-scheduler"})

    with LocalCluster.started(adjust=with_default, extender=False, durable=False) as started:
        started.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for name in NODES:
            started.kube.create(fake_node(name, [gpu()]))
        yield started
        started.kube.close()


@pytest.fixture
def helm(cluster: LocalCluster, tmp_path: Path) -> Helm:
    return Helm(tmp_path, cluster.kubeconfig)


class Running:
    """The pods of a test, and what happens while a release changes."""

    def __init__(self, cluster: LocalCluster, webhook: Scheduler) -> None:
        self.kube: Kube = cluster.kube
        self.webhook = webhook
        self.admitted = 0
        self.missed: list[str] = []
        self.crowded: list[Counter[str]] = []
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=watch) for watch in (self._admit, self._look)]

    def __enter__(self) -> Running:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _admit(self) -> None:
        """Creates pods that the webhook must see, without leaving one."""
        for number in itertools.count():
            if self._ending.wait(0.1):
                return
            try:
                made = self.kube.call("POST", path_of("Pod", "default"), pod(f"probe-{number}", gpu=1),
                                      query={"dryRun": "All"})
            except ApiError as error:
                self.missed.append(error.message)
                continue
            self.admitted += 1
            if made["spec"]["schedulerName"] != SCHEDULER:
                self.missed.append(f"probe-{number}")

    def _look(self) -> None:
        """Counts the device plugins on each node."""
        while not self._ending.wait(0.2):
            here = Counter(item["spec"].get("nodeName", "") for item in self.plugins() if is_running(item))
            if any(count > 1 for node, count in here.items() if node):
                self.crowded.append(here)

    def plugins(self) -> list[Object]:
        return self.kube.list("Pod", NAMESPACE, labelSelector="app.kubernetes.io/component=hami-device-plugin")

    def gpu_pods(self) -> dict[str, tuple[object, ...]]:
        """Returns what may not change about the pods of users."""
        return {item["metadata"]["name"]: (
            item["metadata"]["uid"], item["metadata"]["annotations"], item["spec"], item["status"]["containerStatuses"])
            for item in self.kube.list("Pod", "default")}

    def wait_rollout(self, image: str) -> None:
        """Waits until all pods of the scheduler and the device plugin have *image*."""
        def done() -> bool:
            pods = [item for item in self.kube.list("Pod", NAMESPACE) if "hami-monitor" not in item["metadata"]["name"]]
            images = [container["image"] for item in pods for container in item["spec"]["containers"]]
            replicas = self.kube.get("Deployment", "hami-scheduler", NAMESPACE)["spec"]["replicas"]
            return len(pods) == len(NODES) + replicas and all(map(is_running, pods)) and not any(
                image not in found and "kube-scheduler" not in found for found in images)

        eventually(done, lambda: f"all pods have {image}: {summary(self.kube.list('Pod', NAMESPACE))}",
                   timeout=ROLLOUT_SECONDS)


def is_running(item: Object) -> bool:
    return bool(item["status"].get("phase") == "Running" and "deletionTimestamp" not in item["metadata"])


@pytest.fixture
def running(cluster: LocalCluster, tmp_path: Path) -> Iterator[Running]:
    certificates = Certificates(tmp_path / "tls")
    kube = cluster.kube
    webhook = Scheduler(cluster, certificates, cluster.kubeconfig)
    webhook.start()
    for name, node in (("a", "n0"), ("b", "n1")):
        item = pod(name, gpu=1, gpumem=1000, node_name=node, annotations={
            "hami.io/vgpu-node": node, "hami.io/bind-phase": "success", ALLOCATED: f"GPU-{node}-0,NVIDIA,1000,0:;"})
        kube.create(item, "default")
    try:
        yield Running(cluster, webhook)
    finally:
        webhook.close()
        kube.delete_all("Pod", "default", grace_seconds=0)
        kube.delete("Secret", "hami-scheduler-tls", NAMESPACE)


def install_hamis(helm: Helm, running: Running, folder: Path, version: str, *, client_side: bool) -> None:
    """Installs the stand-in with values of a user, and does what the job of HAMi's chart does for the certificate."""
    shutil.copytree(RELEASE, folder)
    chart = yaml.safe_load((folder / "Chart.yaml").read_text())
    (folder / "Chart.yaml").write_text(yaml.safe_dump({**chart, "version": version, "appVersion": version}))
    (folder / "values.yaml").write_text(yaml.safe_dump(upstream_values(f"v{version}")))
    at = {"enabled": True, "host": "127.0.0.1", "port": running.webhook.port, "path": "/webhook"}
    webhook = {"customWebhook": at} if version == "2.4.0" else {"admissionWebhook": {"customURL": at}}
    side = f"--server-side={str(not client_side).lower()}"
    helm.run("install", "hami", folder, "--namespace", NAMESPACE, side, values={
        "scheduler": {**webhook, "service": {"schedulerPort": 31555}}, "devicePlugin": {"deviceSplitCount": 5}})
    tls = running.webhook.certificates
    data = {"tls.crt": tls.cert_file, "tls.key": tls.key_file}
    running.kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hami-scheduler-tls"}, "data": {
        name: base64.b64encode(file.read_bytes()).decode() for name, file in data.items()}}, NAMESPACE)
    configuration = running.kube.get("MutatingWebhookConfiguration", "hami-webhook")
    configuration["webhooks"][0]["clientConfig"]["caBundle"] = base64.b64encode(tls.ca_file.read_bytes()).decode()
    path = path_of("MutatingWebhookConfiguration", None, "hami-webhook")
    running.kube.call("PUT", path, configuration, query={"fieldManager": "kube-webhook-certgen"})


def identities(kube: Kube) -> dict[str, Object]:
    """Returns what must stay of the objects that both charts have: identity, selectors and addresses."""
    found = {}
    for kind, name in (
            ("Deployment", "hami-scheduler"), ("DaemonSet", "hami-device-plugin"), ("Service", "hami-scheduler"),
            ("Service", "hami-device-plugin-monitor"), ("ServiceAccount", "hami-device-plugin")):
        item = kube.get(kind, name, NAMESPACE)
        spec = item.get("spec", {})
        ports = {port["port"]: port.get("nodePort") for port in spec.get("ports", ())}
        found[f"{kind}/{name}"] = {"uid": item["metadata"]["uid"], "address": spec.get("clusterIP"), "ports": ports,
                                   "labels": spec["selector"].get("matchLabels") if "template" in spec else None}
    return found


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("version", "client_side"), [("2.4.0", True), ("2.10.0", False)])
def test_a_release_of_hami_is_replaced_and_brought_back(cluster: LocalCluster, helm: Helm, running: Running,
                                                        tmp_path: Path, version: str, client_side: bool) -> None:
    """Helm 3 applies on the client's side, and such a release stays so with Helm 4."""
    kube = cluster.kube
    install_hamis(helm, running, tmp_path / "hami", version, client_side=client_side)
    running.wait_rollout("example.com/hami:v2")
    eventually(lambda: len(running.gpu_pods()) == 2 and all(
        item["status"].get("phase") == "Running" for item in kube.list("Pod", "default")), "the pods run")
    pods, objects = running.gpu_pods(), identities(kube)
    upgrade = ("upgrade", "hami", CHART, "--namespace", NAMESPACE, "--reuse-values")
    with running:
        eventually(lambda: running.admitted > 5, "the webhook is called")
        running.missed.clear()  # the API server applies a new configuration with a delay
        told = helm.run(*upgrade, "--set", "image.registry=registry.example.com")
        assert "A release of HAMi's chart is being replaced." in told
        running.wait_rollout("registry.example.com/hami")
        assert identities(kube) == objects
        rules = kube.get("ClusterRole", "hami-device-plugin")["rules"]
        assert "update" in rules[-1]["verbs"]
        config = yaml.safe_load(kube.get("ConfigMap", "hami-scheduler-device", NAMESPACE)["data"]["device-config.yaml"])
        assert config["nvidia"]["deviceSplitCount"] == 5
        monitors = eventually(lambda: [item for item in kube.list("Pod", NAMESPACE) if is_running(item)
                                       and "hami-monitor" in item["metadata"]["name"]][1:], "a monitor on each node")
        assert monitors
        assert "being replaced" not in helm.run(*upgrade)
        assert "update" not in kube.get("ClusterRole", "hami-device-plugin")["rules"][-1]["verbs"]
        helm.run("rollback", "hami", "1", "--namespace", NAMESPACE)
        running.wait_rollout("example.com/hami:v2")
        assert identities(kube) == objects
        assert kube.get("ClusterRoleBinding", "hami-device-plugin")["roleRef"]["name"] == "hami-device-plugin-monitor"
        assert not kube.find("DaemonSet", "hami-monitor", NAMESPACE)
        helm.run(*upgrade)
    assert running.missed == [] and running.admitted > 50
    assert running.crowded == [], "two device plugins on a node"
    assert running.gpu_pods() == pods
    helm.run("uninstall", "hami", "--namespace", NAMESPACE)
    assert left(cluster) == {"secret/hami-scheduler-tls"}


def left(cluster: LocalCluster) -> set[str]:
    """Returns all objects of HAMi, other than pods that are about to end."""
    found = set()
    for namespaced, place in (("true", f"--namespace={NAMESPACE}"), ("false", "--all-namespaces")):
        kinds = cluster.kubectl("api-resources", "--verbs=list,delete", f"--namespaced={namespaced}", "--output=name")
        wanted = [kind for kind in kinds.split() if kind.partition(".")[0] not in GENERATED]
        names = cluster.kubectl("get", ",".join(wanted), place, "--output=name")
        found |= {name for name in names.split() if "hami" in name.partition("/")[2]}
    return found - {f"namespace/{NAMESPACE}"}


GENERATED = {"pods", "events", "endpoints", "endpointslices", "replicasets", "controllerrevisions"}
"""Kinds of objects that controllers make and remove."""


@pytest.mark.parametrize(("namespace", "values", "expected"), [
    ("nowhere", {}, 'namespaces "nowhere" not found'),
    (NAMESPACE, {"namespaceOverride": "nowhere"}, 'names the namespace "nowhere", which does not exist: create it'),
], ids=["namespace", "override"])
def test_a_missing_namespace_is_refused_before_anything_is_applied(cluster: LocalCluster, helm: Helm, namespace: str,
                                                                   values: Object, expected: str) -> None:
    with pytest.raises(HelmError, match=expected):
        helm.run("install", "hami", CHART, "--namespace", namespace, values=values)
    assert not [item for item in cluster.kube.list("ClusterRole") if item["metadata"]["name"].startswith("hami")]
