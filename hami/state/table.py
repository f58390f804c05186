"""Nodes with devices, bookings, and the usage that follows from them, kept current with each change.

Each node has a row, and a version that increases whenever its devices or their usage change. The table only records; it
decides nothing. It is not thread-safe: its owner holds a lock. The columns of the devices of all nodes lie one after
the other, so that a decision can look at all of them at once, and one node with many devices costs no more than these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy
from numpy.typing import NDArray

from hami.model import Device
from hami.scheduling.columns import AMOUNTS_FROM, FIELDS, DeviceColumns, firsts, grown, places_of
from hami.scheduling.node_resources import NodeResources
from hami.scheduling.placement import NodeUsage
from hami.scheduling.quota import DeviceSizes
from hami.scheduling.score import score_of_sums
from hami.state.bookings import NOTHING, Bookings, DeviceSums

Array = NDArray[Any]

T = TypeVar("T")

NO_POD = 1 << 40  # the lowest priority on a node without pods: above all priorities
MIN_CAPACITY = 64  # rows and devices for which arrays are made at first
LISTS = 8  # that are made at most until one lies side by side
PAGE = 4096  # bytes
FEW_JUMPS = 1 / 16  # of the objects of a list


@dataclass(slots=True)
class NodeDevices:
    """One node with devices, by vendor. *row*: its place in the arrays. *usages*: made when they are asked for.

    A changed node gets a new record, since copies of the table share them.
    """

    name: str
    row: int
    devices: Mapping[str, tuple[Device, ...]]
    usages: NodeUsage | None = None


class Numbers:
    """Gives numbers to texts. A number that no device uses any more is given to another text."""

    def __init__(self, first: int = 0) -> None:
        self.by_text: dict[str, int] = {}
        self._uses: dict[str, int] = {}
        self._free: list[int] = []
        self._next = first

    def take(self, text: str) -> int:
        """Returns the number of *text*, which one more device uses."""
        number = self.by_text.get(text)
        if number is None:
            if self._free:
                number = self._free.pop()
            else:
                number = self._next
                self._next += 1
            self.by_text[text] = number
        self._uses[text] = self._uses.get(text, 0) + 1
        return number

    def release(self, text: str) -> None:
        """Records that one device less uses *text*."""
        self._uses[text] -= 1
        if not self._uses[text]:
            del self._uses[text]
            self._free.append(self.by_text.pop(text))


class NodeColumns:
    """Columns of devices, by the row of their node."""

    def __init__(self) -> None:
        self._starts = numpy.zeros(0, dtype=numpy.intp)
        self._lengths = numpy.zeros(0, dtype=numpy.intp)
        self._facts = numpy.zeros((len(FIELDS), 0), dtype=numpy.int64)
        self._owners = numpy.zeros(0, dtype=numpy.intp)
        self._end = 0  # of the columns in use
        self._vendors = Numbers(1)  # 0 marks columns that are not in use
        self._models = Numbers()
        self._modes = Numbers()

    def grow(self, rows: int) -> None:
        """Makes room for as many *rows*."""
        self._starts = grown(self._starts, rows)
        self._lengths = grown(self._lengths, rows)

    def number(self, devices: Sequence[Device], replaced: Sequence[Device]) -> None:
        """Gives numbers to the texts of *devices*, which take the place of *replaced*."""
        for device in devices:
            self._vendors.take(device.vendor)
            self._models.take(device.model)
            self._modes.take(device.mode)
        for device in replaced:
            self._vendors.release(device.vendor)
            self._models.release(device.model)
            self._modes.release(device.mode)

    def write(
        self,
        row: int,
        devices: Mapping[str, tuple[Device, ...]],
        sums: DeviceSums,
        partitioned: Set[tuple[str, str]],
    ) -> list[int]:
        """Writes the *devices* of the node of *row*, of which *sums* are in use; there is one at least.

        Returns the total of each field of an amount.
        """
        vendors, models, modes = self._vendors.by_text, self._models.by_text, self._modes.by_text
        facts = []
        for vendor in sorted(devices):
            for device in devices[vendor]:
                key = vendor, device.uuid
                slots, memory, cores = sums.get(key, NOTHING)
                facts.append(
                    (
                        vendors[device.vendor],
                        models[device.model],
                        modes[device.mode],
                        device.by_claims,
                        device.healthy,
                        device.cordoned,
                        device.is_partitioned or key in partitioned,
                        device.slots,
                        slots,
                        device.memory_mib,
                        memory,
                        device.cores,
                        cores,
                    )
                )
        start = self._place(row, len(facts))
        columns = numpy.array(facts, dtype=numpy.int64).T
        self._facts[:, start : start + len(facts)] = columns
        totals: list[int] = columns[AMOUNTS_FROM:].sum(axis=1).tolist()
        return totals

    def clear(self, row: int) -> None:
        """Forgets the devices of the node of *row*."""
        self._place(row, 0)

    def of(self, rows: Array) -> DeviceColumns:
        """Returns the columns of the devices of *rows*, whose owner is the position in *rows*."""
        places, owners = places_of(self._starts[rows], self._lengths[rows])
        return self._columns(self._facts[:, places], owners, len(rows))

    def facts_of(self, row: int) -> Array:
        """Returns the facts of the devices of *row*, as in DeviceColumns. It costs no copy."""
        start = self._starts[row]
        return self._facts[:, start : start + self._lengths[row]]

    def all(self) -> DeviceColumns:
        """Returns the columns of all devices, whose owner is the row. It costs no copy."""
        return self._columns(
            self._facts[:, : self._end], self._owners[: self._end], len(self._starts)
        )

    def covering(self, rows: Array) -> tuple[DeviceColumns, Array | slice]:
        """Returns columns that contain the devices of *rows*, and which of the owners are the nodes of *rows*."""
        if 2 * len(rows) > len(self._starts):
            return self.all(), rows
        return self.of(rows), slice(None)

    def _columns(self, facts: Array, owners: Array, nodes: int) -> DeviceColumns:
        return DeviceColumns(
            facts=facts,
            owner=owners,
            nodes=nodes,
            vendors=self._vendors.by_text,
            models=self._models.by_text,
            modes=self._modes.by_text,
        )

    def _place(self, row: int, length: int) -> int:
        """Finds room in the columns for *length* devices of the node of *row*. Returns where they start."""
        start, former = int(self._starts[row]), int(self._lengths[row])
        if length == former:
            return start
        self._facts[:, start : start + former] = 0
        self._lengths[row] = 0
        if length > former:
            if self._end + length > len(self._owners):
                self._compact(length)
            start = self._end
            self._end += length
        self._owners[start : start + length] = row
        self._starts[row], self._lengths[row] = start, length
        return start

    def _compact(self, more: int) -> None:
        """Moves the columns together and makes room for *more* devices, and as many as there are beside them."""
        in_use = numpy.flatnonzero(self._facts[0, : self._end])
        self._end = len(in_use)
        capacity = max(MIN_CAPACITY, 2 * (self._end + more))
        facts, owners = self._facts[:, in_use], self._owners[in_use]
        self._facts = numpy.zeros((len(FIELDS), capacity), dtype=numpy.int64)
        self._owners = numpy.zeros(capacity, dtype=numpy.intp)
        self._facts[:, : self._end], self._owners[: self._end] = facts, owners
        begins = firsts(owners)
        self._starts[owners[begins]] = begins


class Table:
    """Nodes, bookings, and the usage that follows from them.

    *versions*, *scores* and *priorities* are arrays with an item for each row; the latter has the lowest priority of
    the pods that hold devices there. They and *columns* are current after `refresh`. *label_changes*: how often labels
    or rows have changed; it increases after that, so that whoever reads it first, without a lock, knows at least these
    labels.
    """

    def __init__(self) -> None:
        self.bookings = Bookings()
        self.columns = NodeColumns()
        self.nodes: dict[str, NodeDevices] = {}
        self.rows: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self.labels: dict[str, Mapping[str, str]] = {}
        self.label_changes = 0
        self.allocatable: dict[str, NodeResources] = {}
        """CPU and memory that nodes have for all pods."""
        self.left: dict[str, NodeResources] = {}
        """What pods that hold no devices leave of it for others."""
        self.changed_left: dict[str, None] = {}
        """Nodes of which that has changed; who follows them removes them."""
        self.versions = numpy.zeros(0, dtype=numpy.int64)
        self.scores = numpy.zeros(0, dtype=numpy.float32)
        self.priorities = numpy.zeros(0, dtype=numpy.int64)
        self.changes = 0
        self._sizes: dict[str, DeviceSizes] | None = None
        self._claimable_sizes: frozenset[int] | None = None
        self._free_rows: list[int] = []
        self._ranks = numpy.zeros(0, dtype=numpy.int64)
        self._is_ranked = True
        self._stale: dict[str, None] = {}  # not a set: popping from one that has shrunk is slow

    def set_labels(self, node: str, labels: Mapping[str, str] | None) -> None:
        """Sets the labels of *node*, which may have no devices; ``None``: it is gone."""
        if self.labels.get(node) != labels:
            if labels is None:
                del self.labels[node]
            else:
                self.labels[node] = labels
            self.label_changes += 1

    def set_left(self, node: str, resources: NodeResources | None) -> None:
        """Sets the CPU and memory that *node* has for pods with devices; ``None``: it is gone. No verdict depends on
        them."""
        if resources is None:
            self.left.pop(node, None)
            self.changed_left.pop(node, None)
        else:
            self.left[node] = resources
            self.changed_left[node] = None

    def set_devices(self, node: str, vendor: str, devices: tuple[Device, ...]) -> bool:
        """Sets the devices of *vendor* on *node* (none: removes the vendor). Returns whether this is a change."""
        entry = self.nodes.get(node)
        earlier = entry.devices.get(vendor, ()) if entry is not None else ()
        if earlier == devices:
            return False
        by_vendor = dict(entry.devices) if entry is not None else {}
        by_vendor.pop(vendor, None)
        if devices:
            by_vendor[vendor] = devices
        row = entry.row if entry is not None else self._add_row(node)
        self._sizes = self._claimable_sizes = None
        self.columns.number(devices, earlier)
        self.nodes[node] = NodeDevices(node, row, by_vendor)
        self._stale[node] = None
        if not by_vendor:
            self.remove_node(node)
        return True

    def remove_node(self, node: str) -> None:
        """Removes *node*. Bookings on it stay until their pods are gone."""
        entry = self.nodes.pop(node, None)
        if entry is None:
            return
        self._sizes = self._claimable_sizes = None
        for devices in entry.devices.values():
            self.columns.number((), devices)
        del self.rows[node], self.names[entry.row]
        self._free_rows.append(entry.row)
        self.columns.clear(entry.row)
        self._bump_version(entry.row)
        self._is_ranked = False

    def copy(self) -> Table:
        """Returns a table with the same content. What changes in one does not change in the other."""
        self.refresh()
        made: Table = _copied(self)
        return made

    def refresh(self) -> None:
        """Updates scores and columns of changed nodes. Several changes of a node cost one update."""
        stale, booked = self._stale, self.bookings.changed_nodes
        if booked:
            stale.update(booked)
            booked.clear()
        while stale:
            node, _ = stale.popitem()
            entry = self.nodes.get(node)
            if entry is not None:
                self._refresh_node(entry)

    def usages(self, node: str) -> NodeUsage:
        """Returns the devices of *node* and their usage, by vendor; empty if it has none."""
        self.refresh()
        entry = self.nodes.get(node)
        if entry is None:
            return {}
        if entry.usages is None:
            entry.usages = self.bookings.usages_of(node, entry.devices)
        return entry.usages

    def version_of(self, node: str) -> int:
        """Returns the version of *node*; -1 if it has no devices."""
        self.refresh()
        return int(self.versions[self.rows[node]]) if node in self.rows else -1

    def sizes(self) -> Mapping[str, DeviceSizes]:
        """Returns the sizes of the devices of all nodes, by vendor."""
        if self._sizes is None:
            made: dict[str, DeviceSizes] = {}
            for entry in self.nodes.values():
                for vendor, devices in entry.devices.items():
                    sizes = [device.memory_mib for device in devices]
                    so_far = made.get(vendor, DeviceSizes(sizes[0], 0, False))
                    made[vendor] = DeviceSizes(
                        min(so_far.least, *sizes),
                        max(so_far.most, *sizes),
                        so_far.in_parts or any(device.is_partitioned for device in devices),
                    )
            self._sizes = made
        return self._sizes

    def claimable_sizes(self) -> frozenset[int]:
        """Returns the different amounts of memory (MiB) of the devices of which pods get shares by claims of HAMi's
        scheduler."""
        if self._claimable_sizes is None:
            sizes: set[int] = set()
            for entry in self.nodes.values():
                for devices in entry.devices.values():
                    for device in devices:
                        if device.by_claims and not device.is_partitioned:
                            sizes.add(device.memory_mib)
            self._claimable_sizes = frozenset(sizes)
        return self._claimable_sizes

    def rank(self) -> Array:
        """Returns, for each row, the position of its node in the order of names."""
        if not self._is_ranked:
            ordered = sorted(self.rows)
            rows = numpy.array([self.rows[name] for name in ordered], dtype=numpy.intp)
            self._ranks[rows] = numpy.arange(len(rows))
            # each filter looks all of them up
            names = side_by_side(lambda: [name.encode().decode() for name in ordered])
            numbers = side_by_side(rows.tolist)
            self.rows, self.names = dict(zip(names, numbers)), dict(zip(numbers, names))
            self._is_ranked = True
        return self._ranks

    def _add_row(self, node: str) -> int:
        row = self._free_rows.pop() if self._free_rows else len(self.nodes)
        self.rows[node], self.names[row] = row, node
        if row >= len(self.versions):
            height = max(MIN_CAPACITY, 2 * row)
            self.versions = grown(self.versions, height)
            self.scores = grown(self.scores, height)
            self.priorities = grown(self.priorities, height)
            self._ranks = grown(self._ranks, height)
            self.columns.grow(height)
        self._is_ranked = False
        self.label_changes += 1
        return row

    def _refresh_node(self, entry: NodeDevices) -> None:
        """Writes the columns, the score and a new version of a node."""
        name, row = entry.name, entry.row
        self.nodes[name] = NodeDevices(name, row, entry.devices)
        bookings = self.bookings
        totals = self.columns.write(
            row, entry.devices, bookings.sums_on(name), bookings.partitioned_on(name)
        )
        self.scores[row] = score_of_sums(*totals)
        self.priorities[row] = min(
            [booking.priority for booking in bookings.on(name)], default=NO_POD
        )
        self._bump_version(row)

    def _bump_version(self, row: int) -> None:
        self.changes += 1
        self.versions[row] = self.changes


def _copied(part: Any) -> Any:
    """Returns a copy of a table or of a part of it: what one of both replaces, the other keeps."""
    if isinstance(part, (dict, list, numpy.ndarray)):
        return part.copy()
    if not isinstance(part, (Table, Bookings, NodeColumns, Numbers)):
        return part  # a number, or a value that is never changed
    made = type(part).__new__(type(part))
    for name, value in vars(part).items():
        setattr(made, name, _copied(value))
    return made


def side_by_side(make: Callable[[], list[T]]) -> list[T]:
    """Returns a list of *make*, which makes new objects of one size, as side by side in memory as `LISTS` attempts get
    them: thousands that are looked up one after the other are then found several times faster.

    Python puts new objects into the gaps between old ones first. A list of many objects fills them, so that the objects
    of the next lie side by side.
    """
    made = make()
    earlier = [made]  # in the gaps as long as they exist
    while len(earlier) < LISTS and jumps(made) > FEW_JUMPS * len(made):
        made = make()
        earlier.append(made)
    return made


def jumps(objects: Sequence[object]) -> int:
    """Returns how many of *objects* lie further than a page from the one before."""
    addresses = numpy.fromiter(map(id, objects), dtype=numpy.int64, count=len(objects))
    return int(numpy.count_nonzero(abs(numpy.diff(addresses)) > PAGE))
