"""The room of each node for the usual pods, kept current with each change, and what placements would take of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy
from numpy.typing import NDArray

from hami.scheduling.node_resources import NOTHING, NodeResources
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.room import UsualPods, device_room, f32, node_room, room_taken, sums_by_node
from hami.scheduling.usual_pods import UsualPod, usual_pod
from hami.state.table import Table, grown
from hami.state.workload import Workload

Array = NDArray[Any]


PRECISION = 1e-5
"""Differences of losses that are smaller do not count."""
BLOCK = 512  # rows that are computed at once
MAX_LOSSES = 64 << 20  # bytes of the losses that are remembered


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
        self._pods = UsualPods.of({}, {}, {})
        self._numbers: tuple[dict[str, int], dict[str, int]] | None = None  # in the columns
        self._seen = numpy.zeros(0, dtype=numpy.int64)  # versions of the table
        self.versions = numpy.zeros(0, dtype=numpy.int64)
        """Of each row: how often its room has changed."""
        self.milli_cpu = numpy.zeros(0, dtype=f32)
        self.devices = numpy.zeros((0, 0), dtype=f32)
        self.room = numpy.zeros((0, 0), dtype=f32)
        self.total = numpy.zeros(0)
        self._losses: OrderedDict[tuple[PodRequest, UsualPod], _Losses] = OrderedDict()

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
        self._numbers = None

    def usual(self) -> Usual:
        """Returns the usual pods as they are known now."""
        return Usual(self._kinds, self._turnover, self._is_fixed)

    def losses(self, request: PodRequest, resources: NodeResources, rows: Array) -> Array | None:
        """Returns what a pod that makes *request* and requests *resources* would cost on each of *rows*; ``None`` if
        nothing is known about that."""
        taken = self._taken(request, resources, rows)
        if taken is None:
            return None
        if 2 * len(rows) > len(taken):
            return self._value(taken)[rows]
        return self._value(taken[rows])

    def losses_beside(
        self, others: Rooms, request: PodRequest, resources: NodeResources, rows: Array
    ) -> Array | None:
        """Returns what such a pod would cost on each of the *rows* of *others*, if these nodes were in this table."""
        self.refresh()
        taken = others._taken(request, resources, rows)
        return None if taken is None else self._value(taken[rows])

    def _taken(self, request: PodRequest, resources: NodeResources, rows: Array) -> Array | None:
        """Returns the room that such a pod takes of each row from each kind of usual pods; only *rows* are current."""
        if not self._kinds:
            return None
        kind = usual_pod(request, resources)
        if kind is None:
            return None
        self.refresh()
        return self._losses_of(request, kind).of(rows[rows >= 0])

    def _value(self, taken: Array) -> Array:
        losses = taken @ self._pods.weights(self.total, self._turnover)
        # rows with equal devices must be equal, however many are multiplied at once
        return numpy.asarray(numpy.rint(losses / PRECISION))

    def refresh(self) -> None:
        """Brings the rows that have changed up to date."""
        table = self._table
        table.refresh()
        vendors, models = table.columns.numbers()
        if (vendors, models) != self._numbers:
            self._start(vendors, models)
        self._resize()
        changed = self._seen != table.versions
        while table.changed_left:
            name, _ = table.changed_left.popitem()
            row = table.rows.get(name)
            if row is not None:
                changed[row] = True
        for rows in blocks(numpy.flatnonzero(changed)):
            self._update(rows)

    def _losses_of(self, request: PodRequest, kind: UsualPod) -> _Losses:
        """Returns what is remembered for these pods, the most recent ones."""
        key = request, kind
        if key in self._losses:
            self._losses.move_to_end(key)
            return self._losses[key]
        found = self._losses[key] = _Losses(self, self._table, request, kind)
        while len(self._losses) > max(1, MAX_LOSSES // max(1, self.room.nbytes)):
            self._losses.popitem(last=False)
        return found

    def _start(self, vendors: dict[str, int], models: dict[str, int]) -> None:
        """Begins anew with the usual pods as they are, in columns with these numbers."""
        self._numbers = dict(vendors), dict(models)
        self._pods = UsualPods.of(self._kinds, vendors, models)
        self._losses.clear()
        self._seen = numpy.zeros(0, dtype=numpy.int64)
        self.devices = self.room = numpy.zeros((0, len(self._pods)), dtype=f32)
        self.total = numpy.zeros(len(self._pods))

    def _resize(self) -> None:
        rows = len(self._table.versions)
        if len(self._seen) == rows:
            return
        self._seen = grown(self._seen, rows, fill=-1)
        self.versions = grown(self.versions, rows)
        self.milli_cpu = grown(self.milli_cpu, rows)
        self.devices = grown(self.devices, rows)
        self.room = grown(self.room, rows)

    def _update(self, rows: Array) -> None:
        table, pods = self._table, self._pods
        devices = table.columns.of(rows)
        of_devices = device_room(devices.facts, pods)
        sums = numpy.zeros((len(rows), len(pods)), dtype=f32)
        nodes, of_nodes = sums_by_node(of_devices, devices.owner)
        sums[nodes] = of_nodes
        for row in rows.tolist():
            self.milli_cpu[row] = free_cpu(table, table.names.get(row))
        room = node_room(sums, self.milli_cpu[rows], pods)
        self.total += room.sum(axis=0, dtype=float) - self.room[rows].sum(axis=0, dtype=float)
        self.devices[rows], self.room[rows] = sums, room
        self.versions[rows] += 1
        self._seen[rows] = table.versions[rows]


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


class _Losses:
    """Room of each row that pods of one *kind* take which make *request*."""

    def __init__(self, rooms: Rooms, table: Table, request: PodRequest, kind: UsualPod) -> None:
        self._rooms = rooms
        self._table = table
        self._request = request
        self._kind = kind
        self._taken = numpy.zeros((0, len(rooms.pods)), dtype=f32)
        self._seen = numpy.zeros(0, dtype=numpy.int64)

    def of(self, rows: Array) -> Array:
        """Returns what is taken of each row from each kind of usual pods; only *rows* are current."""
        rooms = self._rooms
        count = len(rooms.versions)
        if len(self._seen) != count:
            self._seen = grown(self._seen, count, fill=-1)
            self._taken = grown(self._taken, count)
        for changed in blocks(rows[self._seen[rows] != rooms.versions[rows]]):
            self._taken[changed] = room_taken(
                self._table.columns.of(changed),
                self._request,
                self._kind,
                rooms.devices[changed],
                rooms.room[changed],
                rooms.milli_cpu[changed],
                rooms.pods,
            )
            self._seen[changed] = rooms.versions[changed]
        return self._taken
