"""Pods are moved one at a time for a pod whose place is held. The moves stop where reality differs from the plan."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers

from hami.codec.keys import DO_NOT_MOVE, LOCK_FREE, MAKE_ROOM, MOVES
from hami.codec.moves import parse_moves_record
from hami.errors import ClusterError
from hami.model import DisruptionBudget, LabelRequirement
from hami.scheduler.metrics import MOVE_RESULTS
from hami.scheduler.move_maker import MOVE_TIMEOUT_S
from hami.scheduler.settings import ADVISE, APPLY, NONE, Settings
from testing.builders import gpu, gpus, node, pod
from testing.cases import cases
from testing.replicas import Clock, Replica, WatchedCluster

CARD = 80_000
BUDGET = ClusterError(
    "Cannot evict pod as it would violate the pod's disruption budget.", 429, retry_after_s=10
)
OWNERS = ("a", "f", "d", "e")


class Killed(BaseException):
    """The leader has died."""


class World:
    """Three nodes with one card each, as in the trial: for a whole card, a leaves n0 for n1, and f for n2."""

    def __init__(self, mode=APPLY, **waiting):
        self.clock, self.settings = Clock(), Settings(defragment=mode)
        self.fake = WatchedCluster(
            nodes=[
                node(
                    f"n{number}",
                    gpu(f"GPU-{number}", memory_mib=CARD),
                    annotations={LOCK_FREE: "NVIDIA"},
                )
                for number in range(3)
            ]
        )
        self.fake.now = self.clock.now
        self.numbers = itertools.count()
        self.evicted = []
        self.controllers = set(OWNERS)
        self.leader = self.replica()
        for owner, memory, on in (
            ("a", 50, "n0"),
            ("f", 20, "n0"),
            ("d", 30, "n1"),
            ("e", 60, "n2"),
        ):
            self.make(owner, memory * 1000)
            self.bind(self.of(owner), [on])
        self.memory = {"a": 50_000, "f": 20_000, "d": 30_000, "e": 60_000}
        self.fake.put_pod(pod(gpus(1, memory=CARD), name="p", **waiting))
        self.leader.watch()
        assert self.bind(self.find("p")) is None

    def replica(self):
        made = Replica(self.fake, self.clock, settings=self.settings)
        made.preemptor.take_over()
        made.mover.take_over()
        return made

    def next_leader(self):
        self.leader.leadership.leading = False
        self.fake.on_call = lambda call: None
        self.leader = self.replica()

    def find(self, name):
        return self.fake.pods.get(("default", name))

    def of(self, owner):
        """Returns the pod of a controller."""
        for item in self.fake.pods.values():
            if item.controller == owner:
                return item
        return None

    def where(self, owner):
        item = self.of(owner)
        return item.node_name if item else None

    def make(self, owner, memory, **fields):
        item = pod(
            gpus(1, memory=memory),
            name=f"{owner}-{next(self.numbers)}",
            controller=owner,
            controller_kind="ReplicaSet",
            labels={"app": owner},
            **fields,
        )
        self.fake.put_pod(item)
        self.leader.watch()

    def change(self, item, **fields):
        self.fake.put_pod(replace(self.fake.pods[item.ref.namespace, item.ref.name], **fields))
        self.leader.watch()

    def bind(self, item, names=None):
        """One cycle of kube-scheduler. Returns the node."""
        names = list(self.fake.nodes) if names is None else names
        chosen = self.leader.filter(item, names)
        if chosen is not None:
            self.leader.binder.bind(item.ref, chosen)
            self.leader.watch()
        return chosen

    def ask(self, text="8"):
        waits = self.find("p")
        self.change(waits, labels={**waits.labels, MAKE_ROOM: text})

    def controllers_make(self):
        for owner in sorted(self.controllers):
            if self.of(owner) is None:
                self.make(owner, self.memory[owner])

    def kube_scheduler_binds(self):
        waiting = [item for item in self.fake.pods.values() if not item.node_name]
        for item in sorted(waiting, key=lambda item: item.ref.name):
            self.bind(item)

    def round(self, seconds=1):
        """One step of the mover, then everybody else has a turn."""
        self.leader.mover.step()
        self.leader.watch()
        self.controllers_make()
        self.kube_scheduler_binds()
        self.clock.seconds += seconds

    def run(self, rounds=12):
        for _ in range(rounds):
            self.round()

    @property
    def evictions(self):
        return [
            call.ref.name for call in self.fake.calls_of("request_eviction") if not call.dry_run
        ]

    def told(self, reason):
        return [message for kind, message in self.leader.events if kind == reason]


def is_asking(item):
    return MAKE_ROOM in item.labels or MOVES in item.annotations


def test_the_moves_are_made_in_order_and_the_pod_gets_its_place():
    world = World()
    world.ask()
    world.run()
    assert world.find("p").node_name == "n0"
    assert [name[0] for name in world.evictions] == ["a", "f"]
    assert (world.where("a"), world.where("f")) == ("n1", "n2")
    assert world.told("MovePlanned") == [
        "it fits node n0 after 2 moves of other pods, which are made one by one"
    ]
    assert world.leader.metrics.moves == ["moved", "moved"]
    assert world.told("MoveStopped") == []
    assert not is_asking(world.find("p"))


def test_nobody_else_gets_the_place_meanwhile():
    world = World()
    world.ask()
    world.leader.mover.step()
    world.fake.put_pod(pod(gpus(1, memory=10_000), name="late"))
    world.leader.watch()
    assert world.leader.filter(world.find("late"), ["n0"]) is None


def test_the_next_pod_moves_only_when_the_replacement_is_bound():
    world = World()
    world.ask()
    world.leader.mover.step()
    world.leader.mover.step()
    world.leader.watch()
    assert len(world.evictions) == 1
    world.controllers_make()
    for _ in range(5):
        world.leader.mover.step()
        world.leader.watch()
    assert len(world.evictions) == 1, "made, and not bound"
    world.kube_scheduler_binds()
    world.leader.mover.step()
    assert len(world.evictions) == 2


def test_all_evictions_are_tried_before_the_first():
    world = World()
    world.ask()
    world.leader.mover.step()
    world.leader.mover.step()
    tried = [(call.ref.name[0], call.dry_run) for call in world.fake.calls_of("request_eviction")]
    assert tried == [("a", True), ("f", True), ("a", False)]


@cases("mode", ("none", NONE), ("advise", ADVISE))
def test_nothing_is_written_unless_the_operator_wants_it(mode):
    world = World(mode)
    world.ask()
    world.fake.calls.clear()
    world.run(4)
    assert world.evictions == []
    assert world.fake.calls_of("annotate_pod") == []
    assert len(world.told("MovePlanned")) == (mode == ADVISE)


def test_nobody_is_moved_unless_somebody_asks():
    world = World()
    world.run(4)
    assert world.evictions == []


def refuse(world):
    world.fake.fail("request_eviction", ClusterError("forbidden", 403))


def no_budget(world):
    world.fake.budgets = [
        DisruptionBudget(
            namespace="default",
            name="b",
            selector=(LabelRequirement("app", "In", OWNERS),),
            allowed=0,
        )
    ]


def keep(world):
    world.change(world.of("f"), annotations={**world.of("f").annotations, DO_NOT_MOVE: "true"})


def cordon(world):
    for name in ("n1", "n2"):
        world.fake.put_node(replace(world.fake.nodes[name], unschedulable=True))
    world.leader.watch()


def without_place(world):
    world.make("g", 20_000)
    world.bind(world.of("g"), ["n2"])


def sick_device(world):
    world.fake.put_node(
        node("n0", gpu("GPU-0", memory_mib=CARD, healthy=False), annotations={LOCK_FREE: "NVIDIA"})
    )
    world.leader.watch()


def deleted(world):
    world.fake.delete_pod("default", "p")
    world.leader.watch()


def withdrawn(world):
    world.change(world.find("p"), labels={})


def higher_priority(world):
    world.fake.put_pod(pod(gpus(1, memory=10_000), name="high", priority=100))
    world.leader.watch()
    world.bind(world.find("high"), ["n0"])


def fewer(world):
    world.ask("1")


FACTS = cases(
    "happens, fact",
    ("the API server refuses", refuse, "the API server refuses the eviction (403)"),
    ("kept by its owner", keep, "a pod may be moved no more: annotation hami.io/do-not-move=true"),
    ("no other place", cordon, "pod 1 of 2 that have to move has no other place"),
    ("a place is taken", without_place, "pod 2 of 2 that have to move has no other place"),
    (
        "device",
        sick_device,
        "a device of its place is gone, unhealthy or cordoned, or taken by others",
    ),
    ("deleted", deleted, "it is gone"),
    ("withdrawn", withdrawn, "the request has been withdrawn"),
    ("higher priority", higher_priority, "a pod of higher priority has taken its place"),
)


@FACTS
def test_nobody_is_evicted_if_reality_differs_before(happens, fact):
    world = World()
    world.ask()
    world.leader.mover.step()
    happens(world)
    world.run(3)
    assert world.evictions == []
    assert world.told("MoveStopped") == [f"stopped after 0 of 2 moves for this pod: {fact}"]
    assert world.leader.metrics.moves == ["stopped"]
    waits = world.find("p")
    assert waits is None or not is_asking(waits)


def test_the_moves_stop_after_a_whole_one():
    world = World()
    world.ask()
    world.round()
    world.round()
    keep(world)
    world.run(4)
    assert len(world.evictions) == 1
    assert world.where("a") == "n1"
    (message,) = world.told("MoveStopped")
    assert message.startswith("stopped after 1 of 2 moves")
    world.fake.put_pod(pod(gpus(1, memory=10_000), name="late"))
    world.leader.watch()
    assert world.leader.filter(world.find("late"), ["n0"]) == "n0", "nothing is held any more"


def test_a_budget_is_waited_for_for_some_time_only():
    world = World()
    world.ask()
    world.fake.fail("request_eviction", BUDGET, times=1000)
    world.run(5)
    assert world.told("MoveStopped") == []
    world.clock.seconds += MOVE_TIMEOUT_S
    world.run(2)
    assert world.told("MoveStopped") == [
        "stopped after 0 of 2 moves for this pod: a PodDisruptionBudget permits no eviction now, for 120 s"
    ]
    assert all(call.dry_run for call in world.fake.calls_of("request_eviction"))


def test_a_budget_that_permits_it_again_lets_the_moves_go_on():
    world = World()
    world.ask()
    world.fake.fail("request_eviction", BUDGET, times=4)
    world.run(20)
    assert world.find("p").node_name == "n0"


def test_a_pod_of_a_budget_that_permits_nothing_is_not_planned():
    world = World()
    no_budget(world)
    world.ask()
    world.run(3)
    assert world.told("MoveStopped") == [
        "no pod is moved for this one: it does not fit after 8 moves"
    ]
    assert world.leader.metrics.moves == ["none"]


def test_the_moves_stop_if_the_controller_makes_no_other_pod():
    world = World()
    world.controllers = set()
    world.ask()
    world.run(5)
    assert len(world.evictions) == 1
    world.clock.seconds += MOVE_TIMEOUT_S + 30
    world.run(2)
    (message,) = world.told("MoveStopped")
    assert "the controller of the moved pod has no other one that is bound" in message


def test_a_pod_that_has_left_by_itself_need_not_move():
    world = World()
    world.controllers.discard("a")
    world.ask()
    world.leader.mover.step()
    world.fake.delete_pod("default", world.of("a").ref.name)
    world.leader.watch()
    world.run()
    assert [name[0] for name in world.evictions] == ["f"]
    assert world.find("p").node_name == "n0"


def test_no_more_pods_are_moved_than_were_asked_for():
    world = World()
    world.ask("1")
    world.run(3)
    assert world.evictions == []
    assert world.told("MoveStopped") == [
        "no pod is moved for this one: it does not fit after 1 move"
    ]


@cases("text", ("empty", ""), ("zero", "0"), ("word", "true"), ("many", "21"))
def test_a_request_that_cannot_be_read_is_refused(text):
    world = World()
    world.ask(text)
    world.run(2)
    (message,) = world.told("MoveStopped")
    assert "expected a number of moves from 1 to 20" in message
    assert world.evictions == []


def test_a_pod_that_its_filter_has_not_refused_is_left_alone():
    world = World()
    world.fake.put_pod(pod(gpus(1, memory=CARD), name="new", labels={MAKE_ROOM: "8"}))
    world.leader.watch()
    world.leader.mover.step()
    assert {"MovePlanned", "MoveStopped"}.isdisjoint(world.leader.events.reasons())


def test_pods_of_the_own_controller_stay():
    world = World(controller="f", controller_kind="ReplicaSet")
    world.ask()
    world.run()
    assert world.find("p").node_name
    assert "f" not in [name[0] for name in world.evictions]


def test_after_an_unknown_outcome_the_same_pod_is_looked_at_again():
    world = World()
    world.ask()
    world.leader.mover.step()
    world.fake.fail("request_eviction", ClusterError("no answer", None), after=True, times=3)
    world.run(20)
    assert [name[0] for name in world.evictions] == ["a", "f"]
    assert world.find("p").node_name == "n0"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"node":"n0"}', "{" * 5000, '{"node":"n0","moves":["x"],"version":2}']
)
def test_a_record_that_cannot_be_read_counts_as_none(text):
    world = World()
    waits = world.find("p")
    world.change(waits, annotations={MOVES: text}, labels={MAKE_ROOM: "8"})
    world.next_leader()
    assert parse_moves_record(world.find("p").annotations) is None
    world.run(3)
    assert world.evictions == []


def test_a_forged_record_evicts_nobody():
    """With a record of somebody else, the place is proven again, and so is each move."""
    world = World()
    uids = ",".join(f'"{world.of(owner).ref.uid}"' for owner in ("d", "e"))
    text = f'{{"node":"n1","moves":[{uids}],"made":0,"controller":"","pods":0,"version":1}}'
    world.change(world.find("p"), annotations={MOVES: text}, labels={MAKE_ROOM: "8"})
    world.next_leader()
    world.run(5)
    assert world.evictions == []
    assert len(world.told("MoveStopped")) == 1


def calls_of_all_moves():
    """Returns how many calls the mover makes for all moves."""
    world = World()
    world.fake.calls.clear()
    world.ask()
    world.run()
    return len(world.fake.calls)


CALLS = calls_of_all_moves()


@settings(max_examples=60, deadline=None)
@given(first=integers(0, CALLS), second=integers(0, CALLS), after=integers(0, 1))
def test_the_next_leader_goes_on_wherever_one_dies(first, second, after):
    world = World()
    world.ask()
    for death in (first, second):
        left = [death]

        def dies(call, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        if after:
            world.fake.fail("request_eviction", Killed(), after=True)
        else:
            world.fake.on_call = dies
        try:
            world.run()
        except Killed:
            world.next_leader()
        world.fake.heal()
        world.fake.on_call = lambda call: None
    world.run(16)
    assert world.find("p").node_name == "n0"
    assert sorted(name[0] for name in set(world.evictions)) == ["a", "f"]
    assert len(world.fake.pods) == 5
    assert all(item.node_name for item in world.fake.pods.values())


def test_results_are_known():
    assert MOVE_RESULTS == ("moved", "stopped", "none")


def test_a_leader_whose_first_list_was_late_goes_on_when_it_sees_the_record():
    world = World()
    world.ask()
    world.leader.mover.step()
    world.leader.mover.step()
    assert len(world.evictions) == 1
    world.next_leader()
    world.leader.cache.moves.end_all()
    world.run(14)
    assert world.find("p").node_name == "n0"
    assert [name[0] for name in world.evictions] == ["a", "f"]
    assert world.told("MoveStopped") == []
