"""Pods as the store keeps them, read from what their watch shows. Reading takes no lock and looks at nothing but the
pod and what is known of it: filters wait for the lock, and long annotations take milliseconds."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from hami.codec.core_limits import pod_cores_limit
from hami.codec.keys import (
    ASSIGNED_NODE,
    ASSIGNED_TIME,
    BIND_PHASE,
    BIND_TIME,
    NODE_LOCK,
    PREEMPTIBLE,
    RESIZED,
    is_scheduler_owned,
)
from hami.codec.objects import parse_resource_version
from hami.codec.pods import DEFAULT_GRACE_S, REJECTED
from hami.codec.resize import excess
from hami.codec.times import parse_time, parse_unix
from hami.errors import MalformedInput
from hami.model import Allocation, BindPhase, ContainerKind, EvictedTogether, Pod, PodRef, PodScope
from hami.scheduling.node_resources import requested
from hami.scheduling.usage import Charge, peak_charges
from hami.state.binding_annotations import expected_label
from hami.state.bookings import Booking
from hami.state.sighting import Sighting, Sightings
from hami.vendors.request import most_shares
from hami.vendors.shares import read_allocation
from hami.vendors.spec import Catalog

MAX_GRACE_S = 3600  # that preemption leaves a pod to end, and waits for one that is being deleted
WORKLOADS = 4096  # whose pods share their traits

BookingPair = tuple[Booking, Booking]
"""The booking of a pod until its init containers have finished, and the one after; most have two equal ones."""


class Reading(msgspec.Struct, frozen=True, gc=False):
    """The devices of a node that annotations of a pod say it takes.

    If those of a vendor cannot be read or contradict each other, its charges are empty in *bookings*, and `complete`
    puts devices in their place: those that the annotations mention.
    """

    bookings: BookingPair
    problems: tuple[str, ...] = ()
    """Why annotations cannot be read."""
    texts: tuple[str, ...] = ()
    """The texts that may mention devices, if there are problems."""


class PodTraits(msgspec.Struct, frozen=True, gc=False):
    """The facts about a pod that matter when others preempt it. Pods of one workload share them."""

    controller: str = ""
    """The uid of the object that controls it."""
    is_protected: bool = False
    """It is never evicted for others."""
    grace_s: int = DEFAULT_GRACE_S
    """Seconds that it may take to end."""
    labels: tuple[tuple[str, str], ...] = ()
    """As pairs, sorted."""


class PodRecord(msgspec.Struct, frozen=True, gc=False):
    """The facts about a pod that the scheduler remembers."""

    ref: PodRef
    version: int
    node: str
    """To which it is bound; empty before."""
    scheduler_name: str
    assigned_node: str
    """The node that its annotations name."""
    label: str | None
    """The node that its label names."""
    phase: str
    bind_phase: str
    allocating: bool
    """A device plugin still has to allocate its devices."""
    assigned_at: int
    """Unix seconds, 0 if not known."""
    assigned: Sighting
    """Since when the pod shows that time."""
    bound_at: int
    """Unix seconds, 0 if not known."""
    bound: Sighting
    """Since when the pod shows that time."""
    most_shares: Mapping[str, int]
    """How many devices it requests, by vendor."""
    terminated: bool
    seen_at: float
    """On the monotonic clock."""
    init_done: bool = False
    """Its init containers have finished."""
    vendors: tuple[str, ...] = ()
    """Vendors whose allocation an unbound pod carries."""
    problems: tuple[str, ...] = ()
    """Why its annotations cannot be read."""
    allocation: int = 0
    """A hash of the annotations from which the devices of a bound pod are read."""
    resized: int = 0
    """A hash of what the last resize of a bound pod has left it, 0 if there was none."""
    allocated: BookingPair | None = None
    """What it has of its node by its annotations, as far as these are believed; ``None`` if that does not count."""
    growth: BookingPair | None = None
    """What it may have instead: a resize writes that, and no later version of the pod has shown the outcome."""
    awaits_allocation: bool = False
    """It is bound without a lock, and its devices have not been allocated yet."""
    group: str = ""
    """Of pods that are placed together."""
    priority: int = 0
    traits: PodTraits = PodTraits()
    started: int = 0
    """When the kubelet admitted it; Unix seconds, 0 if that is not known."""
    ends_by: int = 0
    """When it ends at the latest if it is being deleted; Unix seconds, 0 if that is not known."""
    deletion_grace_s: int = 0
    """The seconds that it was given to end."""
    cores_limit: int | None = None
    """The most cores that a container may use, ``None`` if the pod does not say."""
    excess: tuple[int, int] = (0, 0)
    """MiB and cores that are booked beyond what it is to have."""
    preempted: bool = False
    """As in :class:`hami.model.Pod`, and so are the next two."""
    preemptor: str = ""
    evicted_with: EvictedTogether | None = None
    rejected: bool = False
    """Its kubelet has rejected it for good, because of devices that it requests."""

    @property
    def is_ending(self) -> bool:
        """Reports whether the pod is being deleted. One with more time to end than preemption leaves to any pod counts
        as one that runs: else whoever deletes a pod with a grace period of years keeps its devices from all others."""
        return self.ends_by > 0 and self.deletion_grace_s <= MAX_GRACE_S

    @property
    def is_running(self) -> bool:
        """Reports whether the pod is bound and has not terminated."""
        return bool(self.node) and not self.terminated

    @property
    def requests_devices(self) -> bool:
        """Reports whether the pod requests devices."""
        return bool(self.most_shares)

    @property
    def is_settled(self) -> bool:
        """Nothing is left to do for the pod: it has terminated, or runs with its devices."""
        if self.terminated:
            return True
        if not self.node or self.allocating or self.problems:
            return False
        return not self.is_mislabeled

    @property
    def is_mislabeled(self) -> bool:
        """The API server has not copied the label of the Binding: there is none, or that of an earlier node."""
        if self.label == self.node:  # as nearly always, so the name need not be checked
            return False
        if not self.node or self.assigned_node != self.node:
            return False
        return self.label != expected_label(self.node)


@dataclass(frozen=True, slots=True)
class PodEntry:
    """A pod as its watch shows it. What counts of it may depend on the devices of its node, not known here."""

    record: PodRecord
    """With what is believed of its annotations already."""
    assignment: Reading | None = None
    """What was written on its Binding, or was assigned to it, if that was not known before."""
    edit: Reading | None = None
    """What its annotations say, if it is something else."""
    is_resize: bool = False
    """A scheduler has edited them."""


class PodReader:
    """Reads pods. *reads_unbound*: also what other schedulers have assigned to pods that are not bound."""

    def __init__(
        self,
        vendors: Catalog,
        sightings: Sightings,
        clock: Callable[[], float],
        *,
        reads_unbound: bool,
    ) -> None:
        self._vendors = vendors
        self._sightings = sightings
        self._clock = clock
        self._reads_unbound = reads_unbound
        self._allocation_keys = allocation_keys(vendors)
        self._traits = functools.lru_cache(WORKLOADS)(PodTraits)  # equal ones are one object

    def read(
        self, pod: Pod, earlier: PodRecord | None, binding: Mapping[str, str] | None
    ) -> PodEntry | None:
        """Returns *pod* as the store keeps it; ``None`` if it neither requests nor names devices.

        *earlier*: its record so far. *binding*: the annotations of the Binding, if this process has written it.
        """
        if earlier is None:
            limits = most_shares(self._vendors, pod.containers)
        else:  # what a pod requests cannot be changed
            limits = earlier.most_shares
        if not limits and ASSIGNED_NODE not in pod.annotations:
            return None
        record = self._record(pod, earlier, limits)
        if not limits or record.terminated:
            return PodEntry(record)
        if not record.node:
            return PodEntry(record, self._assignment(pod, limits))
        if earlier is not None and earlier.is_running:
            return self._bound(pod, record, earlier)
        return self._newly_bound(pod, record, binding)

    def _assignment(self, pod: Pod, limits: Mapping[str, int]) -> Reading | None:
        if not self._reads_unbound:
            return None
        return read_bookings(pod, self._vendors, limits)

    def _bound(self, pod: Pod, record: PodRecord, earlier: PodRecord) -> PodEntry:
        """Reads a pod that was bound before: its annotations only if they have changed."""
        allocated = growth = None
        if earlier.allocated is not None:
            allocated = in_scope(earlier.allocated, pod.scope)
        if earlier.version == record.version:
            growth = earlier.growth
        record = msgspec.structs.replace(
            record, allocated=allocated, growth=growth, problems=earlier.problems
        )
        if record.allocation == earlier.allocation:
            return PodEntry(record)
        return self._edited(pod, record, earlier.resized, None)

    def _newly_bound(
        self, pod: Pod, record: PodRecord, binding: Mapping[str, str] | None
    ) -> PodEntry:
        if binding is None:
            return PodEntry(record, read_bookings(pod, self._vendors, record.most_shares))
        written = replace(pod, annotations={**pod.annotations, RESIZED: "", **binding})
        assignment = read_bookings(written, self._vendors, record.most_shares)
        if record.allocation == self._allocation(written):
            return PodEntry(record, assignment)
        return self._edited(pod, record, _resized(written), assignment)

    def _edited(
        self, pod: Pod, record: PodRecord, resized: int, assignment: Reading | None
    ) -> PodEntry:
        edit = read_bookings(pod, self._vendors, record.most_shares)
        is_resize = record.resized != resized and not edit.problems
        return PodEntry(record, assignment, edit, is_resize)

    def _record(self, pod: Pod, earlier: PodRecord | None, limits: Mapping[str, int]) -> PodRecord:
        annotations = pod.annotations
        sighting = self._sightings.make()
        assigned_time, bound_time = assigned_at(pod), bound_at(pod)
        assigned = bound = sighting
        if earlier is not None and earlier.assigned_at == assigned_time:
            assigned = earlier.assigned
        if earlier is not None and earlier.node and earlier.bound_at == bound_time:
            bound = earlier.bound
        allocation = resized = 0
        vendors: tuple[str, ...] = ()
        if pod.node_name:
            allocation, resized = self._allocation(pod), _resized(pod)
        else:
            vendors = tuple([vendor.key for vendor in self._vendors.allocated_in(annotations)])
        return PodRecord(
            ref=pod.ref,
            version=parse_resource_version(pod.resource_version),
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
            terminated=pod.is_terminated,
            seen_at=self._clock(),
            init_done=pod.init_done,
            vendors=vendors,
            allocation=allocation,
            resized=resized,
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
            rejected=pod.failure.startswith(REJECTED) and self._is_named(pod.failure, limits),
        )

    def _is_named(self, message: str, vendors: Collection[str]) -> bool:
        """Reports whether *message* names a resource of one of *vendors*."""
        for vendor in self._vendors:
            if vendor.key in vendors and any([name in message for name in vendor.resources.names]):
                return True
        return False

    def _traits_of(self, pod: Pod) -> PodTraits:
        labels = tuple(sorted([item for item in pod.labels.items() if item[0] != ASSIGNED_NODE]))
        is_protected = pod.is_node_agent or pod.labels.get(PREEMPTIBLE) == "false"
        return self._traits(pod.controller, is_protected, pod.grace_s, labels)

    def _allocation(self, pod: Pod) -> int:
        """Returns the hash of the annotations that decide what *pod* holds: texts would cost more memory than it."""
        keys = self._allocation_keys
        return hash(tuple([item for item in pod.annotations.items() if item[0] in keys]))


def read_bookings(pod: Pod, vendors: Catalog, limits: Mapping[str, int]) -> Reading:
    """Returns what the annotations of *pod* say that it takes.

    Vendors that the pod does not request are left out, and shares beyond *limits*, the most that its request allows.
    """
    problems: list[str] = []
    allocations: list[tuple[str, Allocation | None]] = []
    for vendor in vendors.allocated_in(pod.annotations):
        if vendor.key not in limits:
            continue
        try:
            allocations.append((vendor.key, read_allocation(pod, vendor, limits[vendor.key])))
        except MalformedInput as error:
            problems.append(str(error))
            allocations.append((vendor.key, None))
    texts: tuple[str, ...] = ()
    if problems:
        owned = [text for key, text in pod.annotations.items() if is_scheduler_owned(key)]
        texts = tuple(owned)
    return Reading(_bookings(pod, allocations), tuple(problems), texts)


def _bookings(pod: Pod, allocations: Sequence[tuple[str, Allocation | None]]) -> BookingPair:
    kinds = [container.kind for container in pod.containers]
    before = _booking(pod, kinds, allocations, init_done=False)
    if ContainerKind.INIT not in kinds:
        return before, before
    return before, _booking(pod, kinds, allocations, init_done=True)


def _booking(
    pod: Pod,
    kinds: Sequence[ContainerKind],
    allocations: Sequence[tuple[str, Allocation | None]],
    *,
    init_done: bool,
) -> Booking:
    charges: list[tuple[str, tuple[Charge, ...]]] = []
    for vendor, allocation in allocations:
        if allocation is None:
            charges.append((vendor, ()))
            continue
        taken = peak_charges(kinds, allocation, init_done=init_done)
        if taken:
            charges.append((vendor, taken))
    ref = pod.ref
    return Booking(
        ref.uid,
        ref.namespace,
        assigned_node(pod),
        tuple(charges),
        pod.priority,
        pod.scope,
        requested(pod),
    )


def in_scope(bookings: BookingPair, scope: PodScope) -> BookingPair:
    """Returns *bookings* of a pod that the quotas of *scope* select."""
    if bookings[0].scope == scope:
        return bookings
    before, after = bookings
    return msgspec.structs.replace(before, scope=scope), msgspec.structs.replace(after, scope=scope)


def assigned_node(pod: Pod) -> str:
    """Returns the node that *pod* is bound to or, before that, the node that its annotations name."""
    return pod.node_name or pod.annotations.get(ASSIGNED_NODE, "")


def assigned_at(pod: Pod) -> int:
    """Returns when *pod* was assigned in Unix seconds; 0 if its annotations do not say."""
    return parse_unix(pod.annotations.get(ASSIGNED_TIME, ""))


def bound_at(pod: Pod) -> int:
    """Returns when *pod*'s Binding was written in Unix seconds; 0 if its annotations do not say."""
    return parse_unix(pod.annotations.get(BIND_TIME, ""))


def is_allocating(pod: Pod, vendors: Catalog) -> bool:
    """Reports whether a device plugin still has to allocate *pod*'s devices.

    Only device plugins that know HAMi's node lock report when they are done. Those that need no lock report nothing;
    their vendors have no text to allocate.
    """
    annotations = pod.annotations
    if annotations.get(BIND_PHASE) != BindPhase.ALLOCATING:
        return False
    for vendor in vendors.allocated_in(annotations):
        keys = vendor.annotations
        if keys.lock != NODE_LOCK:
            continue
        if not keys.to_allocate or annotations.get(keys.to_allocate):
            return True
    return False


def awaits_allocation(pod: Pod, vendors: Catalog) -> bool:
    """Reports whether *pod* is bound without a lock, and its kubelet has not had its devices allocated yet."""
    annotations = pod.annotations
    if not pod.node_name or pod.admitted or pod.is_terminated:
        return False
    if annotations.get(BIND_PHASE) != BindPhase.SUCCESS:
        return False
    for vendor in vendors.allocated_in(annotations):
        keys = vendor.annotations
        if keys.lock == NODE_LOCK and keys.to_allocate and keys.to_allocate not in annotations:
            return True
    return False


def allocation_keys(vendors: Catalog) -> frozenset[str]:
    """Returns the annotations of a pod from which its devices are read."""
    found = {RESIZED}
    for vendor in vendors:
        keys = vendor.annotations
        if not keys.allocated:
            continue
        found.add(keys.allocated)
        if keys.read_shares:
            found.update(keys.pod_keys, keys.extra_keys)
    return frozenset(found)


def _resized(pod: Pod) -> int:
    text = pod.annotations.get(RESIZED)
    return hash(text) if text else 0


def _interned(text: str | None) -> str | None:
    return None if text is None else sys.intern(text)
