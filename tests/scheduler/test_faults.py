"""Under faults and kills, no device is handed out twice, no bound pod loses its devices, and no lock is left behind.

A storm is a random but repeatable run of two replicas that share a cluster and elect their leader with a Lease. What
holds is judged after every step, by what the API server has alone. Between any call of one replica and its effect other
things may happen: another replica may lead by then.
"""

import logging
import random
import threading
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis.strategies import integers

from hami.codec.allocation import parse_shares
from hami.codec.keys import ASSIGNED_NODE, BIND_PHASE, LOCK_FREE
from hami.errors import ClusterError, HamiError
from hami.kube.election import Election, Participant
from hami.scheduler.leadership import Leadership
from hami.state.sighting import OBSERVED_S
from hami.state.view import Policies
from testing.builders import INIT, NVIDIA, device_usage, gpu, gpus, node, pod
from testing.cases import cases
from testing.fake_cluster import never_sent, no_answer
from testing.replicas import SETTINGS, Clock, Replica, WatchedCluster

PLACEMENTS, STORMS = 700, 5  # of a storm; storms for each of LOCK_FREE_NODES: 10,500 Bindings
LOCK_FREE_NODES = ("", "some", "all")  # "some" change now and then

READS = ("pod", "node", "pods_on", "pods_labeled")
CALLS = (*READS, "annotate_pod", "annotate_node", "bind")
FAULTS = (
    no_answer(),
    ClusterError("etcdserver: request timed out", 500),
    ClusterError("unavailable", 503),
    ClusterError("too many requests", 429),
    ClusterError("forbidden", 403),
)


# A hung API server carries out a Binding so many seconds after another replica has taken the lease of one that expired.
ON_THE_WAY = 1.5
SETTLED = 0.5  # the same with lock-free nodes: the next leader waits until it has arrived (hami.kube.election.SETTLE_S)


class Killed(BaseException):
    """The process is killed during a call."""


@dataclass(eq=False)
class Request:
    """A write on its way: it arrives at *due*. *delayed*: by an API server that hung when the sender lost its lease."""

    sender: Any
    due: float
    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    delayed: bool = False
    error: Exception | None = None
    result: Any = None


class Client:
    """The connection of one process: calls that fail, arrive late, are interrupted, or are its last.

    *hangs*: how often the API server hangs at a write with a timeout.
    """

    hangs = 0.01

    def __init__(self, storm):
        self.storm = storm
        self.dead = self.cut_off = False
        for name in (*READS, "annotate_pod", "annotate_node"):
            setattr(self, name, lambda *a, _name=name, **o: self._call(_name, *a, **o))

    def lease(self, namespace, name, **options):
        if self.dead or self.cut_off:
            raise no_answer()
        return self.storm.fake.lease(namespace, name, **options)

    def write_lease(self, lease, **options):
        before = self.lease(lease.namespace, lease.name)
        written = self.storm.fake.write_lease(lease, **options)
        if before is not None and before.holder not in ("", lease.holder) and lease.holder:
            self.storm.take_over()
        if self.storm.stormy and self.storm.rng.random() < 0.01:
            raise no_answer()
        return written

    def bind(self, *arguments, timeout):
        self._write("bind", arguments, {}, timeout)

    def _write(self, name, arguments, options, timeout):
        """It arrives within *timeout*, or later if the API server hangs; another replica may lead by then."""
        storm, rng = self.storm, self.storm.rng
        self._live()
        assert timeout > 0, "no time for the write"
        sent = storm.clock()
        fate = rng.random() if storm.stormy else 1.0
        if fate < 0.01:
            raise rng.choice(FAULTS)
        if fate < 0.03:
            storm.unconnected += 1
            storm.meanwhile(moves=0.5)
            storm.advance(max(0.0, sent + timeout - storm.clock()))
            self._live()
            raise never_sent()
        hung = fate < 0.03 + self.hangs
        due = sent + (
            rng.uniform(timeout, 25.0) if hung else rng.choice((0.0, rng.uniform(0.0, timeout)))
        )
        request = storm.send(self, due, name, arguments, options)
        storm.meanwhile(moves=0.02)
        self._live()
        storm.advance(max(0.0, (sent + timeout if hung else due) - storm.clock()))
        self._live()
        if hung:  # a good time to ask for the leadership
            for replica in storm.replicas:
                replica.election.need()
            storm.advance(5.0)
        if hung or fate < 0.04 + self.hangs:
            raise rng.choice(FAULTS[:3])
        if request.error is not None:
            raise request.error
        self.dead = fate < 0.045 + self.hangs
        self._live()
        return request.result

    def _call(self, name, *arguments, **options):
        storm, rng = self.storm, self.storm.rng
        self._live()
        storm.meanwhile()
        self._live()
        fate = rng.random() if storm.stormy else 1.0
        if fate < 0.01:
            raise rng.choice(FAULTS)
        if fate < 0.02 and name == "annotate_node":
            storm.send(self, storm.clock() + rng.uniform(0, 25), name, arguments, options)
            raise no_answer()
        result = getattr(storm.fake, name)(*arguments, **options)
        if fate < 0.03:
            raise rng.choice(FAULTS[:3])
        if fate < 0.035:
            self.dead = True
        self._live()
        storm.meanwhile()
        self._live()
        return result

    def _live(self):
        if self.dead:
            raise Killed


class StormLeadership(Leadership):
    """A verb does not wait for the leadership: nothing else would run meanwhile."""

    def wait_until_leading(self, timeout):
        self._election.need()
        return self.leads()


class Storm:
    """Two replicas, at most one of which leads; pods come and go; watches delay, lose, repeat and reorder events."""

    client = Client
    settings = SETTINGS
    of_nodes: dict[str, str] = {}  # annotations

    def __init__(self, seed, lock_free):
        self.seed, self.rng = seed, random.Random(seed)
        random.seed(seed)  # of the pauses between attempts
        self.clock = Clock()
        cards = {
            n: [gpu(f"GPU-{n}{g}", index=g, memory_mib=8000, slots=5) for g in range(3)]
            for n in range(4)
        }
        self.lock_free = lock_free
        self.fake = WatchedCluster(
            copies_labels=bool(seed % 2),
            nodes=[
                node(
                    f"n{n}",
                    *cards[n],
                    annotations={
                        **self.of_nodes,
                        **({LOCK_FREE: "NVIDIA"} if self.lock_free == "all" else {}),
                    },
                )
                for n in cards
            ],
        )
        self.late = []
        self.assigned = {}
        self.stormy, self.depth, self.made, self.seen = True, 0, 0, (0, 0)
        self.kept = {}
        self.kills = self.moves = self.unconnected = 0
        self.ended = set()
        self.replicas = [self.start(0), self.start(1)]

    def start(self, number):
        replica = Replica(
            self.fake,
            self.clock,
            cluster=self.client(self),
            settings=self.settings,
            leadership=self.join,
            sleep=self.advance,
            policies=Policies(node=("binpack", "spread", "spread")[self.seed % 3]),
        )
        replica.number, replica.client, replica.due = number, replica.cluster, self.clock()
        return replica

    def join(self, replica):
        """Returns the leadership of a new process. Its successors know when it has ended."""
        self.made += 1
        replica.identity = f"process {self.made}"

        replica.election = Election(
            replica.cluster,
            Participant(
                namespace="hami",
                lease="scheduler",
                identity=replica.identity,
                has_ended=self.ended.__contains__,
                is_writing=lambda: replica.cache.open_bindings.are_binding(),
            ),
            clock=self.clock,
            now=self.clock.now,
        )
        return StormLeadership(replica.election, replica.relist, clock=self.clock)

    def elect(self, replica):
        election, term = replica.election, replica.election.term
        replica.due = self.clock() + max(0.01, election.step())
        self.moves += election.term > term and election.is_leader()
        if election.is_leader() and not replica.leadership.leads():
            replica.leadership.step()
            replica.due = min(replica.due, self.clock() + 0.1)

    def take_over(self):
        """A replica has taken the lease of another, which expired."""
        latest = self.clock() + (SETTLED if self.lock_free else ON_THE_WAY)
        for request in self.late:
            request.due, request.delayed = (
                min(request.due, self.rng.uniform(self.clock(), latest)),
                True,
            )

    @property
    def leader(self):
        """The replica that leads; another one if none does."""
        leading = [replica for replica in self.replicas if replica.leadership.leads()]
        assert len(leading) <= 1
        return leading[0] if leading else self.rng.choice(self.replicas)

    def meanwhile(self, moves=0.0):
        """What else happens while a call is on its way; *moves*: how likely it is that the leadership is lost then."""
        moved = self.stormy and self.depth < 2 and self.rng.random() < moves
        if moved or (self.stormy and self.depth < 2 and self.rng.random() < 0.04):
            self.depth += 1
            if moved:
                self.move()
            for _ in range(self.rng.randint(1, 6)):
                self.step()
            self.depth -= 1

    def step(self):
        steps, weights = zip(*self.steps.items())
        (act,) = self.rng.choices(steps, weights)
        try:
            act(self)
        except (HamiError, Killed):
            pass
        for number, replica in enumerate(self.replicas):
            if replica.client.dead:
                self.restart(number)
        self.check()

    def restart(self, number):
        self.ended.add(self.replicas[number].identity)
        self.kills += 1
        self.replicas[number] = self.start(number)

    # what can happen

    def create(self):
        if sum(not p.node_name for p in self.fake.pods.values()) >= 8:
            return
        self.made += 1
        # names come again with another uid
        name = f"p{self.rng.randrange(60)}"
        if ("default", name) not in self.fake.pods:
            self.fake.put_pod(
                pod(
                    *self.asks(),
                    name=name,
                    uid=f"uid-{self.made}",
                    phase="Pending",
                    scheduler_name="hami-scheduler",
                    **self.of_pod(),
                )
            )

    def asks(self):
        """Returns the containers of a new pod."""
        rng = self.rng
        asks = [
            gpus(
                rng.choice((1, 1, 1, 1, 2)),
                memory=rng.choice((500, 500, 1000, 2000, 3000, 8000)),
                cores=rng.choice((0, 0, 10, 20, 30, 100)),
            )
            for _ in range(rng.choice((1, 1, 1, 2)))
        ]
        if rng.random() < 0.2:
            asks.append(gpus(1, memory=4000, cores=30, kind=INIT))
        return asks

    def of_pod(self):
        """Returns other fields of a new pod."""
        return {}

    def schedule(self):
        self.filter()
        self.bind()

    def filter(self):
        waiting = [p for p in self.fake.pods.values() if not p.node_name and not p.is_terminated]
        if not waiting:
            return
        asked, replica = self.rng.choice(waiting), self.leader
        chosen = replica.filter(asked)
        if chosen is not None:
            self.assigned[asked.ref] = chosen, replica.number
        elif self.rng.random() < 0.5:  # room for others
            if self.fake.pods.get((asked.ref.namespace, asked.ref.name)) is asked:
                self.fake.delete_pod(asked.ref.namespace, asked.ref.name)

    def bind(self):
        if not self.assigned:
            return
        ref = (
            self.rng.choice(list(self.assigned))
            if self.rng.random() < 0.3
            else list(self.assigned)[-1]
        )
        chosen, number = self.assigned[ref] if self.rng.random() < 0.05 else self.assigned.pop(ref)
        self.replicas[number].binder.bind(ref, chosen)

    def burst(self):
        for _ in range(4):
            try:
                self.schedule()
            except HamiError:
                pass
            if self.rng.random() < 0.9:
                self.allocate()
                self.watch_some(self.leader)

    def allocate(self):
        for name in self.fake.nodes:
            if self.rng.random() < 0.9:
                self.fake.allocate(name, releases=self.rng.random() < 0.95)

    def finish(self):
        running = [p for p in self.fake.pods.values() if p.phase == "Running"]
        if running:
            done = self.rng.choice(running)
            if self.rng.random() < 0.5:
                self.fake.put_pod(replace(done, init_done=True))
            else:
                self.fake.put_pod(replace(done, phase=self.rng.choice(("Succeeded", "Failed"))))

    def delete(self):
        for _ in range(self.rng.randint(0, len(self.fake.pods) // 3)):
            gone = self.rng.choice(list(self.fake.pods.values()))
            if self.rng.random() < 0.3:
                self.fake.put_pod(replace(gone, deleting=True))
            else:
                self.fake.delete_pod(gone.ref.namespace, gone.ref.name)

    def watch(self):
        for replica in self.replicas:
            self.watch_some(replica)

    def watch_some(self, replica):
        """Nodes and pods are watched apart: one may be far behind the other. A watch of pods may be interrupted."""
        replica.is_watching = self.rng.random() < 0.8
        for kind in ("nodes", "pods"):
            replica.watch(kind, events=self.rng.choice((0, 4, None, None, None)))

    def disturb(self):
        """Lose events until the next list, repeat some, or change their order."""
        replica, kind = self.rng.choice(self.replicas), self.rng.choice(("nodes", "pods"))
        at, history = replica.cursors[kind], self.fake.history[kind]
        match self.rng.randrange(3):
            case 0:
                replica.cursors[kind] = min(len(history), at + self.rng.randint(1, 10))
            case 1:
                replica.cursors[kind] = max(0, at - self.rng.randint(1, 20))
                replica.watch(kind, events=at - replica.cursors[kind])
            case 2:
                replica.deliver(kind, history[at : at + 4][::-1])

    def list(self):
        self.rng.choice(self.replicas).relist()

    def tick(self):
        self.rng.choice(self.replicas).controller.step()

    def wait(self):
        self.advance(
            self.rng.choice((0.1, 1.0, 2.0))
            if self.depth
            else self.rng.choice((0.1, 1.0, 5.0, 20.0))
        )

    def jump(self):
        """The time of day jumps. Locks contain it in seconds: two that are written in the same one look alike."""
        self.clock.jump(timedelta(hours=self.rng.uniform(-2, 2)))

    def move(self):
        """The leader loses the API server until its term is over, or another replica asks for the leadership."""
        leader = self.leader
        if self.rng.random() < 0.5:
            leader.client.cut_off = True
            self.advance(self.rng.uniform(5, 15))
            leader.client.cut_off = False
        else:
            for replica in self.replicas:
                replica.election.need()
            self.advance(self.rng.uniform(1, 5))

    def kill(self):
        self.rng.choice(self.replicas).client.dead = True

    def touch_node(self):
        """The kubelet writes its status, which lets compare-and-swaps of others fail. Some nodes become lock-free or
        cease to be."""
        touched = self.rng.choice(list(self.fake.nodes.values()))
        if self.lock_free == "some" and self.rng.random() < 0.3:
            text = "NVIDIA" if not touched.annotations.get(LOCK_FREE) else ""
            touched = replace(touched, annotations={**touched.annotations, LOCK_FREE: text})
        self.fake.put_node(touched)

    def send(self, sender, due, name, arguments, options):
        """Puts a write on its way."""
        request = Request(sender, due, name, arguments, options)
        self.late.append(request)
        if due <= self.clock():
            self.arrive(request)
        return request

    def arrive(self, request):
        self.late.remove(request)
        try:
            request.result = getattr(self.fake, request.name)(*request.arguments, **request.options)
        except ClusterError as error:
            request.error = error
            return
        if request.name == "bind" and not (request.delayed and self.lock_free != "all"):
            leaders = {replica.client for replica in self.replicas if replica.leadership.leads()}
            assert leaders <= {request.sender}, "a Binding arrives in the term of another leader"

    def advance(self, seconds):
        """Lets time pass: writes arrive, and replicas take part in the election."""
        end = self.clock() + seconds
        while True:
            request = min(self.late, key=lambda one: one.due, default=None)
            replica = min(self.replicas, key=lambda one: one.due)
            due = min(replica.due, request.due if request is not None else replica.due)
            if due > end:
                break
            self.clock.seconds = max(self.clock.seconds, due)
            if request is not None and request.due <= replica.due:
                self.arrive(request)
            else:
                self.elect(replica)
        self.clock.seconds = max(self.clock.seconds, end)

    # what must hold

    def check(self):
        """Nothing is handed out twice; a bound pod has its devices, and keeps them; the lock names who allocates."""
        pods, nodes = self.fake.history["pods"], self.fake.history["nodes"]
        for _, changed in pods[self.seen[0] :]:
            if changed.node_name:
                self.check_pod(changed)
                self.check_node(changed.node_name)
        for _, changed in nodes[self.seen[1] :]:
            self.check_node(changed.name)
        self.seen = len(pods), len(nodes)

    def check_pod(self, bound):
        allocated = bound.annotations.get(NVIDIA.annotations.allocated)
        assert allocated
        assert bound.annotations[ASSIGNED_NODE] == bound.node_name
        assert self.kept.setdefault(bound.ref.uid, allocated) == allocated
        for container, shares in zip(bound.containers, parse_shares("", allocated), strict=True):
            assert len(shares) == int(container.limits["nvidia.com/gpu"])
            assert all(share.uuid.startswith(f"GPU-{bound.node_name[1]}") for share in shares)

    def check_node(self, name):
        for uuid, (slots, memory, cores) in self.fake.charges(name).items():
            assert slots <= 5, f"{uuid} is overcommitted"
            assert memory <= 8000, f"{uuid} is overcommitted"
            assert cores <= 100, f"{uuid} is overcommitted"
        allocating = {
            f"{p.ref.namespace},{p.ref.name}"
            for p in self.fake.on[name].values()
            if not p.is_terminated and p.annotations[BIND_PHASE] == "allocating"
        }
        holder = (self.fake.lock_of(name) or "").partition(",")[2]
        assert allocating <= {holder}, f"{allocating} allocate on {name}, the lock names {holder!r}"

    def settle(self):
        """The storm is over: everything that was begun comes to an end."""
        self.stormy = False
        for _ in range(60):
            self.advance(5.0)
            for replica in self.replicas:
                replica.watch()
                replica.controller.step()
            for waiting in [
                p for p in self.fake.pods.values() if not p.node_name and not p.is_terminated
            ]:
                try:
                    if (chosen := self.leader.filter(waiting)) is not None:
                        self.leader.binder.bind(waiting.ref, chosen)
                except HamiError:
                    pass
            for name in self.fake.nodes:
                self.fake.allocate(name)
            self.check()

    @property
    def steps(self):
        """What can happen, with how often it does."""
        return STEPS


STEPS = {
    Storm.create: 40,
    Storm.burst: 20,
    Storm.filter: 4,
    Storm.bind: 4,
    Storm.allocate: 8,
    Storm.finish: 8,
    Storm.delete: 12,
    Storm.watch: 10,
    Storm.disturb: 2,
    Storm.list: 1,
    Storm.tick: 4,
    Storm.wait: 8,
    Storm.move: 0.5,
    Storm.jump: 0.1,
    Storm.kill: 0.4,
    Storm.touch_node: 3,
}


@pytest.mark.slow
@pytest.mark.timeout(STORMS * 240)  # a busy machine
@pytest.mark.parametrize(
    "lock_free", LOCK_FREE_NODES, ids=lambda nodes: f"{nodes or 'no'} nodes lock-free"
)
@settings(
    max_examples=STORMS, phases=[Phase.generate]
)  # a failed storm takes minutes to shrink, in vain
@given(seed=integers(0, 2**32))
def test_faults_never_overcommit_lose_or_leak_devices(lock_free, seed):
    logging.getLogger().setLevel(logging.CRITICAL)  # there is much to complain about
    storm = Storm(seed, lock_free)
    while storm.fake.bindings < PLACEMENTS:
        storm.step()
    storm.settle()
    assert {
        bool(call.annotations.get(NVIDIA.annotations.to_allocate))
        for call in storm.fake.calls_of("bind")
    } == {"": {True}, "some": {True, False}, "all": {False}}[storm.lock_free]
    assert storm.kills > 5
    assert storm.moves > 10
    assert storm.unconnected > 5
    assert not any(storm.fake.lock_of(name) for name in storm.fake.nodes)
    for replica in storm.replicas:
        replica.relist()
        assert replica.cache.open_bindings.unbound() == 0
        for name in storm.fake.nodes:
            seen = {
                view.device.uuid: [view.slots_used, view.memory_used_mib, view.cores_used]
                for view in device_usage(replica.cache)[name]
                if view.slots_used
            }
            assert seen == storm.fake.charges(name)


# one kill, at every call


class Mortal:
    """A client that is killed at its *last* call, before or after that takes effect; never with ``None``."""

    def __init__(self, fake, last, after):
        self.calls = 0
        for name in CALLS:
            setattr(
                self,
                name,
                lambda *a, _name=name, **o: self._call(getattr(fake, _name), last, after, a, o),
            )

    def _call(self, method, last, after, arguments, options):
        self.calls += 1
        if last is not None and (self.calls > last or (self.calls == last and not after)):
            raise Killed
        result = method(*arguments, **options)
        if self.calls == last:
            raise Killed
        return result


def one_card(*pods, lock=None):
    clock = Clock()
    fake = WatchedCluster(
        pods=pods,
        nodes=[
            node(
                "n1",
                gpu("GPU-0", slots=40),
                annotations={"hami.io/mutex.lock": lock} if lock else {},
            )
        ],
    )
    return fake, clock


def watching_for_a_while(fake, clock, client):
    replica = Replica(fake, clock, cluster=client)
    clock.seconds += OBSERVED_S
    return replica


def plain():
    return one_card(pod(gpus(1, memory=30000), name="a"))


def behind_a_holder_that_is_gone():
    return one_card(pod(gpus(1, memory=30000), name="a"), lock="2026-08-21T11:00:00Z,default,gone")


def behind_a_holder_that_never_finished():
    stuck = {
        ASSIGNED_NODE: "n1",
        "hami.io/vgpu-time": "1",
        BIND_PHASE: "allocating",
        "hami.io/bind-time": "1",
        NVIDIA.annotations.to_allocate: "GPU-0,NVIDIA,10,0:;",
        NVIDIA.annotations.allocated: "GPU-0,NVIDIA,10,0:;",
    }
    return one_card(
        pod(gpus(1, memory=30000), name="a"),
        pod(gpus(1, memory=10), name="stuck", node_name="n1", annotations=stuck),
        lock="2026-08-21T11:00:00Z,default,stuck",
    )


DEATHS = [
    pytest.param(
        scene, last, after, id=f"{scene.__name__}: {'after' if after else 'before'} call {last}"
    )
    for scene, calls in (
        (plain, 3),
        (behind_a_holder_that_is_gone, 4),
        (behind_a_holder_that_never_finished, 5),
    )
    for last in range(1, calls + 1)
    for after in (False, True)
]


@cases(
    "scene, calls",
    (plain, 3),
    (behind_a_holder_that_is_gone, 4),
    (behind_a_holder_that_never_finished, 5),
)
def test_the_calls_of_a_bind_are_counted(scene, calls):
    fake, clock = scene()
    client = Mortal(fake, None, False)
    watching_for_a_while(fake, clock, client).schedule(fake.pods["default", "a"])
    assert client.calls == calls


@pytest.mark.parametrize(("scene", "last", "after"), DEATHS)
def test_a_kill_between_any_two_calls_is_recovered(scene, last, after):
    fake, clock = scene()
    with pytest.raises(Killed):
        watching_for_a_while(fake, clock, Mortal(fake, last, after)).schedule(
            fake.pods["default", "a"]
        )
    clock.seconds += 10
    heir = Replica(fake, clock)
    fake.put_pod(pod(gpus(1, memory=16000), name="b"))
    for _ in range(12):
        clock.seconds += 5
        heir.watch()
        heir.controller.step()
        for waiting in [p for p in fake.pods.values() if not p.node_name]:
            try:
                heir.binder.bind(waiting.ref, heir.filter(waiting))
            except HamiError:
                pass
        fake.allocate("n1")
    assert [fake.pods["default", name].node_name for name in "ab"] == ["n1", "n1"]
    assert fake.lock_of("n1") is None
    assert fake.charges("n1")["GPU-0"][1] in (46000, 46010)


def test_forty_pods_for_one_node_at_once_are_bound_one_after_the_other():
    fake, clock = one_card(*(pod(gpus(1, memory=1000), name=f"p{n}") for n in range(40)))
    replica = Replica(fake, clock, waits_for_locks=True)
    done = threading.Event()
    plugin = threading.Thread(target=allocate_until, args=(done, fake, replica), daemon=True)
    plugin.start()
    binders = [
        threading.Thread(target=replica.schedule, args=(p,), daemon=True)
        for p in list(fake.pods.values())
    ]
    for binder in binders:
        binder.start()
    for binder in binders:
        binder.join(20)
    done.set()
    plugin.join(20)
    assert all(p.node_name == "n1" for p in fake.pods.values())
    assert fake.charges("n1")["GPU-0"] == [40, 40000, 0]
    assert len(fake.calls_of("bind")) == 40


def allocate_until(done, fake, replica):
    while not done.wait(0.001):
        with fake._lock:
            fake.allocate("n1")
        replica.watch()
