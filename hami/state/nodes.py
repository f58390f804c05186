"""The nodes as last seen: their devices, and their node locks. Fed by the node watch; makes no calls."""

from __future__ import annotations

import itertools
import math
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime

from hami.codec.keys import NODE_LOCK
from hami.codec.objects import parse_resource_version
from hami.model import Device, Node
from hami.scheduling.node_resources import amounts
from hami.state.pods import ForeignNodes, PodRecords
from hami.state.read_node import Inventory, NodeReader, NodeRecord, offers
from hami.state.sighting import Sighting, Sightings
from hami.state.table import Table
from hami.vendors.spec import Vendor

TOMBSTONES = 1_000  # deleted nodes that are remembered


class NodeRecords:
    """Records of nodes by name. *clock* is monotonic.

    Plain data: who changes it holds the lock of the store. Who looks something up does not: it is copied in one step.
    """

    def __init__(self, vendors: Iterable[Vendor], clock: Callable[[], float]) -> None:
        self._vendors = {vendor.key: vendor for vendor in vendors}
        self._clock = clock
        self._records: dict[str, NodeRecord] = {}
        self.changes = 0
        """How often nodes have changed, but for their locks."""

    def get(self, name: str) -> Node | None:
        """Returns the node as far as it is remembered; ``None`` if it is unknown."""
        record = self._records.get(name)
        if record is None:
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

    def offer(self, resource: str) -> bool:
        """Reports whether any node has capacity of *resource*."""
        for record in self._all():
            _, _, capacity, _ = record.facts
            if resource in capacity:
                return True
        return False

    def names(self) -> list[str]:
        """Returns the names of all nodes."""
        return list(self._records)

    def cordoned(self) -> frozenset[str]:
        """Returns the names of the nodes that kube-scheduler does not offer."""
        return frozenset([record.name for record in self._all() if record.unschedulable])

    def texts(self) -> Iterator[tuple[str, Mapping[str, str], Mapping[str, str]]]:
        """Yields name, annotations (but for locks) and labels of every node."""
        for record in self._all():
            annotations, labels, _, _ = record.facts
            yield record.name, annotations, labels

    def lock_of(self, node: str, key: str = NODE_LOCK) -> tuple[str | None, int] | None:
        """Returns the text of *node*'s lock *key* and the node's version; ``None`` if the node is unknown."""
        record = self._records.get(node)
        return None if record is None else (record.locks.get(key), record.version)

    def lock_sighting(self, node: str, key: str, text: str) -> Sighting:
        """Returns since when *node*'s lock *key* reads *text*."""
        record = self._records.get(node)
        if record is None or record.locks.get(key) != text:
            return Sighting(self._clock())
        return record.lock_sightings[key]

    def lock_free(self, node: str) -> frozenset[str]:
        """Returns the vendors whose device plugins on *node* need no lock."""
        record = self._records.get(node)
        return frozenset() if record is None else record.lock_free

    def locks(self) -> list[tuple[str, str, str]]:
        """Returns node, annotation and text of every lock."""
        found = []
        for record in self._all():
            for key, text in record.locks.items():
                found.append((record.name, key, text))
        return found

    def reports_due(self) -> list[tuple[str, Vendor]]:
        """Returns nodes and vendors whose device plugin should be asked to report."""
        due = []
        for record, vendor, inventory in self._inventories():
            if inventory.report_due:
                due.append((record.name, vendor))
        return due

    def problems(self) -> dict[tuple[str, str], str]:
        """Returns why inventories cannot be read, by node and vendor."""
        problems = {}
        for record, vendor, inventory in self._inventories():
            problem = record.problem_of(inventory)
            if problem is not None:
                problems[record.name, vendor.key] = problem
        return problems

    def _all(self) -> list[NodeRecord]:
        return list(self._records.values())

    def _inventories(self) -> Iterator[tuple[NodeRecord, Vendor, Inventory]]:
        for record in self._all():
            for key, inventory in record.inventories.items():
                yield record, self._vendors[key], inventory


class NodeCache(NodeRecords):
    """Nodes by name, as the watch shows them.

    *lock* is the store's: it guards the records, *table* and *pods*, and is never held across I/O. Changes return the
    names of the nodes whose locks have changed: binds may wait for these.
    """

    def __init__(
        self,
        vendors: Iterable[Vendor],
        lock: threading.RLock,
        table: Table,
        pods: PodRecords,
        foreign: ForeignNodes,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        super().__init__(vendors, clock)
        self._lock = lock
        self._table = table
        self._pods = pods
        self._foreign = foreign
        self._sightings = Sightings(clock, now)
        self._reader = NodeReader(vendors, self._sightings, clock=clock, now=now)
        # by node and annotation: the locks that this process writes or has written
        self._own_locks = defaultdict[str, dict[str, str]](dict)
        # of deleted nodes: version, and when
        self._tombstones: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def upsert(self, node: Node, as_of: float = -math.inf) -> list[str]:
        """Stores *node* unless a later version has been seen since *as_of*, when a list that shows it began (by the
        clock). Returns its name if its locks have changed."""
        earlier = self._records.get(node.name)
        record = self._reader.read(node, earlier)
        with self._lock:
            if self._records.get(node.name) is not earlier:
                earlier = self._records.get(node.name)
                record = self._reader.read(node, earlier)
            version, seen_at = self._last_seen(node.name)
            if record.version < version and seen_at >= as_of:
                return []
            self._records[node.name] = record
            if earlier is None or earlier.unschedulable != record.unschedulable:
                self.changes += 1
            if earlier is None or earlier.facts is not record.facts:
                self.changes += 1
                self._set_devices(record, earlier)
            return self._note_locks(record, earlier)

    def upsert_answer(self, node: Node) -> list[str]:
        """Stores *node*, the answer to a request. Only the watch restores a node that it has removed, since the label
        selector may exclude it."""
        with self._lock:
            removed = node.name not in self._records and node.name in self._tombstones
        return [] if removed else self.upsert(node)

    def upsert_unwatched(self, node: Node) -> list[str]:
        """Stores *node*, which was read ahead of the watch: a lock may have come and gone in between."""
        changed = self.upsert_answer(node)
        if self.is_known(node.name):
            self._foreign.mark(node.name)
        return changed

    def remove(self, node: Node) -> list[str]:
        """Removes *node*, which was deleted or no longer matches the selector; a late version of it is ignored."""
        with self._lock:
            version = parse_resource_version(node.resource_version)
            self._tombstones[node.name] = version, self._clock()
            self._tombstones.move_to_end(node.name)
            if len(self._tombstones) > TOMBSTONES:
                self._tombstones.popitem(last=False)
            return self._forget([node.name])

    def prune(self, seen: set[str], started: float) -> list[str]:
        """Removes nodes that are not in a complete list (*seen*). Events may have been missed, so all are foreign."""
        with self._lock:
            self._sightings.finish_list()
            for name in self._records:
                self._foreign.mark(name)
            return self._forget([name for name in self._records if name not in seen])

    def expire(self) -> None:
        """Withdraws the devices of device plugins that have not answered in time."""
        with self._lock:
            for record, vendor, inventory in self._inventories():
                if not inventory.liveness.observation.is_offered:
                    self._offer(record, vendor)

    def expect_lock(self, node: str, text: str, key: str = NODE_LOCK) -> None:
        """Records that this process is about to lock *node* with *text*, which therefore does not make it foreign."""
        with self._lock:
            if node in self._records:
                self._own_locks[node][key] = text

    def registered(
        self, names: Iterable[str] | None = None
    ) -> Iterator[tuple[str, Mapping[str, str], tuple[Device, ...]]]:
        """Yields name, annotations (but for locks) and devices of every node, or of *names*, whether it offers them or
        not."""
        records: Iterable[NodeRecord | None] = self._all()
        if names is not None:
            records = map(self._records.get, names)
        for record in filter(None, records):
            devices = [inventory.devices for inventory in record.inventories.values()]
            yield record.name, record.facts[0], tuple(itertools.chain.from_iterable(devices))

    def _last_seen(self, name: str) -> tuple[int, float]:
        """Returns the version in which the node was last seen, and when; (0, 0.0) if it never was."""
        record = self._records.get(name)
        if record is None:
            return self._tombstones.get(name, (0, 0.0))
        return record.version, record.seen_at

    def _note_locks(self, record: NodeRecord, earlier: NodeRecord | None) -> list[str]:
        """Records whether another process may have bound pods to a node: it is new, or somebody else has locked it.
        Returns its name if its locks have changed."""
        name = record.name
        before = {} if earlier is None else earlier.locks
        if earlier is not None and before == record.locks:
            return []
        own = self._own_locks.get(name, {})
        is_foreign = earlier is None
        for key, text in record.locks.items():
            if text not in (before.get(key), own.get(key)):
                is_foreign = True
        if is_foreign:
            self._foreign.mark(name)
        self._foreign.set_locked(name, bool(record.locks))
        return [name] if before != record.locks else []

    def _set_devices(self, record: NodeRecord, earlier: NodeRecord | None) -> None:
        self._table.set_labels(record.name, record.facts[1])
        self._pods.loads.set_allocatable(record.name, amounts(record.facts[3]))
        for key in () if earlier is None else earlier.inventories:
            if key not in record.inventories and self._table.set_devices(record.name, key, ()):
                self._pods.reread(record.name)
        for key in record.inventories:
            self._offer(record, self._vendors[key])

    def _offer(self, record: NodeRecord, vendor: Vendor) -> None:
        devices = record.inventories[vendor.key].devices
        if not offers(record, vendor, self._clock()):
            devices = ()
        if self._table.set_devices(record.name, vendor.key, devices):
            self._pods.reread(record.name)

    def _forget(self, names: Iterable[str]) -> list[str]:
        gone = [name for name in names if self._records.pop(name, None) is not None]
        for name in gone:
            self.changes += 1
            self._table.remove_node(name)
            self._table.set_labels(name, None)
            self._pods.loads.set_allocatable(name, None)
            self._foreign.remove(name)
            self._own_locks.pop(name, None)
        return gone


def nodes_with_devices(nodes: NodeCache) -> set[str]:
    """Returns the names of the nodes that have registered devices, whether they offer them or not.

    Cordoned ones are left out: who maintains a node may have taken its device plugin away.
    """
    names = set()
    for name, _, devices in nodes.registered():
        if devices:
            names.add(name)
    return names - nodes.cordoned()
