"""Nobody is evicted in vain: what is freed goes to the pod for which it is freed, whoever leads meanwhile."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis.strategies import integers

from hami.codec.keys import LOCK_FREE, PREEMPTING
from hami.errors import ClusterError, HamiError, NotFound
from hami.model import DisruptionBudget, LabelRequirement, PodGroup
from hami.scheduler.attempts import MAX_RETRY_S, WAIT_S
from hami.scheduler.evictor import INHERITED_S, MAX_WRITES, REFUSED_S, RETRY_S
from hami.scheduler.planner import YIELD_S
from hami.scheduler.preemption import AVOIDED_S
from hami.scheduler.settings import Settings
from hami.state.preemption import PLAN_S
from hami.state.read_pod import MAX_GRACE_S
from testing.builders import gpu, gpus, node, pod
from testing.cases import cases
from testing.replicas import Clock, Replica, WatchedCluster

CARD = 8000


def wants(name, priority, *, count=1, memory=CARD, **fields):
    return pod(gpus(count, memory=memory, cores=0), name=name, priority=priority, **fields)


class World:
    """A cluster of lock-free nodes, its kube-scheduler, and a leading replica."""

    def __init__(self, nodes=1, cards=1, settings=Settings()):
        self.clock, self.settings = Clock(), settings
        self.fake = WatchedCluster(
            nodes=[
                node(
                    f"n{number}",
                    *(
                        gpu(f"GPU-{number}-{card}", index=card, memory_mib=CARD)
                        for card in range(cards)
                    ),
                    annotations={LOCK_FREE: "NVIDIA"},
                )
                for number in range(nodes)
            ]
        )
        self.fake.now = self.clock.now
        self.ended_by_user, self.bound_priorities = set(), set()
        self.leader = self.replica()

    def replica(self):
        made = Replica(self.fake, self.clock, settings=self.settings)
        for quota in getattr(self, "quotas", ()):
            made.cache.quotas.upsert(quota)
        made.preemptor.take_over()
        return made

    def next_leader(self):
        self.leader.leadership.leading = False
        self.leader = self.replica()

    def find(self, name):
        return self.fake.pods.get(("default", name))

    def create(self, item):
        self.fake.put_pod(item)
        self.leader.watch()

    def schedule(self, name):
        """One cycle of kube-scheduler. Returns the node that the pod is bound to."""
        item = self.find(name)
        if item.nominated_node and (node := self.attempt(item, [item.nominated_node])) is not None:
            return node
        return self.attempt(item, list(self.fake.nodes))

    def attempt(self, item, names):
        try:
            if (node := self.leader.filter(item, names)) is not None:
                self.leader.binder.bind(item.ref, node)
                self.bound_priorities.add(item.priority)
            return node
        except HamiError:
            return None

    def run(self, *items):
        """Binds and starts *items*, one after the other."""
        for item in items:
            self.create(item)
            assert self.schedule(item.ref.name) is not None, item.ref
            self.clock.seconds += 1
            bound = self.find(item.ref.name)
            self.fake.put_pod(
                replace(
                    bound,
                    phase="Running",
                    started=f"{self.clock.now():%Y-%m-%dT%H:%M:%SZ}",
                    admitted=True,
                )
            )
            self.leader.watch()

    def preempt(self):
        """Lets the preemptor see what was refused."""
        self.clock.seconds += WAIT_S
        self.leader.preemptor.step()
        self.leader.watch()

    def create_refused(self, item):
        """Creates *item*, which fits nowhere."""
        self.create(item)
        self.refuse(item.ref.name)

    def preempt_for(self, item):
        """Creates *item*, which fits nowhere, and lets the preemptor see that."""
        self.create_refused(item)
        self.preempt()

    def end(self, *names):
        for name in names:
            self.fake.delete_pod("default", name)
        self.leader.watch()

    def ending(self):
        return {item.ref.name for item in self.fake.pods.values() if item.deletion}

    def refuse(self, name):
        assert self.schedule(name) is None


def test_a_pod_gets_what_the_least_important_pod_leaves():
    world = World(nodes=2)
    world.run(wants("mid", 500), wants("low", 100))
    world.preempt_for(wants("p", 1000))
    assert world.ending() == {"low"}
    assert (
        world.find("p").nominated_node
        == world.find("low").node_name
        == world.find("p").annotations[PREEMPTING]
    )
    assert world.find("low").preempted
    assert "Preempted" in world.leader.events.reasons()
    assert "Preempting" in world.leader.events.reasons()
    world.create_refused(wants("thief", 400))
    world.end("low")
    world.refuse("thief")
    assert world.schedule("p") is not None
    world.leader.watch()
    world.preempt()
    world.preempt()
    assert world.leader.metrics.preemptions == ["planned"]
    assert world.leader.metrics.victims == 1
    assert len(world.leader.metrics.bound_after) == 1
    assert world.leader.metrics.in_vain == 0


def test_each_step_of_a_plan_leaves_the_interpreter_to_requests_for_a_moment(monkeypatch):
    """A request that is in flight for ever delays a plan and does not prevent it."""
    world, waits = World(nodes=2), []
    monkeypatch.setattr(world.leader.verbs.in_flight, "wait_idle", waits.append)
    world.run(wants("mid", 500), wants("low", 100))
    with world.leader.verbs.in_flight.request():
        world.preempt_for(wants("p", 1000))
    assert world.ending() == {"low"}
    assert waits == [YIELD_S] * 2


@cases("priority", ("lower", 500), ("equal", 1000), ("higher", 5000))
def test_pods_without_a_plan_keep_no_other_namespace_from_its_plans(monkeypatch, priority):
    """Plans take time, and those without a result are made again and again."""
    world = World(cards=2)
    monkeypatch.setattr(
        world.leader.verbs.in_flight, "wait_idle", lambda seconds: world.clock.wait(0.05)
    )
    world.run(wants("low", 100), wants("high", 9000))
    for number in range(60):
        world.create(wants(f"never-{number}", priority, count=2, namespace="other"))
        assert world.leader.filter(world.fake.pods["other", f"never-{number}"]) is None
    world.create_refused(wants("p", 1000))
    for _ in range(10):
        world.preempt()
    assert world.ending() == {"low"}


def test_the_pods_of_a_namespace_are_planned_for_in_turn(monkeypatch):
    world = World(cards=2)
    monkeypatch.setattr(
        world.leader.verbs.in_flight, "wait_idle", lambda seconds: world.clock.wait(0.05)
    )
    world.run(wants("low", 100), wants("high", 9000))
    for number in range(60):
        world.create(wants(f"never-{number}", 1000, count=2))
        world.refuse(f"never-{number}")
    world.create_refused(wants("p", 1000))
    for _ in range(400):
        world.preempt()
    assert world.ending() == {"low"}


def test_a_pod_that_has_waited_for_hours_keeps_nobody_from_plans():
    """How often there was no plan for it has no limit."""
    world = World(cards=2)
    world.run(wants("low", 100), wants("high", 9000))
    world.create_refused(wants("never", 1000, count=2))
    for _ in range(1100):
        world.clock.seconds += MAX_RETRY_S
        world.preempt()
    assert len(world.leader.metrics.preemptions) == 1100
    world.preempt_for(wants("p", 1000))
    assert world.ending() == {"low"}


def test_the_calls_come_in_the_order_in_which_the_next_leader_can_go_on():
    world = World(cards=2)
    world.run(wants("a", 100), wants("b", 100))
    world.create_refused(wants("p", 1000, count=2))
    before = len(world.fake.calls)
    world.preempt()
    writes = [
        call.method for call in world.fake.calls[before:] if call.method != "disruption_budgets"
    ]
    assert writes == [
        "annotate_pod",
        "nominate",
        "mark_preempted",
        "mark_preempted",
        "evict",
        "evict",
    ]


@pytest.mark.parametrize(
    "settings",
    [
        Settings(preemption="off"),
        Settings(preemption="strict"),
        Settings(preemption_min_runtime=3600.0),
    ],
    ids=lambda settings: f"{settings.preemption}, {settings.preemption_min_runtime:g} s",
)
def test_nobody_is_evicted_where_the_settings_forbid_it(settings):
    world = World(settings=settings)
    world.fake.budgets = [DisruptionBudget(namespace="default", name="b", selector=(), allowed=0)]
    world.run(wants("low", 100))
    world.create(wants("p", 1000))
    for _ in range(5):
        world.refuse("p")
        world.preempt()
        world.clock.seconds += MAX_RETRY_S
    assert world.ending() == set()
    assert world.fake.calls_of("nominate", "mark_preempted", "evict") == []


def test_a_budget_that_selects_other_pods_forbids_nothing():
    world = World(settings=Settings(preemption="strict"))
    world.fake.budgets = [
        DisruptionBudget(
            namespace="default",
            name="b",
            allowed=0,
            selector=(LabelRequirement("app", "In", ("x",)),),
        )
    ]
    world.run(wants("low", 100))
    world.preempt_for(wants("p", 1000))
    assert world.ending() == {"low"}


def test_budgets_that_cannot_be_read_forbid_everything_in_strict_mode_only():
    for mode, victims in (("strict", set()), ("on", {"low"})):
        world = World(settings=Settings(preemption=mode))
        world.run(wants("low", 100))
        world.create_refused(wants("p", 1000))
        world.fake.fail("disruption_budgets", ClusterError("forbidden", 403), times=9)
        world.preempt()
        assert world.ending() == victims


def test_a_pod_of_higher_priority_takes_what_is_freed_and_the_other_gets_a_new_plan():
    world = World(nodes=2)
    world.run(wants("a", 100), wants("b", 200))
    world.preempt_for(wants("p", 1000))
    world.create_refused(wants("q", 5000))
    world.preempt()
    assert world.ending() == {"a"}
    world.refuse("p")
    world.preempt()
    assert world.ending() == {"a", "b"}
    world.end("a")
    assert world.schedule("p") is None  # whichever of them kube-scheduler tries first
    assert world.schedule("q") is not None
    world.end("b")
    assert world.schedule("p") is not None
    assert world.leader.metrics.victims == 2
    assert world.leader.metrics.in_vain == 0


def test_a_pod_that_is_gone_is_not_planned_for_at_once_again():
    world = World()
    world.run(wants("low", 100))
    world.create_refused(wants("p", 1000))
    world.fake.fail("annotate_pod", NotFound("gone", 404), times=9)
    for _ in range(3):
        world.preempt()
    assert len(world.fake.calls_of("annotate_pod")) == 1
    assert world.ending() == set()


def test_what_a_new_leader_has_taken_over_stays_until_its_term_begins():
    world = World()
    world.run(wants("low", 100))
    world.preempt_for(wants("p", 1000))
    world.next_leader()
    world.leader.leadership.leading = False
    world.leader.preemptor.step()
    world.leader.leadership.leading = True
    world.end("low")
    world.create_refused(wants("thief", 100))
    assert world.schedule("p") == "n0"


def test_holds_of_an_earlier_term_end_when_the_next_one_begins():
    world = World(nodes=2)
    world.run(wants("a", 100), wants("b", 100))
    world.preempt_for(wants("p", 1000))
    world.fake.put_pod(replace(world.find("p"), annotations={}, nominated_node=""))
    world.leader.watch()
    world.leader.preemptor.take_over()
    assert world.leader.cache.preemptions.promised() == []


def test_nobody_is_evicted_while_kube_scheduler_makes_room():
    world = World(nodes=2)
    world.run(wants("a", 100), wants("b", 100))
    world.create_refused(wants("p", 1000))
    answer = world.leader.preemption_filter.filter(world.find("p"), {"n0": ["cpu"], "n1": []})
    holders = {item.node_name: item.ref.uid for item in world.fake.pods.values() if item.node_name}
    assert {name: set(uids) for name, uids in answer.items()} == {
        "n0": {"cpu", holders["n0"]},
        "n1": {holders["n1"]},
    }
    world.preempt()
    assert world.ending() == set()


def test_what_kube_scheduler_frees_is_held_too():
    world = World()
    world.run(wants("low", 100))
    world.create_refused(wants("p", 1000))
    world.leader.preemption_filter.filter(world.find("p"), {"n0": ["cpu"]})
    world.fake.put_pod(replace(world.find("low"), preempted=True))
    world.fake.put_pod(replace(world.find("p"), nominated_node="n0"))
    world.leader.watch()
    world.preempt()
    world.end("low")
    world.create_refused(wants("thief", 100))
    assert world.schedule("p") == "n0"


def test_of_the_candidates_of_kube_scheduler_only_the_node_remains_where_others_are_evicted():
    """It may lack CPU there."""
    world = World(nodes=2)
    world.run(wants("a", 100), wants("b", 100))
    world.preempt_for(wants("p", 1000))
    held = world.find("p").annotations[PREEMPTING]
    (other,) = {"n0", "n1"} - {held}
    judge = world.leader.preemption_filter.filter
    assert judge(world.find("p"), {held: ["cpu"], other: ["cpu"]}) == {held: ["cpu"]}
    assert judge(world.find("p"), {other: ["cpu"]}) == {}
    world.end(*world.ending())
    assert judge(world.find("p"), {held: ["cpu"], other: ["cpu"]}) == {held: ["cpu"]}


def test_a_gang_is_planned_for_as_a_whole():
    world = World(nodes=3)
    world.run(wants("a", 100), wants("b", 100), wants("c", 5000))
    for name in ("p", "q"):
        world.create(wants(name, 1000, group="gang"))
    world.refuse("p")
    world.preempt()
    assert world.ending() == {"a", "b"}
    world.end("a")
    world.create_refused(wants("thief", 100))
    world.end("b")
    world.refuse("thief")
    assert None not in (world.schedule("p"), world.schedule("q"))


def test_no_more_pods_of_a_gang_are_planned_for_than_it_needs():
    """The third fits nowhere, and the gang needs two."""
    world = World(nodes=3)
    world.fake.pod_groups["default", "gang"] = PodGroup(min_count=2)
    world.run(wants("a", 100), wants("b", 100), wants("c", 5000))
    for name in ("p", "q", "r"):
        world.create(wants(name, 1000, group="gang"))
        world.refuse(name)
    world.preempt()
    world.preempt()
    assert world.ending() == {"a", "b"}
    assert len(world.fake.calls_of("pod_group")) == 1  # for all of its pods
    world.end("a", "b")
    assert None not in (world.schedule("p"), world.schedule("q"))
    assert world.schedule("r") is None
    world.leader.watch()
    for _ in range(3):
        world.clock.seconds += MAX_RETRY_S
        world.preempt()
    assert world.leader.metrics.victims == 2
    assert world.leader.metrics.in_vain == 0


def test_the_rest_of_a_gang_is_planned_for_pod_by_pod():
    world = World(nodes=2)
    world.fake.pod_groups["default", "gang"] = PodGroup(min_count=1)
    world.run(wants("p", 1000, group="gang"), wants("a", 100))
    world.preempt_for(wants("q", 1000, group="gang"))
    assert world.ending() == {"a"}


def test_nobody_is_evicted_for_a_gang_whose_pods_have_not_all_been_created():
    world = World(nodes=2)
    world.fake.pod_groups["default", "gang"] = PodGroup(min_count=3)
    world.run(wants("a", 100), wants("b", 100))
    world.create(wants("p", 1000, group="gang"))
    world.preempt_for(wants("q", 1000, group="gang"))
    assert world.ending() == set()


def test_without_its_size_a_gang_is_planned_for_as_a_whole():
    world = World(nodes=2)
    world.fake.fail("pod_group", ClusterError("forbidden", 403), times=9)
    world.run(wants("a", 100), wants("b", 100))
    world.create(wants("p", 1000, group="gang"))
    world.preempt_for(wants("q", 1000, group="gang"))
    assert world.ending() == {"a", "b"}


def test_nobody_is_evicted_for_a_gang_that_does_not_fit_as_a_whole():
    world = World(nodes=2)
    world.run(wants("a", 100), wants("c", 5000))
    for name in ("p", "q"):
        world.create(wants(name, 1000, group="gang"))
    world.refuse("p")
    world.preempt()
    assert world.ending() == set()


def test_a_node_whose_victim_does_not_end_is_avoided_for_a_while():
    world = World(nodes=2)
    world.run(wants("a", 100), wants("b", 200))
    world.preempt_for(wants("p", 1000))
    assert world.ending() == {"a"}
    world.clock.seconds += PLAN_S + 31
    world.leader.watch()
    world.refuse("p")
    world.preempt()
    world.preempt()
    assert world.ending() == {"a", "b"}
    assert world.leader.metrics.in_vain == 1
    world.end("b")
    assert world.schedule("p") is not None
    assert AVOIDED_S > PLAN_S


YEARS = 10 * 365 * 24 * 3600


@cases("grace_s, given_s", (0, 0), (30, 30), (MAX_GRACE_S, MAX_GRACE_S), (YEARS, MAX_GRACE_S))
def test_a_victim_has_its_own_grace_period_but_no_more_than_an_hour(grace_s, given_s):
    world = World()
    world.run(wants("low", 100, grace_s=grace_s))
    world.preempt_for(wants("p", 1000))
    assert [call.grace_s for call in world.fake.calls_of("evict")] == [given_s]


@cases("own_s", ("with a longer grace period than its own", 30), ("with its own", YEARS))
def test_a_pod_that_was_deleted_to_end_in_years_ends_earlier(own_s):
    world = World()
    world.run(wants("low", 100, grace_s=own_s))
    world.fake.put_pod(
        replace(
            world.find("low"),
            deleting=True,
            deletion="2036-08-21T12:00:00Z",
            deletion_grace_s=YEARS,
        )
    )
    world.leader.watch()
    world.preempt_for(wants("p", 1000))
    assert world.find("low").preempted
    assert world.find("low").deletion_grace_s == min(own_s, MAX_GRACE_S)
    world.end("low")
    assert world.schedule("p") == "n0"
    assert world.leader.metrics.victims == 1


def test_a_pod_that_ends_in_an_hour_keeps_nobody_from_evicting_others():
    world = World(nodes=2)
    world.run(wants("a", 100), wants("b", 200))
    world.fake.put_pod(
        replace(
            world.find("a"), deleting=True, deletion="2026-08-21T13:00:00Z", deletion_grace_s=3600
        )
    )
    world.leader.watch()
    world.preempt_for(wants("p", 1000))
    assert world.ending() == {"a", "b"}
    world.end("b")
    assert world.schedule("p") is not None


def test_a_plan_that_is_given_up_leaves_no_annotation():
    world = World()
    world.run(wants("low", 100))
    world.preempt_for(wants("p", 1000))
    assert PREEMPTING in world.find("p").annotations
    world.end("low")
    world.fake.put_node(
        node(
            "n0", gpu("GPU-0-0", memory_mib=CARD, healthy=False), annotations={LOCK_FREE: "NVIDIA"}
        )
    )
    world.leader.watch()
    world.fake.fail("annotate_pod", ClusterError("no answer"))
    world.preempt()
    assert PREEMPTING in world.find("p").annotations
    world.clock.seconds += RETRY_S
    world.preempt()
    assert PREEMPTING not in world.find("p").annotations
    calls = len(world.fake.calls_of("annotate_pod"))
    world.preempt()
    assert len(world.fake.calls_of("annotate_pod")) == calls


def test_a_refused_eviction_is_not_tried_again_at_once():
    world = World()
    world.run(wants("low", 100))
    world.create(wants("p", 1000))
    world.fake.fail("mark_preempted", ClusterError("forbidden", 403), times=99)
    world.refuse("p")
    world.preempt()
    for _ in range(3):
        world.refuse("p")
        world.preempt()
    assert len(world.fake.calls_of("mark_preempted")) == 1
    assert "PreemptionFailed" in world.leader.events.reasons()
    world.fake.heal()
    world.clock.seconds += REFUSED_S
    world.refuse("p")
    world.preempt()
    assert world.ending() == {"low"}


@pytest.mark.parametrize("method", ["annotate_pod", "nominate", "mark_preempted", "evict"])
def test_a_call_that_fails_is_tried_again(method):
    world = World()
    world.run(wants("low", 100))
    world.create_refused(wants("p", 1000))
    world.fake.fail(method, ClusterError("no answer"))
    for _ in range(3):
        world.preempt()  # each filter that refuses a pod may wake the task
    assert len(world.fake.calls_of(method)) == 1
    world.clock.seconds += RETRY_S
    world.preempt()
    assert world.ending() == {"low"}
    world.end("low")
    assert world.schedule("p") == "n0"


def test_a_victim_that_has_ended_by_itself_is_no_failure():
    world = World(cards=2)
    world.run(wants("a", 100), wants("b", 100))
    world.create_refused(wants("p", 1000, count=2))
    world.fake.fail("evict", NotFound("gone", 404))
    world.preempt()
    assert len(world.ending()) == 1


def test_the_rest_is_spared_when_the_preemptor_is_deleted_between_the_evictions():
    world = World(cards=2)
    world.run(wants("a", 100), wants("b", 100))
    world.create_refused(wants("p", 1000, count=2))

    def delete(call):
        if call.method == "evict" and ("default", "p") in world.fake.pods:
            world.fake.delete_pod("default", "p")
            world.leader.watch()

    world.fake.on_call = delete
    world.preempt()
    assert len(world.ending()) == 1


def test_a_card_that_is_free_by_then_spares_everybody():
    world = World()
    world.run(wants("high", 5000, memory=4000), wants("low", 100, memory=4000))
    world.create_refused(wants("p", 1000, memory=4000))

    def end_another(call):
        if call.method == "disruption_budgets" and world.find("high"):
            world.end("high")

    world.fake.on_call = end_another
    world.preempt()
    assert world.ending() == set()
    world.create_refused(wants("thief", 100, memory=4000))
    assert world.schedule("p") == "n0"


# pods that are evicted together

GANG = ("a", "b", "c", "d")


def gang_world(*, spread=False, grace_s=30, **options):
    """A gang holds the four cards of a node, or of four nodes."""
    world = World(nodes=4 if spread else 1, cards=1 if spread else 4, **options)
    world.run(*(wants(name, 100, group="gang", grace_s=grace_s) for name in GANG))
    return world


def after(world, method, count, act):
    """Calls *act* when the API server has carried out *count* calls of *method*, and the next one is under way."""
    calls = []

    def on_call(call):
        if call.method == method:
            calls.append(call)
        if len(calls) == count + 1:
            world.fake.on_call = lambda call: None
            act()

    world.fake.on_call = on_call


def settle(world, seconds=0.0):
    world.clock.seconds += seconds
    world.leader.watch()
    world.preempt()


def marked(world):
    return {
        item.ref.name for item in world.fake.pods.values() if item.preempted and not item.deletion
    }


def running(world):
    return {
        item.ref.name for item in world.fake.pods.values() if item.node_name and not item.deletion
    }


def bind_preemptor(world):
    world.leader.watch()
    assert world.schedule("p") is not None
    world.leader.watch()


def delete_preemptor(world):
    world.fake.delete_pod("default", "p")
    world.leader.watch()


@cases("act", ("bound", bind_preemptor), ("deleted", delete_preemptor))
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_gang_of_which_one_pod_is_deleted_ends_although_the_preemptor_waits_no_longer(count, act):
    """It is bound as soon as the first of them has ended."""
    world = gang_world(grace_s=0)
    world.create_refused(wants("p", 1000))
    after(world, "evict", count, lambda: act(world))
    world.preempt()
    assert running(world) <= {"p"}
    assert marked(world) == set()
    assert world.leader.metrics.victims == 4


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_gang_of_which_no_pod_is_deleted_is_spared_when_the_preemptor_waits_no_longer(count):
    world = gang_world()
    world.create_refused(wants("p", 1000))
    after(world, "mark_preempted", count, lambda: delete_preemptor(world))
    world.preempt()
    settle(world)
    assert running(world) == set(GANG)
    assert marked(world) == set()
    assert len(world.fake.calls_of("clear_preempted")) == count + 1


def test_of_several_units_those_that_are_not_needed_any_more_are_spared():
    world = World(cards=4)
    world.run(
        wants("a", 100, group="gang"),
        wants("b", 100, group="gang"),
        wants("c", 100),
        wants("d", 100),
    )
    world.create_refused(wants("p", 1000, count=4))
    after(world, "evict", 1, lambda: delete_preemptor(world))
    world.preempt()
    settle(world)
    assert running(world) == {"c", "d"}
    assert marked(world) == set()


@pytest.mark.parametrize(
    "error",
    [
        ClusterError("no answer"),
        ClusterError("stumbled", 500),
        ClusterError("busy", 429),
        ClusterError("forbidden", 403),
    ],
    ids=str,
)
def test_a_deletion_that_fails_is_tried_again_until_the_whole_gang_has_ended(error):
    world = gang_world(grace_s=0)
    world.create_refused(wants("p", 1000))
    after(world, "evict", 2, lambda: world.fake.fail("evict", error))
    world.preempt()
    assert len(running(world)) == (0 if error.status == 403 else 2), (
        "a refused plan is given up, and only finished"
    )
    bind_preemptor(world)
    settle(world)
    settle(world, REFUSED_S)
    assert running(world) == {"p"}
    assert marked(world) == set()


def test_a_gang_whose_first_deletion_is_refused_is_spared():
    world = gang_world()
    world.create_refused(wants("p", 1000))
    world.fake.fail("evict", ClusterError("forbidden", 403))
    world.preempt()
    settle(world)
    assert running(world) == set(GANG)
    assert marked(world) == set()


def test_a_gang_whose_first_deletion_has_no_answer_is_evicted():
    """It may have been carried out."""
    world = gang_world()
    world.create_refused(wants("p", 1000))
    world.fake.fail("evict", ClusterError("no answer"), after=True)
    world.preempt()
    delete_preemptor(world)
    settle(world, RETRY_S)
    assert running(world) == set()


def test_a_condition_of_another_is_not_removed():
    """The pod has changed since; kube-scheduler evicts it by now."""
    world = gang_world()
    world.create_refused(wants("p", 1000))

    def change():
        world.fake.put_pod(replace(world.find("b"), preemptor="", evicted_with=None))

    after(world, "mark_preempted", 3, lambda: delete_preemptor(world))
    world.preempt()
    after(world, "clear_preempted", 0, change)
    settle(world)
    assert marked(world) == {"a", "b"}, "the watch has not shown what b carries"
    settle(world)
    assert marked(world) == {"b"}
    assert len(world.fake.calls_of("clear_preempted")) == 4, "one of them was a conflict"


class Killed(BaseException):
    """The leader dies within a call."""


def kill_after(world, method, count):
    def kill():
        raise Killed

    after(world, method, count, kill)
    with pytest.raises(Killed):
        world.preempt()


KILLS = [
    ("some are marked", "mark_preempted", 2),
    ("all are marked", "evict", 0),
    ("one is deleted", "evict", 1),
    ("one is left", "evict", 3),
]


@cases("spread", ("one node", False), ("four nodes", True))
@pytest.mark.parametrize("grace_s", [0, 30])
@cases("method, count", *KILLS)
def test_the_next_leader_evicts_the_whole_gang_for_a_pod_that_waits(method, count, grace_s, spread):
    world = gang_world(spread=spread, grace_s=grace_s)
    world.create_refused(wants("p", 1000))
    kill_after(world, method, count)
    world.next_leader()
    for _ in range(5):
        settle(world, RETRY_S)
        world.schedule("p")
    world.end(*world.ending())
    if world.find("p").node_name == "":
        assert world.schedule("p") is not None
    assert running(world) == {"p"}
    assert marked(world) == set()
    assert world.leader.metrics.in_vain == 0


@cases("spread", ("one node", False), ("four nodes", True))
@pytest.mark.parametrize("grace_s", [0, 30])
@cases("method, count", *KILLS)
def test_the_next_leader_finishes_what_is_begun_and_spares_the_rest(method, count, grace_s, spread):
    world = gang_world(spread=spread, grace_s=grace_s)
    world.create_refused(wants("p", 1000))
    kill_after(world, method, count)
    world.fake.delete_pod("default", "p")
    world.next_leader()
    settle(world)
    has_begun = method == "evict" and count > 0
    if not has_begun:
        settle(world, INHERITED_S)
    assert running(world) == (set() if has_begun else set(GANG))
    settle(world)
    assert marked(world) == set()


@pytest.mark.parametrize("count", range(1, len(GANG)))
@cases("spread", ("one node", False), ("four nodes", True))
def test_the_next_leader_spares_a_gang_of_which_some_have_been_spared(spread, count):
    """A pod without the condition has not been deleted."""
    world = gang_world(spread=spread)
    world.create_refused(wants("p", 1000))
    after(world, "mark_preempted", 3, lambda: delete_preemptor(world))
    world.preempt()
    kill_after(world, "clear_preempted", count)
    assert len(marked(world)) == len(GANG) - count
    world.next_leader()
    settle(world)
    settle(world, INHERITED_S)
    assert running(world) == set(GANG)
    assert marked(world) == set()


@pytest.mark.parametrize("count", range(1, len(GANG) + 1))
def test_the_next_leader_spares_a_gang_that_has_grown_while_it_was_marked(count):
    """The pods that are still marked as the smaller gang do not look as if one of them were gone."""
    world = World(cards=5)
    world.run(*(wants(name, 100, group="gang") for name in GANG))
    world.create_refused(wants("p", 1000, count=5))
    world.fake.fail("evict", ClusterError("forbidden", 403))
    world.fake.fail("clear_preempted", ClusterError("busy", 429), times=9)
    world.preempt()
    world.run(wants("e", 100, group="gang"))
    assert marked(world) == set(GANG)
    world.fake.heal()
    world.clock.seconds += REFUSED_S
    kill_after(world, "mark_preempted", count)
    delete_preemptor(world)
    world.next_leader()
    settle(world)
    settle(world, INHERITED_S)
    assert running(world) == {*GANG, "e"}
    assert marked(world) == set()


@pytest.mark.parametrize("count", range(1, len(GANG)))
def test_the_next_leader_spares_a_gang_that_was_marked_for_one_pod_and_then_for_another(count):
    """The pods that are still marked for the first one do not look as if one of them were gone."""
    world = gang_world()
    world.create_refused(wants("p", 1000))
    world.fake.fail("evict", ClusterError("forbidden", 403))
    world.fake.fail("clear_preempted", ClusterError("busy", 429), times=9)
    world.preempt()
    delete_preemptor(world)
    assert marked(world) == set(GANG)
    world.fake.heal()
    world.create_refused(wants("q", 1000))
    kill_after(world, "mark_preempted", count)
    world.end("q")
    world.next_leader()
    settle(world)
    settle(world, INHERITED_S)
    assert running(world) == set(GANG)
    assert marked(world) == set()


def test_a_deletion_of_the_earlier_leader_that_arrives_late_is_followed_by_the_others():
    world = gang_world()
    world.create_refused(wants("p", 1000))
    kill_after(world, "evict", 0)
    world.fake.delete_pod("default", "p")
    world.next_leader()
    settle(world)
    assert marked(world) == set(GANG), "it waits for that"
    world.fake.evict(world.find("c").ref, 30)
    settle(world)
    assert running(world) == set()


def test_a_gang_of_very_many_pods_delays_no_other_preemption():
    """It is evicted as a whole, in several steps."""
    world, gang = World(), {f"m-{number}" for number in range(MAX_WRITES)}
    world.fake.put_node(
        node(
            "large",
            gpu("GPU-large", slots=MAX_WRITES, memory_mib=CARD),
            annotations={LOCK_FREE: "NVIDIA"},
        )
    )
    world.leader.watch()
    on_large = {"nvidia.com/use-gpuuuid": "GPU-large"}
    on_other = {"nvidia.com/use-gpuuuid": "GPU-0-0"}
    world.run(wants("low", 100, annotations=on_other))
    world.run(
        *(
            wants(name, 100, memory=CARD // MAX_WRITES, group="gang", annotations=on_large)
            for name in gang
        )
    )
    world.preempt_for(wants("p", 1000, annotations=on_large))
    assert marked(world) == gang
    world.preempt_for(wants("q", 1000, annotations=on_other))
    assert "low" in world.ending()
    assert not gang < world.ending()
    settle(world)
    assert world.ending() == gang | {"low"}
    assert world.leader.metrics.victims == len(gang) + 1


def test_a_leader_that_loses_its_term_between_two_deletions_leaves_the_rest_to_the_next_one():
    world = gang_world()
    world.create_refused(wants("p", 1000))
    earlier = world.leader
    after(world, "evict", 2, lambda: setattr(earlier.leadership, "leading", False))
    world.preempt()
    assert len(world.ending()) == 3, "the write had begun"
    world.next_leader()
    settle(world)
    assert running(world) == set()
    assert [call.ref.name for call in world.fake.calls_of("evict")] == list(GANG)


@settings(max_examples=100)
@given(seed=integers(0, 2**32))
@example(seed=106642)
def test_no_eviction_is_in_vain(seed):
    """Every pod for which others were evicted is bound in the end, unless it is deleted or a pod of higher priority
    has taken what was freed: through crashes and changes of the leader, and lost nominations. No gang is evicted in
    part, and nobody who was spared keeps the condition."""
    rng = random.Random(seed)
    world = World(nodes=rng.randint(1, 3), cards=rng.randint(1, 2))
    for number in range(rng.randint(2, 10)):
        world.create(
            wants(
                f"first-{number}",
                rng.choice((0, 100)),
                memory=rng.choice((2000, 4000, CARD)),
                grace_s=rng.choice((0, 30)),
                group=rng.choice(("", "", "x", "y")),
            )
        )
        world.schedule(f"first-{number}")
        world.leader.watch()
    evicted_for, evicted, together = Counter(), set(), {}

    def meanwhile():
        """Pods that are being deleted end, those that wait are deleted or placed, and the watch shows it."""
        world.fake.on_call = lambda call: None
        world.leader.watch()
        if (ending := sorted(world.ending())) and rng.random() < 0.5:
            world.end(rng.choice(ending))
        for item in sorted(
            world.fake.pods.values(), key=lambda item: (-item.priority, item.ref.name)
        ):
            if not item.node_name and rng.random() < 0.1:
                world.ended_by_user.add(item.ref.uid)
                world.end(item.ref.name)
            elif not item.node_name:
                world.schedule(item.ref.name)
        world.leader.watch()
        world.fake.on_call = on_call

    def on_call(call):
        if call.method == "evict":
            victim = world.fake.pods.get((call.ref.namespace, call.ref.name))
            if victim is not None and not victim.deletion:
                evicted_for[world.marks[call.ref.uid]] += 1
        elif call.method == "mark_preempted":
            world.marks[call.ref.uid] = call.message.split()[3]
        if call.method in (
            "annotate_pod",
            "nominate",
            "mark_preempted",
            "evict",
            "clear_preempted",
        ):
            chance = rng.random()
            if chance < 0.1:
                raise Killed
            if chance < 0.4:
                meanwhile()
        if call.method == "evict":
            evicted.add(call.ref.uid)
        elif call.method == "mark_preempted" and "together" in call.message:
            together.setdefault(call.message, set()).add(call.ref.uid)

    world.marks, world.fake.on_call = {}, on_call
    for number in range(rng.randint(10, 40)):
        move = rng.choice(
            ("create", "schedule", "schedule", "preempt", "end", "wait", "delete", "lead", "forget")
        )
        waiting = [item for item in world.fake.pods.values() if not item.node_name]
        try:
            if move == "create":
                world.create(
                    wants(
                        f"p-{number}",
                        rng.choice((0, 100, 500, 1000)),
                        memory=rng.choice((2000, 4000, CARD)),
                        count=rng.choice((1, 1, 2)),
                    )
                )
            elif move == "schedule" and waiting:
                world.schedule(rng.choice(waiting).ref.name)
            elif move == "preempt":
                world.preempt()
            elif move == "end" and (ending := sorted(world.ending())):
                world.end(rng.choice(ending))
            elif move == "wait":
                world.clock.seconds += rng.choice((0.1, 1, 5))
            elif move == "delete" and world.fake.pods:
                item = rng.choice(sorted(world.fake.pods.values(), key=lambda item: item.ref.name))
                world.ended_by_user.add(item.ref.uid)
                world.end(item.ref.name)
            elif move == "lead":
                world.next_leader()
            elif move == "forget" and waiting:  # kube-scheduler clears a nomination
                world.fake.put_pod(replace(rng.choice(waiting), nominated_node=""))
            if rng.random() < 0.7:
                world.leader.watch()
        except Killed:
            world.next_leader()
    world.fake.on_call = lambda call: None
    for _ in range(60):
        world.clock.seconds += 5
        world.leader.watch()
        world.end(*world.ending())
        for item in sorted(world.fake.pods.values(), key=lambda item: -item.priority):
            if not item.node_name:
                world.schedule(item.ref.name)
                world.leader.watch()
        world.preempt()
    alive = {item.ref.uid for item in world.fake.pods.values()}
    for uids in together.values():
        assert uids.isdisjoint(evicted) or uids.isdisjoint(alive)
    assert marked(world) == set()
    for name in world.fake.nodes:
        assert all(memory <= CARD for _, memory, _ in world.fake.charges(name).values())
    bound = {item.ref.uid for item in world.fake.pods.values() if item.node_name}
    served = {uid for uid in evicted_for if uid in bound or uid in world.ended_by_user}
    waiting = [
        item
        for item in world.fake.pods.values()
        if item.ref.uid in evicted_for and item.ref.uid not in served
    ]
    assert all(item.priority < max(world.bound_priorities) for item in waiting), evicted_for
    assert world.leader.metrics.in_vain == 0
