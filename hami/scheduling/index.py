"""What is there and what is taken, kept up to date change by change, so that a decision need not add it all up.

Each node has a row and a version that rises with every change of its devices or of what is taken of them.
Flat columns of the same facts let a decision drop at once most nodes that cannot fit. This module keeps books;
it decides nothing, and it is not safe for several threads: its owner holds the lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy
from numpy.typing import NDArray

from hami.model import Device, DeviceUsage
from hami.scheduling.score import node_score
from hami.scheduling.usage import Charge

__all__ = ["Booking", "Columns", "Index", "NodeEntry"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Booking:
    """What one pod takes on one node: charges by vendor."""

    uid: str
    namespace: str
    node: str
    charges: tuple[tuple[str, tuple[Charge, ...]], ...]


@dataclass(slots=True)
class NodeEntry:
    """One node: its devices by vendor, with what is taken of each."""

    row: int
    inventory: dict[str, tuple[Device, ...]] = field(default_factory=dict)
    views: dict[str, tuple[DeviceUsage, ...]] = field(default_factory=dict)

    def all_views(self) -> Iterator[DeviceUsage]:
        """The node's devices, vendor by vendor, as registered."""
        for vendor in sorted(self.views):
            yield from self.views[vendor]


class Columns:
    """Facts of all nodes side by side: a row a node, in the 2-d arrays a column a device.

    Places without a device hold zeros and vendor -1. ``version`` and ``score`` have one value a row. ``usable``:
    healthy and not cordoned (only vendors that heed cordons mark devices so); ``cut``: in MIG mode, where one device
    may serve a container several times.
    """

    DEVICE = ("vendor", "usable", "cut", "slots_free", "memory_mib", "memory_free", "cores_free", "model")

    def __init__(self) -> None:
        self.version = numpy.zeros(0, dtype=numpy.int64)
        self.score = numpy.zeros(0, dtype=numpy.float32)
        self.rank = numpy.zeros(0, dtype=numpy.int64)
        self.vendor = numpy.full((0, 0), -1, dtype=numpy.int8)
        self.usable = numpy.zeros((0, 0), dtype=bool)
        self.cut = numpy.zeros((0, 0), dtype=bool)
        self.slots_free = numpy.zeros((0, 0), dtype=numpy.int64)
        self.memory_mib = numpy.zeros((0, 0), dtype=numpy.int64)
        self.memory_free = numpy.zeros((0, 0), dtype=numpy.int64)
        self.cores_free = numpy.zeros((0, 0), dtype=numpy.int64)
        self.model = numpy.zeros((0, 0), dtype=numpy.int32)

    def reserve(self, rows: int, width: int) -> None:
        """Make room for *rows* nodes of *width* devices; what is there stays."""
        have_rows, have_width = self.vendor.shape
        if rows <= have_rows and width <= have_width:
            return
        shape = (max(64, 2 * have_rows, rows) if rows > have_rows else have_rows, max(have_width, width))
        for name in ("version", "score", "rank"):
            setattr(self, name, _grown(getattr(self, name), shape[:1]))
        for name in self.DEVICE:
            setattr(self, name, _grown(getattr(self, name), shape, fill=-1 if name == "vendor" else 0))

    def write(self, row: int, views: Sequence[DeviceUsage], vendors: Sequence[int], models: Sequence[int]) -> None:
        """Set the row's devices to *views*."""
        width = len(views)
        for name in self.DEVICE:
            getattr(self, name)[row, width:] = -1 if name == "vendor" else 0
        if not views:
            return
        devices = [view.device for view in views]
        self.vendor[row, :width] = vendors
        self.model[row, :width] = models
        self.usable[row, :width] = [d.healthy and not d.cordoned for d in devices]
        self.cut[row, :width] = [d.is_cut for d in devices]
        self.slots_free[row, :width] = [v.device.slots - v.slots_used for v in views]
        self.memory_mib[row, :width] = [d.memory_mib for d in devices]
        self.memory_free[row, :width] = [v.device.memory_mib - v.memory_used_mib for v in views]
        self.cores_free[row, :width] = [v.device.cores - v.cores_used for v in views]


class Index:
    """Nodes, bookings, and what follows from them."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeEntry] = {}
        self.rows: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self.bookings: dict[str, Booking] = {}
        self.columns = Columns()
        self.models: dict[str, int] = {}
        self.vendors: dict[str, int] = {}
        self.changes = 0
        self._taken: dict[str, dict[tuple[str, str], list[int]]] = {}  # node, then vendor and uuid: amounts
        self._held: dict[str, dict[str, list[tuple[str, Charge]]]] = {}  # node, then pod: charges with partitions or co_tenants
        self._namespaces: dict[tuple[str, str], list[int]] = {}
        self._free_rows: list[int] = []
        self._ranked = True
        self._unsettled: dict[str, None] = {}  # a set would search for its last members once many have left it

    def set_inventory(self, node: str, vendor: str, devices: tuple[Device, ...]) -> bool:
        """*node* has these devices of *vendor* (none: it has that vendor no more); whether that is news."""
        entry = self.nodes.get(node)
        if (entry.inventory.get(vendor, ()) if entry is not None else ()) == devices:
            return False
        entry = entry or self._add_node(node)
        if devices:
            entry.inventory[vendor] = devices
        else:
            del entry.inventory[vendor]
        if entry.inventory:
            self._unsettled[node] = None
        else:
            self._remove_node(node, entry)
        return True

    def drop_node(self, node: str) -> None:
        """*node* is gone; what pods hold there is remembered until they are gone too."""
        if (entry := self.nodes.get(node)) is not None:
            self._remove_node(node, entry)

    def book(self, booking: Booking) -> None:
        """Count *booking*, in place of an earlier one of the same pod."""
        known = self.bookings.get(booking.uid)
        if known == booking:
            return
        if known is not None:
            self._count(known, -1)
        self.bookings[booking.uid] = booking
        self._count(booking, 1)

    def unbook(self, uid: str) -> Booking | None:
        """Count the pod's booking no more; the booking that there was."""
        booking = self.bookings.pop(uid, None)
        if booking is not None:
            self._count(booking, -1)
        return booking

    def settle(self) -> None:
        """Carry changes over into views, scores and columns; a burst of changes to a node is worked out once."""
        while self._unsettled:
            node, _ = self._unsettled.popitem()
            if (entry := self.nodes.get(node)) is not None:
                self._refresh(node, entry)

    def views(self, node: str) -> Mapping[str, Sequence[DeviceUsage]]:
        """The devices of *node* by vendor with what is taken of each; empty when it has none."""
        self.settle()
        entry = self.nodes.get(node)
        return entry.views if entry is not None else {}

    def used_in(self, namespace: str, vendor: str) -> tuple[int, int]:
        """MiB and percent that the pods of *namespace* take of *vendor*'s devices."""
        used = self._namespaces.get((namespace, vendor), (0, 0))
        return used[0], used[1]

    def namespaces(self) -> Mapping[tuple[str, str], Sequence[int]]:
        """MiB and percent by namespace and vendor, where any are taken."""
        return self._namespaces

    def rank(self) -> Array:
        """For each row the place of its node in the order of names."""
        if not self._ranked:
            for place, name in enumerate(sorted(self.rows)):
                self.columns.rank[self.rows[name]] = place
            self._ranked = True
        return self.columns.rank

    def _add_node(self, node: str) -> NodeEntry:
        row = self._free_rows.pop() if self._free_rows else len(self.nodes)
        entry = self.nodes[node] = NodeEntry(row)
        self.rows[node], self.names[row] = row, node
        self.columns.reserve(row + 1, 0)
        self._ranked = False
        return entry

    def _remove_node(self, node: str, entry: NodeEntry) -> None:
        del self.nodes[node], self.rows[node], self.names[entry.row]
        self._free_rows.append(entry.row)
        self.columns.write(entry.row, (), (), ())
        self._touch(entry.row)
        self._ranked = False

    def _count(self, booking: Booking, sign: int) -> None:
        taken = self._taken.setdefault(booking.node, {})
        for vendor, charges in booking.charges:
            for charge in charges:
                key = vendor, charge.uuid
                amounts = taken.setdefault(key, [0, 0, 0])
                _add(amounts, (charge.slots, charge.memory_mib, charge.cores), sign)
                if not any(amounts):
                    del taken[key]
            spent = self._namespaces.setdefault((booking.namespace, vendor), [0, 0])
            _add(spent, (sum(c.memory_mib for c in charges), sum(c.cores for c in charges)), sign)
            if not any(spent):
                del self._namespaces[booking.namespace, vendor]
        if not taken:
            del self._taken[booking.node]
        self._hold(booking, sign)
        self._unsettled[booking.node] = None

    def _hold(self, booking: Booking, sign: int) -> None:
        """Remember the partitions and co_tenants in *booking*, or forget them."""
        marked = [(vendor, charge) for vendor, charges in booking.charges for charge in charges
                  if charge.partitions or charge.co_tenants]
        if marked and sign > 0:
            self._held.setdefault(booking.node, {})[booking.uid] = marked
        elif marked:
            held = self._held[booking.node]
            del held[booking.uid]
            if not held:
                del self._held[booking.node]

    def _refresh(self, node: str, entry: NodeEntry) -> None:
        """Work out the node's views, score and columns anew."""
        taken = self._taken.get(node, {})
        entry.views = {vendor: tuple(DeviceUsage(device, *taken.get((vendor, device.uuid), _NOTHING)) for device in devices)
                       for vendor, devices in entry.inventory.items()}
        for held in self._held.get(node, {}).values():
            for vendor, charge in held:
                if vendor in entry.views:
                    entry.views[vendor] = tuple(
                        replace(view, partitions=view.partitions + charge.partitions, co_tenants=view.co_tenants + charge.co_tenants)
                        if view.device.uuid == charge.uuid else view for view in entry.views[vendor])
        views = tuple(entry.all_views())
        self.columns.reserve(entry.row + 1, len(views))
        self.columns.write(entry.row, views, [self._number(self.vendors, v.device.vendor) for v in views],
                           [self._number(self.models, v.device.model) for v in views])
        self.columns.score[entry.row] = node_score(views)
        self._touch(entry.row)

    def _touch(self, row: int) -> None:
        self.changes += 1
        self.columns.version[row] = self.changes

    @staticmethod
    def _number(numbers: dict[str, int], name: str) -> int:
        return numbers.setdefault(name, len(numbers))


_NOTHING = (0, 0, 0)


def _add(amounts: list[int], more: Iterable[int], sign: int) -> None:
    for place, amount in enumerate(more):
        amounts[place] += sign * amount


def _grown(array: Array, shape: tuple[int, ...], fill: int = 0) -> Array:
    grown = numpy.full(shape, fill, dtype=array.dtype)
    grown[tuple(slice(length) for length in array.shape)] = array
    return grown
