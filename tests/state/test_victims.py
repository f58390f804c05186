"""Who may be evicted for a pod that waits, and whose end helps it."""

import random
from dataclasses import replace
from datetime import timedelta

import pytest

from hami.codec.times import render_time
from hami.model import DisruptionBudget, LabelRequirement, MigProfile, Partition, PodGroup
from hami.scheduling.preemption import PreemptionPlan
from hami.scheduling.usual_pods import UsualPod
from hami.state import dry_run
from hami.state.rooms import Usual
from hami.state.store import Store
from hami.state.victims import (
    MAX_BUDGETS,
    OVERDUE_S,
    SOON_S,
    PreemptionRules,
    plan_further,
    plan_preemption,
)
from hami.state.view import Policies
from hami.vendors.spec import Catalog
from testing.builders import NVIDIA, container, gpu, gpus, node, pod, quota
from testing.cases import cases
from testing.replicas import NOON, Clock
from testing.stores import SmallStore
from tests.vendors.rows_ascend import b910

NOW = int(NOON.timestamp())
RULES = PreemptionRules(now=NOW)
MIB = 8000


def runs(name, uuid="GPU-0", memory=MIB, on="n1", priority=10, **fields):
    """A bound pod with a part of a card."""
    annotations = {
        "hami.io/vgpu-node": on,
        "hami.io/vgpu-time": "1",
        "hami.io/bind-phase": "success",
        NVIDIA.annotations.allocated: f"{uuid},NVIDIA,{memory},0:;",
    }
    return pod(
        gpus(1, memory=memory, cores=0),
        name=name,
        node_name=on,
        priority=priority,
        annotations=annotations,
        **{"started": "2026-08-21T10:00:00Z", "resource_version": "50"} | fields,
    )


def waits(name="p", memory=MIB, count=1, priority=100, **fields):
    return pod(gpus(count, memory=memory, cores=0), name=name, priority=priority, **fields)


def store(*pods, nodes=(("n1", ("GPU-0",)),), **options):
    cache = SmallStore(
        *(
            node(
                name, *(gpu(uuid, memory_mib=MIB, index=index) for index, uuid in enumerate(uuids))
            )
            for name, uuids in nodes
        ),
        **options,
    )
    for one in pods:
        cache.pods.upsert(one)
    return cache


def planned(cache, waiting=None, rules=RULES, names=None, **options):
    view = cache.view()
    return plan_preemption(view, waiting or waits(), names or sorted(view.nodes), rules, **options)


def victims(*arguments, **options):
    """The names of the victims; ``None`` without a plan."""
    plan = planned(*arguments, **options)
    return None if plan is None else sorted(uid.removeprefix("uid-") for uid in plan.uids)


# who


@cases(
    "fields, waiting",
    ("equal priority", {"priority": 100}, {}),
    ("higher priority", {"priority": 101}, {}),
    ("a DaemonSet's or mirror pod", {"is_node_agent": True}, {}),
    ("protected by its label", {"labels": {"hami.io/preemptible": "false"}}, {}),
    ("of the same controller", {"controller": "owner"}, {"controller": "owner"}),
    ("should have ended long ago", {"deletion": "2026-08-21T11:00:00Z"}, {}),
)
def test_who_is_never_evicted(fields, waiting):
    cache = store(runs("v", **fields))
    assert victims(cache, waits(**waiting)) is None


@cases(
    "fields, waiting",
    ("lower priority", {"priority": 99}, {}),
    ("negative priorities", {"priority": -10}, {"priority": -9}),
    ("another value of the label", {"labels": {"hami.io/preemptible": "true"}}, {}),
    ("of another controller", {"controller": "owner"}, {"controller": "other"}),
    ("both without a controller", {"controller": ""}, {"controller": ""}),
    ("not started yet", {"started": ""}, {}),
)
def test_who_is_evicted(fields, waiting):
    assert victims(store(runs("v", **fields)), waits(**waiting)) == ["v"]


@cases(
    "started, expected",
    ("2026-08-21T11:50:01Z", None),
    ("2026-08-21T11:50:00Z", ["v"]),
    ("2026-08-21T11:00:00Z", ["v"]),
    ("", None),
)
def test_pods_that_have_run_for_too_short_a_time_are_spared(started, expected):
    assert (
        victims(store(runs("v", started=started)), rules=replace(RULES, min_runtime_s=600))
        == expected
    )


def test_a_pod_that_has_only_a_reservation_is_not_evicted():
    cache = store()
    assert cache.place(waits("x", priority=0)) == "n1"
    assert victims(cache) is None


def test_only_the_nodes_that_are_offered_count():
    cache = store(
        runs("a"),
        runs("b", "GPU-1", on="n2", priority=50),
        nodes=(("n1", ("GPU-0",)), ("n2", ("GPU-1",))),
    )
    assert (victims(cache), victims(cache, names=["n2"])) == (["a"], ["b"])


@cases("policy, expected", ("least-waste", ["b"]), ("binpack", ["a"]), ("spread", ["a"]))
def test_of_equal_victims_those_are_evicted_whose_node_the_usual_pods_need_least(policy, expected):
    """Only n1 has CPU for the usual pods."""
    usual = Usual({UsualPod("NVIDIA", 1, memory_percent=100, milli_cpu=1000): 1.0})
    victims_of_both = runs("a"), runs("b", "GPU-1", on="n2")
    cache = store(*victims_of_both, nodes=(("n2", ("GPU-1",)),), usual=usual)
    cache.nodes.upsert(node("n1", gpu("GPU-0", memory_mib=MIB), allocatable={"cpu": "8"}))
    waiting = waits(annotations={"hami.io/node-scheduler-policy": policy})
    assert victims(cache, waiting) == expected


def test_nobody_is_evicted_for_a_pod_that_no_idle_node_fits():
    assert victims(store(runs("v")), waits(memory=MIB + 1)) is None
    assert victims(store(runs("v")), waits(count=2)) is None


def test_nobody_is_evicted_for_a_pod_that_requests_no_device():
    assert victims(store(runs("v")), pod(container({"cpu": "1"}), name="p", priority=100)) is None


def test_the_worked_examples():
    """E1 and E3 of the design: two nodes with two cards."""
    nodes = ("n0", ("GPU-0", "GPU-1")), ("n1", ("GPU-2", "GPU-3"))
    cache = store(
        runs("a", memory=4000, on="n0", priority=100),
        runs("b", memory=4000, on="n0", priority=100),
        runs("c", "GPU-1", on="n0", priority=500),
        runs("d", "GPU-2", priority=100),
        runs("e", "GPU-3", priority=100, started="2026-08-21T11:00:00Z"),
        nodes=nodes,
    )
    assert victims(cache, waits(priority=1000)) == ["e"]
    assert victims(cache, waits(priority=1000, count=2)) == ["d", "e"]
    assert victims(cache, waits(priority=1000), names=["n0"]) == ["a", "b"]


def test_the_pod_itself_is_not_in_its_own_way():
    cache = store(runs("v"), nodes=(("n1", ("GPU-0", "GPU-1")),))
    waiting = waits(count=1)
    assert cache.place(waiting) == "n1"
    assert victims(cache, waiting) in ([], None)


# pods that end anyway


def test_a_pod_that_is_being_deleted_is_waited_for():
    cache = store(runs("v", deletion="2026-08-21T12:00:30Z"))
    assert planned(cache) == PreemptionPlan("n1", (), 0, ("uid-v",))
    assert victims(cache, rules=replace(RULES, now=NOW + 30 + OVERDUE_S)) is None, (
        "it may never end"
    )


def test_nobody_is_evicted_where_another_node_becomes_free_anyway():
    cache = store(
        runs("a", priority=0),
        runs("b", "GPU-1", on="n2", priority=50, deletion="2026-08-21T12:00:30Z"),
        nodes=(("n1", ("GPU-0",)), ("n2", ("GPU-1",))),
    )
    assert planned(cache) == PreemptionPlan("n2", (), 0, ("uid-b",))


YEARS = 10 * 365 * 24 * 3600


def ends(name, in_s, grace_s, uuid="GPU-0", **fields):
    """A bound pod that was deleted with this grace period and ends in so many seconds."""
    return runs(
        name,
        uuid,
        deletion=render_time(NOON + timedelta(seconds=in_s)),
        deletion_grace_s=grace_s,
        **fields,
    )


@cases(
    "in_s, grace_s, victim_grace_s, victim, awaited",
    ("within a minute", 30, 30, 30, (), ("uid-e",)),
    ("in a minute, after an hour", SOON_S, 3600, 30, (), ("uid-e",)),
    ("in more than a minute", SOON_S + 1, 3600, 30, ("uid-v",), ()),
    ("in an hour", 3600, 3600, 30, ("uid-v",), ()),
    ("as soon as the victim would", 300, 300, 300, (), ("uid-e",)),
    ("later than the victim", 301, 400, 300, ("uid-v",), ()),
    ("in years, so that it may be a victim itself", YEARS, YEARS, 30, ("uid-e",), ()),
)
def test_a_pod_that_is_being_deleted_is_waited_for_only_if_it_ends_soon(
    in_s, grace_s, victim_grace_s, victim, awaited
):
    """How long a pod takes to end is up to its owner."""
    cache = store(
        ends("e", in_s, grace_s),
        runs("v", "GPU-1", grace_s=victim_grace_s, priority=20),
        nodes=(("n1", ("GPU-0", "GPU-1")),),
    )
    plan = planned(cache)
    assert (plan.uids, plan.awaited) == (victim, awaited)


def test_a_pod_with_years_to_end_may_be_evicted_like_one_that_runs():
    """Else whoever deletes all of his pods keeps their devices."""
    assert victims(store(ends("e", YEARS, YEARS))) == ["e"]
    assert victims(store(ends("e", YEARS, YEARS, priority=100))) is None
    assert victims(store(ends("e", -3 * OVERDUE_S, 9 * 10**18))) == ["e"], (
        "an end that is no date any more"
    )


def test_nobody_is_evicted_beside_a_pod_that_ends_late():
    """The pod would wait for both."""
    cache = store(ends("e", 3600, 3600), runs("v", "GPU-1"), nodes=(("n1", ("GPU-0", "GPU-1")),))
    assert planned(cache, waits(count=2)) is None
    assert planned(store(ends("e", 3600, 3600))) == PreemptionPlan("n1", (), 0, ("uid-e",)), (
        "it may only wait"
    )
    assert plan_further(cache.view(), waits(count=2), "n1", ["uid-v"], RULES) is None
    soon = store(ends("e", 60, 3600), runs("v", "GPU-1"), nodes=(("n1", ("GPU-0", "GPU-1")),))
    assert (victims(soon, waits(count=2)), planned(soon, waits(count=2)).awaited) == (
        ["v"],
        ("uid-e",),
    )


def test_a_member_with_years_to_end_belongs_to_its_gang():
    cache = gang(10, 10)
    cache.pods.upsert(
        ends("b", YEARS, YEARS, "GPU-1", on="n2", group="gang", resource_version="60")
    )
    assert victims(cache) == ["a", "b"]


def test_a_pod_of_higher_priority_that_is_being_deleted_makes_room_for_others():
    cache = store(runs("v", priority=1000, deletion="2026-08-21T12:00:30Z"))
    assert victims(cache) is None


def test_the_victims_of_another_plan_are_not_counted_on():
    cache = store(runs("v"), runs("w", "GPU-1", priority=20), nodes=(("n1", ("GPU-0", "GPU-1")),))
    assert (victims(cache), victims(cache, planned={"uid-v"})) == (["v"], ["w"])
    assert victims(cache, planned={"uid-v", "uid-w"}) is None


def test_what_is_held_for_lower_priority_is_free_and_for_equal_priority_taken():
    cache = store(runs("v"), runs("w", "GPU-1", priority=20), nodes=(("n1", ("GPU-0", "GPU-1")),))
    other = waits("other", priority=50)
    cache.place(other)
    (hold,) = cache.preemptions.promise([(other, planned(cache, other))])
    cache.pods.remove(replace(runs("v"), resource_version="60"))
    assert victims(cache, waits(priority=50), planned=hold.victims) == ["w"]
    assert victims(cache, planned=hold.victims) == [], "what is held needs no eviction"


# gangs


def gang(*priorities, nodes=(("n1", ("GPU-0",)), ("n2", ("GPU-1",))), **fields):
    """A store with a gang of two pods, on two nodes."""
    own = [
        runs(name, f"GPU-{place}", on=f"n{place + 1}", priority=priority, group="gang", **fields)
        for place, (name, priority) in enumerate(zip("ab", priorities))
    ]
    return store(*own, nodes=nodes)


def test_a_gang_is_evicted_as_a_whole():
    assert victims(gang(10, 10)) == ["a", "b"]
    assert planned(gang(10, 10)).victims[0].priorities == (10, 10)


def test_another_namespace_may_have_a_gang_of_the_same_name():
    cache = gang(10, 10)
    cache.pods.upsert(
        replace(runs("b", "GPU-1", on="n2", group="gang"), resource_version="60", group="another")
    )
    assert victims(cache) in (["a"], ["b"])


@cases(
    "priorities, fields",
    ("a member of equal priority", (10, 100), {}),
    ("a member of the same controller", (10, 10), {"controller": "owner"}),
    ("a protected member", (10, 10), {"labels": {"hami.io/preemptible": "false"}}),
    ("a member of a DaemonSet", (10, 10), {"is_node_agent": True}),
)
def test_a_gang_stays_if_one_of_its_pods_may_not_be_evicted(priorities, fields):
    assert victims(gang(*priorities, **fields), waits(controller="owner")) is None


@cases(
    "started, expected",
    ("one of them has been replaced", ("11:00:00", "11:59:00"), ["a", "b"]),
    ("the other one", ("11:59:00", "11:00:00"), ["a", "b"]),
    ("one has not started yet", ("11:00:00", ""), ["a", "b"]),
    ("all are young", ("11:50:01", "11:59:00"), None),
    ("none has started yet", ("", ""), None),
)
def test_a_gang_is_as_old_as_its_oldest_pod(started, expected):
    cache = gang(10, 10)
    for name, time, place in zip("ab", started, (0, 1)):
        cache.pods.upsert(
            runs(
                name,
                f"GPU-{place}",
                on=f"n{place + 1}",
                group="gang",
                resource_version="60",
                started=time and f"2026-08-21T{time}Z",
            )
        )
    assert victims(cache, rules=replace(RULES, min_runtime_s=600)) == expected


# PodGroups

SINGLE, ALL = "", "podgroup/"
CARDS_OF_FOUR = tuple((f"n{number}", (f"GPU-{number}",)) for number in range(1, 5))


def grouped(groups, *pods, waiting=None, **options):
    """The victims where each of *pods* (name and group, a letter each) has a card, and PodGroups say *groups*."""
    cache = store(
        *(
            runs(
                text[0],
                f"GPU-{place}",
                on=f"n{place}",
                group=text[1:],
                started=f"2026-08-21T10:00:0{place}Z",
            )
            for place, text in enumerate(pods, start=1)
        ),
        nodes=CARDS_OF_FOUR[: len(pods)],
    )
    return victims(
        cache, waiting, replace(RULES, pod_groups=lambda ref: groups.get(ref.name)), **options
    )


def group(min_count=None, disrupted_with=SINGLE):
    return PodGroup(min_count=min_count, disrupted_with=disrupted_with)


@cases(
    "groups, pods, expected",
    ("one by one", {"g": group(2)}, ["ag", "bg"], {"a", "b"}),
    ("together", {"g": group(2, "podgroup/g")}, ["ag", "bg"], {"ab"}),
    ("not known: together", {}, ["ag", "bg"], {"ab"}),
    ("who is not needed", {"g": group(3), "h": group(0)}, ["ag", "bg", "cg", "dh"], {"d"}),
    ("of those, anyone", {"g": group(2), "h": group(1)}, ["ag", "bg", "cg", "dh"], {"a", "b", "c"}),
    (
        "of a gang that lacks one anyway",
        {"g": group(4), "h": group(1)},
        ["ag", "bg", "cg", "dh"],
        {"a", "b", "c"},
    ),
    (
        "no gang, only a group",
        {"g": group(), "h": group(1)},
        ["ag", "bg", "cg", "dh"],
        {"a", "b", "c"},
    ),
    (
        "one pod of a gang rather than the whole of another",
        {"g": group(2), "h": group(2, "podgroup/h")},
        ["ag", "bg", "ch", "dh"],
        {"a", "b"},
    ),
    (
        "a pod without a gang rather than a gang",
        {"g": group(2, "podgroup/g")},
        ["ag", "bg", "c"],
        {"c"},
    ),
    (
        "with the pods of other groups below the same",
        {"g": group(1, "compositepodgroup/j"), "h": group(1, "compositepodgroup/j")},
        ["ag", "bh"],
        {"ab"},
    ),
    (
        "below another",
        {"g": group(1, "compositepodgroup/j"), "h": group(1, "compositepodgroup/k")},
        ["ag", "bh"],
        {"a", "b"},
    ),
    (
        "alone below it",
        {"g": group(1, "compositepodgroup/j"), "h": group(1)},
        ["ag", "bh"],
        {"a", "b"},
    ),
    ("not known who else is below it", {"g": group(1, "compositepodgroup/j")}, ["ag", "bh"], {"b"}),
)
def test_the_pods_of_a_gang_are_evicted_as_their_groups_say(groups, pods, expected):
    assert "".join(grouped(groups, *pods)) in expected


def test_another_namespace_may_have_a_composite_group_of_the_same_name():
    cache = store(
        runs("a", group="g", priority=20),
        runs("b", "GPU-1", on="n2", group="h", namespace="other"),
        nodes=(("n1", ("GPU-0",)), ("n2", ("GPU-1",))),
    )
    rules = replace(RULES, pod_groups=lambda ref: group(1, "compositepodgroup/j"))
    assert victims(cache, rules=rules) == ["b"]


@cases(
    "disrupted_with, expected", ("one by one", SINGLE, ["a"]), ("together", "podgroup/gang", None)
)
@cases(
    "fields",
    ("priority", {"priority": 100}),
    ("of a DaemonSet", {"is_node_agent": True}),
    ("young", {"started": "2026-08-21T11:59:00Z"}),
)
def test_a_pod_that_stays_protects_only_those_that_are_evicted_with_it(
    fields, disrupted_with, expected
):
    cache = gang(10, 10)
    cache.pods.upsert(runs("b", "GPU-1", on="n2", group="gang", resource_version="60", **fields))
    rules = replace(RULES, min_runtime_s=600, pod_groups=lambda ref: group(2, disrupted_with))
    is_old_enough_together = "started" in fields and disrupted_with
    assert victims(cache, rules=rules) == (["a", "b"] if is_old_enough_together else expected)


def test_what_a_gang_lacks_after_other_plans_counts():
    """It has one pod more than it needs, which is evicted for another already."""
    groups, pods = {"g": group(2), "h": group(0)}, ("ag", "bg", "cg", "dh")
    assert grouped(groups, *pods, planned={"uid-d"}) in (["a"], ["b"], ["c"])
    assert grouped(groups, *pods, planned={"uid-c"}) == ["d"]


def test_kube_scheduler_gets_no_victims_on_other_nodes():
    """It finds them on that node, or gives up."""
    cache = gang(10, 10)
    rules = replace(RULES, pod_groups=lambda ref: group(2, "podgroup/gang"))
    assert plan_further(cache.view(), waits(), "n1", [], rules) is None
    one_by_one = replace(RULES, pod_groups=lambda ref: group(2))
    assert plan_further(cache.view(), waits(), "n1", [], one_by_one).uids == ("uid-a",)
    there = store(
        runs("a", group="gang"),
        runs("b", "GPU-1", group="gang"),
        nodes=(("n1", ("GPU-0", "GPU-1")),),
    )
    assert set(plan_further(there.view(), waits(), "n1", [], rules).uids) == {"uid-a", "uid-b"}


def test_a_gang_of_which_one_pod_is_evicted_for_others_stays():
    assert victims(gang(10, 10), planned={"uid-b"}) is None


# budgets


def budget(allowed, **labels):
    return DisruptionBudget(
        namespace="default",
        name="budget",
        allowed=allowed,
        selector=tuple(LabelRequirement(key, "In", (value,)) for key, value in labels.items()),
    )


def two_teams():
    return store(
        runs("a", priority=0, labels={"team": "x"}),
        runs("b", "GPU-1", priority=50, labels={"team": "y"}),
        nodes=(("n1", ("GPU-0", "GPU-1")),),
    )


@cases(
    "budgets, expected, violations",
    ("none", [], "a", 0),
    ("it allows one", [budget(1, team="x")], "a", 0),
    ("it allows none", [budget(0, team="x")], "b", 0),
    ("of another namespace", [replace(budget(0, team="x"), namespace="other")], "a", 0),
    ("of all pods", [budget(0)], "a", 1),
    ("of no pod", [replace(budget(0), selector=None)], "a", 0),
)
def test_budgets_are_kept_if_possible(budgets, expected, violations):
    plan = planned(two_teams(), rules=replace(RULES, budgets=budgets))
    assert (plan.uids, plan.violations) == ((f"uid-{expected}",), violations)


def test_strict_plans_violate_no_budget():
    strict = replace(RULES, budgets=[budget(0)], strict=True)
    assert victims(two_teams(), rules=strict) is None
    assert victims(two_teams(), rules=replace(strict, budgets=[budget(0, team="x")])) == ["b"]


def test_of_very_many_budgets_of_a_namespace_some_count():
    """Others are not slowed down by them."""
    cache = store(runs("a", priority=0, labels={"team": "x"}))
    many = [replace(budget(0, team="y"), name=f"b{number}") for number in range(MAX_BUDGETS)]
    found = [
        planned(cache, rules=replace(RULES, budgets=budgets)).violations
        for budgets in ([*many[1:], budget(0, team="x")], [*many, budget(0, team="x")])
    ]
    assert found == [1, 0]


def test_the_victims_of_other_plans_use_up_a_budget():
    cache = two_teams()
    cache.pods.upsert(runs("c", "GPU-2", on="n2", labels={"team": "x"}))
    rules = replace(RULES, budgets=[budget(1, team="x")])
    assert (victims(cache, rules=rules), victims(cache, rules=rules, planned={"uid-c"})) == (
        ["a"],
        ["b"],
    )
    cache.pods.upsert(
        replace(
            runs("c", "GPU-2", on="n2", labels={"team": "x"}, deletion="2026-08-21T12:00:30Z"),
            resource_version="60",
        )
    )
    assert victims(cache, rules=rules, planned={"uid-c"}) == ["a"], (
        "the API server has counted it by now"
    )


# quotas


def test_only_pods_of_the_own_namespace_help_where_the_quota_is_exceeded():
    cache = store(
        runs("own", priority=50),
        runs("other", "GPU-1", priority=0, namespace="other"),
        nodes=(("n1", ("GPU-0", "GPU-1")),),
    )
    assert victims(cache) == ["other"]
    cache.quotas.upsert(quota(gpumem=MIB))
    assert victims(cache) == ["own"]
    cache.quotas.upsert(replace(quota(gpumem=MIB - 1), uid="lower"))
    assert victims(cache) is None


# beside the victims of kube-scheduler


def test_further_victims_are_those_that_are_needed_beside_others():
    cache = store(runs("a", memory=4000), runs("b", memory=4000))
    view = cache.view()
    assert plan_further(view, waits(), "n1", ["uid-a", "uid-b"], RULES).uids == ()
    assert plan_further(view, waits(), "n1", ["uid-a"], RULES).uids == ("uid-b",)
    assert set(plan_further(view, waits(), "n1", [], RULES).uids) == {"uid-a", "uid-b"}
    assert plan_further(view, waits(count=2), "n1", ["uid-a"], RULES) is None


# other devices


def test_a_part_of_an_ascend_chip():
    vendor = b910.vendor
    cache = Store(Catalog([vendor]), Policies(), clock=Clock(), now=Clock().now)
    text = (
        '[{"id":"d","count":4,"devmem":65536,"devcore":20,"type":"Ascend910B3","health":true,'
        '"custominfo":{"NetworkID":3}}]'
    )
    cache.nodes.upsert(
        node(
            "n1",
            annotations={vendor.annotations.register: text},
            allocatable={vendor.resources.count: "4"},
        )
    )

    def asks(name, priority, memory=None, **fields):
        return pod(container(b910.limits(1, memory)), name=name, priority=priority, **fields)

    for name, memory in (("v", 32768), ("w", 16384)):
        placed = asks(name, 10, memory)
        assert cache.filtering.assume(placed, ["n1"]).node == "n1"
        annotations = cache.bindings.get(placed.ref.uid).annotations
        cache.bindings.drop(cache.bindings.get(placed.ref.uid))
        cache.pods.upsert(
            replace(placed, node_name="n1", resource_version="50", annotations=annotations)
        )
    assert victims(cache, asks("p", 100)) == ["v", "w"]
    assert victims(cache, asks("p", 100, 32768)) == ["w"]


def test_a_mig_instance():
    """Instances begin at fixed places: only the end of the pod that is in the way helps."""
    profiles = (
        MigProfile(
            name="1g.5gb",
            memory_mib=4864,
            cores=14,
            slices=1,
            placements=tuple(Partition(start, 1) for start in range(7)),
        ),
        MigProfile(
            name="3g.20gb",
            memory_mib=19968,
            cores=42,
            slices=3,
            placements=(Partition(0, 4), Partition(4, 4)),
        ),
    )
    cache = SmallStore(
        node("n1", gpu("GPU-0", memory_mib=40960, slots=7, mode="mig", mig_profiles=profiles))
    )
    placed = []
    while cache.place(small := waits(f"v{len(placed)}", 4000, priority=10)) is not None:
        annotations = cache.bindings.get(small.ref.uid).annotations
        cache.bindings.drop(cache.bindings.get(small.ref.uid))
        cache.pods.upsert(
            replace(small, node_name="n1", resource_version="50", annotations=annotations)
        )
        placed.append(small.ref.name)
    large = waits("large", 15000)
    assert cache.place(large) is None
    found = planned(cache, large)
    starts = {
        uid: charge.partitions[0].start
        for uid in found.uids
        for _, charges in cache.view().booking(uid).charges
        for charge in charges
    }
    assert set(starts.values()) in ({0, 1, 2, 3}, {4, 5, 6}), "those of one half of the card"
    (hold,) = cache.preemptions.promise([(large, found)])
    for uid in hold.victims:
        assert cache.place(large) is None
        assert cache.place(waits("x", 4000, priority=10)) is None
        cache.pods.remove(
            replace(pod(gpus(), name=uid.removeprefix("uid-")), resource_version="60")
        )
    assert cache.place(waits("x", 4000, priority=10)) is None
    assert cache.place(large) == "n1"


# random clusters


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_a_plan_is_just_enough(first):
    """The pod fits after it, and not if one victim is spared; nobody of equal or higher priority is a victim."""
    for seed in range(first, first + 50):
        rng = random.Random(seed)
        nodes = [
            (f"n{number}", [f"GPU-{number}-{card}" for card in range(rng.randint(1, 3))])
            for number in range(3)
        ]
        cache, count = store(nodes=nodes), 0
        for name, uuids in nodes:
            for uuid in uuids:
                for memory in rng.choice(([MIB], [5000, 3000], [4000], [1000] * 5, [2000, 6000])):
                    count += 1
                    cache.pods.upsert(
                        runs(
                            f"v{count}", uuid, memory, name, priority=rng.choice((0, 50, 100, 500))
                        )
                    )
        waiting = waits(memory=rng.choice((2000, 5000, MIB)), count=rng.choice((1, 1, 2)))
        view, names = cache.view(), [name for name, _ in nodes]
        if (
            dry_run.choose(view, waiting, names) is not None
            or (found := planned(cache, waiting)) is None
        ):
            continue
        assert (
            dry_run.choose(view.what_if(without=found.uids), waiting, [found.node]) is not None
        ), seed
        assert all(priority < 100 for victim in found.victims for priority in victim.priorities), (
            seed
        )
        for spared in found.uids:
            without = set(found.uids) - {spared}
            assert dry_run.choose(view.what_if(without=without), waiting, [found.node]) is None, (
                seed
            )
