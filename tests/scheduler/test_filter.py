"""Filter and simulation: the chosen node, refusals in upstream's words, and the events on the pod."""

from dataclasses import replace

import pytest

from hami.errors import MalformedInput, NodeLocked
from hami.state.view import Policies
from tests.builders import NVIDIA, gpu, gpus, node, pod
from tests.scheduler.replicas import cards, holding, replica


def two_nodes(**policies):
    return replica(node("n1", gpu("GPU-a0"), gpu("GPU-a1", index=1)), node("n2", gpu("GPU-b0"), gpu("GPU-b1", index=1)),
                   pods=[holding("x", "n2", "GPU-b0,NVIDIA,3000,30:;")], policies=Policies(**policies))


@pytest.mark.parametrize(("policies", "chosen", "device", "scores"), [
    ({}, "n2", "GPU-b1", "n1:0.00,n2:2.33"),
    ({"device": "binpack"}, "n2", "GPU-b0", "n1:0.00,n2:2.33"),
    ({"node": "spread"}, "n1", "GPU-a1", "n2:2.33,n1:0.00")])
def test_filter_places_a_pod_by_the_policies(policies, chosen, device, scores):
    scheduler = two_nodes(**policies)
    asked = pod(gpus(1, memory=3000, cores=30))
    found = scheduler.node_filter.filter(asked, ["n1", "n2"])
    assert (found.names, dict(found.failed), found.chosen) == ([chosen], {}, chosen)
    reservation = scheduler.cache.reservations.get("uid-pod1")
    assert reservation.annotations[NVIDIA.annotations.allocated] == f"{device},NVIDIA,3000,30:;"
    assert scheduler.events == [(
        "FilteringSucceed", f"find fit node({chosen}), 0 nodes not fit, 2 nodes fit({scores})")]
    assert scheduler.fake.calls == [], "a filter writes nothing"


def full_node():
    return replica(
        cards("n1", {"slots": 1}, {}, {}, {"healthy": False}),
        pods=[holding("a", "n1", "GPU-n1-0,NVIDIA,0,0:;"), holding("b", "n1", "GPU-n1-1,NVIDIA,46000,0:;"),
              holding("c", "n1", "GPU-n1-2,NVIDIA,0,90:;")])


def test_filter_says_why_no_node_fits():
    scheduler = full_node()
    found = scheduler.node_filter.filter(pod(gpus(1, memory=3000, cores=30)), ["n1"])
    assert found.names is None and found.chosen is None
    assert found.unresolvable == {"n1": "1/4 CardInsufficientCore, 1/4 CardInsufficientMemory, 1/4 CardNotHealth, "
                                        "1/4 CardTimeSlicingExhausted"}
    assert [message for _, message in scheduler.events[:5]] == [
        "1 nodes CardInsufficientCore(n1)", "1 nodes CardInsufficientMemory(n1)", "1 nodes CardNotHealth(n1)",
        "1 nodes CardTimeSlicingExhausted(n1)", "no available node, 1 nodes do not meet"]
    assert set(scheduler.events.reasons()) == {"FilteringFailed"}
    assert "requests 1 × NVIDIA with 3000 MiB, 30 cores" in scheduler.events[5][1]
    assert len(scheduler.metrics.reasons) == 4


@pytest.mark.parametrize(("count", "taken", "text"), [
    (2, "GPU-n1-0,NVIDIA,46068,0:;", "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory"),
    (3, "", "NodeInsufficientDevice")])
def test_too_few_devices_are_a_reason_of_the_node(count, taken, text):
    scheduler = replica(cards("n1", {}, {}), pods=[holding("a", "n1", taken)])
    assert scheduler.node_filter.filter(pod(gpus(count, memory=3000, cores=0)), ["n1"]).unresolvable == {"n1": text}


def test_unknown_nodes_are_named():
    scheduler = replica()
    assert scheduler.node_filter.filter(pod(gpus()), ["n9"]).unresolvable == {"n9": "node unregistered"}
    assert scheduler.events[0] == ("FilteringFailed", "no available node, 1 nodes do not meet")


@pytest.mark.parametrize("names", [None, [], ["n1", "x"]])
def test_a_pod_that_requests_no_device_fits_every_node(names):
    scheduler = replica(cards("n1", {}))
    found = scheduler.node_filter.filter(pod(gpus(0)), names)
    assert (found.names, found.failed, found.unresolvable) == (names, {}, {}) and scheduler.events == []


@pytest.mark.parametrize("names", [None, []])
def test_a_filter_without_nodes_fails_no_node(names):
    found = replica(cards("n1", {})).node_filter.filter(pod(gpus()), names)
    assert (found.names, found.failed, found.unresolvable) == (None, {}, {})


@pytest.mark.parametrize(("priority", "nominated", "failed"), [
    (0, "", []), (100, "", []), (101, "", ["low"]), (1001, "", ["high", "low"]), (0, "high", ["high"]),
    (101, "idle", ["low", "idle"]), (1001, "gone", ["high", "low"])])
def test_kube_scheduler_looks_for_victims_only_where_pods_of_lower_priority_hold_devices(priority, nominated, failed):
    """On the node that it has nominated it must not give up: the victims there may not have ended yet."""
    scheduler = replica(
        cards("high", {}), cards("low", {}, {}), cards("idle", {"healthy": False}),
        pods=[holding("a", "high", "GPU-high-0,NVIDIA,46068,100:;", priority=1000),
              holding("b", "low", "GPU-low-0,NVIDIA,46068,100:;", priority=100),
              holding("c", "low", "GPU-low-1,NVIDIA,46068,100:;", priority=1000)])
    asked = pod(gpus(1, memory=3000), name="asked", priority=priority, nominated_node=nominated)
    found = scheduler.node_filter.filter(asked, ["high", "low", "idle", "stranger"])
    assert sorted(found.failed) == sorted(failed)
    assert sorted(found.unresolvable) == sorted({"high", "low", "idle", "stranger"} - set(failed))


def test_weights_that_cannot_be_read_are_an_error_and_an_event():
    scheduler = replica(cards("n1", {}))
    asked = pod(gpus(), annotations={"hami.io/device-scoring-weights": "slot=1"})
    with pytest.raises(MalformedInput, match="^calcScore failed invalid hami.io/device-scoring-weights annotation"):
        scheduler.node_filter.filter(asked, ["n1"])
    assert scheduler.events.reasons() == ["FilteringFailed"]


def test_a_replica_that_does_not_lead_filters_nothing():
    scheduler = replica(cards("n1", {}), leads=False)
    with pytest.raises(NodeLocked, match="does not lead yet"):
        scheduler.filter(pod(gpus()))
    assert scheduler.cache.reservations.unbound() == 0


def test_a_pod_without_uid_is_refused():
    with pytest.raises(MalformedInput, match="without uid"):
        replica(cards("n1", {})).filter(replace(pod(gpus()), ref=replace(pod().ref, uid="")))


SIMULATED = node("sim", gpu("GPU-0", memory_mib=8192, model="NVIDIA-A100"))


@pytest.mark.parametrize(("memory", "nodes", "chosen", "failed"), [
    (1024, [SIMULATED], "sim", {}), (16384, [SIMULATED], None, {"sim": "1/1 CardInsufficientMemory"}),
    (1024, [node("bare")], None, {"bare": "node unregistered"}),
    (1024, [node("broken", annotations={NVIDIA.annotations.register: "[null]"})], None,
     {"broken": "node unregistered"})])
def test_a_simulation_leaves_no_trace(memory, nodes, chosen, failed):
    scheduler = replica(leads=False)
    found = scheduler.node_filter.simulate(pod(gpus(1, memory=memory, cores=20)), nodes)
    assert (found.chosen, found.failed) == (chosen, failed)
    assert scheduler.events == [] and scheduler.fake.calls == [] and scheduler.cache.reservations.unbound() == 0
