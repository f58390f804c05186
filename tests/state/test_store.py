"""Reservations, Bindings with an unknown outcome, quotas, and many threads at once."""

import threading
from dataclasses import replace

import pytest

from hami.codec.mig import MigAllocation, render_mig_allocations
from hami.errors import MalformedInput, Rejected
from hami.model import NodePreference, NodeRequirement, Partition, PodScope, ScopeRequirement
from hami.scheduling.refusal import Refusal
from hami.state import dry_run
from hami.state.binding_annotations import render_labels
from hami.state.filtering import (
    MAX_GROUPS,
    MAX_UNSHOWN,
    MAX_UNSHOWN_BYTES,
    MAX_UNSHOWN_PENDING,
    YIELD_S,
)
from hami.state.promises import ASSUMED_TTL_S, GROUP_TTL_S, NOMINATED_TTL_S
from testing.builders import NVIDIA, device_usage, gpu, gpus, node, pod, quota, within_quota
from testing.cases import cases
from testing.stores import BOUND, SmallStore, bound_to

ASKS = pod(gpus(2, memory=3000, cores=10))


# reservations


def test_a_reservation_holds_the_annotations_of_the_binding():
    cache = SmallStore()
    cache.place(pod(gpus(1, memory=3000, cores=30)))
    reservation = cache.bindings.get("uid-pod1")
    assert reservation.annotations == {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": str(cache.time.unix()),
        "hami.io/bind-phase": "allocating",
        "hami.io/vgpu-devices-to-allocate": "GPU-1,NVIDIA,3000,30:;",
        "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,3000,30:;",
    }
    assert render_labels(reservation.node) == {"hami.io/vgpu-node": "n1"}
    assert reservation.lock_keys
    cache.time.seconds += 24
    binding = cache.bindings.prepare(cache.bindings.start(reservation.ref, "n1"))
    assert binding == {**reservation.annotations, "hami.io/bind-time": str(cache.time.unix())}


def test_an_earlier_allocation_is_overwritten_completely():
    partition = Partition(6, 1, "1g.5gb")
    places = render_mig_allocations(
        [MigAllocation(container=0, device=0, gpu="GPU-m", partition=partition)]
    )
    earlier = {
        "hami.io/vgpu-node": "earlier",
        "hami.io/vgpu-time": "1",
        "hami.io/vgpu-mig-allocations": places,
        NVIDIA.annotations.allocated: "GPU-m,NVIDIA,4864,15:;",
        NVIDIA.annotations.to_allocate: "GPU-m,NVIDIA,4864,15:;",
        "hami.io/dcu-devices-allocated": "DCU-0,DCU,1,1:;",
        "hami.io/bind-time": "1",
        "team": "a",
    }
    cache = SmallStore()
    asked = pod(gpus(1, memory=3000, cores=30), annotations=earlier)
    cache.place(asked)
    binding = cache.bindings.prepare(cache.bindings.start(asked.ref, "n1"))
    assert binding["hami.io/vgpu-mig-allocations"] == "[]"
    assert binding["hami.io/dcu-devices-allocated"] == ""
    assert "team" not in binding
    assert binding["hami.io/bind-time"] == str(cache.time.unix())
    cache.pods.upsert(
        replace(asked, node_name="n1", resource_version="9", annotations={**earlier, **binding})
    )
    assert cache.pods.unreadable() == []
    assert cache.used("GPU-1") == (1, 3000, 30)


def test_a_node_name_that_is_no_label_value_gives_no_label():
    cache = SmallStore(node("n" * 64, gpu()))
    assert cache.place(pod(gpus(1, memory=1)), "n" * 64) == "n" * 64
    assert render_labels(cache.bindings.get("uid-pod1").node) == {}


def test_other_filters_do_not_wait_while_preferences_are_weighed():
    class SlowLabels(dict):
        def get(self, key, default=None):
            if key == "slow":
                weighed.set()
                assert finished.wait(10)
            return super().get(key, default)

    weighed, finished = threading.Event(), threading.Event()
    cache = SmallStore(node("n1", gpu("GPU-0", memory_mib=8000), labels=SlowLabels(slow="yes")))
    preference = NodePreference(1, (NodeRequirement("slow", "Exists"),))
    placed = []
    waits = threading.Thread(
        target=lambda: placed.append(
            cache.place(pod(gpus(1, memory=1000), name="choosy", preferences=(preference,)))
        )
    )
    waits.start()
    assert weighed.wait(10)
    assert cache.place(pod(gpus(1, memory=1000), name="plain")) == "n1"
    assert not placed
    finished.set()
    waits.join(10)
    assert placed == ["n1"]


def test_concurrent_filters_never_reserve_the_same_devices():
    cache = SmallStore()
    start, chosen = threading.Barrier(8), []

    def ask(number):
        start.wait(10)
        for turn in range(5):
            chosen.append(
                cache.place(pod(gpus(1, memory=1500, cores=10), name=f"p{number}-{turn}"))
            )

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(chosen) == 40
    assert chosen.count("n1") == 10
    assert [cache.used(uuid) for uuid in ("GPU-0", "GPU-1")] == [(5, 7500, 50)] * 2


def test_a_pod_that_requests_no_device_gets_no_reservation():
    assert SmallStore().filtering.assume(pod(gpus(0)), ["n1"]) is None


def test_filtering_again_replaces_the_reservation():
    cache = SmallStore()
    for _ in range(3):
        assert cache.place(ASKS) == "n1"
    assert cache.used() == (1, 3000, 10)
    assert cache.open_bindings.unbound() == 1


def test_filtering_again_cancels_a_waiting_bind():
    cache = SmallStore()
    cache.place(ASKS)
    waiting = cache.bindings.start(ASKS.ref, "n1")
    cache.place(ASKS)
    assert not cache.bindings.is_current(waiting)
    with pytest.raises(Rejected, match="replaced or dropped"):
        cache.bindings.prepare(waiting)


def test_filtering_again_without_success_forgets_the_reservation():
    cache = SmallStore()
    cache.place(ASKS)
    assert isinstance(cache.filtering.assume(pod(gpus(3)), ["n1"]), Refusal)
    assert cache.free()
    assert cache.open_bindings.unbound() == 0


def test_filtering_again_with_a_malformed_pod_forgets_the_reservation():
    cache = SmallStore()
    cache.place(ASKS)
    with pytest.raises(MalformedInput):
        cache.filtering.assume(
            pod(gpus(1), annotations={"hami.io/device-scoring-weights": "x"}), ["n1"]
        )
    assert cache.free()
    assert cache.open_bindings.unbound() == 0


@pytest.mark.parametrize(("waited", "stands"), [(ASSUMED_TTL_S - 1, True), (ASSUMED_TTL_S, False)])
def test_a_reservation_that_is_not_bound_expires(waited, stands):
    cache = SmallStore()
    cache.place(ASKS)
    cache.time.seconds += waited
    assert [r.ref.name for r in cache.expire()] == ([] if stands else ["pod1"])
    assert cache.free() is not stands


@cases(
    "group, nominated, lifetime",
    ("", "", ASSUMED_TTL_S),
    ("gang", "", GROUP_TTL_S),
    ("gang", "n1", NOMINATED_TTL_S),
    ("", "n1", NOMINATED_TTL_S),
)
def test_a_reservation_lives_as_kube_scheduler_s_decision_does(group, nominated, lifetime):
    """A volume may take minutes after kube-scheduler has chosen the node; a group may not fit without a word."""
    cache, asked = SmallStore(), replace(ASKS, group=group, resource_version="5")
    cache.place(asked)
    cache.time.seconds += 5
    if nominated:
        cache.pods.upsert(replace(asked, nominated_node=nominated, resource_version="6"))
    else:
        lifetime -= 5
    cache.time.seconds += lifetime - 1
    assert cache.expire() == []
    assert not cache.free()
    cache.time.seconds += 1
    assert len(cache.expire()) == 1
    assert cache.free()


@pytest.mark.parametrize(
    ("waiting", "assumed"),
    [
        ({"nominated_node": "n1"}, True),
        ({"nominated_node": ""}, False),
        ({"nominated_node": "n2"}, False),
        ({"nominated_node": "n1", "containers": (gpus(3),)}, False),  # victims have not ended
        ({"nominated_node": "n1", "annotations": {"hami.io/device-scoring-weights": "x"}}, False),
    ],
    ids=["nominated", "not nominated", "a node without devices", "does not fit", "malformed"],
)
def test_a_new_leader_reserves_devices_for_pods_that_are_being_bound(waiting, assumed):
    cache = SmallStore()
    asked = replace(ASKS, resource_version="5", **waiting)
    cache.pods.upsert(asked)
    assert cache.filtering.assume_nominated() == [asked.ref] * assumed
    assert cache.free() is not assumed
    assert cache.filtering.assume_nominated() == []
    assert cache.filtering.node_for_pending_pod() is None
    cache.time.seconds += NOMINATED_TTL_S - 1
    assert cache.expire() == []
    cache.pods.upsert(replace(asked, nominated_node="", resource_version="6"))
    assert cache.free()


def test_of_pods_that_are_being_bound_those_of_high_priority_come_first():
    cache, whole = SmallStore(), gpus(2, cores=100)
    for name, priority in (("low", 1), ("high", 2)):
        cache.pods.upsert(
            pod(whole, name=name, priority=priority, nominated_node="n1", resource_version="5")
        )
    assert [ref.name for ref in cache.filtering.assume_nominated()] == ["high"]


def member(name, group="gang", **fields):
    return pod(
        gpus(1, memory=8000, cores=100), name=name, group=group, resource_version="5", **fields
    )


@cases(
    "waited, changes, asks, node",
    ("single", YIELD_S, {}, member("single", ""), "n1"),
    ("another group", YIELD_S, {}, member("single", "other gang"), "n1"),
    ("another namespace", YIELD_S, {}, member("single", "", namespace="elsewhere"), "n1"),
    ("its own group", YIELD_S, {}, member("third"), None),
    ("would not fit", YIELD_S, {}, pod(gpus(3), name="too many"), None),
    ("too early", YIELD_S - 0.1, {}, member("single", ""), None),
    ("nominated", YIELD_S, {"nominated_node": "n1"}, member("single", ""), None),
)
def test_a_group_that_only_waits_yields_to_a_pod_that_fits(waited, changes, asks, node):
    """Two of its members have reservations, and kube-scheduler binds none of them: a third one may not fit."""
    cache = SmallStore()
    members = [member("a"), member("b")]
    assert [cache.place(one) for one in members] == ["n1", "n1"]
    for one in members:
        cache.pods.upsert(replace(one, **changes, resource_version="6"))
    cache.time.seconds += waited
    assert cache.place(asks) == node
    assert [cache.bindings.get(one.ref.uid) is not None for one in members] == [node is None] * 2


def test_the_groups_of_one_namespace_hide_no_group_of_another():
    """Only some groups are looked at for a pod. Of the others, only the last one keeps it from a device."""
    uuids = [f"GPU-{number}" for number in range(MAX_GROUPS + 3)]
    cache = SmallStore(
        node("n1", *(gpu(uuid, memory_mib=8000, index=place) for place, uuid in enumerate(uuids)))
    )
    for uuid in uuids:
        namespace = "other" if uuid == uuids[-1] else "default"
        group = member(
            f"of-{uuid}",
            f"gang-{uuid}",
            namespace=namespace,
            annotations={"nvidia.com/use-gpuuuid": uuid},
        )
        assert cache.place(group) == "n1"
        cache.time.seconds += 0.1
    cache.time.seconds += YIELD_S
    asked = member("single", "", annotations={"nvidia.com/use-gpuuuid": uuids[-1]})
    assert cache.place(asked) == "n1"


def test_groups_on_other_nodes_hide_no_group_on_those_that_are_offered():
    names = [f"n{number}" for number in range(1, MAX_GROUPS + 3)]
    cache = SmallStore(*(node(name, gpu(f"GPU-{name}", memory_mib=8000)) for name in names))
    for name in names:
        assert cache.place(member(f"on-{name}", f"gang-{name}"), name) == name
        cache.time.seconds += 0.1
    cache.time.seconds += YIELD_S
    assert cache.place(member("single", ""), names[-1]) == names[-1]


def test_a_pod_is_reminded_when_a_group_only_waits():
    cache, single = SmallStore(), member("single", "")
    cache.place(member("a")), cache.place(member("b"))
    assert cache.place(single) is None
    cache.time.seconds += YIELD_S - 0.1
    assert cache.filtering.node_for_pending_pod() is None
    cache.time.seconds += 0.1
    assert cache.filtering.node_for_pending_pod() == "n1"
    assert cache.free()


def test_a_pod_is_reminded_although_a_member_of_the_group_asks_for_the_same():
    cache = SmallStore()
    cache.place(member("a")), cache.place(member("b"))
    assert cache.place(member("c")) is None
    assert cache.place(member("single", "")) is None
    cache.time.seconds += YIELD_S
    assert cache.filtering.node_for_pending_pod() == "n1"


@pytest.mark.parametrize(
    ("news", "stands"),
    [
        ([{"scheduling_failure": "now: a volume"}], False),
        (
            [{"scheduling_failure": "before"}],
            True,
        ),  # nothing new: another part of the pod has changed
        ([{"labels": {"a": "b"}}], True),
        ([{"nominated_node": "n1"}, {"nominated_node": ""}], False),
        ([{"nominated_node": "n1"}, {"nominated_node": "n2"}], False),
        (
            [{"nominated_node": "n2"}],
            True,
        ),  # an earlier preemption: the filter may have chosen better
        (
            [{"nominated_node": "n1"}, {"nominated_node": "n1", "scheduling_failure": "before"}],
            True,
        ),
    ],
    ids=[
        "failed",
        "failed before",
        "label",
        "nomination gone",
        "nominated elsewhere",
        "nominated before",
        "unchanged",
    ],
)
def test_a_reservation_ends_when_kube_scheduler_gives_up_the_pod(news, stands):
    cache, asked = SmallStore(), replace(ASKS, scheduling_failure="before", resource_version="5")
    cache.pods.upsert(asked)
    cache.place(asked)
    for version, changes in enumerate(news, start=6):
        cache.pods.upsert(replace(asked, **changes, resource_version=str(version)))
    assert (cache.bindings.get("uid-pod1") is not None) is stands
    assert cache.free() is not stands


def test_what_the_pod_showed_before_its_filter_does_not_end_the_reservation():
    """The watch may be later than kube-scheduler."""
    cache, asked = SmallStore(), replace(ASKS, scheduling_failure="before", resource_version="5")
    cache.place(asked)
    cache.pods.upsert(replace(asked, scheduling_failure="long before", resource_version="4"))
    assert not cache.free()


def test_a_failure_does_not_end_a_bind_that_has_begun():
    cache, asked = SmallStore(), replace(ASKS, resource_version="5")
    cache.place(asked)
    cache.bindings.start(asked.ref, "n1")
    cache.pods.upsert(replace(asked, scheduling_failure="now", resource_version="6"))
    assert not cache.free()


def test_a_reservation_does_not_expire_during_the_bind():
    cache = SmallStore()
    cache.place(ASKS)
    cache.bindings.start(ASKS.ref, "n1")
    cache.time.seconds += 2 * ASSUMED_TTL_S
    assert cache.expire() == []
    assert not cache.free()


def test_a_failed_bind_does_not_extend_the_reservation():
    cache = SmallStore()
    cache.place(ASKS)
    cache.time.seconds += ASSUMED_TTL_S - 1
    cache.bindings.cancel(cache.bindings.start(ASKS.ref, "n1"))
    assert cache.bindings.get("uid-pod1") is not None
    cache.time.seconds += 1
    assert len(cache.expire()) == 1
    assert cache.free()


def test_a_bind_that_cannot_succeed_forgets_the_reservation():
    cache = SmallStore()
    cache.place(ASKS)
    cache.bindings.drop(cache.bindings.start(ASKS.ref, "n1"))
    assert cache.bindings.get("uid-pod1") is None
    assert cache.free()


# binds that are refused


def test_a_bind_needs_a_reservation_on_that_node():
    cache = SmallStore()
    with pytest.raises(Rejected, match="has no reservation"):
        cache.bindings.start(ASKS.ref, "n1")
    cache.place(ASKS)
    with pytest.raises(Rejected, match="is reserved on node n1, not on n2"):
        cache.bindings.start(ASKS.ref, "n2")
    cache.bindings.start(ASKS.ref, "n1")
    with pytest.raises(Rejected, match="already being bound"):
        cache.bindings.start(ASKS.ref, "n1")


@pytest.mark.parametrize("stage", ["posting", "bound", "seen bound"])
def test_a_pod_that_is_bound_or_being_bound_is_not_filtered(stage):
    cache = SmallStore()
    cache.place(ASKS)
    reservation = cache.bindings.start(ASKS.ref, "n1")
    cache.bindings.prepare(reservation)
    if stage != "posting":
        cache.bindings.finish(reservation)
    if stage == "seen bound":
        cache.pods.upsert(
            bound_to(
                "pod1", reservation.annotations[NVIDIA.annotations.allocated], *ASKS.containers
            )
        )
    with pytest.raises(
        Rejected, match="is being bound" if stage == "posting" else "already bound to node n1"
    ):
        cache.place(ASKS)
    assert cache.used() == (1, 3000, 10)


def test_a_deleted_pod_gets_no_reservation():
    cache = SmallStore()
    cache.pods.upsert(ASKS)
    cache.pods.remove(ASKS)
    with pytest.raises(Rejected, match='pod "pod1" not found'):
        cache.place(ASKS)
    assert cache.free()


def test_a_terminated_pod_gets_no_reservation():
    cache = SmallStore()
    cache.pods.upsert(pod(gpus(), phase="Failed"))
    with pytest.raises(Rejected, match="has terminated"):
        cache.place(ASKS)


def test_deleting_a_pod_forgets_its_reservation():
    cache = SmallStore()
    cache.place(ASKS)
    cache.pods.remove(ASKS)
    assert cache.free()
    assert cache.bindings.get("uid-pod1") is None


def devices(*found):
    return lambda cache: cache.nodes.upsert(node("n1", *found, resource_version="9"))


@cases(
    "change, problem",
    ("device gone", devices(gpu("GPU-0")), "gone or unhealthy"),
    ("device unhealthy", devices(gpu("GPU-0"), gpu("GPU-1", healthy=False)), "gone or unhealthy"),
    ("node gone", lambda cache: cache.nodes.remove(node("n1")), "gone or unhealthy"),
    (
        "device taken by another replica",
        lambda cache: cache.pods.upsert(bound_to("other", "GPU-1,NVIDIA,6000,0:;")),
        "taken by another pod",
    ),
)
def test_devices_are_checked_again_before_the_binding(change, problem):
    cache = SmallStore()
    cache.place(ASKS)
    reservation = cache.bindings.start(ASKS.ref, "n1")
    change(cache)
    with pytest.raises(Rejected, match=problem):
        cache.bindings.prepare(reservation)
    assert cache.bindings.get("uid-pod1") is None


# Bindings with an unknown outcome


def test_a_reservation_with_an_unknown_outcome_does_not_expire():
    cache = SmallStore()
    cache.outcome_unknown(ASKS)
    cache.time.seconds += 10 * ASSUMED_TTL_S
    assert cache.expire() == []
    assert cache.used() == (1, 3000, 10)


def test_a_pod_with_an_unknown_outcome_gets_the_same_reservation_again():
    cache = SmallStore(*(node(name, gpu(f"GPU-{name}")) for name in ("n1", "n2")))
    asked = pod(gpus(1, memory=3000, cores=10))
    reservation = cache.outcome_unknown(asked)
    cache.nodes.upsert(node("n3", gpu("better", memory_mib=3000)))
    assert cache.place(asked, "n1", "n2", "n3") == "n1"
    assert cache.bindings.is_current(reservation)
    with pytest.raises(Rejected, match="not known whether it was bound to n1"):
        cache.place(asked, "n2", "n3")


def test_a_reservation_with_an_unknown_outcome_survives_a_failed_check():
    cache = SmallStore()
    cache.outcome_unknown(ASKS)
    again = cache.bindings.start(ASKS.ref, "n1")
    cache.pods.upsert(bound_to("other", "GPU-1,NVIDIA,6000,0:;"))
    with pytest.raises(Rejected):
        cache.bindings.prepare(again)
    cache.bindings.cancel(again)
    assert cache.bindings.is_current(again)


def test_an_unknown_outcome_is_resolved_when_the_binding_can_no_longer_arrive():
    cache = SmallStore()
    reservation = cache.outcome_unknown(ASKS)
    assert cache.open_bindings.unknown() == []
    cache.time.seconds += ASSUMED_TTL_S
    assert cache.open_bindings.unknown() == [reservation]
    cache.open_bindings.clear_unknown(reservation)
    assert cache.free()
    assert cache.open_bindings.unknown() == []


def test_binds_that_fail_before_they_send_a_binding_do_not_postpone_the_look_at_the_earlier_one():
    cache = SmallStore()
    reservation = cache.outcome_unknown(ASKS)
    cache.nodes.upsert(node("n1", resource_version="9"))
    cache.time.seconds += ASSUMED_TTL_S
    cache.bindings.start(ASKS.ref, "n1")
    with pytest.raises(Rejected, match="gone or unhealthy"):
        cache.bindings.prepare(reservation)
    cache.bindings.cancel(reservation)
    assert cache.open_bindings.unknown() == [reservation]


@pytest.mark.parametrize("stage", ["waiting", "failed again", "bound"])
def test_a_repeated_binding_is_not_cleared_by_an_earlier_look(stage):
    cache = SmallStore()
    reservation = cache.outcome_unknown(ASKS)
    cache.time.seconds += ASSUMED_TTL_S
    assert cache.open_bindings.unknown() == [reservation]
    cache.bindings.start(ASKS.ref, "n1")
    if stage == "failed again":
        cache.bindings.prepare(reservation)
        cache.bindings.cancel(reservation)
    if stage == "bound":
        cache.bindings.finish(reservation)
    cache.open_bindings.clear_unknown(reservation)
    assert cache.bindings.is_current(reservation)
    assert not cache.free()


def test_the_watch_resolves_an_unknown_outcome():
    cache = SmallStore()
    cache.outcome_unknown(ASKS)
    cache.pods.upsert(
        bound_to("pod1", "GPU-1,NVIDIA,3000,10:GPU-0,NVIDIA,3000,10:;", *ASKS.containers)
    )
    cache.time.seconds += ASSUMED_TTL_S
    assert cache.open_bindings.unknown() == []
    assert cache.open_bindings.unbound() == 0
    assert cache.used() == (1, 3000, 10)


# what the watch shows


def test_a_pod_bound_elsewhere_is_booked_there():
    cache = SmallStore(node("n1", gpu("GPU-0")), node("n2", gpu("GPU-2")))
    asked = pod(gpus(1, memory=3000, cores=0))
    cache.place(asked, "n1")
    waiting = cache.bindings.start(asked.ref, "n1")
    cache.pods.upsert(
        pod(
            gpus(),
            node_name="n2",
            resource_version="9",
            annotations=BOUND | {NVIDIA.annotations.allocated: "GPU-2,NVIDIA,100,0:;"},
        )
    )
    assert cache.free()
    assert cache.used("GPU-2", "n2") == (1, 100, 0)
    assert not cache.bindings.is_current(waiting)


def test_a_bound_pod_that_is_missing_from_a_later_list_is_forgotten():
    cache = SmallStore()
    cache.place(ASKS)
    cache.bindings.finish(cache.bindings.start(ASKS.ref, "n1"))
    cache.pods.prune(set(), started=cache.time.seconds)
    assert not cache.free(), "the list was asked for before the Binding was written"
    cache.time.seconds += 1
    cache.pods.prune(set(), started=cache.time.seconds)
    assert cache.free()


@cases("size, most", ("small", 10_000, MAX_UNSHOWN), ("large", MAX_UNSHOWN_BYTES // 5, 5))
def test_few_pods_that_the_watch_has_not_shown_have_reservations(size, most):
    cache = SmallStore(
        node("n1", *(gpu(f"GPU-{number}", slots=100, memory_mib=8000) for number in range(8)))
    )

    def asking(number):
        return pod(gpus(1, memory=1, cores=0), name=f"pod{number}", size=size)

    for number in range(most):
        assert cache.place(asking(number)) == "n1"
    with pytest.raises(Rejected, match="too many pods that the watch has not shown yet"):
        cache.place(asking(most))
    assert cache.place(asking(0)) == "n1", "it has one already"
    cache.pods.upsert(asking(most))
    assert cache.place(asking(most)) == "n1"
    cache.pods.upsert(asking(1))
    assert cache.place(asking(most + 1)) == "n1"


@cases(
    "size, is_shown, is_pending",
    (MAX_UNSHOWN_PENDING, False, True),
    (MAX_UNSHOWN_PENDING + 1, False, False),
    (MAX_UNSHOWN_PENDING + 1, True, True),
)
def test_a_large_pod_that_the_watch_has_not_shown_is_not_kept_when_it_is_refused(
    size, is_shown, is_pending
):
    cache = SmallStore()
    asked = pod(gpus(9), size=size)
    if is_shown:
        cache.pods.upsert(asked)
    assert isinstance(cache.filtering.assume(asked, ["n1"]), Refusal)
    assert cache.filtering.refused() == (["uid-pod1"] if is_pending else [])


def test_a_reservation_of_an_unseen_pod_survives_a_list():
    cache = SmallStore()
    cache.place(ASKS)
    cache.time.seconds += 1
    cache.pods.prune(set(), started=cache.time.seconds)
    assert not cache.free()


def test_a_reservation_survives_the_first_sight_of_its_pod():
    cache = SmallStore()
    cache.place(ASKS)
    cache.pods.upsert(ASKS)
    assert cache.used() == (1, 3000, 10)


# quotas


def test_filtering_again_does_not_count_the_pod_twice():
    cache = SmallStore()
    cache.quotas.upsert(quota(gpumem=3000, gpucores=30))
    for _ in range(3):
        assert cache.place(pod(gpus(1, memory=3000, cores=30))) == "n1"
    assert cache.place(pod(gpus(1, memory=1, cores=0), name="other")) is None


def test_a_quota_counts_devices():
    cache = SmallStore()
    cache.quotas.upsert(quota(gpu=2))
    assert cache.place(pod(gpus(1, memory=10), name="a"))
    assert not within_quota(cache.admissions, "default", pod(gpus(2), name="b"))
    assert cache.place(pod(gpus(2, memory=10), name="b")) is None
    assert cache.place(pod(gpus(1, memory=10), name="b"))
    assert cache.place(pod(gpus(1, memory=10), name="c")) is None


def test_a_deleted_pod_returns_its_quota():
    cache = SmallStore()
    cache.pods.upsert(bound_to("a", "GPU-0,NVIDIA,500,5:;"))
    assert cache.view().used == {("default", "NVIDIA"): (500, 5, 1)}
    cache.pods.remove(bound_to("a", ""))
    assert cache.view().used == {}


@pytest.mark.parametrize(("memory", "fits"), [(2000, True), (2001, False)])
def test_admission_checks_the_quota_before_devices_are_known(memory, fits):
    cache = SmallStore()
    cache.quotas.upsert(quota(gpumem=2000))
    assert within_quota(cache.admissions, "default", pod(gpus(1, memory=memory))) is fits
    assert within_quota(cache.admissions, "other", pod(gpus(1, memory=memory)))


def test_a_pod_that_requests_no_device_needs_no_quota():
    cache = SmallStore()
    cache.pods.upsert(bound_to("a", "GPU-0,NVIDIA,500,5:;"))
    cache.quotas.upsert(quota(gpumem=100))
    assert within_quota(cache.admissions, "default", pod(gpus(0)))
    assert not within_quota(cache.admissions, "default", pod(gpus(1, memory=1)))


HIGH = PodScope(priority_class="high")
OF_HIGH, OF_OTHERS = (
    quota(name, gpumem=limit, scopes=[ScopeRequirement("PriorityClass", operator, ("high",))])
    for name, operator, limit in (("a", "In", 3000), ("b", "NotIn", 1000))
)


def test_a_quota_with_scopes_limits_only_the_pods_in_them():
    cache = SmallStore()
    cache.quotas.upsert(OF_HIGH)
    assert within_quota(cache.admissions, "default", pod(gpus(1, memory=3001)))
    assert not within_quota(cache.admissions, "default", pod(gpus(1, memory=3001), scope=HIGH))
    assert cache.place(pod(gpus(1, memory=3001, cores=0), scope=HIGH)) is None
    assert cache.place(pod(gpus(1, memory=3001, cores=0))) == "n1"


def test_a_quota_counts_only_the_pods_in_its_scopes():
    cache = SmallStore()
    cache.quotas.upsert(OF_HIGH)
    cache.quotas.upsert(OF_OTHERS)
    assert cache.place(pod(gpus(1, memory=900, cores=0), name="plain")) == "n1"
    assert cache.place(pod(gpus(1, memory=2900, cores=0), name="high", scope=HIGH)) == "n1"
    for view in (cache.admissions, cache.view()):
        assert within_quota(view, "default", pod(gpus(1, memory=100)))
        assert not within_quota(view, "default", pod(gpus(1, memory=101)))
        assert within_quota(view, "default", pod(gpus(1, memory=100), scope=HIGH))
        assert not within_quota(view, "default", pod(gpus(1, memory=101), scope=HIGH))


# simulation


def test_a_simulation_sees_more_nodes_and_reserves_nothing():
    cache = SmallStore()
    cache.pods.upsert(bound_to("a", "GPU-0,NVIDIA,8000,100:;"))
    view = cache.view().what_if(nodes=[node("m", gpu("GPU-0", memory_mib=8000)), node("x")])
    asked = pod(gpus(1, memory=8000))
    assert dry_run.choose(view, asked, ["m", "x"]).node == "m"
    assert dry_run.refuse(view, asked, ["m", "x"]).unknown == ("x",)
    assert cache.open_bindings.unbound() == 0
    assert "m" not in device_usage(cache)
