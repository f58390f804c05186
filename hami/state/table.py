"""Nodes with devices, bookings, and the usage that follows from them, kept current with each change.

Each node has a row, and a version that increases whenever its devices or their usage change. Columns of the devices of
all nodes lie one after the other, so that a decision can look at all of them at once, and one node with many devices
costs no more than these. The table only records; it decides nothing. It is not thread-safe: its owner holds a lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec
import numpy
from numpy.typing import NDArray

from hami.model import Device, DeviceUsage, PodScope
from hami.scheduling.columns import AMOUNTS_FROM, FIELDS, DeviceColumns
from hami.scheduling.placement import NodeUsage
from hami.scheduling.quota import DeviceSizes, ScopedUsage
from hami.scheduling.score import score_of_sums
from hami.scheduling.usage import Charge, TotalCharge, total_charge

Array = NDArray[Any]
Key = TypeVar("Key")
Value = TypeVar("Value")

_NOTHING = (0, 0, 0)
NO_POD = 1 << 40  # the lowest priority on a node without pods: above all priorities
MIN_CAPACITY = 64  # rows and devices for which arrays are made at first


# Of bookings, charges and records of pods there is one for each pod: structs are made in a fraction of the time that
# data classes take, and the garbage collector need not look at them, since they are in no cycle.
class Booking(msgspec.Struct, frozen=True, gc=False):
    """The charges of one pod on one node, by vendor. *priority*: the pod's. *scope*: selects its quotas."""

    uid: str
    namespace: str
    node: str
    charges: tuple[tuple[str, tuple[Charge, ...]], ...]
    priority: int = 0
    scope: PodScope = PodScope()


@dataclass(slots=True)
class NodeDevices:
    """One node with devices, by vendor. *row*: its place in the arrays. *usages*: made when they are asked for.

    A changed node gets a new record, since copies of the table share them.
    """

    name: str
    row: int
    devices: Mapping[str, tuple[Device, ...]]
    usages: NodeUsage | None = None


class _Numbers:
    """Gives numbers to texts. A number that no device uses any more is given to another text."""

    def __init__(self, first: int = 0) -> None:
        self.by_text: dict[str, int] = {}
        self._uses: dict[str, int] = {}
        self._free: list[int] = []
        self._next = first

    def copy(self) -> _Numbers:
        """Returns the same numbers, to go on separately."""
        made = _Numbers(self._next)
        made.by_text, made._uses, made._free = (
            dict(self.by_text),
            dict(self._uses),
            list(self._free),
        )
        return made

    def take(self, text: str) -> int:
        """Returns the number of *text*, which one more device uses."""
        if (number := self.by_text.get(text)) is None:
            if self._free:
                number = self._free.pop()
            else:
                number, self._next = self._next, self._next + 1
            self.by_text[text] = number
        self._uses[text] = self._uses.get(text, 0) + 1
        return number

    def release(self, text: str) -> None:
        """Records that one device less uses *text*."""
        self._uses[text] -= 1
        if not self._uses[text]:
            del self._uses[text]
            self._free.append(self.by_text.pop(text))


class Table:
    """Nodes, bookings, and the usage that follows from them.

    *versions*, *scores* and *priorities* are arrays with an item for each row; the latter has the lowest priority of
    the pods that hold devices there. *label_changes*: how often labels or rows have changed; it increases after that,
    so that whoever reads it first, without a lock, knows at least these labels.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, NodeDevices] = {}
        self.rows: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self.labels: dict[str, Mapping[str, str]] = {}
        self.label_changes = 0
        self.bookings: dict[str, Booking] = {}
        self.versions = numpy.zeros(0, dtype=numpy.int64)
        self.scores = numpy.zeros(0, dtype=numpy.float32)
        self.priorities = numpy.zeros(0, dtype=numpy.int64)
        self.changes = 0
        self._starts = numpy.zeros(0, dtype=numpy.intp)
        self._lengths = numpy.zeros(0, dtype=numpy.intp)
        self._facts = numpy.zeros((len(FIELDS), 0), dtype=numpy.int64)
        self._owners = numpy.zeros(0, dtype=numpy.intp)
        self._end = 0  # of the columns in use
        self._vendors, self._models, self._modes = _Numbers(1), _Numbers(), _Numbers()
        self._sizes: dict[str, DeviceSizes] | None = None
        self._claimable_sizes: frozenset[int] | None = None
        self._used: dict[
            str, dict[tuple[str, str], tuple[int, int, int]]
        ] = {}  # by node, then by vendor and uuid
        self._on_node: dict[str, dict[str, Booking]] = {}  # by node, then by pod uid
        # charges with partitions or co-tenants, by node, then by pod uid
        self._detailed: dict[str, dict[str, list[tuple[str, Charge]]]] = {}
        self._namespaces: dict[tuple[str, str], ScopedUsage] = {}
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

    def set_devices(self, node: str, vendor: str, devices: tuple[Device, ...]) -> bool:
        """Sets the devices of *vendor* on *node* (none: removes the vendor). Returns whether this is a change."""
        entry = self.nodes.get(node)
        earlier = entry.devices.get(vendor, ()) if entry is not None else ()
        if earlier == devices:
            return False
        row = entry.row if entry is not None else self._add_row(node)
        others = (
            {key: own for key, own in entry.devices.items() if key != vendor}
            if entry is not None
            else {}
        )
        self._number(devices, earlier)
        self.nodes[node] = NodeDevices(node, row, others | ({vendor: devices} if devices else {}))
        self._stale[node] = None
        if not self.nodes[node].devices:
            self.remove_node(node)
        return True

    def remove_node(self, node: str) -> None:
        """Removes *node*. Bookings on it stay until their pods are gone."""
        if (entry := self.nodes.pop(node, None)) is None:
            return
        for devices in entry.devices.values():
            self._number((), devices)
        del self.rows[node], self.names[entry.row]
        self._free_rows.append(entry.row)
        self._place(entry.row, 0)
        self._bump_version(entry.row)
        self._is_ranked = False

    def copy(self) -> Table:
        """Returns a table with the same content. What changes in one does not change in the other."""
        self.refresh()
        made = Table.__new__(Table)
        for name, value in vars(self).items():
            setattr(
                made,
                name,
                value.copy() if isinstance(value, (dict, list, numpy.ndarray, _Numbers)) else value,
            )
        return made

    def book(self, booking: Booking) -> None:
        """Adds *booking*, in place of an earlier one of the same pod."""
        earlier = self.bookings.get(booking.uid)
        if earlier == booking:
            return
        if earlier is not None:
            self._count(earlier, -1)
        self.bookings[booking.uid] = booking
        self._count(booking, 1)

    def unbook(self, uid: str) -> Booking | None:
        """Removes the booking of the pod *uid* and returns it."""
        booking = self.bookings.pop(uid, None)
        if booking is not None:
            self._count(booking, -1)
        return booking

    def refresh(self) -> None:
        """Updates scores and columns of changed nodes. Several changes of a node cost one update."""
        while self._stale:
            node, _ = self._stale.popitem()
            if (entry := self.nodes.get(node)) is not None:
                self._refresh_node(entry)

    def usages(self, node: str) -> NodeUsage:
        """Returns the devices of *node* and their usage, by vendor; empty if it has none."""
        self.refresh()
        entry = self.nodes.get(node)
        if entry is None:
            return {}
        if entry.usages is None:
            entry.usages = self.usages_of(node, entry.devices)
        return entry.usages

    def usages_of(self, node: str, devices: Mapping[str, Sequence[Device]]) -> NodeUsage:
        """Returns the usage that *devices* of *node* would have with what is booked on it."""
        used = self._used.get(node, {})
        usages = {
            vendor: tuple(
                [DeviceUsage(device, *used.get((vendor, device.uuid), _NOTHING)) for device in own]
            )
            for vendor, own in devices.items()
        }
        for charges in self._detailed.get(node, {}).values():
            for vendor, charge in charges:
                if vendor in usages:
                    usages[vendor] = tuple(
                        _with_details(usage, charge) if usage.device.uuid == charge.uuid else usage
                        for usage in usages[vendor]
                    )
        return usages

    def version_of(self, node: str) -> int:
        """Returns the version of *node*; -1 if it has no devices."""
        self.refresh()
        return int(self.versions[self.rows[node]]) if node in self.rows else -1

    def lowest_priority(self) -> int:
        """Returns the lowest priority of all pods that hold devices; above all priorities if there is none."""
        self.refresh()
        rows = numpy.fromiter(self.rows.values(), dtype=numpy.intp, count=len(self.rows))
        return int(self.priorities[rows].min(initial=NO_POD))

    def bookings_on(self, node: str) -> tuple[Booking, ...]:
        """Returns the bookings on *node*."""
        return tuple(self._on_node.get(node, {}).values())

    def namespace_usage(self, namespace: str, vendor: str) -> ScopedUsage:
        """Returns what the pods of *namespace* take of *vendor*'s devices, without zeros."""
        return self._namespaces.get((namespace, vendor), {})

    def usage_by_namespace(self) -> Mapping[tuple[str, str], ScopedUsage]:
        """Returns what pods take, by namespace and vendor, without zeros."""
        return self._namespaces

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
            # new texts and numbers lie beside each other in memory: each filter looks all of them up
            names = [name.encode().decode() for name in sorted(self.rows)]
            rows = numpy.array([self.rows[name] for name in names], dtype=numpy.intp)
            self._ranks[rows] = numpy.arange(len(rows))
            self.rows, self.names = dict(zip(names, rows.tolist())), dict(zip(rows.tolist(), names))
            self._is_ranked = True
        return self._ranks

    def columns(self, rows: Array) -> DeviceColumns:
        """Returns the columns of the devices of *rows*, whose owner is the position in *rows*."""
        lengths = self._lengths[rows]
        nodes = numpy.repeat(numpy.arange(len(rows)), lengths)
        offsets = numpy.arange(len(nodes)) - numpy.repeat(numpy.cumsum(lengths) - lengths, lengths)
        places = numpy.repeat(self._starts[rows], lengths) + offsets
        return self._columns(self._facts[:, places], nodes, len(rows))

    def all_columns(self) -> DeviceColumns:
        """Returns the columns of all devices, whose owner is the row. It costs no copy."""
        return self._columns(
            self._facts[:, : self._end], self._owners[: self._end], len(self.versions)
        )

    def _columns(self, facts: Array, owners: Array, nodes: int) -> DeviceColumns:
        return DeviceColumns(
            facts=facts,
            owner=owners,
            nodes=nodes,
            vendors=self._vendors.by_text,
            models=self._models.by_text,
            modes=self._modes.by_text,
        )

    def _add_row(self, node: str) -> int:
        row = self._free_rows.pop() if self._free_rows else len(self.nodes)
        self.rows[node], self.names[row] = row, node
        if row >= len(self.versions):
            height = max(MIN_CAPACITY, 2 * row)
            for name in ("versions", "scores", "priorities", "_ranks", "_starts", "_lengths"):
                setattr(self, name, _grown(getattr(self, name), height))
        self._is_ranked = False
        self.label_changes += 1
        return row

    def _number(self, devices: Sequence[Device], replaced: Sequence[Device]) -> None:
        """Gives numbers to the texts of *devices*, which take the place of *known*."""
        self._sizes = self._claimable_sizes = None
        for numbers, attribute in (
            (self._vendors, "vendor"),
            (self._models, "model"),
            (self._modes, "mode"),
        ):
            for device in devices:
                numbers.take(getattr(device, attribute))
            for device in replaced:
                numbers.release(getattr(device, attribute))

    def _count(self, booking: Booking, sign: int) -> None:
        """Adds *booking* to the sums (*sign* 1) or subtracts it (-1)."""
        used = dict(self._used.get(booking.node, {}))
        for vendor, charges in booking.charges:
            for charge in charges:
                slots, memory, cores = used.get((vendor, charge.uuid), _NOTHING)
                used[vendor, charge.uuid] = (
                    slots + sign * charge.slots,
                    memory + sign * charge.memory_mib,
                    cores + sign * charge.cores,
                )
                if used[vendor, charge.uuid] == _NOTHING:
                    del used[vendor, charge.uuid]
            scoped = dict(self.namespace_usage(booking.namespace, vendor))
            before = scoped.get(booking.scope, TotalCharge())
            _put(scoped, booking.scope, before.plus(total_charge(charges), sign))
            _put(self._namespaces, (booking.namespace, vendor), scoped)
        _put(self._used, booking.node, used)
        on_node = dict(self._on_node.get(booking.node, {}))
        if sign > 0:
            on_node[booking.uid] = booking
        else:
            del on_node[booking.uid]
        _put(self._on_node, booking.node, on_node)
        self._keep_details(booking, sign)
        self._stale[booking.node] = None

    def _keep_details(self, booking: Booking, sign: int) -> None:
        """Keeps the partitions and co-tenants of *booking* (*sign* 1) or drops them (-1)."""
        detailed = [
            (vendor, charge)
            for vendor, charges in booking.charges
            for charge in charges
            if charge.partitions or charge.co_tenants
        ]
        if detailed:
            others = {
                uid: own
                for uid, own in self._detailed.get(booking.node, {}).items()
                if uid != booking.uid
            }
            _put(
                self._detailed, booking.node, others | ({booking.uid: detailed} if sign > 0 else {})
            )

    def _refresh_node(self, entry: NodeDevices) -> None:
        """Writes the columns, the score and a new version of a node."""
        self.nodes[entry.name] = NodeDevices(entry.name, entry.row, entry.devices)
        used = self._used.get(entry.name, {})
        in_parts = {
            (vendor, charge.uuid)
            for charges in self._detailed.get(entry.name, {}).values()
            for vendor, charge in charges
            if charge.partitions
        }
        vendors, models, modes = self._vendors.by_text, self._models.by_text, self._modes.by_text
        facts = [
            (
                vendors[device.vendor],
                models[device.model],
                modes[device.mode],
                device.by_claims,
                device.healthy,
                device.cordoned,
                device.is_partitioned or (vendor, device.uuid) in in_parts,
                device.slots,
                slots,
                device.memory_mib,
                memory,
                device.cores,
                cores,
            )
            for vendor in sorted(entry.devices)
            for device in entry.devices[vendor]
            for slots, memory, cores in (used.get((vendor, device.uuid), _NOTHING),)
        ]
        start = self._place(entry.row, len(facts))
        columns = numpy.array(facts, dtype=numpy.int64).T
        self._facts[:, start : start + len(facts)] = columns
        self.scores[entry.row] = score_of_sums(*columns[AMOUNTS_FROM:].sum(axis=1).tolist())
        on_node = self._on_node.get(entry.name, {}).values()
        self.priorities[entry.row] = min([booking.priority for booking in on_node], default=NO_POD)
        self._bump_version(entry.row)

    def _place(self, row: int, length: int) -> int:
        """Finds room in the columns for *length* devices of the node of *row*. Returns where they start."""
        start, former = int(self._starts[row]), int(self._lengths[row])
        if length != former:
            self._facts[:, start : start + former] = 0
            self._lengths[row] = 0
            if length > former:
                if self._end + length > len(self._owners):
                    self._compact(length)
                start, self._end = self._end, self._end + length
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
        firsts = numpy.flatnonzero(numpy.diff(owners, prepend=-1))
        self._starts[owners[firsts]] = firsts

    def _bump_version(self, row: int) -> None:
        self.changes += 1
        self.versions[row] = self.changes


def _with_details(usage: DeviceUsage, charge: Charge) -> DeviceUsage:
    return replace(
        usage,
        partitions=usage.partitions + charge.partitions,
        co_tenants=usage.co_tenants + charge.co_tenants,
    )


def _grown(array: Array, length: int) -> Array:
    grown = numpy.zeros(length, dtype=array.dtype)
    grown[: len(array)] = array
    return grown


def _put(mapping: dict[Key, Value], key: Key, value: Value) -> None:
    """Sets an item, or removes it if the value is empty or a total of nothing."""
    if value and value != TotalCharge():
        mapping[key] = value
    else:
        mapping.pop(key, None)
