"""What the scheduler knows, and what it has promised: nodes, pods, quotas, reservations, under one lock.

The lock is held for computation only. Choosing devices and reserving them is one step under it, so two pods can
never be promised the same part of a device.
"""

from __future__ import annotations

import enum
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from hami.cache.nodes import NodeCache
from hami.cache.pods import PodCache
from hami.cache.quotas import QuotaCache
from hami.codec.keys import (
    ASSIGNED_NODE, ASSIGNED_TIME, BIND_PHASE, BIND_TIME, MIG_ALLOCATIONS, is_allocation, is_label_value,
)
from hami.errors import HamiError
from hami.model import BindPhase, Budget, ContainerKind, Node, NodePolicy, Pod, PodRef, QuotaLimits, Share, DeviceUsage
from hami.scheduling.pod_request import PodRequest, make_pod_request, node_policy_of
from hami.scheduling.decide import Choice, Refusal, Verdicts, choose_node, decide, refusals
from hami.scheduling.index import Booking, Index
from hami.scheduling.place import Placement
from hami.scheduling.annotations import written
from hami.scheduling.quota import budget
from hami.scheduling.usage import collapse, total
from hami.vendors.request import WHOLE, asks, request_of
from hami.vendors.spec import Catalog, AnnotationContext, Vendor

__all__ = ["Cache", "Policies", "Rejected", "Reservation", "Snapshot"]

SLICE = 256  # nodes whose refusal is explained without a break
BREAK = 1e-4  # seconds; a lock that is taken back at once is never another thread's
WAITING = 500  # refused pods that are remembered, the latest
ASKED_AGAIN = 5  # different requests of theirs that are looked at in one go
GRACE = 0.2  # seconds in which kube-scheduler asks again by itself, if it knows of a change
RETELL_LIMIT = 60.0
NOTHING = {MIG_ALLOCATIONS: "[]"}  # what is no allocation, where that is not the empty text
RESERVED_FOR = 60.0  # seconds until a reservation that is not bound is dropped


class Rejected(HamiError):
    """The verb cannot be carried out for this pod now; the text says why."""


@dataclass(frozen=True, slots=True)
class Policies:
    """The node and device policies that hold where a pod names none."""

    node: str = "binpack"
    device: str = "spread"


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices promised to a pod, and what its Binding will carry, but for the time at which it is written. *locks*: the
    node's locks it needs."""

    ref: PodRef
    node: str
    placement: Placement
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    locks: tuple[str, ...]
    made: float

    @property
    def locks_node(self) -> bool:
        """The pod has to wait for its turn on the node."""
        return bool(self.locks)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the cache knew at one moment; nothing in it changes any more.

    *nodes*: devices with what is taken of them, by node and vendor. *pods*: who holds the bookings, by uid.
    *used*: MiB and percent taken, by namespace and vendor.
    """

    nodes: Mapping[str, Mapping[str, Sequence[DeviceUsage]]]
    bookings: Sequence[Booking]
    pods: Mapping[str, PodRef]
    used: Mapping[tuple[str, str], tuple[int, int]]
    quotas: Sequence[QuotaLimits]


class _Stage(enum.Enum):
    RESERVED = "reserved"
    WAITING = "waiting"  # /bind stands in the node's line
    POSTING = "posting"  # the Binding is being written
    BOUND = "bound"  # written; the watch has not shown it yet


@dataclass(slots=True)
class _Held:
    reservation: Reservation
    stage: _Stage
    since: float
    outcome_unknown: bool = False  # a Binding was sent and nobody knows whether it was written


@dataclass(slots=True)
class _WaitingPod:
    """A pod that was refused. *names*: the nodes offered, ``None`` for all. *changes*: the state of the books that it
    was last held against. *told*: how often kube-scheduler was nudged for it; *due*: when that may be done next."""

    pod: Pod
    names: tuple[str, ...] | None
    changes: tuple[int, int]
    due: float
    told: int = 0


class Cache:
    """The books and the reservations. *clock* is steady, *now* is the time of day in UTC."""

    def __init__(self, vendors: Catalog, policies: Policies, *, clock: Callable[[], float],
                 now: Callable[[], datetime], matches: Callable[[Node], bool] = lambda node: True,
                 let_others_in: Callable[[], None] = lambda: time.sleep(BREAK)) -> None:
        self.vendors = vendors
        self.policies = policies
        self._clock = clock
        self._now = now
        self._let_others_in = let_others_in
        self._guard = threading.RLock()
        self._index = Index()
        self._verdicts = Verdicts(self._index)
        self._held: dict[str, _Held] = {}
        self._waiting: OrderedDict[str, _WaitingPod] = OrderedDict()
        self.nodes = NodeCache(vendors, self._index, self._guard, clock=clock, now=now, matches=matches)
        self.pods = PodCache(vendors, self._index, self._guard, clock=clock, now=now)
        self.quotas = QuotaCache(self._guard)
        self.nodes.on_inventory = self.pods.rebook
        self.pods.is_ours = self._held.__contains__
        self.pods.on_bound = self._seen_bound
        self.pods.on_gone = self._drop
        self.pods.on_prune = self._prune
        self.on_dropped: Callable[[str], None] = lambda uid: None

    # Filter

    def choose(self, pod: Pod, names: Sequence[str]) -> Choice | Refusal | None:
        """The node and devices for *pod*, reserved at once; ``None`` when it asks for no device.

        An earlier reservation of the same pod is replaced, and a bind of it that still waits is called off.
        Raises: Rejected when the pod is gone, bound, or being bound; MalformedInput for an unreadable annotation.
        """
        with self._guard:
            if not asks(self.vendors, pod.containers):
                return None
            self._admit_filter(pod.ref)
            if (held := self._held.get(pod.ref.uid)) is not None and held.outcome_unknown:
                return self._promise_again(held.reservation, names)
            self._drop(pod.ref.uid)
            self.pods.disown(pod.ref.uid)
            ask = self._ask(pod, self._budgets(pod.ref.namespace))
            if ask is None:
                return None
            choice = choose_node(self._index, self._verdicts, ask, names, node_policy_of(pod, self.policies.node))
            if choice is not None:
                self._reserve(pod, ask, choice)
                self._waiting.pop(pod.ref.uid, None)
                return choice
            self._remember_waiting(pod, names)
        return self._refusal(ask, names)

    def _refusal(self, ask: PodRequest, names: Sequence[str]) -> Refusal:
        """Why *ask* fits none of the nodes *names*, a slice of them at a time: thousands of nodes take longer than
        others should have to wait for the lock. A node that has changed meanwhile and fits by now is left out."""
        found = Refusal(ask, {}, ())
        for start in range(0, len(names), SLICE):
            if start:
                self._let_others_in()
            with self._guard:
                part = refusals(self._index, self._verdicts, ask, names[start:start + SLICE])
            found = Refusal(ask, found.unfit | part.unfit, found.unknown + part.unknown)
        return found

    def missed_room(self) -> str | None:
        """A node that one of the pods refused earlier would get now, ``None`` if there is none.

        kube-scheduler asks again when it sees a change. It may see one before our watch does, or not at all (an init
        container that has finished, a quota): then the pod waits beside free devices until somebody tells it so. The
        same pod is named again only after a while, as other things than devices may keep it waiting.
        """
        with self._guard:
            self._index.settle()
            changes, looked_at = self._changes(), set[tuple[PodRequest | None, tuple[str, ...] | None]]()
            for waiting in self._due(changes):
                request = self._ask(waiting.pod, self._budgets(waiting.pod.ref.namespace)), waiting.names
                if request not in looked_at:
                    if len(looked_at) == ASKED_AGAIN:
                        return None
                    looked_at.add(request)
                    if (node := self._room_for(*request)) is not None:
                        waiting.told += 1
                        waiting.due = self._clock() + min(2.0 ** waiting.told, RETELL_LIMIT)
                        return node
                waiting.changes = changes
            return None

    def simulate(self, pod: Pod, nodes: Sequence[Node]) -> tuple[Choice | None, Refusal] | None:
        """The same decision over *nodes* as if nothing were taken on them, and why others do not fit.

        Nothing is reserved; ``None`` when the pod asks for no device. Inventories that cannot be read count as none.
        """
        index = Index()
        book = NodeCache(self.vendors, index, threading.RLock(), clock=self._clock, now=self._now)
        for node in nodes:
            book.upsert(node)
        with self._guard:
            ask = self._ask(pod, self._budgets(pod.ref.namespace))
        if ask is None:
            return None
        names, verdicts = [node.name for node in nodes], Verdicts(index)
        answer = decide(index, verdicts, ask, names, node_policy_of(pod, self.policies.node))
        return (answer, refusals(index, verdicts, ask, names)) if isinstance(answer, Choice) else (None, answer)

    def covers(self, namespace: str, pod: Pod) -> bool:
        """The quotas of *namespace* have room for *pod*, as far as that can be said before its devices are known.

        A pod that asks for nothing may come in even where more is taken than the quota allows.
        """
        with self._guard:
            budgets = self._budgets(namespace)
        kinds = [container.kind for container in pod.containers]
        demands = {vendor.key: _least_demand(vendor, pod, kinds) for vendor in self.vendors if vendor.key in budgets}
        return all(budgets[key].covers(*demand) for key, demand in demands.items() if any(demand))

    # Bind

    def begin_bind(self, ref: PodRef, node: str) -> Reservation:
        """The reservation to be bound, from now on kept until :meth:`bound` or :meth:`give_up`.

        Raises: Rejected when there is none for this node, or it is being bound already.
        """
        with self._guard:
            held = self._held.get(ref.uid)
            if held is None:
                raise Rejected(f"pod {ref} has no reservation (it may have lapsed): it must be filtered again")
            if held.reservation.node != node:
                raise Rejected(f"pod {ref} is reserved on node {held.reservation.node}, not on {node}")
            if held.stage is not _Stage.RESERVED:
                raise Rejected(f"pod {ref} is already being bound")
            held.stage = _Stage.WAITING
            return held.reservation

    def is_bound(self, uid: str, node: str) -> bool:
        """The pod is known to be bound to *node*."""
        with self._guard:
            record, held = self.pods.get(uid), self._held.get(uid)
            return (record is not None and record.node == node) or (
                held is not None and held.stage is _Stage.BOUND and held.reservation.node == node)

    def is_current(self, reservation: Reservation) -> bool:
        """*reservation* still stands: no later filter has replaced it, the pod is not gone."""
        with self._guard:
            held = self._held.get(reservation.ref.uid)
            return held is not None and held.reservation is reservation

    def confirm(self, reservation: Reservation) -> Mapping[str, str]:
        """Last look before the Binding is written: what was promised is still there, and taken by nobody else.

        The annotations of the Binding, with the time, from which on the device plugin is waited for.
        Raises: Rejected, and the reservation is dropped, unless an earlier Binding of it may yet be written.
        """
        with self._guard:
            uid = reservation.ref.uid
            if not self.is_current(reservation):
                raise Rejected(f"pod {reservation.ref}: the reservation was replaced or dropped")
            if problem := self._broken(reservation):
                if not self._held[uid].outcome_unknown:
                    self._drop(uid)
                raise Rejected(f"pod {reservation.ref}: {problem}")
            self._held[uid].stage = _Stage.POSTING
        return {**reservation.annotations, BIND_TIME: str(int(self._now().timestamp()))}

    def bound(self, reservation: Reservation) -> None:
        """The Binding is written."""
        with self._guard:
            if self.is_current(reservation):
                held = self._held[reservation.ref.uid]
                held.stage, held.since = _Stage.BOUND, self._clock()

    def mark_unknown(self, reservation: Reservation) -> bool:
        """Nobody knows whether the Binding was written: the promise stands until somebody has looked.

        Whether that was so before already.
        """
        with self._guard:
            if not self.is_current(reservation):
                return False
            held = self._held[reservation.ref.uid]
            before, held.outcome_unknown = held.outcome_unknown, True
            return before

    def unknown_bindings(self) -> list[Reservation]:
        """Reservations whose Binding was sent long enough ago for the API server to have written it or dropped it."""
        with self._guard:
            return [held.reservation for held in self._held.values() if self._may_clear_unknown(held)]

    def clear_unknown(self, reservation: Reservation) -> None:
        """Somebody has looked after :meth:`unknown_bindings`, and the pod is not bound: drop it, unless it was tried again."""
        with self._guard:
            if self.is_current(reservation) and self._may_clear_unknown(self._held[reservation.ref.uid]):
                self._drop(reservation.ref.uid)

    def is_kept(self, reservation: Reservation, pod: Pod) -> bool:
        """*pod* is bound with what was promised, whatever a device plugin has made of it meanwhile."""
        lasting = {ASSIGNED_NODE, ASSIGNED_TIME, *(vendor.allocated for vendor in self.vendors)}
        return pod.node_name == reservation.node and all(
            pod.annotations.get(key) == text for key, text in reservation.annotations.items() if key in lasting)

    def give_up(self, reservation: Reservation, *, drop: bool) -> None:
        """The bind has failed; *drop* the reservation too, or keep it until it lapses."""
        with self._guard:
            if not self.is_current(reservation):
                return
            if drop:
                self._drop(reservation.ref.uid)
            else:
                held = self._held[reservation.ref.uid]
                held.stage, held.since = _Stage.RESERVED, self._clock() if held.outcome_unknown else held.since

    def reservation(self, uid: str) -> Reservation | None:
        """What stands reserved for the pod and is not bound."""
        with self._guard:
            held = self._held.get(uid)
            return held.reservation if held is not None and held.stage is not _Stage.BOUND else None

    def reserved(self) -> int:
        """How many reservations wait to be bound."""
        with self._guard:
            return sum(held.stage is not _Stage.BOUND for held in self._held.values())

    def sweep(self) -> list[Reservation]:
        """Look at the time: drop and return reservations that were not bound, give up plugins that do not answer."""
        with self._guard:
            lapsed = [held.reservation for held in self._held.values()
                      if held.stage is _Stage.RESERVED and not held.outcome_unknown
                      and self._clock() - held.since >= RESERVED_FOR]
            for reservation in lapsed:
                self._drop(reservation.ref.uid)
            self.pods.expire()
            self.nodes.sweep()
            return lapsed

    # Reading

    def views(self) -> dict[str, tuple[DeviceUsage, ...]]:
        """Every node's devices and what is taken of them."""
        with self._guard:
            self._index.settle()
            return {name: tuple(entry.all_views()) for name, entry in self._index.nodes.items()}

    def node_views(self, node: str) -> Mapping[str, Sequence[DeviceUsage]]:
        """The devices of *node* by vendor and what is taken of them."""
        with self._guard:
            return self._index.views(node)

    def bookings(self) -> list[Booking]:
        """What every pod takes."""
        with self._guard:
            return list(self._index.bookings.values())

    def snapshot(self) -> Snapshot:
        """All of it at one moment. The lock is held to copy references only, not to work on them."""
        with self._guard:
            self._index.settle()
            nodes = {name: entry.views for name, entry in self._index.nodes.items()}
            bookings, used, quotas = self.bookings(), self.namespace_usage(), self.quotas.all()
            records, held = self.pods.all(), list(self._held.values())
        pods = {record.ref.uid: record.ref for record in records}
        pods.update((ref.uid, ref) for ref in (one.reservation.ref for one in held))
        return Snapshot(nodes, bookings, pods, used, quotas)

    def namespace_usage(self) -> dict[tuple[str, str], tuple[int, int]]:
        """MiB and percent taken, by namespace and vendor."""
        with self._guard:
            return {key: (used[0], used[1]) for key, used in self._index.namespaces().items()}

    def _admit_filter(self, ref: PodRef) -> None:
        if self.pods.is_deleted(ref.uid):
            raise Rejected(f'pod "{ref.name}" not found')
        record, held = self.pods.get(ref.uid), self._held.get(ref.uid)
        if record is not None and record.terminated:
            raise Rejected(f"pod {ref} has terminated")
        node = record.node if record is not None and record.node else (
            held.reservation.node if held is not None and held.stage is _Stage.BOUND else "")
        if node:
            raise Rejected(f"pod {ref} is already bound to node {node}")
        if held is not None and held.stage is _Stage.POSTING:
            raise Rejected(f"pod {ref} is being bound to node {held.reservation.node}")

    def _may_clear_unknown(self, held: _Held) -> bool:
        return held.outcome_unknown and held.stage is _Stage.RESERVED and self._clock() - held.since >= RESERVED_FOR

    def _promise_again(self, reservation: Reservation, names: Sequence[str]) -> Choice:
        """The same promise once more: a Binding of it may yet be written, so no other can be made."""
        if reservation.node not in names:
            raise Rejected(f"pod {reservation.ref}: it is not known whether it was bound to {reservation.node}")
        return Choice(reservation.node, reservation.placement, (), 0, len(names))

    def _budgets(self, namespace: str) -> dict[str, Budget]:
        quotas = self.quotas.of(namespace)
        if not quotas:
            return {}
        return {vendor.key: budget(vendor, quotas, self._index.used_in(namespace, vendor.key))
                for vendor in self.vendors}

    def _ask(self, pod: Pod, budgets: Mapping[str, Budget]) -> PodRequest | None:
        return make_pod_request(pod, self.vendors, self.policies.device, budgets)

    def _remember_waiting(self, pod: Pod, names: Sequence[str]) -> None:
        everywhere = len(names) >= len(self._index.rows) and self._index.rows.keys() <= set(names)
        self._waiting[pod.ref.uid] = _WaitingPod(
            pod, None if everywhere else tuple(names), self._changes(), self._clock() + GRACE)
        if len(self._waiting) > WAITING:
            self._waiting.popitem(last=False)

    def _due(self, changes: tuple[int, int]) -> list[_WaitingPod]:
        clock = self._clock()
        return [one for one in self._waiting.values() if one.changes != changes and clock >= one.due]

    def _room_for(self, ask: PodRequest | None, names: tuple[str, ...] | None) -> str | None:
        if ask is None:
            return None
        names = names if names is not None else tuple(self._index.rows)
        choice = choose_node(self._index, self._verdicts, ask, names, NodePolicy.BINPACK)
        return choice.node if choice is not None else None

    def _changes(self) -> tuple[int, int]:
        """A value that is another one after each change that could let a pod in."""
        return self._index.changes, self.quotas.changes

    def _reserve(self, pod: Pod, ask: PodRequest, choice: Choice) -> None:
        used = [vendor_request.vendor for vendor_request in ask.vendor_requests]
        shares = {vendor.key: _only(vendor, choice.placement) for vendor in used}
        views, now = self._index.views(choice.node), self._now()
        annotations = {ASSIGNED_NODE: choice.node, ASSIGNED_TIME: str(int(now.timestamp())),
                       BIND_PHASE: BindPhase.ALLOCATING.value}
        for vendor in used:
            devices = {view.device.uuid: view.device for view in views.get(vendor.key, ())}
            annotations |= written(vendor, AnnotationContext(pod=pod, node=choice.node, shares=shares[vendor.key],
                                                    devices=devices, now=now))
        annotations |= {key: NOTHING.get(key, "") for key in pod.annotations
                        if key not in annotations and is_allocation(key)}
        labels = {ASSIGNED_NODE: choice.node} if is_label_value(choice.node) else {}
        clock = self._clock()
        reservation = Reservation(pod.ref, choice.node, choice.placement, annotations, labels,
                                  tuple(sorted({vendor.lock for vendor in used if vendor.lock})), clock)
        self._held[pod.ref.uid] = _Held(reservation, _Stage.RESERVED, clock)
        self._index.book(Booking(pod.ref.uid, pod.ref.namespace, choice.node, tuple(
            (vendor.key, collapse(ask.kinds, shares[vendor.key])) for vendor in used)))

    def _broken(self, reservation: Reservation) -> str | None:
        views = {(key, view.device.uuid): view
                 for key, mine in self._index.views(reservation.node).items() for view in mine}
        for share in {(share.type, share.uuid): share for shares in reservation.placement for share in shares}.values():
            view = views.get((share.type, share.uuid))
            if view is None or not view.device.healthy:
                return f"device {share.uuid} on node {reservation.node} is gone or unhealthy"
            if view.is_over:
                return f"device {share.uuid} on node {reservation.node} was taken by another pod meanwhile"
        return None

    def _drop(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        if self._held.pop(uid, None) is not None:
            self._index.unbook(uid)
            self.on_dropped(uid)

    def _seen_bound(self, uid: str) -> None:
        """The watch shows the pod bound: from here on its annotations are what counts."""
        self._waiting.pop(uid, None)
        if self._held.pop(uid, None) is not None:
            self.on_dropped(uid)

    def _prune(self, seen: set[str], started: float) -> None:
        with self._guard:
            for uid, held in list(self._held.items()):
                if uid not in seen and held.stage is _Stage.BOUND and held.since < started:
                    self._drop(uid)
            self.nodes.trust(started)


def _only(vendor: Vendor, placement: Placement) -> tuple[tuple[Share, ...], ...]:
    return tuple(tuple(share for share in shares if share.type == vendor.key) for shares in placement)


def _least_demand(vendor: Vendor, pod: Pod, kinds: Sequence[ContainerKind]) -> tuple[int, int]:
    """The least memory and cores that *pod* can come to: all its shares as if of one device, percentages as nothing."""
    most = WHOLE if vendor.gives_cores(pod.annotations.get) else 0
    requests = [request_of(vendor, container) for container in pod.containers]
    return total(collapse(kinds, [
        (Share("", vendor.key, request.memory_mib * request.count, min(request.cores, most) * request.count),)
        if request is not None else () for request in requests]))
