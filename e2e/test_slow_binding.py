"""Pods whose binding takes long since kube-scheduler waits for a volume or for other pods: their devices are kept for
them meanwhile."""

import json
import time

import pytest
import urllib3

from testing.eventually import eventually
from testing.nodes import LOCK_FREE, gpu
from testing.pods import pod
from testing.scheduler import kill_leader, second_replica

WHOLE = {"gpu": 1, "gpucores": 100}
SIZE = {"storage": "1Gi"}
SELECTED = "volume.kubernetes.io/selected-node"
PAUSE_S = 90  # longer than the minute after which a reservation without a bind once ended
WAITS_S = 15  # longer than the devices of a group's pod are kept without a sign of kube-scheduler

shows_the_node = pytest.mark.since(1, 35)
"""kube-scheduler nominates the node before it waits for the volume, and so the next leader knows of it."""


@pytest.fixture
def slow_volume(sandbox):
    """A claim that is provisioned for the node of its first pod, by nobody but this test."""
    name = f"slow-{sandbox.namespace}"
    sandbox.kube.create(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name},
            "provisioner": "example.com/slow",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    )
    sandbox.kube.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "slow"},
            "spec": {
                "storageClassName": name,
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": SIZE},
            },
        },
        sandbox.namespace,
    )
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
        eventually(
            lambda: SELECTED in self.claim()["metadata"].get("annotations", {}), "a node is chosen"
        )

    def claim(self):
        return self.sandbox.kube.get("PersistentVolumeClaim", "slow", self.sandbox.namespace)

    def provision(self):
        claim = self.claim()
        self.sandbox.kube.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": self.name},
                "spec": {
                    "storageClassName": self.name,
                    "accessModes": ["ReadWriteOnce"],
                    "capacity": SIZE,
                    "persistentVolumeReclaimPolicy": "Retain",
                    "hostPath": {"path": "/tmp/slow"},
                    "claimRef": {
                        "kind": "PersistentVolumeClaim",
                        "apiVersion": "v1",
                        "name": "slow",
                        "namespace": self.sandbox.namespace,
                        "uid": claim["metadata"]["uid"],
                    },
                },
            }
        )


def rivals_are_refused(sandbox, seconds, pause_s):
    """Creates a pod every *pause_s* seconds: each is tried when it is new."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        sandbox.create(pod(f"rival-{number}", **WHOLE))
        sandbox.refusal(f"rival-{number}")
        number += 1
        time.sleep(pause_s)


def test_a_card_is_kept_while_a_volume_is_made(sandbox, slow_volume):
    sandbox.add_gpu_node("n0", gpu(), annotations=LOCK_FREE)
    sandbox.create(slow_volume.pod("slow"))
    slow_volume.wait_wanted()
    rivals_are_refused(sandbox, PAUSE_S, 10)
    slow_volume.provision()
    assert sandbox.started(wait_for=1) == {"slow": "n0"}
    sandbox.delete("slow")
    assert len(sandbox.started(wait_for=1)) == 1


@shows_the_node
def test_a_card_is_kept_for_a_volume_while_the_scheduler_is_restarted(
    sandbox, slow_volume, scheduler
):
    sandbox.add_gpu_node("n0", gpu(), annotations=LOCK_FREE)
    sandbox.create(slow_volume.pod("slow"))
    slow_volume.wait_wanted()
    scheduler.kill()
    scheduler.start()
    sandbox.create(pod("rival", scheduler="hami-scheduler", **WHOLE))
    sandbox.refusal("rival")
    slow_volume.provision()
    assert sandbox.started(wait_for=1) == {"slow": "n0"}


@shows_the_node
def test_the_next_leader_keeps_a_card_for_a_volume(sandbox, slow_volume, scheduler):
    """Although it tries another pod first: kube-scheduler lists pods by name when it starts."""
    sandbox.add_gpu_node("n0", gpu(), annotations=LOCK_FREE)
    with second_replica(scheduler) as standby:
        sandbox.create(slow_volume.pod("slow"))
        slow_volume.wait_wanted()
        kill_leader(scheduler, standby)
        sandbox.create(pod("rival", scheduler="hami-scheduler", **WHOLE))
        sandbox.event("rival", "FilteringFailed")
        slow_volume.provision()
        assert sandbox.started(wait_for=1) == {"slow": "n0"}


def verb(scheduler, name, arguments):
    """Calls a verb of the extender, as kube-scheduler does."""
    answer = urllib3.request(
        "POST", f"http://127.0.0.1:{scheduler.extender_port}/{name}", json=arguments, timeout=30
    )
    assert answer.status == 200, answer.data
    return json.loads(answer.data)


def test_a_card_is_kept_while_other_pods_of_a_group_are_awaited(sandbox, scheduler):
    """This test does what kube-scheduler does with the plugin Coscheduling, whose Permit waits for the whole group."""
    sandbox.add_gpu_node("n0", gpu(), annotations=LOCK_FREE)
    node = sandbox.node("n0")["metadata"]["name"]
    sandbox.create(
        pod(
            "member",
            scheduler="coscheduler",
            labels={"scheduling.x-k8s.io/pod-group": "g"},
            **WHOLE,
        )
    )
    member = sandbox.pod("member")
    asked = {"Pod": member, "NodeNames": [node]}
    # an earlier test may have left the leadership to another process, which gives it back
    eventually(lambda: verb(scheduler, "filter", asked)["NodeNames"] == [node], "a node is chosen")
    sandbox.kube.merge_patch(
        "Pod",
        "member",
        {"status": {"nominatedNodeName": node}},
        sandbox.namespace,
        subresource="status",
    )
    rivals_are_refused(sandbox, WAITS_S, 3)
    meta = member["metadata"]
    binding = {
        "PodName": "member",
        "PodNamespace": meta["namespace"],
        "PodUID": meta["uid"],
        "Node": node,
    }
    # like kube-scheduler: a bind fails while the leadership is lost
    eventually(lambda: not verb(scheduler, "bind", binding)["Error"], "it is bound", interval=1)
    assert sandbox.bound(1) == {"member": "n0"}
