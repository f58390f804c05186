"""Nodes as the watch delivers them: inventories that appear, vanish, are malformed or go silent; node locks."""

from dataclasses import replace

import pytest

from hami.codec.keys import NODE_LOCK
from hami.codec.states import render_request
from hami.state.nodes import NodeCache
from hami.state.store import Store
from hami.state.view import Policies
from hami.vendors.spec import Catalog
from testing.builders import NVIDIA, device_usage, gpu, node
from testing.cases import cases
from testing.replicas import Clock
from testing.stores import SmallStore, bound_to, read_pods

LOCK = "2026-08-21T12:00:00Z,default,a"


def locked(text, version="5", **annotations):
    return node(
        "n1", gpu("GPU-0"), annotations={NODE_LOCK: text} | annotations, resource_version=version
    )


def names(cache):
    return sorted(device_usage(cache))


# inventory


def test_a_node_that_is_recreated_keeps_the_bookings_of_its_pods():
    cache = SmallStore()
    cache.pods.upsert(bound_to("a", "GPU-0,NVIDIA,500,5:;"))
    cache.nodes.remove(node("n1"))
    assert names(cache) == []
    cache.nodes.upsert(node("n1", gpu("GPU-0"), resource_version="9"))
    assert cache.used() == (1, 500, 5)


def test_an_older_version_of_a_node_is_ignored():
    cache = SmallStore()
    cache.nodes.upsert(node("n1", gpu("GPU-7"), resource_version="9"))
    cache.nodes.upsert(node("n1", gpu("GPU-8"), resource_version="8"))
    assert cache.used("GPU-7") == (0, 0, 0)


def test_a_late_answer_does_not_restore_a_deleted_node():
    cache = SmallStore(node("n1", gpu("GPU-0"), resource_version="5"))
    cache.nodes.remove(node("n1", resource_version="8"))
    cache.nodes.upsert(node("n1", gpu("GPU-0"), resource_version="7"))
    assert names(cache) == []
    assert cache.nodes.lock_of("n1") is None
    cache.nodes.upsert(node("n1", gpu("GPU-0"), resource_version="9"))
    assert names(cache) == ["n1"]


@pytest.mark.parametrize("text", ["garbage", "[null]", "[]", "{", ""])
def test_an_unreadable_inventory_has_no_devices(text):
    cache = SmallStore()
    cache.nodes.upsert(
        node("n1", annotations={NVIDIA.annotations.register: text}, resource_version="9")
    )
    assert names(cache) == []
    assert list(cache.nodes.problems()) == [("n1", "NVIDIA")]
    cache.nodes.upsert(node("n1", gpu("GPU-0"), resource_version="10"))
    assert names(cache) == ["n1"]
    assert cache.nodes.problems() == {}


def test_a_withdrawn_inventory_has_no_devices():
    cache = SmallStore()
    cache.nodes.upsert(node("n1", resource_version="9"))
    assert names(cache) == []


def managed(version, allocation_mode="dra", lock_free=True, **fields):
    """A node whose kubelet offers devices of a device plugin only without this allocation mode."""
    annotations = {
        "hami.io/allocation-mode": allocation_mode,
        "hami.io/lock-free": "NVIDIA" if lock_free else "",
    }
    return node(
        "n1",
        gpu("GPU-0"),
        annotations={key: text for key, text in annotations.items() if text},
        allocatable={NVIDIA.resources.count: "0" if allocation_mode else "10"},
        resource_version=version,
        **fields,
    )


def by_claims(cache):
    return {
        usage.device.by_claims for usages in cache.view().usages("n1").values() for usage in usages
    }


def test_a_change_of_the_allocation_mode_alone_is_seen():
    cache, label = SmallStore(), {"hami.io/allocation-mode": "dra"}
    for version, allocation_mode, found in (
        ("5", "dra", {True}),
        ("6", "", {False}),
        ("7", "dra", {True}),
    ):
        cache.nodes.upsert(managed(version, allocation_mode, labels=label))
        assert by_claims(cache) == found


def test_a_managed_node_is_offered_while_its_kubelet_can_call_the_driver():
    cache = SmallStore(managed("5"))
    cache.nodes.upsert(managed("6", lock_free=False))
    assert names(cache) == []
    cache.nodes.upsert(managed("7"))
    assert names(cache) == ["n1"]


def test_a_managed_node_answers_no_handshake():
    request = {"hami.io/node-handshake": "Requesting_2026-08-21 11:00:00"}
    asked = managed("5")
    cache = SmallStore(replace(asked, annotations={**asked.annotations, **request}))
    assert names(cache) == ["n1"]
    assert cache.nodes.reports_due() == []


def test_a_device_that_is_registered_twice_counts_once():
    cache = SmallStore(node("n1", gpu("GPU-0"), gpu("GPU-0", index=1)))
    assert len(device_usage(cache)["n1"]) == 1


@pytest.mark.parametrize("store", [NodeCache.upsert_answer, NodeCache.upsert_unwatched])
def test_an_answer_does_not_restore_a_node_that_stopped_matching_the_label_selector(store):
    cache = SmallStore(node("n1", gpu("GPU-0"), resource_version="8"))
    cache.nodes.remove(node("n1", gpu("GPU-0"), resource_version="9"))  # the watch sends DELETED
    store(cache.nodes, node("n1", gpu("GPU-0"), labels={"gpu": "off"}, resource_version="10"))
    assert names(cache) == []
    assert cache.nodes.lock_of("n1") is None


def test_a_node_that_matches_the_label_selector_again_is_restored():
    cache = SmallStore(node("n1", gpu("GPU-0"), resource_version="7"))
    cache.nodes.remove(node("n1", gpu("GPU-0"), resource_version="8"))
    cache.nodes.upsert(node("n1", gpu("GPU-0"), resource_version="9"))
    assert names(cache) == ["n1"]


def test_nodes_that_are_missing_from_a_list_are_removed():
    cache = SmallStore(node("n1", gpu("GPU-0")), node("n2", gpu("GPU-1")))
    cache.nodes.prune({"n2"}, 0.0)
    assert names(cache) == ["n2"]


@cases(
    "allocatable, waited, offered",
    ("10", 1000, True),
    ("0", 0, False),
    ("", 59, True),
    ("", 61, False),
    ("garbage", 59, True),
    ("garbage", 61, False),
)
def test_the_devices_of_a_silent_plugin_are_withdrawn(allocatable, waited, offered):
    cache = SmallStore(node("x"))
    handshake = render_request(cache.time.now())
    cache.nodes.upsert(
        node(
            "n1",
            gpu("GPU-0"),
            annotations={NVIDIA.annotations.handshake: handshake},
            allocatable={NVIDIA.resources.count: allocatable},
        )
    )
    cache.time.seconds += waited
    cache.expire()
    assert names(cache) == (["n1"] if offered else [])


def test_the_devices_return_when_the_plugin_reports_again():
    cache = SmallStore(node("x"))
    for handshake, version in ((render_request(cache.time.now()), "1"), ("Reported_now", "2")):
        cache.nodes.upsert(
            node(
                "n1",
                gpu("GPU-0"),
                annotations={NVIDIA.annotations.handshake: handshake},
                resource_version=version,
            )
        )
        cache.time.seconds += 61
        cache.expire()
    assert names(cache) == ["n1"]
    assert [name for name, _ in cache.nodes.reports_due()] == ["n1"]


@pytest.mark.parametrize(("allocatable", "offered"), [("0", False), ("", True), ("4", True)])
def test_a_kubelet_that_offers_none_gets_no_pods_of_a_vendor_without_a_handshake(
    allocatable, offered
):
    vendor = replace(NVIDIA, annotations=replace(NVIDIA.annotations, handshake=""))
    time = Clock()
    store = Store(Catalog([vendor]), Policies(), clock=time, now=time.now)
    allocatable = {vendor.resources.count: allocatable}
    store.nodes.upsert(node("n1", gpu("GPU-0"), allocatable=allocatable))
    assert names(store) == (["n1"] if offered else [])


# locks


def test_the_lock_of_a_node_and_its_version():
    cache = SmallStore()
    cache.nodes.upsert(locked(LOCK))
    assert cache.nodes.lock_of("n1") == (LOCK, 5)
    assert cache.nodes.locks() == [("n1", "hami.io/mutex.lock", LOCK)]
    cache.nodes.upsert(locked(LOCK, version="4"))
    assert cache.nodes.lock_of("n1") == (LOCK, 5)
    assert cache.nodes.lock_of("nowhere") is None


@cases(
    "change, called",
    (
        "other",
        lambda cache: cache.nodes.upsert(locked("2026-08-21T12:00:01Z,default,b", "6")),
        True,
    ),
    (
        "freed",
        lambda cache: cache.nodes.upsert(node("n1", gpu("GPU-0"), resource_version="6")),
        True,
    ),
    ("same", lambda cache: cache.nodes.upsert(locked(LOCK, "6")), False),
    ("node gone", lambda cache: cache.nodes.remove(node("n1")), True),
)
def test_a_change_returns_the_nodes_whose_locks_have_changed(change, called):
    cache = SmallStore()
    assert cache.nodes.upsert(locked(LOCK)) == ["n1"]
    assert change(cache) == (["n1"] if called else [])


def test_a_lock_of_another_process_makes_a_node_foreign():
    cache = SmallStore()
    assert read_pods(cache, "n1"), "other processes may have bound pods before"
    assert not read_pods(cache, "n1")
    cache.nodes.upsert(locked(LOCK))
    assert read_pods(cache, "n1")


def test_a_lock_of_this_process_does_not_make_a_node_foreign():
    cache = SmallStore()
    read_pods(cache, "n1")
    cache.nodes.expect_lock("n1", LOCK)
    cache.nodes.upsert(locked(LOCK))
    cache.nodes.upsert(locked(LOCK, "6"))
    assert not read_pods(cache, "n1")


def test_a_list_of_nodes_makes_them_foreign():
    cache = SmallStore()
    read_pods(cache, "n1")
    cache.nodes.prune({"n1"}, 0.0)
    assert read_pods(cache, "n1")


def test_a_later_list_of_pods_clears_unlocked_nodes():
    cache = SmallStore(node("n1", gpu()), node("n2", gpu(), annotations={NODE_LOCK: LOCK}))
    cache.foreign_nodes.clear_before(cache.time() + 1)
    assert not read_pods(cache, "n1")
    assert read_pods(cache, "n2"), "the pod that holds its lock may be bound any moment"


def test_an_earlier_list_of_pods_does_not_clear_a_foreign_node():
    cache = SmallStore()
    cache.foreign_nodes.clear_before(cache.time())
    assert read_pods(cache, "n1")
