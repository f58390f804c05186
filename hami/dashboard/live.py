"""The scheduler's cache as a world to ask: the rows of ``hami top`` for some nodes, as they are now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain

import msgspec

from hami.cache.cache import Cache, Snapshot
from hami.codec.keys import ASSIGNED_NODE
from hami.dashboard.access import Scope
from hami.dashboard.pace import REST, MakePace, Pace, paced
from hami.dashboard.use import NodeUse, Use
from hami.inspect.record import ClusterRecord
from hami.inspect.top import CardRow, NodeRow, card_rows, node_rows
from hami.inspect.world import World
from hami.model import DeviceUsage, Node, Pod, PodRef
from hami.scheduling.amounts import cores_of
from hami.scheduling.index import Booking

NODES_AT_ONCE = 8  # of which the lock of the cache is held while their bookings are copied
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
    """The content of *cache* now, read in parts: no call holds its lock for longer than a filter may wait."""

    def __init__(self, cache: Cache, *, now: Callable[[], datetime], make_pace: MakePace = Pace) -> None:
        self.cache = cache
        self.now = now
        self.make_pace = make_pace
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

    def record(self, names: Sequence[str], snapshot: Snapshot, scope: Scope, pods: Iterable[Pod] = (), *,
               pace: Callable[[], None] = lambda: None) -> ClusterRecord:
        """Returns what is remembered of the nodes *names*, and of the pods of *snapshot* that are in *scope*."""
        known = {pod.ref.uid: pod for pod in pods}
        nodes: list[Node] = []
        for name in names:
            if (node := self.cache.nodes.get(name)) is not None:
                nodes.append(node)
            pace()
        for booking in snapshot.bookings:
            ref = snapshot.pods.get(booking.uid)
            if ref is not None and ref.uid not in known and ref.namespace in scope:
                known[ref.uid] = self._holder(ref, booking.node)
            pace()
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
        return World(self.record((), snapshot, scope, pace=self.make_pace(REST)), self.cache, snapshot)

    def narrowed(self, world: World, pods: Sequence[Pod]) -> World:
        """Returns *world* with *pods* only, what they hold, and the nodes where they hold it."""
        uids, pace = {pod.ref.uid for pod in pods}, self.make_pace(REST)
        bookings = [booking for booking in world.snapshot.bookings if booking.uid in uids]
        nodes: dict[str, Mapping[str, Sequence[DeviceUsage]]] = {}
        for name in {booking.node for booking in bookings}:
            nodes |= self.cache.excerpt([name]).nodes
            pace()
        return World(replace(world.record, pods=tuple(pods)), self.cache,
                     replace(world.snapshot, bookings=bookings, nodes=nodes))

    def _holdings(self, scope: Scope) -> Snapshot:
        """Returns what all pods of *scope* hold, without nodes.

        It is read in parts: a snapshot of the whole cache would keep filters waiting for long, and a question for each
        pod would often want the lock that they need.
        """
        names, pace = list(self.node_rows()), self.make_pace(REST)
        bookings: dict[str, Booking] = {}
        pods: dict[str, PodRef] = {}
        for start in range(0, len(names), NODES_AT_ONCE):
            part = self.cache.excerpt(names[start:start + NODES_AT_ONCE])
            bookings |= {booking.uid: booking for booking in part.bookings if booking.namespace in scope}
            pods |= {uid: ref for uid, ref in part.pods.items() if ref.namespace in scope}
            pace()
        refs = chain((record.ref for record in self.cache.pods.all()), self.cache.reservations.refs())
        for ref in paced(refs, pace):
            if ref.uid in bookings or ref.namespace not in scope:
                continue
            if (booking := self.cache.booking(ref.uid)) is not None:  # on a node that has no devices any more
                bookings[ref.uid], pods[ref.uid] = booking, ref
        quotas = self.cache.excerpt(())
        return Snapshot(
            nodes={}, bookings=list(bookings.values()), pods=pods,
            used={key: amounts for key, amounts in quotas.used.items() if key[0] in scope},
            quotas=[quota for quota in quotas.quotas if quota.namespace in scope])

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
        pace = self.make_pace(REST)
        change, changed, present = self.cache.changed_nodes(self._change)
        pace()
        nodes_change = self.cache.nodes.changes
        marks = self._marks if nodes_change == self._nodes_change else self._read_marks(pace)
        present |= {name for mark, name in marks if mark == UNREADABLE}
        added = present.difference(self._rows)
        if len(self._rows) + len(added) > len(present):
            for name in self._rows.keys() - present:
                del self._rows[name]
        pace()
        stale = added | (present & {*changed, *(name for _, name in marks ^ self._marks)})
        for name in sorted(stale):
            world = self.world([name], EVERYTHING)
            self._rows |= {row.name: row for row in node_rows(world, world.nodes.values())}
            pace()
        self._change, self._nodes_change, self._marks = change, nodes_change, marks

    def _read_marks(self, pace: Callable[[], None]) -> frozenset[tuple[str, str]]:
        """Returns which nodes are cordoned, and of which an inventory cannot be read."""
        cordoned = self.cache.nodes.cordoned()
        pace()
        unreadable = {node for node, _ in self.cache.nodes.problems()}
        pace()
        return frozenset([*((CORDONED, name) for name in cordoned), *((UNREADABLE, name) for name in unreadable)])

    def cards(self, names: Sequence[str], scope: Scope) -> dict[str, list[CardParts]]:
        """Returns the cards of the nodes *names*, by node."""
        found: dict[str, list[CardParts]] = {}
        pace = self.make_pace(REST)
        for name in names:
            world = self.world([name], scope)
            found |= {node.name: _cards(world, node) for node in world.nodes.values()}
            pace()
        return found


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
