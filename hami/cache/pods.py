"""The pods that hold or request devices, as last seen. Fed by the pod watch; makes no calls."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from hami.cache.binding import assigned_at, assigned_node, bound_at, expected_label, is_allocating
from hami.cache.nodes import NodeCache
from hami.cache.reservations import Reservations
from hami.codec.keys import ASSIGNED_NODE, BIND_PHASE
from hami.codec.objects import parse_resource_version
from hami.model import Pod, PodRef
from hami.scheduling.index import Index
from hami.scheduling.read_booking import read_booking
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

    What their annotations say that they hold is booked in *index*. *lock* is the cache's: it guards the records, the
    index and the reservations, and is never held across I/O; only single look-ups do without it.
    The annotations of an unbound pod that has a reservation of this process do not count.
    """

    def __init__(self, vendors: Catalog, lock: threading.RLock, index: Index, reservations: Reservations,
                 nodes: NodeCache, *, clock: Callable[[], float], now: Callable[[], datetime]) -> None:
        self._vendors = vendors
        self._lock = lock
        self._index = index
        self._reservations = reservations
        self._nodes = nodes
        self._clock = clock
        self._now = now
        self._records: dict[str, PodRecord] = {}
        self._uids: dict[tuple[str, str], str] = {}
        self._tombstones: OrderedDict[str, bool] = OrderedDict()  # of deleted pods: see was_allocating
        self._decided: set[str] = set()  # pods that this process has filtered
        self._unsettled: dict[str, None] = {}  # in the order in which they came
        self._unreadable: dict[str, Pod] = {}  # those whose annotations cannot be read completely

    def upsert(self, pod: Pod) -> None:
        """Stores *pod* unless a later version is known."""
        uid, version = pod.ref.uid, parse_resource_version(pod.resource_version)
        with self._lock:
            known = self._records.get(uid)
            if (known is not None and version < known.version) or uid in self._tombstones:
                return
            requesting = (known.requests_devices if known is not None  # what a pod requests cannot be changed
                          else requests_devices(self._vendors, pod.containers))
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
                if not record.node and record.assigned_node and not _is_fresh(record.assigned_at, now):
                    self._unbook(record.ref.uid)

    def take_over(self, uid: str) -> None:
        """Ignores from now on what another scheduler wrote on the pod, since this process filters it."""
        with self._lock:
            self._decided.add(uid)
            if (record := self._records.get(uid)) is None or not record.node:
                self._unbook(uid)

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
            return [pod.ref for pod in self._unreadable.values()]

    def rebook(self, node: str) -> None:
        """Reads unreadable annotations again, since the devices of *node* have changed and they may name new ones."""
        for pod in [pod for pod in self._unreadable.values() if assigned_node(pod) == node]:
            self._book_annotations(pod)

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
            self._unbook(uid)
            self._reservations.forget(uid)
            return ()
        # A pod that requests no devices cannot have been assigned any, whatever its annotations say.
        if pod.node_name or (requesting and self._is_foreign_reservation(pod)):
            return self._book_annotations(pod)
        self._unbook(uid)
        return ()

    def _book_annotations(self, pod: Pod) -> tuple[str, ...]:
        booking, problems = read_booking(pod, assigned_node(pod), self._vendors, self._index.usages)
        if booking.charges:
            self._index.book(booking)
        else:
            self._index.unbook(pod.ref.uid)
        if problems:
            self._unreadable[pod.ref.uid] = pod
        else:
            self._unreadable.pop(pod.ref.uid, None)
        return problems

    def _unbook(self, uid: str) -> None:
        """Removes what the pod's annotations have booked, and their problems. A reservation's booking stays."""
        if uid not in self._reservations:
            self._index.unbook(uid)
        if self._unreadable.pop(uid, None) is not None and (record := self._records.get(uid)) is not None:
            self._records[uid] = replace(record, problems=())

    def _is_foreign_reservation(self, pod: Pod) -> bool:
        """Reports whether another scheduler has recently assigned devices to *pod*, and we have not filtered it."""
        uid = pod.ref.uid
        return (uid not in self._reservations and uid not in self._decided
                and _is_fresh(assigned_at(pod), self._now().timestamp()))

    def _bury(self, uid: str, was_allocating: bool) -> None:
        self._reservations.forget(uid)
        self._remove_record(uid)
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
        self._unbook(uid)


def _is_fresh(assigned: int, now: float) -> bool:
    return assigned > 0 and abs(now - assigned) < FOREIGN_TTL_S
