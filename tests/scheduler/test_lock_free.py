"""Lock-free nodes: their device plugins need no lock, so a bind is one write."""

from dataclasses import replace

import pytest

from hami.codec.keys import BIND_PHASE, LOCK_FREE, NODE_LOCK
from hami.errors import ClusterError, HamiError, NodeLocked, Rejected
from hami.model import Device
from hami.vendors.spec import Annotations, Catalog, Decision, Resources, Vendor
from testing.builders import NVIDIA, container, gpu, gpus, node, pod
from testing.cases import cases
from testing.fake_cluster import no_answer
from testing.replicas import Clock, Replica, WatchedCluster, holding
from testing.stores import read_pods

ASKED = pod(gpus(1, memory=3000, cores=30), phase="Pending", scheduler_name="hami-scheduler")
LOCK = "2026-08-21T12:00:00Z,default,another"
GRANTED = "GPU-0,NVIDIA,3000,30:;"
OWN = "x.io/own.lock"


def other_vendor(lock):
    devices = (Device(uuid="X-0", vendor="X", model="X", slots=9, memory_mib=1),)
    return Vendor(
        key="X",
        resources=Resources(count="x.io/card"),
        annotations=Annotations(
            register="x.io/register",
            lock=lock,
            to_allocate="hami.io/X-devices-to-allocate",
            allocated="hami.io/X-devices-allocated",
        ),
        decision=Decision(inventory=lambda vendor, node: devices),
    )


def lock_free(names="NVIDIA", **annotations):
    return node(
        "n1",
        gpu(),
        annotations={"x.io/register": "X-0"} | ({LOCK_FREE: names} if names else {}) | annotations,
    )


def world(at=lock_free(), *pods, vendors=None, **options):
    fake = WatchedCluster(nodes=[at], pods=pods or [ASKED])
    made = Replica(fake, Clock(), vendors=vendors or Catalog([NVIDIA]), **options)
    read_pods(made.cache, "n1")
    fake.calls.clear()
    return made


def announce(made, names):
    """The node says anew which vendors need no lock."""
    known = made.fake.nodes["n1"]
    made.fake.put_node(replace(known, annotations={**known.annotations, LOCK_FREE: names}))
    made.watch()


def bound(made, name="pod1"):
    return made.fake.pods["default", name]


def test_a_bind_is_one_write():
    made = world()
    made.schedule(ASKED)
    assert [call.method for call in made.fake.calls] == ["bind"]
    assert bound(made).annotations == {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": "1787313600",
        "hami.io/bind-time": "1787313600",
        BIND_PHASE: "success",
        NVIDIA.annotations.allocated: GRANTED,
    }
    assert made.metrics.waits == []
    assert made.events.reasons() == ["FilteringSucceed", "BindingSucceed"]


def test_nothing_is_left_to_do_for_the_pod():
    made = world()
    made.schedule(ASKED)
    made.watch()
    assert made.cache.pods.unsettled() == []
    assert made.cache.open_bindings.unbound() == 0
    made.fake.calls.clear()
    made.clock.seconds += 1000
    made.controller.step()
    assert made.fake.calls_of("annotate_pod") == []
    assert "AllocationExpired" not in made.events.reasons()


def test_a_reservation_shows_what_the_binding_will_carry():
    made = world()
    made.filter(ASKED)
    reservation = made.cache.bindings.get(ASKED.ref.uid)
    assert reservation.lock_keys == ()
    assert reservation.annotations[BIND_PHASE] == "success"
    assert NVIDIA.annotations.to_allocate not in reservation.annotations


def test_what_an_earlier_assignment_left_to_allocate_is_emptied():
    made = world()
    stale = replace(ASKED, annotations={NVIDIA.annotations.to_allocate: "GPU-0,NVIDIA,1,1:;"})
    made.fake.put_pod(stale)
    made.schedule(stale)
    annotations = bound(made).annotations
    assert annotations[NVIDIA.annotations.to_allocate] == ""
    assert annotations[BIND_PHASE] == "success"


@cases(
    "text", ("empty", ""), ("another", "DCU"), ("case", "nvidia"), ("long", "NVIDIA," + "x" * 5000)
)
def test_a_node_that_does_not_name_the_vendor_is_locked(text):
    made = world(lock_free(text))
    made.schedule(ASKED)
    assert [call.method for call in made.fake.calls] == ["annotate_node", "bind"]
    assert bound(made).annotations[BIND_PHASE] == "allocating"


def test_the_lock_of_another_does_not_hold_up_a_bind():
    made = world(
        lock_free(**{NODE_LOCK: LOCK}), ASKED, holding("another", "n1", "GPU-0,NVIDIA,10,0:;")
    )
    made.schedule(ASKED)
    assert bound(made).node_name == "n1"
    assert made.fake.lock_of("n1") == LOCK


@cases(
    "lock, names, locks, phase, to_allocate",
    (NODE_LOCK, "NVIDIA,X", set(), "success", set()),
    (NODE_LOCK, "NVIDIA", {NODE_LOCK}, "allocating", {"X"}),
    (NODE_LOCK, "X", {NODE_LOCK}, "allocating", {"NVIDIA"}),
    (OWN, "NVIDIA", {OWN}, "allocating", {"X"}),
    (OWN, "X", {NODE_LOCK}, "allocating", {"NVIDIA"}),
    (OWN, "", {NODE_LOCK, OWN}, "allocating", {"NVIDIA", "X"}),
    ("", "NVIDIA", set(), "allocating", {"X"}),
)
def test_only_vendors_that_are_not_lock_free_take_locks(lock, names, locks, phase, to_allocate):
    both = pod(gpus(1, memory=10), container({"x.io/card": 1}, name="x"), phase="Pending")
    vendors = Catalog([NVIDIA, other_vendor(lock)])
    made = world(lock_free(names), both, vendors=vendors)
    made.schedule(both)
    annotations = bound(made).annotations
    assert {key for key in made.fake.nodes["n1"].annotations if key.endswith(".lock")} == locks
    assert annotations[BIND_PHASE] == phase
    assert {
        vendor.key for vendor in vendors if vendor.annotations.to_allocate in annotations
    } == to_allocate
    assert all(vendor.annotations.allocated in annotations for vendor in vendors)
    made.watch()
    waits = any(
        vendor.annotations.lock == NODE_LOCK and vendor.key in to_allocate for vendor in vendors
    )
    assert made.cache.pods.get(both.ref.uid).allocating is waits


# the node changes


@pytest.mark.parametrize(("before", "after"), [("NVIDIA", ""), ("", "NVIDIA")])
def test_a_change_between_filter_and_bind_is_refused_and_comes_out_right_when_filtered_again(
    before, after
):
    made = world(lock_free(before))
    assert made.filter(ASKED) == "n1"
    announce(made, after)
    with pytest.raises(Rejected, match="that need no lock have changed"):
        made.binder.bind(ASKED.ref, "n1")
    assert made.fake.bindings == 0
    assert made.fake.lock_of("n1") is None
    assert made.cache.open_bindings.unbound() == 0
    made.schedule(ASKED)
    assert bound(made).annotations[BIND_PHASE] == ("success" if after else "allocating")
    assert bool(made.fake.lock_of("n1")) is not bool(after)


def test_a_change_while_a_bind_takes_its_lock_is_refused():
    made = world(lock_free(""))
    made.filter(ASKED)

    def change(call):
        if call.method == "annotate_node":
            made.fake.on_call = lambda call: None
            announce(made, "NVIDIA")

    made.fake.on_call = change
    with pytest.raises(Rejected, match="that need no lock have changed"):
        made.binder.bind(ASKED.ref, "n1")
    made.watch()
    made.locks.release_unneeded("n1")
    assert made.fake.bindings == 0
    assert made.fake.lock_of("n1") is None


def test_a_node_becomes_lock_free_under_a_pod_that_is_allocating():
    second = replace(ASKED, ref=pod(name="second").ref)
    made = world(lock_free(""), ASKED, second)
    made.schedule(ASKED)
    announce(made, "NVIDIA")
    made.schedule(second)
    assert bound(made, "second").annotations[BIND_PHASE] == "success"
    assert made.fake.lock_of("n1").endswith(",default,pod1"), (
        "the device plugin still has to allocate its devices"
    )
    assert made.fake.allocate("n1").ref == ASKED.ref
    made.watch()
    made.controller.step()
    assert made.fake.lock_of("n1") is None
    assert made.cache.pods.unsettled() == []


def test_a_node_needs_locks_again_under_running_pods():
    second = replace(ASKED, ref=pod(name="second").ref)
    made = world(lock_free(), ASKED, second)
    made.schedule(ASKED)
    made.fake.put_pod(replace(bound(made), admitted=True))
    announce(made, "")
    made.schedule(second)
    assert made.fake.lock_of("n1").endswith(",default,second")
    assert made.fake.charges("n1")["GPU-0"] == [2, 6000, 60]


@cases("is_seen", ("seen bound", True), ("just bound", False))
def test_a_lock_waits_for_pods_that_were_bound_without_one(is_seen):
    """The device plugin could not tell such a pod from the one that holds the lock."""
    second = replace(ASKED, ref=pod(name="second").ref)
    made = world(lock_free(), ASKED, second)
    made.schedule(ASKED)
    if is_seen:
        made.watch()
    known = made.fake.nodes["n1"]
    made.fake.put_node(replace(known, annotations={**known.annotations, LOCK_FREE: ""}))
    made.watch("nodes")
    with pytest.raises(
        NodeLocked, match="a pod that was bound without a lock has not been allocated its devices"
    ):
        made.schedule(second)
    assert made.fake.lock_of("n1") is None
    made.fake.put_pod(replace(bound(made), admitted=True))
    made.watch()
    made.schedule(second)
    assert made.fake.lock_of("n1").endswith(",default,second")


def test_a_lock_does_not_wait_for_pods_whose_vendor_has_none():
    other = pod(container({"x.io/card": 1}), name="other")
    made = world(lock_free(""), ASKED, other, vendors=Catalog([NVIDIA, other_vendor("")]))
    made.schedule(other)
    made.schedule(ASKED)
    assert made.fake.lock_of("n1").endswith(",default,pod1")


# other processes, and Bindings without an answer


def test_pods_that_another_process_may_have_bound_are_read_before_the_binding():
    made = world()
    made.filter(ASKED)
    made.fake.put_pod(holding("other", "n1", "GPU-0,NVIDIA,45000,0:;"))
    made.cache.foreign_nodes.mark("n1")
    with pytest.raises(Rejected, match="taken by another pod meanwhile"):
        made.binder.bind(ASKED.ref, "n1")
    assert made.fake.bindings == 0


def test_a_mark_that_comes_while_the_pods_are_read_stays():
    made = world()
    made.filter(ASKED)
    made.cache.foreign_nodes.mark("n1")
    made.fake.on_call = lambda call: (
        call.method == "pods_on" and made.cache.foreign_nodes.mark("n1")
    )
    made.binder.bind(ASKED.ref, "n1")
    assert made.cache.foreign_nodes.mark_of("n1")


def test_a_bind_does_not_rely_on_pods_that_another_bind_still_reads():
    second = replace(ASKED, ref=pod(name="second").ref)
    made = world(lock_free(), ASKED, second)
    made.filter(ASKED), made.filter(second)
    made.cache.foreign_nodes.mark("n1")
    made.fake.put_pod(holding("other", "n1", "GPU-0,NVIDIA,45000,0:;"))
    outcomes = []

    def bind_second(call):
        if call.method == "pods_on":
            made.fake.on_call = lambda call: None
            with pytest.raises(HamiError) as refused:
                made.binder.bind(second.ref, "n1")
            outcomes.append(str(refused.value))

    made.fake.on_call = bind_second
    with pytest.raises(Rejected):
        made.binder.bind(ASKED.ref, "n1")
    assert "taken by another pod" in outcomes[0]
    assert made.fake.bindings == 0


def test_a_binding_without_an_answer_keeps_its_reservation_without_a_lock():
    made = world()
    made.filter(ASKED)
    made.fake.fail("bind", no_answer(), after=True)
    made.fake.fail("pod", no_answer())
    with pytest.raises(ClusterError, match="no answer"):
        made.binder.bind(ASKED.ref, "n1")
    assert made.fake.lock_of("n1") is None
    assert made.cache.bindings.get(ASKED.ref.uid)
    assert made.schedule(ASKED) == "n1"
    assert bound(made).node_name == "n1"
    assert made.cache.open_bindings.unbound() == 0


def test_the_annotation_is_forgotten_with_its_node():
    made = world()
    assert made.cache.nodes.lock_free("n1") == {"NVIDIA"}
    assert made.cache.nodes.lock_free("n2") == set()
    made.fake.delete_node("n1")
    made.watch()
    assert made.cache.nodes.lock_free("n1") == set()
