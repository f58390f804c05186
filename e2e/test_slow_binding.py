"""Pods whose binding takes long since kube-scheduler waits for a volume: their devices are kept for them meanwhile."""

import time

import pytest

from e2e.eventually import eventually
from e2e.nodes import LOCK_FREE, gpu
from e2e.pods import pod

WHOLE = {"gpu": 1, "gpucores": 100}
SIZE = {"storage": "1Gi"}
SELECTED = "volume.kubernetes.io/selected-node"
PAUSE_S = 90  # longer than the minute after which a reservation without a bind once ended

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def slow_volume(sandbox):
    """A claim that is provisioned for the node of its first pod, by nobody but this test."""
    name = f"slow-{sandbox.namespace}"
    sandbox.kube.create({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
        "provisioner": "example.com/slow", "volumeBindingMode": "WaitForFirstConsumer"})
    sandbox.kube.create({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "slow"},
        "spec": {"storageClassName": name, "accessModes": ["ReadWriteOnce"], "resources": {"requests": SIZE}}},
        sandbox.namespace)
    yield SlowVolume(sandbox, name)
    for kind in ("PersistentVolume", "StorageClass"):
        sandbox.kube.delete(kind, name)


class SlowVolume:
    """The claim *slow* of the sandbox. *name*: of its class, and of its volume."""

    def __init__(self, sandbox, name):
        self.sandbox, self.name = sandbox, name

    def pod(self, name):
        item = pod(name, scheduler="hami-scheduler", **WHOLE)
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "slow"}}]
        return {**item, "spec": {**item["spec"], "volumes": volumes}}

    def wait_wanted(self):
        """Waits until kube-scheduler wants the volume on the node that it has chosen."""
        eventually(lambda: SELECTED in self.claim()["metadata"].get("annotations", {}), "a node is chosen")

    def claim(self):
        return self.sandbox.kube.get("PersistentVolumeClaim", "slow", self.sandbox.namespace)

    def provision(self):
        claim = self.claim()
        self.sandbox.kube.create({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": self.name}, "spec": {
                "storageClassName": self.name, "accessModes": ["ReadWriteOnce"], "capacity": SIZE,
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/tmp/slow"},
                "claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "name": "slow",
                             "namespace": self.sandbox.namespace, "uid": claim["metadata"]["uid"]}}})


def test_a_card_is_kept_while_a_volume_is_made(sandbox, slow_volume):
    sandbox.add_gpu_node("n0", gpu(), annotations=LOCK_FREE)
    sandbox.create(slow_volume.pod("slow"))
    slow_volume.wait_wanted()
    begun = time.monotonic()
    number = 0
    while time.monotonic() - begun < PAUSE_S:  # each of them is tried when it is new
        sandbox.create(pod(f"rival-{number}", **WHOLE))
        sandbox.refusal(f"rival-{number}")
        number += 1
        time.sleep(10)
    slow_volume.provision()
    assert sandbox.started(wait_for=1) == {"slow": "n0"}
    sandbox.delete("slow")
    assert len(sandbox.started(wait_for=1)) == 1


def test_a_card_is_kept_for_a_volume_while_the_scheduler_is_restarted(sandbox, slow_volume, scheduler):
    sandbox.add_gpu_node("n0", gpu(), annotations=LOCK_FREE)
    sandbox.create(slow_volume.pod("slow"))
    slow_volume.wait_wanted()
    scheduler.kill()
    scheduler.start()
    sandbox.create(pod("rival", scheduler="hami-scheduler", **WHOLE))
    sandbox.refusal("rival")
    slow_volume.provision()
    assert sandbox.started(wait_for=1) == {"slow": "n0"}
