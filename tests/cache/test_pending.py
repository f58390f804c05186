"""kube-scheduler is reminded of refused pods when a change that it may have missed makes room for them."""

from dataclasses import replace

import pytest

from hami.codec.keys import ROOM
from hami.model import ContainerKind
from tests.builders import gpu, gpus, node, pod, quota
from tests.world import Clock, Replica, WatchedCluster

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
    assert replica.cache.node_for_pending_pod() is None


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
    assert replica.cache.node_for_pending_pod() == "n1"


def test_a_raised_quota_makes_room(world, clock):
    replica = Replica(world, clock)
    replica.cache.quotas.upsert(quota(gpumem=1000))
    refused(world, replica)
    replica.cache.quotas.upsert(quota(gpumem=SMALL))
    assert replica.cache.node_for_pending_pod() == "n1"


def test_reminders_of_one_pod_become_rarer(world, clock):
    replica = Replica(world, clock)
    running(world, replica)
    refused(world, replica)
    world.delete_pod("default", "first")
    replica.watch()
    reminded = []
    for _ in range(70):
        reminded.append(replica.cache.node_for_pending_pod() is not None)
        clock.seconds += 1
    assert [second for second, was_reminded in enumerate(reminded) if was_reminded] == [0, 2, 6, 14, 30, 62]


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
    assert replica.cache.node_for_pending_pod() is None


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
    assert replica.cache.node_for_pending_pod() is None
