"""Which node a pod gets: what is remembered and skipped never changes the answer."""

import random
from dataclasses import replace

import numpy
import pytest
from hypothesis import assume, given
from hypothesis.strategies import randoms

from hami.codec.allocation import render_shares
from hami.model import Budget, NodePolicy, NodePreference, NodeRequirement, Unfit
from hami.scheduling import columns
from hami.scheduling.node_order import NodeOrder, weights
from hami.scheduling.placement import may_place, place_pod
from hami.scheduling.quota import check_quota
from hami.scheduling.refusal import Choice, Refusal, nearest_sum
from hami.scheduling.score import node_score
from hami.scheduling.usage import peak_charges, total_charge
from hami.state.verdicts import Verdicts
from testing.builders import booking, charge, cluster, gpu, gpus, pod_request, usage
from testing.cases import cases
from testing.seeds import some_budget, some_pod_request, some_preferences
from testing.stores import decide
from tests.state.mirror import Mirror

BINPACK, SPREAD = NodePolicy.BINPACK, NodePolicy.SPREAD


def decided(table, asked, names=None, policy=BINPACK):
    return decide(Verdicts(table), asked, sorted(table.nodes) if names is None else names, policy)


def shown(choice):
    """Node, shares, and the nodes that fit as the event names them."""
    fitting = ",".join(f"{name}:{score:.2f}" for name, score in choice.fitting)
    return choice.node, render_shares(choice.placement), fitting


G3 = {
    "n1": [usage("GPU-a0"), usage("GPU-a1", index=1)],
    "n2": [usage("GPU-b0", 1, 3000, 30), usage("GPU-b1", index=1)],
}


@cases(
    "node_policy, policy, node, share, fitting",
    ("devices spread", BINPACK, "spread", "n2", "GPU-b1,NVIDIA,3000,30:;", "n1:0.00,n2:2.33"),
    ("nodes spread", SPREAD, "spread", "n1", "GPU-a1,NVIDIA,3000,30:;", "n2:2.33,n1:0.00"),
)
def test_a_pod_is_placed_by_node_and_device_policy(node_policy, policy, node, share, fitting):
    answer = decided(
        cluster(**G3), pod_request(gpus(1, 3000, 30), policy=policy), policy=node_policy
    )
    assert shown(answer) == (node, share, fitting)
    assert (answer.unfit, answer.candidates) == (0, 2)


SMALL = {"memory_mib": 8000, "model": "NVIDIA"}
G4 = {
    "node1": [usage("device1", 1, 2000, 25, **SMALL), usage("device2", **SMALL)],
    "node2": [usage("device3", **SMALL), usage("device4", 1, 6000, 75, **SMALL)],
}


@cases(
    "node_policy, policy, node, device",
    (BINPACK, "binpack", "node2", "device4"),
    (BINPACK, "spread", "node2", "device3"),
    (SPREAD, "binpack", "node1", "device1"),
    (SPREAD, "spread", "node1", "device2"),
)
def test_every_pair_of_policies_chooses_its_device(node_policy, policy, node, device):
    answer = decided(
        cluster(**G4), pod_request(gpus(1, 1000, 20), policy=policy), policy=node_policy
    )
    assert shown(answer)[:2] == (node, f"{device},NVIDIA,1000,20:;")
    assert sorted(answer.fitting) == [("node1", 3.0), ("node2", 8.0)]


def test_a_refusal_says_why_each_node_does_not_fit():
    table = cluster(
        n1=[usage("a", 10), usage("b", 1, 46000), usage("c", 1, 0, 90), usage("d", healthy=False)],
        n2=[usage("e")],
    )
    answer = decided(table, pod_request(gpus(2, 3000, 30)), ["n1", "n3", "n2"])
    assert isinstance(answer, Refusal)
    assert {name: str(unfit) for name, unfit in answer.unfit.items()} == {
        "n1": "1/4 CardInsufficientCore, 1/4 CardInsufficientMemory, 1/4 CardNotHealth, 1/4 CardTimeSlicingExhausted",
        "n2": "NodeInsufficientDevice",
    }
    assert answer.unknown == ("n3",)


@pytest.mark.parametrize("policy", [BINPACK, SPREAD])
@pytest.mark.parametrize("nodes", [3, 40])
def test_of_equally_good_nodes_the_first_by_name(policy, nodes):
    names = [f"n{number}" for number in range(nodes)]
    table = cluster(**{name: [usage(f"GPU-{name}")] for name in reversed(names)})
    assert (
        decided(table, pod_request(gpus()), random.Random(1).sample(names, nodes), policy).node
        == "n0"
    )


def test_only_the_nodes_offered_are_considered():
    assert decided(cluster(**G3), pod_request(gpus(1, 3000, 30)), ["n1"]).node == "n1"


@pytest.mark.parametrize("names, unknown", [([], ()), (["x", "y"], ("x", "y"))])
def test_no_node_is_known(names, unknown):
    assert decided(cluster(**G3), pod_request(gpus()), names) == Refusal(
        pod_request(gpus()), (), unknown
    )


def test_a_node_that_is_filled_is_not_taken_again():
    table = cluster(n1=[usage("a", memory_mib=1000)], n2=[usage("b", memory_mib=1000)])
    verdicts, asked = Verdicts(table), pod_request(gpus(1, 1000))
    nodes = []
    while isinstance(answer := decide(verdicts, asked, ["n1", "n2"], BINPACK), Choice):
        nodes.append(answer.node)
        (share,) = answer.placement[0]
        table.bookings.put(
            booking(
                f"p{len(nodes)}", answer.node, charge(share.uuid, 1, share.memory_mib, share.cores)
            )
        )
    assert sorted(nodes) == ["n1", "n2"]


def test_a_node_that_returns_with_other_devices_is_asked_anew():
    table = cluster(n1=[usage("a", memory_mib=100)], n2=[usage("b", memory_mib=100)])
    verdicts, asked = Verdicts(table), pod_request(gpus(1, 1000))
    assert isinstance(decide(verdicts, asked, ["n1", "n2"], BINPACK), Refusal)
    table.remove_node("n1")
    table.set_devices("n3", "NVIDIA", (gpu("c"),))
    assert decide(verdicts, asked, ["n1", "n2", "n3"], BINPACK).node == "n3"


def exhaustive(table, asked, names, policy, preferences=()):
    """The result of evaluating all nodes."""
    found = {name: place_pod(table.usages(name), asked) for name in names if name in table.nodes}
    scores = {
        name: node_score([usage for own in table.usages(name).values() for usage in own])
        for name in found
    }
    fitting = [name for name in found if not isinstance(found[name], Unfit)]
    if not fitting:
        return found, {name for name in names if name not in table.nodes}
    sign = -1 if policy is BINPACK else 1
    preferred = dict(zip(fitting, weights(preferences, fitting, table.labels)))
    best = sorted(fitting, key=lambda name: (-preferred[name], sign * scores[name], name))
    return Choice(
        best[0],
        found[best[0]],
        tuple((name, scores[name]) for name in reversed(best)),
        len(names) - len(fitting),
        len(names),
    )


def check_same(answer, expected, wanted=1):
    """The same result; among many nodes, no more are evaluated than necessary to find the best."""
    if isinstance(answer, Refusal):
        assert (answer.unfit, set(answer.unknown)) == expected
    elif answer.candidates <= 16:
        assert answer == expected
    else:
        assert (answer.node, answer.placement) == (expected.node, expected.placement)
        assert answer.unfit <= expected.unfit
        assert answer.fitting in (expected.fitting, expected.fitting[-wanted:])


@given(rng=randoms(use_true_random=True))
def test_what_is_remembered_and_skipped_never_changes_the_answer(rng):
    mirror = Mirror([f"n{number}" for number in range(rng.choice((3, 12, 30)))])
    verdicts = Verdicts(mirror.table, max_requests=3)
    requests = [some_pod_request(rng, rng.choice((1, 3))) for _ in range(5)]
    for name in mirror.names:
        mirror.set_devices(rng, name, "NVIDIA")
    for _ in range(12):
        for _ in range(rng.randrange(6)):
            mirror.change(rng)
        asked, policy = rng.choice(requests), rng.choice((BINPACK, SPREAD))
        names = rng.sample([*mirror.names, "unknown"], rng.randint(1, len(mirror.names) + 1))
        preferences, wanted = some_preferences(rng), rng.choice((1, 20))
        check_same(
            decide(verdicts, asked, names, policy, preferences=preferences, wanted=wanted),
            exhaustive(mirror.fresh(), asked, names, policy, preferences),
            wanted,
        )


@given(rng=randoms(use_true_random=True))
def test_what_excludes_nodes_excludes_only_those_that_do_not_fit(rng):
    """Nodes that they do not exclude mostly fit, so what else could be excluded is little."""
    mirror = Mirror.filled(rng, 8)
    for _ in range(10):
        mirror.change(rng)
    table, asked = mirror.table, some_pod_request(rng, rng.choice((1, 4)))
    table.refresh()
    rows = numpy.array(sorted(table.names), dtype=numpy.intp)
    for device_columns, of in (
        (table.columns.of(rows), range(len(rows))),
        (table.columns.all(), rows),
    ):
        possible = numpy.ones(device_columns.nodes, dtype=bool)
        for request in asked.distinct_requests:
            possible &= columns.may_serve(
                device_columns, request, asked.fit_context(request.vendor)
            )
        for place, row in zip(of, rows):
            usages = table.usages(table.names[row])
            if not possible[place] or not may_place(usages, asked):
                assert isinstance(place_pod(usages, asked), Unfit)


@pytest.mark.parametrize("by_claims, chosen", [(True, "claims"), (False, "plugin")])
def test_a_pod_gets_devices_of_its_allocation_mode(by_claims, chosen):
    """Also when both kinds of pods ask for the same, and when a node changes its allocation mode."""
    table = cluster(claims=[usage("a", by_claims=True)], plugin=[usage("b")])
    verdicts, asked = Verdicts(table), pod_request(gpus(1, 1000))
    decide(verdicts, replace(asked, by_claims=not by_claims), ["claims", "plugin"], BINPACK)
    asked = replace(asked, by_claims=by_claims)
    assert decide(verdicts, asked, ["claims", "plugin"], BINPACK).node == chosen
    table.set_devices(chosen, "NVIDIA", (gpu("c", by_claims=not by_claims),))
    refusal = decide(verdicts, asked, ["claims", "plugin"], BINPACK)
    assert refusal.texts == dict.fromkeys(("claims", "plugin"), "1/1 CardOtherAllocationMode")


def test_columns_exclude_nodes_that_cannot_fit():
    table = cluster(
        full=[usage("a", 10)],
        small=[usage("b", memory_mib=10)],
        busy=[usage("c", 1, 0, 90)],
        sick=[usage("d", healthy=False)],
        other=[usage("e", model="NVIDIA L4")],
        good=[usage("f")],
        lone=[usage("g"), usage("h", 10)],
    )
    table.refresh()
    rows = numpy.array(
        [table.rows[name] for name in ("full", "small", "busy", "sick", "other", "good", "lone")]
    )
    asked = pod_request(gpus(1, 1000, 20), annotations={"nvidia.com/use-gputype": "A40"})
    two = pod_request(gpus(2, 1000))
    for request, expected in ((asked, [False] * 5 + [True] * 2), (two, [False] * 7)):
        assert list(may_serve(table, request, rows)) == expected
        assert [may_place(table.usages(table.names[row]), request) for row in rows] == expected


def may_serve(table, asked, rows):
    (request,) = asked.distinct_requests
    return columns.may_serve(table.columns.of(rows), request, asked.fit_context("NVIDIA"))


@given(rng=randoms(use_true_random=True))
def test_the_closest_nodes_lack_the_least(rng):
    """The order is that of the devices as they are described: the columns only find it sooner."""
    mirror = Mirror.filled(rng, 6)
    asked, verdicts = some_pod_request(rng, 1), Verdicts(mirror.table)
    verdicts.closest(
        verdicts.refuse(asked, mirror.names, verdicts.rows(mirror.names))
    )  # fills what is remembered
    for _ in range(3):
        mirror.change(rng)
    refusal = verdicts.refuse(asked, mirror.names, verdicts.rows(mirror.names))
    assert (
        verdicts.closest(refusal)
        == verdicts.closest(refusal)
        == Verdicts(mirror.fresh()).closest(refusal)
    )
    distances = []
    for refused in verdicts.closest(refusal):
        distances.append(
            nearest_sum((device.distance for device in refused.devices), refused.request.count)
        )
    assert distances == sorted(distances)


def sized(*devices):
    """Devices of these sizes in MiB, with what is used of each."""
    return [
        usage(f"g{index}", 1, used, index=index, memory_mib=size)
        for index, (size, used) in enumerate(devices)
    ]


@pytest.mark.parametrize("policy, fuller", [(BINPACK, "other"), (SPREAD, "preferred")])
def test_a_preferred_node_comes_before_any_score(policy, fuller):
    """A node of which far more is booked than it has is fuller than full."""
    nodes = {"preferred": sized((40_000, 0)), "other": sized((40_000, 0))}
    nodes[fuller] = sized((40_000, 0), (40, 20_000_000))
    asked = pod_request(gpus(1, 1_000, 0))
    wish = (NodePreference(1, (NodeRequirement("", "In", frozenset({"preferred"})),)),)
    choice = decide(Verdicts(cluster(**nodes)), asked, sorted(nodes), policy, preferences=wish)
    assert choice.node == "preferred"


# the nodes of each row are in the order in which they are near, and their names are not
@cases(
    "asked, nodes",
    (
        "more than a device has",
        pod_request(gpus(1, 120_000, 0)),
        {"c": sized((81_920, 0)), "b": sized((35_360, 0)), "a": sized((20_000, 0))},
    ),
    (
        "devices of which more is booked than they have",
        pod_request(gpus(1, 80_000, 0)),
        {"c": sized((81_920, 81_920)), "b": sized((81_920, 100_000)), "a": sized((40_000, 60_000))},
    ),
    (
        "half of the small one is not half as much",
        pod_request(gpus(1, 60_000, 0)),
        {"b": sized((81_920, 30_000)), "a": sized((20_000, 8_000))},
    ),
    (
        "several devices together",
        pod_request(gpus(2, 10_000, 0)),
        {
            "c": sized((20_000, 0), (20_000, 19_000)),
            "b": sized((20_000, 16_000), (20_000, 16_000)),
            "a": sized((20_000, 20_000), (20_000, 20_000)),
        },
    ),
    (
        "a slot is all of a slot",
        pod_request(gpus(1, 20_000, 0)),
        {"b": sized((20_000, 1)), "a": [usage("g", 10)]},
    ),
    (
        "a device without free cores",
        pod_request(gpus(1, 20_000, 0)),
        {"b": sized((20_000, 1)), "a": [usage("g", 1, 0, 100)]},
    ),
    (
        "parts of what is requested, whatever the unit",
        pod_request(gpus(1, 10_000, 50)),
        {
            "c": [usage("g", 1, 0, 60)],
            "b": [usage("g", 1, 40_000)],
            "a": [usage("g", 1, 40_000, 60)],
        },
    ),
    (
        "amounts before other rules",
        pod_request(gpus(1, 10_000, 0)),
        {"b": sized((10_000, 900_000)), "a": [usage("g", healthy=False)]},
    ),
    (
        "the same of several devices",
        pod_request(gpus(2, 10_000, 0)),
        {
            "c": sized((10_000, 5_000), (10_000, 5_000)),
            "b": [usage("g"), usage("h", index=1, healthy=False)],
            "a": [usage("g")],
        },
    ),
    (
        "a device that is named",
        pod_request(gpus(1, 40_000, 0), annotations={"nvidia.com/use-gpuuuid": "wanted"}),
        {"b": [usage("wanted", 1, 30_000)], "a": [usage("other", 1, 10_000)]},
    ),
)
def test_the_order_of_the_nearest_nodes(asked, nodes):
    table = cluster(**nodes)
    verdicts = Verdicts(table)
    refusal = decide(verdicts, asked, sorted(nodes), BINPACK)
    for count in (None, 1, 2, 3):
        assert [node.node for node in verdicts.closest(refusal, count)] == list(nodes)[:count]


def test_a_device_that_is_named_is_found_among_many_nodes():
    """Columns do not tell uuids, so they do not know which nodes are near."""
    table = cluster(
        **{f"n{number:03}": [usage(f"g{number}", 1, 100)] for number in range(200)},
        z=[usage("wanted", 1, 30_000)],
    )
    verdicts = Verdicts(table)
    asked = pod_request(gpus(1, 40_000, 0), annotations={"nvidia.com/use-gpuuuid": "wanted"})
    refusal = decide(verdicts, asked, sorted(table.nodes), BINPACK)
    assert [node.node for node in verdicts.closest(refusal, 3)] == ["z", "n000", "n001"]


def test_equally_near_nodes_are_in_the_order_of_their_names():
    table = cluster(**{name: [usage("g", 1, 40_000)] for name in ("c", "a", "d", "b")})
    verdicts = Verdicts(table)
    refusal = decide(verdicts, pod_request(gpus(1, 20_000)), ["d", "c", "b", "a"], BINPACK)
    assert [node.node for node in verdicts.closest(refusal)] == ["a", "b", "c", "d"]


def test_a_thousand_refused_nodes_are_explained_without_looking_at_each():
    """The reasons are those that an exact evaluation gives."""
    table = cluster(
        **{
            f"n{number}": [usage("a", number % 3, 10 * number), usage("b", healthy=number % 5 > 0)]
            for number in range(1000)
        }
    )
    asked = pod_request(gpus(2, 46068))
    verdicts = Verdicts(table)
    refusal = decide(verdicts, asked, sorted(table.nodes), BINPACK)
    assert not any(entry.usages for entry in table.nodes.values()), "no node was evaluated"
    assert refusal.unfit == {name: place_pod(table.usages(name), asked) for name in table.nodes}


@given(rng=randoms(use_true_random=True))
def test_a_quota_that_is_no_part_of_the_request_has_the_same_effect(rng):
    """Bounds decide first, and each placement where they do not."""
    mirror = Mirror.filled(rng, 6)
    for _ in range(6):
        mirror.change(rng)
    asked, budgets = some_pod_request(rng, rng.choice((1, 3))), {"NVIDIA": some_budget(rng)}
    assume(not budgets["NVIDIA"].is_unlimited)
    verdicts, quota = Verdicts(mirror.table), check_quota(asked, budgets, mirror.table.sizes())
    rows = verdicts.rows(mirror.names)
    choice = verdicts.choose(asked, rows, NodeOrder(BINPACK), quota)
    exact = {
        name: place_pod(mirror.table.usages(name), asked, budgets) for name in mirror.table.nodes
    }
    fitting = {name for name, verdict in exact.items() if not isinstance(verdict, Unfit)}
    if choice is None:
        assert not fitting
        refusal = verdicts.refuse(asked, mirror.names, rows, quota)
        assert set(refusal.unfit) == set(mirror.table.nodes)
    else:
        charges = peak_charges(asked.kinds, choice.placement)
        assert choice.node in fitting
        assert budgets["NVIDIA"].covers(*total_charge(charges))


def test_a_pod_that_its_quota_refuses_again_and_again_asks_no_node():
    table = cluster(**{f"n{number}": [usage("a")] for number in range(100)})
    verdicts, asked, names = Verdicts(table), pod_request(gpus(1, 9000)), sorted(table.nodes)
    for left in range(100):
        quota = check_quota(asked, {"NVIDIA": Budget(left)}, table.sizes())
        assert verdicts.choose(asked, verdicts.rows(names), NodeOrder(BINPACK), quota) is None
        assert {
            str(unfit)
            for unfit in verdicts.refuse(asked, names, verdicts.rows(names), quota).unfit.values()
        } == {"1/1 ResourceQuotaNotFit"}
    assert not any(row.usages for row in table.nodes.values()), "no node was evaluated"
    assert verdicts._of.cache_info().misses == 1
