"""What pods without devices leave of the CPU and memory of their nodes."""

import pytest
from pytest import param

from hami.scheduling.node_resources import NodeResources
from hami.state.node_loads import NodeLoads
from hami.state.table import Table
from testing.builders import container, pod

HAS = NodeResources(8000, 16384)


def a_pod(name, cpu="1", node="n1", **fields):
    return pod(
        container(requests={"cpu": cpu, "memory": "1Gi"}), name=name, node_name=node, **fields
    )


class Loads(NodeLoads):
    """Those of a node, with some pods."""

    def __init__(self, *pods):
        self.table = Table()
        super().__init__(self.table)
        self.set_allocatable("n1", HAS)
        for one in pods:
            self.put(one)

    def left(self):
        return self.table.left.get("n1")

    def take_changed(self):
        changed = list(self.table.changed_left)
        self.table.changed_left.clear()
        return changed


@pytest.mark.parametrize(
    ("pods", "left"),
    [
        param([], HAS, id="no pods"),
        param([a_pod("a"), a_pod("b")], NodeResources(6000, 14336), id="two pods"),
        param([a_pod("a"), a_pod("a")], NodeResources(7000, 15360), id="the same pod again"),
        param([a_pod("a"), a_pod("a", "3")], NodeResources(5000, 15360), id="it has grown"),
        param([a_pod("a", node="n2")], HAS, id="a node that is not known"),
        param([a_pod("a", node="")], HAS, id="not bound"),
        param([a_pod("a", phase="Succeeded")], HAS, id="terminated"),
        param([a_pod("a"), a_pod("a", phase="Failed")], HAS, id="it has terminated"),
        param([a_pod("a", "9")], NodeResources(-1000, 15360), id="more than there is"),
    ],
)
def test_pods_take_what_they_request(pods, left):
    assert Loads(*pods).left() == left


def test_pods_that_are_gone_take_nothing():
    made = Loads(a_pod("a"), a_pod("b"), a_pod("c"))
    made.remove(a_pod("a"))
    made.remove(a_pod("a"))
    made.prune({"uid-c"})
    assert made.left() == NodeResources(7000, 15360)


def test_a_node_that_is_gone_has_nothing():
    made = Loads(a_pod("a"))
    made.set_allocatable("n1", None)
    assert made.left() is None
    assert made.take_changed() == []


def test_changed_nodes_are_told_once():
    made = Loads()
    assert made.take_changed() == ["n1"]
    made.put(a_pod("a"))
    made.put(a_pod("a"))
    assert made.take_changed() == ["n1"]
    made.put(a_pod("a"))
    made.set_allocatable("n1", HAS)
    assert made.take_changed() == []


def test_pods_that_are_only_known_together_count_beside_others():
    loads = Loads(a_pod("p"))
    loads.put_sum("n1", NodeResources(3000, 2048))
    loads.put_sum("n9", NodeResources(3000, 2048))
    assert loads.left() == NodeResources(4000, 16384 - 1024 - 2048)
    assert "n9" not in loads.table.left
