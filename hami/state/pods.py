"""The pods that hold or request devices, as last seen. Fed by the pod watch; makes no calls.

A pod holds what was written on its Binding, until it ends. This process knows what it has written itself; of other
pods it believes what they carry when they are first seen bound. Later edits of the annotations add details at most,
or say what a resize has left of the same devices.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

import msgspec

from hami.codec.allocation import LONGEST_CACHED
from hami.codec.core_limits import pod_cores_limit
from hami.codec.keys import ASSIGNED_NODE, BIND_PHASE, PREEMPTIBLE, RESIZED
from hami.codec.objects import parse_resource_version
from hami.codec.pods import DEFAULT_GRACE_S
from hami.codec.resize import excess
from hami.codec.times import parse_time
from hami.errors import MalformedInput
from hami.model import EvictedTogether, Pod, PodRef
from hami.state.binding_annotations import (
    assigned_at,
    awaits_allocation,
    bound_at,
    expected_label,
    is_allocating,
)
from hami.state.bookings import PodBookings
from hami.state.nodes import NodeCache
from hami.state.promises import Promises, Stage, is_bound_without_lock
from hami.state.sighting import Sighting, Sightings
from hami.vendors.request import most_shares
from hami.vendors.shares import held_shares
from hami.vendors.spec import Catalog

# annotations of another scheduler on an unbound pod count as a reservation for this long
FOREIGN_TTL_S = 60.0
TOMBSTONES = 10_000  # deleted pods that are remembered
DECIDED = 10_000  # waiting pods that this process has filtered, and of which it remembers that
WORKLOADS = 4096  # whose pods share their traits
MAX_GRACE_S = 3600  # that preemption leaves a pod to end, and waits for one that is being deleted


class PodTraits(msgspec.Struct, frozen=True, gc=False):
    """The facts about a pod that matter when others preempt it. Pods of one workload share them.

    *controller*: uid of the object that controls it. *is_protected*: it is never evicted for others. *grace_s*: seconds
    that it may take to end. *labels*: as pairs, sorted.
    """

    controller: str = ""
    is_protected: bool = False
    grace_s: int = DEFAULT_GRACE_S
    labels: tuple[tuple[str, str], ...] = ()


class PodRecord(msgspec.Struct, frozen=True, gc=False):
    """The facts about a pod that the scheduler remembers.

    *assigned_node*, *label*: the node that its annotations and its label name. *allocating*: a device plugin still has
    to allocate its devices. *assigned_at*, *bound_at*: Unix seconds, 0 if not known. *assigned*, *bound*: since when
    the pod shows these. *most_shares*: how many devices it requests, by vendor. *seen_at*: on the monotonic clock.
    *vendors*: vendors whose allocation an unbound pod carries. *problems*: why its annotations cannot be read.
    *allocation*: a hash of the annotations from which the devices of a bound pod are read. *awaits_allocation*: it is
    bound without a lock, and its devices have not been allocated yet. *resized*: a hash of what the last resize of a
    bound pod has left it, 0 if there was none. *group*: of pods that are placed together.
    *started*: when the kubelet admitted it, *ends_by*: when it ends at the latest if it is being deleted; Unix seconds,
    0 if that is not known. *deletion_grace_s*: the seconds that it was given for that. *cores_limit*: the most cores
    that a container may use, ``None`` if the pod does not say.
    *excess*: MiB and cores that are booked beyond what it is to have. *preempted*, *preemptor*, *evicted_with*: as in
    :class:`hami.model.Pod`.
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
    assigned: Sighting
    bound_at: int
    bound: Sighting
    most_shares: Mapping[str, int]
    terminated: bool
    seen_at: float
    vendors: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    allocation: int = 0
    resized: int = 0
    awaits_allocation: bool = False
    group: str = ""
    priority: int = 0
    traits: PodTraits = PodTraits()
    started: int = 0
    ends_by: int = 0
    deletion_grace_s: int = 0
    cores_limit: int | None = None
    excess: tuple[int, int] = (0, 0)
    preempted: bool = False
    preemptor: str = ""
    evicted_with: EvictedTogether | None = None

    @property
    def is_ending(self) -> bool:
        """Reports whether the pod is being deleted. One with more time to end than preemption leaves to any pod counts
        as one that runs: else whoever deletes a pod with a grace period of years keeps its devices from all others."""
        return self.ends_by > 0 and self.deletion_grace_s <= MAX_GRACE_S

    @property
    def requests_devices(self) -> bool:
        """Reports whether the pod requests devices."""
        return bool(self.most_shares)

    @property
    def is_settled(self) -> bool:
        """Nothing is left to do for the pod: it has terminated, or runs with its devices."""
        bound = bool(self.node) and not self.allocating and not self.is_mislabeled
        return self.terminated or (bound and not self.problems)

    @property
    def is_mislabeled(self) -> bool:
        """The API server has not copied the label of the Binding: there is none, or that of an earlier node."""
        if self.label == self.node:  # as nearly always, so the name need not be checked
            return False
        return (
            bool(self.node)
            and self.assigned_node == self.node
            and self.label != expected_label(self.node)
        )


class _Tombstone(NamedTuple):
    """A deleted pod. *was_allocating*: it may have been bound and still without an answer of its device plugin."""

    was_allocating: bool
    seen_at: float


class PodCache:
    """Pods by uid.

    *lock* is the store's: it guards the records, *bookings* and *promises*, and is never held across I/O; only
    single look-ups do without it.
    *foreign_reservations*: what another scheduler has written on an unbound pod counts for some time, unless the pod
    has a reservation of this process.
    """

    def __init__(
        self,
        vendors: Catalog,
        lock: threading.RLock,
        bookings: PodBookings,
        promises: Promises,
        nodes: NodeCache,
        *,
        foreign_reservations: bool,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._vendors = vendors
        self._lock = lock
        self._bookings = bookings
        self._promises = promises
        self._nodes = nodes
        self._foreign_reservations = foreign_reservations
        self._clock = clock
        self._records: dict[str, PodRecord] = {}
        self._sightings = Sightings(clock, now)
        self._traits = functools.lru_cache(WORKLOADS)(PodTraits)  # equal ones are one object
        self._uids: dict[tuple[str, str], str] = {}
        self._tombstones: OrderedDict[str, _Tombstone] = OrderedDict()
        self._decided: OrderedDict[str, None] = OrderedDict()  # pods that this process has filtered
        self._unsettled: dict[str, None] = {}  # in the order in which they came
        self._waiting: dict[str, Pod] = {}  # those that request devices and are not bound
        self._preempted: dict[
            str, None
        ] = {}  # those that are evicted for others and have not ended
        self._edited: dict[PodRef, None] = {}  # pods with edits that no one has taken yet
        self._allocation_keys = frozenset(
            key
            for keys in (vendor.annotations for vendor in vendors)
            if keys.allocated
            for key in (
                keys.allocated,
                *((*keys.pod_keys, *keys.extra_keys) if keys.read_shares else ()),
            )
        ) | {RESIZED}
        self.edits_refused = 0
        """The number of edits of bound pods' annotations that would have changed what they hold."""
        self.changes = 0
        """How often a pod has come, gone, or changed in what is shown of it."""

    def upsert(self, pod: Pod, as_of: float = -math.inf) -> None:
        """Stores *pod* unless a later version, or its end, has been seen since *as_of*, when a read that shows it began
        (by the clock)."""
        uid, version = pod.ref.uid, parse_resource_version(pod.resource_version)
        self._parse_long_allocations(pod)
        with self._lock:
            record, tombstone = self._records.get(uid), self._tombstones.get(uid)
            if tombstone is not None:
                if tombstone.seen_at >= as_of:
                    return
                del self._tombstones[uid]
            elif record is not None and version < record.version:
                if record.seen_at >= as_of:
                    return
                self._remove_record(uid)
                record = None
            self._promises.mark_shown(uid)
            limits = (
                record.most_shares
                if record is not None  # what a pod requests cannot be changed
                else most_shares(self._vendors, pod.containers)
            )
            if limits or ASSIGNED_NODE in pod.annotations:
                self._store(pod, version, limits)
            else:
                self._remove_record(uid)

    def _parse_long_allocations(self, pod: Pod) -> None:
        """Parses what takes milliseconds before the lock is taken: filters wait for it. The results are remembered."""
        if max(map(len, pod.annotations.values()), default=0) <= LONGEST_CACHED:
            return
        long = {
            key: text
            for key, text in pod.annotations.items()
            if len(text) > LONGEST_CACHED and key in self._allocation_keys
        }
        if not long or (
            (record := self._records.get(pod.ref.uid)) is not None
            and record.allocation == self._allocation(pod)
        ):
            return
        for vendor in self._vendors.allocated_in(pod.annotations):
            with contextlib.suppress(MalformedInput):  # raised again when the booking is read
                held_shares(pod.annotations, vendor)

    def remove(self, pod: Pod) -> None:
        """Removes *pod*, which has been deleted; a late version of it is ignored."""
        with self._lock:
            self._bury(pod.ref.uid, bool(pod.node_name) and is_allocating(pod, self._vendors))

    def prune(self, seen: set[str], started: float) -> None:
        """Removes the pods that are not in a complete list (*seen*) requested at *started* (monotonic clock)."""
        with self._lock:
            gone = [
                uid
                for uid, record in self._records.items()
                if uid not in seen and record.seen_at < started
            ]
            for uid in gone:
                self._bury(uid, not self._records[uid].is_settled)
            # of pods that came and went unseen, nothing is remembered
            for uid in [
                uid
                for uid in self._decided
                if uid not in self._records and self._promises.assumed(uid) is None
            ]:
                del self._decided[uid]
            self._sightings.finish_list()
            self._promises.prune(seen, started)
            self._nodes.clear_foreign_before(started)

    def expire(self) -> None:
        """Ends reservations of other schedulers that were not bound in time."""
        with self._lock:
            for record in self.unsettled():
                if (
                    not record.node
                    and record.assigned_node
                    and not self._is_fresh(record.assigned_at, record.assigned)
                ):
                    self._unbook(record.ref.uid)

    def take_over(self, uid: str) -> None:
        """Ignores from now on what another scheduler wrote on the pod, since this process filters it."""
        with self._lock:
            self._decided[uid] = None
            self._decided.move_to_end(uid)
            if len(self._decided) > DECIDED:
                self._decided.popitem(last=False)
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
        tombstone = self._tombstones.get(uid)
        return tombstone is None or tombstone.was_allocating

    def all(self) -> list[PodRecord]:
        """Returns all records."""
        with self._lock:
            return list(self._records.values())

    def by_uid(self) -> dict[str, PodRecord]:
        """Returns all records by uid."""
        with self._lock:
            return dict(self._records)

    def unsettled(self) -> list[PodRecord]:
        """Returns the pods that wait to be bound, for their devices or a label, or whose annotations are unreadable."""
        with self._lock:
            return [self._records[uid] for uid in self._unsettled]

    def waiting(self) -> list[Pod]:
        """Returns the pods that request devices and are not bound, in the order in which they came."""
        with self._lock:
            return list(self._waiting.values())

    def preempted(self) -> list[PodRecord]:
        """Returns the pods that hold devices and are evicted for pods of higher priority."""
        with self._lock:
            return [self._records[uid] for uid in self._preempted]

    def waiting_pod(self, uid: str) -> Pod | None:
        """Returns the pod if it requests devices and is not bound."""
        return self._waiting.get(uid)

    def awaits_allocation(self, node: str) -> bool:
        """Reports whether a pod that was bound to *node* without a lock still has to be allocated its devices. A device
        plugin that needs the lock could take it for the holder of the lock."""
        with self._lock:
            for booking in self._bookings.on_node(node):
                promise = self._promises.get(booking.uid)
                if promise is not None and is_bound_without_lock(promise):
                    return True
                record = self._records.get(booking.uid)
                if record is not None and record.awaits_allocation:
                    return True
            return False

    def unreadable(self) -> list[PodRef]:
        """Returns pods that hold devices and whose annotations cannot be read."""
        with self._lock:
            return self._bookings.unreadable()

    def take_edited(self) -> list[PodRef]:
        """Returns the pods of which edits have been refused since the last call."""
        with self._lock:
            edited, self._edited = self._edited, {}
            return list(edited)

    def _store(self, pod: Pod, version: int, limits: Mapping[str, int]) -> None:
        uid, annotations = pod.ref.uid, pod.annotations
        earlier, sighting = self._records.get(uid), self._sightings.make()
        assigned_time, bound_time, is_terminated = (
            assigned_at(pod),
            bound_at(pod),
            pod.is_terminated,
        )
        assigned = (
            earlier.assigned
            if earlier is not None and earlier.assigned_at == assigned_time
            else sighting
        )
        bound = (
            earlier.bound
            if earlier is not None and earlier.node and earlier.bound_at == bound_time
            else sighting
        )
        allocation = self._allocation(pod) if pod.node_name else 0
        problems = self._book(pod, limits, allocation, assigned)
        vendors = (
            ()
            if pod.node_name
            else tuple(vendor.key for vendor in self._vendors.allocated_in(annotations))
        )
        record = self._records[uid] = PodRecord(
            ref=pod.ref,
            version=version,
            node=pod.node_name,
            scheduler_name=pod.scheduler_name,
            assigned_node=sys.intern(annotations.get(ASSIGNED_NODE, "")),
            label=_interned(pod.labels.get(ASSIGNED_NODE)),
            phase=pod.phase,
            bind_phase=sys.intern(annotations.get(BIND_PHASE, "")),
            allocating=is_allocating(pod, self._vendors),
            assigned_at=assigned_time,
            assigned=assigned,
            bound_at=bound_time,
            bound=bound,
            most_shares=limits,
            terminated=is_terminated,
            seen_at=self._clock(),
            vendors=vendors,
            problems=problems,
            allocation=allocation,
            resized=_resized(pod) if pod.node_name else 0,
            awaits_allocation=awaits_allocation(pod, self._vendors),
            group=sys.intern(pod.group),
            priority=pod.priority,
            traits=self._traits_of(pod),
            started=parse_time(pod.started),
            ends_by=parse_time(pod.deletion),
            deletion_grace_s=pod.deletion_grace_s,
            cores_limit=pod_cores_limit(annotations),
            excess=excess(annotations),
            preempted=pod.preempted,
            preemptor=pod.preemptor,
            evicted_with=pod.evicted_with,
        )
        if earlier is None or _shown(earlier) != _shown(record):
            self.changes += 1
        if limits and not pod.node_name and not is_terminated:
            self._waiting[uid] = pod
        else:
            self._waiting.pop(uid, None)
        namesake = self._records.get(self._uids.get((pod.ref.namespace, pod.ref.name), ""))
        if namesake is None or namesake.version <= version:
            self._uids[pod.ref.namespace, pod.ref.name] = uid
        if record.preempted and record.node and not is_terminated:
            self._preempted[uid] = None
        else:
            self._preempted.pop(uid, None)
        if record.is_settled:
            self._unsettled.pop(uid, None)
        else:
            self._unsettled[uid] = None
        if pod.node_name:
            self._decided.pop(uid, None)
            self._promises.confirm(uid)
        else:
            self._promises.observe(pod)

    def _traits_of(self, pod: Pod) -> PodTraits:
        labels = tuple(sorted([item for item in pod.labels.items() if item[0] != ASSIGNED_NODE]))
        return self._traits(
            pod.controller,
            pod.is_node_agent or pod.labels.get(PREEMPTIBLE) == "false",
            pod.grace_s,
            labels,
        )

    def _allocation(self, pod: Pod) -> int:
        """Returns the hash of the annotations that decide what *pod* holds: texts would cost more memory than it."""
        keys = self._allocation_keys
        return hash(tuple([item for item in pod.annotations.items() if item[0] in keys]))

    def _book(
        self, pod: Pod, limits: Mapping[str, int], allocation: int, assigned: Sighting
    ) -> tuple[str, ...]:
        """Books what *pod* holds. Returns why parts of its annotations cannot be read."""
        uid = pod.ref.uid
        if pod.is_terminated:
            self._unbook(uid)
            self._promises.forget(uid)
            return ()
        if pod.node_name and limits:
            return self._book_bound(pod, limits, allocation)
        if limits and self._is_foreign_reservation(pod, assigned):
            return self._bookings.believe(pod, limits)
        self._unbook(uid)
        return ()

    def _book_bound(self, pod: Pod, limits: Mapping[str, int], allocation: int) -> tuple[str, ...]:
        """Books what was written on the Binding of *pod*, or keeps it. Returns why parts of it cannot be read."""
        record = self._records.get(pod.ref.uid)
        if record is not None and record.node and not record.terminated:
            believed, resized, problems = record.allocation, record.resized, record.problems
            self._bookings.shrink_back(pod)
            self._bookings.follow(pod)
        else:
            written = self._as_written(pod)
            believed, resized = (
                allocation if written is pod else self._allocation(written),
                _resized(written),
            )
            problems = self._bookings.believe(written, limits)
        if allocation == believed or (
            resized != _resized(pod) and self._bookings.resize(pod, limits)
        ):
            return problems
        if not self._bookings.refine(pod, limits):
            self.edits_refused += 1
            self._edited[pod.ref] = None
        return problems

    def _as_written(self, pod: Pod) -> Pod:
        """Returns *pod* with the annotations of its Binding if this process has written it, else as it is."""
        promise = self._promises.assumed(pod.ref.uid)
        if promise is None or promise.stage is not Stage.FINISHED or promise.node != pod.node_name:
            return pod
        return replace(pod, annotations={**pod.annotations, RESIZED: "", **promise.annotations})

    def _unbook(self, uid: str) -> None:
        """Removes what the pod's annotations have booked, and their problems. A promise's booking stays."""
        if self._promises.assumed(uid) is None:
            self._bookings.unbook(uid)
        if self._bookings.forget(uid) and (record := self._records.get(uid)) is not None:
            self._records[uid] = msgspec.structs.replace(record, problems=())

    def _is_foreign_reservation(self, pod: Pod, assigned: Sighting) -> bool:
        """Reports whether another scheduler has recently assigned devices to *pod*, and we have not filtered it."""
        uid = pod.ref.uid
        return (
            self._foreign_reservations
            and self._promises.assumed(uid) is None
            and uid not in self._decided
            and self._is_fresh(assigned_at(pod), assigned)
        )

    def _is_fresh(self, written: int, assigned: Sighting) -> bool:
        return written > 0 and abs(assigned.claimed_age(written, self._clock())) < FOREIGN_TTL_S

    def _bury(self, uid: str, was_allocating: bool) -> None:
        self._promises.forget(uid)
        self._remove_record(uid)
        self._tombstones[uid] = _Tombstone(was_allocating, self._clock())
        if len(self._tombstones) > TOMBSTONES:
            self._tombstones.popitem(last=False)

    def _remove_record(self, uid: str) -> None:
        self._decided.pop(uid, None)
        self._unsettled.pop(uid, None)
        self._preempted.pop(uid, None)
        record = self._records.pop(uid, None)
        if record is None:
            return
        self.changes += 1
        self._waiting.pop(uid, None)
        if self._uids.get((record.ref.namespace, record.ref.name)) == uid:
            del self._uids[record.ref.namespace, record.ref.name]
        self._unbook(uid)


def _resized(pod: Pod) -> int:
    text = pod.annotations.get(RESIZED)
    return hash(text) if text else 0


def _interned(text: str | None) -> str | None:
    return None if text is None else sys.intern(text)


def _shown(record: PodRecord) -> tuple[object, ...]:
    """Returns what is shown of a pod, beside its devices."""
    return (
        record.node,
        record.phase,
        record.problems,
        record.preempted or record.ends_by > 0,
        (record.cores_limit, record.excess),
    )
