"""kube-scheduler is reminded of refused pods when a change that it may have missed makes room for them."""

from collections import Counter
from dataclasses import replace

import pytest

from hami.codec.keys import ROOM
from hami.model import ContainerKind
from hami.state.filtering import PENDING_REQUESTS
from hami.state.pending import LIMIT, NAMESPACE_LIMIT, REMINDER_LIMIT_S, PendingPods
from testing.builders import gpu, gpus, node, pod, quota
from testing.cases import cases
from testing.replicas import Clock, Replica, WatchedCluster

SMALL = 40_000


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def world(clock):
    world = WatchedCluster()
    world.put_node(node("n1", gpu("GPU-0")))
    return world


def refused(world, replica, name="late", **fields):
    """A pod that was refused because the device is full, after the grace period."""
    late = world.put_pod(pod(gpus(memory=SMALL), name=name, **fields))
    assert replica.filter(late) is None
    replica.clock.seconds += 1
    return late


def running(world, replica, *containers, name="first"):
    first = world.put_pod(pod(*containers or (gpus(memory=SMALL),), name=name))
    replica.schedule(first)
    world.allocate("n1")
    replica.watch()
    return world.pods["default", name]


def test_no_reminder_while_nothing_changes(world, clock):
    replica = Replica(world, clock)
    running(world, replica)
    refused(world, replica)
    assert replica.cache.filtering.node_for_pending_pod() is None


def test_the_controller_reminds_when_the_watch_shows_room_after_a_refusal(world, clock):
    replica = Replica(world, clock)
    running(world, replica)
    world.delete_pod("default", "first")
    refused(world, replica)  # the watch is late
    replica.controller.step()
    assert ROOM not in world.nodes["n1"].annotations
    replica.watch()
    replica.controller.step()
    assert ROOM in world.nodes["n1"].annotations


def test_a_finished_init_container_makes_room(world, clock):
    replica = Replica(world, clock)
    first = running(world, replica, gpus(memory=SMALL, kind=ContainerKind.INIT), gpus(memory=1000))
    refused(world, replica)
    world.put_pod(replace(first, init_done=True))
    replica.watch()
    assert replica.cache.filtering.node_for_pending_pod() == "n1"


def test_a_raised_quota_makes_room(world, clock):
    replica = Replica(world, clock)
    replica.cache.quotas.upsert(quota(gpumem=1000))
    refused(world, replica)
    replica.cache.quotas.upsert(quota(gpumem=SMALL))
    assert replica.cache.filtering.node_for_pending_pod() == "n1"


def test_a_pod_that_is_reminded_of_for_days_is_reminded_of_every_minute():
    pods, waiting = PendingPods(), pod(gpus())
    pods.add(waiting, None, (0,), 0.0)
    (pending,) = pods.all()
    waits = []
    for _ in range(2000):
        pods.remind(pending, 100.0)
        waits.append(pending.due - 100.0)
    assert waits[:6] == [2, 4, 8, 16, 32, REMINDER_LIMIT_S]
    assert set(waits[6:]) == {REMINDER_LIMIT_S}


def test_reminders_of_one_pod_become_rarer(world, clock):
    replica = Replica(world, clock)
    running(world, replica)
    refused(world, replica)
    world.delete_pod("default", "first")
    replica.watch()
    reminded = []
    for _ in range(70):
        reminded.append(replica.cache.filtering.node_for_pending_pod() is not None)
        clock.seconds += 1
    assert [second for second, was_reminded in enumerate(reminded) if was_reminded] == [
        0,
        2,
        6,
        14,
        30,
        62,
    ]


@pytest.mark.parametrize("end", ["placed", "deleted", "bound elsewhere"])
def test_no_reminder_of_a_pod_that_waits_no_longer(world, clock, end):
    replica = Replica(world, clock)
    running(world, replica)
    late = refused(world, replica)
    world.delete_pod("default", "first")
    match end:
        case "deleted":
            world.delete_pod("default", "late")
        case "bound elsewhere":
            world.put_pod(replace(late, node_name="n9"))
    replica.watch()
    if end == "placed":
        replica.schedule(late)
    assert replica.cache.filtering.node_for_pending_pod() is None


def test_only_nodes_that_kube_scheduler_offered_are_tried(world, clock):
    replica = Replica(world, clock)
    world.put_node(node("n2", gpu("GPU-0")))
    replica.watch()
    running(world, replica)
    late = world.put_pod(pod(gpus(memory=SMALL), name="late"))
    assert replica.filter(late, ["n1"]) is None
    clock.seconds += 1
    world.put_node(node("n2", gpu("GPU-0"), gpu("GPU-1")))
    replica.watch()
    assert replica.cache.filtering.node_for_pending_pod() is None


def test_pods_that_never_fit_do_not_keep_others_from_their_reminder(world, clock):
    """Only some are tried at a time, and in a busy cluster something changes each second."""
    world.put_node(node("n2", gpu("GPU-1")))
    replica = Replica(world, clock)
    running(world, replica)
    for number in range(3 * PENDING_REQUESTS):
        assert (
            replica.filter(world.put_pod(pod(gpus(memory=50_000 + number), name=f"large-{number}")))
            is None
        )
    assert (
        replica.filter(world.put_pod(pod(gpus(memory=46_068, cores=100), name="blocker")))
        is not None
    )
    refused(world, replica)
    world.delete_pod("default", "first")
    replica.watch()
    for number in range(10):
        clock.seconds += 1
        if replica.cache.filtering.node_for_pending_pod() == "n1":
            return
        replica.cache.filtering.assume(
            pod(gpus(memory=46_068, cores=100), name="blocker"), ["n2"]
        )  # a change
    pytest.fail("not reminded")


# shares of what is remembered


def remember(*groups):
    """The pods that are remembered of *groups* (namespace, priority, count), which are refused one after the other, by
    namespace and priority."""
    pods = PendingPods()
    for place, (namespace, priority, count) in enumerate(groups):
        for number in range(count):
            pods.add(
                pod(name=f"{place}-{number}", namespace=namespace, priority=priority), None, (), 0.0
            )
    return Counter((pending.pod.ref.namespace, pending.pod.priority) for pending in pods.all())


MANY = 2 * LIMIT


@cases(
    "groups, remembered",
    ("one namespace", [("a", 0, MANY)], {("a", 0): NAMESPACE_LIMIT}),
    ("another before", [("b", 0, 1), ("a", 0, MANY)], {("a", 0): NAMESPACE_LIMIT, ("b", 0): 1}),
    ("another after", [("a", 0, MANY), ("b", 0, 1)], {("a", 0): NAMESPACE_LIMIT, ("b", 0): 1}),
    (
        "two with very many, and one before",
        [("c", 0, 1), ("a", 0, MANY), ("b", 0, MANY)],
        {("a", 0): 499, ("b", 0): 500, ("c", 0): 1},
    ),
    (
        "equal shares",
        [("a", 0, MANY), ("b", 0, MANY), ("c", 0, MANY)],
        {("a", 0): 333, ("b", 0): 333, ("c", 0): 334},
    ),
    (
        "a higher priority in the same namespace",
        [("a", 9, 1), ("a", 0, MANY)],
        {("a", 9): 1, ("a", 0): NAMESPACE_LIMIT - 1},
    ),
    (
        "only of high priority",
        [("a", 9, NAMESPACE_LIMIT), ("a", 0, 9)],
        {("a", 9): NAMESPACE_LIMIT},
    ),
    (
        "a higher priority in another namespace",
        [("c", 9, 1), ("a", 0, MANY), ("b", 0, MANY)],
        {("c", 9): 1, ("a", 0): 499, ("b", 0): 500},
    ),
    (
        "a lower priority takes no place of higher ones",
        [("a", 9, MANY), ("b", 9, MANY), ("c", 0, 1)],
        {("a", 9): 500, ("b", 9): 500},
    ),
    (
        "one namespace of high priority leaves room",
        [("c", 0, 1), ("a", 9, MANY)],
        {("c", 0): 1, ("a", 9): NAMESPACE_LIMIT},
    ),
)
def test_namespaces_and_priorities_have_shares(groups, remembered):
    found = remember(*groups)
    assert sum(found.values()) <= LIMIT
    assert found == remembered


def test_the_pod_that_was_tried_longest_ago_is_forgotten():
    pods = PendingPods()
    first, *others = [pod(name=f"p{number}") for number in range(NAMESPACE_LIMIT + 1)]
    for one in (first, *others[:-1]):
        pods.add(one, None, (), 0.0)
    pods.mark_tried(pods.all()[0], (1,))
    pods.add(others[-1], None, (), 0.0)
    names = [pending.pod.ref.name for pending in pods.all()]
    assert "p0" in names
    assert "p1" not in names


def test_a_pod_that_is_refused_again_takes_no_second_place():
    pods = PendingPods()
    for clock in (1.0, 2.0):
        pods.add(pod(), None, (), clock)
    (pending,) = pods.all()
    assert pending.since == 1.0
    pods.remove(pod())
    pods.remove(pod())
    assert pods.all() == []


def test_a_namespace_with_very_many_pods_delays_no_reminder_of_others(world, clock):
    """Only some requests are tried in a second."""
    replica = Replica(world, clock)
    running(world, replica)
    for number in range(10 * PENDING_REQUESTS):
        large = pod(gpus(memory=50_000 + number), name=f"large-{number}", namespace="other")
        assert replica.filter(world.put_pod(large)) is None
    refused(world, replica)
    world.delete_pod("default", "first")
    replica.watch()
    assert replica.cache.filtering.node_for_pending_pod() == "n1"
