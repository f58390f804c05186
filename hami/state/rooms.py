"""The room of each node for the usual pods, kept current with each change, and what placements would take of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy
from numpy.typing import NDArray

from hami.scheduling.columns import DeviceColumns, grown
from hami.scheduling.node_resources import NOTHING, NodeResources
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.room import UsualPods, f32, node_room, sums_by_node
from hami.scheduling.usual_pods import UsualPod, usual_pod
from hami.state.device_states import DevicesTaken, DeviceStates
from hami.state.distinct import DistinctRows
from hami.state.row_lists import RowLists
from hami.state.table import Table
from hami.state.workload import Workload

Array = NDArray[Any]


PRECISION = 1e-5
"""Differences of losses that are smaller do not count."""
BLOCK = 512  # rows that are computed at once
MAX_STATES = 16384  # of devices that are remembered, beside twice as many as there are devices
MAX_TAKEN = 64 << 20  # bytes of the room that pods take, as far as it is remembered
MAX_PODS = 256  # for which that is remembered
MAX_DISTINCT = 64  # rows of these for one pod, beside as many as there are nodes
FEW = 8  # rows that are computed whether they are asked for or not


@dataclass(frozen=True, slots=True)
class Usual:
    """The usual pods, each with how often it comes. *turnover*: how many of them end for one that comes, at most 1.
    *is_fixed*: they are not learnt."""

    kinds: Mapping[UsualPod, float] = field(default_factory=dict)
    turnover: float = 1.0
    is_fixed: bool = False


class Rooms:
    """The room of the rows of *table* for the usual pods, by devices, and by their CPU.

    *usual*: the pods to begin with, and how many of them end for one that comes. Without any, nothing is known.
    """

    def __init__(self, table: Table, usual: Usual = Usual()) -> None:
        self._table = table
        self._kinds = usual.kinds
        self._turnover = usual.turnover
        self._is_fixed = usual.is_fixed
        self._seen = numpy.zeros(0, dtype=numpy.int64)  # versions of the table
        self.versions = numpy.zeros(0, dtype=numpy.int64)
        """Of each row: how often its room has changed."""
        self.milli_cpu = numpy.zeros(0, dtype=f32)
        self._start()

    def _start(self) -> None:
        """Begins anew with the usual pods as they are, and with the numbers of the columns."""
        devices = self._table.columns.of(numpy.zeros(0, dtype=numpy.intp))
        self._numbers = numbers_in(devices)
        self._pods = UsualPods.of(self._kinds, devices)
        self.states = DeviceStates(devices, self._pods)
        self.devices_of = RowLists()
        """The states of the devices of each row."""
        self._seen = numpy.zeros(0, dtype=numpy.int64)
        self.devices = numpy.zeros((0, len(self._pods.needs)), dtype=f32)
        self.room = numpy.zeros((0, len(self._pods)), dtype=f32)
        self.total = numpy.zeros(len(self._pods))
        self._taken_by = RecentLosses(self)

    @property
    def pods(self) -> UsualPods:
        """The usual pods."""
        return self._pods

    def follow(self, workload: Workload) -> None:
        """Takes over what *workload* has counted: the turnover always, the usual pods when an estimate is due, unless
        they are fixed."""
        self._turnover = workload.turnover
        if workload.is_due() and not self._is_fixed:
            self.learn(workload.estimate(self._kinds))

    def learn(self, kinds: Mapping[UsualPod, float]) -> None:
        """Sets the usual pods, each with how often it comes. Of the same pods, what is known stays."""
        if kinds.keys() == self._kinds.keys():
            self._kinds = {kind: kinds[kind] for kind in self._kinds}
            self._pods = self._pods.with_shares(self._kinds.values())
            return
        self._kinds = kinds
        self._start()

    def usual(self) -> Usual:
        """Returns the usual pods as they are known now."""
        return Usual(self._kinds, self._turnover, self._is_fixed)

    def losses(self, request: PodRequest, resources: NodeResources, rows: Array) -> Array | None:
        """Returns what a pod that makes *request* and requests *resources* would cost on each of *rows*; ``None`` if
        nothing is known about that."""
        taken = self._taken(request, resources, rows)
        return None if taken is None else self._value(taken, rows)

    def losses_beside(
        self, others: Rooms, request: PodRequest, resources: NodeResources, rows: Array
    ) -> Array | None:
        """Returns what such a pod would cost on each of the *rows* of *others*, if these nodes were in this table."""
        self.refresh()
        taken = others._taken(request, resources, rows)
        return None if taken is None else self._value(taken, rows)

    def _taken(
        self, request: PodRequest, resources: NodeResources, rows: Array
    ) -> RoomLosses | None:
        """Returns the room that such a pod takes of each row from each kind of usual pods; only *rows* are current."""
        if not self._kinds:
            return None
        self.refresh()
        taken = self._taken_by.pods(request, resources.milli_cpu)
        if taken is not None:
            taken.update(rows)
        return taken

    def _value(self, taken: RoomLosses, rows: Array) -> Array:
        """Returns the value of what is *taken* of each of *rows*."""
        losses = taken.distinct @ self._pods.weights(self.total, self._turnover)
        losses /= PRECISION
        return numpy.asarray(numpy.rint(losses, out=losses)[taken.of_row[rows]])

    def refresh(self) -> None:
        """Brings the rows that have changed up to date."""
        table = self._table
        table.refresh()
        devices = table.columns.all()
        too_many = MAX_STATES + 2 * len(devices.owner)
        if numbers_in(devices) != self._numbers or len(self.states) > too_many:
            self._start()
        self._resize()
        changed = self._seen != table.versions
        while table.changed_left:
            name, _ = table.changed_left.popitem()
            row = table.rows.get(name)
            if row is not None:
                changed[row] = True
        for rows in blocks(numpy.flatnonzero(changed)):
            self._update(rows)

    def _resize(self) -> None:
        rows = len(self._table.versions)
        if len(self._seen) == rows:
            return
        self._seen = grown(self._seen, rows, fill=-1)
        self.versions = grown(self.versions, rows)
        self.milli_cpu = grown(self.milli_cpu, rows)
        self.devices_of.grow(rows)
        self.devices = grown(self.devices, rows)
        self.room = grown(self.room, rows)

    def _update(self, rows: Array) -> None:
        table = self._table
        sums = numpy.zeros((len(rows), len(self._pods.needs)), dtype=f32)
        if len(rows) <= FEW:
            for place, row in enumerate(rows.tolist()):
                states = self.states.of(table.columns.facts_of(row))
                self.devices_of.put(row, states)
                numpy.add.reduce(self.states.room[states], out=sums[place])
        else:
            self._update_states(rows, sums)
        for row in rows.tolist():
            self.milli_cpu[row] = free_cpu(table, table.names.get(row))
        room = node_room(sums, self.milli_cpu[rows], self._pods)
        self.total += (room - self.room[rows]).sum(axis=0, dtype=float)
        self.devices[rows], self.room[rows] = sums, room
        self.versions[rows] += 1
        self._seen[rows] = table.versions[rows]

    def _update_states(self, rows: Array, sums: Array) -> None:
        """Sets the states of the devices of *rows*, and the *sums* of their room."""
        devices = self._table.columns.of(rows)
        states = self.states.of(devices.facts)
        if len(states):
            nodes, of_nodes = sums_by_node(self.states.room[states], devices.owner)
            sums[nodes] = of_nodes
        ends = numpy.searchsorted(devices.owner, numpy.arange(len(rows)), side="right").tolist()
        for row, begin, end in zip(rows.tolist(), [0, *ends], ends):
            self.devices_of.put(row, states[begin:end])


def numbers_in(devices: DeviceColumns) -> tuple[dict[str, int], ...]:
    """Returns a copy of the numbers that texts have in the columns of *devices*."""
    return dict(devices.vendors), dict(devices.models), dict(devices.modes)


def free_cpu(table: Table, node: str | None) -> int:
    """Returns the CPU that pods leave of *node*, 0 if it is not known."""
    if node is None:
        return 0
    booked = 0
    for booking in table.bookings.on(node):
        booked += booking.resources.milli_cpu
    return table.left.get(node, NOTHING).milli_cpu - booked


def blocks(rows: Array) -> Iterator[Array]:
    """Yields *rows* in parts whose arrays fit into the caches of a processor."""
    for start in range(0, len(rows), BLOCK):
        yield rows[start : start + BLOCK]


class RecentLosses:
    """Room of *rooms* that pods take, for those that came last."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._of: dict[tuple[PodRequest, int], RoomLosses] = {}
        self._uses = 0

    def pods(self, request: PodRequest, milli_cpu: int) -> RoomLosses | None:
        """Returns the room that pods take which make *request* and request *milli_cpu*; ``None`` if room says nothing
        about them."""
        key = request, milli_cpu
        taken = self._of.get(key)
        if taken is None:
            kind = usual_pod(request, NodeResources(milli_cpu))
            if kind is None:
                return None
            self._make_room()
            taken = self._of[key] = RoomLosses(self._rooms, request, kind)
        self._uses += 1
        taken.used = self._uses
        return taken

    def _make_room(self) -> None:
        """Forgets what has not been used for the longest time, until there is room for more."""
        size = sum([taken.size for taken in self._of.values()])
        for key in sorted(self._of, key=lambda key: self._of[key].used):
            if size <= MAX_TAKEN and len(self._of) < MAX_PODS:
                return
            size -= self._of.pop(key).size


class RoomLosses:
    """Room of each row that pods of one *kind* take which make *request*. Of many rows, they take the same."""

    def __init__(self, rooms: Rooms, request: PodRequest, kind: UsualPod) -> None:
        self._rooms = rooms
        self._kind = kind
        self._devices = DevicesTaken(rooms.states, request)
        self.size = 0
        """The bytes of memory that this takes, about."""
        self.used = 0
        """When this was used last; what is used later has a greater number."""
        self._start(0)

    def _start(self, rows: int) -> None:
        self._distinct = DistinctRows(len(self._rooms.pods))
        self.of_row = numpy.zeros(rows, dtype=numpy.intp)
        """Of each row: which of those that are distinct is taken of it."""
        is_empty = self._rooms.devices_of.lengths[:rows] == 0  # nothing is taken there
        self._seen = numpy.where(is_empty, self._rooms.versions[:rows], -1)

    @property
    def distinct(self) -> Array:
        """Room that is taken from each kind of usual pods (columns), each row once."""
        return self._distinct.rows

    def update(self, rows: Array) -> None:
        """Brings *rows* up to date."""
        versions = self._rooms.versions
        if len(self._seen) != len(versions) or len(self._distinct) > len(versions) + MAX_DISTINCT:
            self._start(len(versions))
        has_changed = self._seen != versions
        changed = numpy.flatnonzero(has_changed)
        if len(changed) > FEW:
            changed = rows[rows >= 0]
            changed = changed[has_changed[changed]]
        for block in blocks(changed):
            self.of_row[block] = self._distinct.numbers(self._taken_of(block))
            self._seen[block] = versions[block]
        if len(changed) > FEW:
            arrays = self.of_row.nbytes + self._seen.nbytes
            self.size = self._distinct.nbytes + self._devices.nbytes + arrays

    def _taken_of(self, rows: Array) -> Array:
        rooms = self._rooms
        nodes, less = self._devices.room(*rooms.devices_of.of(rows))
        after = rooms.devices[rows]
        after[nodes] -= less
        milli_cpu = rooms.milli_cpu[rows] - self._kind.milli_cpu
        return numpy.asarray(rooms.room[rows] - node_room(after, milli_cpu, rooms.pods))
