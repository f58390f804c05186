"""The accounts of extender and kube-scheduler have the permissions that they use, according to the audit log."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import urllib3
import yaml

from hami.codec.pods import GROUP_LABEL
from testing.accounts import RBAC, binding
from testing.cluster import SCHEDULER, LocalCluster, scheduler_config
from testing.eventually import eventually
from testing.pods import pod
from testing.priorities import of_priority
from testing.processes import Program, free_port
from testing.rights import Right, calls, granted, refused, shipped, unused
from testing.sandbox import Sandbox
from testing.scheduler import (
    EXTENDER,
    NAMESPACE,
    Certificates,
    Scheduler,
    kube_scheduler_kubeconfig,
    lease_holder,
    redirect_webhook,
    second_replica,
)

LOCK = "hami.io/mutex.lock"
OF_PARENTS = Right("scheduling.k8s.io", "compositepodgroups", "get")
"""For gangs whose PodGroup has a parent, which this control plane does not have: test_gangs.py."""
READ_NODE = Right("", "nodes", "get")
Object = dict[str, Any]
STAMP = "%Y-%m-%dT%H:%M:%SZ"
pytestmark = pytest.mark.usefixtures("priorities")


@contextlib.contextmanager
def changing(sandbox: Sandbox, node: str) -> Iterator[None]:
    """Another client writes to the node continuously."""
    stop = threading.Event()

    def write() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            sandbox.annotate_node(node, {"example.com/number": str(number)})

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def alone(
    sandbox: Sandbox, scheduler: Scheduler, local: LocalCluster, certificates: Certificates
) -> Iterator[Scheduler]:
    """A single replica, whose kube-scheduler has the permissions of its shipped account."""
    with second_replica(scheduler, kube_scheduler_kubeconfig(local)) as second:
        local.components["kube-scheduler"].stop()
        sandbox.kube.delete("Lease", SCHEDULER, NAMESPACE)  # so that it creates one
        scheduler.stop()
        second.wait_healthy()
        redirect_webhook(sandbox.kube, certificates, second.port)
        yield second


@pytest.fixture
def itself(local: LocalCluster, alone: Scheduler) -> Iterator[str]:
    """The pod of the replica."""
    labels = {"app.kubernetes.io/component": "hami-scheduler", "hami.io/webhook": "ignore"}
    local.kube.create(pod(alone.name, labels=labels, scheduler="nobody"), "kube-system")
    yield alone.name
    local.kube.delete("Pod", alone.name, "kube-system", grace_seconds=0)


def test_both_programs_use_every_right_that_they_have_and_miss_none(sandbox, local, alone, itself):
    """Of kube-scheduler's account, the rights that we give it beside Kubernetes' own roles."""
    sandbox.add_gpu_node("n0")
    # earlier tests may have restarted the API server, which rejects requests until it has loaded its roles
    begun = local.audit_log.stat().st_size
    # reads its pod
    sandbox.annotate_node("n0", {LOCK: f"{datetime.now(UTC):{STAMP}},{sandbox.namespace},gone"})
    sandbox.create(
        pod("fits", gpu=1, gpumem=1000), *(pod(f"large-{number}", gpu=20) for number in range(2))
    )
    sandbox.event("large-0", "FilteringFailed")
    assert sandbox.started(wait_for=1) == {"fits": "n0"}
    small = [pod(f"small-{number}", gpu=1, gpumem=1000, gpucores=1) for number in range(8)]
    # a write then conflicts, and is retried with a version that is read
    with changing(sandbox, "n0"):
        sandbox.create_all(small)
        assert len(sandbox.started(wait_for=9)) == 9
        for item in small * 4:
            if not unused({READ_NODE}, calls(local.audit_log, EXTENDER, begun)):
                break
            sandbox.delete(item["metadata"]["name"])
            sandbox.create(item)
            sandbox.started(wait_for=9)
    sandbox.kube.wait(
        "Pod",
        lambda pods: pods[itself]["metadata"]["labels"].get("hami.io/scheduler-role") == "leader",
        "kube-system",
        what="labels the pod that leads",
    )
    # its group is looked for among those of Kubernetes and of the coscheduling plugin
    sandbox.create(
        of_priority("urgent", pod("urgent", gpu=1, gpumem=80_000, labels={GROUP_LABEL: "alone"}))
    )
    sandbox.kube.wait(
        "Pod",
        lambda pods: pods["urgent"]["spec"].get("nodeName"),
        sandbox.namespace,
        what="all others are evicted",
    )
    for account in (EXTENDER, SCHEDULER):
        assert not refused(calls(local.audit_log, account, begun))
        rights = granted(shipped("rbac.yaml"), account) - {OF_PARENTS}
        assert not unused(rights, calls(local.audit_log, account))


def test_kube_scheduler_evicts_binds_and_provisions_with_its_own_account(sandbox, local, alone):
    """A pod with devices by its extender, of which others are in the way; a pod without, whose volume it chooses."""
    kube = sandbox.kube
    eventually(lambda: lease_holder(kube), "kube-scheduler leads")
    begun = local.audit_log.stat().st_size
    sandbox.add_gpu_node("n0")
    volume = f"v-{sandbox.namespace}"
    with claimed(sandbox, volume):
        low = pod("low", cpu=900, scheduler=SCHEDULER)
        claims = pod("claims", cpu=50, scheduler=SCHEDULER)
        claims["spec"]["volumes"] = [
            {"name": "data", "persistentVolumeClaim": {"claimName": volume}}
        ]
        sandbox.create(low, claims)
        assert sandbox.bound(2) == {"low": "n0", "claims": "n0"}
        sandbox.create(of_priority("high", pod("high", gpu=1, gpumem=1000, cpu=500)))
        kube.wait(
            "Pod",
            lambda pods: "low" not in pods and pods["high"]["spec"].get("nodeName"),
            sandbox.namespace,
            what="the pod that is in the way is evicted",
        )
    made = list(calls(local.audit_log, SCHEDULER, begun))
    assert not refused(made)
    assert not refused(calls(local.audit_log, EXTENDER, begun))
    done = {(call.right.resource, call.right.verb) for call in made}
    assert done >= {
        ("pods", "delete"),
        ("pods/status", "patch"),
        ("pods/binding", "create"),
        ("persistentvolumes", "update"),
    }
    assert ("pods/binding", "create") in {
        (call.right.resource, call.right.verb) for call in calls(local.audit_log, EXTENDER, begun)
    }


@contextlib.contextmanager
def claimed(sandbox: Sandbox, name: str) -> Iterator[None]:
    """A volume that waits for its first pod, and a claim for it."""
    items = [
        (item, sandbox.namespace if item["kind"] == "PersistentVolumeClaim" else None)
        for item in storage(name)
    ]
    for item, namespace in items:
        sandbox.kube.create(item, namespace)
    try:
        yield
    finally:
        for item, namespace in reversed(items):
            sandbox.kube.delete(item["kind"], name, namespace)


def storage(name: str) -> list[Object]:
    """Returns a volume that waits for its first pod, and a claim for it."""
    of_class = {"storageClassName": name, "accessModes": ["ReadWriteOnce"]}
    return [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {**of_class, "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/tmp"}},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": {**of_class, "resources": {"requests": {"storage": "1Gi"}}},
        },
    ]


@pytest.fixture
def scraped(local: LocalCluster) -> Iterator[str]:
    """The address of the metrics of a kube-scheduler that asks the API server who may read them, with its own account,
    as that of the shipped pod does."""
    kubeconfig, port = kube_scheduler_kubeconfig(local), free_port()
    config = local.folder / "scraped.yaml"
    config.write_text(yaml.safe_dump(scheduler_config(free_port(), kubeconfig=kubeconfig)))
    flags = {
        "config": config,
        "secure-port": port,
        "bind-address": "127.0.0.1",
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
    }
    words = [f"--{name}={value}" for name, value in flags.items()]
    program = Program(
        "scraped",
        [str(local.binaries["kube-scheduler"]), *words],
        local.folder / "scraped.log",
    )
    program.start()
    yield f"https://127.0.0.1:{port}/metrics"
    program.kill()


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")  # as Prometheus has to
def test_prometheus_reads_the_metrics_of_kube_scheduler_with_a_right_to_them(sandbox, scraped):
    kube, name = sandbox.kube, f"metrics-{sandbox.namespace}"
    rule = {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
    role = {"kind": "ClusterRole", "metadata": {"name": name}, "rules": [rule]}
    of_prometheus = binding(sandbox, "prometheus", name, kind="ClusterRoleBinding")
    for account in ("prometheus", "other"):
        kube.create(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}},
            sandbox.namespace,
        )
    kube.create({"apiVersion": f"{RBAC}/v1", **role})
    kube.create(of_prometheus)

    def scrape(account: str) -> urllib3.BaseHTTPResponse | None:
        token = kube.token(account, sandbox.namespace)
        pool = urllib3.PoolManager(cert_reqs="CERT_NONE", retries=False, timeout=20)
        with contextlib.suppress(urllib3.exceptions.HTTPError):  # it has not started yet
            return pool.request("GET", scraped, headers={"Authorization": f"Bearer {token}"})
        return None

    try:
        page = eventually(
            lambda: (answer := scrape("prometheus")) and answer.status == 200 and answer,
            "kube-scheduler shows its metrics",
        )
        assert b"scheduler_pending_pods{" in page.data
        assert scrape("other").status == 403
    finally:
        kube.delete("ClusterRoleBinding", name)
        kube.delete("ClusterRole", name)
