"""The rows of ``hami top`` for some nodes, made from the store as it is now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime

from hami.dashboard.access import Scope
from hami.dashboard.use import Use, Uses
from hami.inspect.cluster import ClusterRecord, InspectedCluster
from hami.inspect.tables import OutputRecord
from hami.inspect.top import DeviceRow, NodeRow, device_rows, node_rows
from hami.model import Node, Pod
from hami.scheduling.amounts import cores_of
from hami.state.claims import ClaimCache
from hami.state.store import Store
from hami.state.view import View

EVERYTHING = Scope()

_Source = tuple[object, object, bool, bool]
"""The usage of a node's devices, that of its devices for claims, whether it is cordoned, and whether an inventory of it
cannot be read: its row is made of these. A view shares the usage of unchanged nodes with the view before."""


class Segment(OutputRecord, frozen=True):
    """The part of a device that one pod holds. *pod*: ``None`` where the viewer may not know it.

    *is_reserved*: it is not bound yet. *use*: what the pod really uses of the device; ``None``: unknown.
    """

    namespace: str | None
    pod: str | None
    memory_mib: int
    cores: int
    is_reserved: bool
    use: Use | None = None


class DeviceParts(OutputRecord, frozen=True):
    """A device with the parts that pods hold of it, largest first. *use*: what is really in use; ``None``: unknown."""

    row: DeviceRow
    segments: tuple[Segment, ...]
    use: Use | None = None


class LiveCluster:
    """The content of *store* and *claims* now."""

    def __init__(self, store: Store, claims: ClaimCache, *, now: Callable[[], datetime]) -> None:
        self.store = store
        self._claims = claims
        self.now = now
        self._lock = threading.RLock()  # guards all that follows
        self._version: tuple[int, ...] = ()
        self._view = store.view()
        self._claimed = claims.at_once(self._view.facts)
        self._shown: View | None = None
        self._sources: dict[str, _Source] = {}
        self._rows: dict[str, NodeRow] = {}

    def view(self) -> View:
        """Returns the view of the store as it is now; the one of the last call, if nothing has changed since."""
        version = self.version()
        with self._lock:
            if version != self._version:
                self._view, self._version = self.store.view(), version
                self._claimed = self._claims.at_once(self._view.facts)
            return self._view

    def version(self) -> tuple[int, ...]:
        """Returns numbers of which one increases with every change of what can be seen here."""
        return *self.store.version(), self._claims.version()

    def cluster(
        self, names: Sequence[str], scope: Scope, pods: Sequence[Pod] = ()
    ) -> InspectedCluster:
        """Returns the cluster with the nodes *names* and the waiting *pods*. Pods of *scope* have names."""
        view = self.view()
        nodes: list[Node] = []
        for name in names:
            node = self.store.nodes.get(name)
            if node is not None:
                nodes.append(node)
        record = ClusterRecord(
            taken=self.now(), nodes=tuple(nodes), pods=tuple(pods), policies=view.facts.policies
        )
        return InspectedCluster(record, view, self._claimed, scope)

    def node_rows(self) -> dict[str, NodeRow]:
        """Returns the row of each node with devices, or an inventory that cannot be read.

        Rows of nodes that have not changed since the last call are those of then.
        """
        with self._lock:
            view = self.view()
            if view is not self._shown:
                sources = self._sources_of(view)
                for name in self._sources.keys() - sources.keys():
                    self._rows.pop(name, None)
                stale: list[str] = []
                for name, source in sources.items():
                    if not _is_same(source, self._sources.get(name)):
                        stale.append(name)
                cluster = self.cluster(sorted(stale), EVERYTHING)
                self._rows |= {row.name: row for row in node_rows(cluster, cluster.nodes.values())}
                self._shown, self._sources = view, sources
            return self._rows.copy()

    def _sources_of(self, view: View) -> dict[str, _Source]:
        """Returns what the row of each node is made of."""
        cordoned = self.store.nodes.cordoned()
        unreadable = {node for node, _ in view.facts.problems}
        claimed = self._claimed.view.nodes
        sources: dict[str, _Source] = {}
        for name in {*unreadable, *claimed, *view.nodes}:
            usages = view.nodes.get(name), claimed.get(name)
            sources[name] = (*usages, name in cordoned, name in unreadable)
        return sources

    def devices(
        self, names: Sequence[str], scope: Scope, uses: Callable[[str], Uses | None]
    ) -> dict[str, tuple[DeviceParts, ...]]:
        """Returns the devices of the nodes *names*, by node. *uses*: returns what is in use of a node, if it is
        known."""
        cluster = self.cluster(names, scope)
        devices: dict[str, tuple[DeviceParts, ...]] = {}
        for node in cluster.nodes.values():
            used = uses(node.name) or {}
            rows = device_rows(cluster, [node])
            devices[node.name] = tuple(_device_parts(cluster, row, used) for row in rows)
        return devices


def _is_same(source: _Source, earlier: _Source | None) -> bool:
    """Reports whether nothing has changed. Equal usage can be that of other pods."""
    if earlier is None or source[2:] != earlier[2:]:
        return False
    return source[0] is earlier[0] and source[1] is earlier[1]


def _device_parts(cluster: InspectedCluster, row: DeviceRow, uses: Uses) -> DeviceParts:
    """Returns a device with its parts. Those of pods that the viewer may not see have no use."""
    segments = []
    for pod, charge in cluster.holders(row.node, row.vendor, row.uuid):
        cores = cores_of(cluster.vendors[row.vendor], charge.cores)
        if pod is None:
            segments.append(Segment(None, None, charge.memory_mib, cores, is_reserved=False))
        else:
            segments.append(
                Segment(
                    pod.ref.namespace,
                    pod.ref.name,
                    charge.memory_mib,
                    cores,
                    is_reserved=not pod.node_name,
                    use=uses.get((row.uuid, pod.ref.namespace, pod.ref.name)),
                )
            )
    segments.sort(
        key=lambda part: (-part.memory_mib, part.namespace or "~", part.pod or "", -part.cores)
    )
    return DeviceParts(row, tuple(segments), uses.get((row.uuid,)))
