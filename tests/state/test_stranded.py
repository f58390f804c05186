"""Stranded devices of a view: those of the store, and of clusters that differ from it."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from hami.scheduling.usual_pods import UsualPod
from hami.state import dry_run
from hami.state.rooms import BLOCK, Usual
from hami.state.store import Store
from hami.state.stranded import stranded_in
from hami.state.view import Policies, View
from testing.builders import ONLY_NVIDIA, booking, charge, container, gpu, gpus, node, pod
from testing.cases import cases

WITH_CPU = UsualPod("NVIDIA", 1, 50, milli_cpu=2000)
WHOLE = UsualPod("NVIDIA", 2, 100)


def a_node(name):
    return node(name, gpu(f"{name}-0"), gpu(f"{name}-1", index=1), allocatable={"cpu": "8"})


def without_devices(cpu, node_name):
    return pod(container(requests={"cpu": cpu}), name="cpu-only", node_name=node_name)


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
    others = [without_devices("5", "n1")]
    found = stranded_in(view_of(a_node("n1"), a_node("n2"), pods=others))
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


@cases("cpu, lacks", ("8", 1.5), ("16", 0), ("4", 2))
@cases("times", ("one change", 1), ("a change of a changed cluster", 2))
def test_what_if_a_node_changes_other_pods_still_take_cpu(cpu, lacks, times):
    view = view_of(a_node("n1"), pods=[without_devices("5", "n1")])
    changed = replace(a_node("n1"), allocatable={"cpu": cpu}, labels={"a": "b"})
    for _ in range(times):
        view = view.what_if(nodes=[changed]).merged
    assert stranded_in(view).by_node()["n1"].lacks_cpu == pytest.approx(lacks)


def test_a_decision_about_nodes_that_change_counts_the_cpu_that_other_pods_take():
    """Where they leave too little for a usual pod, no room is lost."""
    nodes = [a_node("n1"), a_node("n2")]
    view = view_of(*nodes, pods=[without_devices("7", "n2")])
    least_waste = replace(view.facts, policies=Policies("least-waste", "binpack"))
    view = View(view.table, least_waste)
    asks = pod(gpus(1, cores=50))
    assert dry_run.choose(view, asks, ["n1", "n2"]).node == "n2"
    changed = view.what_if(nodes=nodes)
    assert dry_run.choose(changed, asks, ["n1", "n2"]).node == "n2"


def test_clusters_that_are_looked_at_in_blocks():
    nodes = [a_node(f"n{number}") for number in range(BLOCK + 3)]
    found = stranded_in(view_of(*nodes))
    assert found.by_node().keys() == {one.name for one in nodes}
    assert found.room == {WITH_CPU: 4 * len(nodes)}
