"""Moves over a view: the fewest after which a pod fits that waits, each proven by the decision itself.

The place of the pod is held from the start, and grows with each victim that leaves. Each moved pod is placed by the
decision in the view of that moment, one after the other, so a plan that reality overtakes stops after a whole move.
Nodes that a pod does not select, or where the CPU or the memory that it requests is not free, are left out, as
kube-scheduler does.

Searched are sets of pods that leave the node of the waiting pod, and, for each of these that has no place, pods that
move before it; not pods before those, nor sets with pods whose end frees nothing that is needed.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import NamedTuple

import msgspec

from hami.model import DeviceUsage, Pod, Request
from hami.scheduling.fit import objection
from hami.scheduling.moves import MAX_SETS, MovableDevice, victim_sets
from hami.scheduling.node_order import is_eligible
from hami.scheduling.node_resources import NOTHING, NodeResources, requested
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.refusal import Choice
from hami.scheduling.usage import Charge
from hami.state import dry_run
from hami.state.bookings import Booking
from hami.state.plans import planned_bookings, planned_promise, planned_uid
from hami.state.promises import Promise
from hami.state.view import View, left_of
from hami.vendors.request import WHOLE
from hami.vendors.spec import Candidate

SETS_OF_NODE = 40  # sets of victims of one size that are tried
CASCADES_FROM = 3  # moves of a plan without cascades from which one with them may be shorter


@dataclass(frozen=True, slots=True)
class PodMove:
    """The pod *uid* leaves *source*, and its controller's next one is placed on *target*."""

    uid: str
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The *moves*, in order, after which a pod fits *node*. *victims*: uids of those that make room there; the others
    make room for these. *is_minimal*: fewer are proven not to be enough."""

    node: str
    moves: tuple[PodMove, ...]
    victims: frozenset[str]
    is_minimal: bool


@dataclass(frozen=True, slots=True)
class NoMovePlan:
    """No plan was found. *is_proven*: there is none within the limits; else the time was too short."""

    is_proven: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveLimits:
    """*moves*: of a plan. *seconds*: of the search. *cascades*: pods may move so that another moved one fits."""

    moves: int = 8
    seconds: float = 2.0
    cascades: bool = True


class _TimeOver(Exception):
    """The search has taken too long."""


@dataclass(frozen=True, slots=True)
class _Found:
    """*moves* after which *view* results. *node*: where the waiting pod fits then, which holds nothing in *view*."""

    node: str
    moves: tuple[PodMove, ...]
    victims: frozenset[str]
    view: View

    def plan(self, *, is_minimal: bool) -> MovePlan:
        return MovePlan(self.node, self.moves, self.victims, is_minimal)


class _Kind(enum.Enum):
    """Searches. The place of a pod before which others move is not held: it runs still."""

    SIMPLE = "moves without others before them"
    CASCADES = "moves with others before them"
    BEFORE = "moves before another one"


@dataclass(frozen=True, slots=True)
class _Budget:
    """*further*: moves before those of the victims. *protected*: pods that move no more."""

    kind: _Kind
    further: int
    protected: frozenset[str]

    def left(self, view: View, promise: Promise, remaining: Sequence[str], uid: str) -> View:
        """Returns the view in which the pod *uid* has left, and what *promise* needs is held."""
        if self.kind is _Kind.BEFORE:
            return view.what_if(without=[uid])
        return held(view, promise, remaining, ended=[uid])


class _Needs(NamedTuple):
    """*request* and *resources* of a pod. *anywhere*: it selects no nodes."""

    request: PodRequest
    resources: NodeResources
    anywhere: bool

    def is_met_by(self, booking: Booking) -> bool:
        """Reports whether CPU and memory where the pod of *booking* is placed are enough, on any node."""
        return self.anywhere and booking.resources.larger(self.resources) == booking.resources


_Weighed = tuple[float, str, list[str], frozenset[str]]
"""Victims with what they hold, and their node."""


class MoveSearch:
    """Searches moves among the pods *movable*, by uid, on the nodes *names*. *clock* is monotonic."""

    def __init__(
        self,
        names: Sequence[str],
        movable: Mapping[str, Pod],
        clock: Callable[[], float],
        *,
        offered: Collection[str] | None = None,
    ) -> None:
        """*offered*: the nodes that the waiting pod may get, if not all."""
        self._names = names
        self._offered = names if offered is None else [name for name in names if name in offered]
        self._movable = movable
        self._clock = clock
        self._requests: dict[str, PodRequest | None] = {}
        self._deadline = math.inf
        self._sets: dict[tuple[_Needs, str, int], list[frozenset[str]]] = {}
        self._of_view: View | None = None  # of the sets

    def plan(
        self, view: View, pod: Pod, limits: MoveLimits = MoveLimits()
    ) -> MovePlan | NoMovePlan:
        """Returns the plan with the fewest moves after which *pod* fits in *view*, where it fits no node now.

        Raises: MalformedInput for an unreadable annotation of a pod.
        """
        self._deadline = self._clock() + limits.seconds
        self._sets.clear()
        self._of_view = view
        found: _Found | None = None
        try:
            found = self._search(view, pod, limits.moves, _Kind.SIMPLE, frozenset())
            fewer = limits.moves if found is None else len(found.moves) - 1
            if limits.cascades and fewer >= CASCADES_FROM - 1:
                found = self._search(view, pod, fewer, _Kind.CASCADES, frozenset()) or found
        except _TimeOver:
            if found is None:
                return NoMovePlan(is_proven=False)
            return found.plan(is_minimal=False)
        if found is None:
            return NoMovePlan(is_proven=True)
        return found.plan(is_minimal=True)

    def _check_time(self) -> None:
        """Raises: _TimeOver."""
        if self._clock() > self._deadline:
            raise _TimeOver

    def _search(
        self, view: View, pod: Pod, limit: int, kind: _Kind, protected: frozenset[str]
    ) -> _Found | None:
        """Returns the fewest moves, at most *limit*, without those of the pods *protected*. Raises: _TimeOver."""
        for total in range(1, limit + 1):
            for size in range(1, total) if kind is _Kind.CASCADES else (total,):
                for node, victims in self._candidates(view, pod, size, kind, protected):
                    self._check_time()
                    budget = _Budget(kind, total - size, protected | victims)
                    found = self._leave(view, pod, node, victims, budget)
                    if found is not None:
                        return found
        return None

    def _candidates(
        self, view: View, pod: Pod, size: int, kind: _Kind, protected: frozenset[str]
    ) -> Iterator[tuple[str, frozenset[str]]]:
        """Yields nodes with sets of *size* victims that may make room for *pod*, those that hold least first."""
        request = view.request_of(pod)
        if request is None:
            return
        needs = _Needs(request, requested(pod), not pod.node_terms)
        found: list[_Weighed] = []
        for name in self._names if kind is _Kind.BEFORE else self._offered:
            self._check_time()
            if not is_eligible(pod, name, view.labels_of(name)):
                continue
            weighed: list[_Weighed] = []
            for victims in self._sets_on(view, needs, name, size):
                if victims.isdisjoint(protected):
                    weight = sum(self._weight(view, uid) for uid in victims)
                    weighed.append((weight, name, sorted(victims), victims))
            found += sorted(weighed)[:SETS_OF_NODE]
        for _, name, _, victims in sorted(found):
            yield name, victims

    def _sets_on(self, view: View, needs: _Needs, node: str, size: int) -> list[frozenset[str]]:
        """Returns the sets of victims on *node*; those of nodes that no move has changed are remembered."""
        is_changed = self._of_view is None or view.usages(node) is not self._of_view.usages(node)
        if is_changed:
            return self._new_sets(view, needs, node, size)
        key = needs, node, size
        if key not in self._sets:
            self._sets[key] = self._new_sets(view, needs, node, size)
        return self._sets[key]

    def _new_sets(self, view: View, needs: _Needs, node: str, size: int) -> list[frozenset[str]]:
        movable = self._movable_on(view, needs, node)
        if len(movable) < size:
            return []
        sets = _sets_by_devices(view, needs.request, node, movable, size)
        if sets is None or not has_room(view, node, needs.resources):
            some = _some_sets([booking.uid for booking in movable], size)
            return list(dict.fromkeys((*(sets or ()), *some)))
        return sets

    def _movable_on(self, view: View, needs: _Needs, node: str) -> list[Booking]:
        """Returns what pods of *node* hold that may help if they move."""
        movable: list[Booking] = []
        single = _single_request(needs.request)
        for booking in view.bookings_on(node):
            if booking.uid not in self._movable:
                continue
            if needs.is_met_by(booking) and _holds_as_much(booking, single):
                if self._asks_as_much(view, booking.uid, needs.request):
                    continue
            movable.append(booking)
        return movable

    def _leave(
        self,
        view: View,
        pod: Pod,
        node: str,
        victims: frozenset[str],
        budget: _Budget,
    ) -> _Found | None:
        """Returns the moves by which *victims* leave *node* for *pod*, with exactly the further ones of *budget* before
        those that have no place. Raises: _TimeOver."""
        promise = promised(view, pod, node, victims)
        if promise is None:
            return None
        largest_first = sorted(victims, key=lambda uid: (-self._weight(view, uid), uid))
        orders = [largest_first]
        if len(victims) > 1:
            orders.append(largest_first[::-1])
        for order in orders:
            found = self._in_order(view, promise, order, budget)
            if found is not None:
                return found
        return None

    def _in_order(
        self,
        view: View,
        promise: Promise,
        order: Sequence[str],
        budget: _Budget,
    ) -> _Found | None:
        moves: list[PodMove] = []
        further = budget.further
        for step, uid in enumerate(order):
            self._check_time()
            pod, rest = self._movable[uid], order[step + 1 :]
            gone = budget.left(view, promise, rest, uid)
            choice = choose_with_room(gone, pod, self._names)
            if choice is None and further > 0:
                held_now = held(view, promise, order[step:])
                before = self._search(held_now, pod, further, _Kind.BEFORE, budget.protected)
                if before is None:
                    return None
                moves += before.moves
                further -= len(before.moves)
                gone = held(before.view, promise, rest, ended=[uid])
                choice = choose_with_room(gone, pod, self._names)
            if choice is None:
                return None
            moves.append(PodMove(uid, promise.node, choice.node))
            view = dry_run.placed(gone, pod, choice)
        if further:
            return None  # this plan has been tried with fewer moves
        view = view.what_if(without=[planned_uid(promise.ref.uid)])
        if choose_with_room(view, promise.pod, [promise.node]) is None:
            return None
        return _Found(promise.node, tuple(moves), promise.victims, view)

    def _asks_as_much(self, view: View, uid: str, request: PodRequest) -> bool:
        """Reports whether the pod *uid* asks for at least what *request* does of the same devices: if the pod that
        waits may be on any node, a place for the other is one for it, so to move that helps nobody."""
        if uid not in self._requests:
            self._requests[uid] = view.request_of(self._movable[uid])
        other = self._requests[uid]
        if other is None or not _is_alike(other, request):
            return False
        own, needed = _single_request(other), _single_request(request)
        if own is None or needed is None or own.vendor != needed.vendor:
            return False
        if (own.memory_percent, own.slices) != (needed.memory_percent, needed.slices):
            return False
        return (
            own.count >= needed.count
            and own.memory_mib >= needed.memory_mib
            and own.cores >= needed.cores
        )

    def _weight(self, view: View, uid: str) -> float:
        """Returns how much the pod *uid* holds, in devices."""
        booking = view.booking(uid)
        if booking is None:
            return 0.0
        weight = 0.0
        for vendor, charges in booking.charges:
            sizes = view.table.sizes().get(vendor)
            for charge in charges:
                weight += charge.cores / WHOLE
                if sizes is not None:
                    weight += charge.memory_mib / max(1, sizes.most)
        return weight


def carried_out(
    view: View, pod: Pod, plan: MovePlan, movable: Mapping[str, Pod], names: Sequence[str]
) -> View | None:
    """Returns the view in which *plan* has been carried out and *pod* placed, each step decided anew among the nodes
    *names*; ``None`` if a step does not come out as planned."""
    victims = set(plan.victims)
    promise = promised(view, pod, plan.node, victims)
    if promise is None:
        return None
    for move in plan.moves:
        victims.discard(move.uid)
        if not _is_on(view, move.uid, move.source):
            return None
        view = held(view, promise, victims, ended=[move.uid])
        choice = choose_with_room(view, movable[move.uid], names)
        if choice is None or choice.node != move.target:
            return None
        view = dry_run.placed(view, movable[move.uid], choice)
    view = view.what_if(without=[planned_uid(pod.ref.uid)])
    choice = choose_with_room(view, pod, [plan.node])
    return None if choice is None else dry_run.placed(view, pod, choice)


@dataclass(frozen=True, slots=True)
class MoveObstacle:
    """Why moves do not come out. *uid*: the pod that has no place; ``None``: the waiting pod has none on its node."""

    uid: str | None


def proven_moves(
    view: View,
    pod: Pod,
    node: str,
    movable: Mapping[str, Pod],
    names: Sequence[str],
) -> tuple[PodMove, ...] | MoveObstacle:
    """Returns the moves of the pods *movable* (by uid, in order) after which *pod* fits *node*, each placed by the
    decision among the nodes *names*, or why there are none."""
    there: list[str] = []
    for uid in movable:
        if _is_on(view, uid, node):
            there.append(uid)
    promise = promised(view, pod, node, there)
    if promise is None:
        return MoveObstacle(None)
    moves: list[PodMove] = []
    for uid, moved in movable.items():
        booking = view.booking(uid)
        if uid in there:
            there.remove(uid)
        view = held(view, promise, there, ended=[uid])
        choice = choose_with_room(view, moved, names)
        if booking is None or choice is None:
            return MoveObstacle(uid)
        moves.append(PodMove(uid, booking.node, choice.node))
        view = dry_run.placed(view, moved, choice)
    view = view.what_if(without=[planned_uid(pod.ref.uid)])
    if choose_with_room(view, pod, [node]) is None:
        return MoveObstacle(None)
    return tuple(moves)


def promised(view: View, pod: Pod, node: str, victims: Collection[str]) -> Promise | None:
    """Returns the place that *pod* gets on *node* once *victims* (uids) have left; ``None`` if it does not fit then."""
    left = view.what_if(without=victims)
    choice = choose_with_room(left, pod, [node])
    if choice is None:
        return None
    return planned_promise(left, pod, choice, tuple(frozenset({uid}) for uid in victims))


def held(
    view: View, promise: Promise, remaining: Collection[str], *, ended: Collection[str] = ()
) -> View:
    """Returns the view without the pods *ended*, in which what *promise* needs is taken, but for what its victims
    *remaining* still have."""
    booked: dict[str, Booking] = {}
    for uid in remaining:
        booking = view.booking(uid)
        if booking is not None:
            booked[uid] = booking
    uid = planned_uid(promise.ref.uid)
    planned = planned_bookings([promise], booked).get(uid)
    if planned is None:
        return view.what_if(without=[*ended, uid])
    resources = planned.resources
    for booking in booked.values():
        if booking.node == promise.node:
            resources -= booking.resources
    planned = msgspec.structs.replace(planned, resources=resources.larger(NOTHING))
    return view.what_if(without=ended, with_=[planned])


def choose_with_room(view: View, pod: Pod, names: Sequence[str]) -> Choice | None:
    """Returns the choice among those of the nodes *names* that *pod* selects, and where CPU and memory suffice;
    ``None`` if none fits."""
    if pod.node_terms:
        names = [name for name in names if is_eligible(pod, name, view.labels_of(name))]
    resources = requested(pod)
    choice = dry_run.choose(view, pod, names)
    if choice is None or has_room(view, choice.node, resources):
        return choice
    return dry_run.choose(view, pod, [name for name in names if has_room(view, name, resources)])


def has_room(view: View, node: str, resources: NodeResources) -> bool:
    """Reports whether *node* has *resources* for one more pod, as far as that is known."""
    left = left_of(view, node)
    if left is None or resources == NOTHING:
        return True
    for booking in view.bookings_on(node):
        left -= booking.resources
    return left.covers(resources)


def _is_on(view: View, uid: str, node: str) -> bool:
    booking = view.booking(uid)
    return booking is not None and booking.node == node


def _sets_by_devices(
    view: View, request: PodRequest, node: str, movable: Sequence[Booking], size: int
) -> list[frozenset[str]] | None:
    """Returns the sets of *size* pods of *movable* that make room on the devices of *node*; ``None`` if that is no
    matter of arithmetic."""
    single = _single_request(request)
    if single is None:
        return None
    usages = view.usages(node).get(single.vendor, ())
    if _allows_repeats(request, single, usages):
        return None
    context = request.fit_context(single.vendor, usages)

    def passes(usage: DeviceUsage) -> bool:
        return objection(Candidate(usage, single, context)) is None

    return victim_sets(_movable_devices(usages, movable, single), single, size, passes)


def _some_sets(uids: Sequence[str], size: int) -> list[frozenset[str]]:
    """Returns sets of *size* pods, for pods whose needs are no matter of arithmetic."""
    return [frozenset(each) for each in islice(combinations(sorted(uids), size), MAX_SETS)]


def _movable_devices(
    usages: Sequence[DeviceUsage], bookings: Sequence[Booking], request: Request
) -> list[MovableDevice]:
    """Returns the devices of the vendor of *request* with what *bookings* hold of each."""
    charges: dict[str, dict[str, Charge]] = {}
    for booking in bookings:
        for vendor, of_vendor in booking.charges:
            if vendor != request.vendor:
                continue
            for charge in of_vendor:
                charges.setdefault(charge.uuid, {})[booking.uid] = charge
    return [MovableDevice(usage, charges.get(usage.device.uuid, {})) for usage in usages]


def _holds_as_much(booking: Booking, request: Request | None) -> bool:
    """Reports whether *booking* may be that of a pod that asks for at least what *request* does."""
    if request is None:
        return False
    charges = dict(booking.charges).get(request.vendor, ())
    memory = max([charge.memory_mib for charge in charges], default=0)
    return len(charges) >= request.count and memory >= request.memory_mib


def _allows_repeats(request: PodRequest, single: Request, usages: Sequence[DeviceUsage]) -> bool:
    """Reports whether a container may get two parts of one of the devices."""
    allows_repeats = request.vendor_request(single.vendor).vendor.decision.allows_repeats
    return allows_repeats is not None and any(map(allows_repeats, usages))


def _single_request(request: PodRequest) -> Request | None:
    """Returns the only request of a pod; ``None`` if it makes several."""
    requests: list[Request] = []
    for container in request.containers:
        requests += container.requests
    return requests[0] if len(requests) == 1 else None


def _is_alike(one: PodRequest, other: PodRequest) -> bool:
    """Reports whether two requests accept the same devices."""
    if one.vendor_requests != other.vendor_requests or one.policy != other.policy:
        return False
    return one.by_claims == other.by_claims
