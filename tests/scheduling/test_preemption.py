"""Whom a plan evicts: the order of plans and victims, and that nobody is evicted who could be spared."""

import itertools
import random
from dataclasses import replace

import pytest

from hami.scheduling.preemption import (
    MAX_EQUAL,
    PRIORITY_OFFSET,
    EvictionUnit,
    PreemptionNode,
    PreemptionPlan,
    best_plan,
    plan_node,
)
from testing.cases import cases

ENOUGH = 10_000


def unit(uid, priority=100, started=0, budgets=()):
    """A pod that may be evicted."""
    return EvictionUnit(
        uids=(uid,), priorities=(priority,), started=started, budgets=(tuple(budgets),)
    )


def gang(*uids, priorities=None, started=0):
    """Pods that are evicted together."""
    return EvictionUnit(uids=uids, priorities=priorities or (100,) * len(uids), started=started)


def needs(*groups):
    """The pod fits once all pods of one of these groups have ended: ``needs("ab", "c")``."""
    return lambda ended: any(ended >= set(group) for group in groups)


def on(name, fits, *units, awaited=()):
    return PreemptionNode(name, units, fits, awaited)


def best(*nodes, allowed=None, lowest=100, max_trials=ENOUGH, **options):
    return best_plan(nodes, allowed or {}, max_trials=max_trials, lowest=lowest, **options)


A, B, C = unit("a", started=1), unit("b", started=2), unit("c", 500, started=3)
D, E = unit("d", started=4), unit("e", started=5)
BUDGET = {"default/budget": 0}


def protected(*units):
    return [
        EvictionUnit(
            uids=one.uids,
            priorities=one.priorities,
            started=one.started,
            budgets=(("default/budget",),),
        )
        for one in units
    ]


@cases(
    "nodes, allowed, node, victims",
    (
        "E1: one pod instead of two, the younger one",
        [on("n0", needs("ab", "c"), A, B, C), on("n1", needs("d", "e"), D, E)],
        {},
        "n1",
        {"e"},
    ),
    (
        "E2: two pods instead of one that a budget protects",
        [on("n0", needs("ab", "c"), A, B, C), on("n1", needs("d", "e"), *protected(D, E))],
        BUDGET,
        "n0",
        {"a", "b"},
    ),
    (
        "E3: the lower of the highest priorities",
        [on("n0", needs("abc"), A, B, C), on("n1", needs("de"), D, E)],
        {},
        "n1",
        {"d", "e"},
    ),
    (
        "the highest priority counts before the number of pods",
        [on("n0", needs("ab"), A, B), on("n1", needs("c"), C)],
        {},
        "n0",
        {"a", "b"},
    ),
    (
        "the sum of priorities counts before the number of pods",
        [
            on("n0", needs("ab"), unit("a", 500), unit("b", 100)),
            on("n1", needs("cd"), unit("c", 500), unit("d", 400)),
        ],
        {},
        "n0",
        {"a", "b"},
    ),
    (
        "of negative priorities, too, more pods cost more",
        [on("n0", needs("ab"), unit("a", -5), unit("b", -5)), on("n1", needs("c"), unit("c", -5))],
        {},
        "n1",
        {"c"},
    ),
    (
        "the pod that was started last",
        [on("n0", needs("a"), unit("a", 200, 7)), on("n1", needs("b"), unit("b", 200, 9))],
        {},
        "n1",
        {"b"},
    ),
    (
        "among equals the first node by name",
        [on("n1", needs("b"), unit("b", 200)), on("n0", needs("a"), unit("a", 200))],
        {},
        "n0",
        {"a"},
    ),
)
def test_the_plan_of_the_lowest_cost_is_best(nodes, allowed, node, victims):
    plan = best(*nodes, allowed=allowed, lowest=-5)
    assert (plan.node, set(plan.uids), plan.violations) == (node, victims, 0)


def test_no_plan_if_the_pod_does_not_fit_without_all_candidates():
    assert best(on("n0", needs("ab"), unit("a"))) is None
    assert best() is None


def test_pods_that_end_anyway_make_a_plan_without_victims():
    plan = best(
        on("n1", lambda ended: True, unit("b"), awaited=("z",)), on("n0", needs("a"), unit("a"))
    )
    assert plan == PreemptionPlan("n1", (), 0, ("z",))


def test_a_budget_that_allows_one_eviction_is_violated_by_the_second():
    both = protected(A, B)
    assert best(on("n0", needs("ab"), *both), allowed={"default/budget": 1}).violations == 1
    assert best(on("n0", needs("ab"), *both), allowed={"default/budget": 2}).violations == 0


def test_a_pod_is_not_counted_twice_for_two_exhausted_budgets():
    one = unit("a", budgets=("default/x", "default/y"))
    assert best(on("n0", needs("a"), one), allowed={"default/x": 0, "default/y": 0}).violations == 1


def test_violations_are_avoided_on_a_node_even_at_higher_priority():
    (a,), c = protected(A), unit("c", 900)
    assert best(on("n0", needs("a", "c"), a, c), allowed=BUDGET).uids == ("c",)


def test_strict_never_violates_a_budget():
    (a,), c = protected(A), unit("c", 900)
    assert best(on("n0", needs("a"), a, c), allowed=BUDGET, strict=True) is None
    assert best(on("n0", needs("a", "c"), a, c), allowed=BUDGET, strict=True).uids == ("c",)
    a, b = protected(A, B)
    assert best(on("n0", needs("ab"), a, b), allowed={"default/budget": 1}, strict=True) is None


def test_who_was_needed_at_first_is_spared_in_a_second_pass():
    """The decision is not monotone: with c away, a is not needed any more."""
    a, b, c = unit("a", 300), unit("b", 200), unit("c", 100)

    def fits(ended):
        return ended in ({"a", "b", "c"}, {"a", "b"}, {"b"})

    assert plan_node(on("n0", fits, a, b, c), {}).uids == ("b",)


def test_a_gang_is_evicted_as_a_whole_or_spared():
    both = gang("a", "b", priorities=(100, 300))
    assert set(best(on("n0", needs("a"), both)).uids) == {"a", "b"}
    assert best(on("n0", needs("a", "c"), both, unit("c", 300))).uids == ("c",)
    assert both.priority == 300


def one_of(gang, uid, priority=100, started=0):
    """A pod of a gang whose pods are evicted one by one."""
    return EvictionUnit(uids=(uid,), priorities=(priority,), started=started, gang=gang)


def all_of(text):
    """The units of gangs: ``"a1 a2 b1"`` are two pods of the gang a and one of b, the later the younger."""
    return [
        one_of(uid[0], uid, started=started) for started, uid in enumerate(text.split(), start=1)
    ]


@cases(
    "units, need, surplus, victims",
    ("of the gang that has one more than it needs", all_of("a1 b1"), 1, {"a": 1, "b": 0}, {"a1"}),
    ("the same, started later", all_of("b1 a1"), 1, {"a": 1, "b": 0}, {"a1"}),
    (
        "one of each rather than two of one",
        all_of("a1 a2 b1 b2"),
        2,
        {"a": 1, "b": 1},
        "one of each",
    ),
    ("both of one, none more of the other", all_of("a1 a2 b1 b2"), 3, {"a": 1, "b": 0}, "one gang"),
    ("both of one rather than one of each", all_of("a1 b1 b2"), 2, {"a": 0, "b": 0}, {"b1", "b2"}),
    (
        "a pod without a gang, if it is needed",
        [*all_of("a1"), unit("x", started=9)],
        1,
        {"a": 0},
        {"x"},
    ),
    ("not so, if it is not needed", [*all_of("a1"), unit("x", started=9)], 1, {"a": 1}, {"a1"}),
    ("the lower priority comes first", [one_of("a", "a1", 50), unit("x", 60)], 1, {"a": 0}, {"a1"}),
    ("of a gang that lacks pods anyway, the youngest", all_of("a1 a2"), 1, {}, {"a2"}),
)
def test_pods_that_gangs_do_not_need_are_evicted_first_and_then_the_fewest(
    units, need, surplus, victims
):
    def fits(ended):
        return len(ended) >= need

    expected = {
        "one of each": lambda uids: {uid[0] for uid in uids} == {"a", "b"} and len(uids) == 2,
        "one gang": lambda uids: {"b1", "b2"} < uids and len(uids) == 3,
    }
    searched = best(on("n0", fits, *units), surplus=surplus, lowest=50)
    spared = plan_node(on("n0", fits, *units), {}, surplus)
    for plan in (searched, spared):
        uids = set(plan.uids)
        assert expected[victims](uids) if isinstance(victims, str) else uids == victims


def test_of_two_nodes_the_one_is_chosen_where_no_gang_is_broken():
    plan = best(
        on("n0", needs("b"), one_of("b", "b", started=9)),
        on("n1", needs("a"), one_of("a", "a", started=1)),
        surplus={"a": 1, "b": 0},
    )
    assert (plan.uids, plan.broken, plan.surplus) == (("a",), 0, 1)
    fewest = best(
        on("n0", needs("xy"), unit("x"), unit("y")),
        on("n1", needs("b"), one_of("b", "b")),
        surplus={"b": 0},
    )
    assert fewest.node == "n0", "two pods rather than a gang"


def test_cost_counts_each_pod_of_a_gang():
    (violations, highest, _, total, pods, *_) = PreemptionPlan(
        "n0", (gang("a", "b", priorities=(1, 2)),)
    ).cost
    assert (violations, highest, total, pods) == (0, 2, 3 + 2 * PRIORITY_OFFSET, 2)


@pytest.mark.parametrize("max_trials", range(1, 40))
def test_a_search_that_ends_early_has_a_valid_plan(max_trials):
    asked = []

    def fits(ended):
        asked.append(ended)
        return ended >= {"a", "b"} or ended >= {"c"}

    plan = best(
        *(
            on(f"n{number}", fits, unit("a", 100), unit("b", 100), unit("c", 900))
            for number in range(8)
        ),
        max_trials=max_trials,
    )
    assert plan is not None
    assert fits(frozenset(plan.uids))
    assert (
        len(asked) - 1 <= max_trials + 7
    )  # the node that is being planned for is planned to the end


def test_one_pod_of_the_lowest_priority_ends_the_search():
    def never(ended):
        raise AssertionError("the second node is asked")

    assert best(on("n0", needs("a"), unit("a", 100)), on("n1", never, unit("b", 100))).node == "n0"


def losing(losses):
    """Returns a loss: the sum of *losses* by uid."""
    return lambda ended: sum(losses[uid] for uid in ended)


@cases(
    "nodes, node",
    ("least loss", [("n0", "a", 5.0, 7), ("n1", "b", 1.0, 7), ("n2", "c", 3.0, 7)], "n1"),
    ("equal losses: by name", [("n1", "a", 1.0, 7), ("n0", "b", 1.0, 7)], "n0"),
    ("the younger victim comes first", [("n0", "a", 5.0, 8), ("n1", "b", 1.0, 7)], "n0"),
)
def test_of_equal_plans_that_of_the_least_loss_is_best(nodes, node):
    """Each node has one candidate: its name, the uid, the loss without it, and when it was started."""
    offered = []
    for name, uid, loss, started in nodes:
        candidate = unit(uid, started=started)
        offered.append(replace(on(name, needs(uid), candidate), loss=losing({uid: loss})))
    assert best(*offered).node == node


def test_a_plan_that_is_found_later_counts_if_it_is_equal():
    """The first plan for n1 evicts two pods: that one is enough is known only after a search."""
    loss = losing({"a": 9.0, "b": 1.0, "c": 1.0, "d": 1.0})
    candidates = unit("b", 200), unit("c", 200), unit("d", 200)
    n0 = replace(on("n0", needs("a"), unit("a", 200)), loss=loss)
    n1 = replace(on("n1", needs("b", "cd"), *candidates), loss=loss)
    assert best(n0, n1, lowest=100).uids == ("b",)


def test_only_so_many_equal_nodes_are_compared():
    asked = []

    def fits(ended):
        asked.append(ended)
        return bool(ended)

    offered = []
    for number in range(100):
        uid = f"p{number:02}"
        offered.append(replace(on(f"n{number:02}", fits, unit(uid)), loss=losing({uid: -number})))
    assert best(*offered).node == f"n{MAX_EQUAL - 1:02}"
    assert len({uid for ended in asked for uid in ended}) == MAX_EQUAL


# against an exhaustive search


def some_node(rng, name):
    """A node with at most six candidates on two cards, where the pod needs memory of one card. In one case of four it
    takes the fullest card that has enough, and then needs a second part of the other card."""
    units, cards = [], {}
    for number in range(rng.randint(1, 6)):
        uid = f"{name}-{number}"
        budgets = rng.choice(((), (), ("ns/x",), ("ns/y",), ("ns/x", "ns/y")))
        if rng.random() < 0.2:
            uids, priorities = (
                (uid, f"{uid}b"),
                (rng.choice((-10, 0, 100, 500)), rng.choice((0, 100))),
            )
            units.append(
                EvictionUnit(
                    uids=uids,
                    priorities=priorities,
                    started=rng.randrange(9),
                    budgets=(budgets, ()),
                )
            )
        else:
            uids = (uid,)
            units.append(unit(uid, rng.choice((-10, 0, 100, 100, 500)), rng.randrange(9), budgets))
        for one in uids:
            cards[one] = (rng.randrange(2), rng.choice((10, 20, 40)))
    asked, second = rng.choice((20, 40, 60, 80)), rng.choice((0, 0, 0, 20))

    def fits(ended):
        free = [80, 80]
        for uid, (card, memory) in cards.items():
            if uid not in ended:
                free[card] -= memory
        enough = sorted((memory, card) for card, memory in enumerate(free) if memory >= asked)
        return bool(enough) and (not second or free[1 - enough[0][1]] >= second)

    return PreemptionNode(name, tuple(units), fits)


def cheapest(nodes, allowed, strict):
    """The lowest cost of all combinations of candidates without which the pod fits."""
    plans = []
    for node in nodes:
        for size in range(1, len(node.candidates) + 1):
            for victims in itertools.combinations(node.candidates, size):
                if node.fits(frozenset(uid for victim in victims for uid in victim.uids)):
                    plans.append(plan_of(node.name, victims, allowed))
    return min((plan.cost for plan in plans if not (strict and plan.violations)), default=None)


def plan_of(name, victims, allowed):
    ordered, left, violations = (
        sorted(victims, key=lambda victim: victim.importance),
        dict(allowed),
        0,
    )
    for victim in ordered:
        for budgets in victim.budgets or ((),) * len(victim.uids):
            violations += any(left[budget] <= 0 for budget in budgets)
            left |= {budget: left[budget] - 1 for budget in budgets}
    return PreemptionPlan(name, tuple(ordered), violations)


@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_no_other_victims_cost_less(first):
    for seed in range(first, first + 100):
        rng = random.Random(seed)
        nodes = [some_node(rng, f"n{number}") for number in range(rng.randint(1, 4))]
        nodes = [node for node in nodes if not node.fits(frozenset())]
        allowed, strict = {"ns/x": rng.randrange(3), "ns/y": rng.randrange(2)}, rng.random() < 0.3
        lowest = min((one.priority for node in nodes for one in node.candidates), default=0)
        plan, least = (
            best(*nodes, allowed=allowed, lowest=lowest, strict=strict),
            cheapest(nodes, allowed, strict),
        )
        assert (plan and plan.cost[:4]) == (least and least[:4]), seed
        if plan is not None:
            node = next(node for node in nodes if node.name == plan.node)
            assert node.fits(frozenset(plan.uids)), seed
            assert plan == plan_of(plan.node, plan.victims, allowed), seed


@pytest.mark.parametrize("seed", range(300))
def test_no_victim_of_a_node_can_be_spared(seed):
    node = some_node(random.Random(seed), "n0")
    plan = plan_node(node, {"ns/x": 1, "ns/y": 0})
    for victim in plan.victims if plan is not None else ():
        assert not node.fits(frozenset(plan.uids) - set(victim.uids))
