"""The rows of ``hami top`` for some nodes, made from the cache as it is now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

import msgspec

from hami.codec.keys import ASSIGNED_NODE
from hami.dashboard.access import Scope
from hami.dashboard.use import NodeUse, Use
from hami.inspect.cluster import InspectedCluster
from hami.inspect.record import ClusterRecord
from hami.inspect.top import CardRow, NodeRow, card_rows, node_rows
from hami.model import Node, Pod
from hami.scheduling.amounts import cores_of
from hami.state.store import Store
from hami.state.table import Booking
from hami.state.view import View

EVERYTHING = Scope()
CORDONED, UNREADABLE = "cordoned", "unreadable"


class Segment(msgspec.Struct, rename="camel", frozen=True):
    """The part of a card that one pod holds. *pod*: ``None`` where the viewer may not know it.

    *is_reserved*: it is not bound yet. *use*: what the pod really uses of the card; ``None``: unknown.
    """

    namespace: str | None
    pod: str | None
    memory_mib: int
    cores: int
    is_reserved: bool
    use: Use | None = None


class CardParts(msgspec.Struct, rename="camel", frozen=True):
    """A device with the parts that pods hold of it, largest first. *use*: what is really in use; ``None``: unknown."""

    row: CardRow
    segments: tuple[Segment, ...]
    use: Use | None = None


class LiveCluster:
    """The content of *cache* now."""

    def __init__(self, cache: Store, *, now: Callable[[], datetime]) -> None:
        self.cache = cache
        self.now = now
        self._viewing = threading.Lock()  # guards the next two
        self._view: View | None = None
        self._viewed: tuple[int, ...] = ()
        self._refreshing = threading.Lock()  # guards all that follows
        self._rows: dict[str, NodeRow] = {}
        self._version: tuple[int, ...] = ()
        self._change = -1
        self._nodes_change = -1
        self._marks: frozenset[tuple[str, str]] = frozenset()

    def view(self) -> View:
        """Returns the view of the store as it is now; the one of the last call, if nothing has changed since."""
        version = self.cache.version()
        with self._viewing:
            if self._view is None or version != self._viewed:
                self._view, self._viewed = self.cache.view(), version
            return self._view

    def cluster(self, names: Sequence[str], scope: Scope, pods: Iterable[Pod] = ()) -> InspectedCluster:
        """Returns the cluster with the nodes *names*, the pods of *scope* that hold devices there, and *pods*."""
        view = self.view()
        holders = (booking for name in names for booking in view.bookings_on(name) if booking.namespace in scope)
        return self._cluster(view, names, holders, pods)

    def namespace(self, name: str) -> InspectedCluster:
        """Returns the pods of one namespace that hold devices, without nodes."""
        view = self.view()
        return self._cluster(view, (), (booking for booking in view.bookings.values() if booking.namespace == name))

    def _cluster(self, view: View, names: Sequence[str], holders: Iterable[Booking],
                 pods: Iterable[Pod] = ()) -> InspectedCluster:
        known = {pod.ref.uid: pod for pod in pods}
        nodes = [node for name in names if (node := self.cache.nodes.get(name)) is not None]
        for booking in holders:
            if booking.uid not in known and (ref := view.ref(booking.uid)) is not None:
                pod = view.facts.pods.get(booking.uid)
                known[ref.uid] = (Pod(ref=ref, node_name=pod.node, phase=pod.phase) if pod is not None and pod.node
                                  else Pod(ref=ref, annotations={ASSIGNED_NODE: booking.node}))
        record = ClusterRecord(taken=self.now(), nodes=tuple(nodes), pods=tuple(known.values()),
                               policies=view.facts.policies)
        return InspectedCluster(record, view)

    def node_rows(self) -> dict[str, NodeRow]:
        """Returns the row of each node with devices, or an inventory that cannot be read.

        Rows of nodes that have not changed since the last call are those of then.
        """
        with self._refreshing:
            version = self.cache.version()
            if version != self._version:
                self._refresh()
                self._version = version
            return self._rows.copy()

    def _refresh(self) -> None:
        change, changed, present = self.cache.changed_nodes(self._change)
        nodes_change = self.cache.nodes.changes
        marks = self._marks if nodes_change == self._nodes_change else self._read_marks()
        present |= {name for mark, name in marks if mark == UNREADABLE}
        for name in self._rows.keys() - present:
            del self._rows[name]
        stale = present & {*changed, *(name for _, name in marks ^ self._marks), *(present - self._rows.keys())}
        cluster = self.cluster(sorted(stale), EVERYTHING)
        self._rows |= {row.name: row for row in node_rows(cluster, cluster.nodes.values())}
        self._change, self._nodes_change, self._marks = change, nodes_change, marks

    def _read_marks(self) -> frozenset[tuple[str, str]]:
        """Returns which nodes are cordoned, and of which an inventory cannot be read."""
        unreadable = {node for node, _ in self.cache.nodes.problems()}
        return frozenset([*((CORDONED, name) for name in self.cache.nodes.cordoned()),
                          *((UNREADABLE, name) for name in unreadable)])

    def cards(self, names: Sequence[str], scope: Scope) -> dict[str, list[CardParts]]:
        """Returns the cards of the nodes *names*, by node."""
        cluster = self.cluster(names, scope)
        return {node.name: _cards(cluster, node) for node in cluster.nodes.values()}


def with_use(card: CardParts, use: NodeUse) -> CardParts:
    """Returns *card* with what is in use of it. Parts of other pods than those that the viewer may see have none."""
    uuid = card.row.uuid
    segments = tuple(msgspec.structs.replace(part, use=use.of_part(uuid, part.namespace, part.pod))
                     if part.namespace is not None and part.pod is not None else part for part in card.segments)
    return CardParts(card.row, segments, use.of_card(uuid))


def _cards(cluster: InspectedCluster, node: Node) -> list[CardParts]:
    """Returns the cards of *node*."""
    return [CardParts(row, _segments(cluster, row)) for row in card_rows(cluster, [node])]


def _segments(cluster: InspectedCluster, row: CardRow) -> tuple[Segment, ...]:
    vendor = cluster.vendors[row.vendor]
    found = []
    for pod, charge in cluster.holders(row.node, row.vendor, row.uuid):
        ref = pod.ref if pod is not None else None
        found.append(Segment(
            namespace=ref.namespace if ref else None, pod=ref.name if ref else None,
            memory_mib=charge.memory_mib, cores=cores_of(vendor, charge.cores),
            is_reserved=pod is not None and not pod.node_name))
    found.sort(key=lambda one: (-one.memory_mib, one.namespace or "~", one.pod or ""))
    return tuple(found)
