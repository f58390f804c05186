"""The nodes of a replay that kube-scheduler may offer for a pod: those that it selects, with enough CPU and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from hami.model import NodeRequirement, Pod, Taint, Toleration
from hami.scheduling.columns import grown
from hami.scheduling.node_order import is_eligible, tolerates
from hami.scheduling.node_resources import NodeResources
from hami.state.table import Table

Array = NDArray[Any]

_Key = tuple[tuple[tuple[NodeRequirement, ...], ...], tuple[Toleration, ...]]
MAX_TERMS = 256  # selections of nodes that are remembered


@dataclass(frozen=True, slots=True, eq=False)
class _Selection:
    """Nodes by their *rows* in the table, and their *places* among the free amounts."""

    rows: Array
    places: Array


class OfferedNodes:
    """The nodes of *table* that are not cordoned, and what is free of all nodes."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._places: dict[str, int] = {}
        self._milli_cpu = numpy.zeros(0, dtype=numpy.int64)
        self._memory_mib = numpy.zeros(0, dtype=numpy.int64)
        self._offered: dict[str, tuple[Taint, ...]] = {}
        self._names: Sequence[str] | None = None
        self._selections: dict[_Key, _Selection] = {}

    @property
    def names(self) -> Sequence[str]:
        """Their names, sorted."""
        if self._names is None:
            self._names = sorted(self._offered)
        return self._names

    def __contains__(self, node: str) -> bool:
        return node in self._offered

    def set(self, node: str, taints: tuple[Taint, ...] = (), *, is_offered: bool) -> None:
        """Offers *node* with *taints* or not. To be called whenever devices or labels of a node have changed."""
        self._offered.pop(node, None)
        if is_offered:
            self._offered[node] = taints
        self._names = None
        self._selections.clear()

    def free(self, node: str, resources: NodeResources) -> None:
        """Adds to what is free on *node*; what pods hold on a node that has gone counts when it comes back."""
        place = self._places.setdefault(node, len(self._places))
        if place >= len(self._milli_cpu):
            self._milli_cpu = grown(self._milli_cpu, 2 * place + 64)
            self._memory_mib = grown(self._memory_mib, 2 * place + 64)
        self._milli_cpu[place] += resources.milli_cpu
        self._memory_mib[place] += resources.memory_mib

    def free_on(self, node: str) -> NodeResources:
        """Returns what is free on *node*; less than nothing if pods hold more than it has."""
        place = self._places[node]
        return NodeResources(int(self._milli_cpu[place]), int(self._memory_mib[place]))

    def fitting(self, pod: Pod, resources: NodeResources, names: Sequence[str] | None) -> Array:
        """Returns the rows of those of *names*, else of all, that *pod* selects and where *resources* are free."""
        selection = self._selected(pod, names)
        is_free = numpy.ones(len(selection.rows), dtype=bool)
        # what is not requested may be overcommitted by pods that are on the node already
        if resources.milli_cpu:
            is_free &= self._milli_cpu[selection.places] >= resources.milli_cpu
        if resources.memory_mib:
            is_free &= self._memory_mib[selection.places] >= resources.memory_mib
        return selection.rows[is_free]

    def selected_by(self, pod: Pod) -> list[str]:
        """Returns the names of all that *pod* selects."""
        rows = self._selected(pod, None).rows
        return [self._table.names[row] for row in rows[rows >= 0].tolist()]

    def _selected(self, pod: Pod, names: Sequence[str] | None) -> _Selection:
        if names is not None:
            return self._select(pod, names)
        key = pod.node_terms, pod.tolerations
        selection = self._selections.get(key)
        if selection is None:
            if len(self._selections) >= MAX_TERMS:
                self._selections.clear()
            selection = self._selections[key] = self._select(pod, self.names)
        return selection

    def _select(self, pod: Pod, names: Sequence[str]) -> _Selection:
        labels = self._table.labels
        selected: list[str] = []
        for name in names:
            if name not in self._places or not tolerates(pod, self._offered.get(name, ())):
                continue
            if is_eligible(pod, name, labels.get(name, {})):
                selected.append(name)
        rows = numpy.array([self._table.rows.get(name, -1) for name in selected], numpy.intp)
        places = numpy.array([self._places[name] for name in selected], numpy.intp)
        return _Selection(rows, places)
