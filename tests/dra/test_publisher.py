"""The slices of a node: what is written, and when."""

import json
from dataclasses import replace

import pytest

from hami.codec.keys import CORDON
from hami.devices.inventory import DeviceInventory
from hami.dra.publisher import SlicePublisher
from hami.errors import ClusterError, HamiError, NotFound
from hami.model import Node
from testing.cards import HALF, SMALL, cards, config
from testing.cases import cases
from testing.claim_stage import NODE, FakeResources
from testing.eventually import eventually
from testing.fake_cluster import FakeCluster

NAME = f"0-gpu.hami.io-{NODE}"


class Stage:
    """A node with two cards, whose slices are published."""

    def __init__(self, **given):
        self.cluster = FakeCluster(nodes=[Node(name=NODE, uid="uid-of-node")])
        self.resources = FakeResources()
        self.inventory = DeviceInventory()
        self.inventory.update(cards("GPU-a", "GPU-b"))
        self.publisher = SlicePublisher(
            config(node=NODE, **given), self.cluster, self.resources, self.inventory
        )

    def publish(self):
        """Reconciles; returns the names of slices that were written."""
        self.resources.writes.clear()
        self.publisher.reconcile()
        return list(self.resources.writes)

    @property
    def spec(self):
        return self.resources.documents[NAME]["spec"]


@pytest.fixture
def stage():
    return Stage()


def test_the_cards_are_published_once(stage):
    assert [stage.publish() for _ in range(3)] == [[NAME], [], []]
    assert [device["name"] for device in stage.spec["devices"]] == ["gpu-a", "gpu-b"]
    assert stage.spec["pool"] == {"name": f"hami/{NODE}", "generation": 1, "resourceSliceCount": 1}
    (owner,) = stage.resources.documents[NAME]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", "uid-of-node")


def test_of_a_node_whose_claims_hami_allocates_each_card_has_a_taint():
    stage = Stage(allocation_mode="dra", claim_allocator="hami")
    assert [stage.publish() for _ in range(2)] == [[NAME], []]
    assert [device["taints"] for device in stage.spec["devices"]] == [
        [{"key": "hami.io/managed", "effect": "NoSchedule"}]
    ] * 2


def test_of_a_node_in_mig_mode_instances_and_their_counters_are_published():
    stage = Stage(allocation_mode="dra", operating_mode="mig")
    stage.inventory.update(cards("GPU-a", "GPU-b", mig=True, profiles=(SMALL, HALF)))
    names = [f"{number}-gpu.hami.io-{NODE}" for number in range(2)]
    assert [stage.publish() for _ in range(3)] == [names, [], []]
    assert [each["name"] for each in stage.spec["sharedCounters"]] == ["gpu-a", "gpu-b"]
    cordon(stage)
    assert stage.publish() == names
    devices = stage.resources.documents[names[1]]["spec"]["devices"]
    assert len(devices) == 18
    assert {device["name"][:5] for device in devices if "taints" in device} == {"gpu-a"}


def edit(stage):
    stage.spec["devices"].pop()


def cordon(stage):
    stage.cluster.put_node(replace(stage.cluster.nodes[NODE], annotations={CORDON: "GPU-a"}))


def add_stale_slice(stage):
    document = json.loads(json.dumps(stage.resources.documents[NAME]))
    document["metadata"] = {"name": "9-old"}
    stage.resources.write_slice(document)


@cases(
    "change, written",
    ("deleted", lambda stage: stage.resources.documents.clear(), [NAME]),
    ("changed", edit, [NAME]),
    ("unhealthy card", lambda stage: stage.inventory.report("GPU-a", "lost"), [NAME]),
    ("cordoned card", cordon, [NAME]),
    ("one slice too many", add_stale_slice, [NAME, "9-old"]),
    ("new card", lambda stage: stage.inventory.update(cards("GPU-a", "GPU-b", "GPU-c")), [NAME]),
)
def test_a_change_is_written_once(stage, change, written):
    stage.publish()
    generation = stage.spec["pool"]["generation"]
    change(stage)
    is_gone = NAME not in stage.resources.documents
    assert [stage.publish(), stage.publish()] == [written, []]
    assert list(stage.resources.documents) == [NAME]
    assert stage.spec["pool"]["generation"] == (1 if is_gone else generation + 1)


def test_a_pool_of_which_a_part_was_written_is_completed(stage):
    stage.inventory.update(cards(*(f"GPU-{number}" for number in range(70))))
    stage.publish()
    stage.resources.documents[f"1-gpu.hami.io-{NODE}"]["spec"]["pool"]["generation"] = 7
    assert len(stage.publish()) == 2
    assert {item["spec"]["pool"]["generation"] for item in stage.resources.documents.values()} == {
        8
    }
    assert stage.publish() == []


def test_a_node_that_does_not_exist_has_no_slices(stage):
    stage.cluster.nodes.clear()
    with pytest.raises(NotFound, match="check --node-name"):
        stage.publish()


def test_an_api_server_that_leaves_out_parts_is_not_asked_again_and_again(stage):
    stage.resources.alter = lambda document: [
        device.pop("allowMultipleAllocations") for device in document["spec"]["devices"]
    ]
    assert stage.publish() == [NAME]
    for _ in range(3):
        with pytest.raises(HamiError, match="DRAConsumableCapacity"):
            stage.publisher.reconcile()
    assert stage.resources.writes == [NAME]
    stage.resources.documents.clear()
    assert stage.publish() == [NAME]


# ---- the task


@pytest.fixture
def running(stage):
    stage.publisher.start()
    yield stage
    stage.publisher.stop()
    stage.inventory.close()
    stage.publisher.join(20)


def test_nothing_is_published_before_the_kubelet_calls_the_driver(running):
    assert "not published yet" in running.publisher.unready_reason
    running.publisher.prune(set(), 0.0)
    assert running.resources.writes == []
    running.publisher.publish()
    eventually(lambda: running.publisher.unready_reason == "", "it is published")
    assert running.resources.writes == [NAME]


@pytest.mark.parametrize("notice", ["upsert", "remove", "prune"])
def test_what_the_watch_reports_is_looked_at(running, notice):
    running.publisher.publish()
    eventually(lambda: NAME in running.resources.documents, "it is published")
    running.resources.documents.clear()
    getattr(running.publisher, notice)(*(({}, 0.0) if notice == "prune" else (None,)))
    eventually(lambda: NAME in running.resources.documents, "it is published again")


def test_an_error_is_shown_and_another_attempt_made(running):
    running.resources.error = ClusterError("connection refused")
    running.publisher.publish()
    eventually(
        lambda: "connection refused" in running.publisher.unready_reason, "the error is shown"
    )
    running.resources.error = None
    eventually(lambda: running.publisher.unready_reason == "", "it is published", timeout=30)
    assert NAME in running.resources.documents
