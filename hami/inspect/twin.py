"""Replays: what happened by a recording, and what would have happened under another policy, or with other nodes.

A pod comes when it came, and runs for as long as it ran, from when it is placed. Pods that wait are tried again where
something became free: the highest priority first, then the oldest. A decision takes no time.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from hami.errors import HamiError
from hami.inspect.cluster import unknown_name
from hami.inspect.read_recording import (
    Life,
    NodeGone,
    NodeLeft,
    NodeSeen,
    PodBound,
    PodCame,
    PodGone,
    Recording,
    ReplayEvent,
)
from hami.state.victims import PreemptionRules, plan_preemption
from hami.state.view import Policies
from hami.state.world import World, stranded

SAMPLES = 40  # of what is stranded
MAX_TRIED = 64  # shapes of waiting pods, when something becomes free
MAX_ADDED = 10_000  # nodes
PREEMPTED = "preempted"
"""How a pod ends that is evicted for another."""
PREEMPT_AGAIN_S = (
    60.0  # after which pods of a shape for which no plan was found are planned for again
)
STEPS = 200  # of the progress
_ADDED = re.compile(r"like=(?P<node>[^:]+):(?P<count>[1-9][0-9]{0,4})")
_COUNT = re.compile(r"[0-9]{1,6}")

Progress = Callable[[str, float], None]
"""Is called with what is being done, and the part of it that is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes of a replay. *node_policy*, *device_policy*: for pods that name none; empty for the recorded
    ones. *added*: nodes as ``like=NODE:3``. *without*: nodes, or how many. *preemption*: ``None``: if the recording has
    pods that were preempted."""

    node_policy: str = ""
    device_policy: str = ""
    added: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    preemption: bool | None = None


@dataclass(slots=True)
class Tally:
    """Sums over a run. *waits*: seconds by priority, also of pods that were never placed. *at*: until when it counts.
    *taken*, *devices*: integrals over time."""

    at: float
    sample_s: float
    waits: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    placed: int = 0
    evicted: int = 0
    taken: float = 0.0
    devices: float = 0.0
    stranded: list[float] = field(default_factory=list)
    sample_at: float = 0.0

    def advance(self, world: World, at: float) -> None:
        """Counts what *world* was like until *at*."""
        seconds = at - self.at
        if seconds <= 0:
            return
        self.taken += seconds * world.taken
        self.devices += seconds * world.devices
        self.at = at
        if at >= self.sample_at and world.devices:
            self.sample_at = at + self.sample_s
            devices = stranded(world)
            if devices is not None:
                self.stranded.append(devices / world.devices)

    def place(self, life: Life, at: float) -> None:
        """Counts that a pod has been placed for the first time."""
        self.placed += 1
        self.waits[life.pod.priority].append(max(0.0, at - life.since))

    def evict(self) -> None:
        """Counts that a pod has been evicted for another."""
        self.evicted += 1

    def wait_in_vain(self, life: Life, until: float) -> None:
        """Counts a pod that was not placed, and waited *until* then."""
        self.waits[life.pod.priority].append(max(0.0, until - life.since))


def new_tally(recording: Recording) -> Tally:
    """Returns a tally for a run through *recording*."""
    sample_s = (recording.until - recording.begin) / SAMPLES
    return Tally(recording.begin, sample_s, sample_at=recording.begin + sample_s)


def watched(recording: Recording, what: str, progress: Progress) -> Iterator[ReplayEvent]:
    """Yields the events of *recording*, and says how far it is."""
    every = max(1, len(recording.events) // STEPS)
    for number, event in enumerate(recording.events):
        if number % every == 0:
            progress(what, number / len(recording.events))
        yield event
    progress(what, 1.0)


def set_node(world: World, event: NodeSeen) -> None:
    """Sets a node of *world*."""
    is_offered = not event.unschedulable
    world.set_node(
        event.name,
        event.devices,
        event.labels,
        event.left,
        taints=event.taints,
        is_offered=is_offered,
    )


def was_preempting(recording: Recording) -> bool:
    """Reports whether pods were preempted."""
    for event in recording.events:
        if isinstance(event, PodGone) and event.life.how == PREEMPTED:
            return True
    return False


def replay_changed(recording: Recording, changes: Changes, progress: Progress) -> Tally:
    """Returns what would have happened with *changes*. Raises: HamiError for a node that is not known."""
    preemption = changes.preemption
    if preemption is None:
        preemption = was_preempting(recording)
    return _Twin(recording, changes, preemption).run(progress)


class _Waiting:
    """The pods that wait, by shape and priority."""

    def __init__(self) -> None:
        self._queues: dict[tuple[int, int], list[tuple[int, Life]]] = {}
        self._uids: set[str] = set()

    def __iter__(self) -> Iterator[Life]:
        for queue in self._queues.values():
            for _, life in queue:
                if life.pod.ref.uid in self._uids:
                    yield life

    def add(self, life: Life) -> None:
        """Adds a pod."""
        key = id(life.pod.containers), life.pod.priority
        heapq.heappush(self._queues.setdefault(key, []), (life.number, life))
        self._uids.add(life.pod.ref.uid)

    def drop(self, uid: str) -> bool:
        """Removes a pod. Reports whether it waited."""
        is_there = uid in self._uids
        self._uids.discard(uid)
        return is_there

    def place_all(self, place: Callable[[Life], bool]) -> None:
        """Removes the pods that *place* places: it is asked for one of each shape, in their order, until it refuses."""
        refused: set[int] = set()
        heads = [item for item in map(self._head, list(self._queues)) if item is not None]
        heapq.heapify(heads)
        while heads and len(refused) < MAX_TRIED:
            _, _, key, life = heads[0]
            shape, _ = key
            if shape not in refused and place(life):
                self._uids.discard(life.pod.ref.uid)
                heapq.heappop(self._queues[key])
                follower = self._head(key)
                if follower is not None:
                    heapq.heapreplace(heads, follower)
                    continue
            else:
                refused.add(shape)
            heapq.heappop(heads)

    def _head(self, key: tuple[int, int]) -> tuple[int, int, tuple[int, int], Life] | None:
        """Returns the first pod of a queue with its place among the others."""
        queue = self._queues[key]
        while queue and queue[0][1].pod.ref.uid not in self._uids:
            heapq.heappop(queue)
        if not queue:
            del self._queues[key]
            return None
        number, life = queue[0]
        return -life.pod.priority, number, key, life


class _Twin:
    """The cluster with *changes*."""

    def __init__(self, recording: Recording, changes: Changes, preemption: bool) -> None:
        self._recording = recording
        self._preemption = preemption
        policies = recording.policies
        self._world = World(
            recording.vendors,
            Policies(
                changes.node_policy or policies.node, changes.device_policy or policies.device
            ),
        )
        names = sorted({event.name for event in recording.events if isinstance(event, NodeSeen)})
        self._without = _left_out(names, changes)
        self._copies = _copies(names, changes)
        self._tally = new_tally(recording)
        self._waiting = _Waiting()
        self._running: dict[str, tuple[Life, float]] = {}  # with their ends
        self._ends: list[tuple[float, int, str]] = []
        self._remaining: dict[str, float] = {}  # seconds, of pods that were evicted
        self._no_plan: dict[tuple[int, int], float] = {}  # by shape and priority: since when

    def run(self, progress: Progress) -> Tally:
        """Goes through the recording."""
        for event in watched(self._recording, "replaying", progress):
            self._end_until(event.at)
            self._tally.advance(self._world, event.at)
            self._take(event)
        self._end_until(self._recording.until)
        for life in self._waiting:
            if life.pod.ref.uid not in self._remaining:
                self._tally.wait_in_vain(life, self._recording.until)
        return self._tally

    def _take(self, event: ReplayEvent) -> None:
        match event:
            case NodeSeen():
                self._see_node(event)
            case NodeLeft():
                for name in (event.name, *self._copies.get(event.name, ())):
                    self._world.set_left(name, event.left)
            case NodeGone():
                for uid in self._world.remove_node(event.name):
                    self._stop(uid, event.at)
            case PodCame():
                self._see_pod(event)
            case PodBound():
                self._see_binding(event)
            case PodGone():
                self._give_up(event)

    # Nodes

    def _see_node(self, event: NodeSeen) -> None:
        if event.name not in self._without:
            self._set_node(event)
        for name in self._copies.get(event.name, ()):
            devices = [
                replace(device, uuid=f"{name}-{device.uuid}", pair_scores={})
                for device in event.devices
            ]
            self._set_node(replace(event, name=name, devices=tuple(devices)))

    def _set_node(self, event: NodeSeen) -> None:
        set_node(self._world, event)
        self._retry(event.name, event.at)

    # Pods

    def _see_pod(self, event: PodCame) -> None:
        if not event.life.is_initial:
            self._come(event.life, event.at)

    def _see_binding(self, event: PodBound) -> None:
        """Places a pod that was there at the beginning where it was."""
        life = event.life
        if not life.is_initial or not event.is_first:
            return
        if not self._world.has_node(event.node):
            self._come(life, event.at)
            return
        self._world.book(life.pod, event.node, event.charges, event.at, is_initial=True)
        self._run(life, event.at)

    def _come(self, life: Life, at: float) -> None:
        if not self._place(life, at, None) and not self._preempt(life, at):
            self._waiting.add(life)

    def _place(self, life: Life, at: float, names: Sequence[str] | None) -> bool:
        choice = self._world.choose(life.pod, names)
        if choice is None:
            return False
        self._world.place(life.pod, choice, at)
        self._run(life, at)
        return True

    def _run(self, life: Life, at: float) -> None:
        uid = life.pod.ref.uid
        seconds = self._remaining.pop(uid, None)
        if seconds is None:
            if not life.is_initial:
                self._tally.place(life, at)
            end = _end_of(life, at)
        else:
            end = at + seconds
        self._running[uid] = life, end
        if end < math.inf:
            heapq.heappush(self._ends, (end, life.number, uid))

    def _end_until(self, at: float) -> None:
        """Ends the pods whose time is over, and places others there."""
        while self._ends and self._ends[0][0] <= at:
            end, _, uid = heapq.heappop(self._ends)
            _, current = self._running.get(uid, (None, math.inf))
            if current != end:
                continue
            self._tally.advance(self._world, end)
            del self._running[uid]
            booking = self._world.end(uid)
            if booking is not None:
                self._retry(booking.node, end)

    def _retry(self, node: str, at: float) -> None:
        """Places pods that wait on *node*, where something has become free."""
        world = self._world
        if node in world.offered:
            self._waiting.place_all(
                lambda life: world.may_serve(life.pod, node) and self._place(life, at, [node])
            )

    def _give_up(self, event: PodGone) -> None:
        """A pod that was never placed has gone: nobody waits for it any longer."""
        life = event.life
        if not life.is_unbound:
            return
        if self._waiting.drop(life.pod.ref.uid):
            self._tally.wait_in_vain(life, event.at)

    def _stop(self, uid: str, at: float) -> None:
        """Ends a pod before its time; what controls it makes it again, and it runs for the rest."""
        life, end = self._running.pop(uid)
        self._world.end(uid)
        if life.owner_kind:
            self._remaining[uid] = end - at
            self._waiting.add(life)

    def _preempt(self, life: Life, at: float) -> bool:
        """Evicts pods of lower priority for a pod that fits nowhere. Reports whether it is placed then."""
        pod = life.pod
        if not self._preemption or not pod.preempts:
            return False
        shape = id(pod.containers), pod.priority
        if at - self._no_plan.get(shape, -math.inf) < PREEMPT_AGAIN_S:
            return False
        evictable = self._world.evictable
        names = evictable.may_make_room(pod)
        plan = plan_preemption(self._world.view(), pod, names, PreemptionRules(now=at))
        victims = [] if plan is None else evictable.with_room(pod, plan.node, plan.uids)
        if plan is None or not victims:
            self._no_plan[shape] = at
            return False
        for uid in victims:
            self._tally.evict()
            self._stop(uid, at)
        return self._place(life, at, [plan.node])


def _end_of(life: Life, at: float) -> float:
    """Returns when a pod ends that is placed at *at*: it runs for as long as it ran."""
    if life.ended is None:
        return math.inf
    if life.bound is None or life.is_initial:
        return max(at, life.ended)
    return at + life.ended - life.bound


def _left_out(names: Sequence[str], changes: Changes) -> frozenset[str]:
    """Returns those of the nodes *names* that are left out. Raises: HamiError."""
    without: set[str] = set()
    for text in changes.without:
        if _COUNT.fullmatch(text):
            without.update(_spread(names, int(text)))
        elif text in names:
            without.add(text)
        else:
            raise unknown_name("node", text, names)
    return frozenset(without)


def _copies(names: Sequence[str], changes: Changes) -> dict[str, tuple[str, ...]]:
    """Returns the copies of those of the nodes *names* like which others are added. Raises: HamiError."""
    copies: dict[str, tuple[str, ...]] = {}
    for text in changes.added:
        match = _ADDED.fullmatch(text)
        if match is None or int(match["count"]) > MAX_ADDED:
            raise HamiError(
                f"--nodes={text}: expected like=NODE:COUNT with at most {MAX_ADDED:,} nodes"
            )
        node = match["node"]
        if node not in names:
            raise unknown_name("node", node, names)
        numbers = range(1, int(match["count"]) + 1)
        copies[node] = tuple(f"{node}-added-{number}" for number in numbers)
    return copies


def _spread(names: Sequence[str], count: int) -> list[str]:
    """Returns *count* of *names*, at equal distances."""
    if count >= len(names):
        raise HamiError(f"--without={count}: the recording has {len(names):,} nodes")
    return [names[number * len(names) // count] for number in range(count)]
