"""Stranded devices of a view: those of the store, and of clusters that differ from it."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from hami.scheduling.usual_pods import UsualPod
from hami.state.rooms import BLOCK, Usual
from hami.state.store import Store
from hami.state.stranded import stranded_in
from hami.state.view import Policies, View
from testing.builders import ONLY_NVIDIA, booking, charge, container, gpu, node, pod

WITH_CPU = UsualPod("NVIDIA", 1, 50, milli_cpu=2000)
WHOLE = UsualPod("NVIDIA", 2, 100)


def a_node(name):
    return node(name, gpu(f"{name}-0"), gpu(f"{name}-1", index=1), allocatable={"cpu": "8"})


def view_of(*nodes, pods=(), kinds=(WITH_CPU,)):
    store = Store(
        ONLY_NVIDIA,
        Policies(),
        clock=lambda: 0.0,
        now=lambda: datetime(2026, 8, 21, tzinfo=UTC),
    )
    for one in nodes:
        store.nodes.upsert(one)
    for one in pods:
        store.pods.upsert(one)
    view = store.view()
    return View(view.table, replace(view.facts, usual=Usual(dict.fromkeys(kinds, 1.0))))


def test_without_usual_pods_nothing_is_said():
    assert stranded_in(view_of(a_node("n1"), kinds=())) is None


def test_pods_without_devices_take_cpu():
    others = pod(container(requests={"cpu": "5"}), name="cpu-only", node_name="n1")
    found = stranded_in(view_of(a_node("n1"), a_node("n2"), pods=[others]))
    assert {name: free.lacks_cpu for name, free in found.by_node().items()} == {
        "n1": pytest.approx(1.5),
        "n2": pytest.approx(0),
    }
    assert found.by_model()["NVIDIA A40"].lacks_cpu == pytest.approx(1.5)
    assert found.room == {WITH_CPU: 1 + 4}


def test_what_if_more_is_booked():
    view = view_of(a_node("n1"), kinds=(WHOLE,))
    assert stranded_in(view).room == {WHOLE: 1}
    changed = view.what_if(with_=[booking("p", "n1", charge("n1-0", 1, 0, 10))])
    found = stranded_in(changed)
    assert found.room == {WHOLE: 0}
    assert found.by_node()["n1"].crumbs == pytest.approx(1.9)
    assert stranded_in(view).room == {WHOLE: 1}


def test_clusters_that_are_looked_at_in_blocks():
    nodes = [a_node(f"n{number}") for number in range(BLOCK + 3)]
    found = stranded_in(view_of(*nodes))
    assert found.by_node().keys() == {one.name for one in nodes}
    assert found.room == {WITH_CPU: 4 * len(nodes)}
