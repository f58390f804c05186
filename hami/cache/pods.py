"""The pods that hold or request devices, as last seen. Fed by the pod watch; makes no calls."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from hami.cache.binding import assigned_at, bound_at, expected_label, is_allocating
from hami.cache.bookings import PodBookings
from hami.cache.nodes import NodeCache
from hami.cache.reservations import Reservations
from hami.codec.keys import ASSIGNED_NODE, BIND_PHASE
from hami.codec.objects import parse_resource_version
from hami.model import Pod, PodRef
from hami.vendors.request import requests_devices
from hami.vendors.spec import Catalog

FOREIGN_TTL_S = 60.0  # annotations of another scheduler on an unbound pod count as a reservation for this long
TOMBSTONES = 10_000  # deleted pods that are remembered


@dataclass(frozen=True, slots=True)
class PodRecord:
    """The facts about a pod that the scheduler remembers.

    *assigned_node*, *label*: the node that its annotations and its label name. *allocating*: a device plugin still has
    to allocate its devices. *assigned_at*, *bound_at*: Unix seconds, 0 if not known. *seen_at*: on the monotonic clock.
    *vendors*: vendors whose allocation an unbound pod carries. *problems*: why its annotations cannot be read.
    """

    ref: PodRef
    version: int
    node: str
    scheduler_name: str
    assigned_node: str
    label: str | None
    phase: str
    bind_phase: str
    allocating: bool
    assigned_at: int
    bound_at: int
    requests_devices: bool
    terminated: bool
    seen_at: float
    vendors: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def is_settled(self) -> bool:
        """Nothing is left to do for the pod: it has terminated, or runs with its devices."""
        bound = bool(self.node) and not self.allocating and not self.is_mislabeled
        return self.terminated or (bound and not self.problems)

    @property
    def is_mislabeled(self) -> bool:
        """The API server has not copied the label of the Binding: there is none, or that of an earlier node."""
        return bool(self.node) and self.assigned_node == self.node and self.label != expected_label(self.node)


class PodCache:
    """Pods by uid.

    *lock* is the cache's: it guards the records, the bookings and the reservations, and is never held across I/O; only
    single look-ups do without it.
    The annotations of an unbound pod that has a reservation of this process do not count.
    """

    def __init__(self, vendors: Catalog, lock: threading.RLock, bookings: PodBookings, reservations: Reservations,
                 nodes: NodeCache, *, clock: Callable[[], float], now: Callable[[], datetime]) -> None:
        self._vendors = vendors
        self._lock = lock
        self._bookings = bookings
        self._reservations = reservations
        self._nodes = nodes
        self._clock = clock
        self._now = now
        self._records: dict[str, PodRecord] = {}
        self._uids: dict[tuple[str, str], str] = {}
        self._tombstones: OrderedDict[str, bool] = OrderedDict()  # of deleted pods: see was_allocating
        self._decided: set[str] = set()  # pods that this process has filtered
        self._unsettled: dict[str, None] = {}  # in the order in which they came

    def upsert(self, pod: Pod) -> None:
        """Stores *pod* unless a later version is known."""
        uid, version = pod.ref.uid, parse_resource_version(pod.resource_version)
        with self._lock:
            known = self._records.get(uid)
            if (known is not None and version < known.version) or uid in self._tombstones:
                return
            requesting = requests_devices(self._vendors, pod.containers)
            if requesting or ASSIGNED_NODE in pod.annotations:
                self._store(pod, version, requesting)
            else:
                self._remove_record(uid)

    def remove(self, pod: Pod) -> None:
        """Removes *pod*, which has been deleted; a late version of it is ignored."""
        with self._lock:
            self._bury(pod.ref.uid, bool(pod.node_name) and is_allocating(pod, self._vendors))

    def prune(self, seen: set[str], started: float) -> None:
        """Removes the pods that are not in a complete list (*seen*) requested at *started* (monotonic clock)."""
        with self._lock:
            gone = [uid for uid, record in self._records.items() if uid not in seen and record.seen_at < started]
            for uid in gone:
                self._bury(uid, not self._records[uid].is_settled)
            self._reservations.prune(seen, started)
            self._nodes.clear_foreign_before(started)

    def expire(self) -> None:
        """Ends reservations of other schedulers that were not bound in time."""
        with self._lock:
            now = self._now().timestamp()
            for record in self.unsettled():
                unbound = not record.node and record.ref.uid not in self._reservations
                if unbound and record.assigned_node and not _is_fresh(record.assigned_at, now):
                    self._end_foreign_reservation(record.ref.uid)

    def take_over(self, uid: str) -> None:
        """Ignores from now on what another scheduler wrote on the pod, since this process filters it."""
        with self._lock:
            self._decided.add(uid)
            if (record := self._records.get(uid)) is None or not record.node:
                self._end_foreign_reservation(uid)

    def get(self, uid: str) -> PodRecord | None:
        """Returns the record of the pod."""
        return self._records.get(uid)

    def named(self, namespace: str, name: str) -> PodRecord | None:
        """Returns the record of the latest pod of that name."""
        with self._lock:
            uid = self._uids.get((namespace, name))
            return self._records.get(uid) if uid is not None else None

    def is_deleted(self, uid: str) -> bool:
        """Reports whether the pod is known to be deleted."""
        return uid in self._tombstones

    def was_allocating(self, uid: str) -> bool:
        """Reports whether the deleted pod may have been bound and still without an answer of its device plugin."""
        return self._tombstones.get(uid, True)

    def all(self) -> list[PodRecord]:
        """Returns all records."""
        with self._lock:
            return list(self._records.values())

    def unsettled(self) -> list[PodRecord]:
        """Returns the pods that wait to be bound, for their devices or a label, or whose annotations are unreadable."""
        with self._lock:
            return [self._records[uid] for uid in self._unsettled]

    def unreadable(self) -> list[PodRef]:
        """Returns pods that hold devices and whose annotations cannot be read."""
        with self._lock:
            return self._bookings.unreadable()

    def _store(self, pod: Pod, version: int, requesting: bool) -> None:
        uid, annotations = pod.ref.uid, pod.annotations
        problems = self._book(pod, requesting)
        vendors = () if pod.node_name else tuple(vendor.key for vendor in self._vendors.allocated_in(annotations))
        record = self._records[uid] = PodRecord(
            ref=pod.ref, version=version, node=pod.node_name, scheduler_name=pod.scheduler_name,
            assigned_node=annotations.get(ASSIGNED_NODE, ""), label=pod.labels.get(ASSIGNED_NODE), phase=pod.phase,
            bind_phase=annotations.get(BIND_PHASE, ""), allocating=is_allocating(pod, self._vendors),
            assigned_at=assigned_at(pod), bound_at=bound_at(pod), requests_devices=requesting,
            terminated=pod.is_terminated, seen_at=self._clock(), vendors=vendors, problems=problems)
        namesake = self._records.get(self._uids.get((pod.ref.namespace, pod.ref.name), ""))
        if namesake is None or namesake.version <= version:
            self._uids[pod.ref.namespace, pod.ref.name] = uid
        if record.is_settled:
            self._unsettled.pop(uid, None)
        else:
            self._unsettled[uid] = None
        if pod.node_name:
            self._reservations.confirm(uid)

    def _book(self, pod: Pod, requesting: bool) -> tuple[str, ...]:
        """Books what *pod* holds. Returns why parts of its annotations cannot be read."""
        uid = pod.ref.uid
        if pod.is_terminated:
            self._bookings.unbook(uid)
            self._reservations.forget(uid)
            return ()
        # A pod that requests no devices cannot have been assigned any, whatever its annotations say.
        if pod.node_name or (requesting and self._is_foreign_reservation(pod)):
            return self._bookings.book(pod)
        if uid not in self._reservations:
            self._bookings.unbook(uid)
        return ()

    def _end_foreign_reservation(self, uid: str) -> None:
        if self._bookings.unbook(uid):
            self._records[uid] = replace(self._records[uid], problems=())

    def _is_foreign_reservation(self, pod: Pod) -> bool:
        """Reports whether another scheduler has recently assigned devices to *pod*, and we have not filtered it."""
        uid = pod.ref.uid
        return (uid not in self._reservations and uid not in self._decided
                and _is_fresh(assigned_at(pod), self._now().timestamp()))

    def _bury(self, uid: str, was_allocating: bool) -> None:
        self._remove_record(uid)
        self._reservations.forget(uid)
        self._bookings.unbook(uid)
        self._tombstones[uid] = was_allocating
        if len(self._tombstones) > TOMBSTONES:
            self._tombstones.popitem(last=False)

    def _remove_record(self, uid: str) -> None:
        self._decided.discard(uid)
        self._unsettled.pop(uid, None)
        record = self._records.pop(uid, None)
        if record is None:
            return
        if self._uids.get((record.ref.namespace, record.ref.name)) == uid:
            del self._uids[record.ref.namespace, record.ref.name]
        if uid not in self._reservations:
            self._bookings.unbook(uid)


def _is_fresh(assigned: int, now: float) -> bool:
    return assigned > 0 and abs(now - assigned) < FOREIGN_TTL_S
