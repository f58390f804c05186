"""Allocate from the kubelet's call to the writes on the API server."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis.strategies import integers
from pytest import param

from hami.codec.allocation import render_shares
from hami.codec.keys import CORES_LIMIT, RESIZE_TARGET, RESIZED
from hami.errors import ClusterError, Conflict, HamiError, HostError, NotFound, Rejected
from hami.node.limits import ContainerLimits, DeviceLimit
from testing.builders import pod as make_pod
from testing.cases import cases
from testing.fake_cluster import no_answer
from testing.plugin_stage import (
    AWAY,
    CARDS,
    FPGA,
    INIT,
    NODE,
    PHASE,
    TO_ALLOCATE,
    A,
    B,
    C,
    Kubelet,
    Stage,
    asking,
    ids,
    limits,
    lock_of,
    placed,
    share,
)

TIMEOUT_S = 20.0
ONE = placed(asking(), shares=[[share(A, 1000, 30)]])
SERVED = placed(asking(), shares=[[share(A, 1000, 30)]], left=";", bind_phase="success")
TWO = placed(asking("x"), asking("y", 2), shares=[[share(A, 1)], [share(B, 2), share(C, 3)]])


of_each_transport = pytest.mark.parametrize(
    "watched", [param(False, id="list"), param(True, id="watch")]
)


def stage_of(pod, watched=True, **config):
    """A stage on which *pod* waits for its devices. *watched*: whether the plugin watches the node's pods."""
    return Stage(pod, lock=lock_of(pod), watched=watched, **config)


def refused(stage, *uuids):
    with pytest.raises(Rejected) as caught:
        stage.allocator.allocate(ids(*(uuids or (A,))))
    return str(caught.value)


@of_each_transport
def test_allocate_records_the_allocation_and_releases_the_lock(watched):
    stage = stage_of(ONE, watched)
    grant = stage.allocator.allocate(ids(B))
    assert limits(grant) == [(A, "1000m")]
    assert grant.env["CUDA_DEVICE_SM_LIMIT"] == "30"
    assert (stage.annotation(TO_ALLOCATE), stage.annotation(PHASE), stage.node_lock) == (
        ";",
        "success",
        None,
    )
    assert stage.host.prepared == [("uid-p", "c")]
    assert stage.host.limits == {
        ("uid-p", "c"): ("token-0", ContainerLimits(devices=(DeviceLimit(A, 1000 << 20, 30),)))
    }
    assert [call.method for call in stage.cluster.calls] == [
        "node",
        "pods_on",
        *(() if watched else ("environment",)),
        "annotate_pod",
        "annotate_node",
    ]


@of_each_transport
def test_containers_are_served_in_order(watched):
    stage = stage_of(TWO, watched)
    assert limits(stage.allocator.allocate(ids(A))) == [(A, "1m")]
    stage.remember("x")
    assert (stage.annotation(PHASE), stage.node_lock) == ("allocating", lock_of(TWO))
    assert limits(stage.allocator.allocate(ids(A, A))) == [(B, "2m"), (C, "3m")]
    assert (stage.annotation(TO_ALLOCATE), stage.annotation(PHASE), stage.node_lock) == (
        ";;",
        "success",
        None,
    )


@pytest.mark.parametrize("bind_phase, left", [("allocating", None), ("success", "")])
def test_allocate_hands_out_what_a_resized_pod_is_to_have(bind_phase, left):
    """A kubelet that has lost its checkpoint asks again."""
    target = {RESIZED: f"{A},NVIDIA,9,0:;", RESIZE_TARGET: f"{A},NVIDIA,7,0:;"}
    stage = stage_of(
        placed(
            asking(), shares=[[share(A, 5)]], annotations=target, bind_phase=bind_phase, left=left
        )
    )
    assert limits(stage.allocator.allocate(ids(A))) == [(A, "7m")]
    assert stage.annotation(PHASE) == "success"


def test_a_restarted_plugin_serves_the_remaining_containers():
    stage = stage_of(TWO)
    stage.allocator.allocate(ids(A))
    stage.remember("x")
    stage.start()
    assert limits(stage.allocator.allocate(ids(A, A))) == [(B, "2m"), (C, "3m")]


def test_the_lock_is_kept_until_all_vendors_have_allocated_their_devices():
    pod = placed(
        asking(), shares=[[share(A)]], annotations={FPGA.annotations.to_allocate: "f,FPGA,1,0:;"}
    )
    stage = stage_of(pod)
    stage.allocator.allocate(ids(A))
    assert (stage.annotation(TO_ALLOCATE), stage.annotation(PHASE)) == (";", "allocating")
    assert stage.node_lock == lock_of(pod)


def test_environment_variables_of_the_specification_are_read():
    stage = stage_of(ONE)
    stage.cluster.environments["uid-p", "c"] = {
        "CUDA_DISABLE_CONTROL": "true",
        "CUDA_TASK_PRIORITY": "0",
    }
    assert not any(
        mount.container_path == "/etc/ld.so.preload"
        for mount in stage.allocator.allocate(ids(A)).mounts
    )
    assert stage.host.limits["uid-p", "c"][1].priority == 0


@cases(
    "text, most", ("80", 80), ("20", 30), ("100", 0), ("0", 0), ("101", 0), ("much", 0), ("+40", 0)
)
def test_the_limit_of_cores_of_the_pod_is_handed_over_if_it_can_be_read(text, most):
    stage = stage_of(
        placed(asking(), shares=[[share(A, 1000, 30)]], annotations={CORES_LIMIT: text})
    )
    stage.allocator.allocate(ids(A))
    (device,) = stage.host.limits["uid-p", "c"][1].devices
    assert (device.cores, device.cores_most) == (30, most)


@cases(
    "asked, why",
    ("none", (), "the kubelet requested no devices"),
    ("unknown", ("GPU-9-0",), "the kubelet requested devices that are not on this node: GPU-9-0"),
    ("twice", (f"{A}-0", f"{A}-0"), f"the kubelet requested a device twice: {A}-0, {A}-0"),
)
def test_invalid_calls_change_nothing(asked, why):
    stage = stage_of(ONE)
    with pytest.raises(Rejected) as caught:
        stage.allocator.allocate(asked)
    assert (str(caught.value), stage.cluster.calls, stage.node_lock) == (why, [], lock_of(ONE))


def test_a_call_for_another_number_of_devices_only_records_an_event_on_the_holder():
    stage = stage_of(ONE)
    assert refused(stage, A, B) == (
        "cannot determine the requesting container (2 of nvidia.com/gpu): pod default/p "
        "holds the node lock, but its next container, c, gets 1"
    )
    assert (stage.pod().annotations, stage.node_lock) == (ONE.annotations, lock_of(ONE))
    assert stage.events.of("default/p") == stage.events.of(NODE) != []
    assert limits(stage.allocator.allocate(ids(A))) == [(A, "1000m")]


@cases(
    "pod, why",
    ("no memory", placed(asking(), shares=[[share(A, 0)]]), "means no limit"),
    ("unknown card", placed(asking(), shares=[[share("GPU-9")]]), "which is not on this node"),
    ("unreadable", placed(asking(), text="x,y:;"), "missing fields"),
    (
        "more than requested",
        placed(asking(), shares=[[share(A), share(B)]]),
        "expected as many shares",
    ),
)
def test_a_pod_that_cannot_be_served_fails_alone(pod, why):
    stage = stage_of(pod)
    stage.cluster.put_pod(placed(asking(count=2), shares=[[share(A), share(B)]], name="other"))
    assert why in refused(stage)
    assert (stage.annotation(TO_ALLOCATE), stage.annotation(PHASE), stage.node_lock) == (
        "",
        "failed",
        None,
    )
    assert why in stage.events.of("default/p")[0]
    assert stage.annotation(PHASE, "other") == "allocating"


def test_an_unhealthy_card_is_not_allocated():
    stage = stage_of(ONE, cards=(replace(CARDS[0], problem="XID 79"), CARDS[1]))
    assert refused(stage, B) == f"container c was allocated card {A}, which is unhealthy: XID 79"
    assert (stage.annotation(PHASE), stage.node_lock) == ("failed", None)


became_unhealthy = pytest.mark.parametrize(
    "change, why",
    [
        param(lambda inventory: inventory.report(A, "XID 79"), "XID 79", id="an XID"),
        param(
            lambda inventory: inventory.update(CARDS[1:]),
            "no longer listed by the driver",
            id="not listed",
        ),
    ],
)


@became_unhealthy
@cases("asked, phase", ("first", ONE, "failed"), ("again", SERVED, "success"))
def test_a_card_that_became_unhealthy_after_scheduling_is_not_allocated(change, why, asked, phase):
    stage = stage_of(asked)
    change(stage.inventory)
    assert refused(stage, B) == f"container c was allocated card {A}, which is unhealthy: {why}"
    assert (stage.annotation(PHASE), stage.node_lock) == (phase, None)
    assert why in stage.events.of("default/p")[0]


@became_unhealthy
def test_a_running_pod_keeps_its_unhealthy_card_when_the_kubelet_asks_again(change, why):
    """As it would if the kubelet had not lost its checkpoint."""
    stage = Stage(replace(SERVED, phase="Running"))
    stage.host.checkpoint = set()
    change(stage.inventory)
    assert limits(stage.allocator.allocate(ids(B))) == [(A, "1000m")]
    assert stage.pod().annotations == SERVED.annotations


def test_a_host_that_cannot_be_written_is_reported():
    stage = stage_of(ONE)
    stage.host.error = HostError(
        "cannot create the directory of a container: Read-only file system: /usr/local"
    )
    with pytest.raises(HostError, match="Read-only file system"):
        stage.allocator.allocate(ids(A))
    assert (stage.annotation(PHASE), stage.node_lock) == ("failed", None)


@cases(
    "lock, why",
    ("nonsense", "nonsense", "expected an RFC 3339 time first"),
    ("two parts", "2026-01-02T03:04:05Z,x", "expected 3 parts, got 2"),
)
def test_a_lock_that_cannot_be_read_serves_nobody(lock, why):
    stage = Stage(ONE, lock=lock)
    assert why in refused(stage)
    assert (stage.annotation(PHASE), stage.node_lock) == ("allocating", lock)


@cases("lock", ("none", None), ("the oldest form", "2026-01-02T03:04:05Z"))
def test_without_a_lock_holder_the_only_waiting_pod_is_served(lock):
    """HAMi's scheduler up to v2.10 locks no node for a pod of which only init containers ask."""
    pod = placed(asking("i", kind=INIT), asking("c", 0), shares=[[share(A, 7)], []])
    stage = Stage(pod, lock=lock)
    assert limits(stage.allocator.allocate(ids(B))) == [(A, "7m")]
    assert (stage.annotation(PHASE), stage.node_lock) == ("success", lock)


def test_the_lock_of_a_deleted_pod_is_released_and_no_pod_is_served():
    other = placed(asking(), shares=[[share(B)]], name="other")
    stage = Stage(other, lock=lock_of(ONE))
    assert refused(stage).endswith("the node is locked for pod default/p, which is gone")
    assert (stage.node_lock, stage.annotation(TO_ALLOCATE, "other")) == (
        None,
        other.annotations[TO_ALLOCATE],
    )


def test_a_later_pod_of_the_same_name_is_not_taken_for_the_first():
    stage = stage_of(TWO)
    stage.allocator.allocate(ids(A))
    stage.cluster.put_pod(placed(asking("x", 2), shares=[[share(B), share(C)]], uid="uid-2"))
    assert refused(stage, A, B).endswith("the node is locked for an earlier pod default/p")


def test_a_later_pod_of_the_same_name_is_served_within_the_same_second():
    stage = stage_of(ONE)
    stage.allocator.allocate(ids(A))
    stage.put_locked(placed(asking(), shares=[[share(B, 5)]], uid="uid-2"))
    assert limits(stage.allocator.allocate(ids(A))) == [(B, "5m")]


def test_a_later_pod_of_the_same_name_is_served_within_the_second_in_which_the_first_failed():
    stage = stage_of(placed(asking(), shares=[[share("GPU-9")]]))
    assert "which is not on this node" in refused(stage)
    stage.put_locked(placed(asking(), shares=[[share(B, 5)]], uid="uid-2"))
    assert limits(stage.allocator.allocate(ids(A))) == [(B, "5m")]


REVOKED = placed(asking(), shares=[[share(A)]], left="", bind_phase="failed")


def test_a_revoked_holder_is_refused_and_its_lock_released():
    stage = stage_of(REVOKED)
    assert "its bind-phase is failed" in refused(stage)
    assert (stage.pod().annotations, stage.node_lock) == (REVOKED.annotations, None)


@cases("record", ("with the kubelet's checkpoint", True), ("without", False))
def test_a_revoked_pod_that_starts_late_does_not_get_the_next_pod_s_devices(record):
    """The kubelet was down; the allocation was revoked, and another pod is bound meanwhile."""
    following = placed(asking(), shares=[[share(B, 5)]], name="q")
    stage = Stage(REVOKED, following, lock=lock_of(following))
    kubelet = Kubelet(stage, record=record)
    with pytest.raises(Rejected, match="2 containers match, of default/p, default/q"):
        kubelet.admit(REVOKED)
    assert limits(kubelet.admit(following)["c"]) == [(B, "5m")]


def test_a_call_waits_until_a_rejected_pod_has_terminated():
    following = placed(asking(), shares=[[share(B, 5)]], name="q")
    stage = Stage(REVOKED, following, lock=lock_of(following))

    def settle(call):
        if call.method == "pods_on" and stage.time > 1:
            stage.cluster.put_pod(replace(REVOKED, phase="Failed"))

    stage.cluster.on_call = settle
    assert limits(stage.allocator.allocate(ids(A))) == [(B, "5m")]


def test_a_repeated_call_gets_the_same_devices():
    stage = stage_of(TWO)
    kubelet = Kubelet(stage)
    kubelet.admit(TWO, remember=lambda name: False)
    handed = kubelet.admit(stage.pod())
    assert limits(handed["x"]) == [(A, "1m")]
    assert limits(handed["y"]) == [(B, "2m"), (C, "3m")]
    assert (stage.annotation(TO_ALLOCATE), stage.node_lock) == (";;", None)


# -- what goes wrong on the way


@pytest.mark.parametrize(
    "method", ["node", "pods_on", "environment", "annotate_pod", "annotate_node"]
)
@cases("after", ("request lost", False), ("response lost", True))
@cases("record", ("record", True), ("no record", False))
def test_a_lost_request_is_retried(method, after, record):
    stage = stage_of(ONE)
    stage.host.checkpoint = set() if record else None
    stage.cluster.fail(method, no_answer(), after=after, times=2)
    assert limits(stage.allocator.allocate(ids(A))) == [(A, "1000m")]
    for _ in range(2):
        stage.deferred.flush()
    assert (stage.annotation(TO_ALLOCATE), stage.annotation(PHASE), stage.node_lock) == (
        ";",
        "success",
        None,
    )


def test_another_pod_is_not_served_when_the_response_was_lost_and_the_lock_has_moved_on():
    other = placed(asking(), shares=[[share(B, 5)]], name="q")
    stage = stage_of(ONE)
    stage.cluster.fail("annotate_pod", no_answer(), after=True)

    def move_lock(call):
        if call.method == "node" and stage.node_lock == lock_of(ONE):
            stage.put_locked(other)

    def hand_on(call):
        if call.method == "annotate_pod":
            stage.cluster.on_call = move_lock

    stage.cluster.on_call = hand_on
    assert limits(stage.allocator.allocate(ids(A))) == [(A, "1000m")]
    assert (stage.node_lock, stage.annotation(PHASE, "q")) == (lock_of(other), "allocating")


def test_a_pod_that_is_revoked_between_reading_and_writing_is_refused():
    stage = stage_of(ONE)

    def revoke(call):
        if call.method == "annotate_pod":
            stage.cluster.on_call = lambda call: None
            stage.cluster.put_pod(REVOKED)

    stage.cluster.on_call = revoke
    assert "its bind-phase is failed" in refused(stage)
    assert stage.pod().annotations == REVOKED.annotations


def test_conflicts_are_retried():
    stage = stage_of(ONE)
    stage.cluster.fail("annotate_pod", Conflict("modified", 409), times=3)
    stage.cluster.fail("annotate_node", Conflict("modified", 409), times=3)
    assert limits(stage.allocator.allocate(ids(A))) == [(A, "1000m")]
    assert (stage.annotation(PHASE), stage.node_lock) == ("success", None)


def test_a_pod_that_is_deleted_between_reading_and_writing_is_refused_and_its_lock_released():
    stage = stage_of(ONE)

    def delete(call):
        if call.method == "annotate_pod":
            stage.cluster.on_call = lambda call: None
            stage.cluster.delete_pod("default", "p")

    stage.cluster.on_call = delete
    refused(stage)
    assert stage.node_lock is None


def test_a_pod_fails_later_if_the_api_server_does_not_answer_in_time():
    stage = stage_of(ONE)
    stage.cluster.fail("annotate_pod", AWAY, times=1000)
    with pytest.raises(
        ClusterError, match="a request to the API server failed: connection refused"
    ):
        stage.allocator.allocate(ids(A))
    assert 20 <= stage.time < 25
    stage.cluster.heal()
    stage.deferred.flush()
    assert (stage.annotation(TO_ALLOCATE), stage.annotation(PHASE), stage.node_lock) == (
        "",
        "failed",
        None,
    )
    assert "connection refused" in stage.events.of("default/p")[0]


@cases("error", ("answers late", None), ("does not answer", no_answer()))
def test_the_deadline_covers_the_writes_that_earlier_calls_have_left(error):
    """Ten of them, each of which takes the 10 s after which a request times out."""
    earlier = [
        placed(asking(), shares=[[share(B)]], name=f"earlier-{number}", phase="Running")
        for number in range(10)
    ]
    stage = Stage(ONE, *earlier, lock=lock_of(ONE))
    stage.prompt = False
    stage.start()
    for pod in earlier:
        stage.deferred.complete_pod(pod.ref, ())
        stage.remember("c", pod.ref.name)

    def answer_late(call):
        if call.method == "annotate_pod" and call.arguments["ref"] != ONE.ref:
            stage.time += 10.0

    stage.cluster.on_call = answer_late
    if error is not None:
        stage.cluster.fail("annotate_pod", error)
    assert limits(stage.allocator.allocate(ids(A))) == [(A, "1000m")]
    assert stage.time <= 20.0
    stage.deferred.flush()
    assert {stage.annotation(PHASE, pod.ref.name) for pod in earlier} == {"success"}, (
        "the others are made later"
    )


def test_a_call_does_not_wait_for_the_cleanup_that_reads_from_a_hung_api_server():
    stage = stage_of(ONE)
    calls = []

    def allocate_meanwhile(call):
        stage.cluster.on_call = lambda call: None
        calls.append(
            ThreadPoolExecutor(1).submit(stage.allocator.allocate, ids(A)).result(TIMEOUT_S)
        )

    stage.cluster.on_call = allocate_meanwhile
    stage.allocator.release_stale_lock()
    assert [limits(grant) for grant in calls] == [[(A, "1000m")]]


def test_a_lock_that_cannot_be_released_is_released_later():
    stage = stage_of(ONE)
    stage.cluster.fail("annotate_node", AWAY)
    assert limits(stage.allocator.allocate(ids(A))) == [(A, "1000m")]
    assert stage.node_lock == lock_of(ONE)
    stage.deferred.flush()
    assert stage.node_lock is None


def test_a_lock_that_was_taken_by_another_pod_is_kept():
    other = placed(asking(), shares=[[share(B)]], name="q")
    stage = stage_of(ONE)

    def hand_on(call):
        if call.method == "annotate_node" and stage.node_lock == lock_of(ONE):
            stage.put_locked(other)

    stage.cluster.on_call = hand_on
    stage.allocator.allocate(ids(A))
    assert stage.node_lock == lock_of(other)


def test_an_unknown_node_is_an_error():
    stage = stage_of(ONE)
    del stage.cluster.nodes[NODE]
    assert refused(stage) == "node n1 is not known to the API server"
    assert stage.pod().annotations == ONE.annotations


@cases(
    "pod, released",
    ("success", placed(asking(), shares=[[share(A)]], left=";", bind_phase="success"), True),
    ("failed", REVOKED, True),
    ("allocating", ONE, False),
    ("about to be bound", make_pod(asking(), name="p"), False),
    ("gone", make_pod(asking(), name="other"), True),
)
def test_cleanup_releases_a_stale_lock(pod, released):
    stage = Stage(pod, lock=lock_of(ONE))
    stage.clean_up()
    assert stage.node_lock == (None if released else lock_of(ONE))


def test_a_sweep_removes_directories_of_deleted_pods():
    stage = Stage(ONE)
    stage.host.prepared = [("uid-p", "c"), ("uid-old", "c")]
    stage.sweep()
    assert stage.host.prepared == [("uid-p", "c")]


def test_a_sweep_keeps_a_directory_created_after_the_pods_were_listed():
    """It belongs to a pod that is bound and served during the sweep."""
    stage = Stage(ONE)
    stage.host.prepared = [("uid-old", "c")]
    stage.cluster.on_call = lambda call: (
        call.method == "pods_on" and stage.host.prepared.append(("uid-new", "c"))
    )
    stage.sweep()
    assert stage.host.prepared == [("uid-new", "c")]


def test_cleanup_survives_an_api_server_that_does_not_answer():
    stage = stage_of(ONE)
    stage.host.prepared = [("uid-old", "c")]
    stage.cluster.fail("node", AWAY)
    stage.cluster.fail("pods_on", AWAY)
    stage.clean_up()
    stage.sweep()
    assert stage.node_lock == lock_of(ONE)


# -- under the schedulers of others

CARD = "GPU-1afede84-4e70-2174-49af-f07ebb94d1ae"
WRITTEN = {  # what a pod and the lock look like when Allocate is called; keys without their prefix hami.io/
    "v2.4": (
        {
            "bind-phase": "allocating",
            "bind-time": "1732072495",
            "vgpu-node": NODE,
            "vgpu-time": "1732072495",
            "vgpu-devices-allocated": f"{CARD},NVIDIA,20000,30:;",
            "vgpu-devices-to-allocate": f"{CARD},NVIDIA,20000,30:;",
        },
        "2024-11-20T03:14:55Z,default,p",
    ),
    "v2.6, beside a container without a card": (
        {
            "bind-phase": "allocating",
            "bind-time": "1750000000",
            "vgpu-node": NODE,
            "vgpu-time": "1750000000",
            "vgpu-devices-allocated": f",,0,0:;{CARD},NVIDIA,20000,30:;",
            "vgpu-devices-to-allocate": f",,0,0:;{CARD},NVIDIA,20000,30:;",
        },
        "2025-06-15T15:06:40+02:00,default,p",
    ),
    "v2.10, beside a container without a card": (
        {
            "bind-phase": "allocating",
            "bind-time": "1787306400",
            "vgpu-node": NODE,
            "vgpu-time": "1787306400",
            "vgpu-devices-allocated": f"{CARD},NVIDIA,20000,30:;",
            "vgpu-devices-to-allocate": f"{CARD},NVIDIA,20000,30:;",
        },
        "2026-08-21T10:00:00Z,default,p",
    ),
}


@pytest.mark.parametrize("version", WRITTEN)
def test_pods_recorded_with_upstream_schedulers_are_served(version):
    annotations, lock = WRITTEN[version]
    containers = (asking("side", 0), asking("c")) if "beside" in version else (asking("c"),)
    pod = make_pod(
        *containers,
        name="p",
        node_name=NODE,
        phase="Pending",
        annotations={f"hami.io/{key}": text for key, text in annotations.items()},
    )
    stage = Stage(pod, lock=lock, cards=(replace(CARDS[0], uuid=CARD),))
    grant = stage.allocator.allocate((f"{CARD}-3",))
    assert limits(grant) == [(CARD, "20000m")]
    assert stage.host.prepared == [("uid-p", "c")]
    assert not stage.annotation(TO_ALLOCATE).strip(";")
    assert (stage.annotation(PHASE), stage.node_lock) == ("success", None)


# -- which devices the kubelet should choose


@cases(
    "pod, size, chosen",
    ("the holder's card", ONE, 1, (f"{A}-0",)),
    ("another number", TWO, 2, ()),
    ("two cards", placed(asking(count=2), shares=[[share(C), share(A)]]), 2, (f"{C}-2", f"{A}-0")),
    ("revoked", REVOKED, 1, ()),
)
def test_preferred(pod, size, chosen):
    stage = stage_of(pod)
    assert stage.allocator.preferred(ids(A, B, C), (), size) == chosen
    assert not stage.cluster.calls_of("annotate_pod", "annotate_node")


def test_nothing_is_preferred_while_the_api_server_does_not_answer():
    stage = stage_of(ONE, aligned=True)
    stage.cluster.fail("node", AWAY)
    assert stage.allocator.preferred(ids(A), (), 1) == ()


@of_each_transport
def test_the_watch_is_good_enough_for_preferred_ids_that_are_only_a_hint(watched):
    for aligned in (False, True):
        stage = stage_of(ONE, watched, aligned=aligned)
        assert stage.allocator.preferred(ids(A), (), 1) == (f"{A}-0",)
        assert bool(stage.cluster.calls_of("node", "pods_on")) is (aligned or not watched)


def test_preferred_ids_are_accepted_in_any_order():
    pod = placed(asking(count=2), shares=[[share(C, 3), share(A, 1)]])
    stage = stage_of(pod, aligned=True)
    chosen = stage.allocator.preferred(ids(A, B, C), (), 2)
    assert limits(stage.allocator.allocate(chosen[::-1])) == sorted([(C, "3m"), (A, "1m")])


# -- never another's


def some_pod(rng, name):
    """A pod of up to three containers, with shares whose memory nobody else has, in one of the forms of text."""
    kinds = sorted(
        (rng.choice((INIT, None)) for _ in range(rng.randint(1, 3))), key=lambda kind: kind is None
    )
    sizes = [rng.choice((0, 1, 1, 2)) for _ in kinds]
    if not any(sizes):
        sizes[-1] = 1
    containers = [
        asking(f"c{place}", size, **({"kind": kind} if kind else {}))
        for place, (kind, size) in enumerate(zip(kinds, sizes))
    ]
    shares = [
        [share(card.uuid, rng.randint(1, 10**6)) for card in rng.sample(CARDS, size)]
        for size in sizes
    ]
    text = render_shares(tuple(map(tuple, shares)))
    if rng.random() < 0.3:
        text = "".join(
            part + ";" for part in text.split(";") if part
        )  # as v2.10 leaves containers out
    return placed(*containers, text=text, name=name, uid=f"uid-{name}-{rng.random()}"), {
        one.name: sorted((s.uuid, f"{s.memory_mib}m") for s in mine)
        for one, mine in zip(containers, shares)
        if mine
    }


class Trouble:
    """What happens at an API call now and then: it fails, or the world changes beside it."""

    def __init__(self, stage, rng, rate):
        self.stage, self.rng, self.rate = stage, rng, rate

    def __call__(self, call):
        if self.rng.random() > self.rate:
            return
        if self.rng.random() < 0.8:
            error = self.rng.choice(
                (no_answer(), Conflict("modified", 409), ClusterError("busy", 503))
            )
            lost = not isinstance(error, Conflict) and self.rng.random() < 0.5
            self.stage.cluster.fail(call.method, error, after=lost)
        else:
            self.stage.cluster.put_node(
                replace(self.stage.cluster.nodes[NODE], labels={"n": str(self.rng.random())})
            )


@cases("record", ("record", True), ("no record", False))
@of_each_transport
@given(seed=integers(0, 2**32))
def test_no_container_ever_gets_shares_of_another(seed, record, watched):
    rng = random.Random(seed)
    stage = Stage(watched=watched)
    other = random.Random(seed)
    stage.watch.lag = lambda: other.choice((0, 0, 1, 2, 5))
    stage.prompt = seed % 2 == 0  # else the next call makes the deferred writes
    stage.start()
    kubelet = Kubelet(stage, rng, record=record)
    calm = seed % 3 == 0
    waiting, second = [], 0
    for number in range(12):
        pod, expected = some_pod(rng, f"p{number}")
        second += rng.randint(0, 2)
        if stage.node_lock is None or not calm:
            stage.cluster.put_pod(pod)
            if (
                calm or rng.random() < 0.8
            ):  # else it is one of those that need no lock, beside the one that has it
                stage.set_lock(lock_of(pod, f"2026-01-02T03:04:{second:02}Z"))
            waiting.append((pod, expected))
        stage.cluster.on_call = Trouble(stage, rng, 0 if calm else 0.2)
        if not calm and rng.random() < 0.3:  # its turn is taken back before the kubelet comes to it
            stored = stage.cluster.pods["default", pod.ref.name]
            stage.cluster.put_pod(
                replace(
                    stored, annotations={**stored.annotations, TO_ALLOCATE: "", PHASE: "failed"}
                )
            )
            continue
        if not calm and rng.random() < 0.4:  # the kubelet is late
            continue
        rng.shuffle(waiting)
        while waiting:
            pod, expected = waiting.pop()
            if not calm and rng.random() < 0.1:
                stage.start()
            try:
                handed = kubelet.admit(stage.cluster.pods["default", pod.ref.name])
            except HamiError as error:
                assert not calm, error
                continue
            assert {name: limits(grant) for name, grant in handed.items()} == expected
    stage.cluster.on_call = lambda call: None
    stage.cluster.heal()
    stage.time += 100
    stage.clean_up()
    if stage.node_lock is not None:
        assert stage.cluster.pods["default", stage.node_lock.rpartition(",")[2]].phase == "Pending"
    assert calm <= all(pod.annotations[PHASE] == "success" for pod in stage.cluster.pods.values())


# -- beside a watch that is late, and another thread that makes deferred writes

UNLOCKED = placed(asking("i", kind=INIT), asking("c", 0), shares=[[share(B, 7)], []], name="q")


def late(*pods, unreported=1):
    """A stage with a watch that has not reported the last *unreported* of *pods*; the first of them has the lock."""
    stage = stage_of(pods[0])
    for pod in pods[1:]:
        stage.cluster.put_pod(pod)
    stage.watch.lag = lambda: unreported
    return stage


def test_a_call_is_refused_when_another_container_matches_that_a_late_watch_has_not_reported():
    """The kubelet requests a pod without a lock: HAMi up to v2.10 has such pods."""
    stage = late(ONE, UNLOCKED)
    assert "2 containers match, of default/p, default/q" in refused(stage)
    assert not stage.cluster.calls_of("annotate_pod")
    assert (stage.pod().annotations, stage.node_lock) == (ONE.annotations, lock_of(ONE))


@cases("first", ("the pod with the lock is admitted first", "p"), ("the pod without one is", "q"))
def test_pods_that_were_refused_together_are_served_one_by_one(first):
    stage = late(ONE, UNLOCKED)
    kubelet = Kubelet(stage)
    assert "2 containers match" in refused(stage)
    kubelet.fail(UNLOCKED if first == "p" else ONE)
    handed = kubelet.admit(stage.pod(first))
    assert {name: limits(grant) for name, grant in handed.items()} == (
        {"c": [(A, "1000m")]} if first == "p" else {"i": [(B, "7m")]}
    )


@cases("record", ("checkpoint", True), ("no checkpoint", False))
def test_a_lost_response_does_not_lead_to_the_next_container_s_devices(record):
    pod = placed(asking("x"), asking("y"), shares=[[share(A, 1)], [share(B, 2)]])
    stage = stage_of(pod)
    stage.host.checkpoint = set() if record else None
    stage.cluster.fail("annotate_pod", no_answer(), after=True)
    assert limits(stage.allocator.allocate(ids(C))) == [(A, "1m")]
    assert stage.annotation(TO_ALLOCATE) == f";{B},NVIDIA,2,0:;"


def test_a_lost_write_that_arrives_late_is_found_after_the_conflict():
    pod = placed(asking("x"), asking("y"), shares=[[share(A, 1)], [share(B, 2)]])
    stage = stage_of(pod)
    stage.host.checkpoint = None
    stage.cluster.fail("annotate_pod", no_answer())

    def arrive(call):
        writes = stage.cluster.calls_of("annotate_pod")
        if (
            call.method == "annotate_pod" and len(writes) == 2
        ):  # the first one is only carried out now
            stage.cluster.put_pod(
                replace(stage.pod(), annotations=stage.pod().annotations | writes[0].annotations)
            )

    stage.cluster.on_call = arrive
    assert limits(stage.allocator.allocate(ids(C))) == [(A, "1m")]
    assert stage.annotation(TO_ALLOCATE) == f";{B},NVIDIA,2,0:;"


@cases(
    "stage",
    ("the pod", lambda: late(ONE)),
    (
        "its latest state",
        lambda: late(TWO, replace(TWO, annotations=ONE.annotations, containers=ONE.containers)),
    ),
    ("the shares it has now", lambda: late(placed(asking(), shares=[[share("GPU-9")]]), ONE)),
)
def test_what_a_late_watch_has_not_reported_changes_nothing(stage):
    stage = stage()
    assert limits(stage.allocator.allocate(ids(B))) == [(A, "1000m")]
    assert (stage.annotation(TO_ALLOCATE), stage.annotation(PHASE), stage.node_lock) == (
        ";",
        "success",
        None,
    )
    assert len(stage.cluster.calls_of("pods_on")) == 1


GONE = "2026-01-02T03:04:05Z,default,gone"


@cases(
    "lock, why",
    (
        "the call may be for the pod that is gone",
        GONE,
        "locked for pod default/gone, which is gone",
    ),
    ("nobody knows whose it is", "what,is,this,lock", "hami.io/mutex.lock"),
)
def test_a_pod_is_not_touched_when_the_lock_names_no_pod_of_the_cluster(lock, why):
    stage = stage_of(ONE)
    stage.set_lock(lock)
    assert why in refused(stage)
    assert stage.pod().annotations == ONE.annotations


@cases("lock", ("none", None), ("the oldest form", "2026-01-02T03:04:05Z"))
def test_a_pod_without_a_lock_is_served(lock):
    stage = stage_of(UNLOCKED)
    stage.set_lock(lock)
    assert limits(stage.allocator.allocate(ids(B))) == [(B, "7m")]


def test_the_kubelet_has_its_answer_before_the_lock_is_released():
    stage = stage_of(ONE)
    stage.prompt = False
    stage.start()
    assert limits(stage.allocator.allocate(ids(A))) == [(A, "1000m")]
    assert (stage.annotation(PHASE), stage.node_lock) == ("success", lock_of(ONE))
    assert stage.deferred._woken.is_set(), "the thread that makes deferred writes is woken"
    stage.deferred.flush()
    assert stage.node_lock is None
    assert len(stage.cluster.calls_of("node")) == 1


@cases(
    "change",
    (
        "a label",
        (
            lambda stage: stage.cluster.put_node(
                replace(stage.cluster.nodes[NODE], labels={"a": "b"})
            )
        ),
    ),
    ("the API server was away", lambda stage: stage.cluster.fail("annotate_node", AWAY, times=1)),
)
def test_a_deferred_release_is_made_by_the_next_call_at_the_latest(change):
    stage = stage_of(ONE)
    stage.prompt = False
    stage.start()
    stage.allocator.allocate(ids(A))
    change(stage)
    stage.deferred.flush()
    refused(stage, A, B)
    assert stage.node_lock is None


def test_a_deferred_release_keeps_a_lock_that_was_taken_by_another_pod():
    other = placed(asking(), shares=[[share(B, 5)]], name="q")
    stage = stage_of(ONE)
    stage.prompt = False
    stage.start()
    stage.allocator.allocate(ids(A))
    stage.put_locked(other)
    stage.deferred.flush()
    assert stage.node_lock == lock_of(other)


@of_each_transport
def test_not_found_does_not_fail_a_pod(watched):
    stage = stage_of(ONE, watched)
    stage.cluster.fail(
        "annotate_pod" if watched else "environment", NotFound("pod default/p is gone", 404)
    )
    assert limits(stage.allocator.allocate(ids(A))) == [(A, "1000m")]
