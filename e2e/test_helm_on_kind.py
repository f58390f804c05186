"""Our chart takes over a release of HAMi's chart on real kubelets, under running GPU pods, and gives it back.

What runs in place of HAMi are our own programs, in the pods, behind the Service and with the account of HAMi's chart.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testing.cluster import SCHEDULER
from testing.eventually import eventually
from testing.helm_chart import Helm
from testing.kind import KindCluster, Worker
from testing.pods import pod
from testing.scheduler import Certificates
from testing.takeover import (
    ALLOCATED,
    NAMESPACE,
    SECRET,
    THEIRS,
    TakeOver,
    is_running,
    remains,
    remove,
)

pytestmark = [pytest.mark.kind, pytest.mark.installation]
Object = dict[str, Any]
NODE_PORT = 31998
"""Of the webhook, by default of HAMi's chart."""
MEMORY_MIB = 81_920
ANYWHERE = [{"operator": "Exists"}]
LEASES = {f"lease.coordination.k8s.io/hami-scheduler{suffix}" for suffix in ("", "-extender")}


@pytest.fixture
def nodes(bare_kind: KindCluster) -> Iterator[list[Worker]]:
    """All nodes of kind, the control plane included: device plugins are handed over one after the other.

    At the end, nothing is left of releases in `NAMESPACE`, whatever has happened.
    """
    found = bare_kind.nodes()
    with contextlib.ExitStack() as afterwards:  # does all that it can, the last first
        for node in found:
            afterwards.callback(restore, node, node.node()["metadata"])
        afterwards.callback(remove, bare_kind.kubectl)
        afterwards.callback(bare_kind.kube.delete_all, "Pod", "default", grace_seconds=0)
        bare_kind.kube.create(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        )
        bare_kind.retag("hami-device-plugin", THEIRS)
        for node in found:
            node.label({"gpu": "on"})
        yield found


def restore(node: Worker, before: Object) -> None:
    """Removes annotations that *node* did not have *before*, and restores its label."""
    now = node.node()["metadata"].get("annotations", {})
    added = {key: None for key in now if key not in before.get("annotations", {})}
    node.kube.merge_patch(
        "Node",
        node.name,
        {"metadata": {"annotations": added, "labels": {"gpu": before["labels"].get("gpu")}}},
    )


@pytest.fixture
def helm(bare_kind: KindCluster, tmp_path: Path) -> Helm:
    return Helm(tmp_path, bare_kind.kubeconfig)


def programs(helm: Helm, version: str, values: Object) -> Object:
    """Returns what the pods of HAMi's chart run here, from our chart."""
    items = {
        f"{item['kind']}/{item['metadata']['name']}": item
        for item in helm.template(
            {**values, "certificates": {"mode": "secret"}}, namespace=NAMESPACE, kubernetes=version
        )
    }
    scheduler = items["Deployment/hami-scheduler"]["spec"]["template"]["spec"]
    plugin = items["DaemonSet/hami-device-plugin"]["spec"]["template"]["spec"]
    for spec in (scheduler, plugin):
        for key in (
            "serviceAccountName",
            "automountServiceAccountToken",
            "priorityClassName",
            "securityContext",
        ):
            spec.pop(key, None)
    # HAMi's chart has one account, and mounts its token into both containers
    scheduler["volumes"] = [
        volume for volume in scheduler["volumes"] if not volume["name"].endswith("-token")
    ]
    for container in scheduler["containers"]:
        container["volumeMounts"] = [
            mount for mount in container["volumeMounts"] if not mount["name"].endswith("-token")
        ]
    extender = scheduler["containers"][1]
    extender.update(name="vgpu-scheduler-extender", image=THEIRS, securityContext={"runAsUser": 0})
    extender["command"] = [
        word.replace("--http_bind=:8443", "--http_bind=:443") for word in extender["command"]
    ]
    extender["ports"][0]["containerPort"] = 443
    scheduler["volumes"][0]["configMap"]["name"] = "hami-scheduler"
    for container in (*plugin["initContainers"], *plugin["containers"]):
        container["image"] = THEIRS
    monitor = "trap exit TERM; sleep infinity & wait"  # the first process of a container has no default for signals
    plugin["containers"].append(
        {"name": "vgpu-monitor", "image": THEIRS, "command": ["sh", "-c", monitor]}
    )
    return {
        "scheduler": scheduler,
        "devicePlugin": plugin,
        "config": items["ConfigMap/hami-kube-scheduler"]["data"]["config.yaml"],
        "deviceConfig": items["ConfigMap/hami-scheduler-device"]["data"]["device-config.yaml"],
    }


def on(node: Worker, name: str, **asked: int) -> Object:
    made = pod(name, **asked)
    made["spec"].update(nodeSelector={"kubernetes.io/hostname": node.name}, tolerations=ANYWHERE)
    return made


def test_a_release_of_hami_is_replaced_under_running_pods(bare_kind, nodes, helm, tmp_path):
    kube = bare_kind.kube

    def run(*items: Object) -> None:
        """Creates pods, and waits until their containers run."""
        for item in items:
            assert kube.create(item, "default")["spec"]["schedulerName"] == SCHEDULER, (
                "the webhook was not called"
            )
        names = {item["metadata"]["name"] for item in items}
        kube.wait(
            "Pod",
            lambda pods: all(is_running(pods[name]) for name in names),
            "default",
            what=f"{', '.join(sorted(names))} run",
        )

    def card(name: str) -> str:
        return str(
            kube.get("Pod", name, "default")["metadata"]["annotations"][ALLOCATED]
        ).partition(",")[0]

    image = {"registry": "registry.k8s.io", "repository": "kube-scheduler"}
    values = {
        "devicePlugin": {"tolerations": ANYWHERE, "mockCards": True},
        "scheduler": {"kubeScheduler": {"image": image}},
    }
    (tmp_path / "hami").mkdir()
    (tmp_path / "hami" / "programs.json").write_text(
        json.dumps(programs(helm, bare_kind.version, values))
    )
    release = TakeOver(
        kube, helm, [node.name for node in nodes], address=(nodes[0].address(), NODE_PORT)
    )
    release.install_hamis(
        tmp_path / "hami", "2.10.0", Certificates(tmp_path / "tls", NAMESPACE), values
    )
    objects = release.identities()
    with release:
        run(*(on(node, f"a{number}", gpu=1, gpumem=1000) for number, node in enumerate(nodes)))
        pods = release.pods_of_users()
        release.upgrade()
        release.wait_rollout("hami")
        assert release.identities() == objects
        run(on(nodes[0], "b", gpu=1, gpumem=MEMORY_MIB))
        assert card("b") != card("a0"), "the allocation of before is known"
        pods["b"] = release.pods_of_users()["b"]
        release.roll_back()
        assert release.identities() == objects
        run(on(nodes[-1], "c", gpu=1, gpumem=MEMORY_MIB))
        pods["c"] = release.pods_of_users()["c"]
        release.upgrade()
        release.wait_rollout("hami")
    assert release.missed == []
    assert release.admitted > 50
    assert release.connections > 50
    assert release.crowded == [], "two device plugins on a node"
    assert release.deserted == [], "two nodes without a device plugin"
    assert release.pods_of_users() == pods
    release.uninstall()
    eventually(
        lambda: remains(bare_kind.kubectl) == {f"secret/{SECRET}", *LEASES},
        lambda: f"what the README names is left: {sorted(remains(bare_kind.kubectl))}",
    )
