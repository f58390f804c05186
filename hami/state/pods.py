"""The pods that hold or request devices, as last seen. Fed by the pod watch; makes no calls.

This process knows what it has written itself; of other pods it believes what they carry when they are first seen bound.
What counts of a pod is decided in `counting`.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import msgspec

from hami.codec.objects import parse_resource_version
from hami.model import Pod, PodRef
from hami.state.counting import complete, follows, what_counts
from hami.state.node_loads import NodeLoads
from hami.state.promises import Promises, Stage, is_bound_without_lock
from hami.state.read_pod import PodEntry, PodReader, PodRecord, Reading, in_scope, is_allocating
from hami.state.sighting import Sightings
from hami.state.table import Table
from hami.vendors.spec import Catalog

# annotations of another scheduler on an unbound pod count as a reservation for this long
FOREIGN_TTL_S = 60.0
TOMBSTONES = 10_000  # deleted pods that are remembered
DECIDED = 10_000  # waiting pods that this process has filtered, and of which it remembers that


class _Tombstone(NamedTuple):
    """A deleted pod. *was_allocating*: it may have been bound and still without an answer of its device plugin."""

    was_allocating: bool
    seen_at: float


@dataclass(frozen=True, slots=True, eq=False)
class ForeignMark:
    """Another process may have bound pods to a node since *since* (monotonic clock)."""

    since: float


class ForeignNodes:
    """Marks of nodes. *lock* is the store's and guards them. *clock* is monotonic."""

    def __init__(self, lock: threading.RLock, clock: Callable[[], float]) -> None:
        self._lock = lock
        self._clock = clock
        self._marks: dict[str, ForeignMark] = {}
        self._locked: set[str] = set()

    def mark(self, node: str) -> None:
        """Records that another process may have bound pods to *node*."""
        with self._lock:
            self._marks[node] = ForeignMark(self._clock())

    def mark_of(self, node: str) -> ForeignMark | None:
        """Returns the mark of a node whose pods have to be read; ``None`` if it has none."""
        return self._marks.get(node)

    def set_locked(self, node: str, is_locked: bool) -> None:
        """Records whether *node* is locked."""
        with self._lock:
            if is_locked:
                self._locked.add(node)
            else:
                self._locked.discard(node)

    def clear(self, node: str, mark: ForeignMark | None) -> None:
        """Records that *node*'s pods have been read since it had *mark*. A later mark stays."""
        with self._lock:
            if self._marks.get(node) is mark:
                self._marks.pop(node, None)

    def clear_before(self, started: float) -> None:
        """Records that all pods have been listed since *started*. Nodes that are locked now stay foreign."""
        with self._lock:
            for node, mark in list(self._marks.items()):
                if node not in self._locked and mark.since < started:
                    del self._marks[node]

    def remove(self, node: str) -> None:
        """Forgets *node*, which is gone."""
        with self._lock:
            self._marks.pop(node, None)
            self._locked.discard(node)


class PodRecords:
    """Records of pods by uid. Booked in *table* is what counts of each, beside *promises*.

    Plain data: who changes it holds the lock of the store. Who looks something up does not: it is copied in one step.
    """

    def __init__(self, table: Table, promises: Promises) -> None:
        self._table = table
        self._promises = promises
        self._records: dict[str, PodRecord] = {}
        self._uids: dict[tuple[str, str], str] = {}
        self._unsettled: dict[str, PodRecord] = {}  # in the order in which they came
        self._waiting: dict[str, Pod] = {}  # those that request devices and are not bound
        # those that are evicted for others and have not ended
        self._preempted: dict[str, PodRecord] = {}
        self._unreadable: dict[str, Reading] = {}  # what cannot be read completely, and counts
        self.arrivals: list[deque[Pod]] = []
        """Queues to which each pod that comes to request devices is added. Who looks at these pods, bound since then or
        not, brings a queue with a bound; a process in which nobody does keeps no pods that are gone."""
        self.loads = NodeLoads(table)
        """Of the pods that hold no devices."""
        self.rejected: dict[str, PodRecord] = {}
        """The pods that their kubelets have rejected for good because of their devices, by uid. To be copied."""
        self.changes = 0
        """How often a pod has come, gone, or changed in what is shown of it."""
        self.ended = 0
        """The number of pods that have been bound and run no longer."""

    def get(self, uid: str) -> PodRecord | None:
        """Returns the record of the pod."""
        return self._records.get(uid)

    def named(self, namespace: str, name: str) -> PodRecord | None:
        """Returns the record of the latest pod of that name."""
        return self._records.get(self._uids.get((namespace, name), ""))

    def by_uid(self) -> dict[str, PodRecord]:
        """Returns all records by uid."""
        return self._records.copy()

    def unsettled(self) -> list[PodRecord]:
        """Returns the pods that wait to be bound, for their devices or a label, or whose annotations are unreadable."""
        return list(self._unsettled.values())

    def waiting(self) -> list[Pod]:
        """Returns the pods that request devices and are not bound, in the order in which they came."""
        return list(self._waiting.values())

    def waiting_pod(self, uid: str) -> Pod | None:
        """Returns the pod if it requests devices and is not bound."""
        return self._waiting.get(uid)

    def preempted(self) -> list[PodRecord]:
        """Returns the pods that hold devices and are evicted for pods of higher priority."""
        return list(self._preempted.values())

    def unreadable(self) -> list[PodRef]:
        """Returns pods that hold devices and whose annotations cannot be read."""
        records = [self._records.get(uid) for uid in list(self._unreadable)]
        return [record.ref for record in records if record is not None]

    def awaits_allocation(self, node: str) -> bool:
        """Reports whether a pod that was bound to *node* without a lock still has to be allocated its devices. A device
        plugin that needs the lock could take it for the holder of the lock."""
        for booking in self._table.bookings.on(node):
            promise = self._promises.get(booking.uid)
            if promise is not None and is_bound_without_lock(promise):
                return True
            record = self._records.get(booking.uid)
            if record is not None and record.awaits_allocation:
                return True
        return False

    def put(self, record: PodRecord, waiting: Pod | None = None) -> None:
        """Keeps *record* and books what counts of its pod. *waiting*: the pod if it requests devices and is not bound,
        and has changed."""
        uid, ref = record.ref.uid, record.ref
        earlier = self._records.get(uid)
        self._records[uid] = record
        if earlier is None or _shown(earlier) != _shown(record):
            self.changes += 1
        self.ended += _has_ended(earlier, record)
        namesake = self.named(ref.namespace, ref.name)
        if namesake is None or namesake.version <= record.version:
            self._uids[ref.namespace, ref.name] = uid
        if waiting is not None:
            _await(waiting, self._waiting, self.arrivals)
        elif record.node or record.terminated:
            self._waiting.pop(uid, None)
        if record.allocated is None:
            self._unreadable.pop(uid, None)
        _index(self._unsettled, record, applies=not record.is_settled)
        _index(self._preempted, record, applies=record.preempted and record.is_running)
        _index(self.rejected, record, applies=record.rejected)
        self._count(record)

    def pop(self, uid: str) -> None:
        """Forgets the pod."""
        record = self._records.pop(uid, None)
        if record is None:
            return
        self.changes += 1
        self.ended += record.is_running
        for index in (
            self._waiting,
            self._unsettled,
            self._preempted,
            self.rejected,
            self._unreadable,
        ):
            index.pop(uid, None)
        if self._uids.get((record.ref.namespace, record.ref.name)) == uid:
            del self._uids[record.ref.namespace, record.ref.name]
        if self._promises.assumed(uid) is None:
            self._table.bookings.pop(uid)

    def believe(self, record: PodRecord, assignment: Reading) -> PodRecord:
        """Returns *record* of a pod that has what its *assignment* says. What of it cannot be read is read again when
        the devices of its node change."""
        self._unreadable.pop(record.ref.uid, None)
        if assignment.problems:
            self._unreadable[record.ref.uid] = assignment
        allocated = complete(assignment, self._table.usages)
        return msgspec.structs.replace(record, allocated=allocated, problems=assignment.problems)

    def reread(self, node: str) -> None:
        """Reads unreadable annotations again, since the devices of *node* have changed and they may name new ones."""
        for uid, reading in list(self._unreadable.items()):
            if reading.bookings[0].node == node:
                record = self._records[uid]
                allocated = complete(reading, self._table.usages)
                if record.allocated is not None:
                    allocated = in_scope(allocated, record.allocated[0].scope)
                self.put(msgspec.structs.replace(record, allocated=allocated))

    def _count(self, record: PodRecord) -> None:
        uid = record.ref.uid
        booking = what_counts(record, self._promises.assumed(uid))
        if booking is not None and booking.charges:
            self._table.bookings.put(booking)
            if uid in self.loads.pods.get(booking.node, ()):
                self.loads.drop(booking.node, uid)
        else:
            self._table.bookings.pop(uid)


class PodCache(PodRecords):
    """Pods by uid, as the watch shows them.

    *lock* is the store's: it guards the records, *table* and *promises*, and is never held across I/O.
    *foreign_reservations*: what another scheduler has written on an unbound pod counts for some time, unless the pod
    has a reservation of this process.
    """

    def __init__(
        self,
        vendors: Catalog,
        lock: threading.RLock,
        table: Table,
        promises: Promises,
        foreign_nodes: ForeignNodes,
        *,
        foreign_reservations: bool,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        super().__init__(table, promises)
        self._vendors = vendors
        self._lock = lock
        self._foreign_nodes = foreign_nodes
        self._clock = clock
        self._sightings = Sightings(clock, now)
        self._reader = PodReader(
            vendors, self._sightings, clock, reads_unbound=foreign_reservations
        )
        self._tombstones: OrderedDict[str, _Tombstone] = OrderedDict()
        self._decided: OrderedDict[str, None] = OrderedDict()  # pods that this process has filtered
        self._edited: dict[PodRef, None] = {}  # pods with edits that no one has taken yet
        self.is_listed = False
        """A list of all pods has been read."""
        self.edits_refused = 0
        """The number of edits of bound pods' annotations that would have changed what they hold."""

    def upsert(self, pod: Pod, as_of: float = -math.inf) -> None:
        """Stores *pod* unless a later version, or its end, has been seen since *as_of*, when a read that shows it began
        (by the clock)."""
        uid = pod.ref.uid
        earlier, binding = self.get(uid), _binding_of(pod, self._promises)
        entry = self._reader.read(pod, earlier, binding)
        with self._lock:
            if not self._is_news(pod, as_of):
                return
            self._promises.mark_shown(uid)
            if self.get(uid) is not earlier or _binding_of(pod, self._promises) is not binding:
                entry = self._reader.read(pod, self.get(uid), _binding_of(pod, self._promises))
            if entry is None:
                self._forget(uid)
            else:
                self._take(pod, entry)
            if uid not in self._table.bookings.by_uid:
                self.loads.put(pod)

    def remove(self, pod: Pod) -> None:
        """Removes *pod*, which has been deleted; a late version of it is ignored."""
        with self._lock:
            self.loads.remove(pod)
            self._bury(pod.ref.uid, bool(pod.node_name) and is_allocating(pod, self._vendors))

    def prune(self, seen: set[str], started: float) -> None:
        """Removes the pods that are not in a complete list (*seen*) requested at *started* (monotonic clock)."""
        with self._lock:
            for uid, record in self.by_uid().items():
                if uid not in seen and record.seen_at < started:
                    self._bury(uid, not record.is_settled)
            # of pods that came and went unseen, nothing is remembered
            for uid in list(self._decided):
                if self.get(uid) is None and self._promises.assumed(uid) is None:
                    del self._decided[uid]
            self._sightings.finish_list()
            self.is_listed = True
            self.loads.prune(seen)
            self._promises.prune(seen, started)
            self._foreign_nodes.clear_before(started)

    def expire(self) -> None:
        """Ends reservations of other schedulers that were not bound in time."""
        with self._lock:
            for record in self.unsettled():
                if record.node or record.allocated is None:
                    continue
                if not _is_fresh(record, self._clock()):
                    self.put(_without_assignment(record))

    def take_over(self, uid: str) -> None:
        """Ignores from now on what another scheduler wrote on the pod, since this process filters it."""
        with self._lock:
            self._decided[uid] = None
            self._decided.move_to_end(uid)
            if len(self._decided) > DECIDED:
                self._decided.popitem(last=False)
            record = self.get(uid)
            if record is None or record.node:
                return
            if record.allocated is not None:
                self.put(_without_assignment(record))

    def is_deleted(self, uid: str) -> bool:
        """Reports whether the pod is known to be deleted."""
        return uid in self._tombstones

    def was_allocating(self, uid: str) -> bool:
        """Reports whether the deleted pod may have been bound and still without an answer of its device plugin."""
        tombstone = self._tombstones.get(uid)
        return tombstone is None or tombstone.was_allocating

    def take_edited(self) -> list[PodRef]:
        """Returns the pods of which edits have been refused since the last call."""
        with self._lock:
            edited, self._edited = self._edited, {}
            return list(edited)

    def _is_news(self, pod: Pod, as_of: float) -> bool:
        """Reports whether *pod* is not older than what is known. What was known is forgotten if that is wrong."""
        uid = pod.ref.uid
        record, tombstone = self.get(uid), self._tombstones.get(uid)
        if tombstone is not None:
            if tombstone.seen_at >= as_of:
                return False
            del self._tombstones[uid]
        elif record is not None and parse_resource_version(pod.resource_version) < record.version:
            if record.seen_at >= as_of:
                return False
            self._forget(uid)
        return True

    def _take(self, pod: Pod, entry: PodEntry) -> None:
        """Keeps *entry*, which has been read from *pod*."""
        record, uid = entry.record, entry.record.ref.uid
        if entry.assignment is not None and (record.node or self._may_count(record)):
            record = self.believe(record, entry.assignment)
        if entry.edit is not None:
            record = self._edit(record, entry.edit, is_resize=entry.is_resize)
        is_waiting = bool(record.most_shares) and not record.node and not record.terminated
        self.put(record, pod if is_waiting else None)
        if record.terminated:
            self._promises.forget(uid)
        if record.node:
            self._decided.pop(uid, None)
            self._promises.confirm(uid)
        else:
            self._promises.observe(pod)

    def _edit(self, record: PodRecord, edit: Reading, *, is_resize: bool) -> PodRecord:
        """Returns *record* with what the edited annotations of its pod say, unless they are refused."""
        allocated = record.allocated
        assert allocated is not None, "a bound pod has what was written on its Binding"
        annotations = complete(edit, self._table.usages)
        is_resize = is_resize and bool(allocated[record.init_done].charges)
        if follows(annotations, allocated, self._table.usages, is_resize=is_resize):
            return msgspec.structs.replace(record, allocated=annotations)
        self.edits_refused += 1
        self._edited[record.ref] = None
        return record

    def _may_count(self, record: PodRecord) -> bool:
        """Reports whether another scheduler has recently assigned devices to the pod, and we have not filtered it."""
        uid = record.ref.uid
        if uid in self._decided or self._promises.assumed(uid) is not None:
            return False
        return _is_fresh(record, self._clock())

    def _bury(self, uid: str, was_allocating: bool) -> None:
        self._promises.forget(uid)
        self._forget(uid)
        self._tombstones[uid] = _Tombstone(was_allocating, self._clock())
        if len(self._tombstones) > TOMBSTONES:
            self._tombstones.popitem(last=False)

    def _forget(self, uid: str) -> None:
        self._decided.pop(uid, None)
        self.pop(uid)


def _binding_of(pod: Pod, promises: Promises) -> Mapping[str, str] | None:
    """Returns the annotations of *pod*'s Binding if this process has written it."""
    promise = promises.assumed(pod.ref.uid)
    if promise is None or promise.stage is not Stage.FINISHED or promise.node != pod.node_name:
        return None
    return promise.annotations


def _without_assignment(record: PodRecord) -> PodRecord:
    """Returns *record* of a pod of which it does not count any more what another scheduler has assigned to it."""
    return msgspec.structs.replace(record, allocated=None, problems=())


def _is_fresh(record: PodRecord, clock: float) -> bool:
    """Reports whether devices have been assigned to the pod recently."""
    age_s = record.assigned.claimed_age(record.assigned_at, clock)
    return record.assigned_at > 0 and abs(age_s) < FOREIGN_TTL_S


def _await(pod: Pod, waiting: MutableMapping[str, Pod], arrivals: Iterable[deque[Pod]]) -> None:
    """Adds *pod* to those that are waiting, and to the queues of *arrivals* if it was not waiting before."""
    if pod.ref.uid not in waiting:
        for queue in arrivals:
            queue.append(pod)
    waiting[pod.ref.uid] = pod


def _index(index: MutableMapping[str, PodRecord], record: PodRecord, *, applies: bool) -> None:
    if applies:
        index[record.ref.uid] = record
    else:
        index.pop(record.ref.uid, None)


def _has_ended(earlier: PodRecord | None, record: PodRecord) -> bool:
    return earlier is not None and earlier.is_running and not record.is_running


def _shown(record: PodRecord) -> tuple[object, ...]:
    """Returns what is shown of a pod, beside its devices."""
    return (
        record.node,
        record.phase,
        record.problems,
        record.preempted or record.ends_by > 0,
        (record.cores_limit, record.excess),
    )
