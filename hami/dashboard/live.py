"""The rows of ``hami top`` for some nodes, made from the cache as it is now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

import msgspec

from hami.cache.cache import Cache, Snapshot
from hami.codec.keys import ASSIGNED_NODE
from hami.dashboard.access import Scope
from hami.dashboard.use import NodeUse, Use
from hami.inspect.record import ClusterRecord
from hami.inspect.top import CardRow, NodeRow, card_rows, node_rows
from hami.inspect.world import World
from hami.model import Node, Pod, PodRef
from hami.scheduling.amounts import cores_of

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

    def __init__(self, cache: Cache, *, now: Callable[[], datetime]) -> None:
        self.cache = cache
        self.now = now
        self._refreshing = threading.Lock()  # guards all that follows
        self._rows: dict[str, NodeRow] = {}
        self._version: tuple[int, ...] = ()
        self._change = -1
        self._nodes_change = -1
        self._marks: frozenset[tuple[str, str]] = frozenset()

    def world(self, names: Sequence[str], scope: Scope, pods: Iterable[Pod] = ()) -> World:
        """Returns the nodes *names* as a world, with the pods of *scope* that hold devices there, and *pods*."""
        snapshot = self.cache.excerpt(names)
        return World(self.record(names, snapshot, scope, pods), self.cache, snapshot)

    def record(self, names: Sequence[str], snapshot: Snapshot, scope: Scope,
               pods: Iterable[Pod] = ()) -> ClusterRecord:
        """Returns what is remembered of the nodes *names*, and of the pods of *snapshot* that are in *scope*."""
        known = {pod.ref.uid: pod for pod in pods}
        nodes = [node for name in names if (node := self.cache.nodes.get(name)) is not None]
        for booking in snapshot.bookings:
            ref = snapshot.pods.get(booking.uid)
            if ref is not None and ref.uid not in known and ref.namespace in scope:
                known[ref.uid] = self._holder(ref, booking.node)
        return ClusterRecord(taken=self.now(), nodes=tuple(nodes), pods=tuple(known.values()),
                             quotas=tuple(snapshot.quotas), policies=self.cache.policies)

    def _holder(self, ref: PodRef, node: str) -> Pod:
        """Returns what is remembered of a pod that holds devices of *node*."""
        record = self.cache.pods.get(ref.uid)
        if record is None or not record.node:
            return Pod(ref=ref, annotations={ASSIGNED_NODE: node})
        return Pod(ref=ref, node_name=record.node, phase=record.phase)

    def namespaces(self, scope: Scope) -> World:
        """Returns a world without nodes and pods, with what pods of *scope* hold."""
        snapshot = self._holdings(scope)
        return World(self.record((), replace(snapshot, bookings=()), scope), self.cache, snapshot)

    def namespace(self, name: str) -> World:
        """Returns a world with the pods of one namespace that hold devices, without nodes."""
        scope = Scope(frozenset({name}))
        snapshot = self._holdings(scope)
        return World(self.record((), snapshot, scope), self.cache, snapshot)

    def narrowed(self, world: World, pods: Sequence[Pod]) -> World:
        """Returns *world* with *pods* only, what they hold, and the nodes where they hold it."""
        uids = {pod.ref.uid for pod in pods}
        bookings = [booking for booking in world.snapshot.bookings if booking.uid in uids]
        nodes = self.cache.excerpt({booking.node for booking in bookings}).nodes
        return World(replace(world.record, pods=tuple(pods)), self.cache,
                     replace(world.snapshot, bookings=bookings, nodes=nodes))

    def _holdings(self, scope: Scope) -> Snapshot:
        """Returns what all pods of *scope* hold, without nodes."""
        everything = self.cache.snapshot()
        return Snapshot(
            nodes={}, bookings=[booking for booking in everything.bookings if booking.namespace in scope],
            pods=everything.pods, used={key: amounts for key, amounts in everything.used.items() if key[0] in scope},
            quotas=[quota for quota in everything.quotas if quota.namespace in scope])

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
        world = self.world(sorted(stale), EVERYTHING)
        self._rows |= {row.name: row for row in node_rows(world, world.nodes.values())}
        self._change, self._nodes_change, self._marks = change, nodes_change, marks

    def _read_marks(self) -> frozenset[tuple[str, str]]:
        """Returns which nodes are cordoned, and of which an inventory cannot be read."""
        unreadable = {node for node, _ in self.cache.nodes.problems()}
        return frozenset([*((CORDONED, name) for name in self.cache.nodes.cordoned()),
                          *((UNREADABLE, name) for name in unreadable)])

    def cards(self, names: Sequence[str], scope: Scope) -> dict[str, list[CardParts]]:
        """Returns the cards of the nodes *names*, by node."""
        world = self.world(names, scope)
        return {node.name: _cards(world, node) for node in world.nodes.values()}


def with_use(card: CardParts, use: NodeUse) -> CardParts:
    """Returns *card* with what is in use of it. Parts of other pods than those that the viewer may see have none."""
    uuid = card.row.uuid
    segments = tuple(msgspec.structs.replace(part, use=use.of_part(uuid, part.namespace, part.pod))
                     if part.namespace is not None and part.pod is not None else part for part in card.segments)
    return CardParts(card.row, segments, use.of_card(uuid))


def _cards(world: World, node: Node) -> list[CardParts]:
    """Returns the cards of *node*."""
    return [CardParts(row, _segments(world, row)) for row in card_rows(world, [node])]


def _segments(world: World, row: CardRow) -> tuple[Segment, ...]:
    vendor = world.vendors[row.vendor]
    found = []
    for holding in world.holdings.get((row.node, row.vendor, row.uuid), ()):
        ref = holding.pod.ref if holding.pod is not None else None
        found.append(Segment(
            namespace=ref.namespace if ref else None, pod=ref.name if ref else None,
            memory_mib=holding.charge.memory_mib, cores=cores_of(vendor, holding.charge.cores),
            is_reserved=holding.pod is not None and not holding.pod.node_name))
    found.sort(key=lambda one: (-one.memory_mib, one.namespace or "~", one.pod or ""))
    return tuple(found)
