"""The content of each page, as records: templates and JSON show the same. No view changes anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec

from hami.codec.health import DeviceHealth, parse_device_health
from hami.codec.keys import DEVICE_HEALTH
from hami.dashboard.access import Scope
from hami.dashboard.errors import PageError
from hami.dashboard.history import UsageHistory, no_history
from hami.dashboard.live import DeviceParts, LiveCluster
from hami.dashboard.paging import page_of, paged
from hami.dashboard.use import Use, Uses, total_use
from hami.dashboard.viewed_pods import PodSize
from hami.dashboard.waiting import Waiting, WaitingPods
from hami.inspect.cluster import Holder, unknown_name
from hami.inspect.tables import OutputRecord
from hami.inspect.top import (
    NAMESPACES,
    NODES,
    PODS,
    NamespaceRow,
    NodeRow,
    PodRow,
    held_amounts,
    namespace_rows,
    pod_rows,
)
from hami.model import Pod, PodRef
from hami.state.bookings import Booking
from hami.state.read_pod import PodRecord

NODES_A_PAGE, PODS_A_PAGE = 200, 100
UNHEALTHY_A_PAGE = 25
TEXT_LIMIT = 253  # characters of a filter: the longest name of Kubernetes
NAMES_COMPARED = 500  # with an unknown name

STATES: Mapping[str, Callable[[NodeRow], bool]] = {
    "free": lambda row: row.largest_free_mib > 0,
    "full": lambda row: row.largest_free_mib == 0,
    "reserved": lambda row: row.reserved > 0,
    "cordoned": lambda row: any("cordoned" in word for word in row.state),
    "unhealthy": lambda row: any("unhealthy" in word for word in row.state),
    "over-committed": lambda row: any("over-committed" in word for word in row.state),
}
"""States of nodes by which they can be chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeQuery:
    """Which nodes, and in which order: those whose name contains *node*, with a card whose model contains *model*."""

    node: str = ""
    model: str = ""
    state: str = ""
    sort: str = "name"
    page: int = 1


ALLOCATED, WAITING = "allocated", "waiting"
"""States of pods by which they can be chosen: whether they have devices."""
SIZES = ("memory", "cores")
"""Amounts by which pods can be sorted, in the order of :func:`hami.inspect.top.held_amounts`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodQuery:
    """Which pods, and in which order: those whose namespace and name, as ``namespace/name``, contain *pod*, on nodes
    whose name contains *node*."""

    pod: str = ""
    node: str = ""
    state: str = ""
    sort: str = "name"
    page: int = 1


class Total(OutputRecord, frozen=True):
    """Sums over the nodes that were chosen."""

    nodes: int
    cards: int
    memory_mib: int
    memory_used_mib: int
    largest_free_mib: int
    pods: int


class NodeItem(OutputRecord, frozen=True):
    """A node with its cards. *use*: of all of them; ``None`` unless that of each is known. *history*: likewise over the
    last hours, on the page of the node."""

    node: NodeRow
    cards: tuple[DeviceParts, ...]
    use: Use | None
    history: UsageHistory | None = None


class NodeList(OutputRecord, frozen=True):
    """A page of nodes. *history*: of all nodes; ``None`` where it is not known."""

    total: Total
    items: tuple[NodeItem, ...]
    page: int
    pages: int
    history: UsageHistory | None = None


class DevicePage(OutputRecord, frozen=True):
    """One device, with everything that is held of it."""

    node: str
    card: DeviceParts


class PodPage(OutputRecord, frozen=True):
    """A pod that holds devices, or *waits*. *problems*: why its allocation cannot be read. *size*: ``None`` while it is
    being read, and of a pod that waits."""

    row: PodRow
    bound_at: int
    problems: tuple[str, ...]
    cards: tuple[DevicePage, ...]
    waits: Waiting | None
    size: PodSize | None


class PodList(OutputRecord, frozen=True):
    """A page of pods that hold or request devices."""

    items: tuple[PodRow, ...]
    total: int
    page: int
    pages: int


class UnhealthyItem(OutputRecord, frozen=True):
    """A node that is not as it should be, with the devices that are not. *health*: what the node says of unhealthy
    devices, by UUID."""

    node: NodeRow
    cards: tuple[DeviceParts, ...]
    health: Mapping[str, DeviceHealth]


class HealthPage(OutputRecord, frozen=True):
    """Nodes with devices that are unhealthy, cordoned, over-committed or unreadable. *nodes*: of all with devices."""

    items: tuple[UnhealthyItem, ...]
    total: int
    nodes: int
    page: int
    pages: int


class NamespaceList(OutputRecord, frozen=True):
    """The devices that each namespace holds, and its quotas."""

    items: tuple[NamespaceRow, ...]


class NamespacePage(OutputRecord, frozen=True):
    """A namespace and the pods that hold devices in it."""

    name: str
    items: tuple[NamespaceRow, ...]
    pods: tuple[PodRow, ...]
    total: int
    page: int
    pages: int


class Views:
    """The pages about *live*. The thread that renders calls them, one at a time.

    *uses*: returns the use of a node's cards, *size* what the annotations of a bound pod say; ``None`` if it is not
    known. *history*: returns that of a node, or of all for the empty text.
    """

    def __init__(
        self,
        live: LiveCluster,
        *,
        waiting: WaitingPods,
        uses: Callable[[str], Uses | None],
        size: Callable[[PodRef], PodSize | None],
        history: Callable[[str], UsageHistory | None] = no_history,
    ) -> None:
        self._live = live
        self.waiting = waiting
        """The pods that wait."""
        self._uses = uses
        self._size = size
        self._history = history

    def nodes(self, scope: Scope, query: NodeQuery) -> NodeList:
        """Returns a page of nodes with their cards."""
        rows = [row for row in self._live.node_rows().values() if _is_chosen(row, query)]
        rows.sort(key=NODES.name)
        if query.sort != "name":
            rows.sort(key=NODES.orders[query.sort], reverse=True)
        shown, page, pages = paged(rows, query.page, NODES_A_PAGE)
        devices = self._live.devices([row.name for row in shown], scope, self._uses)
        items = tuple(_item(row, devices.get(row.name, ())) for row in shown)
        return NodeList(_total(rows), items, page, pages, self._history(""))

    def node(self, scope: Scope, name: str) -> NodeItem:
        """Returns one node. Raises: PageError."""
        rows = self._live.node_rows()
        if name not in rows:
            raise _unknown("node with devices:", name, rows)
        item = _item(rows[name], self._live.devices([name], scope, self._uses).get(name, ()))
        return msgspec.structs.replace(item, history=self._history(name))

    def device(self, scope: Scope, node: str, uuid: str) -> DevicePage:
        """Returns one device. Raises: PageError."""
        devices = {device.row.uuid: device for device in self.node(scope, node).cards}
        if uuid not in devices:
            raise _unknown(f"card of node {node}:", uuid, devices)
        return DevicePage(node, devices[uuid])

    def health(self, scope: Scope, page: int) -> HealthPage:
        """Returns a page of the nodes that are not as they should be, by name."""
        nodes = self._live.node_rows()
        rows = sorted((row for row in nodes.values() if row.state), key=NODES.name)
        shown, page, pages = paged(rows, page, UNHEALTHY_A_PAGE)
        devices = self._live.devices([row.name for row in shown], scope, self._uses)
        items: list[UnhealthyItem] = []
        for row in shown:
            node = self._live.store.nodes.get(row.name)
            health: Mapping[str, DeviceHealth] = {}
            if node is not None:
                health = parse_device_health(node.annotations.get(DEVICE_HEALTH))
            cards = [device for device in devices.get(row.name, ()) if device.row.state]
            items.append(UnhealthyItem(row, tuple(cards), health))
        return HealthPage(tuple(items), len(rows), len(nodes), page, pages)

    def pods(self, scope: Scope, query: PodQuery) -> PodList:
        """Returns a page of the pods that hold or request devices."""
        records = self._chosen_pods(scope, query)
        shown, page, pages = paged(records, query.page, PODS_A_PAGE)
        pods = self._live.store.pods
        waiting: list[Pod] = []
        for record in shown:
            pod = pods.waiting_pod(record.ref.uid)
            if pod is not None:
                waiting.append(pod)
        cluster = self._live.cluster((), scope, waiting)
        holders = [Holder(record.ref, record.node, record.phase) for record in shown]
        return PodList(tuple(pod_rows(cluster, holders)), len(records), page, pages)

    def _chosen_pods(self, scope: Scope, query: PodQuery) -> list[PodRecord]:
        """Returns the pods that *query* chooses, in its order."""
        store = self._live.store
        chosen: list[PodRecord] = []
        for uid, record in store.pods.by_uid().items():
            if record.terminated or not record.requests_devices:
                continue
            if record.ref.namespace not in scope or not _names_match(record, query):
                continue
            if not self._is_in_state(uid, query.state):
                continue
            chosen.append(record)
        chosen.sort(key=lambda record: (record.ref.namespace, record.ref.name))
        if query.sort != "name":
            column = SIZES.index(query.sort)
            chosen.sort(key=lambda record: self._held(record)[column], reverse=True)
        return chosen

    def _is_in_state(self, uid: str, state: str) -> bool:
        """Reports whether the pod is in *state*; empty: any."""
        if not state:
            return True
        is_allocated = self._live.store.booking(uid) is not None
        return is_allocated == (state == ALLOCATED)

    def _held(self, record: PodRecord) -> tuple[int, int]:
        booking = self._live.store.booking(record.ref.uid)
        if booking is None:
            return 0, 0
        return held_amounts(self._live.store.vendors, [booking])

    def pod(self, scope: Scope, namespace: str, name: str) -> PodPage:
        """Returns one pod. Raises: PageError."""
        store = self._live.store
        record = store.pods.named(namespace, name)
        if record is None or record.terminated or not record.requests_devices:
            others = [other.ref for other in store.pods.by_uid().values()]
            names = [ref.name for ref in others if ref.namespace == namespace]
            raise _unknown(f"pod with devices in namespace {namespace}:", name, names)
        uid = record.ref.uid
        waiting = store.pods.waiting_pod(uid)
        booking = store.booking(uid)  # read last: a pod that is bound in between has its cards
        cluster = self._live.cluster((), scope, [] if waiting is None else [waiting])
        holder = Holder(record.ref, record.node, record.phase)
        cards: list[DevicePage] = []
        waits, size = None, None
        if booking is not None:
            cards = self._cards(booking, scope)
            size = self._size(record.ref)
        elif waiting is not None:
            waits = self.waiting.one(cluster, waiting, scope)
        return PodPage(
            row=pod_rows(cluster, [holder])[0],
            bound_at=record.bound_at,
            problems=record.problems,
            cards=tuple(cards),
            waits=waits,
            size=size,
        )

    def _cards(self, booking: Booking, scope: Scope) -> list[DevicePage]:
        """Returns the devices of which a pod holds parts by *booking*."""
        node = booking.node
        uuids: set[str] = set()
        for _, charges in booking.charges:
            uuids.update(charge.uuid for charge in charges)
        devices = self._live.devices([node], scope, self._uses).get(node, ())
        return [DevicePage(node, device) for device in devices if device.row.uuid in uuids]

    def namespaces(self, scope: Scope) -> NamespaceList:
        """Returns what the namespaces of *scope* hold."""
        rows = namespace_rows(self._live.cluster((), scope), scope)
        return NamespaceList(tuple(sorted(rows, key=NAMESPACES.name)))

    def namespace(self, name: str, page: int) -> NamespacePage:
        """Returns one namespace. Raises: PageError."""
        cluster = self._live.cluster((), Scope(frozenset([name])))
        items = sorted(namespace_rows(cluster, [name]), key=NAMESPACES.name)
        bookings: list[Booking] = []
        for booking in cluster.bookings():
            if booking.namespace == name:
                bookings.append(booking)
        pods = cluster.pods_with(bookings)
        pods.sort(key=lambda pod: pod.ref.name)
        if not items and not pods:
            raise PageError(
                f"no pod in a namespace {name} holds devices, and it has no quota of them", 404
            )
        shown, page, pages = paged(pods, page, PODS_A_PAGE)
        rows = sorted(pod_rows(cluster, shown), key=PODS.name)
        return NamespacePage(name, tuple(items), tuple(rows), len(pods), page, pages)


def node_query(given: Mapping[str, str]) -> NodeQuery:
    """Returns the parameters *given* as a query. Raises: PageError."""
    query = NodeQuery(
        node=_text(given, "node"),
        model=_text(given, "model"),
        state=_text(given, "state"),
        sort=_text(given, "sort") or "name",
        page=page_of(given),
    )
    _check_choices(
        ("state", query.state, ["", *STATES]), ("sort", query.sort, ["name", *NODES.orders])
    )
    return query


def pod_query(given: Mapping[str, str]) -> PodQuery:
    """Returns the parameters *given* as a query. Raises: PageError."""
    query = PodQuery(
        pod=_text(given, "pod"),
        node=_text(given, "node"),
        state=_text(given, "state"),
        sort=_text(given, "sort") or "name",
        page=page_of(given),
    )
    _check_choices(
        ("state", query.state, ["", ALLOCATED, WAITING]), ("sort", query.sort, ["name", *SIZES])
    )
    return query


def _check_choices(*chosen: tuple[str, str, Sequence[str]]) -> None:
    """*chosen*: name, value and allowed values of each parameter. Raises: PageError."""
    for name, value, choices in chosen:
        if value not in choices:
            raise PageError(f"{name}={value}: expected {', '.join(filter(None, choices))}", 400)


def _text(given: Mapping[str, str], name: str) -> str:
    text = given.get(name, "").strip()
    if len(text) > TEXT_LIMIT:
        raise PageError(f"{name}: expected at most {TEXT_LIMIT} characters", 400)
    return text


def _is_chosen(row: NodeRow, query: NodeQuery) -> bool:
    if query.node.lower() not in row.name.lower():
        return False
    if query.state and not STATES[query.state](row):
        return False
    if not query.model:
        return True
    return any(query.model.lower() in model.lower() for model in row.models)


def _names_match(record: PodRecord, query: PodQuery) -> bool:
    if query.pod and query.pod.lower() not in str(record.ref).lower():
        return False
    return query.node.lower() in record.node.lower()


def _item(row: NodeRow, devices: Sequence[DeviceParts]) -> NodeItem:
    return NodeItem(row, tuple(devices), total_use([device.use for device in devices]))


def _total(rows: Sequence[NodeRow]) -> Total:
    return Total(
        nodes=len(rows),
        cards=sum(row.cards for row in rows),
        memory_mib=sum(row.memory_mib for row in rows),
        memory_used_mib=sum(row.memory_used_mib for row in rows),
        largest_free_mib=max((row.largest_free_mib for row in rows), default=0),
        pods=sum(row.pods for row in rows),
    )


def _unknown(kind: str, name: str, names: Iterable[str]) -> PageError:
    """Returns the error for a name that matches nothing. Only some names are compared with it: that takes long."""
    shown = name[:TEXT_LIMIT]
    near = islice((other for other in names if other[:2] == shown[:2]), NAMES_COMPARED)
    return PageError(str(unknown_name(kind, shown, near)), 404)
