"""Node locks: taking, waiting, releasing, taking over."""

import contextlib
import threading
from datetime import timedelta

import pytest

from hami.codec.keys import ASSIGNED_NODE, BIND_PHASE, NODE_LOCK
from hami.errors import ClusterError, Conflict, NodeLocked, NotFound
from hami.kube.leases import LeaseRecord
from hami.scheduler.lock_judgement import DELETED_S, FINISHED_S, RENEWED_S
from hami.state.sighting import OBSERVED_S
from hami.vendors.spec import Annotations, Catalog, Decision, Resources, Vendor
from testing.builders import NVIDIA, container, gpu, gpus, node, pod
from testing.cases import cases
from testing.eventually import eventually
from testing.fake_cluster import no_answer
from testing.replicas import Clock, Replica, WatchedCluster

NOW = "2026-08-21T12:00:00Z"
OLD = "2026-08-21T11:54:59Z"  # 301 s before


def holder(phase="allocating", name="held", on="n1", **fields):
    text = "GPU-0,NVIDIA,10,0:;"
    return pod(
        gpus(1, memory=10),
        name=name,
        node_name=on,
        annotations={
            ASSIGNED_NODE: "n1",
            BIND_PHASE: phase,
            NVIDIA.annotations.allocated: text,
            NVIDIA.annotations.to_allocate: text,
        },
        **fields,
    )


def locked(text):
    return node("n1", gpu(), annotations={NODE_LOCK: text} if text else {})


class Scene:
    """A node, its lock, and one replica that takes it. It has watched the lock for *watched* seconds."""

    def __init__(self, lock=None, *pods, node=None, watched=None, **options):
        self.clock = Clock()
        watched = (
            watched if watched is not None else OBSERVED_S if lock and lock.startswith(OLD) else 0.0
        )
        self.clock.seconds -= watched
        self.fake = WatchedCluster(nodes=[node or locked(lock)], pods=pods)
        self.replica = Replica(self.fake, self.clock, **options)
        self.clock.seconds += watched
        self.locks, self.held = self.replica.locks, contextlib.nullcontext()
        self.fake.calls.clear()

    @property
    def lock(self):
        return self.fake.lock_of("n1")

    @property
    def annotations(self):
        """Of the node, what locks it."""
        return {
            key: text
            for key, text in self.fake.nodes["n1"].annotations.items()
            if key.endswith(".lock")
        }

    def take(
        self, name="a", timeout=0.0, wanted=lambda: True, keys=(NODE_LOCK,), node="n1", **fields
    ):
        """Takes locks, which ``release`` and ``hand_over`` are then about."""
        held = self.locks.held(
            node, keys, pod(name=name, **fields).ref, self.clock() + timeout, wanted
        )
        held.__enter__()
        self.held = held

    def release(self):
        """The bind fails."""
        self.held.__exit__(Conflict, Conflict("bound", 409), None)

    def hand_over(self):
        """The pod is bound."""
        self.held.__exit__(None, None, None)

    def is_taken(self):
        try:
            self.take()
        except NodeLocked:
            return False
        return True

    def tick(self):
        """Lets the watch and the controller catch up."""
        self.replica.watch()
        self.replica.controller.step()

    def calls(self):
        return [call.method for call in self.fake.calls]


# taking


def test_a_free_lock_is_taken_in_one_compare_and_swap():
    scene = Scene()
    version = scene.fake.nodes["n1"].resource_version
    scene.take()
    assert scene.lock == f"{NOW},default,a"
    assert scene.calls() == ["annotate_node"]
    assert scene.fake.calls[0].resource_version == version


def test_a_lock_that_has_changed_hands_meanwhile_is_not_taken():
    scene = Scene(None, holder())
    scene.fake.put_node(node("n1", gpu(), annotations={NODE_LOCK: f"{NOW},default,held"}))
    with pytest.raises(NodeLocked, match="node lock contention"):
        scene.take()
    assert scene.lock == f"{NOW},default,held"


def test_a_conflict_on_the_node_is_retried():
    scene = Scene()
    scene.fake.fail("annotate_node", Conflict("modified", 409), times=4)
    scene.take()
    assert scene.lock == f"{NOW},default,a"
    assert scene.calls().count("annotate_node") == 5


def test_an_unknown_node_is_an_error():
    scene = Scene()
    with pytest.raises(NotFound, match='node "n2" not found'):
        scene.take(node="n2")


def test_a_node_that_the_watch_has_not_shown_is_read():
    scene = Scene()
    scene.replica.cache.nodes.prune(set(), 0.0)
    scene.take()
    assert scene.lock == f"{NOW},default,a"


def test_a_pod_that_holds_the_lock_already_takes_it_again():
    scene = Scene(f"{OLD},default,a", pod(gpus(), name="a"))
    scene.take()
    assert scene.lock == f"{NOW},default,a", "its time counts from now"


# taking over


@cases(
    "lock, pods, free, writes",
    ("gone", f"{OLD},default,gone", [], True, ["annotate_node"]),
    ("allocating", f"{NOW},default,held", [holder()], False, []),
    ("terminating", f"{NOW},default,held", [holder(deleting=True)], False, []),
    ("expired", f"{OLD},default,held", [holder()], True, ["annotate_pod", "annotate_node"]),
    ("not yet bound", f"{NOW},default,held", [pod(gpus(), name="held")], False, []),
    ("never bound", f"{OLD},default,held", [pod(gpus(), name="held")], True, ["annotate_node"]),
    (
        "unbound with devices",
        f"{OLD},default,held",
        [holder(on="")],
        True,
        ["annotate_pod", "annotate_node"],
    ),
    ("bound elsewhere", f"{NOW},default,held", [holder(on="n2")], True, ["annotate_node"]),
    (
        "another of the name",
        f"{NOW},default,held",
        [pod(gpus(), name="held", node_name="n1", uid="x")],
        False,
        [],
    ),
    (
        "asks for nothing",
        f"{NOW},default,held",
        [pod(gpus(0), name="held", node_name="n1")],
        False,
        [],
    ),
    ("legacy", NOW, [], False, []),
    ("legacy expired", OLD, [], True, ["annotate_node"]),
    ("malformed", "lock", [], True, ["annotate_node"]),
    ("two parts", f"{NOW},default", [], True, ["annotate_node"]),
    ("empty names", f"{NOW},,", [], True, ["annotate_node"]),
    ("impossible names", f"{NOW},..,../x", [], True, ["annotate_node"]),
    ("no zone", "2026-08-21T12:00:00,default,held", [], True, ["annotate_node"]),
)
def test_locks_that_may_be_taken_over(lock, pods, free, writes):
    scene = Scene(lock, *pods)
    assert scene.is_taken() is free
    assert scene.lock == (f"{NOW},default,a" if free else lock)
    assert [name for name in scene.calls() if name.startswith("annotate")] == writes


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_the_lock_of_a_terminated_pod_is_free(phase):
    assert Scene(
        f"{NOW},default,held", pod(gpus(), name="held", node_name="n1", phase=phase)
    ).is_taken()


@pytest.mark.parametrize("phase", ["success", "failed"])
def test_a_holder_that_has_finished_has_a_moment_to_release_the_lock(phase):
    scene = Scene(f"{NOW},default,held", holder(phase))
    assert not scene.is_taken()
    scene.clock.seconds += FINISHED_S
    assert not scene.is_taken()
    scene.clock.seconds += 1
    assert scene.is_taken()
    assert scene.replica.events == []


def test_a_lock_whose_holder_is_gone_is_kept_as_long_as_a_kubelet_may_still_ask_for_it():
    scene = Scene(f"{NOW},default,gone")
    assert not scene.is_taken()
    scene.clock.seconds += DELETED_S
    assert not scene.is_taken()
    scene.clock.seconds += 1
    assert scene.is_taken()


@cases(
    "held, kept",
    ("allocating", holder(name="a", uid="earlier"), True),
    ("allocated", holder("success", name="a", uid="earlier"), False),
    ("failed", holder("failed", name="a", uid="earlier"), False),
    ("not bound", pod(gpus(), name="a", uid="earlier"), False),
)
def test_the_lock_of_a_deleted_pod_is_kept_only_if_its_plugin_has_not_answered(held, kept):
    scene = Scene(None, held)
    scene.take(held.ref.name, uid=held.ref.uid)
    scene.hand_over()
    scene.fake.delete_pod("default", "a")
    scene.replica.watch()
    try:
        scene.take("b")
    except NodeLocked:
        assert kept
    else:
        assert not kept


def test_a_plugin_that_trusts_the_lock_never_serves_the_next_pod_to_the_call_for_a_deleted_one():
    """HAMi's own plugin answers each Allocate with the devices of the pod that the lock names."""
    scene = Scene(
        None,
        *(
            pod(gpus(1, memory=memory), name=name)
            for name, memory in (("dead", 1000), ("next", 2000))
        ),
    )
    scene.replica.schedule(scene.fake.pods["default", "dead"])
    scene.fake.delete_pod("default", "dead")  # by force: its kubelet is about to call Allocate
    scene.replica.watch()
    with pytest.raises(NodeLocked):
        scene.replica.schedule(scene.fake.pods["default", "next"])
    assert scene.fake.allocate("n1") is None, (
        "the call for the deleted pod is answered with an error"
    )
    scene.clock.seconds += DELETED_S + 1
    scene.replica.schedule(scene.fake.pods["default", "next"])
    assert scene.fake.allocate("n1").ref.name == "next"


def test_a_kubelet_that_stands_still_keeps_the_lock_of_a_deleted_pod_until_it_goes_on():
    """For 13 s; then it renews its Lease, and calls Allocate for the deleted pod."""
    scene = Scene(
        None,
        *(
            pod(gpus(1, memory=memory), name=name)
            for name, memory in (("dead", 1000), ("next", 2000))
        ),
    )
    scene.fake.put_lease(LeaseRecord(namespace="kube-node-lease", name="n1", renew_time=NOW))
    scene.replica.schedule(scene.fake.pods["default", "dead"])
    scene.fake.delete_pod("default", "dead")
    scene.replica.watch()

    def is_bound():
        try:
            scene.replica.schedule(scene.fake.pods["default", "next"])
        except NodeLocked:
            return False
        return True

    assert not is_bound()
    scene.clock.seconds += 13
    assert not is_bound()
    scene.fake.put_lease(
        LeaseRecord(namespace="kube-node-lease", name="n1", renew_time="2026-08-21T12:00:13Z")
    )
    assert not is_bound()
    assert scene.fake.allocate("n1") is None, (
        "the call for the deleted pod is answered with an error"
    )
    scene.clock.seconds += RENEWED_S + 1
    assert is_bound()
    assert scene.fake.allocate("n1").ref.name == "next"


def test_a_lease_that_may_not_be_read_is_no_reason_to_wait():
    """With the role of an earlier version, or of HAMi's chart."""
    scene = Scene(f"{NOW},default,gone")
    scene.fake.fail("lease", ClusterError("forbidden", 403), times=10)
    assert not scene.is_taken()
    scene.clock.seconds += DELETED_S + 1
    assert scene.is_taken()


@cases("taker", ("another pod", "b"), ("the later one", "a"))
def test_the_lock_of_a_deleted_pod_is_not_that_of_a_later_one_of_its_name(taker):
    scene = Scene(None, holder(name="a", uid="earlier"))
    scene.take("a", uid="earlier")
    scene.hand_over()
    scene.fake.delete_pod("default", "a")
    scene.fake.put_pod(pod(gpus(), name="a"))
    scene.replica.watch()
    assert not scene.is_taken()
    scene.clock.seconds += DELETED_S + 1
    scene.take(taker)
    assert scene.lock.endswith(f",default,{taker}")
    scene.release()
    assert scene.lock is None


def test_a_lock_from_the_future_expires_by_our_own_clock():
    scene = Scene("2036-01-01T00:00:00Z,default,held", holder())
    assert not scene.is_taken()
    scene.clock.seconds += 301
    assert scene.is_taken()


@cases("hours", ("ahead", 1), ("back", -1))
def test_a_time_of_day_that_jumps_revokes_no_holder_and_keeps_no_lock(hours):
    scene = Scene(f"{NOW},default,held", holder())
    scene.clock.jump(timedelta(hours=hours))
    scene.clock.seconds += 300
    assert not scene.is_taken()
    assert scene.fake.calls_of("annotate_pod") == []
    scene.clock.seconds += 1
    assert scene.is_taken()


def test_a_lock_of_another_scheduler_whose_clock_is_late_is_not_taken_over():
    scene = Scene(None, holder())
    scene.fake.put_node(locked(f"{OLD},default,held"))
    scene.replica.watch()
    scene.clock.seconds += OBSERVED_S
    assert not scene.is_taken()


def test_a_process_that_has_just_started_revokes_nothing():
    """Its time of day may be wrong."""
    scene = Scene(f"{OLD},default,held", holder(), watched=OBSERVED_S - 1)
    assert not scene.is_taken()
    scene.clock.seconds += 1
    assert scene.is_taken()


def test_a_lock_left_by_a_predecessor_is_free_soon_but_not_at_once():
    scene = Scene("2026-08-21T11:59:50Z,default,held", pod(gpus(), name="held"))
    assert not scene.is_taken()
    scene.clock.seconds += 3
    assert scene.is_taken()


def test_a_new_leader_that_has_long_seen_the_lock_waits_as_long():
    scene = Scene("2026-08-21T11:59:50Z,default,held", pod(gpus(), name="held"))
    scene.is_taken()
    scene.clock.seconds += 20
    scene.replica.leadership.began = scene.clock()
    assert not scene.is_taken(), "a Binding of the one before may still be on its way"


# revoking


def test_the_holder_is_revoked_before_its_lock_is_taken():
    scene = Scene(f"{OLD},default,held", holder())
    version = scene.fake.pods["default", "held"].resource_version
    scene.take()
    revoking = scene.fake.calls_of("annotate_pod")[0]
    assert revoking.annotations == {NVIDIA.annotations.to_allocate: "", BIND_PHASE: "failed"}
    assert revoking.resource_version == version
    assert scene.fake.pods["default", "held"].annotations[NVIDIA.annotations.allocated], (
        "what it holds stays booked"
    )
    assert [ref.name for ref in scene.replica.events.subjects] == ["held"]
    assert scene.replica.events == [
        ("AllocationRevoked", "the device plugin of node n1 did not allocate the devices in time")
    ]


def test_a_lock_is_not_taken_when_its_holder_cannot_be_revoked():
    scene = Scene(f"{OLD},default,held", holder())
    scene.fake.fail("annotate_pod", no_answer())
    with pytest.raises(ClusterError):
        scene.take()
    assert scene.lock == f"{OLD},default,held"


def test_a_holder_that_finishes_just_now_is_not_revoked():
    scene = Scene(f"{OLD},default,held", holder())

    def finish(call):
        if call.method == "annotate_pod":
            scene.fake.on_call = lambda call: None
            scene.fake.put_pod(holder("success"))

    scene.fake.on_call = finish
    assert not scene.is_taken()
    assert scene.fake.pods["default", "held"].annotations[BIND_PHASE] == "success"


def test_a_late_watch_revokes_no_pod():
    scene = Scene(f"{OLD},default,held", pod(gpus(), name="held"))
    scene.fake.put_pod(holder("success"))
    assert not scene.is_taken()
    assert scene.fake.calls_of("annotate_pod") == []


def test_an_earlier_pod_of_the_same_name_does_not_free_the_lock():
    scene = Scene(f"{NOW},default,held", pod(gpus(), name="held", uid="old", phase="Succeeded"))
    scene.fake.put_pod(holder(uid="new"))
    assert not scene.is_taken()


def test_no_lock_is_taken_over_without_an_answer_of_the_api_server():
    scene = Scene(f"{NOW},default,gone")
    scene.fake.fail("pod", no_answer())
    with pytest.raises(ClusterError):
        scene.take()
    assert scene.lock == f"{NOW},default,gone"
    assert scene.replica.lock_states.waiting() == {}


# releasing


def test_a_taken_lock_is_released():
    scene = Scene()
    scene.take()
    scene.release()
    assert scene.lock is None


def test_the_lock_of_another_is_not_released():
    scene = Scene()
    scene.take()
    scene.fake.put_node(node("n1", gpu(), annotations={NODE_LOCK: f"{NOW},default,b"}))
    scene.release()
    assert scene.lock == f"{NOW},default,b"


def test_a_lock_that_may_belong_to_a_binding_on_its_way_is_not_released():
    scene = Scene(f"{NOW},default,a", pod(gpus(), name="a"))
    scene.take()
    scene.release()
    assert scene.lock == f"{NOW},default,a"


def test_a_bind_does_not_release_the_lock_of_a_later_bind_of_its_pod():
    scene = Scene(None, pod(gpus(), name="a"))
    scene.take()
    earlier = scene.held
    scene.take()  # within the same second, so the text is the same
    scene.hand_over()
    earlier.__exit__(Conflict, Conflict("replaced", 409), None)
    assert scene.lock == f"{NOW},default,a"


def test_the_answer_of_an_earlier_bind_may_come_after_that_of_a_later_bind_of_its_pod(monkeypatch):
    scene, write, later = Scene(None, pod(gpus(), name="a")), WatchedCluster.annotate_node, []

    def slow(cluster, *arguments):
        answer = write(cluster, *arguments)
        if not later:
            later.append("taken")
            scene.replica.watch()
            scene.take()  # within the same second, so the text is the same
            scene.hand_over()
        return answer

    monkeypatch.setattr(WatchedCluster, "annotate_node", slow)
    scene.take()
    scene.release()
    assert later
    assert scene.lock == f"{NOW},default,a"


@pytest.mark.parametrize("after", [False, True])
def test_a_failed_release_is_retried(after):
    scene = Scene()
    scene.take()
    scene.fake.fail("annotate_node", no_answer(), after=after)
    scene.release()
    scene.tick()
    assert scene.lock is None


@pytest.mark.parametrize("after", [False, True])
def test_a_lock_that_may_have_been_written_is_released_later(after):
    scene = Scene()
    scene.fake.fail("annotate_node", no_answer(), after=after)
    with pytest.raises(ClusterError):
        scene.take()
    assert scene.lock == (f"{NOW},default,a" if after else None)
    scene.tick()
    assert scene.lock is None


def test_a_lock_that_was_taken_again_is_not_released_later():
    scene = Scene(None, pod(gpus(), name="a"))
    scene.take()
    scene.fake.fail("annotate_node", no_answer())
    scene.release()
    scene.clock.seconds += 1
    scene.take()
    scene.tick()
    scene.hand_over()
    scene.tick()
    assert scene.lock == "2026-08-21T12:00:01Z,default,a"


def test_a_lock_that_cannot_be_released_does_not_stop_the_others():
    scene = Scene()
    scene.fake.put_node(node("n2", gpu("GPU-2")))
    scene.replica.watch()
    for name in ("n1", "n2"):
        scene.take(node=name)
        scene.fake.fail("annotate_node", no_answer())
        scene.release()
    scene.fake.fail(
        "annotate_node", ClusterError("forbidden", 403), times=3
    )  # two handshakes and the first lock
    scene.tick()
    assert (scene.lock, scene.fake.lock_of("n2")) == (f"{NOW},default,a", None)


# releasing unneeded locks


def test_an_unneeded_lock_is_released():
    scene = Scene(f"{OLD},default,gone")
    assert scene.locks.release_unneeded("n1")
    assert scene.lock is None
    assert not scene.locks.release_unneeded("n1")


def test_a_needed_or_claimed_lock_is_not_released():
    assert not Scene(f"{NOW},default,held", holder()).locks.release_unneeded("n1")
    scene = Scene()
    scene.take()
    scene.clock.seconds += 1000
    assert not scene.locks.release_unneeded("n1")
    assert scene.lock == f"{NOW},default,a"


def test_the_controller_forgets_locks_that_are_over_and_nodes_that_are_gone():
    scene = Scene(None, holder("success"))
    scene.take()
    scene.tick()
    assert scene.replica.lock_states._states
    scene.hand_over()
    scene.fake.release("n1")
    scene.tick()
    assert not scene.replica.lock_states._states
    scene.take()
    scene.hand_over()
    scene.fake.delete_node("n1")
    scene.tick()
    assert not scene.replica.lock_states._states


# the queue, with threads


class WaitingBinds:
    """Binds that wait in threads of their own."""

    def __init__(self, scene):
        self.scene, self.got, self.given_up, self.threads = scene, [], [], []

    def join(self, name, wanted=lambda: True, timeout=30.0):
        before = self.scene.replica.lock_states.waiting().get("n1", 0)
        thread = threading.Thread(target=self._wait, args=(name, wanted, timeout), daemon=True)
        thread.start()
        self.threads.append(thread)
        eventually(
            lambda: (
                self.scene.replica.lock_states.waiting().get("n1", 0) > before
                or not thread.is_alive()
            ),
            "the bind waits for the node or has ended",
            interval=0.001,
        )

    def _wait(self, name, wanted, timeout):
        try:
            self.scene.take(name, timeout, wanted)
            self.got.append(name)
        except NodeLocked as error:
            self.given_up.append((name, str(error)))

    def end(self):
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()


def test_binds_take_a_lock_one_after_the_other_when_the_watch_shows_it_free():
    scene = Scene(f"{NOW},default,held", holder())
    binds = WaitingBinds(scene)
    for name in "abc":
        binds.join(name)
    assert binds.got == []
    assert scene.replica.lock_states.waiting() == {"n1": 3}
    for count in (1, 2, 3):
        scene.hand_over()
        scene.fake.release("n1")
        scene.replica.watch()
        eventually(lambda: len(binds.got) == count, f"{count} binds have the lock", interval=0.001)
    binds.end()
    assert binds.got == ["a", "b", "c"]
    assert scene.replica.lock_states.waiting() == {}


def test_a_pod_that_comes_back_after_it_has_waited_in_vain_has_its_place():
    """Beside a plugin that takes long, a bind would else lose every turn to others."""
    scene = Scene(f"{NOW},default,held", holder())
    binds = WaitingBinds(scene)
    binds.join("a")
    binds.join("b", timeout=0.0)
    eventually(lambda: binds.given_up, "a bind gives up", interval=0.001)
    for name in "cb":
        binds.join(name)
    for count in (1, 2, 3):
        scene.hand_over()
        scene.fake.release("n1")
        scene.replica.watch()
        eventually(lambda: len(binds.got) == count, f"{count} binds have the lock", interval=0.001)
    binds.end()
    assert binds.got == ["a", "b", "c"]
    assert [name for name, _ in binds.given_up] == ["b"]


def test_the_next_bind_begins_as_soon_as_the_one_before_has_failed():
    scene = Scene()
    scene.take("a")
    failed = scene.held
    binds = WaitingBinds(scene)
    binds.join("b")
    failed.__exit__(Conflict, Conflict("bound", 409), None)
    binds.end()
    assert binds.got == ["b"]


def test_a_lock_that_the_controller_looks_at_is_not_taken_meanwhile():
    scene = Scene(f"{OLD},default,gone")
    binds = WaitingBinds(scene)

    def join(call):
        if call.method == "annotate_node" and not binds.threads:
            binds.join("a")
            assert binds.got == []
            assert scene.replica.lock_states.waiting() == {"n1": 1}

    scene.fake.on_call = join
    assert scene.locks.release_unneeded("n1")
    binds.end()
    assert binds.got == ["a"]
    assert scene.lock == f"{NOW},default,a"


def test_a_bind_that_is_no_longer_wanted_leaves_the_queue():
    scene = Scene(f"{NOW},default,held", holder())
    binds, wanted = WaitingBinds(scene), [True]
    binds.join("a")
    binds.join("b", wanted=lambda: wanted[0])
    wanted[0] = False
    eventually(lambda: binds.given_up, "a bind gives up", interval=0.001)
    assert "filtered again or deleted" in binds.given_up[0][1]
    scene.replica.lock_states.close()
    binds.end()
    assert scene.lock == f"{NOW},default,held"


def test_closing_the_queue_ends_all_waits_without_a_lock():
    scene = Scene(f"{NOW},default,held", holder())
    binds = WaitingBinds(scene)
    for name in "ab":
        binds.join(name)
    scene.replica.lock_states.close()
    binds.end()
    assert sorted(name for name, _ in binds.given_up) == ["a", "b"]
    assert all("shutting down" in text for _, text in binds.given_up)
    with pytest.raises(NodeLocked, match="shutting down"):
        scene.take()


def test_a_bind_leaves_the_queue_at_its_deadline():
    scene = Scene(f"{NOW},default,held", holder())
    with pytest.raises(NodeLocked, match=r"timed out .* \(held by .*held\): node lock contention"):
        scene.take()
    assert scene.replica.lock_states.waiting() == {}
    assert scene.lock == f"{NOW},default,held"


# vendors' own locks

OWN = "x.io/own.lock"
OTHERS = Catalog(
    [
        NVIDIA,
        Vendor(
            key="X",
            resources=Resources(count="x.io/card"),
            annotations=Annotations(lock=OWN, allocated="x.io/allocated"),
            decision=Decision(inventory=lambda vendor, node: None),
        ),
    ]
)


def own_scene(watched=0.0, **locks):
    return Scene(
        vendors=OTHERS,
        watched=watched,
        node=node(
            "n1",
            gpu(),
            annotations={
                {"own": OWN, "mutex": NODE_LOCK}[which]: text for which, text in locks.items()
            },
        ),
    )


def test_a_vendors_own_lock_is_a_bare_time():
    scene = own_scene()
    scene.take(keys=(OWN,))
    assert scene.annotations == {OWN: NOW}


@cases(
    "text, free",
    ("C6 a minute old", "2026-08-21T11:59:00Z", False),
    ("almost two minutes old", "2026-08-21T11:58:01Z", False),
    ("two minutes old", "2026-08-21T11:57:59Z", True),
    ("unreadable", "what", True),
)
def test_a_bare_lock_expires_by_its_age(text, free):
    scene = own_scene(own=text, watched=OBSERVED_S)
    if free:
        scene.take(keys=(OWN,))
    else:
        with pytest.raises(NodeLocked, match="timed out waiting for node n1"):
            scene.take(keys=(OWN,))
    assert scene.annotations[OWN] == (NOW if free else text)


def test_a_failed_bind_leaves_the_lock_of_another_vendor_alone():
    scene = own_scene(own=NOW)
    scene.take()
    scene.release()
    assert scene.annotations == {OWN: NOW}


def test_both_locks_or_none():
    scene = own_scene(own=NOW)
    with pytest.raises(NodeLocked):
        scene.take(keys=(OWN, NODE_LOCK))
    assert scene.annotations == {OWN: NOW}
    scene = own_scene()
    scene.take(keys=(OWN, NODE_LOCK))
    assert scene.annotations == {OWN: NOW, NODE_LOCK: f"{NOW},default,a"}
    scene.release()
    assert scene.annotations == {}


def test_the_next_bind_gets_a_lock_that_the_vendors_agent_has_released():
    scene = own_scene(own=NOW)
    thread = threading.Thread(target=lambda: scene.take("b", timeout=5.0, keys=(OWN,)))
    thread.start()
    scene.fake.annotate_node("n1", {OWN: None})
    scene.replica.watch("nodes")
    thread.join(5.0)
    assert not thread.is_alive()
    assert scene.annotations == {OWN: NOW}


def test_an_expired_bare_lock_is_released():
    scene = own_scene(own="2026-08-21T11:57:59Z", watched=OBSERVED_S)
    assert scene.locks.release_unneeded("n1", OWN)
    assert scene.annotations == {}
    scene = own_scene(own=NOW)
    assert not scene.locks.release_unneeded("n1", OWN)
    assert scene.annotations == {OWN: NOW}


LEFT = "2026-08-21T11:59:55Z"  # five seconds before
WAITS = {"x.io/allocated": "X-0,X,0,0:;"}


def on_the_node(phase, **annotations):
    return pod(
        container({"x.io/card": 1}), name="b", node_name="n1", phase=phase, annotations=annotations
    )


@cases(
    "acting, pods, free",
    ("of this replica's own time", 10, [], False),
    ("from before, and no pod waits for the agent", 0, [], True),
    ("from before, a pod waits for the agent", 0, [on_the_node("Pending", **WAITS)], False),
    ("from before, the pod runs", 0, [on_the_node("Running", **WAITS)], True),
    ("from before, a pod that was given nothing", 0, [on_the_node("Pending")], True),
)
def test_a_bare_lock_of_a_killed_scheduler_is_taken_over_early(acting, pods, free):
    scene = Scene(None, *pods, vendors=OTHERS, node=node("n1", gpu(), annotations={OWN: LEFT}))
    scene.replica.leadership.began = scene.clock() - acting
    with pytest.raises(NodeLocked):
        scene.take(keys=(OWN,))
    scene.clock.seconds += 3
    with contextlib.nullcontext() if free else pytest.raises(NodeLocked):
        scene.take(keys=(OWN,))
    assert scene.annotations[OWN] == ("2026-08-21T12:00:03Z" if free else LEFT)
