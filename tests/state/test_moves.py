"""The fewest moves after which a pod fits, and that each step is one that the decision itself takes."""

import itertools
import random

import pytest

from hami.model import NodeRequirement
from hami.scheduling.node_resources import NodeResources
from hami.state import dry_run
from hami.state.bookings import booking_of
from hami.state.moves import (
    MoveLimits,
    MovePlan,
    MoveSearch,
    NoMovePlan,
    carried_out,
    choose_with_room,
)
from hami.state.table import Table
from hami.state.view import Facts, Policies, View
from testing.builders import ONLY_NVIDIA, gpu, gpus, pod
from testing.fragmented import blocked_pod, fewest_moves, fragmented, without_room

MIB = 80_000
SNAPSHOTS = 20
TIME_ENOUGH = MoveLimits(moves=3, seconds=1e9)


def still():
    """A clock that stands."""
    return 0.0


def snapshots(count):
    """Yields small clusters and pods that fit none of their nodes."""
    found = 0
    for seed in itertools.count():
        rnd = random.Random(seed)
        cluster = fragmented(
            seed, rnd.choice([2, 3, 4]), rnd.choice([1, 2]), ended=rnd.choice([0.2, 0.3, 0.5])
        )
        if len(cluster.movable) > 5:
            continue
        waiting = blocked_pod(cluster, seed)
        if waiting is None:
            continue
        yield cluster, waiting
        found += 1
        if found == count:
            return


def moves_of(result):
    return len(result.moves) if isinstance(result, MovePlan) else None


def test_the_fewest_moves_are_those_of_trying_everything():
    same = 0
    for cluster, waiting in snapshots(SNAPSHOTS):
        search = MoveSearch(cluster.names, cluster.movable, still)
        result = search.plan(cluster.view, waiting, TIME_ENOUGH)
        fewest = fewest_moves(cluster, waiting, 3)
        if isinstance(result, MovePlan) and fewest is not None:
            assert len(result.moves) >= fewest
        same += moves_of(result) == fewest
    assert same >= 0.95 * SNAPSHOTS


def test_every_plan_is_carried_out_step_by_step():
    plans = 0
    for cluster, waiting in snapshots(SNAPSHOTS):
        search = MoveSearch(cluster.names, cluster.movable, still)
        result = search.plan(cluster.view, waiting, TIME_ENOUGH)
        if not isinstance(result, MovePlan):
            continue
        plans += 1
        after = carried_out(cluster.view, waiting, result, cluster.movable, cluster.names)
        assert after is not None
        assert after.booking(waiting.ref.uid).node == result.node
        assert after.bookings.keys() == {*cluster.view.bookings, waiting.ref.uid}
        for usages in after.nodes.values():
            assert not any(usage.is_overcommitted for usage in usages["NVIDIA"])
    assert plans > 5


@pytest.mark.parametrize("seed", range(4))
def test_a_large_cluster_that_is_full_of_small_pods_makes_room(seed):
    cluster, waiting = without_room(
        fragmented(seed, 20, 8, ended=0.1, parts=((8000, 10), (20000, 25), (40000, 50))),
        (2, MIB, 100),
    )
    result = MoveSearch(cluster.names, cluster.movable, still).plan(cluster.view, waiting)
    assert isinstance(result, MovePlan)
    assert carried_out(cluster.view, waiting, result, cluster.movable, cluster.names) is not None


def test_a_search_without_time_says_that_nothing_is_proven():
    ticks = itertools.count()
    cluster, waiting = next(iter(snapshots(1)))
    search = MoveSearch(cluster.names, cluster.movable, lambda: float(next(ticks)))
    result = search.plan(cluster.view, waiting, MoveLimits(seconds=0))
    assert result == NoMovePlan(is_proven=False)


def test_without_movable_pods_there_is_provably_no_plan():
    cluster, waiting = next(iter(snapshots(1)))
    result = MoveSearch(cluster.names, {}, still).plan(cluster.view, waiting, TIME_ENOUGH)
    assert result == NoMovePlan(is_proven=True)


def cluster_of(*placed, left=None):
    """Returns a view of nodes with one card each, and the pods there. *placed*: node, name, MiB and fields of a pod.
    *left*: CPU and memory of the nodes."""
    table, pods = Table(), {}
    for name in ("n0", "n1", "n2"):
        table.set_devices(name, "NVIDIA", (gpu(f"GPU-{name}", memory_mib=MIB),))
        if left is not None:
            table.set_left(name, left[name])
    view = View(table, Facts(vendors=ONLY_NVIDIA, policies=Policies("spread", "spread")))
    for node, name, memory, fields in placed:
        new = pod(gpus(1, memory=memory, cores=0), name=name, **fields)
        choice = dry_run.choose(view, new, [node])
        table.bookings.put(booking_of(new, view.request_of(new), choice))
        pods[new.ref.uid] = new
    return View(table, view.facts), pods


NAMES = ["n0", "n1", "n2"]
HOST = NodeRequirement("", "In", frozenset({"n0"}))
WAITS = pod(gpus(1, memory=MIB, cores=0), name="waits")
LAYOUT = (
    ("n0", "a", 50_000, {}),
    ("n0", "f", 20_000, {}),
    ("n1", "d", 30_000, {}),
    ("n2", "e", 60_000, {}),
)


def test_the_place_is_held_while_pods_move():
    """Without that, the policy spread brings the first pod back to the card that it has left."""
    view, pods = cluster_of(*LAYOUT)
    movable = {uid: pods[uid] for uid in ("uid-a", "uid-f")}
    result = MoveSearch(NAMES, movable, still).plan(view, WAITS)
    assert [(move.uid, move.target) for move in result.moves] == [("uid-a", "n1"), ("uid-f", "n2")]


def test_a_node_without_free_cpu_is_no_target():
    cpu = {"requests": {"cpu": "2"}}
    layout = (("n0", "a", 50_000, cpu), ("n1", "d", 30_000, cpu), ("n2", "e", 60_000, cpu))
    rich = {name: NodeResources(8000, 100_000) for name in NAMES}
    view, pods = cluster_of(*layout, left=rich)
    movable = {"uid-a": pods["uid-a"]}
    result = MoveSearch(NAMES, movable, still).plan(view, WAITS)
    assert [move.target for move in result.moves] == ["n1"]
    view, _ = cluster_of(*layout, left=rich | {"n1": NodeResources(3000, 100_000)})
    assert MoveSearch(NAMES, movable, still).plan(view, WAITS) == NoMovePlan(is_proven=True)


def test_a_waiting_pod_gets_no_node_without_free_cpu():
    left = {name: NodeResources(1000, 100_000) for name in NAMES}
    view, _ = cluster_of(left=left)
    large = pod(gpus(1, memory=1000, cores=0), name="large", requests={"cpu": "2"})
    assert choose_with_room(view, large, NAMES) is None
    assert choose_with_room(view, WAITS, NAMES) is not None


def test_memory_that_is_overcommitted_keeps_nobody_out_who_requests_none():
    left = {name: NodeResources(4000, -1) for name in NAMES}
    view, _ = cluster_of(left=left)
    by_cpu = pod(gpus(1, memory=1000, cores=0), name="by-cpu", requests={"cpu": "2"})
    assert choose_with_room(view, by_cpu, NAMES) is not None
    by_both = pod(gpus(1, memory=1000), name="both", requests={"cpu": "2", "memory": "1Mi"})
    assert choose_with_room(view, by_both, NAMES) is None


def test_a_pod_moves_only_to_nodes_that_it_selects():
    term = (NodeRequirement("zone", "In", frozenset({"a"})),)
    layout = (("n0", "a", 50_000, {"node_terms": (term,)}),)
    view, pods = cluster_of(*layout)
    full = pod(gpus(1, memory=60_000, cores=0), name="waits", node_terms=((HOST,),))
    assert MoveSearch(NAMES, pods, still).plan(view, full) == NoMovePlan(is_proven=True)
    labels = {"n2": {"zone": "a"}}
    for name in NAMES:
        view.table.set_labels(name, labels.get(name, {}))
    result = MoveSearch(NAMES, pods, still).plan(view, full)
    assert [(move.uid, move.target) for move in result.moves] == [("uid-a", "n2")]


def test_a_waiting_pod_gets_only_a_node_that_it_selects():
    view, _ = cluster_of()
    only = pod(gpus(1, memory=1000, cores=0), name="only", node_terms=((HOST,),))
    assert choose_with_room(view, only, NAMES).node == "n0"
    assert choose_with_room(view, only, NAMES[1:]) is None


def test_a_pod_moves_so_that_cpu_becomes_free():
    """The card has room for both; the node has CPU for one."""
    cpu = {"requests": {"cpu": "2"}}
    left = {name: NodeResources(3000, 100_000) for name in NAMES}
    view, pods = cluster_of(("n0", "a", 10_000, cpu), left=left)
    waits = pod(gpus(1, memory=10_000, cores=0), name="waits", node_terms=((HOST,),), **cpu)
    result = MoveSearch(NAMES, pods, still).plan(view, waits)
    assert [(move.uid, move.source, move.target) for move in result.moves] == [
        ("uid-a", "n0", "n1")
    ]


def test_a_larger_pod_moves_for_one_that_selects_its_node():
    view, pods = cluster_of(("n0", "a", 60_000, {}))
    waits = pod(gpus(1, memory=30_000, cores=0), name="waits", node_terms=((HOST,),))
    result = MoveSearch(NAMES, pods, still).plan(view, waits)
    assert [(move.uid, move.target) for move in result.moves] == [("uid-a", "n1")]
