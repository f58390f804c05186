"""Bind: the writes in their order, what a failure leaves behind, unknown outcomes, and other replicas."""

from dataclasses import replace

import pytest

from hami.codec.keys import NODE_LOCK
from hami.errors import ClusterError, Conflict, HamiError, NodeLocked, NotFound, Rejected
from hami.scheduler.reconcile import pod_moves
from hami.scheduler.settings import Settings
from testing.builders import NVIDIA, ONLY_NVIDIA, gpus, node, pod
from testing.cases import cases
from testing.fake_cluster import never_sent, no_answer
from testing.replicas import cards, holding, replica
from testing.stores import read_pods

ASKED = pod(gpus(1, memory=3000, cores=30), phase="Pending")


def ready(**options):
    """A replica that has filtered a pod."""
    scheduler = replica(cards("n1", {}), pods=[ASKED], **options)
    assert scheduler.filter(ASKED) == "n1"
    scheduler.fake.calls.clear()
    scheduler.events.clear()
    return scheduler


def bind(scheduler, asked=ASKED, on="n1"):
    scheduler.binder.bind(asked.ref, on)


@pytest.mark.parametrize("copies_labels", [True, False])
def test_a_bind_writes_the_lock_and_the_binding(copies_labels):
    scheduler = ready(copies_labels=copies_labels)
    read_pods(scheduler.cache, "n1")
    bind(scheduler)
    assert [call.method for call in scheduler.fake.calls] == ["annotate_node", "bind"]
    bound = scheduler.fake.pods["default", "pod1"]
    assert bound.node_name == "n1"
    assert bound.annotations == {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": "1787313600",
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": "1787313600",
        NVIDIA.annotations.allocated: "GPU-n1-0,NVIDIA,3000,30:;",
        NVIDIA.annotations.to_allocate: "GPU-n1-0,NVIDIA,3000,30:;",
    }
    assert bound.labels == ({"hami.io/vgpu-node": "n1"} if copies_labels else {})
    assert scheduler.fake.lock_of("n1") == "2026-08-21T12:00:00Z,default,pod1"
    assert scheduler.events == [
        ("BindingSucceed", "Successfully binding node [n1] to default/pod1")
    ]
    assert len(scheduler.metrics.waits) == 1


def test_the_allocation_timeout_starts_at_the_binding():
    scheduler = ready()
    scheduler.clock.seconds += 24
    bind(scheduler)
    scheduler.watch()
    settings = Settings(node_lock_timeout=20.0)
    record = scheduler.cache.pods.get(ASKED.ref.uid)
    assert record.allocating
    assert list(pod_moves(record, ONLY_NVIDIA, settings, scheduler.clock())) == []
    assert list(pod_moves(record, ONLY_NVIDIA, settings, scheduler.clock() + 21))


def nothing_left(scheduler):
    return (
        scheduler.fake.lock_of("n1") is None
        and not scheduler.fake.pods["default", "pod1"].annotations
    )


@pytest.mark.parametrize("change", ["deleted", "ended"])
def test_a_restored_pod_holds_its_device_before_the_watch_connects_again(change):
    """etcd has been restored from a backup: the pod holds its device again, and no event says so."""
    held = holding("held", "n1", "GPU-n1-0,NVIDIA,46068,100:;", phase="Running")
    scheduler = replica(cards("n1", {}), pods=[held])
    backup = scheduler.fake.pods["default", "held"]
    if change == "deleted":
        scheduler.fake.delete_pod("default", "held")
    else:
        scheduler.fake.put_pod(replace(backup, phase="Succeeded"))
    scheduler.fake.put_pod(ASKED)
    scheduler.watch()
    read_pods(scheduler.cache, "n1")
    assert scheduler.filter(ASKED) == "n1"
    scheduler.fake.pods["default", "held"] = backup  # without an event
    scheduler.is_watching = False
    scheduler.clock.seconds += 1
    with pytest.raises(Rejected, match="was taken by another pod meanwhile"):
        bind(scheduler)
    assert not scheduler.fake.pods["default", "pod1"].node_name


def test_the_pods_of_a_node_are_read_while_they_are_not_watched():
    scheduler = ready()
    read_pods(scheduler.cache, "n1")
    scheduler.is_watching = False
    bind(scheduler)
    assert [call.method for call in scheduler.fake.calls] == ["annotate_node", "pods_on", "bind"]


@cases(
    "prepare, message, kept",
    ("deleted", lambda s: s.fake.delete_pod("default", "pod1"), "not found", False),
    (
        "another uid",
        lambda s: s.fake.put_pod(replace(ASKED, ref=replace(ASKED.ref, uid="later"))),
        'pod "pod1" not found',
        False,
    ),
    ("forbidden", lambda s: s.fake.fail("bind", ClusterError("forbidden", 403)), "forbidden", True),
    (
        "too many",
        lambda s: s.fake.fail("bind", ClusterError("too many", 429), times=3),
        "too many",
        True,
    ),
    (
        "lock forbidden",
        lambda s: s.fake.fail("annotate_node", ClusterError("forbidden", 403)),
        "forbidden",
        True,
    ),
    ("list fails", lambda s: s.fake.fail("pods_on", no_answer()), "timed out", True),
    (
        "device gone",
        lambda s: s.fake.put_node(node("n1")) and s.watch(),
        "gone or unhealthy",
        False,
    ),
    ("no leader", lambda s: setattr(s.leadership, "leading", False), "does not lead yet", True),
    ("shutdown", lambda s: s.lock_states.close(), "shutting down", True),
)
def test_a_bind_that_fails_leaves_nothing_behind(prepare, message, kept):
    scheduler = ready()
    prepare(scheduler)
    with pytest.raises(HamiError, match=message):
        bind(scheduler)
    scheduler.locks.release_unneeded("n1")
    assert scheduler.fake.lock_of("n1") is None
    assert not any(p.annotations for p in scheduler.fake.pods.values())
    assert scheduler.events.reasons() == ["BindingFailed"]
    assert message in scheduler.events[0][1]
    assert (scheduler.cache.bindings.get("uid-pod1") is not None) is kept


def test_an_unknown_node_is_an_error_and_drops_the_reservation():
    scheduler = ready()
    scheduler.fake.delete_node("n1")
    scheduler.watch()
    with pytest.raises(NotFound, match='node "n1" not found'):
        bind(scheduler)
    assert scheduler.cache.bindings.get("uid-pod1") is None


@cases(
    "asked, on, error, message",
    (pod(gpus(), name="unknown"), "n1", NotFound, 'pod "unknown" not found'),
    (pod(gpus(), uid="another"), "n1", NotFound, 'pod "pod1" not found'),
    (ASKED, "n2", Rejected, "does not fit node n2 any more: no devices"),
)
def test_a_bind_of_a_pod_that_was_not_filtered_is_refused(asked, on, error, message):
    scheduler = ready()
    with pytest.raises(error, match=message):
        bind(scheduler, asked, on)
    assert scheduler.fake.calls_of("bind", "annotate_node") == []


def test_a_bind_on_another_node_than_the_reserved_one_decides_there_again():
    """kube-scheduler tries several nodes for a group, and the last filter need not be the one that counts."""
    scheduler = replica(cards("n1", {}), cards("n2", {}), pods=[ASKED])
    assert scheduler.filter(ASKED, ["n1"]) == "n1"
    bind(scheduler, ASKED, "n2")
    scheduler.watch()
    assert scheduler.fake.pods["default", "pod1"].node_name == "n2"
    assert not scheduler.cache.view().bookings_on("n1")
    assert len(scheduler.cache.view().bookings_on("n2")) == 1


def test_a_bind_without_a_reservation_decides_on_its_node():
    scheduler = replica(cards("n1", {}), pods=[ASKED])
    bind(scheduler)
    scheduler.watch()
    assert len(scheduler.cache.view().bookings_on("n1")) == 1


def test_a_bind_on_a_node_that_has_filled_up_keeps_nothing():
    scheduler = replica(
        cards("n1", {}),
        cards("n2", {}),
        pods=[ASKED, holding("full", "n2", "GPU-n2-0,NVIDIA,46068,100:;")],
    )
    assert scheduler.filter(ASKED, ["n1"]) == "n1"
    with pytest.raises(Rejected, match="does not fit node n2 any more: 1/1 CardInsufficientMemory"):
        bind(scheduler, ASKED, "n2")
    assert scheduler.cache.open_bindings.unbound() == 0
    assert not scheduler.cache.view().bookings_on("n1")
    assert scheduler.filter(ASKED) == "n1"


def test_a_replica_that_does_not_lead_decides_nothing_at_a_bind():
    scheduler = replica(cards("n1", {}), pods=[ASKED], leads=False)
    with pytest.raises(NodeLocked, match="does not lead yet"):
        bind(scheduler)
    assert scheduler.cache.open_bindings.unbound() == 0


@pytest.mark.parametrize("bound", [False, True])
def test_a_bind_waits_until_this_replica_leads(bound):
    """The API server had stood still: kube-scheduler need not try the pod again. *bound*: by the leader before, whose
    answer was lost."""
    scheduler = replica(cards("n1", {}), pods=[ASKED], leads=False)

    def lead():
        if bound:
            scheduler.fake.put_pod(holding("pod1", "n1", "GPU-n1-0,NVIDIA,3000,30:;"))
            scheduler.watch()
        scheduler.leadership.leading = True

    scheduler.leadership.require = lead
    bind(scheduler)
    assert scheduler.fake.pods["default", "pod1"].node_name == "n1"
    assert len(scheduler.fake.calls_of("bind")) == (not bound)


def test_a_second_bind_while_the_first_waits_is_refused():
    scheduler = ready()
    scheduler.cache.bindings.start(ASKED.ref, "n1")
    with pytest.raises(Rejected, match="already being bound"):
        bind(scheduler)


def test_a_bind_whose_answer_was_lost_may_be_repeated():
    scheduler = ready()
    bind(scheduler)
    bind(scheduler)
    scheduler.watch()
    bind(scheduler)
    assert len(scheduler.fake.calls_of("bind")) == 1


@pytest.mark.parametrize("seen", [True, False])
def test_a_pod_that_requests_no_device_is_bound_without_annotations(seen):
    plain = pod(gpus(0))
    scheduler = replica(cards("n1", {}), pods=[plain])
    if not seen:
        scheduler.fake.put_pod(replace(plain, ref=replace(plain.ref, name="later", uid="later")))
    bind(scheduler, plain)
    (call,) = scheduler.fake.calls_of("bind")
    assert (dict(call.annotations), dict(call.labels)) == ({}, {})
    assert scheduler.fake.lock_of("n1") is None


@pytest.mark.parametrize("seen", [True, False])
def test_a_pod_whose_claim_cannot_be_read_is_not_bound(seen):
    """Without devices it would never start."""
    unreadable = pod(claim="hami-0", claim_problem="broken")
    scheduler = replica(cards("n1", {}), pods=[unreadable] if seen else [])
    if not seen:
        scheduler.fake.put_pod(unreadable)
    with pytest.raises(Rejected):
        bind(scheduler, unreadable)
    assert scheduler.fake.calls_of("bind") == []


def test_a_binding_takes_no_longer_than_the_leadership_lasts():
    scheduler = ready(waits_for_locks=True)
    scheduler.leadership.leads_until = lambda: scheduler.clock() + 5
    bind(scheduler)
    assert scheduler.fake.calls_of("bind")[0].timeout == 5.0


# attempts that do not reach the API server


def test_a_binding_that_did_not_reach_the_api_server_is_tried_again():
    scheduler = ready()
    scheduler.fake.fail("bind", never_sent(), times=2)
    bind(scheduler)
    assert len(scheduler.fake.calls_of("bind")) == 3
    assert scheduler.fake.bindings == 1


def test_a_binding_that_never_reaches_the_api_server_leaves_nothing_behind():
    scheduler = ready()
    scheduler.fake.fail("bind", never_sent(), times=3)
    with pytest.raises(ClusterError, match="connect timeout"):
        bind(scheduler)
    assert nothing_left(scheduler)
    assert not scheduler.cache.open_bindings.are_binding()


def while_connecting(scheduler, happens):
    """The first attempt finds no connection. Meanwhile something *happens*."""

    def connect(call):
        if call.method == "bind":
            scheduler.fake.on_call = lambda call: None
            happens()
            raise never_sent()

    scheduler.fake.on_call = connect


def test_a_binding_is_not_tried_again_in_the_term_of_another_leader():
    scheduler = ready()
    while_connecting(scheduler, lambda: setattr(scheduler.leadership, "leading", False))
    with pytest.raises(NodeLocked, match="no longer leads"):
        bind(scheduler)
    assert scheduler.fake.bindings == 0
    assert len(scheduler.fake.calls_of("bind")) == 1


def test_all_attempts_together_end_with_the_term():
    scheduler = ready()
    ends = scheduler.clock() + 7
    scheduler.leadership.leads_until = lambda: ends
    while_connecting(
        scheduler, lambda: setattr(scheduler.clock, "seconds", scheduler.clock.seconds + 5)
    )
    bind(scheduler)
    assert [call.timeout for call in scheduler.fake.calls_of("bind")] == [7.0, 2.0]


def test_all_attempts_together_take_no_longer_than_one():
    scheduler = ready()
    while_connecting(
        scheduler, lambda: setattr(scheduler.clock, "seconds", scheduler.clock.seconds + 10)
    )
    with pytest.raises(NodeLocked, match="cannot be reached in time"):
        bind(scheduler)
    assert scheduler.fake.bindings == 0


def test_a_second_attempt_looks_at_the_devices_again():
    scheduler = ready()
    read_pods(scheduler.cache, "n1")
    while_connecting(scheduler, lambda: (allocated_elsewhere(scheduler), scheduler.watch()))
    with pytest.raises(Rejected, match="taken by another pod meanwhile"):
        bind(scheduler)
    assert scheduler.fake.bindings == 0


# Bindings without an answer

ANSWERS = [
    no_answer(),
    ClusterError("etcdserver: request timed out", 500),
    ClusterError("unavailable", 503),
]


@pytest.mark.parametrize("error", ANSWERS, ids=str)
def test_a_binding_that_was_written_without_an_answer_counts(error):
    scheduler = ready()
    scheduler.fake.fail("bind", error, after=True)
    bind(scheduler)
    assert scheduler.events.reasons() == ["BindingSucceed"]
    assert scheduler.cache.open_bindings.unbound() == 0
    assert scheduler.fake.lock_of("n1")


@pytest.mark.parametrize("error", ANSWERS, ids=str)
def test_a_binding_without_an_answer_keeps_its_reservation_and_lock(error):
    scheduler = ready()
    scheduler.fake.fail("bind", error)
    with pytest.raises(ClusterError, match="no answer whether it was bound"):
        bind(scheduler)
    assert scheduler.fake.lock_of("n1")
    assert scheduler.cache.bindings.get("uid-pod1")
    assert scheduler.schedule(ASKED) == "n1"
    assert scheduler.fake.bindings == 1


def test_a_binding_whose_outcome_is_unknown_keeps_its_reservation():
    scheduler = ready()
    scheduler.fake.fail("bind", no_answer(), after=True)
    scheduler.fake.fail("pod", no_answer())
    with pytest.raises(ClusterError, match="no answer"):
        bind(scheduler)
    assert scheduler.schedule(ASKED) == "n1", "a conflict with our own earlier Binding is success"
    assert scheduler.cache.open_bindings.unbound() == 0
    assert scheduler.fake.pods["default", "pod1"].node_name == "n1"


def test_a_conflict_whose_outcome_is_unknown_keeps_its_reservation():
    scheduler = ready()
    scheduler.fake.fail("bind", no_answer(), after=True)
    scheduler.fake.fail("pod", no_answer(), times=2)
    for _ in range(2):
        with pytest.raises(ClusterError, match="no answer"):
            scheduler.schedule(ASKED)
    assert scheduler.cache.bindings.get("uid-pod1")
    assert scheduler.fake.lock_of("n1")


def test_a_binding_that_was_written_and_allocated_meanwhile_is_recognized():
    scheduler = ready()
    scheduler.fake.fail("bind", no_answer(), after=True)
    scheduler.fake.fail("pod", no_answer())
    with pytest.raises(ClusterError):
        bind(scheduler)
    scheduler.fake.allocate("n1")
    bind(scheduler)
    assert scheduler.events.reasons() == ["BindingFailed", "BindingSucceed"]


@pytest.mark.parametrize(("where", "lock_stays"), [("n1", True), ("n2", False)])
def test_a_pod_that_another_replica_bound_is_dropped_and_keeps_its_lock(where, lock_stays):
    scheduler = ready()
    other = holding("pod1", where, "GPU-other,NVIDIA,1,1:;", uid="uid-pod1")

    def overtake(call):
        if call.method == "bind":
            scheduler.fake.on_call = lambda call: None
            scheduler.fake.put_pod(other)

    scheduler.fake.on_call = overtake
    with pytest.raises(Conflict, match=f"already bound to node {where}"):
        bind(scheduler)
    assert bool(scheduler.fake.lock_of("n1")) is lock_stays
    assert scheduler.cache.bindings.get("uid-pod1") is None
    assert scheduler.cache.view().usages("n1")["NVIDIA"][0].memory_used_mib == 0


# another replica on the same node


def test_after_another_process_locked_the_node_its_pods_are_read_before_the_binding():
    scheduler = ready()
    read_pods(scheduler.cache, "n1")
    free = scheduler.fake.nodes["n1"]
    theirs = {NODE_LOCK: "2026-08-21T12:00:00Z,default,other"}
    scheduler.fake.put_node(replace(free, annotations=free.annotations | theirs))
    scheduler.fake.release("n1")
    scheduler.fake.put_pod(holding("other", "n1", "GPU-n1-0,NVIDIA,45000,0:;"))
    scheduler.watch("nodes")
    with pytest.raises(Rejected, match="taken by another pod meanwhile"):
        bind(scheduler)
    assert scheduler.fake.calls_of("pods_on")
    assert scheduler.fake.bindings == 0


def test_a_lock_that_came_and_went_before_the_watch_showed_it_is_noticed():
    scheduler = ready()
    read_pods(scheduler.cache, "n1")
    allocated_elsewhere(scheduler)
    with pytest.raises(Rejected, match="taken by another pod meanwhile"):
        bind(scheduler)
    assert scheduler.fake.bindings == 0


def test_a_handshake_does_not_hide_a_lock_that_came_and_went():
    scheduler = ready()
    read_pods(scheduler.cache, "n1")
    allocated_elsewhere(scheduler)
    scheduler.controller.step()
    annotations = scheduler.fake.nodes["n1"].annotations
    assert NVIDIA.annotations.handshake not in annotations, "the node was not as it was known"
    with pytest.raises(Rejected, match="taken by another pod meanwhile"):
        bind(scheduler)
    assert scheduler.fake.bindings == 0
    scheduler.watch("nodes")
    scheduler.controller.step()
    assert scheduler.fake.nodes["n1"].annotations[NVIDIA.annotations.handshake]


def test_a_handshake_does_not_make_a_node_foreign():
    scheduler = ready()
    read_pods(scheduler.cache, "n1")
    scheduler.controller.step()
    assert scheduler.fake.nodes["n1"].annotations[NVIDIA.annotations.handshake]
    bind(scheduler)
    assert scheduler.fake.calls_of("pods_on") == []


def allocated_elsewhere(scheduler):
    """Another process locks the node, binds a pod and releases it; the watch has shown none of that yet."""
    scheduler.fake.put_node(
        replace(
            scheduler.fake.nodes["n1"],
            annotations=scheduler.fake.nodes["n1"].annotations
            | {NODE_LOCK: "2026-08-21T12:00:00Z,default,other"},
        )
    )
    scheduler.fake.put_pod(holding("other", "n1", "GPU-n1-0,NVIDIA,45000,0:;"))
    scheduler.fake.release("n1")


def test_a_node_whose_pods_could_not_be_read_is_read_again():
    scheduler = ready()
    scheduler.fake.fail("pods_on", no_answer())
    with pytest.raises(ClusterError):
        bind(scheduler)
    scheduler.fake.put_pod(holding("other", "n1", "GPU-n1-0,NVIDIA,45000,0:;"))
    with pytest.raises(Rejected, match="taken by another pod"):
        bind(scheduler)


def test_filtering_again_cancels_the_waiting_bind():
    scheduler = ready()

    def filter_again(call):
        if call.method == "annotate_node":
            scheduler.fake.on_call = lambda call: None
            scheduler.filter(ASKED)

    scheduler.fake.on_call = filter_again
    with pytest.raises(Rejected, match="replaced or dropped"):
        bind(scheduler)
    assert nothing_left(scheduler)
    assert scheduler.cache.open_bindings.unbound() == 1


def test_a_binding_without_an_answer_may_still_arrive():
    scheduler = ready()
    scheduler.fake.fail("bind", no_answer())
    with pytest.raises(ClusterError):
        bind(scheduler)
    assert scheduler.cache.open_bindings.are_binding(), "the leadership must not be handed over"
    scheduler.schedule(ASKED)
    assert not scheduler.cache.open_bindings.are_binding()


def test_drain_waits_for_binds_in_progress():
    scheduler = ready()
    seen = []
    scheduler.fake.on_call = lambda call: seen.append(scheduler.binder.drain(0))
    bind(scheduler)
    assert seen
    assert not any(seen)
    assert scheduler.binder.drain(0)
