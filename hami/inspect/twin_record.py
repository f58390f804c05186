"""The past by a recording, and whether the scheduler would decide the same again.

Each pod is decided beside what was recorded before it, so that one difference does not cause others.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hami.inspect.read_recording import (
    NodeGone,
    NodeLeft,
    NodeSeen,
    PodBound,
    PodCame,
    PodGone,
    Recording,
    ReplayEvent,
)
from hami.inspect.twin import PREEMPTED, Progress, Tally, new_tally, set_node, watched
from hami.scheduling.node_order import kube_chooses, node_order_of
from hami.scheduling.refusal import Choice
from hami.state import dry_run
from hami.state.bookings import Booking
from hami.state.world import World, chosen_devices, held_devices, ranks

WINDOW_S = 5.0
"""Seconds between a decision and what the API server shows of it: what changed meanwhile may not have counted."""
MAX_RECENT = 64  # changes that are looked at for one decision
SHOWN = 20  # differences


class Cause(StrEnum):
    """Why a decision comes out differently. The first that applies is counted."""

    TIE = "Tie"
    CONCURRENT = "Concurrent"
    KUBE_SCHEDULER = "KubeScheduler"
    NO_ROOM = "NoRoom"
    USUAL_PODS = "UsualPods"
    NOT_OFFERED = "NotOffered"


@dataclass(frozen=True, slots=True)
class Difference:
    """A pod that is placed elsewhere when it is decided again. *now*: empty if no node fits."""

    number: int
    node: str
    now: str
    cause: Cause


@dataclass(slots=True)
class Comparison:
    """Decisions that were made again. *differences*: the first of them; *causes* counts all."""

    decisions: int = 0
    same: int = 0
    causes: Counter[Cause] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)


def replay_recorded(
    recording: Recording, progress: Progress, *, compares: bool
) -> tuple[Tally, Comparison]:
    """Returns what happened. *compares*: decides about each pod again."""
    world = World(recording.vendors, recording.policies)
    tally = new_tally(recording)
    comparer = _Comparer(world, recording.policies.node)
    for event in watched(recording, "what happened", progress):
        tally.advance(world, event.at)
        if compares:
            comparer.compare(event)
        _take(world, tally, event)
    for event in recording.events:
        if isinstance(event, PodCame) and event.life.is_unbound:
            tally.wait_in_vain(event.life, event.life.ended or recording.until)
    return tally, comparer.comparison


def _take(world: World, tally: Tally, event: ReplayEvent) -> None:
    match event:
        case NodeSeen():
            set_node(world, event)
        case NodeLeft():
            world.set_left(event.name, event.left)
        case NodeGone():
            world.remove_node(event.name)
        case PodBound():
            life = event.life
            world.book(life.pod, event.node, event.charges, event.at, is_initial=life.is_initial)
            if event.is_first and life.bound is not None and not life.is_initial:
                tally.place(life, life.bound)
        case PodGone():
            world.end(event.life.pod.ref.uid)
            if event.life.how == PREEMPTED:
                tally.evict()


class _Comparer:
    """Decides about pods again, in *world* as it was just before they were bound. *policy*: the default for nodes."""

    def __init__(self, world: World, policy: str) -> None:
        self._world = world
        self._policy = policy
        self._recent: deque[tuple[float, str, Booking | None]] = deque(maxlen=MAX_RECENT)
        self.comparison = Comparison()

    def compare(self, event: ReplayEvent) -> None:
        """Decides again, if *event* is that a pod is bound."""
        if isinstance(event, PodGone):
            uid = event.life.pod.ref.uid
            self._recent.append((event.at, uid, self._world.view().booking(uid)))
        if not isinstance(event, PodBound) or not event.is_first:
            return
        if event.charges and not event.life.is_initial:
            self._decide(event)
        self._recent.append((event.at, event.life.pod.ref.uid, None))

    def _decide(self, event: PodBound) -> None:
        choice = self._world.choose(event.life.pod)
        comparison = self.comparison
        comparison.decisions += 1
        if _is_same(event, choice):
            comparison.same += 1
            return
        cause = self._cause(event, choice)
        comparison.causes[cause] += 1
        if len(comparison.differences) < SHOWN:
            now = "" if choice is None else choice.node
            number = event.life.number
            comparison.differences.append(Difference(number, event.node, now, cause))

    def _cause(self, event: PodBound, choice: Choice | None) -> Cause:
        pod = event.life.pod
        if choice is not None and self._is_tie(event, choice):
            return Cause.TIE
        if self._is_concurrent(event):
            return Cause.CONCURRENT
        if kube_chooses(pod):
            return Cause.KUBE_SCHEDULER
        if self._world.choose(pod, [event.node]) is None:
            return Cause.NO_ROOM
        if node_order_of(pod, self._policy).by_room:
            return Cause.USUAL_PODS
        return Cause.NOT_OFFERED

    def _is_tie(self, event: PodBound, choice: Choice) -> bool:
        """Reports whether nothing but a name decides between both."""
        if choice.node != event.node:
            own, other = ranks(self._world, event.life.pod, [event.node, choice.node])
            return own == other
        return self._states(event.node, held_devices(event.charges)) == self._states(
            choice.node, chosen_devices(choice)
        )

    def _states(self, node: str, uuids: Collection[str]) -> Counter[object]:
        states = Counter[object]()
        for usages in self._world.view().usages(node).values():
            for usage in usages:
                if usage.device.uuid in uuids:
                    device = replace(usage.device, uuid="", index=0)
                    states[str(replace(usage, device=device))] += 1
        return states

    def _is_concurrent(self, event: PodBound) -> bool:
        """Reports whether the decision is the same without some of what changed just before."""
        bound: list[str] = []
        ended: list[Booking] = []
        for at, uid, booking in self._recent:
            if at < event.at - WINDOW_S:
                continue
            if booking is None:
                bound.append(uid)
            else:
                ended.append(booking)
        view, names = self._world.view(), self._world.offered.names
        for without, again in ((bound, ended), (bound, ()), ((), ended)):
            changed = view.what_if(without=without, with_=again)
            if _is_same(event, dry_run.choose(changed, event.life.pod, names)):
                return True
        return False


def _is_same(event: PodBound, choice: Choice | None) -> bool:
    """Reports whether *choice* is what was recorded."""
    if choice is None or choice.node != event.node:
        return False
    return chosen_devices(choice) == held_devices(event.charges)
