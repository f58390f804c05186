"""The refused nodes that are closest to serving a request, and why each does not.

Columns give the order of all nodes; those that they may be wrong about are evaluated, if they are near.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy
from numpy.typing import NDArray

from hami.scheduling import columns
from hami.scheduling.columns import grown
from hami.scheduling.node_order import lowest_first
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.refusal import Distance, NodeRefusal, Refusal, distance_of, explain_node
from hami.state.table import Table

Array = NDArray[Any]

MAX_EXACT = 64  # nodes that are evaluated for their distance, if columns do not tell it exactly
MAX_EXPLAINED = 8  # refused nodes whose explanations are remembered for a request: those that are named are three
MAX_EXPLAINED_DEVICES = 16  # of such a node
EXCLUDED_BITS = 16  # of the number of devices that rules exclude, over all requests of a pod


class ClosestNodes:
    """The distances of the nodes of *table* from serving *request*, without budgets. They are remembered until the
    nodes change."""

    def __init__(self, table: Table, request: PodRequest) -> None:
        self._table = table
        self._request = request
        # how far a node is, as Distance: devices that are absent in the high bits, and excluded in the low ones
        self._devices_missing = numpy.zeros(0, dtype=numpy.int64)
        self._amounts_missing = numpy.zeros(0)
        self._is_open = numpy.zeros(0, dtype=bool)  # columns do not tell all reasons on the node
        self._version = numpy.zeros(0, dtype=numpy.int64)
        # with the version of the node
        self._explained: dict[int, tuple[int, NodeRefusal | None]] = {}

    def nearest_first(self, rows: Array, count: int | None) -> list[int]:
        """Returns the *count* of *rows* that are nearest to serving the request, nearest first; equal ones by name."""
        self._find_distances(rows)
        ranks, is_open = self._table.rank()[rows], self._is_open[rows]
        places = lowest_first((self._devices_missing[rows], self._amounts_missing[rows]), ranks)
        if not is_open.any():
            return [int(rows[place]) for place in itertools.islice(places, count)]
        # the order that columns give says which nodes are looked at; those that it may be wrong about are evaluated
        if count is None:
            looked_at = set(places)
        else:
            looked_at = set(itertools.islice(places, max(count, MAX_EXACT)))
            looked_at.update(self._places_with_selected_devices(rows))
        distances = []
        for place in looked_at:
            row = int(rows[place])
            distances.append((self._distance_of(row), int(ranks[place]), row))
        return [row for _, _, row in sorted(distances)[:count]]

    def explain(self, row: int, refusal: Refusal) -> NodeRefusal | None:
        """Returns why the pod of *refusal* does not fit the node of *row*; ``None`` if it fits by now."""
        name, version = self._table.names[row], int(self._table.versions[row])
        if refusal.budgets:  # they change too often
            return explain_node(name, self._table.usages(name), refusal)
        earlier, node = self._explained.get(row, (-1, None))
        if earlier == version:
            return node
        node = explain_node(name, self._table.usages(name), refusal)
        if node is None or len(node.devices) <= MAX_EXPLAINED_DEVICES:
            if len(self._explained) == MAX_EXPLAINED:
                self._explained.clear()
            self._explained[row] = version, node
        return node

    def _distance_of(self, row: int) -> Distance:
        if self._is_open[row]:
            return distance_of(self._table.usages(self._table.names[row]), self._request)
        absent, excluded = divmod(int(self._devices_missing[row]), 1 << EXCLUDED_BITS)
        return Distance(absent, excluded, float(self._amounts_missing[row]))

    def _places_with_selected_devices(self, rows: Array) -> Iterator[int]:
        """Yields the positions of those of *rows* that have a device which the request names: there are few."""
        selected = set()
        for of_vendor in self._request.vendor_requests:
            for uuid in of_vendor.selector.use_uuids or ():
                selected.add((of_vendor.vendor.key, uuid))
        if not selected:
            return
        for place, row in enumerate(rows.tolist()):
            for vendor, devices in self._table.nodes[self._table.names[row]].devices.items():
                if any((vendor, device.uuid) in selected for device in devices):
                    yield place

    def _find_distances(self, rows: Array) -> None:
        """Finds how far each of *rows* is from serving the request, as far as columns tell."""
        versions = self._table.versions
        if len(self._version) != len(versions):
            self._devices_missing = grown(self._devices_missing, len(versions))
            self._amounts_missing = grown(self._amounts_missing, len(versions))
            self._is_open = grown(self._is_open, len(versions))
            self._version = grown(self._version, len(versions))
        changed = rows[self._version[rows] != versions[rows]]
        if not len(changed):
            return
        device_columns, at = self._table.columns.covering(changed)
        devices = numpy.zeros(device_columns.nodes, dtype=int)
        amounts = numpy.zeros(device_columns.nodes)
        is_open = numpy.zeros(device_columns.nodes, dtype=bool)
        for request in self._request.distinct_requests:
            context = self._request.fit_context(request.vendor)
            absent, excluded, missing = columns.distances(device_columns, request, context)
            devices += (absent.astype(int) << EXCLUDED_BITS) + excluded
            amounts += missing
            is_open |= columns.is_open(device_columns, request, context)
        self._devices_missing[changed], self._amounts_missing[changed] = devices[at], amounts[at]
        self._is_open[changed], self._version[changed] = is_open[at], versions[changed]
