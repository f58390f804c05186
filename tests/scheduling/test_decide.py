"""Which node a pod gets: what is remembered and skipped never changes the answer."""

import random

import numpy
import pytest
from pytest import param

from hami.codec.allocation import render_shares
from hami.model import NodePolicy
from hami.scheduling.decide import Choice, Refusal, VerdictCache, may_fit
from hami.scheduling.fit import Unfit
from hami.scheduling.index import Index
from hami.scheduling.placement import place_pod
from hami.scheduling.score import node_score
from hami.vendors.inventory import registered
from tests.builders import NVIDIA, booking, charge, cluster, gpu, gpus, node, pod_request, usage
from tests.scheduling.decisions import decide
from tests.scheduling.mirror import Mirror
from tests.scheduling.seeds import some_pod_request

BINPACK, SPREAD = NodePolicy.BINPACK, NodePolicy.SPREAD


def decided(index, asked, names=None, policy=BINPACK):
    return decide(VerdictCache(index), asked, sorted(index.nodes) if names is None else names, policy)


def shown(choice):
    """Node, shares, and the nodes that fit as the event names them."""
    fitting = ",".join(f"{name}:{score:.2f}" for name, score in choice.fitting)
    return choice.node, render_shares(choice.placement), fitting


G3 = {"n1": [usage("GPU-a0"), usage("GPU-a1", index=1)], "n2": [usage("GPU-b0", 1, 3000, 30), usage("GPU-b1", index=1)]}


@pytest.mark.parametrize("node_policy, policy, node, share, fitting", [
    param(BINPACK, "spread", "n2", "GPU-b1,NVIDIA,3000,30:;", "n1:0.00,n2:2.33", id="devices spread"),
    param(BINPACK, "binpack", "n2", "GPU-b0,NVIDIA,3000,30:;", "n1:0.00,n2:2.33", id="devices binpack"),
    param(SPREAD, "spread", "n1", "GPU-a1,NVIDIA,3000,30:;", "n2:2.33,n1:0.00", id="nodes spread"),
])
def test_a_pod_is_placed_by_node_and_device_policy(node_policy, policy, node, share, fitting):
    answer = decided(cluster(**G3), pod_request(gpus(1, 3000, 30), policy=policy), policy=node_policy)
    assert shown(answer) == (node, share, fitting)
    assert (answer.unfit, answer.candidates) == (0, 2)


SMALL = {"memory_mib": 8000, "model": "NVIDIA"}
G4 = {"node1": [usage("device1", 1, 2000, 25, **SMALL), usage("device2", **SMALL)],
      "node2": [usage("device3", **SMALL), usage("device4", 1, 6000, 75, **SMALL)]}


@pytest.mark.parametrize("node_policy, policy, node, device", [
    (BINPACK, "binpack", "node2", "device4"), (BINPACK, "spread", "node2", "device3"),
    (SPREAD, "binpack", "node1", "device1"), (SPREAD, "spread", "node1", "device2"),
])
def test_every_pair_of_policies_chooses_its_device(node_policy, policy, node, device):
    answer = decided(cluster(**G4), pod_request(gpus(1, 1000, 20), policy=policy), policy=node_policy)
    assert shown(answer)[:2] == (node, f"{device},NVIDIA,1000,20:;")
    assert sorted(answer.fitting) == [("node1", 3.0), ("node2", 8.0)]


def test_a_refusal_says_why_each_node_does_not_fit():
    index = cluster(n1=[usage("a", 10), usage("b", 1, 46000), usage("c", 1, 0, 90), usage("d", healthy=False)],
                    n2=[usage("e")])
    answer = decided(index, pod_request(gpus(2, 3000, 30)), ["n1", "n3", "n2"])
    assert isinstance(answer, Refusal)
    assert {name: str(unfit) for name, unfit in answer.unfit.items()} == {
        "n1": "1/4 CardInsufficientCore, 1/4 CardInsufficientMemory, 1/4 CardNotHealth, 1/4 CardTimeSlicingExhausted",
        "n2": "NodeInsufficientDevice"}
    assert answer.unknown == ("n3",)


G17 = ('[{"id":"GPU-0","count":10,"devmem":8192,"devcore":100,"type":"NVIDIA-A100","numa":0,"health":true,"index":0,'
       '"mode":"hami-core"}]')


@pytest.mark.parametrize("annotations, memory, outcome", [
    param({"hami.io/node-nvidia-register": G17}, 1024, "GPU-0,NVIDIA,1024,20:;", id="fits"),
    param({"hami.io/node-nvidia-register": G17}, 16384, {"n1": "1/1 CardInsufficientMemory"}, id="too much"),
    param({}, 1024, {}, id="not registered"),
])
def test_a_device_of_a_register_annotation_is_chosen_or_refused(annotations, memory, outcome):
    index = Index()
    index.set_devices("n1", "NVIDIA", registered(NVIDIA, node("n1", annotations=annotations)) or ())
    answer = decided(index, pod_request(gpus(1, memory, 20)), ["n1"])
    found = (render_shares(answer.placement) if isinstance(answer, Choice)
             else {name: str(unfit) for name, unfit in answer.unfit.items()})
    assert found == outcome


@pytest.mark.parametrize("policy", [BINPACK, SPREAD])
@pytest.mark.parametrize("nodes", [3, 40])
def test_of_equally_good_nodes_the_first_by_name(policy, nodes):
    names = [f"n{number}" for number in range(nodes)]
    index = cluster(**{name: [usage(f"GPU-{name}")] for name in reversed(names)})
    assert decided(index, pod_request(gpus()), random.Random(1).sample(names, nodes), policy).node == "n0"


def test_only_the_nodes_offered_are_considered():
    assert decided(cluster(**G3), pod_request(gpus(1, 3000, 30)), ["n1"]).node == "n1"


@pytest.mark.parametrize("names, unknown", [([], ()), (["x", "y"], ("x", "y"))])
def test_no_node_is_known(names, unknown):
    assert decided(cluster(**G3), pod_request(gpus()), names) == Refusal(pod_request(gpus()), {}, unknown)


def test_a_node_that_is_filled_is_not_taken_again():
    index = cluster(n1=[usage("a", memory_mib=1000)], n2=[usage("b", memory_mib=1000)])
    verdicts, asked = VerdictCache(index), pod_request(gpus(1, 1000))
    nodes = []
    while isinstance(answer := decide(verdicts, asked, ["n1", "n2"], BINPACK), Choice):
        nodes.append(answer.node)
        (share,) = answer.placement[0]
        index.book(booking(f"p{len(nodes)}", answer.node, charge(share.uuid, 1, share.memory_mib, share.cores)))
    assert sorted(nodes) == ["n1", "n2"]


def test_a_node_that_returns_with_other_devices_is_asked_anew():
    index = cluster(n1=[usage("a", memory_mib=100)], n2=[usage("b", memory_mib=100)])
    verdicts, asked = VerdictCache(index), pod_request(gpus(1, 1000))
    assert isinstance(decide(verdicts, asked, ["n1", "n2"], BINPACK), Refusal)
    index.remove_node("n1")
    index.set_devices("n3", "NVIDIA", (gpu("c"),))
    assert decide(verdicts, asked, ["n1", "n2", "n3"], BINPACK).node == "n3"


def exhaustive(index, asked, names, policy):
    """The result of evaluating all nodes."""
    found = {name: place_pod(index.usages(name), asked) for name in names if name in index.nodes}
    scores = {name: node_score(index.nodes[name].all_usages()) for name in found}
    fitting = [name for name in found if not isinstance(found[name], Unfit)]
    if not fitting:
        return Refusal(asked, found, tuple(name for name in names if name not in index.nodes))
    sign = -1 if policy is BINPACK else 1
    best = sorted(fitting, key=lambda name: (sign * scores[name], name))
    return Choice(best[0], found[best[0]], tuple((name, scores[name]) for name in reversed(best)),
                  len(names) - len(fitting), len(names))


def same(answer, expected):
    """The same result; among many nodes, no more are evaluated than necessary to find the best."""
    if isinstance(answer, Refusal) or isinstance(expected, Refusal) or answer.candidates <= 16:
        return answer == expected
    return ((answer.node, answer.placement) == (expected.node, expected.placement) and answer.unfit <= expected.unfit
            and answer.fitting in (expected.fitting, expected.fitting[-1:]))


@pytest.mark.parametrize("seed", range(100))
def test_what_is_remembered_and_skipped_never_changes_the_answer(seed):
    rng = random.Random(seed)
    mirror = Mirror([f"n{number}" for number in range(rng.choice((3, 12, 30)))])
    verdicts = VerdictCache(mirror.index, most_requests=3)
    requests_devices = [some_pod_request(rng, rng.choice((1, 3))) for _ in range(5)]
    for name in mirror.names:
        mirror.set_devices(rng, name, "NVIDIA")
    for _ in range(12):
        for _ in range(rng.randrange(6)):
            mirror.change(rng)
        asked, policy = rng.choice(requests_devices), rng.choice((BINPACK, SPREAD))
        names = rng.sample([*mirror.names, "unknown"], rng.randint(1, len(mirror.names) + 1))
        answer = decide(verdicts, asked, names, policy)
        assert same(answer, exhaustive(mirror.fresh(), asked, names, policy))


@pytest.mark.parametrize("seed", range(200))
def test_may_fit_never_drops_a_node_that_fits(seed):
    rng = random.Random(seed)
    mirror = Mirror([f"n{number}" for number in range(8)])
    for name in mirror.names:
        mirror.set_devices(rng, name, "NVIDIA")
    for _ in range(10):
        mirror.change(rng)
    index, asked = mirror.index, some_pod_request(rng, rng.choice((1, 4)))
    index.refresh()
    rows = numpy.array(sorted(index.names), dtype=numpy.intp)
    for row, possible in zip(rows, may_fit(index, asked, rows)):
        assert possible or isinstance(place_pod(index.usages(index.names[row]), asked), Unfit)


def test_may_fit_drops_nodes_that_cannot_fit():
    index = cluster(full=[usage("a", 10)], small=[usage("b", memory_mib=10)], busy=[usage("c", 1, 0, 90)],
                    sick=[usage("d", healthy=False)],
                    other=[usage("e", model="NVIDIA L4")], good=[usage("f")], lone=[usage("g"), usage("h", 10)])
    index.refresh()
    rows = numpy.array([index.rows[name] for name in ("full", "small", "busy", "sick", "other", "good", "lone")])
    asked = pod_request(gpus(1, 1000, 20), annotations={"nvidia.com/use-gputype": "A40"})
    assert list(may_fit(index, asked, rows)) == [False] * 5 + [True] * 2
    assert list(may_fit(index, pod_request(gpus(2, 1000)), rows)) == [False] * 7
