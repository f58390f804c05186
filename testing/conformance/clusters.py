"""Fake nodes for Kubernetes' own tests: with HAMi and a slice in every pod, or without."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testing.card_watch import CardWatch
from testing.cluster import SCHEDULER, LocalCluster
from testing.conformance.slices import SliceWatch, is_of_test
from testing.eventually import eventually
from testing.kube import ApiError, Kube
from testing.nodes import LOCK_FREE, fake_node, gpus
from testing.pods import pod
from testing.scheduler import Certificates, Scheduler, install, wait_for_webhook

__all__ = ["ReadyCluster", "with_hami", "without_hami"]

Object = dict[str, Any]
POLICY = Path(__file__).with_name("slices.yaml")
STAGES = (Path(__file__).with_name("kwok.yaml"),)
NAMESPACES = "e2e-framework"
"""The label of the namespaces of Kubernetes' tests."""
GATES = {
    "kubeFeatureGates": "GenericWorkload=true",
    "kubeRuntimeConfig": "scheduling.k8s.io/v1beta1=true",
}
"""Groups of pods are off by default; tests of them are among those of scheduling."""
NODES = 4
"""Tests of disruptions need fewer than seven; those that fill all nodes take longer with more."""
ROOM = {"cpu": "8", "memory": "32Gi", "ephemeral-storage": "100Gi", "pods": "110"}
SYSTEM_POD = "kube-proxy-fluentd-elasticsearch-node-problem-detector"
"""On each node. Many tests wait for a minute if no name of a pod there contains these three."""
GPUS = 11
"""Enough slots for the pods that a node may have."""
CLEAR_S = 300


@dataclass(frozen=True, slots=True)
class ReadyCluster:
    """A cluster for one test at a time."""

    cluster: LocalCluster
    slices: SliceWatch
    """The pods of the tests."""
    cards: CardWatch
    """What the pods hold of the cards."""
    scheduler: Scheduler | None = None
    """HAMi's; ``None`` without HAMi."""

    def clear(self) -> None:
        """Waits until the pods of the last test are gone: they would be in the way of the next one.

        Their namespaces are being deleted, so that no more are created there. Raises: WaitTimeout.
        """

        def is_clear() -> bool:
            return not any(is_of_test(item) for item in self.cluster.kube.list("Pod"))

        eventually(is_clear, "the pods of the test are gone", timeout=CLEAR_S, interval=0.5)
        self.slices.settle()

    def objections(self) -> list[str]:
        """Returns what is wrong with the pods of the tests so far: with HAMi, each has a slice."""
        if self.scheduler is None:
            return []
        without_slice = [
            f"{name} was bound without a slice" for name in self.slices.without_slice()
        ]
        return without_slice + self.cards.wrong

    def logs(self) -> str:
        """Returns the end of the logs of all processes."""
        own = f"--- hami scheduler\n{self.scheduler.program.tail()}\n" if self.scheduler else ""
        return own + self.cluster.logs()


@contextlib.contextmanager
def with_hami() -> Iterator[ReadyCluster]:
    """Yields a cluster with HAMi, in which each pod of the tests gets a slice of a GPU."""
    with LocalCluster.started(
        adjust=add_default_profile, durable=False, options=GATES, stages=STAGES
    ) as cluster:
        certificates = Certificates(cluster.folder / "tls")
        scheduler = Scheduler(cluster, certificates, install(cluster, certificates))
        try:
            scheduler.start()
            add_nodes(cluster.kube)
            cluster.kube.apply_yaml(POLICY.read_text())
            wait_for_webhook(cluster.kube)
            wait_for_slices(cluster.kube)
            with SliceWatch(cluster.kube) as slices, CardWatch(cluster.kube) as cards:
                yield ReadyCluster(cluster, slices, cards, scheduler)
        finally:
            scheduler.close()
            cluster.kube.close()


@contextlib.contextmanager
def without_hami() -> Iterator[ReadyCluster]:
    """Yields a cluster with the same nodes, and Kubernetes' own scheduler as it is by default."""
    with LocalCluster.started(
        adjust=keep_defaults, extender=False, durable=False, options=GATES, stages=STAGES
    ) as cluster:
        try:
            add_nodes(cluster.kube)
            with SliceWatch(cluster.kube) as slices, CardWatch(cluster.kube) as cards:
                yield ReadyCluster(cluster, slices, cards)
        finally:
            cluster.kube.close()


def add_default_profile(config: Object) -> None:
    """Adds the profile of pods that name no scheduler: those without devices."""
    config["profiles"].append({"schedulerName": "default-scheduler"})


def keep_defaults(config: Object) -> None:
    """Removes all that HAMi changes."""
    for key in set(config) - {"apiVersion", "kind", "leaderElection"}:
        del config[key]


def add_nodes(kube: Kube) -> None:
    """Adds the nodes, in two zones, with a pod of the system on each; waits until all are ready."""
    kube.wait(
        "ServiceAccount",
        lambda accounts: "default" in accounts,
        "kube-system",
        what="pods have an account",
    )
    names = [f"node-{number}" for number in range(NODES)]
    for number, name in enumerate(names):
        zone = {"topology.kubernetes.io/zone": f"zone-{number % 2}"}
        node = fake_node(name, gpus(GPUS), labels=zone, annotations=LOCK_FREE)
        node["status"]["capacity"].update(ROOM)
        node["status"]["allocatable"].update(ROOM)
        node["status"]["addresses"] = [{"type": "InternalIP", "address": f"192.0.2.{number + 1}"}]
        kube.create(node)
        system_pod = pod(f"{SYSTEM_POD}-{name}")
        # bound by kube-scheduler: pods that never were lack a condition
        system_pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": name}
        system_pod["spec"]["tolerations"] = [{"operator": "Exists"}]
        kube.create(system_pod, "kube-system")

    def are_ready(nodes: dict[str, Object]) -> bool:
        return all(not nodes[name]["spec"].get("taints") for name in names)

    def are_running(pods: dict[str, Object]) -> bool:
        return all(item["status"].get("phase") == "Running" for item in pods.values())

    kube.wait("Node", are_ready, what="the nodes are ready")
    kube.wait("Pod", are_running, "kube-system", what="a pod of the system runs on each node")


def wait_for_slices(kube: Kube) -> None:
    """Waits until the API server adds slices to pods of tests, and HAMi's webhook sees them."""
    name = "conformance-probe"
    kube.create(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": {NAMESPACES: name}},
        }
    )

    def is_mutated() -> bool:
        try:
            made = kube.dry_run(pod("probe"), name)
        except ApiError:  # the namespace has no account for pods yet
            return False
        return bool(made["spec"]["schedulerName"] == SCHEDULER)

    eventually(is_mutated, "pods of tests get a slice")
    kube.delete("Namespace", name)
