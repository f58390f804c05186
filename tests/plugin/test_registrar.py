"""Registration of the node."""

import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from hami.codec.keys import ALLOCATION_MODE, CAPACITY, LOCK_FREE, NODE_RESIZES
from hami.devices.inventory import DeviceInventory
from hami.errors import ClusterError, Conflict, HamiError, NotFound
from hami.model import Node
from hami.plugin.registrar import CONFLICT_S, NodeRegistrar, withdrawn_unless_read
from hami.vendors.inventory import PAIR_SCORES
from testing.builders import NVIDIA
from testing.cards import cards, config
from testing.cases import cases
from testing.fake_cluster import FakeCluster

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Source:
    """Cards that a test sets."""

    def __init__(self, *found):
        self.found = list(found)

    def cards(self):
        return self.found


class Scene:
    """A node and its registrar."""

    def __init__(self, source=None, is_lock_free=None, watched_pods=lambda: None, **fields):
        self.cluster = FakeCluster(nodes=[Node(name="n1")])
        self.source = source or Source(*cards("GPU-a", "GPU-b"))
        self.inventory = DeviceInventory()
        self.config = config(**fields)
        self.registrar = NodeRegistrar(
            self.cluster,
            self.inventory,
            self.config,
            NVIDIA,
            now=lambda: NOW,
            is_lock_free=is_lock_free,
            watched_pods=watched_pods,
        )

    def read(self):
        self.inventory.update(self.source.cards())

    def round(self):
        self.read()
        self.registrar.register()

    @property
    def annotations(self):
        return self.cluster.nodes["n1"].annotations

    @property
    def capacity(self):
        return self.cluster.nodes["n1"].capacity

    @property
    def writes(self):
        return len(self.cluster.calls_of("annotate_node"))


@pytest.fixture
def scene():
    """One with two cards."""
    return Scene()


def test_cards_are_written_once(scene):
    for _ in range(3):
        scene.round()
        scene.source.found.reverse()
    assert scene.writes == 1
    assert '"id":"GPU-a"' in scene.annotations[NVIDIA.annotations.register]


def test_a_change_of_health_is_written(scene):
    scene.round()
    scene.inventory.report("GPU-b", "XID 79")
    scene.round()
    assert scene.annotations[NVIDIA.annotations.register].count('"health":true') == 1
    assert scene.writes == 2


@cases("after", ("before it took effect", False), ("after", True))
def test_a_failed_write_is_retried(scene, after):
    scene.cluster.fail("annotate_node", ClusterError("away"), after=after)
    with pytest.raises(ClusterError):
        scene.round()
    scene.round()
    assert '"id":"GPU-a"' in scene.annotations[NVIDIA.annotations.register]
    assert scene.writes == (1 if after else 2)


def test_removed_annotations_are_restored(scene):
    scene.round()
    scene.cluster.annotate_node("n1", {NVIDIA.annotations.register: None})
    scene.round()
    assert NVIDIA.annotations.register in scene.annotations


def test_a_handshake_of_current_schedulers_is_not_changed(scene):
    scene.round()
    scene.cluster.annotate_node(
        "n1", {NVIDIA.annotations.handshake: "Requesting_2026-01-02 03:04:00"}
    )
    writes = scene.writes
    scene.round()
    assert scene.writes == writes


def test_a_handshake_of_older_schedulers_is_answered_once():
    scene = Scene(register_format="csv")
    scene.round()
    scene.cluster.annotate_node(
        "n1", {NVIDIA.annotations.handshake: "Requesting_2026-01-02 03:04:00"}
    )
    writes = scene.writes
    for _ in range(2):
        scene.round()
    assert scene.annotations[NVIDIA.annotations.handshake] == "Reported 2026-01-02 03:04:05"
    assert scene.writes == writes + 1


def test_a_missing_node_is_named(scene):
    scene.cluster.nodes.clear()
    with pytest.raises(NotFound, match="no node n1: check --node-name"):
        scene.round()


def test_unregister_removes_the_annotations():
    scene = Scene(topology_score=True)
    scene.round()
    assert {NVIDIA.annotations.register, PAIR_SCORES} <= scene.annotations.keys()
    scene.registrar.leave(unregister=True)
    assert scene.annotations == {}


def test_a_failed_unregister_is_only_logged(scene, caplog):
    scene.cluster.fail("annotate_node", ClusterError("away"))
    scene.registrar.leave(unregister=True)
    assert "node annotations cannot be removed" in caplog.text


def test_a_withdrawal_while_others_change_the_node_is_tried_again(scene):
    scene.round()
    scene.cluster.fail("annotate_node", Conflict("changed", 409))
    with pytest.raises(HamiError, match="driver"):
        with withdrawn_unless_read(scene.cluster, scene.config, NVIDIA, 60.0):
            raise HamiError("the driver does not answer")
    assert '"health":true' not in scene.annotations[NVIDIA.annotations.register]


def test_a_withdrawal_that_has_begun_ends_before_anything_else_is_registered(scene):
    scene.round()
    begun = threading.Event()

    def delay(call):
        if call.method == "annotate_node":
            begun.set()
            threading.Event().wait(0.2)

    scene.cluster.on_call = delay
    with withdrawn_unless_read(scene.cluster, scene.config, NVIDIA, 0.0):
        assert begun.wait(20)
    assert '"health":true' not in scene.annotations[NVIDIA.annotations.register]


def test_the_loop_writes_at_once_when_health_changes_until_it_is_stopped(scene):
    written = threading.Semaphore(0)
    write = scene.cluster.annotate_node

    def annotate_node(*args, **kwargs):
        answer = write(*args, **kwargs)
        written.release()
        return answer

    scene.cluster.annotate_node = annotate_node
    scene.read()
    running = threading.Thread(target=scene.registrar.run)
    running.start()
    assert written.acquire(timeout=20)
    scene.inventory.report("GPU-a", "XID 79")
    assert written.acquire(timeout=20)
    scene.registrar.stop()
    scene.inventory.close()
    running.join(20)
    assert not running.is_alive()


def test_the_loop_survives_errors(scene, caplog):
    scene.cluster.fail("node", ClusterError("away"))
    assert scene.registrar.step() > 0
    assert "node registration failed" in caplog.text
    scene.round()
    assert NVIDIA.annotations.register in scene.annotations


# ---- the capacity of the node


def test_the_capacity_follows_what_is_registered(scene):
    scene.round()
    assert scene.capacity == {
        "nvidia.com/total-gpumem": "163840",
        "nvidia.com/total-gpucores": "200",
    }
    scene.inventory.report("GPU-b", "XID 79")
    scene.round()
    assert scene.capacity == {
        "nvidia.com/total-gpumem": "81920",
        "nvidia.com/total-gpucores": "100",
    }


def test_the_capacity_is_scaled():
    scene = Scene(device_memory_scaling=1.5, device_core_scaling=2.0)
    scene.round()
    assert scene.capacity == {
        "nvidia.com/total-gpumem": "245760",
        "nvidia.com/total-gpucores": "400",
    }


def test_a_node_is_registered_without_the_right_to_publish(scene, caplog):
    scene.cluster.fail("publish_capacity", ClusterError("forbidden", 403), times=2)
    for _ in range(2):
        scene.round()
    assert NVIDIA.annotations.register in scene.annotations
    assert scene.registrar.wait_registered(0)
    assert caplog.text.count("node capacity cannot be published") == 1


@cases(
    "labels, written",
    ("new", {}, {"nvidia.com/gpu.count": "2", "nvidia.com/gpu.replicas": "10"}),
    ("of another number", {"nvidia.com/gpu.count": "8"}, {"nvidia.com/gpu.count": "2"}),
)
def test_a_node_gets_the_labels_by_which_opencost_prices_it(labels, written):
    scene = Scene(gpu_labels=True)
    node = scene.cluster.nodes["n1"]
    scene.cluster.put_node(replace(node, labels={**node.labels, "zone": "a"} | labels))
    for _ in range(2):
        scene.round()
    calls = scene.cluster.calls_of("label_node")
    assert [call.labels.items() >= written.items() for call in calls] == [True]
    scene.registrar.leave(unregister=False)
    assert scene.cluster.nodes["n1"].labels["nvidia.com/gpu.count"] == "2"
    scene.registrar.leave(unregister=True)
    assert scene.cluster.nodes["n1"].labels == {**node.labels, "zone": "a"}


def test_a_node_is_not_labeled_unless_it_is_to_be(scene):
    scene.round()
    scene.registrar.leave(unregister=True)
    assert not scene.cluster.calls_of("label_node")


def test_a_node_without_gpus_is_not_labeled():
    scene = Scene(Source(), gpu_labels=True)
    scene.round()
    assert not scene.cluster.calls_of("label_node")


def test_pods_are_not_listed_again_while_the_watch_shows_that_the_capacity_is_right():
    scene = Scene(publish_capacity="requests", watched_pods=list)
    for _ in range(5):
        scene.round()
    assert len(scene.cluster.calls_of("pods_on")) == 1
    assert "nvidia.com/gpumem" in scene.capacity


@pytest.mark.parametrize("unregister", [True, False])
def test_only_a_plugin_that_unregisters_removes_the_capacity(scene, unregister):
    scene.round()
    scene.registrar.leave(unregister=unregister)
    node = scene.cluster.nodes["n1"]
    assert bool(node.capacity) is (CAPACITY in node.annotations) is not unregister


@pytest.mark.parametrize("mode, restored", [("requests", True), ("totals", False)])
def test_a_registration_with_the_kubelet_restores_what_pods_need_at_once(mode, restored):
    scene = Scene(publish_capacity=mode)
    published = threading.Semaphore(0)
    publish = scene.cluster.publish_capacity

    def publish_capacity(*args):
        publish(*args)
        published.release()

    scene.cluster.publish_capacity = publish_capacity
    scene.read()
    running = threading.Thread(target=scene.registrar.run)
    running.start()
    assert published.acquire(timeout=20)
    names = scene.cluster.nodes["n1"].capacity
    scene.cluster.put_node(replace(scene.cluster.nodes["n1"], capacity=dict.fromkeys(names, "0")))
    scene.registrar.recheck()
    assert published.acquire(timeout=20 if restored else 0.2) is restored
    scene.registrar.stop()
    scene.inventory.close()
    running.join(20)
    assert not running.is_alive()


# ---- nodes whose claims HAMi's scheduler allocates

REGISTER = NVIDIA.annotations.register
MANAGED = {"allocation_mode": "dra", "claim_allocator": "hami"}


@cases(
    "fields, is_registered",
    ("device plugin", {}, True),
    ("kube-scheduler", {"allocation_mode": "dra"}, False),
)
def test_the_allocation_mode_changes_in_the_patch_of_the_devices(fields, is_registered):
    scene = Scene(**fields)
    scene.cluster.annotate_node("n1", {REGISTER: "[]", ALLOCATION_MODE: "dra"})
    scene.round()
    *_, call = scene.cluster.calls_of("annotate_node")
    assert call.annotations.keys() >= {REGISTER, ALLOCATION_MODE}
    assert ALLOCATION_MODE not in scene.annotations
    assert (REGISTER in scene.annotations) is is_registered


def test_a_managed_node_registers_once_and_is_lock_free_when_the_kubelet_calls():
    calls = []
    scene = Scene(is_lock_free=lambda: bool(calls), **MANAGED)
    for _ in range(2):
        scene.round()
    assert (scene.annotations[ALLOCATION_MODE], LOCK_FREE in scene.annotations, scene.writes) == (
        "dra",
        False,
        1,
    )
    calls.append("registered")
    scene.round()
    assert '"id":"GPU-a"' in scene.annotations[REGISTER]
    assert scene.annotations[LOCK_FREE] == "NVIDIA"


@cases(
    "before, after",
    (
        "of the device plugin",
        {REGISTER: "[]", LOCK_FREE: "DCU,NVIDIA", PAIR_SCORES: "[]"},
        {LOCK_FREE: "DCU"},
    ),
    (
        "its own",
        {REGISTER: "[]", LOCK_FREE: "NVIDIA", ALLOCATION_MODE: "dra"},
        {REGISTER: "[]", LOCK_FREE: "NVIDIA", ALLOCATION_MODE: "dra"},
    ),
)
def test_what_another_allocation_mode_offers_is_removed_first(before, after):
    scene = Scene(is_lock_free=lambda: False, **MANAGED)
    scene.cluster.annotate_node("n1", before)
    scene.registrar.remove_other_allocation_modes()
    assert scene.annotations == after


def test_a_managed_node_that_unregisters_has_no_allocation_mode():
    scene = Scene(is_lock_free=lambda: True, **MANAGED)
    scene.round()
    scene.registrar.leave(unregister=True)
    assert not scene.annotations


# ---- the annotation of nodes without a node lock


@cases(
    "before, is_lock_free, after",
    ("never was", None, None, None),
    ("not any more", "NVIDIA", None, None),
    ("not any more, beside another vendor", "DCU,NVIDIA", None, "DCU"),
    ("another", "DCU", None, "DCU"),
    ("new", None, lambda: True, "NVIDIA"),
    ("beside another vendor", "DCU", lambda: True, "DCU,NVIDIA"),
    ("not yet", None, lambda: False, None),
    ("kubelet away", "NVIDIA", lambda: False, "NVIDIA"),
)
def test_the_node_lists_the_vendor_while_it_is_lock_free(before, is_lock_free, after):
    scene = Scene(is_lock_free=is_lock_free)
    scene.cluster.annotate_node("n1", {LOCK_FREE: before})
    scene.round()
    assert scene.annotations.get(LOCK_FREE) == after
    writes = scene.writes
    scene.round()
    assert scene.writes == writes


def test_a_node_without_cards_is_not_lock_free():
    scene = Scene(Source(), is_lock_free=lambda: True)
    scene.cluster.annotate_node("n1", {LOCK_FREE: "NVIDIA"})
    scene.round()
    assert LOCK_FREE not in scene.annotations


def test_a_change_of_another_vendor_at_the_same_time_is_kept():
    scene = Scene(is_lock_free=lambda: True)
    node = scene.cluster.node("n1")
    scene.cluster.on_call = lambda call: (
        call.method == "annotate_node"
        and scene.cluster.put_node(replace(node, annotations={LOCK_FREE: "DCU"}))
    )
    with pytest.raises(Conflict):
        scene.round()
    assert scene.registrar.step() == CONFLICT_S, "it is tried again at once"
    scene.cluster.on_call = lambda call: None
    scene.round()
    assert scene.annotations[LOCK_FREE] == "DCU,NVIDIA"


@pytest.mark.parametrize("unregister", [True, False])
def test_a_plugin_that_ends_leaves_no_lock_free_node(unregister):
    scene = Scene(is_lock_free=lambda: True)
    scene.cluster.annotate_node("n1", {LOCK_FREE: "DCU"})
    scene.round()
    assert scene.annotations[LOCK_FREE] == "DCU,NVIDIA"
    scene.registrar.leave(unregister=unregister)
    assert scene.annotations[LOCK_FREE] == "DCU"
    assert (NVIDIA.annotations.register in scene.annotations) is not unregister


def test_a_plugin_that_ends_while_others_change_the_node_leaves_no_lock_free_node():
    scene = Scene(is_lock_free=lambda: True)
    scene.round()
    scene.cluster.fail("annotate_node", Conflict("changed", 409))
    scene.registrar.leave(unregister=False)
    assert LOCK_FREE not in scene.annotations


@pytest.mark.parametrize("is_lock_free", [None, lambda: True])
@pytest.mark.parametrize("unregister", [True, False])
def test_a_plugin_that_ends_leaves_no_node_that_resizes(unregister, is_lock_free):
    """Its successor may be HAMi's."""
    scene = Scene(is_lock_free=is_lock_free)
    scene.round()
    assert scene.annotations[NODE_RESIZES] == "true"
    scene.registrar.leave(unregister=unregister)
    assert NODE_RESIZES not in scene.annotations


def test_a_plugin_that_has_promised_nothing_ends_without_a_write():
    scene = Scene(operating_mode="mig")
    scene.round()
    writes = scene.writes
    scene.registrar.leave(unregister=False)
    assert scene.writes == writes
