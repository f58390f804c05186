"""Preemption: the nodes on which evictions would make room for the devices of a pod."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers

from hami.errors import MalformedInput, NodeLocked
from hami.scheduler.planner import LEFT_S
from hami.scheduler.preempt import (
    CATCH_UP_PERIOD_S,
    CATCH_UP_S,
    CATCH_UPS_AT_ONCE,
    MAX_NODES,
    RARE_S,
)
from hami.state.pending import GRACE_S
from testing.builders import content, gpu, gpus, node, pod, quota
from testing.cases import cases
from testing.replicas import cards, holding, replica

WHOLE = pod(gpus(1, memory=46_068, cores=100), uid="u")


def full_and_free():
    """A node whose two cards are held by pods, one with a free card, one with nothing but a sick card."""
    return replica(
        cards("full", {}, {}),
        cards("free", {}),
        cards("sick", {"healthy": False}),
        pods=[
            holding("a", "full", "GPU-full-0,NVIDIA,20000,50:;"),
            holding("b", "full", "GPU-full-0,NVIDIA,20000,50:;"),
            holding("c", "full", "GPU-full-1,NVIDIA,46068,100:;"),
        ],
    )


@cases(
    "victims, kept",
    ("the victim holds a whole card", {"full": ["uid-c"]}, ["full"]),
    ("two victims hold a card together", {"full": ["uid-a", "uid-b"]}, ["full"]),
    ("the other tenant of the card stays", {"full": ["uid-a"]}, []),
    ("victims without devices", {"full": ["cpu-1", "cpu-2"]}, []),
    ("a card is free anyway", {"free": ["cpu-1"]}, ["free"]),
    ("no victims", {"free": [], "full": []}, ["free"]),
    ("sick card", {"sick": ["cpu-1"]}, []),
    ("unknown nodes", {"stranger": ["cpu-1"], "": []}, []),
    ("several nodes", {"full": ["uid-c"], "free": ["cpu-1"], "sick": []}, ["full", "free"]),
    (
        "a victim on another node is not found there",
        {"free": ["cpu-1", "uid-c"], "full": ["uid-c"]},
        ["full"],
    ),
    ("strange uids", {"full": ["u", "u", ""]}, []),
    ("no nodes", {}, []),
)
def test_nodes_remain_where_the_victims_make_room(victims, kept):
    scheduler = full_and_free()
    before = scheduler.cache.version(), content(scheduler.cache)
    assert list(scheduler.preemption_filter.filter(WHOLE, victims)) == kept
    assert (scheduler.cache.version(), content(scheduler.cache)) == before
    assert scheduler.fake.calls == []
    assert scheduler.events == []
    assert scheduler.cache.open_bindings.unbound() == 0


def test_all_nodes_remain_for_a_pod_without_devices():
    victims = {"full": ["uid-a"], "stranger": []}
    assert list(full_and_free().preemption_filter.filter(pod(gpus(0)), victims)) == list(victims)


def test_what_is_reserved_for_others_is_taken_and_what_is_reserved_for_the_pod_is_free():
    scheduler = full_and_free()
    assert scheduler.filter(WHOLE) == "free"
    assert list(scheduler.preemption_filter.filter(WHOLE, {"free": ["cpu-1"]})) == ["free"]
    other = pod(gpus(1, memory=10, cores=0), name="other")
    assert list(scheduler.preemption_filter.filter(other, {"free": ["cpu-1"]})) == []
    assert scheduler.cache.bindings.get("u").node == "free"


@pytest.mark.parametrize(("limit", "kept"), [(46_000, ["full"]), (45_999, [])])
def test_victims_of_its_namespace_leave_their_quota_to_the_pod(limit, kept):
    scheduler = replica(
        cards("full", {}),
        pods=[
            holding("a", "full", "GPU-full-0,NVIDIA,30000,0:;"),
            holding("b", "full", "GPU-full-0,NVIDIA,10000,0:;"),
        ],
    )
    scheduler.cache.quotas.upsert(quota(gpumem=limit))
    asked = pod(gpus(1, memory=36_000, cores=0), name="asked")
    assert list(scheduler.preemption_filter.filter(asked, {"full": ["uid-a"]})) == kept


def test_a_replica_that_does_not_lead_judges_nothing():
    scheduler = full_and_free()
    scheduler.leadership.leading = False
    with pytest.raises(NodeLocked):
        scheduler.preemption_filter.filter(WHOLE, {"free": []})


def test_an_annotation_that_cannot_be_read_is_an_error():
    broken = pod(gpus(), annotations={"hami.io/device-scoring-weights": "slot=x"})
    with pytest.raises(MalformedInput):
        full_and_free().preemption_filter.filter(broken, {"free": []})


def test_a_veto_waits_until_the_watch_has_caught_up():
    """kube-scheduler sees the end of a pod, tries another one again at once, and after a veto not for minutes."""
    naps = []

    def watch(seconds):
        naps.append(seconds)
        scheduler.watch()

    scheduler = replica(
        cards("full", {}), pods=[holding("a", "full", "GPU-full-0,NVIDIA,46068,100:;")], sleep=watch
    )

    scheduler.fake.delete_pod("default", "a")
    assert list(scheduler.preemption_filter.filter(WHOLE, {"full": ["cpu-1"]})) == ["full"]
    assert naps == [CATCH_UP_S]
    assert list(scheduler.preemption_filter.filter(WHOLE, {"full": ["cpu-1"]})) == ["full"]
    assert len(naps) == 1


def test_nobody_else_is_evicted_while_the_watch_is_late():
    """kube-scheduler sees the end of the victims that it was offered before our watch does."""
    scheduler = replica(
        cards("n0", {}),
        cards("n1", {}),
        pods=[
            holding("a", "n0", "GPU-n0-0,NVIDIA,46068,100:;"),
            holding("b", "n1", "GPU-n1-0,NVIDIA,46068,100:;"),
        ],
    )
    assert list(scheduler.preemption_filter.filter(WHOLE, {"n0": ["uid-a"], "n1": ["uid-b"]})) == [
        "n0",
        "n1",
    ]
    nominated, others = replace(WHOLE, nominated_node="n0"), {"n1": ["uid-b"]}
    scheduler.fake.delete_pod("default", "a")
    assert scheduler.filter(nominated, ["n0"]) is None
    assert scheduler.preemption_filter.filter(nominated, others) == {}
    scheduler.watch()
    scheduler.clock.seconds += GRACE_S
    assert scheduler.cache.filtering.node_for_pending_pod() == "n0"
    assert scheduler.filter(nominated, ["n0"]) == "n0"


@cases(
    "nominated, victims, later",
    ("the end of the victims makes no room", "n1", {"n0": ["uid-a"]}, 0),
    ("kube-scheduler has chosen none", "", {"n1": ["uid-b"]}, 0),
    ("it was not offered the node", "n2", {"n1": ["uid-b"]}, 0),
    ("they have not ended for kube-scheduler", "n0", {"n0": ["uid-a"], "n1": ["uid-b"]}, 0),
    ("long ago", "n0", {"n1": ["uid-b"]}, LEFT_S),
)
def test_others_are_evicted_where_that_is_not_it(nominated, victims, later):
    scheduler = replica(
        cards("n0", {}),
        cards("n1", {}),
        pods=[
            holding("a", "n0", "GPU-n0-0,NVIDIA,46068,100:;"),
            holding("b", "n1", "GPU-n1-0,NVIDIA,46068,100:;"),
        ],
    )
    assert list(scheduler.preemption_filter.filter(WHOLE, {"n0": ["uid-a"], "n1": ["uid-b"]})) == [
        "n0",
        "n1",
    ]
    if nominated == "n1":  # its card has failed
        scheduler.fake.put_node(cards("n1", {"healthy": False}))
        scheduler.watch()
    scheduler.clock.seconds += later
    assert (
        dict(scheduler.preemption_filter.filter(replace(WHOLE, nominated_node=nominated), victims))
        == victims
    )


def test_only_known_pods_are_remembered_as_victims():
    """A client may name any uids, and as many as its request has room for."""
    scheduler = full_and_free()
    scheduler.preemption_filter.filter(
        WHOLE, {"full": ["uid-c", *(f"stranger-{number}" for number in range(1000))]}
    )
    assert scheduler.preemption_filter._planner.offers(WHOLE.ref) == {"full": ["uid-c"]}


def test_vetoes_wait_for_a_tenth_of_the_time_at_most():
    naps = []
    scheduler = replica(cards("sick", {"healthy": False}), sleep=naps.append)
    for _ in range(100):
        assert list(scheduler.preemption_filter.filter(WHOLE, {"sick": ["cpu-1"]})) == []
    assert len(naps) == CATCH_UPS_AT_ONCE
    for _ in range(100):
        scheduler.clock.seconds += 0.5
        scheduler.preemption_filter.filter(WHOLE, {"sick": ["cpu-1"]})
    assert len(naps) == CATCH_UPS_AT_ONCE + 50
    assert CATCH_UP_S <= 0.1 * CATCH_UP_PERIOD_S


def test_vetoes_of_one_namespace_leave_waits_to_others():
    naps = []
    scheduler = replica(cards("sick", {"healthy": False}), sleep=naps.append)
    for _ in range(100):
        scheduler.preemption_filter.filter(WHOLE, {"sick": ["cpu-1"]})
    for name in ("other", "other", "third"):
        scheduler.preemption_filter.filter(
            pod(gpus(1, memory=46_068, cores=100), namespace=name), {"sick": ["cpu-1"]}
        )
    assert len(naps) == CATCH_UPS_AT_ONCE + 2
    scheduler.clock.seconds += RARE_S
    for _ in range(100):
        scheduler.preemption_filter.filter(WHOLE, {"sick": ["cpu-1"]})
    assert len(naps) == 2 * CATCH_UPS_AT_ONCE + 2


def test_nodes_beyond_the_bound_are_not_judged():
    scheduler = replica(
        *(node(f"n{number}", gpu(f"GPU-{number}")) for number in range(MAX_NODES + 1))
    )
    kept = scheduler.preemption_filter.filter(
        pod(gpus()), {f"n{number}": [] for number in range(MAX_NODES + 1)}
    )
    assert list(kept) == [f"n{number}" for number in range(MAX_NODES)]


@given(seed=integers(0, 10_000))
@settings(max_examples=30)
def test_the_judgement_is_the_decision(seed):
    """A node remains if and only if the decision would choose it once the victims have ended."""
    rng = random.Random(seed)
    held = list(crowded(seed).cache.view().bookings.values())
    asked = pod(
        gpus(rng.choice((1, 2)), memory=rng.randrange(1, 46_000), cores=rng.choice((0, 50, 100))),
        name="asked",
    )
    victims = {
        f"n{number}": [
            booking.uid for booking in held if booking.node == f"n{number}" and rng.random() < 0.4
        ]
        for number in range(5)
    }
    expected = []
    for name, uids in victims.items():
        later = crowded(seed)
        for uid in uids:
            later.cache.bindings.drop(later.cache.bindings.get(uid))
        if later.filter(asked, [name]) is not None:
            expected.append(name)
    assert list(crowded(seed).preemption_filter.filter(asked, victims)) == expected


def crowded(seed):
    """Four nodes with reservations of many pods, and a quota."""
    rng = random.Random(seed)
    scheduler = replica(*(cards(f"n{number}", {}, {}) for number in range(4)))
    for number in range(rng.randrange(40)):
        scheduler.filter(
            pod(
                gpus(
                    rng.choice((1, 2)),
                    memory=rng.randrange(1, 30_000),
                    cores=rng.choice((0, 20, 60)),
                ),
                name=f"p{number}",
                namespace=rng.choice(("default", "team")),
            )
        )
    scheduler.cache.quotas.upsert(quota(gpumem=150_000))
    return scheduler
