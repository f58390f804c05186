"""The nodes as last seen: their devices, and their node locks. Fed by the node watch; makes no calls."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from hami.codec.keys import LOCK_FREE, NODE_LOCK
from hami.codec.objects import parse_resource_version
from hami.codec.states import parse_lock_free
from hami.model import Device, Node
from hami.state.bookings import PodBookings
from hami.state.inventories import Sources, device_count, devices_on, excess_of, inventory_sources
from hami.state.liveness import (
    PluginLiveness,
    PluginObservation,
    is_schedulable,
    needs_handshake_request,
    observe,
)
from hami.state.sighting import Sighting, Sightings
from hami.state.table import Table
from hami.vendors.inventory import gives_by_claims
from hami.vendors.spec import Vendor

TOMBSTONES = 1_000  # deleted nodes that are remembered

Texts = Mapping[str, str]


@dataclass(slots=True)
class _Inventory:
    """A node's devices of one vendor.

    *sources*: the texts that the devices are read from. *problem*: why they cannot be read. *report_due*: the device
    plugin should be asked to report.
    """

    sources: Sources
    devices: tuple[Device, ...]
    problem: str | None
    liveness: PluginLiveness
    report_due: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ForeignMark:
    """Another process may have bound pods to a node since *since* (monotonic clock)."""

    since: float


@dataclass(slots=True)
class NodeRecord:
    """The facts about a node that the scheduler remembers.

    *locks*: texts of the node locks by annotation. *lock_sightings*: since when they read so. *own_locks*: those that
    this process writes or has written. *lock_free*: vendors whose device plugins need no lock.
    *facts*: all that inventories are read from, so that an unrelated change costs little. *foreign*: another process
    may have bound pods to the node; ``None`` if it has not since its pods were last read. *unschedulable*: cordoned.
    *seen_at*: when it was last in a list or event, on the monotonic clock.
    *excess*: why none of the node's devices counts; ``None`` while all vendors together have no more than MAX_DEVICES.
    """

    name: str
    version: int
    seen_at: float
    foreign: ForeignMark | None
    locks: dict[str, str] = field(default_factory=dict)
    lock_sightings: dict[str, Sighting] = field(default_factory=dict)
    own_locks: dict[str, str] = field(default_factory=dict)
    lock_free: frozenset[str] = frozenset()
    facts: tuple[Texts, ...] = ()
    unschedulable: bool = False
    inventories: dict[str, _Inventory] = field(default_factory=dict)
    excess: str | None = None

    def problem_of(self, inventory: _Inventory) -> str | None:
        """Returns why the devices of one of *inventories* cannot be used; ``None`` if they can."""
        return inventory.problem or (self.excess if inventory.devices else None)


_Reading = tuple[Sources, tuple[Device, ...], str | None]
"""The texts of an inventory, the devices that they describe, and why they cannot be read."""


class NodeCache:
    """Nodes by name.

    *lock* is the store's: it guards the records, *table* and *bookings*, and is never held across I/O. Changes return
    the names of the nodes whose locks have changed: binds may wait for these.
    """

    def __init__(
        self,
        vendors: Iterable[Vendor],
        lock: threading.RLock,
        table: Table,
        bookings: PodBookings,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._vendors = tuple(vendors)
        self._by_key = {vendor.key: vendor for vendor in self._vendors}
        self._lock = lock
        self._table = table
        self._bookings = bookings
        self._lock_keys = tuple(
            sorted({NODE_LOCK, *(vendor.annotations.lock for vendor in self._vendors)} - {""})
        )
        self._clock = clock
        self._now = now
        self._records: dict[str, NodeRecord] = {}
        # of deleted nodes: version, and when
        self._tombstones: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._sightings = Sightings(clock, now)
        self.changes = 0
        """How often nodes have changed, but for their locks."""

    def upsert(self, node: Node, as_of: float = -math.inf) -> list[str]:
        """Stores *node* unless a later version has been seen since *as_of*, when a list that shows it began (by the
        clock). Returns its name if its locks have changed."""
        version = parse_resource_version(node.resource_version)
        facts = (
            {key: text for key, text in node.annotations.items() if key not in self._lock_keys},
            node.labels,
            node.capacity,
            node.allocatable,
        )
        readings = self._read(node, facts)
        with self._lock:
            record = self._records.get(node.name)
            latest, seen_at = (
                self._tombstones.get(node.name, (0, 0.0))
                if record is None
                else (record.version, record.seen_at)
            )
            if version < latest and seen_at >= as_of:
                return []
            now = self._clock()
            if record is None:
                record = self._records[node.name] = NodeRecord(
                    node.name, version, now, ForeignMark(now)
                )
            record.version, record.seen_at = version, now
            self.changes += record.unschedulable != node.unschedulable
            record.unschedulable = node.unschedulable
            before, record.locks = (
                record.locks,
                {key: node.annotations[key] for key in self._lock_keys if key in node.annotations},
            )
            if any(
                text not in (before.get(key), record.own_locks.get(key))
                for key, text in record.locks.items()
            ):
                record.foreign = ForeignMark(self._clock())
            record.lock_sightings = {
                key: record.lock_sightings[key]
                if before.get(key) == text
                else self._sightings.make()
                for key, text in record.locks.items()
            }
            record.lock_free = parse_lock_free(node.annotations.get(LOCK_FREE))
            if facts != record.facts:
                self.changes += 1
                record.facts = facts
                self._table.set_labels(node.name, node.labels)
                for vendor in self._vendors:
                    if (reading := readings.get(vendor.key) or _reading(vendor, node)) is not None:
                        self._store_inventory(record, vendor, node, reading)
                    elif vendor.key in record.inventories:
                        self._remove_inventory(record, vendor)
                inventories = record.inventories.items()
                record.excess = excess_of(
                    {key: len(inventory.devices) for key, inventory in inventories}
                )
                for key, inventory in inventories:
                    self._offer(record, self._by_key[key], inventory)
            return [node.name] if before != record.locks else []

    def _read(self, node: Node, facts: tuple[Texts, ...]) -> Mapping[str, _Reading]:
        """Reads the inventories of *node* that have changed, by vendor, before the lock is taken: filters
        wait for it."""
        record = self._records.get(node.name)
        if record is not None and record.facts == facts:
            return {}
        inventories = record.inventories if record is not None else {}
        readings = (
            (vendor.key, _reading(vendor, node, inventories.get(vendor.key)))
            for vendor in self._vendors
        )
        return {key: reading for key, reading in readings if reading is not None}

    def upsert_answer(self, node: Node) -> list[str]:
        """Stores *node*, the answer to a request. Only the watch restores a node that it has removed, since the label
        selector may exclude it."""
        with self._lock:
            removed = node.name not in self._records and node.name in self._tombstones
        return [] if removed else self.upsert(node)

    def upsert_unwatched(self, node: Node) -> list[str]:
        """Stores *node*, which was read ahead of the watch: a lock may have come and gone in between."""
        changed = self.upsert_answer(node)
        self.mark_foreign(node.name)
        return changed

    def remove(self, node: Node) -> list[str]:
        """Removes *node*, which was deleted or no longer matches the selector; a late version of it is ignored."""
        with self._lock:
            self._tombstones[node.name] = (
                parse_resource_version(node.resource_version),
                self._clock(),
            )
            self._tombstones.move_to_end(node.name)
            if len(self._tombstones) > TOMBSTONES:
                self._tombstones.popitem(last=False)
            return self._remove_records([node.name])

    def prune(self, seen: set[str], started: float) -> list[str]:
        """Removes nodes that are not in a complete list (*seen*). Events may have been missed, so all are foreign."""
        with self._lock:
            self._sightings.finish_list()
            gone = [name for name in self._records if name not in seen]
            for record in self._records.values():
                record.foreign = ForeignMark(self._clock())
            return self._remove_records(gone)

    def expire(self) -> None:
        """Withdraws the devices of device plugins that have not answered in time."""
        with self._lock:
            for record, vendor, inventory in self._inventories():
                if inventory.liveness.observation.allocatable == 0:
                    self._offer(record, vendor, inventory)

    def get(self, name: str) -> Node | None:
        """Returns the node as far as it is remembered; ``None`` if it is unknown."""
        with self._lock:
            record = self._records.get(name)
            if record is None or not record.facts:
                return None
            annotations, labels, capacity, allocatable = record.facts
            return Node(
                name=name,
                resource_version=str(record.version),
                annotations={**annotations, **record.locks},
                labels=labels,
                capacity=capacity,
                allocatable=allocatable,
                unschedulable=record.unschedulable,
            )

    def is_known(self, name: str) -> bool:
        """Reports whether there is such a node, and the label selector does not exclude it."""
        return name in self._records

    def names(self) -> list[str]:
        """Returns the names of all nodes."""
        with self._lock:
            return list(self._records)

    def cordoned(self) -> frozenset[str]:
        """Returns the names of the nodes that kube-scheduler does not offer."""
        with self._lock:
            return frozenset(name for name, record in self._records.items() if record.unschedulable)

    def lock_of(self, node: str, key: str = NODE_LOCK) -> tuple[str | None, int] | None:
        """Returns the text of *node*'s lock *key* and the node's version; ``None`` if the node is unknown."""
        with self._lock:
            record = self._records.get(node)
            return (record.locks.get(key), record.version) if record is not None else None

    def lock_sighting(self, node: str, key: str, text: str) -> Sighting:
        """Returns since when *node*'s lock *key* reads *text*."""
        with self._lock:
            record = self._records.get(node)
            if record is None or record.locks.get(key) != text:
                return Sighting(self._clock())
            return record.lock_sightings[key]

    def lock_free(self, node: str) -> frozenset[str]:
        """Returns the vendors whose device plugins on *node* need no lock."""
        with self._lock:
            record = self._records.get(node)
            return record.lock_free if record is not None else frozenset()

    def locks(self) -> list[tuple[str, str, str]]:
        """Returns node, annotation and text of every lock."""
        with self._lock:
            return [
                (record.name, key, text)
                for record in self._records.values()
                for key, text in record.locks.items()
            ]

    def expect_lock(self, node: str, text: str, key: str = NODE_LOCK) -> None:
        """Records that this process is about to lock *node* with *text*, which therefore does not make it foreign."""
        with self._lock:
            if (record := self._records.get(node)) is not None:
                record.own_locks[key] = text

    def mark_foreign(self, node: str) -> None:
        """Records that another process may have bound pods to *node*."""
        with self._lock:
            if (record := self._records.get(node)) is not None:
                record.foreign = ForeignMark(self._clock())

    def foreign_mark(self, node: str) -> ForeignMark | None:
        """Returns the mark of a node whose pods have to be read; ``None`` if it has none."""
        with self._lock:
            record = self._records.get(node)
            return record.foreign if record is not None else None

    def clear_foreign(self, node: str, mark: ForeignMark | None) -> None:
        """Records that *node*'s pods have been read since it had *mark*. A later mark stays."""
        with self._lock:
            if (record := self._records.get(node)) is not None and record.foreign is mark:
                record.foreign = None

    def clear_foreign_before(self, started: float) -> None:
        """Records that all pods have been listed since *started*. Nodes that are locked now stay foreign."""
        with self._lock:
            for record in self._records.values():
                if (
                    not record.locks
                    and record.foreign is not None
                    and record.foreign.since < started
                ):
                    record.foreign = None

    def reports_due(self) -> list[tuple[str, Vendor]]:
        """Returns nodes and vendors whose device plugin should be asked to report."""
        with self._lock:
            return [
                (record.name, vendor)
                for record, vendor, inventory in self._inventories()
                if inventory.report_due
            ]

    def problems(self, names: Iterable[str] | None = None) -> dict[tuple[str, str], str]:
        """Returns why inventories cannot be read, by node and vendor; of the nodes *names* only, if they are given."""
        with self._lock:
            chosen = (
                self._records
                if names is None
                else [name for name in names if name in self._records]
            )
            return {
                (name, vendor): problem
                for name in chosen
                for vendor, inventory in self._records[name].inventories.items()
                if (problem := self._records[name].problem_of(inventory)) is not None
            }

    def _inventories(self) -> Iterator[tuple[NodeRecord, Vendor, _Inventory]]:
        for record in self._records.values():
            for key, inventory in record.inventories.items():
                yield record, self._by_key[key], inventory

    def _remove_records(self, names: Iterable[str]) -> list[str]:
        gone = [name for name in names if self._records.pop(name, None) is not None]
        for name in gone:
            self.changes += 1
            self._table.remove_node(name)
            self._table.set_labels(name, None)
        return gone

    def _remove_inventory(self, record: NodeRecord, vendor: Vendor) -> None:
        del record.inventories[vendor.key]
        self._table.set_devices(record.name, vendor.key, ())
        self._bookings.reread(record.name)

    def _store_inventory(
        self, record: NodeRecord, vendor: Vendor, node: Node, reading: _Reading
    ) -> None:
        sources, devices, problem = reading
        inventory = record.inventories.get(vendor.key)
        if gives_by_claims(
            vendor, node
        ):  # the kubelet offers none, but while it can call the driver, this is marked
            allocatable = len(devices) if vendor.key in record.lock_free else 0
        else:
            allocatable = device_count(node.allocatable.get(vendor.resources.count))
        handshake = node.annotations.get(vendor.annotations.handshake)
        observation = PluginObservation(handshake, sources[0] or "", allocatable)
        liveness = observe(
            inventory.liveness if inventory else None, observation, self._clock(), self._now()
        )
        if inventory is None or inventory.sources != sources:
            inventory = record.inventories[vendor.key] = _Inventory(
                sources, devices, problem, liveness
            )
        inventory.liveness = liveness
        inventory.report_due = bool(vendor.annotations.handshake) and needs_handshake_request(
            liveness
        )

    def _offer(self, record: NodeRecord, vendor: Vendor, inventory: _Inventory) -> None:
        offered = record.excess is None and (
            not vendor.annotations.handshake or is_schedulable(inventory.liveness, self._clock())
        )
        if self._table.set_devices(record.name, vendor.key, inventory.devices if offered else ()):
            self._bookings.reread(record.name)


def _reading(vendor: Vendor, node: Node, inventory: _Inventory | None = None) -> _Reading | None:
    """Reads *vendor*'s inventory of *node*, unless *known* has the same texts. ``None`` if there is none."""
    if (sources := inventory_sources(vendor, node)) is None:
        return None
    if inventory is not None and inventory.sources == sources:
        return sources, inventory.devices, inventory.problem
    return sources, *devices_on(vendor, node)
