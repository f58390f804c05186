"""Two schedulers share out nodes by a label, which an operator changes while pods are placed."""

import contextlib
import random
from dataclasses import replace
from datetime import timedelta

import pytest

from hami.codec.keys import LOCK_FREE, NODE_SCHEDULER, SHARD
from hami.codec.selector import parse_selector
from hami.errors import HamiError
from hami.kube.watches import STALE_S
from hami.scheduler.bind import REST_S
from hami.scheduler.settings import Settings
from tests.builders import gpu, gpus, node, pod
from tests.world import Clock, Replica, WatchedCluster

CARD = 1000
FIRST = Settings(node_selector=f"!{SHARD}", other_shards=("hami-scheduler-b",))
SECOND = Settings(
    node_selector=f"{SHARD}=b", scheduler_name="hami-scheduler-b", other_shards=("hami-scheduler",)
)


class Shard(Replica):
    """The scheduler of a shard: its watch shows the nodes that its selector selects. It trusts what it knows of the
    nodes for STALE_S seconds, as the leadership of the program does."""

    def __init__(self, fake, clock, settings):
        self.selects = parse_selector(settings.node_selector)
        self.seen_at = clock()
        super().__init__(fake, clock, settings=settings)

    def relist(self):
        hidden = [name for name, item in self.fake.nodes.items() if not self.selects(item.labels)]
        kept = {name: self.fake.nodes.pop(name) for name in hidden}
        super().relist()
        self.fake.nodes.update(kept)

    def deliver(self, kind, news):
        super().deliver(
            kind,
            [
                (verb if kind == "pods" or self.selects(item.labels) else "remove", item)
                for verb, item in news
            ],
        )

    def see(self, *kinds):
        """Delivers all changes."""
        self.watch(*kinds)
        if not kinds or "nodes" in kinds:
            self.seen_at, self.leadership.leading = self.clock(), True

    def trust(self):
        """Ends the leadership while what is known of the nodes is stale."""
        self.leadership.leading = self.clock() - self.seen_at < STALE_S


class World:
    """Nodes of one card, which no pod shares, and both schedulers."""

    def __init__(self, nodes=1):
        self.clock = Clock()
        self.fake = WatchedCluster(
            nodes=[  # a bind that locked them would read their labels
                node(
                    f"n{number}",
                    gpu(f"GPU-{number}", memory_mib=CARD),
                    annotations={LOCK_FREE: "NVIDIA"},
                )
                for number in range(nodes)
            ]
        )
        self.first, self.second = (
            Shard(self.fake, self.clock, settings) for settings in (FIRST, SECOND)
        )
        self.count = 0
        self.both(lambda shard: shard.controller.step())

    def both(self, act):
        for shard in (self.first, self.second):
            act(shard)

    def move(self, name, label):
        item = self.fake.nodes[name]
        labels = {key: text for key, text in item.labels.items() if key != SHARD} | (
            {SHARD: label} if label else {}
        )
        self.fake.put_node(replace(item, labels=labels))

    def new_pod(self, **fields):
        self.count += 1
        return self.fake.put_pod(
            pod(gpus(1, memory=CARD), name=f"p{self.count}", phase="Pending", **fields)
        )

    def owner(self, name="n0"):
        return self.fake.nodes[name].annotations.get(NODE_SCHEDULER)

    def wait(self, seconds):
        """Lets time pass, in which the watches and the controllers go on."""
        self.clock.seconds += seconds
        self.both(Shard.see)
        self.both(lambda shard: shard.controller.step())
        self.both(Shard.see)


def test_a_node_that_named_nobody_is_claimed_and_used_at_once():
    world = World()
    assert world.owner() == "hami-scheduler"
    assert world.first.filter(world.new_pod()) == "n0"
    assert world.second.filter(world.new_pod()) is None


def test_a_node_of_another_scheduler_rests_before_it_is_used():
    world = World()
    world.move("n0", "b")
    world.second.see()
    failed = world.second.node_filter.filter(world.new_pod(), ["n0"]).unresolvable
    assert failed == {"n0": "node has belonged to scheduler hami-scheduler, and is claimed first"}
    world.wait(1)
    assert world.owner() == f"hami-scheduler-b {world.clock.now():%Y-%m-%dT%H:%M:%SZ}"
    (text,) = world.second.node_filter.filter(world.new_pod(), ["n0"]).unresolvable.values()
    until = world.clock.now() + timedelta(seconds=REST_S)
    assert text == (
        f"node rests until {until:%H:%M:%S} UTC, since the scheduler that has had it may still bind pods "
        "to it"
    )
    world.wait(REST_S - 1)
    assert world.second.filter(world.new_pod()) is None
    world.wait(1)
    assert world.owner() == "hami-scheduler-b"
    assert world.second.filter(world.new_pod()) == "n0"


@pytest.mark.parametrize(
    "text, shown",
    [
        ("x" * 250_000, "node has belonged to scheduler " + "x" * 300 + ", and is claimed first"),
        (
            "x 9999-12-31T23:59:59Z",
            "node rests until 00:02:34 UTC, since the scheduler that has had it may still bind pods "
            "to it",
        ),
    ],
    ids=["long", "the end of time"],
)
def test_what_anybody_has_written_on_a_node_is_bounded_and_claimed_anew(text, shown):
    world = World()
    world.fake.put_node(
        replace(
            world.fake.nodes["n0"],
            annotations={**world.fake.nodes["n0"].annotations, NODE_SCHEDULER: text},
        )
    )
    world.first.see()
    assert world.first.node_filter.filter(world.new_pod(), ["n0"]).unresolvable == {"n0": shown}
    world.wait(1)
    assert world.owner().startswith("hami-scheduler 20")


def test_a_replica_that_has_just_started_lets_a_node_rest_once_more():
    world = World()
    world.move("n0", "b")
    world.wait(1)
    world.wait(REST_S - 1)
    world.second = Shard(world.fake, world.clock, SECOND)
    world.wait(REST_S - 1)
    assert world.second.filter(world.new_pod()) is None
    world.wait(1)
    assert world.second.filter(world.new_pod()) == "n0"


def test_the_pods_that_the_other_scheduler_has_bound_last_are_read_before_the_first_binding():
    world = World()
    late, own = world.new_pod(), world.new_pod()
    world.first.see()
    assert world.first.filter(late) == "n0"
    world.move("n0", "b")
    world.second.see()
    world.second.controller.step()
    world.clock.seconds += 1
    world.second.pods.prune(
        {item.ref.uid for item in world.fake.pods.values()}, world.clock()
    )  # it reads them once
    world.first.binder.bind(late.ref, "n0")  # it has not seen the label
    world.clock.seconds += REST_S
    world.second.see("nodes")
    world.second.controller.step()
    world.second.see("nodes")
    assert world.second.filter(own) == "n0"  # it has not seen the pod
    with pytest.raises(HamiError, match="was taken by another pod meanwhile"):
        world.second.binder.bind(own.ref, "n0")


def test_without_a_selector_nothing_is_written_and_no_node_rests():
    fake = WatchedCluster(
        nodes=[node("n0", gpu("GPU-0"), annotations={NODE_SCHEDULER: "hami-scheduler-b"})]
    )
    alone = Replica(fake, Clock())
    alone.controller.step()
    assert fake.nodes["n0"].annotations[NODE_SCHEDULER] == "hami-scheduler-b"
    assert alone.filter(fake.put_pod(pod(gpus(1, memory=10)))) == "n0"


@pytest.mark.parametrize("seed", range(40))
def test_no_card_is_given_out_twice_while_its_node_moves(seed):
    """Watches lag behind, also that of one scheduler alone, and pods are bound long after they were filtered."""
    rng, world, chosen = random.Random(seed), World(), []
    for _ in range(300):
        shard = rng.choice((world.first, world.second))
        world.both(Shard.trust)
        match rng.choice(
            ("move", "filter", "filter", "bind", "bind", "see", "see", "control", "pass", "end")
        ):
            case "move":
                world.move("n0", rng.choice(("", "b")))
            case "filter" if (
                shard.leadership.leading and shard.filter(made := world.new_pod()) is not None
            ):
                chosen.append((shard, made.ref))
            case "bind" if chosen:
                binding, ref = chosen.pop(rng.randrange(len(chosen)))
                if binding.leadership.leading:
                    with contextlib.suppress(HamiError):
                        binding.binder.bind(ref, "n0")
            case "see":
                shard.see(*rng.choice(((), ("nodes",), ("pods",))))
            case "control" if shard.leadership.leading:
                shard.controller.step()
            case "pass":
                world.clock.seconds += rng.choice((1, 1, STALE_S / 2, REST_S))
            case "end":
                for key in [key for key, item in world.fake.pods.items() if item.node_name]:
                    world.fake.delete_pod(*key)
                world.both(lambda shard: shard.see("pods"))
        assert sum(memory for _, memory, _ in world.fake.charges("n0").values()) <= CARD
