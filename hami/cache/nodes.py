"""The nodes as last seen: their devices, and who holds which node lock. Fed by the node watch; asks nobody."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from hami.codec.keys import NODE_LOCK
from hami.codec.objects import parse_resource_version
from hami.errors import MalformedInput
from hami.model import Device, Node
from hami.quantity import rounded_up
from hami.scheduling.index import Index
from hami.scheduling.liveness import Signs, Vitals, examine, is_offered, wants_request
from hami.vendors.spec import Vendor

__all__ = ["NodeCache", "NodeRecord"]

TOMBSTONES = 1_000  # nodes that are remembered as gone

Evidence = tuple[str | None, ...]
Texts = Mapping[str, str]



@dataclass(slots=True)
class _Inventory:
    """What a node has of one vendor: the texts it was read from, the devices, or why they cannot be read.

    *unasked*: its device plugin should be asked to report.
    """

    evidence: Evidence
    devices: tuple[Device, ...]
    problem: str | None
    vitals: Vitals
    unasked: bool = False


@dataclass(slots=True)
class NodeRecord:
    """What is remembered of a node. *locks*: texts by annotation. *own_locks*: those that this process writes or has
    written. *facts*: all that inventories are read from, so that other changes cost little. *foreign_lock*:
    another process may have bound pods here since we last looked; *foreign_since*: from when on that is so."""

    name: str
    version: int
    locks: dict[str, str] = field(default_factory=dict)
    own_locks: dict[str, str] = field(default_factory=dict)
    facts: tuple[Texts, ...] = ()
    foreign_lock: bool = True
    foreign_since: float = 0.0
    inventories: dict[str, _Inventory] = field(default_factory=dict)


class NodeCache:
    """Nodes by name. *matches* says which nodes count; *guard* is the lock under which *index* is changed."""

    def __init__(self, vendors: Iterable[Vendor], index: Index, guard: threading.RLock, *,
                 clock: Callable[[], float], now: Callable[[], datetime],
                 matches: Callable[[Node], bool] = lambda node: True) -> None:
        self._vendors = tuple(vendors)
        self._index = index
        self._guard = guard
        self._lock_keys = tuple(sorted({NODE_LOCK, *(vendor.lock for vendor in self._vendors if vendor.lock)}))
        self._clock = clock
        self._now = now
        self._matches = matches
        self._records: dict[str, NodeRecord] = {}
        self._gone: OrderedDict[str, int] = OrderedDict()  # the versions at which nodes ended
        self.on_lock: Callable[[str], None] = lambda node: None
        self.on_inventory: Callable[[str], None] = lambda node: None

    def upsert(self, node: Node) -> None:
        """Take over what the API server says of *node*, unless something newer is known."""
        version = parse_resource_version(node.resource_version)
        with self._guard:
            record = self._records.get(node.name)
            if version < (record.version if record is not None else self._gone.get(node.name, 0)):
                return
            if not self._matches(node):
                self.remove(node)
                return
            if record is None:
                record = self._records[node.name] = NodeRecord(node.name, version, foreign_since=self._clock())
            record.version = version
            before, record.locks = record.locks, {
                key: node.annotations[key] for key in self._lock_keys if key in node.annotations}
            if any(text not in (before.get(key), record.own_locks.get(key)) for key, text in record.locks.items()):
                record.foreign_lock, record.foreign_since = True, self._clock()
            others = {key: text for key, text in node.annotations.items() if key not in self._lock_keys}
            facts = (others, node.labels, node.capacity, node.allocatable)
            if facts != record.facts:
                record.facts = facts
                for vendor in self._vendors:
                    self._take_inventory(record, vendor, node)
        if before != record.locks:
            self.on_lock(node.name)

    def learn(self, node: Node) -> None:
        """Take over an answer of the API server that is ahead of the watch: a lock may have come and gone meanwhile."""
        self.upsert(node)
        self.mark_foreign(node.name, True)

    def remove(self, node: Node) -> None:
        """*node* is gone, or does not count any more; an answer about it that comes late does not bring it back."""
        with self._guard:
            self._gone[node.name] = parse_resource_version(node.resource_version)
            self._gone.move_to_end(node.name)
            if len(self._gone) > TOMBSTONES:
                self._gone.popitem(last=False)
        self._forget(node.name)

    def prune(self, seen: set[str], started: float) -> None:
        """Only the nodes *seen* exist. Watch events may have been missed, so any lock may have changed hands."""
        with self._guard:
            gone = [name for name in self._records if name not in seen]
            for record in self._records.values():
                record.foreign_lock, record.foreign_since = True, self._clock()
        for name in gone:
            self._forget(name)

    def sweep(self) -> None:
        """Look at the time: plugins that have not answered are given up."""
        with self._guard:
            for record, vendor, inventory in self._inventories():
                if inventory.vitals.signs.allocatable == 0:
                    self._offer(record.name, vendor, inventory)

    def lock_of(self, node: str, key: str = NODE_LOCK) -> tuple[str | None, int] | None:
        """The text of *node*'s lock *key* and the node's version; ``None`` when the node is unknown."""
        with self._guard:
            record = self._records.get(node)
            return (record.locks.get(key), record.version) if record is not None else None

    def locks(self) -> list[tuple[str, str, str]]:
        """All locks that stand: the node, the lock's key, its text."""
        with self._guard:
            return [(record.name, key, text) for record in self._records.values() for key, text in record.locks.items()]

    def expect_lock(self, node: str, text: str, key: str = NODE_LOCK) -> None:
        """This process is about to lock *node* with *text*: seeing that is no sign of another process."""
        with self._guard:
            if (record := self._records.get(node)) is not None:
                record.own_locks[key] = text

    def trust(self, started: float) -> None:
        """All pods have been listed since *started*: what others bound before is known, where no lock is held."""
        with self._guard:
            for record in self._records.values():
                if not record.locks and record.foreign_since < started:
                    record.foreign_lock = False

    def mark_foreign(self, node: str, foreign: bool) -> bool:
        """Remember whether another process may have bound pods to *node*; what was remembered before."""
        with self._guard:
            record = self._records.get(node)
            if record is None:
                return foreign
            before, record.foreign_lock = record.foreign_lock, foreign
            if foreign:
                record.foreign_since = self._clock()
            return before

    def unasked(self) -> list[tuple[str, Vendor]]:
        """Nodes and vendors whose device plugin should be asked to report."""
        with self._guard:
            return [(record.name, vendor) for record, vendor, inventory in self._inventories() if inventory.unasked]

    def problems(self) -> dict[tuple[str, str], str]:
        """Inventories that cannot be read, by node and vendor, and why."""
        with self._guard:
            return {(record.name, vendor.key): inventory.problem for record, vendor, inventory in self._inventories()
                    if inventory.problem is not None}

    def _inventories(self) -> Iterator[tuple[NodeRecord, Vendor, _Inventory]]:
        for record in self._records.values():
            for vendor in self._vendors:
                if (inventory := record.inventories.get(vendor.key)) is not None:
                    yield record, vendor, inventory

    def _forget(self, name: str) -> None:
        with self._guard:
            if self._records.pop(name, None) is None:
                return
            self._index.drop_node(name)
        self.on_lock(name)

    def _take_inventory(self, record: NodeRecord, vendor: Vendor, node: Node) -> None:
        evidence = _evidence(vendor, node)
        known = record.inventories.get(vendor.key)
        if evidence is None:
            if record.inventories.pop(vendor.key, None) is not None:
                self._index.set_inventory(record.name, vendor.key, ())
                self.on_inventory(record.name)
            return
        allocatable = _count(node.allocatable.get(vendor.count))
        signs = Signs(node.annotations.get(vendor.handshake), evidence[0] or "", allocatable)
        vitals = examine(known.vitals if known else None, signs, self._clock())
        if known is None or known.evidence != evidence:
            devices, problem = _read(vendor, node)
            known = record.inventories[vendor.key] = _Inventory(evidence, devices, problem, vitals)
        known.vitals = vitals
        known.unasked = bool(vendor.handshake) and wants_request(vitals)
        self._offer(record.name, vendor, known)

    def _offer(self, node: str, vendor: Vendor, inventory: _Inventory) -> None:
        offered = not vendor.handshake or is_offered(inventory.vitals, self._clock(), self._now())
        if self._index.set_inventory(node, vendor.key, inventory.devices if offered else ()):
            self.on_inventory(node)


def _evidence(vendor: Vendor, node: Node) -> Evidence | None:
    """The texts that *vendor*'s inventory is read from, its register annotation first; ``None`` when the node shows
    nothing of the vendor."""
    register = node.annotations.get(vendor.register) if vendor.register else None
    capacity: Evidence = ()
    if not vendor.register or vendor.needs_capacity:
        capacity = tuple(node.capacity.get(name) for name in (vendor.count, vendor.memory, vendor.cores))
    if register is None and (vendor.register or not any(capacity)):
        return None
    return (register, *(node.annotations.get(key, node.labels.get(key)) for key in vendor.node_keys), *capacity)


def _read(vendor: Vendor, node: Node) -> tuple[tuple[Device, ...], str | None]:
    if vendor.needs_capacity and _count(node.capacity.get(vendor.count)) == 0:
        return (), None
    try:
        return vendor.inventory(vendor, node) or (), None
    except MalformedInput as error:
        return (), str(error)


def _count(text: str | None) -> int:
    """How many devices the kubelet offers; none when the text is no quantity."""
    try:
        return max(0, rounded_up(text)) if text else 0
    except MalformedInput:
        return 0
