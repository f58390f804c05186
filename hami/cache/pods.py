"""The pods that hold devices, wait for them, or should have them, as last seen. Fed by the pod watch; asks nobody."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from hami.codec.objects import parse_resource_version
from hami.codec.keys import ASSIGNED_NODE, ASSIGNED_TIME, BIND_PHASE, BIND_TIME, NODE_LOCK, is_label_value
from hami.model import BindPhase, Pod, PodRef
from hami.scheduling.index import Index
from hami.scheduling.read_booking import read_booking
from hami.vendors.request import asks
from hami.vendors.spec import Catalog

__all__ = ["FOREIGN_FRESH", "PodCache", "PodRecord"]

FOREIGN_FRESH = 60.0  # seconds that another scheduler's annotations on a pod that is not bound count as a reservation
TOMBSTONES = 10_000  # pods that are remembered as deleted


@dataclass(frozen=True, slots=True)
class PodRecord:
    """What is remembered of a pod. *assigned*: the node its annotations name; *label*: the one its label names.
    *asks*: it asks for devices.

    *allocating*: a node agent still has to hand out its devices, and will say so: those do that know HAMi's node lock.
    *wall_assigned*, *wall_bound*: Unix seconds of the annotations, 0 without. *seen*: when, on the steady clock.
    *promised*: whose devices the annotations of a pod that is not bound name. *problems*: annotations that cannot be
    read.
    """

    ref: PodRef
    version: int
    node: str
    scheduler: str
    assigned: str
    label: str | None
    phase: str
    bind_phase: str
    allocating: bool
    wall_assigned: int
    wall_bound: int
    asks: bool
    terminated: bool
    seen: float
    promised: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def is_settled(self) -> bool:
        """Nothing is to be done about the pod: it is over, or runs with what it was given."""
        bound = bool(self.node) and not self.allocating and not self.is_mislabelled
        return self.terminated or (bound and not self.problems)

    @property
    def proper_label(self) -> str | None:
        """What the label of a pod that is bound as assigned should say; ``None`` where the node's name can be none."""
        return self.node if is_label_value(self.node) else None

    @property
    def is_mislabelled(self) -> bool:
        """The API server has not copied the label of the pod's Binding, and it has none or that of an earlier node."""
        return bool(self.node) and self.assigned == self.node and self.label != self.proper_label


class PodCache:
    """Pods by uid. What bound pods hold is booked in *index*, under *guard*.

    *is_ours* tells pods that this process has a reservation for: their own annotations do not count until bound.
    """

    def __init__(self, vendors: Catalog, index: Index, guard: threading.RLock, *,
                 clock: Callable[[], float], now: Callable[[], datetime]) -> None:
        self._vendors = vendors
        self._index = index
        self._guard = guard
        self._clock = clock
        self._now = now
        self._records: dict[str, PodRecord] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._unreadable: dict[str, Pod] = {}
        self._tombstones: OrderedDict[str, None] = OrderedDict()
        self._handled: set[str] = set()
        self._unsettled: dict[str, None] = {}  # in the order in which they came
        self.is_ours: Callable[[str], bool] = lambda uid: False
        self.on_bound: Callable[[str], None] = lambda uid: None
        self.on_gone: Callable[[str], None] = lambda uid: None
        self.on_prune: Callable[[set[str], float], None] = lambda seen, started: None

    def upsert(self, pod: Pod) -> None:
        """Take over what the API server says of *pod*, unless something newer is known."""
        uid, version = pod.ref.uid, parse_resource_version(pod.resource_version)
        with self._guard:
            known = self._records.get(uid)
            if (known is not None and version < known.version) or uid in self._tombstones:
                return
            asks = self._asks(pod)
            if not asks and ASSIGNED_NODE not in pod.annotations:
                self._forget(uid)
                return
            self._remember(pod, version, asks)

    def remove(self, pod: Pod) -> None:
        """*pod* is gone for good."""
        with self._guard:
            self._add_tombstone(pod.ref.uid)

    def prune(self, seen: set[str], started: float) -> None:
        """Only the pods *seen* existed when the list was asked for (*started*, on the steady clock)."""
        with self._guard:
            for uid in [uid for uid, record in self._records.items() if uid not in seen and record.seen < started]:
                self._add_tombstone(uid)
        self.on_prune(seen, started)

    def rebook(self, node: str) -> None:
        """The devices of *node* have changed: look again at texts that could not be read."""
        with self._guard:
            for pod in [pod for pod in self._unreadable.values() if _node_of(pod) == node]:
                self._book(pod)

    def expire(self) -> None:
        """Another scheduler's reservations that were never bound lapse."""
        with self._guard:
            now = self._now().timestamp()
            for record in self.unsettled():
                if not record.node and record.assigned and not self.is_ours(record.ref.uid):
                    if not self._fresh(record.wall_assigned, now):
                        self._end_promise(record.ref.uid)

    def disown(self, uid: str) -> None:
        """This process decides about the pod from now on: what another scheduler wrote on it counts no more."""
        with self._guard:
            self._handled.add(uid)
            if (record := self._records.get(uid)) is None or not record.node:
                self._end_promise(uid)

    def get(self, uid: str) -> PodRecord | None:
        """What is known of the pod."""
        with self._guard:
            return self._records.get(uid)

    def named(self, namespace: str, name: str) -> PodRecord | None:
        """What is known of the pod of that name."""
        with self._guard:
            uid = self._names.get((namespace, name))
            return self._records.get(uid) if uid is not None else None

    def is_deleted(self, uid: str) -> bool:
        """The pod is known to be gone."""
        with self._guard:
            return uid in self._tombstones

    def all(self) -> list[PodRecord]:
        """All pods that are remembered."""
        with self._guard:
            return list(self._records.values())

    def unsettled(self) -> list[PodRecord]:
        """The pods that wait for something: to be bound, to get their devices, a label, or somebody's attention."""
        with self._guard:
            return [self._records[uid] for uid in self._unsettled]

    def unreadable(self) -> list[PodRef]:
        """Pods that hold devices whose annotations cannot be read."""
        with self._guard:
            return [pod.ref for pod in self._unreadable.values()]

    def _remember(self, pod: Pod, version: int, asks: bool) -> None:
        uid, annotations = pod.ref.uid, pod.annotations
        problems = self._book(pod)
        record = self._records[uid] = PodRecord(
            ref=pod.ref, version=version, node=pod.node_name, scheduler=pod.scheduler_name,
            assigned=annotations.get(ASSIGNED_NODE, ""), label=pod.labels.get(ASSIGNED_NODE), phase=pod.phase,
            bind_phase=annotations.get(BIND_PHASE, ""), allocating=self._is_allocating(annotations),
            wall_assigned=parse_resource_version(annotations.get(ASSIGNED_TIME, "")),
            wall_bound=parse_resource_version(annotations.get(BIND_TIME, "")), asks=asks, terminated=pod.is_terminated,
            seen=self._clock(), promised=() if pod.node_name else self._promised(annotations), problems=problems)
        namesake = self._records.get(self._names.get((pod.ref.namespace, pod.ref.name), ""))
        if namesake is None or namesake.version <= version:
            self._names[pod.ref.namespace, pod.ref.name] = uid
        if record.is_settled:
            self._unsettled.pop(uid, None)
        else:
            self._unsettled[uid] = None
        if pod.node_name:
            self.on_bound(uid)

    def _book(self, pod: Pod) -> tuple[str, ...]:
        """Book what *pod* holds; the parts of its annotations that cannot be read."""
        uid = pod.ref.uid
        self._unreadable.pop(uid, None)
        if pod.is_terminated:
            self._index.unbook(uid)
            self.on_gone(uid)
            return ()
        if not pod.node_name and not self._is_foreign_reservation(pod):
            if not self.is_ours(uid):
                self._index.unbook(uid)
            return ()
        booking, problems = read_booking(pod, _node_of(pod), self._vendors, self._index.views)
        if booking.charges:
            self._index.book(booking)
        else:
            self._index.unbook(uid)
        if problems:
            self._unreadable[uid] = pod
        return problems

    def _end_promise(self, uid: str) -> None:
        """What another scheduler wrote on the pod, which is not bound, counts no more, be it readable or not."""
        self._index.unbook(uid)
        if self._unreadable.pop(uid, None) is not None:
            self._records[uid] = replace(self._records[uid], problems=())

    def _is_allocating(self, annotations: Mapping[str, str]) -> bool:
        return annotations.get(BIND_PHASE) == BindPhase.ALLOCATING and any(
            vendor.lock == NODE_LOCK and vendor.allocated in annotations for vendor in self._vendors)

    def _promised(self, annotations: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(vendor.key for vendor in self._vendors.allocated_in(annotations))

    def _is_foreign_reservation(self, pod: Pod) -> bool:
        """Another scheduler has lately promised devices to *pod*, which is not bound and which we have not decided on.

        A pod that asks for nothing was promised nothing, whatever somebody wrote on it.
        """
        return (not self.is_ours(pod.ref.uid) and pod.ref.uid not in self._handled and self._asks(pod)
                and self._fresh(parse_resource_version(pod.annotations.get(ASSIGNED_TIME, "")), self._now().timestamp()))

    def _asks(self, pod: Pod) -> bool:
        return asks(self._vendors, pod.containers)

    @staticmethod
    def _fresh(assigned: int, now: float) -> bool:
        return assigned > 0 and abs(now - assigned) < FOREIGN_FRESH

    def _add_tombstone(self, uid: str) -> None:
        self._forget(uid)
        self._index.unbook(uid)
        self._tombstones[uid] = None
        if len(self._tombstones) > TOMBSTONES:
            self._tombstones.popitem(last=False)
        self.on_gone(uid)

    def _forget(self, uid: str) -> None:
        self._unreadable.pop(uid, None)
        self._handled.discard(uid)
        self._unsettled.pop(uid, None)
        record = self._records.pop(uid, None)
        if record is None:
            return
        if self._names.get((record.ref.namespace, record.ref.name)) == uid:
            del self._names[record.ref.namespace, record.ref.name]
        if not self.is_ours(uid):
            self._index.unbook(uid)


def _node_of(pod: Pod) -> str:
    return pod.node_name or pod.annotations.get(ASSIGNED_NODE, "")
