"""Resizes of bound pods: what is booked, written and given back, whoever leads meanwhile."""

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers

from hami.codec.allocation import parse_shares
from hami.codec.keys import (
    GPU_ALLOCATED,
    LOCK_FREE,
    NODE_RESIZES,
    RESIZE,
    RESIZE_APPLIED,
    RESIZE_STATUS,
    RESIZE_TARGET,
    RESIZED,
)
from hami.codec.resize import (
    AppliedSizes,
    ResizeState,
    Size,
    held_text,
    parse_status,
    render_applied,
    render_resize,
    wanted_text,
)
from hami.errors import ClusterError, HamiError
from hami.scheduler.resize import PAUSE_S
from hami.scheduler.resize_queue import RETRY_S
from hami.state.promises import ANSWER_S
from hami.state.resize_facts import plan_resize_in
from testing.builders import INIT, content, gpu, gpus, node, pod, quota
from testing.cases import cases
from testing.fake_cluster import no_answer
from testing.replicas import Clock, Replica, WatchedCluster

CARD = 8000


class World:
    """Lock-free nodes whose device plugins resize, and a leading replica."""

    def __init__(self, nodes=1, cards=1):
        self.clock = Clock()
        self.fake = WatchedCluster(
            nodes=[
                node(
                    f"n{number}",
                    *(
                        gpu(f"GPU-{number}-{card}", index=card, memory_mib=CARD)
                        for card in range(cards)
                    ),
                    annotations={LOCK_FREE: "NVIDIA", NODE_RESIZES: "true"},
                )
                for number in range(nodes)
            ]
        )
        self.leader = Replica(self.fake, self.clock)

    def next_leader(self):
        self.leader.leadership.leading = False
        self.leader = Replica(self.fake, self.clock)

    def find(self, name):
        return self.fake.pods.get(("default", name))

    def run(self, name, *containers, **fields):
        """Places and starts a pod. Returns it as it is then."""
        self.fake.put_pod(pod(*containers, name=name, **fields))
        self.leader.watch()
        self.leader.schedule(self.find(name))
        self.change(name, phase="Running", admitted=True)
        return self.find(name)

    def change(self, name, **fields):
        self.fake.put_pod(replace(self.find(name), **fields))
        self.leader.watch()

    def annotate(self, name, **annotations):
        self.change(name, annotations={**self.find(name).annotations, **annotations})

    def ask(self, name, text=None, **sizes):
        """The owner of a pod asks for *sizes*, or writes *text*. The leader sees it."""
        self.annotate(
            name,
            **{
                RESIZE: text
                if text is not None
                else render_resize(
                    {container: Size(**size) for container, size in (sizes or {"c": {}}).items()}
                )
            },
        )
        self.step()

    def step(self):
        self.leader.watch()
        self.clock.seconds += PAUSE_S
        self.leader.resizer.step()
        self.leader.watch()

    def confirm(self, name, sizes=None, problem=""):
        """The device plugin says that it enforces *sizes*, by default what the pod is to have."""
        item = self.find(name)
        self.annotate(
            name,
            **{
                RESIZE_APPLIED: render_applied(
                    AppliedSizes(sizes or wanted_text(item.annotations), problem)
                )
            },
        )
        self.step()

    def status(self, name):
        return parse_status(self.find(name).annotations.get(RESIZE_STATUS))

    def used(self, uuid="GPU-0-0"):
        usage = next(
            usage
            for usage in self.leader.cache.view().nodes[f"n{uuid[4]}"]["NVIDIA"]
            if usage.device.uuid == uuid
        )
        return usage.memory_used_mib, usage.cores_used

    def texts(self, name):
        annotations = self.find(name).annotations
        return [annotations.get(key) for key in (RESIZED, GPU_ALLOCATED, RESIZE_TARGET)]


def small(memory=2000, cores=20, **fields):
    return gpus(1, memory=memory, cores=cores, **fields)


def test_a_pod_grows_and_its_node_confirms():
    world = World()
    world.run("a", small())
    world.ask("a", c={"memory_mib": 6000, "cores": 70})
    larger = "GPU-0-0,NVIDIA,6000,70:;"
    assert world.texts("a") == [larger, larger, None]
    assert world.used() == (6000, 70)
    assert world.status("a").state is ResizeState.BOOKED
    world.confirm("a")
    assert world.status("a").state is ResizeState.APPLIED
    assert world.leader.events.reasons()[-2:] == ["Resizing", "Resized"]
    assert world.leader.metrics.resizes == ["booked", "applied"]
    assert world.leader.resizer.pending() == 0
    assert world.leader.cache.pods.edits_refused == 0


def test_a_pod_shrinks_only_once_its_node_has_confirmed():
    world = World()
    world.run("a", small(6000, 70))
    world.ask("a", c={"memory_mib": 1000})
    held, target = "GPU-0-0,NVIDIA,6000,70:;", "GPU-0-0,NVIDIA,1000,70:;"
    assert world.texts("a") == [held, held, target]
    assert world.used() == (6000, 70)
    world.confirm("a", held)  # of earlier sizes
    assert world.used() == (6000, 70)
    assert world.status("a").state is ResizeState.BOOKED
    world.confirm("a")
    assert world.texts("a") == [target, target, None]
    assert world.used() == (1000, 70)
    assert world.status("a").state is ResizeState.APPLIED


def test_memory_may_grow_while_cores_shrink():
    world = World()
    world.run("a", small(2000, 70))
    world.ask("a", c={"memory_mib": 4000, "cores": 10})
    assert world.texts("a")[1:] == ["GPU-0-0,NVIDIA,4000,70:;", "GPU-0-0,NVIDIA,4000,10:;"]
    assert world.used() == (4000, 70)
    world.confirm("a")
    assert world.used() == (4000, 10)


def test_percent_is_of_each_device():
    world = World()
    world.run("a", small())
    world.ask("a", c={"memory_percent": 50})
    assert world.used() == (4000, 20)


def test_what_is_not_named_stays_as_it_is():
    world = World()
    world.run("a", small(1000, 10), replace(small(2000, 20), name="d"))
    world.ask("a", c={"memory_mib": 500})
    world.ask("a", d={"memory_mib": 3000})
    assert world.texts("a")[0] == "GPU-0-0,NVIDIA,1000,10:;GPU-0-0,NVIDIA,3000,20:;"
    assert world.texts("a")[2] == "GPU-0-0,NVIDIA,500,10:;GPU-0-0,NVIDIA,3000,20:;"


def test_what_does_not_fit_is_booked_when_there_is_room():
    world = World()
    world.run("a", small())
    world.run("b", small(3000, 50))
    before = world.texts("a"), content(world.leader.cache)
    world.ask("a", c={"memory_mib": 6000, "cores": 60})
    status = world.status("a")
    assert status.state is ResizeState.DEFERRED
    assert "at most 5000 MiB and 50 percent fit" in status.message
    assert (world.texts("a"), content(world.leader.cache)) == before
    world.step()
    world.step()
    assert len(world.fake.calls_of("annotate_pod")) == 1
    assert world.leader.resizer.pending() == 1
    world.fake.delete_pod("default", "b")
    world.step()
    assert world.used() == (6000, 60)
    assert world.status("a").state is ResizeState.BOOKED
    assert world.leader.resizer.pending() == 0
    assert [reason for reason in world.leader.events.reasons() if "Resiz" in reason] == [
        "ResizePending",
        "Resizing",
    ]


def test_a_quota_limits_a_resize():
    world = World()
    world.leader.cache.quotas.upsert(quota(gpumem=5000))
    world.run("a", small())
    world.run("b", small())
    world.ask("a", c={"memory_mib": 4000})
    assert "at most 3000 MiB" in world.status("a").message
    assert "quota" in world.status("a").message
    world.ask("a", c={"memory_mib": 3000})
    assert world.used() == (5000, 40)


@pytest.mark.parametrize(
    "size",
    [
        Size(memory_mib=3000),
        Size(memory_mib=3001),
        Size(memory_mib=100, cores=80),
        Size(cores=81),
        Size(cores=100),
        Size(memory_percent=1),
    ],
)
def test_a_view_answers_as_the_scheduler_does(size):
    world = World()
    world.leader.cache.quotas.upsert(quota(gpumem=5000))
    one, node, cache = world.run("a", small()), world.fake.nodes["n0"], world.leader.cache
    world.run("b", small())
    would, does = (
        plan_resize_in(cache.view(), one, {"c": size}, node),
        cache.resizes.begin(one, {"c": size}),
    )
    assert would == does is not None
    cache.resizes.refuse(one)
    assert world.used() == (4000, 40)


def test_a_quota_that_kubernetes_counts_is_not_evaded():
    world = World()
    world.leader.cache.quotas.upsert(
        replace(quota(), requests=frozenset({"nvidia.com/gpumem", "nvidia.com/gpu"}))
    )
    world.run("a", small())
    before = world.used()
    world.ask("a", c={"memory_mib": before[0] + 1})
    status = world.status("a")
    assert status.state is ResizeState.INFEASIBLE
    assert "quota limits requests.nvidia.com/gpumem" in status.message
    assert world.used() == before
    world.ask("a", c={"memory_mib": before[0] - 1})
    assert world.status("a").state is ResizeState.BOOKED


REFUSED = [
    ("garbage", "garbage", "expected sizes by container"),
    ("huge", '{"c": {"memory": "9223372036854775808Gi"}}', "expected a positive quantity"),
    ("10^12 MiB", '{"c": {"memory": "1000000000000Mi"}}', "expected a positive quantity"),
    ("unknown container", '{"x": {"cores": 1}}', "no container x"),
    ("init container", '{"i": {"cores": 1}}', "init container"),
    ("container without a GPU", '{"n": {"cores": 1}}', "has no GPU"),
    (
        "more than the device",
        '{"c": {"memory": "9000Mi"}}',
        "9,000 MiB, and its GPU has 8,000",
    ),
    ("all cores", '{"c": {"cores": 100}}', "at most 99"),
    ("long", "x" * 5000, "at most 4096"),
]


@cases("text, message", *REFUSED)
def test_what_can_never_be_is_refused_once(text, message):
    world = World()
    world.run("a", small(kind=INIT), small(), replace(gpus(0), name="n"))
    containers = world.find("a").containers
    world.change(
        "a", init_done=True, containers=(replace(containers[0], name="i"), *containers[1:])
    )
    before = world.texts("a"), world.used()
    for _ in range(3):
        world.ask("a", text)
    status = world.status("a")
    assert status.state is ResizeState.INFEASIBLE
    assert message in status.message
    assert (world.texts("a"), world.used()) == before
    assert world.leader.resizer.pending() == 0
    assert len(world.fake.calls_of("annotate_pod")) == 1
    assert world.leader.events.reasons().count("ResizeRefused") == 1


def test_a_node_whose_device_plugin_does_not_resize_defers():
    """It does not say that it does while it is replaced."""
    world = World()
    world.run("a", small())
    node = world.fake.nodes["n0"]
    world.fake.put_node(
        replace(
            node,
            annotations={
                key: text for key, text in node.annotations.items() if key != NODE_RESIZES
            },
        )
    )
    world.ask("a", c={"memory_mib": 3000})
    status = world.status("a")
    assert status.state is ResizeState.DEFERRED
    assert "n0 does not change the limits of running" in status.message


def test_a_container_that_has_its_gpu_alone_keeps_it():
    world = World()
    world.run("a", small(2000, 100))
    world.ask("a", c={"cores": 50})
    assert "alone" in world.status("a").message
    assert world.used() == (2000, 100)


def test_a_pod_that_has_not_started_waits():
    world = World()
    world.run("a", small())
    world.change("a", phase="Pending")
    world.ask("a", c={"memory_mib": 3000})
    assert world.status("a").state is ResizeState.DEFERRED
    world.change("a", phase="Running")
    world.step()
    assert world.used() == (3000, 20)


def test_an_edited_allocation_is_not_the_base_of_a_resize():
    world = World()
    world.run("a", small())
    world.annotate("a", **{GPU_ALLOCATED: "GPU-0-0,NVIDIA,1,1:;"})
    world.ask("a", c={"cores": 30})
    assert "have been edited" in world.status("a").message
    assert world.used() == (2000, 20)


def test_a_problem_of_the_node_takes_the_growth_back():
    world = World()
    world.run("a", small())
    before = held_text(world.find("a").annotations)
    world.ask("a", c={"memory_mib": 6000})
    world.confirm("a", before, "the file is gone")
    assert world.used() == (6000, 20), "an answer that comes late may be about other sizes"
    assert world.status("a") == replace_status(
        world, "a", ResizeState.INFEASIBLE, "the file is gone"
    )
    world.confirm("a")
    assert world.texts("a") == [before, before, None]
    assert world.used() == (2000, 20)
    assert world.status("a").state is ResizeState.INFEASIBLE


def replace_status(world, name, state, message):
    status = world.status(name)
    return type(status)(state, status.request, message)


@pytest.mark.parametrize(
    "sizes",
    [
        "GPU-0-1,NVIDIA,1000,20:;",
        "GPU-0-0,NVIDIA,7000,20:;",
        "garbage,of,four,x:;",
        ";",
        "x" * 300_000,
    ],
)
@pytest.mark.parametrize("problem", ["", "sorry"])
def test_other_answers_of_a_node_are_ignored(sizes, problem):
    world = World(cards=2)
    world.run("a", small())
    uuid = parse_shares("", world.find("a").annotations[GPU_ALLOCATED])[0][0].uuid
    world.ask("a", c={"memory_mib": 1000})
    before = world.texts("a"), world.status("a")
    world.confirm("a", sizes.replace("GPU-0-0", uuid).replace("GPU-0-1", "GPU-x"), problem)
    assert (world.texts("a"), world.status("a")) == before
    assert world.used(uuid) == (2000, 20)


def test_a_pod_is_answered_once_a_second():
    world = World()
    world.run("a", small())
    for memory in range(3000, 3100):
        world.annotate("a", **{RESIZE: render_resize({"c": Size(memory_mib=memory)})})
        world.clock.seconds += 0.06
        world.leader.resizer.step()
    assert 5 <= len(world.fake.calls_of("annotate_pod")) <= 7
    world.step()
    assert world.used() == (3099, 20)


def test_namespaces_take_turns():
    world = World(cards=8)
    for number in range(60):
        world.run(f"a{number}", small(100, 1))
    world.fake.put_pod(pod(small(100, 1), name="b", namespace="other"))
    world.leader.watch()
    world.leader.schedule(world.fake.pods["other", "b"])
    for item in list(world.fake.pods.values()):
        world.fake.put_pod(
            replace(
                item,
                phase="Running",
                annotations={**item.annotations, RESIZE: render_resize({"c": Size(cores=2)})},
            )
        )
    world.step()
    assert RESIZE_STATUS in world.fake.pods["other", "b"].annotations
    assert len(world.fake.calls_of("annotate_pod")) < 60


def grow_with(world, error, after):
    world.run("a", small())
    world.fake.fail("annotate_pod", error, after=after)
    world.ask("a", c={"memory_mib": 6000})


@pytest.mark.parametrize("error", [ClusterError("denied", 403), ClusterError("too many", 429)])
def test_a_growth_that_is_refused_is_not_booked(error):
    world = World()
    grow_with(world, error, after=False)
    assert world.used() == (2000, 20)
    assert not world.leader.cache.is_writing()
    world.step()
    assert world.used() == (6000, 20)


@pytest.mark.parametrize("after", [False, True])
def test_a_growth_whose_outcome_is_unknown_stays_booked(after):
    world = World()
    world.run("a", small())
    world.fake.fail("annotate_pod", no_answer(), after=after)
    world.annotate("a", **{RESIZE: render_resize({"c": Size(memory_mib=6000)})})
    world.clock.seconds += 1
    world.leader.resizer.step()
    assert world.used() == (6000, 20)
    assert world.leader.cache.is_writing()
    assert world.leader.filter(pod(small(4000), name="b")) is None
    world.step()
    assert world.used() == (6000, 20)
    assert not world.leader.cache.is_writing()
    assert world.texts("a")[0] == "GPU-0-0,NVIDIA,6000,20:;"


def test_a_growth_that_nobody_answers_for_is_given_up():
    world = World()
    grow_with(world, no_answer(), after=False)
    world.fake.fail("annotate_pod", ClusterError("denied", 403), times=1000)
    for _ in range(int(ANSWER_S) + 5):
        world.step()
    assert world.used() == (2000, 20)
    assert not world.leader.cache.is_writing()


def test_another_change_of_the_pod_ends_an_unknown_growth():
    world = World()
    grow_with(world, no_answer(), after=False)
    assert world.leader.cache.is_writing()
    world.annotate("a", other="x")
    assert world.used() == (2000, 20)
    assert not world.leader.cache.is_writing()


def test_the_end_of_a_pod_ends_its_growth():
    for end in ("deleted", "terminated"):
        world = World()
        grow_with(world, no_answer(), after=False)
        if end == "deleted":
            world.fake.delete_pod("default", "a")
        else:
            world.change("a", phase="Succeeded")
        world.step()
        assert world.used() == (0, 0)
        assert world.leader.resizer.pending() == 0
        assert not world.leader.cache.is_writing()


def test_a_next_leader_goes_on():
    world = World()
    world.run("a", small(6000, 20))
    world.ask("a", c={"memory_mib": 1000})
    world.next_leader()
    world.confirm("a")
    assert world.used() == (1000, 20)
    assert world.status("a").state is ResizeState.APPLIED
    world.leader.leadership.leading = False
    world.ask("a", c={"memory_mib": 3000})
    assert world.used() == (1000, 20)
    world.next_leader()
    world.step()
    assert world.used() == (3000, 20)


def test_nothing_is_written_after_the_end_of_the_leadership():
    world = World()
    world.run("a", small())
    world.leader.leadership.leads_until = lambda: world.clock() - 1
    world.ask("a", c={"memory_mib": 3000})
    assert world.fake.calls_of("annotate_pod") == []
    assert world.used() == (2000, 20)
    assert not world.leader.cache.is_writing()


def test_a_write_ends_before_the_leadership():
    world = World()
    world.run("a", small())
    world.leader.leadership.leads_until = lambda: world.clock() + 2
    world.ask("a", c={"memory_mib": 3000})
    assert [call.timeout for call in world.fake.calls_of("annotate_pod")] == [2]


def preempting(priority=1, need=6000, **fields):
    """The card is full with *low*, 6,000 MiB, and *a*, of this *priority*. The pod *p* needs what *low* has."""
    world = World()
    world.run("low", small(6000, 0), priority=1)
    world.run("a", small(2000, 0), priority=priority)
    world.fake.put_pod(pod(small(need, 0), name="p", priority=9, **fields))
    world.leader.watch()
    assert world.leader.filter(world.find("p")) is None
    world.clock.seconds += 1
    return world


def has_ended(world, name):
    world.fake.delete_pod("default", name)
    world.leader.watch()


@cases("priority", ("lower", 1), ("equal", 9), ("higher", 20))
def test_what_is_held_for_a_pod_is_not_taken_by_a_resize(priority):
    """Neither while its victims end nor once they have ended. A pod that grows has room already."""
    world = preempting(priority)
    world.leader.preemptor.step()
    world.ask("a", c={"memory_mib": 3000})
    assert world.status("a").state is ResizeState.DEFERRED
    has_ended(world, "low")
    world.step()
    assert world.status("a").state is ResizeState.DEFERRED
    assert world.leader.filter(world.find("p")) == "n0"


def test_what_is_left_beside_a_hold_may_be_taken_by_a_resize():
    world = preempting(need=5000)
    world.leader.preemptor.step()
    has_ended(world, "low")
    world.ask("a", c={"memory_mib": 3001})
    assert world.status("a").state is ResizeState.DEFERRED
    world.ask("a", c={"memory_mib": 3000})
    assert world.status("a").state is ResizeState.BOOKED
    assert world.used() == (8000, 0)
    assert world.leader.filter(world.find("p")) == "n0"


def test_what_a_victim_gives_back_is_held():
    world = preempting()
    world.ask("low", c={"memory_mib": 1000})
    world.leader.preemptor.step()
    world.confirm("low")
    world.ask("a", c={"memory_mib": 3000})
    assert world.status("a").state is ResizeState.DEFERRED


def test_a_growth_is_not_planned_away():
    """What a pod grows by is booked before it is written: nobody is evicted for less room than there is."""
    world = World()
    world.run("low", small(2000, 0), priority=1)
    one = world.run("a", small(2000, 0), priority=9)
    world.leader.cache.resizes.begin(one, {"c": Size(memory_mib=6000)})
    world.fake.put_pod(pod(small(6000, 0), name="p", priority=9))
    world.leader.watch()
    assert world.leader.filter(world.find("p")) is None
    world.clock.seconds += 1
    world.leader.preemptor.step()
    assert world.leader.cache.preemptions.promised() == []
    assert not world.find("low").deletion


@cases("gone", ("while one ends", ("low",)), ("once all have ended", ("low", "last")))
def test_what_kube_scheduler_frees_is_not_taken_by_a_resize(gone):
    """Also before the preemptor has seen it and holds it."""
    world = World()
    world.run("a", small(2000, 0), priority=1)
    for victim in ("low", "last"):
        world.run(victim, small(3000, 0), priority=1)
        world.change(victim, preempted=True)
    world.fake.put_pod(pod(small(6000, 0), name="p", priority=9, nominated_node="n0"))
    for name in gone:
        has_ended(world, name)
    world.ask("a", c={"memory_mib": 3000})
    assert world.status("a").state is ResizeState.DEFERRED
    assert "evicted" in world.status("a").message
    world.fake.put_pod(replace(world.find("p"), nominated_node=""))
    world.clock.seconds += RETRY_S
    world.step()
    assert world.status("a").state is ResizeState.BOOKED


def test_a_nomination_that_comes_to_nothing_keeps_nobody_from_growing():
    world = preempting(need=7000)
    world.change("p", nominated_node="n0")
    has_ended(world, "low")
    world.ask("a", c={"memory_mib": 3000})
    assert world.status("a").state is ResizeState.BOOKED


class Chaos:
    """Random resizes, faults, leaders and device plugins.

    *views*: the pods as their device plugins have seen them, perhaps a while ago. *enforced*: what these enforce.
    """

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.world = World(nodes=2, cards=2)
        self.number = self.edits = 0
        self.views, self.enforced = {}, {}

    def check(self):
        """No more is booked than a card has, and no more is enforced than is booked, whatever has been seen."""
        pods = {item.ref.uid: item for item in self.bound()}
        booked = {uid: held_text(item.annotations) for uid, item in pods.items()}
        assert all(
            memory <= CARD and cores <= 100 for memory, cores in charges(booked.values()).values()
        )
        for uid, text in booked.items():
            held, enforced = charges([text]), charges([self.enforced.get(uid, "")])
            assert all(
                one <= other for uuid in enforced for one, other in zip(enforced[uuid], held[uuid])
            )

    def bound(self):
        return [item for item in self.world.fake.pods.values() if item.node_name]

    def create(self):
        self.number += 1
        world, name = self.world, f"p{self.number}"
        count = self.rng.choice((1, 1, 2))
        own = [
            replace(
                gpus(count, memory=self.rng.randrange(200, 3000), cores=self.rng.randrange(0, 40)),
                name=name,
            )
            for name in ("c", "d")[: self.rng.choice((1, 2))]
        ]
        world.fake.put_pod(pod(*own, name=name))
        try:
            world.leader.schedule(world.find(name))
            world.fake.put_pod(replace(world.find(name), phase="Running", admitted=True))
            self.enforced[f"uid-{name}"] = world.find(name).annotations[GPU_ALLOCATED]
        except (AssertionError, HamiError):
            world.fake.delete_pod("default", name)

    def delete(self):
        if bound := self.bound():
            self.world.fake.delete_pod("default", self.rng.choice(bound).ref.name)

    def edit(self):
        if bound := self.bound():
            item, rng = self.rng.choice(bound), self.rng
            sizes = {
                container.name: rng.choice(
                    (
                        Size(memory_mib=rng.randrange(1, rng.choice((3000, CARD + 200)))),
                        Size(cores=rng.randrange(1, 50)),
                        Size(
                            memory_percent=rng.randrange(1, 60),
                            cores=rng.randrange(1, 110) % 101 or 1,
                        ),
                    )
                )
                for container in item.containers
                if rng.random() < 0.8
            }
            text = (
                render_resize(sizes)
                if sizes and rng.random() < 0.95
                else rng.choice(("", "{}", "x", "[1]"))
            )
            self.put(item, **{RESIZE: text})
            self.edits += 1

    def put(self, item, **annotations):
        self.world.fake.put_pod(replace(item, annotations={**item.annotations, **annotations}))

    def enforce(self):
        """A device plugin sees a pod, or has a look at what it has seen, and answers if nothing has changed since."""
        if not (bound := self.bound()):
            return
        uid = (item := self.rng.choice(bound)).ref.uid
        if uid not in self.views or self.rng.random() < 0.5:
            self.views[uid] = item
        view = self.views[uid]
        if view.annotations.get(RESIZED):
            problem = self.rng.choice(("", "", "", "", "a problem"))
            if not problem or uid not in self.enforced:
                self.enforced[uid] = wanted_text(view.annotations)
            if view.resource_version == item.resource_version and self.rng.random() < 0.8:
                self.put(
                    item,
                    **{
                        RESIZE_APPLIED: render_applied(
                            AppliedSizes(
                                self.rng.choice(
                                    (self.enforced[uid],) * 8 + ("GPU-x,NVIDIA,1,1:;", "?")
                                ),
                                problem,
                            )
                        )
                    },
                )

    def fault(self):
        error = self.rng.choice(
            (no_answer(), ClusterError("busy", 503), ClusterError("denied", 403))
        )
        method = self.rng.choice(("annotate_pod", "annotate_pod", "pod"))
        self.world.fake.fail(method, error, after=self.rng.random() < 0.7 and error.status != 403)
        self.watch()
        self.edit()
        self.watch()
        self.decide()
        self.create()

    def touch(self):
        if bound := self.bound():
            self.put(self.rng.choice(bound), touched=str(self.number))

    def lead(self):
        if self.rng.random() < 0.5:  # it dies before or after a write that is under way
            self.fault()
            self.decide()
        self.world.fake.heal()
        self.world.next_leader()

    def decide(self):
        self.world.clock.seconds += self.rng.choice((0.1, 1.0, 3.0))
        self.world.leader.resizer.step()
        self.check()

    def watch(self):
        self.world.leader.watch()

    def step(self):
        (action,) = self.rng.choices(
            (
                self.create,
                self.delete,
                self.edit,
                self.enforce,
                self.fault,
                self.touch,
                self.lead,
                self.decide,
                self.watch,
            ),
            (10, 6, 15, 40, 6, 4, 1, 40, 40),
        )
        action()
        self.check()

    def settle(self):
        """Lets everything come to rest: no faults, and device plugins that answer what they read."""
        self.world.fake.heal()
        for _ in range(8):
            self.world.leader.watch()
            for item in self.bound():
                if item.annotations.get(RESIZED):
                    self.enforced[item.ref.uid] = wanted_text(item.annotations)
                    answer = render_applied(AppliedSizes(self.enforced[item.ref.uid]))
                    if item.annotations.get(RESIZE_APPLIED) != answer:
                        self.put(item, **{RESIZE_APPLIED: answer})
            self.world.leader.watch()
            self.world.clock.seconds += RETRY_S + 1
            for _ in range(3):
                self.world.leader.resizer.step()
                self.world.clock.seconds += 1
                self.world.leader.watch()
                self.check()


def charges(texts):
    """MiB and percent by device in allocations."""
    taken = {}
    for share in (share for text in texts for shares in parse_shares("", text) for share in shares):
        memory, cores = taken.get(share.uuid, (0, 0))
        taken[share.uuid] = memory + share.memory_mib, cores + share.cores
    return taken


@settings(max_examples=10, deadline=None)
@given(integers(0, 2**32 - 1))
def test_a_thousand_edits_never_book_more_than_a_card(seed):
    chaos = Chaos(seed)
    for _ in range(3):
        chaos.create()
    while chaos.edits < 100:
        chaos.step()
    chaos.settle()
    cache = chaos.world.leader.cache
    assert not cache.is_writing()
    assert cache.pods.edits_refused == 0
    booked = {
        usage.device.uuid: (usage.memory_used_mib, usage.cores_used)
        for devices in cache.view().nodes.values()
        for usage in devices["NVIDIA"]
        if usage.slots_used
    }
    assert booked == charges(held_text(item.annotations) for item in chaos.bound())
    assert content(cache) == content(Replica(chaos.world.fake, chaos.world.clock).cache), (
        "nothing leaks"
    )
    for item in chaos.bound():
        status = parse_status(item.annotations.get(RESIZE_STATUS))
        assert RESIZE_TARGET not in item.annotations
        assert item.annotations.get(RESIZED) in (None, item.annotations[GPU_ALLOCATED])
        if RESIZE in item.annotations:
            assert status.request == item.annotations[RESIZE][:4096]
            assert status.state is not ResizeState.BOOKED
        if status is not None and status.state is ResizeState.APPLIED:
            for name, size in json.loads(item.annotations[RESIZE]).items():
                position = [container.name for container in item.containers].index(name)
                for share in parse_shares("", item.annotations[GPU_ALLOCATED])[position]:
                    assert size.get("cores") in (None, share.cores)
                    memory = size.get("memory")
                    assert memory in (None, f"{share.memory_mib}Mi") or memory.endswith("%")


def test_a_pod_on_a_node_of_another_scheduler_is_answered_once_the_node_is_ours():
    world = World()
    world.run("p", gpus(1, memory=1000))
    hidden = world.fake.nodes.pop("n0")
    world.leader.relist()
    world.ask("p", c={"memory_mib": 2000})
    assert RESIZE_STATUS not in world.find("p").annotations
    world.fake.put_node(hidden)
    world.leader.relist()
    world.clock.seconds += RETRY_S
    world.step()
    assert parse_status(world.find("p").annotations[RESIZE_STATUS]).state is ResizeState.BOOKED
