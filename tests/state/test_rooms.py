"""The room of nodes: what is remembered is what is computed anew, and nobody is refused for want of CPU."""

import random

import numpy
import pytest
from hypothesis import given
from hypothesis.strategies import integers

from hami.model import NodePolicy
from hami.scheduling.fit import Unfit
from hami.scheduling.node_order import NodeOrder
from hami.scheduling.node_resources import NodeResources
from hami.scheduling.placement import place_pod
from hami.scheduling.usual_pods import UsualPod
from hami.state.node_loads import NodeLoads
from hami.state.rooms import Rooms, Usual
from hami.state.verdicts import Verdicts
from hami.state.workload import FIRST
from testing.builders import (
    booking,
    charge,
    cluster,
    container,
    gpu,
    gpus,
    node,
    pod,
    pod_request,
    usages,
)
from testing.seeds import some_pod_request
from testing.stores import SmallStore
from tests.state.mirror import Mirror

LEAST_WASTE, BINPACK = NodePolicy.LEAST_WASTE, NodePolicy.BINPACK
KINDS = {
    UsualPod("NVIDIA", 1, 50, 500, milli_cpu=500): 5.0,
    UsualPod("NVIDIA", 2, 100, milli_cpu=2000): 2.0,
    UsualPod("NVIDIA", 1, 0, 100): 1.0,
    UsualPod("NVIDIA", 4, 10, memory_percent=50, milli_cpu=1): 1.0,
}

KIND_OF_P = UsualPod("NVIDIA", 1, memory_mib=100)


def a_pod_without_devices(uid, node, cpu, **fields):
    return pod(container(requests={"cpu": cpu}), name=uid, uid=uid, node_name=node, **fields)


class Cluster(Mirror):
    """A table under random changes, with the CPU of its nodes and pods without devices."""

    def __init__(self, names, pods=12):
        super().__init__(names, pods)
        self.loads = NodeLoads(self.table)
        self.cpu = {}
        self.others = {}
        self.rooms = Rooms(self.table)
        self.rooms.learn(KINDS)

    def change(self, rng):
        name, uid = rng.choice(self.names), f"other-{rng.randrange(9)}"
        match rng.randrange(4):
            case 0:
                self.cpu[name] = NodeResources(rng.randrange(9000), 1000)
                self.loads.set_allocatable(name, self.cpu[name])
            case 1 if uid in self.others:
                self.loads.remove(self.others.pop(uid))
            case 2 if uid not in self.others and name in self.cpu:
                self.others[uid] = a_pod_without_devices(uid, name, f"{rng.randrange(3000)}m")
                self.loads.put(self.others[uid])
            case _:
                super().change(rng)

    def fresh_rooms(self):
        """Rooms that were told only the outcome, and their table."""
        table = self.fresh()
        loads = NodeLoads(table)
        for name, resources in self.cpu.items():
            loads.set_allocatable(name, resources)
        for other in self.others.values():
            loads.put(other)
        rooms = Rooms(table)
        rooms.learn(KINDS)
        return rooms, table

    def rows(self, table):
        names = sorted(self.table.rows)
        return numpy.array([table.rows[name] for name in names], dtype=numpy.intp)


@given(seed=integers(0, 2**32))
def test_what_is_remembered_is_what_is_computed_anew(seed):
    rng = random.Random(seed)
    few = rng.random() < 0.7
    nodes = Cluster([f"n{number}" for number in range(6 if few else 20)])
    request = some_pod_request(rng, containers=2)
    resources = NodeResources(rng.randrange(2000))
    for _ in range(8 if few else 3):
        for _ in range(rng.randrange(1, 6 if few else 60)):
            nodes.change(rng)
        nodes.table.refresh()
        fresh, table = nodes.fresh_rooms()
        kept, anew = nodes.rows(nodes.table), nodes.rows(table)
        losses = nodes.rooms.losses(request, resources, kept)
        assert losses.tolist() == pytest.approx(
            fresh.losses(request, resources, anew).tolist(), abs=1
        )
        assert nodes.rooms.room[kept].tolist() == fresh.room[anew].tolist()
        assert nodes.rooms.total.tolist() == pytest.approx(fresh.total.tolist(), abs=1e-6)
        assert (losses >= 0).all()


@given(seed=integers(0, 2**32))
def test_the_chosen_node_fits_and_none_that_fits_costs_less(seed):
    rng = random.Random(seed)
    nodes = Cluster([f"n{number}" for number in range(rng.randrange(1, 9))])
    for _ in range(rng.randrange(40)):
        nodes.change(rng)
    table, request = nodes.table, some_pod_request(rng, containers=1)
    resources = NodeResources(rng.randrange(2000))
    offered = rng.sample(nodes.names, rng.randint(1, len(nodes.names)))
    order = NodeOrder(LEAST_WASTE, resources=resources)
    verdicts = Verdicts(table, nodes.rooms)
    choice = verdicts.choose(request, verdicts.rows(offered), order)
    plain = Verdicts(table).choose(request, verdicts.rows(offered), NodeOrder(BINPACK))
    assert (choice is None) == (plain is None)  # CPU and room never decide whether a pod fits
    if choice is None:
        return
    fitting = []
    for name in offered:
        if name in table.rows and not isinstance(place_pod(table.usages(name), request), Unfit):
            fitting.append(name)
    assert choice.node in fitting
    losses = nodes.rooms.losses(request, resources, verdicts.rows(fitting))
    if losses is not None:
        assert losses[fitting.index(choice.node)] == losses.min()


def test_without_usual_pods_nodes_are_chosen_as_by_binpack():
    table = cluster(n1=usages("GPU-0"), n2=usages("GPU-1"))
    table.bookings.put(booking("p", "n2", charge("GPU-1", 1, 1000, 10)))
    verdicts = Verdicts(table, Rooms(table))
    choice = verdicts.choose(
        pod_request(gpus(1, 1000, 10)), verdicts.rows(["n1", "n2"]), NodeOrder(LEAST_WASTE)
    )
    assert choice.node == "n2"


@pytest.mark.parametrize(("is_fixed", "expected"), [(True, KINDS.keys()), (False, {KIND_OF_P})])
def test_only_usual_pods_that_are_not_fixed_are_learnt(is_fixed, expected):
    store = SmallStore(
        node("n1", gpu("GPU-0", slots=100, memory_mib=8000)), usual=Usual(KINDS, is_fixed=is_fixed)
    )
    for number in range(FIRST):
        store.place(pod(gpus(1, 100, 0), name=f"p{number}"))
    assert store.view().facts.usual.kinds.keys() == expected


def rooms_of(kinds, cpu="8", **nodes):
    table = cluster(**nodes)
    loads = NodeLoads(table)
    for name in nodes:
        loads.set_allocatable(name, NodeResources(int(cpu) * 1000))
    rooms = Rooms(table)
    rooms.learn(kinds)
    return table, loads, rooms


def chosen(table, rooms, request, cpu=1000):
    verdicts = Verdicts(table, rooms)
    order = NodeOrder(LEAST_WASTE, resources=NodeResources(cpu))
    return verdicts.choose(request, verdicts.rows(sorted(table.rows)), order).node


def test_whole_nodes_are_kept_for_pods_that_need_them():
    """Binpack takes the fuller node by its share of used devices; here that would break the only whole one."""
    whole = UsualPod("NVIDIA", 2, 100)
    table, _, rooms = rooms_of(
        {whole: 1.0, UsualPod("NVIDIA", 1, 50): 9.0},
        n1=usages("a", "b"),
        n2=usages("c", "d", "e"),
    )
    table.bookings.put(booking("p", "n2", charge("c", 1, 20000, 50)))
    assert chosen(table, rooms, pod_request(gpus(1, 20000, 50))) == "n2"


def test_devices_are_used_where_cpu_is_short_anyway():
    """On n1 two devices have no CPU for another usual pod: a pod that needs none wastes less there."""
    table, loads, rooms = rooms_of(
        {UsualPod("NVIDIA", 1, 100, milli_cpu=4000): 1.0}, n1=usages("a", "b"), n2=usages("c", "d")
    )
    loads.put(a_pod_without_devices("other", "n1", "7"))
    assert chosen(table, rooms, pod_request(gpus(1, 1000, 100)), cpu=500) == "n1"
    loads.remove(a_pod_without_devices("other", "n1", "7"))
    loads.put(a_pod_without_devices("other", "n2", "7"))
    assert chosen(table, rooms, pod_request(gpus(1, 1000, 100)), cpu=500) == "n2"


def test_another_model_in_the_columns_begins_anew():
    table, _, rooms = rooms_of({UsualPod("NVIDIA", 1, 100): 1.0}, n1=usages("a"))
    rooms.refresh()
    assert rooms.total.tolist() == [1.0]
    table.set_devices("n2", "NVIDIA", (gpu("b", model="NVIDIA L4"),))
    rooms.refresh()
    assert rooms.total.tolist() == [2.0]


def test_states_of_devices_are_not_remembered_for_ever(monkeypatch):
    monkeypatch.setattr("hami.state.rooms.MAX_STATES", 4)
    table, _, rooms = rooms_of({UsualPod("NVIDIA", 1, 50): 1.0}, n1=usages("a", "b"))
    request = pod_request(gpus(1, 1000))
    for used in range(100):
        table.bookings.put(booking("p", "n1", charge("a", 1, used, 10)))
        assert rooms.losses(request, NodeResources(), numpy.array([0])).tolist() == [0.0]
        assert rooms.total.tolist() == [3.0]
        assert len(rooms.states) <= 4 + 2 * 2 + 4  # two devices, each before and after


def losses_of(rooms, *requests):
    rows = numpy.arange(2)
    return [rooms.losses(request, NodeResources(), rows).tolist() for request in requests]


@pytest.mark.parametrize("limit", ["MAX_PODS", "MAX_TAKEN", "MAX_DISTINCT"])
def test_what_is_not_remembered_is_computed_again(monkeypatch, limit):
    monkeypatch.setattr(f"hami.state.rooms.{limit}", 1 if limit == "MAX_PODS" else -64)
    kinds = {UsualPod("NVIDIA", 1, 50): 1.0, UsualPod("NVIDIA", 2, 100): 1.0}
    nodes = dict(n1=usages("a", "b"), n2=usages("c"))
    table, _, rooms = rooms_of(kinds, **nodes)
    requests = [pod_request(gpus(1, 1000, cores)) for cores in (10, 60, 100)]
    for used in range(1, 60, 7):
        table.bookings.put(booking("p", "n1", charge("a", 1, 1000, used)))
        fresh_table, _, fresh = rooms_of(kinds, **nodes)
        fresh_table.bookings.put(booking("p", "n1", charge("a", 1, 1000, used)))
        assert losses_of(rooms, *requests) == losses_of(fresh, *requests)


def test_a_new_request_leaves_no_states_of_devices_that_never_come():
    nodes = {f"n{number}": usages(f"GPU-{number}") for number in range(64)}
    table, _, rooms = rooms_of({UsualPod("NVIDIA", 1, 50): 1.0}, **nodes)
    for number in range(64):
        table.bookings.put(
            booking(f"p{number}", f"n{number}", charge(f"GPU-{number}", 1, 100 + number, 10))
        )
    rows = numpy.arange(64)
    for memory in range(1000, 1020):
        rooms.losses(pod_request(gpus(1, memory, 10)), NodeResources(), rows)
    assert len(rooms.states) == 64
