"""Rounds of the controller on a cluster in memory."""

from dataclasses import replace

import pytest

from hami.codec.keys import ASSIGNED_NODE, BIND_PHASE, NODE_LOCK
from hami.errors import ClusterError, Conflict, Rejected
from hami.model import QuotaRef
from hami.scheduler.settings import Settings
from hami.state.binding import UNSHOWN_S
from hami.state.promises import ASSUMED_TTL_S
from hami.state.sighting import OBSERVED_S
from hami.state.workload import FIRST
from testing.builders import NVIDIA, device_usage, gpu, gpus, node, pod, quota
from testing.cases import cases
from testing.fake_cluster import no_answer
from testing.replicas import Clock, Replica, WatchedCluster

HELD = "GPU-0,NVIDIA,10,0:;"


def bound(name="a", phase="success", labels=True, age=0, **fields):
    time = str(Clock().unix() - age)
    annotations = {
        ASSIGNED_NODE: "n1",
        "hami.io/vgpu-time": time,
        "hami.io/bind-time": time,
        BIND_PHASE: phase,
        NVIDIA.annotations.allocated: HELD,
        NVIDIA.annotations.to_allocate: HELD,
    }
    return pod(
        gpus(1, memory=10),
        name=name,
        node_name="n1",
        labels={ASSIGNED_NODE: "n1"} if labels else {},
        annotations=annotations,
        **fields,
    )


def world(*pods, nodes=None, lock=None, leads=True, answered=True, **options):
    """A replica that has watched for a while one node that has been asked to report."""
    handshake = {NVIDIA.annotations.handshake: "Requesting_2026-08-21 11:00:00"} if answered else {}
    fake = WatchedCluster(
        pods=pods,
        nodes=nodes
        or [node("n1", gpu("GPU-0"), annotations=handshake | ({NODE_LOCK: lock} if lock else {}))],
    )
    clock = Clock()
    clock.seconds -= OBSERVED_S
    made = Replica(fake, clock, leads=leads, **options)
    clock.seconds += OBSERVED_S
    fake.calls.clear()
    return made


def writes(made):
    return [call.method for call in made.fake.calls if call.method.startswith("annotate")]


def test_a_replica_that_has_decided_nothing_learns_the_usual_pods():
    made = world(*[bound(f"p{number}") for number in range(FIRST)], leads=False)
    made.cache.pods.is_listed = False  # their list is being read: each round would count all again
    made.controller.step()
    assert not made.cache.view().facts.usual.kinds
    made.relist()
    made.controller.step()
    assert made.cache.view().facts.usual.kinds


# handshakes


def test_plugins_are_asked_to_report_once():
    made = world(answered=False)
    for _ in range(3):
        made.controller.step()
    assert (
        made.fake.nodes["n1"].annotations[NVIDIA.annotations.handshake]
        == "Requesting_2026-08-21 12:00:00"
    )
    assert writes(made) == ["annotate_node"]
    assert made.controller.handshakes_requested == 1


def test_handshakes_of_a_fresh_cluster_are_spread_over_rounds():
    made = world(nodes=[node(f"n{n}", gpu(f"GPU-{n}")) for n in range(250)])
    for asked in (100, 200, 250, 250):
        made.controller.step()
        assert made.controller.handshakes_requested == asked


@pytest.mark.parametrize(
    ("error", "written"),
    [
        (ClusterError("denied by a webhook", 403), 2),
        (Conflict("modified", 409), 2),
        (no_answer(), 0),
        (ClusterError("too many requests", 429), 0),
    ],
    ids=str,
)
def test_a_failed_handshake_does_not_stop_the_others_unless_the_server_is_silent_or_too_busy(
    error, written
):
    made = world(nodes=[node(f"n{n}", gpu(f"GPU-{n}")) for n in range(3)])
    made.fake.fail("annotate_node", error)
    made.controller.step()
    assert made.controller.handshakes_requested == written
    made.controller.step()
    assert made.controller.handshakes_requested == 3


def test_an_unreadable_inventory_is_reported_once():
    made = world(
        nodes=[
            node(
                "n1",
                annotations={
                    NVIDIA.annotations.register: "garbage",
                    NVIDIA.annotations.handshake: "x",
                },
            )
        ]
    )
    for _ in range(3):
        made.controller.step()
    assert made.events.reasons() == ["InventoryUnreadable"]
    assert "garbage" in made.events[0][1]


def test_a_machine_that_joins_again_under_another_name_is_reported_once_on_both_nodes():
    made = world(nodes=[node("old", gpu("GPU-0")), node("new", gpu("GPU-0"), gpu("GPU-1"))])
    for _ in range(40):
        made.controller.step()
    assert made.events.reasons() == ["CardRegisteredTwice"] * 2
    assert made.events.subjects == ["new", "old"]
    text = "GPU-0 is registered by the nodes new, old: delete the Node that is gone"
    assert made.events[0][1] == text


def test_a_node_with_more_devices_than_a_node_can_have_is_reported_once():
    made = world(nodes=[node("n1", *(gpu(f"GPU-{number}") for number in range(257)))])
    for _ in range(3):
        made.controller.step()
    assert made.events.reasons() == ["InventoryUnreadable"]
    assert "257 devices, expected at most 256 devices on a node" in made.events[0][1]


# pods


def test_an_allocation_that_takes_too_long_fails_and_its_lock_is_released():
    made = world(
        replace(bound(phase="allocating", age=301), phase="Pending"),
        lock="2026-08-21T12:00:00Z,default,a",
    )
    made.controller.step()
    failed = made.fake.pods["default", "a"].annotations
    keys = (BIND_PHASE, NVIDIA.annotations.to_allocate, NVIDIA.annotations.allocated)
    assert tuple(failed[key] for key in keys) == ("failed", "", HELD)
    assert made.events.reasons() == ["AllocationExpired"]
    for _ in range(3):
        made.clock.seconds += 3
        made.controller.step()
    assert made.fake.lock_of("n1") is None
    assert made.events.reasons() == ["AllocationExpired"]


def test_an_allocation_that_succeeds_just_now_is_not_failed():
    made = world(replace(bound(phase="allocating", age=301), phase="Pending"))
    made.fake.put_pod(bound())
    made.controller.step()
    assert made.fake.pods["default", "a"].annotations[BIND_PHASE] == "success"
    assert made.events == []


def test_a_label_that_the_server_did_not_copy_is_added():
    made = world(bound(labels=False))
    for _ in range(2):
        made.controller.step()
    assert made.fake.pods["default", "a"].labels == {ASSIGNED_NODE: "n1"}
    assert writes(made) == ["annotate_pod"]


@pytest.mark.parametrize("bindings", ["with labels", "without labels"])
def test_the_label_of_an_earlier_node_is_replaced(bindings):
    made = world(replace(stale(), labels={ASSIGNED_NODE: "earlier"}))
    made.fake.copies_labels = bindings == "with labels"
    made.schedule(made.fake.pods["default", "a"])
    made.fake.allocate("n1")
    for _ in range(2):
        made.watch()
        made.controller.step()
    assert made.fake.pods["default", "a"].labels == {ASSIGNED_NODE: "n1"}
    assert made.cache.pods.unsettled() == []


@pytest.mark.parametrize("leads", [True, False])
def test_the_leader_tells_of_each_edit_of_an_allocation_once(leads):
    made = world(bound(), leads=leads)
    for text in (";", "GPU-1,NVIDIA,10,0:;"):
        found = made.fake.pods["default", "a"]
        made.fake.put_pod(
            replace(found, annotations={**found.annotations, NVIDIA.annotations.allocated: text})
        )
        made.watch()
        for _ in range(3):
            made.controller.step()
            made.relist()
    assert made.events.reasons() == ["AllocationEditRefused"] * (2 if leads else 0)
    assert made.cache.pods.edits_refused == 2
    assert [usage.memory_used_mib for usage in device_usage(made.cache)["n1"]] == [10]


def stale():
    return replace(
        bound(age=121, phase="allocating"),
        node_name="",
        scheduler_name="hami-scheduler",
        phase="Pending",
    )


def test_a_stale_foreign_reservation_is_removed():
    made = world(stale())
    made.controller.step()
    after = made.fake.pods["default", "a"]
    assert (after.annotations, after.labels) == ({}, {})
    assert made.events.reasons() == ["AssignmentCleared"]


def test_the_allocation_of_a_pod_that_has_just_been_bound_is_not_removed():
    made = world(stale())
    made.schedule(made.fake.pods["default", "a"])
    made.controller.step()
    after = made.fake.pods["default", "a"]
    assert after.node_name == "n1"
    assert after.annotations[NVIDIA.annotations.allocated] == HELD
    assert made.events.reasons() == ["FilteringSucceed", "BindingSucceed"]


def test_a_pod_that_was_not_admitted_is_reported_once():
    made = world(pod(gpus(), scheduler_name="default-scheduler"))
    for _ in range(3):
        made.controller.step()
    assert made.events.reasons() == ["NotAdmitted"]


def test_an_entry_of_a_quota_that_nobody_counts_is_reported_once():
    made = world()
    entries = (("limits.nvidia.com/gpumemory", "4000"), ("limits.nvidia.com/gpumem", "4000"))
    made.cache.quotas.upsert(replace(quota(gpumem=4000), entries=entries))
    for _ in range(3):
        made.controller.step()
    assert made.events == [
        (
            "QuotaEntryNotCounted",
            "limits.nvidia.com/gpumemory: nobody counts this resource; write limits.nvidia.com/gpumem",
        )
    ]
    assert made.events.subjects == [QuotaRef("default", "quota", "uid-quota")]


def test_an_unreadable_allocation_is_reported_once():
    broken = bound()
    made = world(
        replace(
            broken, annotations=broken.annotations | {NVIDIA.annotations.allocated: "GPU-0,NVIDIA"}
        )
    )
    for _ in range(3):
        made.controller.step()
    assert made.events.reasons() == ["AllocationUnreadable"]


@pytest.mark.parametrize("error", [ClusterError("denied", 403), Conflict("modified", 409)], ids=str)
def test_a_pod_that_cannot_be_written_does_not_stop_the_others(error):
    made = world(bound("a", labels=False), bound("b", labels=False))
    made.fake.fail("annotate_pod", error)
    made.controller.step()
    assert [bool(made.fake.pods["default", name].labels) for name in "ab"] == [False, True]
    made.controller.step()
    assert made.fake.pods["default", "a"].labels


# reservations and unknown outcomes


def test_a_reservation_expires():
    made = world(pod(gpus()), leads=True)
    made.filter(pod(gpus()))
    made.clock.seconds += ASSUMED_TTL_S
    made.controller.step()
    assert made.cache.open_bindings.unbound() == 0


UNSHOWN = pod(gpus(1, memory=10, cores=0))


@cases(
    "exists, ends",
    ("it does not exist", [], True),
    (
        "another one of its name does",
        [replace(UNSHOWN, ref=replace(UNSHOWN.ref, uid="another"))],
        True,
    ),
    ("it exists, and the watch is late", [UNSHOWN], False),
)
def test_the_api_server_is_asked_for_a_pod_that_the_watch_has_not_shown(exists, ends):
    made = world()
    for found in exists:
        made.fake.put_pod(found)
    made.filter(UNSHOWN)
    for seconds, is_reserved in (
        (0, True),
        (UNSHOWN_S - 0.1, True),
        (0.2, not ends),
        (UNSHOWN_S, not ends),
    ):
        made.clock.seconds += seconds
        made.controller.step()
        assert (made.cache.open_bindings.unbound() == 1) is is_reserved
    reads = [call for call in made.fake.calls if call.method == "pod"]
    assert len(reads) == 1
    made.clock.seconds += ASSUMED_TTL_S
    made.controller.step()
    assert made.cache.open_bindings.unbound() == 0


def test_a_pod_that_the_watch_has_shown_is_not_read():
    made = world()
    made.filter(UNSHOWN)
    made.fake.put_pod(UNSHOWN)
    made.watch()
    made.clock.seconds += UNSHOWN_S
    made.controller.step()
    assert made.cache.open_bindings.unbound() == 1
    assert [call for call in made.fake.calls if call.method == "pod"] == []


def test_without_an_answer_of_the_api_server_a_reservation_stays():
    made = world()
    made.filter(UNSHOWN)
    made.clock.seconds += UNSHOWN_S
    made.fake.fail("pod", no_answer())
    made.controller.step()
    assert made.cache.open_bindings.unbound() == 1
    made.controller.step()
    assert made.cache.open_bindings.unbound() == 0


def test_a_pod_that_does_not_exist_is_not_kept_by_filters():
    """Neither by those before the API server was asked, nor by one after that."""
    made = world()
    for _ in range(3):
        made.filter(UNSHOWN)
        made.clock.seconds += 4
    made.controller.step()
    assert made.cache.open_bindings.unbound() == 0
    with pytest.raises(Rejected, match="not found"):
        made.filter(UNSHOWN)


@pytest.mark.parametrize("became", ["bound", "unbound", "deleted", "another"])
def test_an_unknown_outcome_is_resolved(became):
    asked = pod(gpus(1, memory=10, cores=0))
    made = world(asked)
    made.fake.fail("bind", no_answer(), after=became == "bound")
    made.fake.fail("pod", no_answer())
    with pytest.raises(ClusterError):
        made.schedule(asked)
    if became in ("deleted", "another"):
        made.fake.delete_pod("default", "pod1")
    if became == "another":
        made.fake.put_pod(replace(asked, ref=replace(asked.ref, uid="new")))
    made.leadership.leading = False  # every replica looks after its own
    made.controller.step()
    assert made.cache.open_bindings.unbound() == 1
    made.clock.seconds += ASSUMED_TTL_S
    made.controller.step()
    assert made.cache.open_bindings.unbound() == 0
    assert device_usage(made.cache)["n1"][0].slots_used == (1 if became == "bound" else 0)


# locks


def test_locks_without_a_holder_are_released():
    made = world(lock="2026-08-21T11:00:00Z,default,gone")
    made.controller.step()
    assert made.fake.lock_of("n1") is None


def test_a_lock_that_cannot_be_examined_does_not_stop_the_others():
    locked = {
        NODE_LOCK: "2026-08-21T11:00:00Z,default,gone",
        NVIDIA.annotations.handshake: "Requesting_2026-08-21 12:00:00",
    }
    made = world(nodes=[node(f"n{n}", gpu(f"GPU-{n}"), annotations=locked) for n in range(2)])
    made.fake.fail("pod", ClusterError("forbidden", 403))
    made.controller.step()
    assert made.fake.lock_of("n0")
    assert made.fake.lock_of("n1") is None


def test_a_lock_that_a_former_leader_failed_to_release_is_released_by_the_next():
    asked = pod(gpus(1, memory=10))
    made = world(asked)
    made.fake.fail("bind", ClusterError("forbidden", 403))
    made.fake.on_call = lambda call: (
        call.method == "bind" and made.fake.fail("annotate_node", no_answer())
    )
    with pytest.raises(ClusterError):
        made.schedule(asked)
    assert made.fake.lock_of("n1")
    made.clock.seconds += 5
    successor = Replica(made.fake, made.clock)
    for _ in range(3):
        made.clock.seconds += 2
        successor.controller.step()
    assert made.fake.lock_of("n1") is None


# leader and followers


def test_a_follower_writes_nothing():
    made = world(
        bound(labels=False),
        stale(),
        lock="2026-08-21T11:00:00Z,default,gone",
        answered=False,
        leads=False,
    )
    made.controller.step()
    assert writes(made) == []


def test_duties_end_with_the_leadership():
    made = world(bound(labels=False), answered=False)
    made.fake.on_call = lambda call: setattr(made.leadership, "leading", False)
    made.controller.step()
    assert writes(made) == ["annotate_node"]


def test_a_failing_duty_does_not_stop_the_others(caplog):
    made = world(bound(labels=False))
    made.cache.nodes.reports_due = lambda: 1 / 0
    made.controller.step()
    assert made.fake.pods["default", "a"].labels
    assert "duty failed" in caplog.text


def test_a_duty_without_an_answer_does_not_end_the_round():
    made = world(bound(labels=False), lock="2026-08-21T11:00:00Z,default,gone", answered=False)
    for method in ("annotate_pod", "annotate_node", "pod"):
        made.fake.fail(method, no_answer())
    made.controller.step()
    made.controller.step()
    assert made.fake.lock_of("n1") is None
    assert made.fake.pods["default", "a"].labels


def test_the_leader_is_labeled():
    labels = {"app.kubernetes.io/component": "hami-scheduler"}
    replicas = [pod(name=name, namespace="hami", labels=labels) for name in "xy"]
    made = world(*replicas, settings=Settings(pod_namespace="hami", pod_name="x"))
    made.controller.step()
    roles = [made.fake.pods["hami", name].labels["hami.io/scheduler-role"] for name in "xy"]
    assert roles == ["leader", "follower"]
    for _ in range(15):
        made.controller.step()
    assert writes(made) == ["annotate_pod"] * 2


CHART = {"app.kubernetes.io/name": "hami", "app.kubernetes.io/instance": "hami"}


@cases(
    "ours, theirs",
    ("as shipped", {"app.kubernetes.io/name": "hami"}, CHART),
    ("bare", {}, CHART),
    ("two charts", CHART, CHART | {"app.kubernetes.io/instance": "other"}),
    ("the other one bare", CHART, {}),
    ("replaced by a rollback", CHART | {"app.kubernetes.io/managed-by": "Helm"}, CHART),
)
def test_pods_of_another_release_in_the_same_namespace_are_left_alone(ours, theirs):
    component = {"app.kubernetes.io/component": "hami-scheduler"}
    pods = {
        name: component | labels for name, labels in {"x": ours, "y": ours, "z": theirs}.items()
    }
    made = world(
        *(pod(name=name, namespace="hami", labels=labels) for name, labels in pods.items()),
        settings=Settings(pod_namespace="hami", pod_name="x"),
    )
    made.controller.step()
    assert [
        made.fake.pods["hami", name].labels.get("hami.io/scheduler-role") for name in "xyz"
    ] == ["leader", "follower", None]


def test_a_replica_that_does_not_find_its_own_pod_labels_none():
    component = {"app.kubernetes.io/component": "hami-scheduler"}
    made = world(
        pod(name="y", namespace="hami", labels=component),
        settings=Settings(pod_namespace="hami", pod_name="x"),
    )
    made.controller.step()
    assert writes(made) == []


def test_the_loop_ends_when_it_is_stopped():
    made = world()
    made.controller.stop()
    made.controller.run()
    assert made.fake.calls == []


def test_a_pod_on_a_node_of_another_scheduler_is_left_to_it():
    """The node is in no watch: a label selector excludes it."""
    garbled = bound(labels=False)
    made = world(
        replace(
            garbled,
            node_name="n2",
            annotations={
                **garbled.annotations,
                ASSIGNED_NODE: "n2",
                NVIDIA.annotations.allocated: "GPU-0,;",
            },
        )
    )
    made.fake.put_pod(replace(bound(name="b"), node_name="n2"))
    made.watch()
    edited = made.fake.pods["default", "b"]
    made.fake.put_pod(
        replace(edited, annotations={**edited.annotations, NVIDIA.annotations.allocated: ";"})
    )
    made.watch()
    for _ in range(3):
        made.controller.step()
    assert (made.events.reasons(), writes(made)) == ([], [])
    made.fake.put_node(node("n2", gpu("GPU-0")))
    made.watch()
    made.controller.step()
    assert made.events.reasons() == ["AllocationUnreadable"]
    assert made.fake.pods["default", "a"].labels == {ASSIGNED_NODE: "n2"}
