"""Devices and their usage on all nodes, updated with each change, so that a decision need not add anything up.

Each node has a row, and a version that increases whenever its devices or their usage change. Flat columns of the same
facts let a decision exclude most nodes that cannot fit at once. This module only records; it decides nothing. It is not
thread-safe: its owner holds a lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy
from numpy.typing import NDArray

from hami.model import Device, DeviceUsage
from hami.scheduling.score import node_score
from hami.scheduling.usage import Charge, total_charge

Array = NDArray[Any]

DEVICE = numpy.dtype([
    ("vendor", numpy.int8),  # as in Index.vendors
    ("model", numpy.int32),  # as in Index.models
    ("usable", bool),  # healthy and not cordoned (devices of vendors without a cordon rule are never cordoned)
    ("partitioned", bool),  # in MIG mode, where one device may serve a container several times
    ("slots_free", numpy.int64),
    ("memory_mib", numpy.int64),
    ("memory_free", numpy.int64),
    ("cores_free", numpy.int64),
])


# Of bookings, charges and records of pods there is one for each pod: structs are made in a fraction of the time that
# data classes take, and the garbage collector need not look at them, since they are in no cycle.
class Booking(msgspec.Struct, frozen=True, gc=False):
    """The charges of one pod on one node, by vendor."""

    uid: str
    namespace: str
    node: str
    charges: tuple[tuple[str, tuple[Charge, ...]], ...]


@dataclass(slots=True)
class NodeEntry:
    """One node: its devices and their usage, by vendor."""

    row: int
    devices: dict[str, tuple[Device, ...]] = field(default_factory=dict)
    usages: dict[str, tuple[DeviceUsage, ...]] = field(default_factory=dict)

    def all_usages(self) -> Iterator[DeviceUsage]:
        """Yields the node's devices, sorted by vendor, in the order of registration."""
        for vendor in sorted(self.usages):
            yield from self.usages[vendor]


class Index:
    """Nodes, bookings, and the usage that follows from them.

    ``versions``, ``scores`` and ``devices`` are arrays with a row for each node, the latter with a column for each
    device: it has the fields of DEVICE, all zero where there is no device.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, NodeEntry] = {}
        self.rows: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self.bookings: dict[str, Booking] = {}
        self.versions = numpy.zeros(0, dtype=numpy.int64)
        self.scores = numpy.zeros(0, dtype=numpy.float32)
        self.devices = numpy.zeros((0, 0), dtype=DEVICE)
        self.models: dict[str, int] = {}
        self.vendors: dict[str, int] = {}  # numbers from 1: 0 is no device
        self.changes = 0
        self._used: dict[str, dict[tuple[str, str], tuple[int, int, int]]] = {}  # by node, then by vendor and uuid
        self._on_node: dict[str, dict[str, Booking]] = {}  # by node, then by pod uid
        # charges with partitions or co-tenants, by node, then by pod uid
        self._detailed: dict[str, dict[str, list[tuple[str, Charge]]]] = {}
        self._namespaces: dict[tuple[str, str], tuple[int, int]] = {}
        self._free_rows: list[int] = []
        self._ranks = numpy.zeros(0, dtype=numpy.int64)
        self._ranked = True
        self._stale: dict[str, None] = {}  # not a set: popping from one that has shrunk is slow

    def set_devices(self, node: str, vendor: str, devices: tuple[Device, ...]) -> bool:
        """Sets the devices of *vendor* on *node* (none: removes the vendor). Returns whether this is a change."""
        entry = self.nodes.get(node)
        if (entry.devices.get(vendor, ()) if entry is not None else ()) == devices:
            return False
        entry = entry or self._add_node(node)
        if devices:
            entry.devices[vendor] = devices
        else:
            del entry.devices[vendor]
        if entry.devices:
            self._stale[node] = None
        else:
            self.remove_node(node)
        return True

    def remove_node(self, node: str) -> None:
        """Removes *node*. Bookings on it stay until their pods are gone."""
        if (entry := self.nodes.pop(node, None)) is None:
            return
        del self.rows[node], self.names[entry.row]
        self._free_rows.append(entry.row)
        self._write(entry.row, ())
        self._bump_version(entry.row)
        self._ranked = False

    def book(self, booking: Booking) -> None:
        """Adds *booking*, in place of an earlier one of the same pod."""
        known = self.bookings.get(booking.uid)
        if known == booking:
            return
        if known is not None:
            self._count(known, -1)
        self.bookings[booking.uid] = booking
        self._count(booking, 1)

    def unbook(self, uid: str) -> Booking | None:
        """Removes the booking of the pod *uid* and returns it."""
        booking = self.bookings.pop(uid, None)
        if booking is not None:
            self._count(booking, -1)
        return booking

    def refresh(self) -> None:
        """Updates usages, scores and columns of changed nodes. Several changes of a node cost one update."""
        while self._stale:
            node, _ = self._stale.popitem()
            if (entry := self.nodes.get(node)) is not None:
                self._refresh_node(node, entry)

    def usages(self, node: str) -> Mapping[str, Sequence[DeviceUsage]]:
        """Returns the devices of *node* and their usage, by vendor; empty if it has none."""
        self.refresh()
        entry = self.nodes.get(node)
        return entry.usages if entry is not None else {}

    def usages_without(self, node: str, ended: Collection[str]) -> Mapping[str, Sequence[DeviceUsage]]:
        """Returns the devices of *node* and their usage as if the pods *ended* (uids) held nothing. Changes nothing."""
        rest = Index()
        for vendor, devices in self.nodes[node].devices.items():
            rest.set_devices(node, vendor, devices)
        for booking in self.bookings_on(node):
            if booking.uid not in ended:
                rest.book(booking)
        return rest.usages(node)

    def bookings_on(self, node: str) -> tuple[Booking, ...]:
        """Returns the bookings on *node*."""
        return tuple(self._on_node.get(node, {}).values())

    def changed_since(self, change: int) -> list[str]:
        """Returns the nodes whose devices or usage have changed after the *change* of that number."""
        self.refresh()
        rows = numpy.flatnonzero(self.versions > change).tolist()
        return [self.names[row] for row in rows if row in self.names]

    def namespace_usage(self, namespace: str, vendor: str) -> tuple[int, int]:
        """Returns the MiB and percent of *vendor*'s devices that the pods of *namespace* take."""
        return self._namespaces.get((namespace, vendor), (0, 0))

    def usage_by_namespace(self) -> Mapping[tuple[str, str], tuple[int, int]]:
        """Returns MiB and percent by namespace and vendor, without zeros."""
        return self._namespaces

    def rank(self) -> Array:
        """Returns, for each row, the position of its node in the order of names."""
        if not self._ranked:
            for position, name in enumerate(sorted(self.rows)):
                self._ranks[self.rows[name]] = position
            self._ranked = True
        return self._ranks

    def _add_node(self, node: str) -> NodeEntry:
        row = self._free_rows.pop() if self._free_rows else len(self.nodes)
        entry = self.nodes[node] = NodeEntry(row)
        self.rows[node], self.names[row] = row, node
        self._reserve(row + 1, 0)
        self._ranked = False
        return entry

    def _count(self, booking: Booking, sign: int) -> None:
        """Adds *booking* to the sums (*sign* 1) or subtracts it (-1)."""
        used = self._used.setdefault(booking.node, {})
        on_node = self._on_node.setdefault(booking.node, {})
        if sign > 0:
            on_node[booking.uid] = booking
        else:
            del on_node[booking.uid]
        for vendor, charges in booking.charges:
            for charge in charges:
                slots, memory, cores = used.get((vendor, charge.uuid), _NOTHING)
                slots += sign * charge.slots
                memory += sign * charge.memory_mib
                cores += sign * charge.cores
                if slots or memory or cores:
                    used[vendor, charge.uuid] = slots, memory, cores
                else:
                    used.pop((vendor, charge.uuid), None)
            more_memory, more_cores = total_charge(charges)
            memory, cores = self.namespace_usage(booking.namespace, vendor)
            memory += sign * more_memory
            cores += sign * more_cores
            if memory or cores:
                self._namespaces[booking.namespace, vendor] = memory, cores
            else:
                self._namespaces.pop((booking.namespace, vendor), None)
        if not used:
            del self._used[booking.node]
        if not on_node:
            del self._on_node[booking.node]
        self._keep_details(booking, sign)
        self._stale[booking.node] = None

    def _keep_details(self, booking: Booking, sign: int) -> None:
        """Keeps the partitions and co-tenants of *booking* (*sign* 1) or drops them (-1)."""
        detailed = [(vendor, charge) for vendor, charges in booking.charges for charge in charges
                    if charge.partitions or charge.co_tenants]
        if detailed and sign > 0:
            self._detailed.setdefault(booking.node, {})[booking.uid] = detailed
        elif detailed:
            pods = self._detailed[booking.node]
            del pods[booking.uid]
            if not pods:
                del self._detailed[booking.node]

    def _refresh_node(self, node: str, entry: NodeEntry) -> None:
        used = self._used.get(node, {})
        entry.usages = {
            vendor: tuple(DeviceUsage(device, *used.get((vendor, device.uuid), _NOTHING)) for device in devices)
            for vendor, devices in entry.devices.items()}
        for charges in self._detailed.get(node, {}).values():
            for vendor, charge in charges:
                if vendor in entry.usages:
                    entry.usages[vendor] = tuple(
                        _with_details(usage, charge) if usage.device.uuid == charge.uuid else usage
                        for usage in entry.usages[vendor])
        usages = tuple(entry.all_usages())
        self._reserve(entry.row + 1, len(usages))
        self._write(entry.row, [self._facts(usage) for usage in usages])
        self.scores[entry.row] = node_score(usages)
        self._bump_version(entry.row)

    def _reserve(self, rows: int, width: int) -> None:
        """Grows the arrays to hold *rows* nodes of *width* devices."""
        have_rows, have_width = self.devices.shape
        if rows > have_rows or width > have_width:
            height = max(64, 2 * have_rows, rows) if rows > have_rows else have_rows
            self.versions = _grown(self.versions, (height,))
            self.scores = _grown(self.scores, (height,))
            self._ranks = _grown(self._ranks, (height,))
            self.devices = _grown(self.devices, (height, max(have_width, width)))

    def _write(self, row: int, devices: Sequence[tuple[int, ...]]) -> None:
        self.devices[row, len(devices):] = 0
        if devices:
            self.devices[row, :len(devices)] = devices

    def _facts(self, usage: DeviceUsage) -> tuple[int, ...]:
        """Returns the fields of DEVICE."""
        device = usage.device
        return (self.vendors.setdefault(device.vendor, len(self.vendors) + 1),
                self.models.setdefault(device.model, len(self.models)), device.healthy and not device.cordoned,
                device.is_partitioned, device.slots - usage.slots_used, device.memory_mib, usage.memory_free_mib,
                device.cores - usage.cores_used)

    def _bump_version(self, row: int) -> None:
        self.changes += 1
        self.versions[row] = self.changes


_NOTHING = (0, 0, 0)


def _with_details(usage: DeviceUsage, charge: Charge) -> DeviceUsage:
    return replace(usage, partitions=usage.partitions + charge.partitions,
                   co_tenants=usage.co_tenants + charge.co_tenants)


def _grown(array: Array, shape: tuple[int, ...]) -> Array:
    grown = numpy.zeros(shape, dtype=array.dtype)
    grown[tuple(slice(length) for length in array.shape)] = array
    return grown
