"""Records what the watches of nodes and pods show, as far as a replay needs it.

Each segment begins with the whole state, so older ones can be deleted.
"""

from __future__ import annotations

import bisect
import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from hami.codec.keys import PREEMPTIBLE
from hami.codec.times import parse_time
from hami.errors import MalformedInput
from hami.inspect.cluster import selection_keys
from hami.inspect.line_writer import LineWriter
from hami.inspect.read_recording import PARTITIONED, replayed_vendors
from hami.inspect.recording import (
    Line,
    RecordedBinding,
    RecordedCharge,
    RecordedContainer,
    RecordedDevice,
    RecordedEnd,
    RecordedLabel,
    RecordedLeft,
    RecordedNode,
    RecordedPod,
    RecordedRequirement,
    RecordedShape,
    RecordedTaint,
    RecordedTerm,
    RecordedToleration,
    record_charge,
    record_device,
)
from hami.model import Node, NodeRequirement, Pod
from hami.scheduling.node_resources import CPU, MEMORY, NOTHING, NodeResources, amounts, requested
from hami.scheduling.pod_request import make_pod_request
from hami.state.read_node import NodeReader, NodeRecord, offers
from hami.state.read_pod import assigned_at, bound_at, read_bookings
from hami.state.sighting import Sightings
from hami.vendors.request import most_shares

LEFT_S = 60.0
"""Seconds between two records of what pods without devices leave of nodes."""
HASHABLE = ("In", "NotIn", "Exists", "DoesNotExist")
"""Operators that compare values only for equality, so that hashes do as well."""


class Recorder:
    """Records what the sinks *nodes* and *pods* are told. *now*: Unix seconds. *clock*: monotonic."""

    def __init__(
        self, lines: LineWriter, *, now: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        self._lines = lines
        self._clock = clock
        self._lock = threading.RLock()
        self._sums_at = -math.inf
        loads = _Loads()
        self.nodes = NodeRecorder(lines, loads, self._lock, now=now, clock=clock)
        self.pods = PodRecorder(lines, loads, self._lock)

    def begin(self) -> None:
        """Begins a segment with the whole state. Raises: OSError."""
        with self._lock:
            self._lines.begin()
            self.nodes.write_all()
            self.pods.write_all()
            if self.pods.is_listed:
                self._lines.put(Line(is_whole=True))

    def sync(self) -> None:
        """Makes what has been recorded safe, and begins the next segment if this one is full. Raises: OSError."""
        with self._lock:
            if self._clock() - self._sums_at >= LEFT_S:
                self._sums_at = self._clock()
                self.nodes.write_left()
            if self._lines.sync():
                self.begin()

    def close(self) -> None:
        """Ends the recording. Raises: OSError."""
        with self._lock:
            self._lines.close()


class _Loads:
    """The CPU and memory that pods without recorded devices take. *changed*: nodes of which that has changed."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[str, NodeResources]] = {}
        self._sums: dict[str, NodeResources] = {}
        self.changed: set[str] = set()

    def put(self, uid: str, node: str, resources: NodeResources) -> None:
        """Counts the pod *uid* on *node*; on none if that is empty."""
        before, taken = self._pods.pop(uid, ("", NOTHING))
        if before:
            self._add(before, NOTHING - taken)
        if node:
            self._pods[uid] = node, resources
            self._add(node, resources)

    def on(self, node: str) -> NodeResources:
        """Returns what pods take of *node*."""
        return self._sums.get(node, NOTHING)

    def others(self, seen: Collection[str]) -> list[str]:
        """Returns the pods (uids) that are not *seen*."""
        return [uid for uid in self._pods if uid not in seen]

    def _add(self, node: str, resources: NodeResources) -> None:
        total = self.on(node) + resources
        self._sums[node] = total
        if total == NOTHING:
            del self._sums[node]
        self.changed.add(node)


class NodeRecorder:
    """Records nodes; a sink of a reflector."""

    def __init__(
        self,
        lines: LineWriter,
        loads: _Loads,
        lock: threading.RLock,
        *,
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        def time_of_day() -> datetime:
            return datetime.fromtimestamp(now(), UTC)

        self._lines = lines
        self._loads = loads
        self._lock = lock
        self._clock = clock
        self._vendors = lines.vendors
        self._replayed = replayed_vendors(lines.vendors)
        sightings = Sightings(clock, time_of_day)
        self._reader = NodeReader(lines.vendors, sightings, clock=clock, now=time_of_day)
        self._read: dict[str, NodeRecord] = {}
        self._nodes: dict[str, RecordedNode] = {}
        self._order: list[str] = []

    def upsert(self, item: Node, as_of: float = -math.inf) -> None:
        """Records *item* if what matters of it has changed."""
        with self._lock:
            name = item.name
            self._read[name] = self._reader.read(item, self._read.get(name))
            earlier = self._nodes.get(name)
            if earlier is None:
                bisect.insort(self._order, name)
            node = self._record_of(item)
            if node != earlier:
                self._nodes[name] = node
                self._lines.learn(node.devices)
                self._write(node)

    def remove(self, item: Node) -> None:
        """Records that *item* has gone."""
        with self._lock:
            self._lose(item.name)

    def prune(self, seen: set[str], started: float) -> None:
        """Records that all nodes but *seen* have gone."""
        with self._lock:
            for name in self._nodes.keys() - seen:
                self._lose(name)

    def write_all(self) -> None:
        """Records all nodes."""
        for name in self._order:
            self._write(self._nodes[name])

    def write_left(self) -> None:
        """Records what is left of nodes where that has changed."""
        for name in sorted(self._loads.changed & self._nodes.keys()):
            left = self._left(name)
            record = RecordedLeft(node=name, milli_cpu=left.milli_cpu, memory_mib=left.memory_mib)
            self._lines.write(left=record)
        self._loads.changed.clear()

    def _write(self, node: RecordedNode) -> None:
        """Records *node* with its place among the others, and what is left of it now."""
        place, left = bisect.bisect_left(self._order, node.name), self._left(node.name)
        after = self._order[place - 1] if place else ""
        self._lines.write(
            node=msgspec.structs.replace(
                node, after=after, milli_cpu=left.milli_cpu, memory_mib=left.memory_mib
            )
        )

    def _lose(self, name: str) -> None:
        self._read.pop(name, None)
        if self._nodes.pop(name, None) is not None:
            self._order.remove(name)
            self._lines.write_node_gone(name)

    def _left(self, name: str) -> NodeResources:
        return amounts(self._read[name].facts[3]) - self._loads.on(name)

    def _record_of(self, node: Node) -> RecordedNode:
        allocatable = amounts(node.allocatable)
        return RecordedNode(
            name=node.name,
            devices=tuple(self._devices(self._read[node.name])),
            labels=tuple(
                RecordedLabel(key=key, value=node.labels[key]) for key in sorted(node.labels)
            ),
            milli_cpu=allocatable.milli_cpu,
            memory_mib=allocatable.memory_mib,
            unschedulable=node.unschedulable,
            taints=tuple(
                RecordedTaint(key=taint.key, value=taint.value, effect=taint.effect)
                for taint in node.taints
            ),
        )

    def _devices(self, record: NodeRecord) -> Iterator[RecordedDevice]:
        """Yields the devices that the node offers, but those of which rules of single vendors read more."""
        for vendor in self._vendors:
            inventory = record.inventories.get(vendor.key)
            if inventory is None or vendor.key not in self._replayed:
                continue
            if not offers(record, vendor, self._clock()):
                continue
            for device in inventory.devices:
                is_plain = not device.info and not device.by_claims
                if is_plain and device.mode != PARTITIONED:
                    yield record_device(device)


@dataclass(slots=True)
class _Watched:
    """A pod with devices, as it has been recorded: *pod* under its other name, *bound* under its own."""

    pod: RecordedPod
    bound: RecordedBinding | None = None


class PodRecorder:
    """Records pods; a sink of a reflector."""

    def __init__(self, lines: LineWriter, loads: _Loads, lock: threading.RLock) -> None:
        self._lines = lines
        self._loads = loads
        self._lock = lock
        self._vendors = lines.vendors
        self._replayed = replayed_vendors(lines.vendors)
        self._selecting = selection_keys(lines.vendors)
        self._resources = {*lines.vendors.resources, CPU, MEMORY}
        self._pods: dict[str, _Watched] = {}
        self.count = 0
        """The number of pods that have been recorded."""
        self.is_listed = False
        """Whether all pods that there were at first have been recorded."""

    def upsert(self, item: Pod, as_of: float = -math.inf) -> None:
        """Records what has changed of *item*; of one without devices, what it takes of its node."""
        with self._lock:
            if item.is_terminated:
                self._end(item.ref.uid, _how(item, "finished"))
                return
            watched = self._pods.get(item.ref.uid)
            if watched is None:
                watched = self._begin(item)
            if watched is None:
                self._loads.put(item.ref.uid, item.node_name, requested(item))
            elif item.node_name:
                binding = self._binding(item)
                if binding != watched.bound and self._lines.write(bound=binding):
                    watched.bound = binding

    def remove(self, item: Pod) -> None:
        """Records that *item* has ended."""
        with self._lock:
            self._end(item.ref.uid, _how(item, "deleted"))

    def prune(self, seen: set[str], started: float) -> None:
        """Records that all pods but *seen* have ended, and that this is all there is."""
        with self._lock:
            for uid in (*(self._pods.keys() - seen), *self._loads.others(seen)):
                self._end(uid, "deleted")
            self.is_listed = True
            self._lines.put(Line(is_whole=True))

    def write_all(self) -> None:
        """Records all pods."""
        for watched in self._pods.values():
            self._lines.put(Line(pod=watched.pod))
            if watched.bound is not None:
                self._lines.write(bound=watched.bound)

    def _begin(self, pod: Pod) -> _Watched | None:
        """Records that *pod* has come; returns ``None`` if it requests no devices that are recorded."""
        limits = most_shares(self._vendors, pod.containers)
        if not limits or pod.claim or not self._replayed.issuperset(limits):
            return None
        try:
            make_pod_request(pod, self._vendors, "")
        except MalformedInput:
            return None
        shape: RecordedShape = self._lines.anonymous(self._shape(pod))
        record: RecordedPod = self._lines.anonymous(
            RecordedPod(
                uid=pod.ref.uid,
                namespace=pod.ref.namespace,
                shape=msgspec.Raw(msgspec.json.encode(shape)),
                created=parse_time(pod.created),
                group=pod.group,
                controller=pod.controller,
                owner_kind=pod.controller_kind,
            )
        )
        if not self._lines.put(Line(pod=record)):
            return None
        self.count += 1
        self._pods[pod.ref.uid] = watched = _Watched(record)
        return watched

    def _end(self, uid: str, how: str) -> None:
        self._loads.put(uid, "", NOTHING)
        if self._pods.pop(uid, None) is not None:
            self._lines.write(ended=RecordedEnd(uid=uid, how=how))

    def _shape(self, pod: Pod) -> RecordedShape:
        containers: list[RecordedContainer] = []
        for container in pod.containers:
            containers.append(
                RecordedContainer(
                    kind=container.kind.value,
                    limits=_only(container.limits, self._resources),
                    requests=_only(container.requests, self._resources),
                )
            )
        preferences: list[RecordedTerm] = []
        for term in pod.preferences:
            requirements = _requirements(term.requirements)
            preferences.append(RecordedTerm(weight=term.weight, requirements=requirements))
        return RecordedShape(
            containers=tuple(containers),
            annotations=_only(pod.annotations, self._selecting),
            requests=_only(pod.requests, self._resources),
            overhead=_only(pod.overhead, self._resources),
            priority=pod.priority,
            preempts=pod.preempts,
            protected=pod.is_node_agent or pod.labels.get(PREEMPTIBLE) == "false",
            soft=pod.soft_constraints,
            terms=tuple(RecordedTerm(requirements=_requirements(term)) for term in pod.node_terms),
            preferences=tuple(preferences),
            tolerations=tuple(
                RecordedToleration(
                    key=each.key, operator=each.operator, value=each.value, effect=each.effect
                )
                for each in pod.tolerations
            ),
        )

    def _binding(self, pod: Pod) -> RecordedBinding:
        limits = most_shares(self._vendors, pod.containers)
        booking = read_bookings(pod, self._vendors, limits).bookings[pod.init_done]
        charges: list[RecordedCharge] = []
        for vendor, of_vendor in booking.charges:
            for charge in of_vendor:
                charges.append(record_charge(vendor, charge))
        return RecordedBinding(
            uid=pod.ref.uid,
            node=pod.node_name,
            charges=tuple(charges),
            decided=assigned_at(pod) or bound_at(pod),
        )


def _how(pod: Pod, otherwise: str) -> str:
    """Returns how *pod* has ended."""
    return "preempted" if pod.preempted else otherwise


def _only(words: Mapping[str, str], keys: Collection[str]) -> dict[str, str]:
    """Returns those of *words* that have one of *keys*."""
    return {key: words[key] for key in sorted(words) if key in keys}


def _requirements(requirements: tuple[NodeRequirement, ...]) -> tuple[RecordedRequirement, ...]:
    """Returns the records of *requirements*; those that compare numbers are left out."""
    records: list[RecordedRequirement] = []
    for requirement in requirements:
        if requirement.operator not in HASHABLE:
            continue
        values = tuple(sorted(requirement.values))
        is_name = not requirement.key
        records.append(
            RecordedRequirement(
                operator=requirement.operator,
                key=requirement.key,
                values=() if is_name else values,
                nodes=values if is_name else (),
            )
        )
    return tuple(records)
