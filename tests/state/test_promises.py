"""Holds: what is being freed belongs to the pod for which others are evicted, whatever happens meanwhile."""

import random
from dataclasses import replace

import pytest

from hami.errors import Rejected
from hami.model import Partition, Reason
from hami.scheduling.preemption import EvictionUnit, PreemptionPlan
from hami.scheduling.usage import Charge
from hami.state.bookings import Booking
from hami.state.plans import planned_bookings
from hami.state.preemption import MAX_PLANS, MAX_PLANS_OF_NAMESPACE, PLAN_S, has_room_for
from hami.state.promises import PREFIX, Promise, PromiseEnd, Stage
from hami.state.table import Table
from hami.state.victims import MAX_GANG, PreemptionRules, plan_preemption
from testing.builders import NVIDIA, gpu, gpus, node, pod, quota
from testing.cases import cases
from testing.stores import SmallStore, bound_to

MIB = 8000  # of each card
ALLOCATED = NVIDIA.annotations.allocated


def on_card(name, memory=MIB, card=0, priority=0, version="50", **fields):
    """A bound pod with this part of a card."""
    return bound_to(
        name,
        f"GPU-{card},NVIDIA,{memory},0:;",
        gpus(1, memory=memory, cores=0),
        version=version,
        priority=priority,
        **fields,
    )


def wants(name="p", memory=MIB, count=1, priority=100, cores=0, **fields):
    """A pod that waits."""
    return pod(gpus(count, memory=memory, cores=cores), name=name, priority=priority, **fields)


def store(*pods, cards=2, **options):
    """A store with one node, on which these pods run."""
    made = SmallStore(
        node("n1", *(gpu(f"GPU-{index}", memory_mib=MIB, index=index) for index in range(cards))),
        **options,
    )
    for one in pods:
        made.pods.upsert(one)
    return made


def plan(*victims, name="n1", awaited=()):
    """A plan with these victims."""
    return PreemptionPlan(
        name,
        tuple(EvictionUnit(uids=(f"uid-{victim}",), priorities=(0,)) for victim in victims),
        0,
        tuple(f"uid-{one}" for one in awaited),
    )


def holding(cache, waiting, *victims):
    """The hold that is made for a pod that was refused."""
    assert cache.place(waiting) is None
    (made,) = cache.preemptions.promise([(waiting, plan(*victims))])
    return made


def end(cache, *names):
    for name in names:
        cache.pods.remove(on_card(name, version="99"))


def ends(cache):
    return [(hold.ref.name, how) for hold, how in cache.preemptions.ended()]


# how many


def test_the_pods_of_one_namespace_have_a_share_of_all_plans():
    plans = [a_plan(wants(f"p{number}")) for number in range(MAX_PLANS_OF_NAMESPACE)]
    assert not has_room_for(plans, wants("next"))
    assert has_room_for(plans, wants("p0")), "its own plan is replaced"
    assert has_room_for(plans, wants("next", namespace="other"))
    for number in range(MAX_PLANS - MAX_PLANS_OF_NAMESPACE):
        plans.append(a_plan(wants(f"q{number}", namespace="other")))
    assert not has_room_for(plans, wants("next", namespace="third"))
    assert MAX_PLANS_OF_NAMESPACE >= MAX_GANG


def a_plan(waiting, *charges, units=()):
    """A promise for whose pod others are evicted."""
    booking = Booking(waiting.ref.uid, waiting.ref.namespace, "n1", charges)
    return Promise(
        pod=waiting, choice=None, booking=booking, stage=Stage.PLANNED, units=units, until=0.0
    )


# what others see


@pytest.mark.parametrize("priority", [0, 100])
def test_nobody_of_lower_or_equal_priority_gets_what_is_held(priority):
    cache = store(on_card("v"), on_card("w", 5000, 1))
    holding(cache, wants(), "v")
    small = [wants(f"x{number}", 1000, priority=priority) for number in range(4)]
    assert cache.place(small[0]) == "n1", "the rest of the other card is free"
    assert cache.used("GPU-1")[1] == 6000, "the rest of the other card is free"
    end(cache, "v")
    assert [cache.place(one) for one in small[1:]] == ["n1", "n1", None]
    assert cache.used("GPU-0")[1] == MIB, "it is held"
    assert cache.place(wants()) == "n1"
    assert cache.used("GPU-0")[1] == MIB


def test_what_victims_leave_beyond_the_need_is_free():
    cache = store(on_card("v"), cards=1)
    holding(cache, wants(memory=5000), "v")
    assert cache.place(wants("x", 3000, priority=0)) is None
    end(cache, "v")
    assert cache.place(wants("y", 3001, priority=0)) is None
    assert cache.place(wants("x", 3000, priority=0)) == "n1"
    assert cache.place(wants(memory=5000)) == "n1"


@pytest.mark.parametrize("order", ["vw", "wv"])
def test_what_each_of_several_victims_leaves_is_held(order):
    cache = store(on_card("v", 3000), on_card("w", 4000), cards=1)
    holding(cache, wants(), "v", "w")
    for name in order:
        assert cache.place(wants("x", 1000, priority=0)) is None
        assert cache.place(wants()) is None
        end(cache, name)
    assert cache.place(wants("x", 1000, priority=0)) is None
    assert cache.place(wants()) == "n1"


def test_a_pod_that_shares_with_nobody_holds_all_slots_of_its_device():
    alone = wants(memory=1000, annotations={"hami.io/gpu-scheduler-policy": "mutex"})
    cache = store(on_card("v", 1000), cards=1)
    holding(cache, alone, "v")
    end(cache, "v")
    assert cache.place(wants("x", 1000, priority=0)) is None
    assert cache.place(alone) == "n1"


def test_a_device_without_cores_left_does_not_keep_the_pod_from_what_is_held():
    """A pod without cores cannot be placed on a device whose cores are all taken, but stays beside such pods."""
    cache = store(on_card("v", 5000), cards=1)
    holding(cache, wants(memory=5000), "v")
    end(cache, "v")
    for name, cores in (("x", 60), ("y", 40)):
        assert cache.place(wants(name, 1000, priority=0, cores=cores)) == "n1"
    assert cache.place(wants("z", 1000, priority=0)) is None, "no cores are left for another pod"
    assert cache.place(wants(memory=5000)) == "n1"


@pytest.mark.parametrize("namespace", ["default", "other"])
def test_what_is_held_counts_for_the_quota_of_the_namespace(namespace):
    """Whosever the victims are: else the pod exceeds its quota once they have ended."""
    cache = store(on_card("v", namespace=namespace))
    cache.quotas.upsert(quota(gpumem=MIB))
    if namespace == "default":
        assert cache.place(wants()) is None
        cache.preemptions.promise([(wants(), plan("v"))])
    else:
        cache.pods.upsert(on_card("w", 1, 1, namespace="other"))
        holding(cache, wants(), "v")
    assert cache.place(wants("x", 1000, priority=0)) is None
    cache.pods.remove(on_card("v", version="99", namespace=namespace))
    assert cache.place(wants("x", 1000, priority=0)) is None
    assert cache.place(wants()) == "n1"
    assert cache.view().used["default", "NVIDIA"] == (MIB, 0, 1)


def test_a_quota_that_is_lowered_counts_for_a_pod_that_holds_devices():
    cache = store(on_card("v", namespace="other"), cards=1)
    cache.quotas.upsert(quota(gpumem=MIB))
    holding(cache, wants(), "v")
    cache.quotas.upsert(replace(quota(gpumem=MIB - 1), uid="other"))
    cache.pods.remove(on_card("v", version="99", namespace="other"))
    assert cache.place(wants()) is None


# reservations of others


def test_a_hold_does_not_refuse_a_reservation_that_was_made_before():
    cache = store(on_card("v", 4000), cards=1)
    assert cache.place(wants("x", 4000, priority=0)) == "n1"
    holding(cache, wants(memory=4000), "v")
    reservation = cache.bindings.start(wants("x").ref, "n1")
    assert cache.bindings.prepare(reservation)
    assert cache.used("GPU-0")[1] == MIB


def test_a_smaller_device_refuses_no_reservation_because_of_a_hold():
    cache = store(on_card("v", 4000), cards=1)
    cache.place(wants("x", 4000, priority=0))
    holding(cache, wants(memory=4000), "v")
    end(cache, "v")
    cache.nodes.upsert(node("n1", gpu("GPU-0", memory_mib=4000)))
    cache.view()
    assert cache.bindings.prepare(cache.bindings.start(wants("x").ref, "n1"))


def test_pods_alone_still_refuse_a_reservation():
    cache = store(on_card("v", 4000), cards=1)
    cache.place(wants("x", 4000, priority=0))
    cache.pods.upsert(on_card("foreign", 4000))
    with pytest.raises(Rejected, match="taken by another pod"):
        cache.bindings.prepare(cache.bindings.start(wants("x").ref, "n1"))


# priorities


def test_a_pod_of_higher_priority_takes_a_hold():
    cache = store(on_card("v"), cards=1)
    holding(cache, wants(), "v")
    end(cache, "v")
    assert cache.place(wants("urgent", priority=101)) == "n1"
    assert ends(cache) == [("p", PromiseEnd.TAKEN)]
    assert cache.used("GPU-0")[1] == MIB
    assert cache.place(wants()) is None


def test_of_two_holds_one_is_taken_and_the_other_stands():
    cache = store(on_card("v"), on_card("w", card=1))
    first = holding(cache, wants("p"), "v")
    second = holding(cache, wants("q"), "w")
    end(cache, "v", "w")
    assert cache.place(wants("urgent", priority=101)) == "n1"
    (left,) = cache.preemptions.promised()
    assert left in (first, second)
    assert len(ends(cache)) == 1
    assert cache.place(left.pod) == "n1"
    assert cache.used("GPU-0")[1] == cache.used("GPU-1")[1] == MIB


def test_the_hold_of_lower_priority_is_taken_first():
    cache = store(on_card("v"), on_card("w", card=1))
    holding(cache, wants("p", priority=50), "v")
    holding(cache, wants("q", priority=60), "w")
    end(cache, "v", "w")
    assert cache.place(wants("urgent", priority=101)) == "n1"
    assert [hold.ref.name for hold in cache.preemptions.promised()] == ["q"]
    assert ends(cache) == [("p", PromiseEnd.TAKEN)]
    assert cache.place(wants("q", priority=60)) == "n1"


def test_a_pod_of_higher_priority_leaves_a_hold_if_it_fits_without():
    cache = store(on_card("v"), on_card("w", 4000, 1))
    holding(cache, wants(), "v")
    end(cache, "v")
    assert cache.place(wants("urgent", 4000, priority=101)) == "n1"
    assert ends(cache) == []
    assert cache.place(wants()) == "n1"


def test_a_hold_that_was_planned_for_higher_priority_ends_that_of_lower_priority():
    cache = store(on_card("v"), cards=1)
    holding(cache, wants("p"), "v")
    urgent = wants("urgent", priority=200)
    assert cache.place(urgent) is None
    assert len(cache.preemptions.promise([(urgent, plan("v"))])) == 1
    assert ends(cache) == [("p", PromiseEnd.TAKEN)]
    end(cache, "v")
    assert cache.place(wants("p")) is None
    assert cache.place(urgent) == "n1"


def test_two_pods_of_one_priority_hold_different_victims():
    cache = store(on_card("v"), on_card("w", card=1))
    holding(cache, wants("p"), "v")
    assert cache.place(wants("q")) is None
    assert cache.preemptions.promise([(wants("q"), plan("v"))]) == [], "it is held for the other"
    assert len(cache.preemptions.promise([(wants("q"), plan("w"))])) == 1
    assert cache.preemptions.planned_victims(0) == {"uid-v", "uid-w"}


# how holds end


@cases(
    "change, expected",
    (
        "deleted",
        lambda cache: cache.pods.remove(replace(wants(), resource_version="9")),
        PromiseEnd.DELETED,
    ),
    (
        "terminated",
        lambda cache: cache.pods.upsert(replace(wants(), resource_version="9", phase="Failed")),
        PromiseEnd.DELETED,
    ),
    ("bound", lambda cache: cache.pods.upsert(on_card("p", 1, 1, version="9")), PromiseEnd.BOUND),
    (
        "expired",
        lambda cache: setattr(cache.time, "seconds", cache.time.seconds + 30 + PLAN_S),
        PromiseEnd.EXPIRED,
    ),
    (
        "sick device",
        (lambda cache: cache.nodes.upsert(node("n1", gpu("GPU-0", memory_mib=MIB, healthy=False)))),
        PromiseEnd.UNFIT,
    ),
    ("lost device", lambda cache: cache.nodes.upsert(node("n1")), PromiseEnd.UNFIT),
)
def test_a_hold_ends(change, expected):
    cache = store(on_card("v"), cards=1)
    cache.pods.upsert(wants(resource_version="8"))
    made = holding(cache, wants(resource_version="8"), "v")
    assert cache.preemptions.promised() == [made]
    assert cache.preemptions.promise_for("uid-p") is made
    change(cache)
    assert cache.preemptions.promised() == []
    assert ends(cache) == [("p", expected)]
    assert ends(cache) == []
    assert not any(uid.startswith(PREFIX) for uid in cache.view().bookings)


def test_a_hold_stands_for_the_grace_period_of_its_victims_and_a_minute():
    cache = store(on_card("v", grace_s=300), cards=1)
    made = holding(cache, wants(), "v")
    cache.time.seconds += 300 + PLAN_S - 1
    assert cache.preemptions.promised() == [made]
    cache.time.seconds += 1
    assert cache.preemptions.promised() == []


def test_a_hold_does_not_expire_while_its_pod_has_a_reservation():
    cache = store(on_card("v"), cards=1)
    made = holding(cache, wants(), "v")
    end(cache, "v")
    cache.place(wants())
    cache.time.seconds += 30 + PLAN_S
    assert cache.preemptions.promised() == [made]


def test_where_a_device_is_lost_another_one_is_held():
    cache = store(on_card("v"), on_card("w", card=1))
    made = holding(cache, wants(), "v", "w")
    end(cache, "v", "w")
    (device,) = dict(made.booking.charges)["NVIDIA"]
    other = {"GPU-0": "GPU-1", "GPU-1": "GPU-0"}[device.uuid]
    cache.nodes.upsert(
        node(
            "n1",
            *(
                gpu(uuid, memory_mib=MIB, index=index, healthy=uuid == other)
                for index, uuid in enumerate(("GPU-0", "GPU-1"))
            ),
        )
    )
    assert cache.preemptions.promised() == [made]
    assert cache.used(other)[1] == MIB
    assert cache.free(device.uuid)
    assert cache.place(wants("x", 1000, priority=0)) is None
    assert cache.place(wants()) == "n1"


def test_holds_are_released_without_a_report_when_the_leadership_ends():
    cache = store(on_card("v"), cards=1)
    holding(cache, wants(), "v")
    cache.preemptions.release_all()
    assert cache.preemptions.promised() == []
    assert ends(cache) == []


def test_only_the_hold_that_stands_is_released():
    cache = store(on_card("v"), cards=1)
    earlier = holding(cache, wants(), "v")
    cache.preemptions.release(earlier)
    made = holding(cache, wants(), "v")
    cache.preemptions.release(earlier)
    assert cache.preemptions.promised() == [made]
    assert ends(cache) == [("p", PromiseEnd.RELEASED)]


# the reservation of its own pod


def test_a_hold_is_not_booked_beside_the_reservation_of_its_pod():
    cache = store(on_card("v"), cards=1)
    holding(cache, wants(), "v")
    end(cache, "v")
    assert cache.place(wants()) == "n1"
    assert cache.used("GPU-0")[1] == MIB
    assert [uid for uid in cache.view().bookings] == ["uid-p"]


def test_what_was_reserved_is_held_again_if_the_bind_fails():
    cache = store(on_card("v"), cards=1)
    holding(cache, wants(), "v")
    end(cache, "v")
    cache.place(wants())
    cache.bindings.drop(cache.bindings.get("uid-p"))
    assert cache.place(wants("x", 1000, priority=0)) is None
    assert cache.place(wants()) == "n1"


def test_a_hold_follows_the_reservation_of_its_pod_to_another_node():
    nodes = [
        node(name, gpu(f"GPU-{index}", memory_mib=MIB)) for index, name in enumerate(("n1", "n2"))
    ]
    cache = SmallStore(*nodes)
    cache.pods.upsert(on_card("v"))
    cache.pods.upsert(replace(on_card("w", card=1), node_name="n2"))
    assert cache.place(wants(), "n1", "n2") is None
    (made,) = cache.preemptions.promise([(wants(), plan("v"))])
    end(cache, "w")
    assert cache.place(wants(), "n1", "n2") == "n2"
    assert cache.evictions.units_of(made) == [], "nobody is evicted for it any more"
    assert made.stage is not Stage.PLANNED, "nobody is evicted for it any more"
    assert not made.victims, "nobody is evicted for it any more"
    cache.bindings.drop(cache.bindings.get("uid-p"))
    assert cache.place(wants("x", 1000, priority=0), "n1", "n2") is None
    assert made.node == "n2"
    assert cache.place(wants(), "n1", "n2") == "n2"


def test_a_look_at_the_victims_changes_no_reservation():
    """An eviction may begin while kube-scheduler places the pod, and a device may fail in between."""
    cache = store(on_card("v"), on_card("w", card=1))
    made = holding(cache, wants(), "v")
    end(cache, "w")
    assert cache.place(wants()) == "n1"
    end(cache, "v")
    cards = [gpu(f"GPU-{index}", memory_mib=MIB, index=index) for index in range(2)]
    cache.nodes.upsert(node("n1", cards[0], replace(cards[1], healthy=False)))
    assert cache.evictions.units_of(made) == []
    reservation = cache.bindings.start(wants().ref, "n1")
    assert reservation.booking == cache.booking("uid-p")
    with pytest.raises(Rejected, match="device GPU-1 on node n1 is gone or unhealthy"):
        cache.bindings.prepare(reservation)


@cases("again", ("held", False), ("reserved", True))
def test_a_reservation_in_somebodys_hands_stays_as_it_is_when_it_becomes_a_hold(again):
    """It is read without the lock: the annotations of one decision are never those of another."""
    cache = store(on_card("v"), on_card("w", card=1))
    holding(cache, wants(), "v")
    end(cache, "v")
    cache.place(wants())
    earlier = cache.bindings.get("uid-p")
    cache.bindings.drop(earlier)
    if again:
        end(cache, "w")
        cards = [gpu(f"GPU-{index}", memory_mib=MIB, index=index) for index in range(2)]
        cache.nodes.upsert(node("n1", replace(cards[0], healthy=False), cards[1]))
        cache.place(wants())
        current = cache.bindings.get("uid-p")
        assert "GPU-1" in current.annotations[ALLOCATED]
        assert current.token != earlier.token
    assert not cache.bindings.is_current(earlier)
    assert "GPU-0" in earlier.annotations[ALLOCATED]


def test_what_is_held_for_a_pod_is_no_reason_to_refuse_it():
    """It has a quota for one device, and waits for a victim in another namespace."""
    cache = store(on_card("v", namespace="other"), cards=1)
    cache.quotas.upsert(quota(gpumem=MIB))
    earlier = cache.filtering.assume(wants(), ["n1"])
    holding(cache, wants(), "v")
    answer = cache.filtering.assume(wants(), ["n1"])
    assert answer.unfit == earlier.unfit
    assert answer.unfit["n1"].reasons == ((Reason.NO_MEMORY, 1),)


def test_a_pod_with_a_reservation_gets_no_hold():
    cache = store(on_card("v"))
    cache.place(wants())
    assert cache.preemptions.promise([(wants(), plan("v"))]) == []


# victims


def test_the_victims_of_a_hold_are_those_that_have_not_ended():
    cache = store(on_card("v", 4000), on_card("w", 4000), cards=1)
    made = holding(cache, wants(), "v", "w")
    assert names(cache.evictions.units_of(made)) == [["v"], ["w"]]
    assert cache.evictions.still_wanted(made)
    end(cache, "w")
    assert names(cache.evictions.units_of(made)) == [["v"]]
    cache.evictions.mark_evicted(made)
    assert made.stage is not Stage.PLANNED
    cache.pods.remove(replace(wants(), resource_version="9"))
    assert not cache.evictions.still_wanted(made)
    assert cache.evictions.units_of(made) == []


def test_the_victims_of_a_hold_are_told_by_those_that_are_evicted_together():
    cache = store(
        on_card("a", 2000), on_card("b", 2000), on_card("c", 2000), on_card("d", 2000), cards=1
    )
    together = EvictionUnit(uids=("uid-c", "uid-a"), priorities=(0, 0))
    cache.place(wants(memory=6000))
    units = (together, EvictionUnit(uids=("uid-b",), priorities=(0,)))
    (made,) = cache.preemptions.promise([(wants(memory=6000), PreemptionPlan("n1", units))])
    assert names(cache.evictions.units_of(made)) == [["a", "c"], ["b"]]
    assert cache.evictions.are_under_way({"uid-c"})
    assert not cache.evictions.are_under_way({"uid-d"})
    end(cache, "c")
    assert names(cache.evictions.units_of(made)) == [["a"], ["b"]]
    cache.evictions.mark_evicted(made)
    assert not cache.evictions.are_under_way({"uid-a"})


def names(units):
    return [[record.ref.name for record in unit] for unit in units]


def test_victims_are_spared_if_the_pod_fits_by_now():
    cache = store(on_card("v"), on_card("other", card=1))
    made = holding(cache, wants(), "v")
    end(cache, "other")
    assert cache.evictions.units_of(made) == []
    assert made.stage is not Stage.PLANNED
    assert not made.victims
    assert cache.used("GPU-0")[1] == cache.used("GPU-1")[1] == MIB, "what is free is held now"
    assert cache.place(wants("x", 1000, priority=0)) is None
    assert cache.place(wants()) == "n1"


def test_the_other_victims_are_spared_once_the_pod_is_placed():
    cache = store(on_card("v"), on_card("w", card=1))
    made = holding(cache, wants(), "v")
    end(cache, "w")
    assert cache.place(wants()) == "n1"
    assert not cache.evictions.still_wanted(made)


@cases(
    "change",
    ("ended", lambda cache: end(cache, "v")),
    ("terminated", lambda cache: cache.pods.upsert(on_card("v", version="60", phase="Succeeded"))),
    ("preemptor deleted", lambda cache: cache.pods.remove(replace(wants(), resource_version="9"))),
    (
        "sick",
        (lambda cache: cache.nodes.upsert(node("n1", gpu("GPU-0", memory_mib=MIB, healthy=False)))),
    ),
)
def test_a_plan_that_cannot_be_carried_out_any_more_holds_nothing(change):
    cache = store(on_card("v"), cards=1)
    cache.place(wants())
    change(cache)
    assert cache.preemptions.promise([(wants(), plan("v"))]) == []
    assert cache.preemptions.promised() == []


# gangs


def member(name, memory=4000, **fields):
    return wants(name, memory, group="gang", **fields)


def test_the_pods_of_a_gang_share_the_victims():
    """One victim makes room for two. A third pod gets nothing of it."""
    cache = store(on_card("v", 6000), cards=1)
    first, second = cache.preemptions.promise([(member("a"), plan("v")), (member("b"), plan())])
    assert cache.used("GPU-0")[1] == MIB, "what is free beside the victim is held, too"
    assert cache.place(wants("x", 2000, priority=0)) is None
    end(cache, "v")
    assert cache.used("GPU-0")[1] == MIB
    assert cache.place(wants("x", 1000, priority=0)) is None
    assert cache.place(member("b")) == "n1"
    assert cache.place(member("a")) == "n1"


def test_a_gang_is_held_as_a_whole_or_not_at_all():
    cache = store(on_card("v", 4000), on_card("other", 4000), cards=1)
    assert cache.preemptions.promise([(member("a"), plan("v")), (member("b"), plan())]) == []
    assert cache.preemptions.promised() == []
    assert not any(uid.startswith(PREFIX) for uid in cache.view().bookings)


def test_a_gang_keeps_its_reservations_if_it_cannot_be_held():
    cache = store(on_card("other", 4000), cards=1)
    assert cache.place(member("a")) == "n1"
    assert cache.preemptions.promise([(member("a"), plan()), (member("b"), plan("gone"))]) == []
    assert cache.bindings.get("uid-a") is not None
    assert cache.used("GPU-0")[1] == MIB


def test_a_reservation_that_a_gang_keeps_leaves_nothing_when_it_ends():
    cache = store(on_card("v"), cards=1)
    gang = member("a", MIB)
    holding(cache, gang, "v")
    end(cache, "v")
    assert cache.place(gang) == "n1"
    assert cache.preemptions.promise([(gang, plan()), (member("b"), plan("gone"))]) == []
    cache.bindings.drop(cache.bindings.get("uid-a"))
    assert cache.place(wants("x", priority=0)) == "n1"
    assert cache.place(gang) is None
    assert [pending.pod.ref.name for pending in cache.preemptions.preemptors()] == ["a"]


def test_the_reservations_of_a_gang_that_waits_become_holds():
    cache = store(on_card("v", 4000), cards=1)
    assert cache.place(member("a")) == "n1"
    assert cache.place(member("b")) is None
    assert len(cache.preemptions.promise([(member("a"), plan()), (member("b"), plan("v"))])) == 2
    assert cache.bindings.get("uid-a") is None
    assert cache.used("GPU-0")[1] == MIB
    end(cache, "v")
    assert [cache.place(member(name)) for name in "ba"] == ["n1", "n1"]
    assert cache.used("GPU-0")[1] == MIB


# partitions


def test_the_part_of_a_partition_that_no_victim_has_is_held():
    table = Table()
    table.set_devices("n1", "NVIDIA", (gpu("GPU-0", memory_mib=40_000),))
    table.bookings.put(
        Booking(
            "v", "default", "n1", (("NVIDIA", (Charge("GPU-0", 1, 5000, 0, (Partition(1, 1),)),)),)
        )
    )
    need = ("NVIDIA", (Charge("GPU-0", 1, 20_000, 0, (Partition(0, 4),)),))
    promise = a_plan(wants(), need, units=(frozenset({"v"}),))
    book(table, promise)
    (usage,) = table.usages("n1")["NVIDIA"]
    held = sorted((part.start, part.size) for part in usage.partitions)
    assert held == [(0, 1), (1, 1), (2, 2)]
    assert not usage.is_overcommitted
    assert usage.memory_used_mib == 20_000
    table.bookings.pop("v")
    book(table, promise)
    assert table.usages("n1")["NVIDIA"][0].partitions == (Partition(0, 4),)


def book(table, promise):
    (booking,) = planned_bookings([promise], table.bookings.by_uid).values()
    table.bookings.put(booking)


# any order of events


class Days:
    """A store with pods that come, run and end in a random order, while some wait for what is held for them."""

    def __init__(self, rng):
        self.rng = rng
        self.names = [f"n{number}" for number in range(rng.randint(1, 2))]
        self.cache = SmallStore(
            *(
                node(
                    name,
                    *(
                        gpu(
                            f"GPU-{name}-{index}",
                            memory_mib=MIB,
                            index=index,
                            slots=rng.choice((2, 4, 10)),
                        )
                        for index in range(rng.randint(1, 3))
                    ),
                )
                for name in self.names
            )
        )
        self.versions = iter(range(100, 10_000))
        self.running, self.waiting, self.victims = {}, {}, set()
        self.count = 0
        for _ in range(rng.randint(4, 16)):
            self.come(priority=rng.choice((0, 10)))

    def new_pod(self, priority):
        self.count += 1
        rng = self.rng
        containers = [
            gpus(
                rng.choice((1, 1, 1, 2)),
                rng.choice((1000, 2000, 3000, 5000, MIB)),
                rng.choice((0, 0, 20, 40, 60, 100)),
            )
            for _ in range(rng.choice((1, 1, 2)))
        ]
        annotations = (
            {"hami.io/gpu-scheduler-policy": policy}
            if (policy := rng.choice(("", "", "mutex", "binpack")))
            else {}
        )
        return pod(*containers, name=f"pod{self.count}", priority=priority, annotations=annotations)

    def come(self, priority):
        """A pod is filtered, and perhaps bound."""
        new = self.new_pod(priority)
        if self.cache.place(new, *self.names) is not None:
            self.bind(new)

    def bind(self, placed):
        """Binds a pod that has a reservation: nobody may have taken its devices."""
        bindings = self.cache.bindings
        node_name = bindings.get(placed.ref.uid).node
        reservation = bindings.start(placed.ref, node_name)
        annotations = bindings.prepare(reservation)
        if self.rng.random() < 0.1:  # the Binding fails, and the reservation ends
            bindings.cancel(reservation)
            bindings.drop(reservation)
            return
        bindings.finish(reservation)
        bound = replace(
            placed,
            node_name=node_name,
            annotations=annotations,
            resource_version=str(next(self.versions)),
        )
        self.cache.pods.upsert(bound)
        self.running[placed.ref.uid] = bound
        self.waiting.pop(placed.ref.uid, None)

    def preempt(self, priority):
        """A pod that fits nowhere gets a hold, if others can be evicted for it."""
        new = self.new_pod(priority)
        if self.cache.place(new, *self.names) is not None:
            return self.bind(new)
        found = plan_preemption(
            self.cache.view(),
            new,
            self.names,
            PreemptionRules(now=0.0),
            planned=self.cache.preemptions.planned_victims(new.priority),
        )
        if found is not None and (made := self.cache.preemptions.promise([(new, found)])):
            self.cache.evictions.mark_evicted(made[0])
            self.waiting[new.ref.uid] = new
            self.victims.update(found.uids)

    def end_one(self):
        """A victim ends, or by chance another pod."""
        uids = sorted(self.victims & self.running.keys())
        if not uids or self.rng.random() < 0.1:
            uids = sorted(self.running)
        if uids:
            uid = self.rng.choice(uids)
            self.cache.pods.remove(
                replace(self.running.pop(uid), resource_version=str(next(self.versions)))
            )

    def retry(self):
        """kube-scheduler tries a pod again that waits for its victims."""
        if self.waiting:
            self.filter(self.rng.choice(sorted(self.waiting)))

    def filter(self, uid):
        waiting = self.waiting[uid]
        if self.cache.place(waiting, *self.names) is not None:
            self.bind(waiting)

    def check(self):
        for usages in self.cache.view().nodes.values():
            assert not any(
                usage.is_overcommitted for of_vendor in usages.values() for usage in of_vendor
            )

    def events(self, priorities):
        """Some events in a random order."""
        for _ in range(self.rng.randint(5, 40)):
            event = self.rng.choice(
                (
                    self.end_one,
                    self.end_one,
                    self.retry,
                    lambda: self.preempt(100),
                    lambda: self.come(self.rng.choice(priorities)),
                )
            )
            event()
            self.check()

    def finish(self):
        """All victims end. Returns the pods that still wait."""
        for uid in sorted(self.victims & self.running.keys(), key=lambda uid: self.rng.random()):
            self.cache.pods.remove(
                replace(self.running.pop(uid), resource_version=str(next(self.versions)))
            )
            self.check()
            if self.rng.random() < 0.5:
                self.come(100)
        for _ in range(20):
            for uid in sorted(self.waiting):
                self.filter(uid)
                self.check()
        return set(self.waiting)


@pytest.mark.parametrize("first", range(0, 500, 50))
def test_nobody_of_lower_or_equal_priority_comes_before_the_pod_that_others_ended_for(first):
    for seed in range(first, first + 50):
        days = Days(random.Random(seed))
        days.events((0, 10, 100))
        assert days.finish() == set(), seed
        assert {end for _, end in days.cache.preemptions.ended()} <= {PromiseEnd.BOUND}, seed


@pytest.mark.parametrize("first", range(0, 250, 50))
def test_only_a_pod_of_higher_priority_takes_what_is_held(first):
    for seed in range(first, first + 50):
        days = Days(random.Random(seed))
        days.events((0, 100, 1000))
        left = days.finish()
        ended = {hold.ref.uid: end for hold, end in days.cache.preemptions.ended()}
        assert set(ended.values()) <= {PromiseEnd.BOUND, PromiseEnd.TAKEN}, seed
        assert left == {uid for uid, end in ended.items() if end is PromiseEnd.TAKEN} & left, seed
        assert all(ended.get(uid) is PromiseEnd.TAKEN for uid in left), seed
