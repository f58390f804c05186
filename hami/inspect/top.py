"""``hami top``: nodes, cards, pods and namespaces with what is allocated of their devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

from msgspec.structs import replace

from hami.codec.core_limits import pod_cores_limit
from hami.codec.keys import MEMORY_WALL
from hami.codec.label_selector import Matches, parse_selector
from hami.codec.resize import excess
from hami.errors import HamiError
from hami.inspect.cluster import Holder, InspectedCluster, unknown_name, withdrawn_nodes
from hami.inspect.refusals import RequestedDevices, request_texts, requested_devices
from hami.inspect.tables import (
    Column,
    OutputRecord,
    Style,
    first_names,
    gib,
    meter_column,
    printable,
    render_document,
    render_rows,
    versioned,
)
from hami.model import Budget, DeviceUsage, Node, Pod
from hami.plurals import counted
from hami.scheduling.amounts import cores_of, total_amounts, used_amounts
from hami.scheduling.quota import allowed_budget, without_scopes
from hami.scheduling.usage import Amounts
from hami.state.bookings import Booking
from hami.state.stranded import stranded_in
from hami.vendors.spec import Catalog

R = TypeVar("R", bound=OutputRecord)

_Counts = Counter[tuple[str, str]]
"""By namespace and vendor."""


class NodeRow(OutputRecord, frozen=True):
    """A node with devices. *pods*: that hold parts of them; *reserved*: of these, not bound yet. *stranded*: the free
    parts of devices, added up, that the usual pods cannot use; ``None`` if these pods are not known. *memory_wall*: how
    the driver limits memory, or why it does not; empty if the node says nothing."""

    name: str
    models: tuple[str, ...]
    cards: int
    memory_mib: int
    memory_used_mib: int
    cores: int
    cores_used: int
    slots: int
    slots_used: int
    largest_free_mib: int
    pods: int
    reserved: int
    state: tuple[str, ...]
    stranded: float | None = None
    memory_wall: str = ""


class DeviceRow(OutputRecord, frozen=True):
    """One device of a node."""

    node: str
    index: int
    uuid: str
    vendor: str
    model: str
    mode: str
    memory_mib: int
    memory_used_mib: int
    cores: int
    cores_used: int
    slots: int
    slots_used: int
    pods: tuple[str, ...]
    reserved: int
    state: tuple[str, ...]


class PodRow(OutputRecord, frozen=True):
    """A pod that holds or requests devices. *cards*: those that it holds, as ``vendor index``. *memory_wanted_mib*,
    *cores_wanted*: what it is to have; less than it holds while a resize waits until it uses no more. *cores_limit*:
    percent of a GPU that a container may use while no other does; ``None`` if the pod does not say."""

    namespace: str
    name: str
    node: str
    cards: tuple[str, ...]
    requests: tuple[RequestedDevices, ...]
    memory_mib: int
    memory_wanted_mib: int
    cores: int
    cores_wanted: int
    cores_limit: int | None
    state: str
    created: str
    age_s: int | None


class NamespaceRow(OutputRecord, frozen=True):
    """The share that the pods of a namespace hold of one vendor's devices, and its quota (``None``: no limit)."""

    name: str
    vendor: str
    pods: int
    memory_used_mib: int
    cores_used: int
    memory_limit_mib: int | None
    cores_limit: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopQuery:
    """Which rows, and in which order.

    *names*: of nodes, pods or namespaces; all if empty. *namespace*: of pods; empty for all. *selector*: labels of
    nodes or pods. *sort*: ``name``, or an order that the rows have; what is fullest comes first, except by name.
    """

    kind: str = "nodes"
    names: tuple[str, ...] = ()
    namespace: str = ""
    selector: str = ""
    sort: str = "name"


def render_top(cluster: InspectedCluster, query: TopQuery, style: Style) -> str:
    """Returns the rows of *query*, with a summary below a table; empty if a table has no rows.

    Raises: HamiError for a name that matches nothing, a selector that cannot be read, an order that the rows do not
    have, or a cluster without devices.
    """
    if not withdrawn_nodes(cluster):
        cluster.check_has_devices()
    matches = parse_selector(query.selector)
    match query.kind:
        case "cards":
            devices = device_rows(cluster, _nodes(cluster, query, matches))
            return _render(devices, DEVICES, query, style)
        case "pods":
            return _render(pod_rows(cluster, _pods(cluster, query, matches)), PODS, query, style)
        case "namespaces":
            return _render(_namespaces(cluster, query), NAMESPACES, query, style)
        case _:
            nodes = node_rows(cluster, _nodes(cluster, query, matches))
            return _render(_with_stranded(cluster, nodes), NODES, query, style)


def _render(rows: list[R], view: TableLayout[R], query: TopQuery, style: Style) -> str:
    rows.sort(key=view.name)
    if query.sort != "name":
        order = view.orders.get(query.sort)
        if order is None:
            raise HamiError(
                f"{query.kind} cannot be sorted by {query.sort}; expected name, {', '.join(view.orders)}"
            )
        rows.sort(key=order, reverse=True)
    if not rows and not style.is_document:
        return ""
    prefix = query.kind.removesuffix("s")
    if style.form == "name":
        names = [f"{prefix}/{printable(getattr(row, view.named))}" for row in rows]
        return "\n".join(dict.fromkeys(names))
    if style.is_document:
        document = versioned(f"{prefix.capitalize()}UsageList", {"items": rows})
        return render_document(document, style.form, headers=style.headers)
    table = render_rows(rows, view.columns, style)
    if view.summary is None or not style.headers:
        return table
    return f"{table}\n\n{view.summary(rows)}"


# Rows


def node_rows(cluster: InspectedCluster, nodes: Iterable[Node]) -> list[NodeRow]:
    """Returns a row for each of *nodes* that has devices, has registered some that nobody offers now, or has an
    inventory that cannot be read."""
    obstacles = {name: f"offers nothing: {why}" for name, why in withdrawn_nodes(cluster).items()}
    for name, _ in cluster.view.facts.problems:
        obstacles[name] = "inventory unreadable"
    rows: list[NodeRow] = []
    for node in nodes:
        usages, obstacle = cluster.usages_on(node.name), obstacles.get(node.name, "")
        if usages or obstacle:
            rows.append(_node_row(cluster, node, usages, obstacle))
    return rows


def _with_stranded(cluster: InspectedCluster, rows: list[NodeRow]) -> list[NodeRow]:
    stranded = stranded_in(cluster.view)
    if stranded is None:
        return rows
    found: list[NodeRow] = []
    by_node = stranded.by_node()
    for row in rows:
        free = by_node.get(row.name)
        devices = None if free is None else round(free.stranded, 2)
        found.append(replace(row, stranded=devices))
    return found


def _node_row(
    cluster: InspectedCluster, node: Node, usages: Sequence[DeviceUsage], obstacle: str
) -> NodeRow:
    total, used = Amounts(), Amounts()
    largest_free_mib = 0
    for usage in usages:
        vendor = cluster.vendors[usage.device.vendor]
        total = total.plus(total_amounts(usage.device, vendor))
        used = used.plus(used_amounts(usage, vendor))
        if _is_usable(usage):
            largest_free_mib = max(largest_free_mib, usage.memory_free_mib)
    pods = cluster.pods_with(cluster.bookings(node.name))
    return NodeRow(
        name=node.name,
        models=tuple(sorted({usage.device.model for usage in usages})),
        cards=len(usages),
        memory_mib=total.memory_mib,
        memory_used_mib=used.memory_mib,
        cores=total.cores,
        cores_used=used.cores,
        slots=total.slots,
        slots_used=used.slots,
        largest_free_mib=largest_free_mib,
        pods=len(pods),
        reserved=sum([not pod.node_name for pod in pods]),
        state=_node_state(node, usages, obstacle),
        memory_wall=node.annotations.get(MEMORY_WALL, ""),
    )


def device_rows(cluster: InspectedCluster, nodes: Iterable[Node]) -> list[DeviceRow]:
    """Returns a row for each device of *nodes*."""
    rows: list[DeviceRow] = []
    for node in nodes:
        rows += [_device_row(cluster, node, usage) for usage in cluster.usages_on(node.name)]
    return rows


def _device_row(cluster: InspectedCluster, node: Node, usage: DeviceUsage) -> DeviceRow:
    device, vendor = usage.device, cluster.vendors[usage.device.vendor]
    total, used = total_amounts(device, vendor), used_amounts(usage, vendor)
    pods = [pod for pod, _ in cluster.holders(*_key(node.name, usage)) if pod is not None]
    state = _device_state(usage)
    if node.unschedulable:
        state.insert(0, "node cordoned")
    return DeviceRow(
        node=node.name,
        index=device.index,
        uuid=device.uuid,
        vendor=device.vendor,
        model=device.model,
        mode=device.mode,
        memory_mib=total.memory_mib,
        memory_used_mib=used.memory_mib,
        cores=total.cores,
        cores_used=used.cores,
        slots=total.slots,
        slots_used=used.slots,
        pods=tuple(sorted(str(pod.ref) for pod in pods)),
        reserved=sum(not pod.node_name for pod in pods),
        state=tuple(state),
    )


def pod_rows(cluster: InspectedCluster, pods: Iterable[Holder]) -> list[PodRow]:
    """Returns a row for each of *pods*. What only its object says is left out of those that the record lacks."""
    return [_pod_row(cluster, pod) for pod in pods]


def held_amounts(vendors: Catalog, bookings: Iterable[Booking]) -> tuple[int, int]:
    """Returns the memory (MiB) and the cores that *bookings* have of all their devices."""
    memory = cores = 0
    for booking in bookings:
        for vendor, charges in booking.charges:
            for charge in charges:
                memory += charge.memory_mib
                cores += cores_of(vendors[vendor], charge.cores)
    return memory, cores


def _pod_row(cluster: InspectedCluster, holder: Holder) -> PodRow:
    bookings = cluster.bookings_of(holder.ref)
    node = bookings[0].node if bookings else holder.node_name
    indexes = {_key(node, usage): usage.device.index for usage in cluster.usages_on(node)}
    memory, cores = held_amounts(cluster.vendors, bookings)
    cards: list[str] = []
    for booking in bookings:
        for vendor, charges in booking.charges:
            for charge in charges:
                cards.append(str(indexes.get((node, vendor, charge.uuid), charge.uuid)))
    pod = cluster.pods.get(holder.ref.uid)
    (excess_mib, excess_cores), cores_limit = _resize_of(cluster, holder.ref.uid, pod)
    created = "" if pod is None else pod.created
    return PodRow(
        namespace=holder.ref.namespace,
        name=holder.ref.name,
        node=node,
        cards=tuple(cards),
        requests=requested_devices(cluster, pod),
        memory_mib=memory,
        memory_wanted_mib=max(0, memory - excess_mib),
        cores=cores,
        cores_wanted=max(0, cores - excess_cores),
        cores_limit=cores_limit,
        state=_pod_state(cluster, holder, pod, is_holding=bool(cards)),
        created=created,
        age_s=age_of(created, cluster.record.taken),
    )


def _resize_of(
    cluster: InspectedCluster, uid: str, pod: Pod | None
) -> tuple[tuple[int, int], int | None]:
    """Returns what is booked for a pod beyond what it is to have, and its limit of cores."""
    record = cluster.view.facts.pods.get(uid)
    if record is not None:
        return record.excess, record.cores_limit
    if pod is None:
        return (0, 0), None
    return excess(pod.annotations), pod_cores_limit(pod.annotations)


def namespace_rows(
    cluster: InspectedCluster, namespaces: Container[str] | None = None
) -> list[NamespaceRow]:
    """Returns a row for each vendor that a namespace uses or that is limited in it; only of *namespaces*, if given.

    Limits are those of quotas for all pods. What claims hold is left out: quotas do not count it.
    """
    pods, memory, cores = _held_by_namespace(cluster)
    quotas = cluster.view.facts.quotas
    rows: list[NamespaceRow] = []
    for namespace in {namespace for namespace, _ in pods} | quotas.keys():
        if namespaces is not None and namespace not in namespaces:
            continue
        for vendor in cluster.vendors:
            limit = allowed_budget(vendor, without_scopes(quotas.get(namespace, {}).values()))
            place = namespace, vendor.key
            if place not in pods and limit == Budget():
                continue
            rows.append(
                NamespaceRow(
                    name=namespace,
                    vendor=vendor.key,
                    pods=pods[place],
                    memory_used_mib=memory[place],
                    cores_used=cores[place],
                    memory_limit_mib=limit.memory_mib,
                    cores_limit=limit.cores,
                )
            )
    return rows


def _held_by_namespace(cluster: InspectedCluster) -> tuple[_Counts, _Counts, _Counts]:
    """Returns the number of pods that hold devices, and the memory and the cores that they hold."""
    pods, memory, cores = _Counts(), _Counts(), _Counts()
    for booking in cluster.view.bookings.values():
        for key, charges in booking.charges:
            place = booking.namespace, key
            pods[place] += 1
            for charge in charges:
                memory[place] += charge.memory_mib
                # a sum of masks says nothing
                cores[place] += cores_of(cluster.vendors[key], charge.cores)
    return pods, memory, cores


def age_of(created: str, taken: datetime) -> int | None:
    """Returns the seconds from *created* (the API server's format) to *taken*; ``None`` if it cannot be read."""
    try:
        begun = datetime.fromisoformat(created)
    except ValueError:
        return None
    if begun.tzinfo is None:
        begun = begun.replace(tzinfo=UTC)
    return max(0, int((taken - begun).total_seconds()))


def age_text(seconds: int | None) -> str:
    """Returns an age as kubectl writes it: ``45s``, ``12m``, ``3h``, ``5d``; empty if it is unknown."""
    if seconds is None:
        return ""
    for unit, length, minimum in (("d", 86_400, 2), ("h", 3600, 3), ("m", 60, 2)):
        if seconds >= minimum * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def _nodes(cluster: InspectedCluster, query: TopQuery, matches: Matches) -> list[Node]:
    _check_names("node", query.names, cluster.nodes)
    chosen = query.names or cluster.nodes
    return [cluster.nodes[name] for name in chosen if matches(cluster.nodes[name].labels)]


def _pods(cluster: InspectedCluster, query: TopQuery, matches: Matches) -> list[Holder]:
    pods = [pod for pod in cluster.pods.values() if query.namespace in ("", pod.ref.namespace)]
    where = f" in namespace {query.namespace}" if query.namespace else ""
    _check_names(f"pod with devices{where}:", query.names, {pod.ref.name for pod in pods})
    if query.names:
        pods = [pod for pod in pods if pod.ref.name in query.names]
    return [Holder(pod.ref, pod.node_name, pod.phase) for pod in pods if matches(pod.labels)]


def _namespaces(cluster: InspectedCluster, query: TopQuery) -> list[NamespaceRow]:
    if query.names:
        present = {row.name for row in namespace_rows(cluster)}
        _check_names("namespace that uses devices:", query.names, present)
        return namespace_rows(cluster, query.names)
    return namespace_rows(cluster, [query.namespace] if query.namespace else None)


def _check_names(kind: str, names: Iterable[str], present: Collection[str]) -> None:
    for name in names:
        if name not in present:
            raise unknown_name(kind, name, present)


def _key(node: str, usage: DeviceUsage) -> tuple[str, str, str]:
    return node, usage.device.vendor, usage.device.uuid


def _is_usable(usage: DeviceUsage) -> bool:
    if not usage.device.healthy or usage.device.cordoned:
        return False
    return usage.slots_used < usage.device.slots


_DEVICE_STATES = ("unhealthy", "cordoned", "over-committed")


def _device_state(usage: DeviceUsage) -> list[str]:
    facts = (not usage.device.healthy, usage.device.cordoned, usage.is_overcommitted)
    return [word for word, holds in zip(_DEVICE_STATES, facts, strict=True) if holds]


def _node_state(node: Node, usages: Sequence[DeviceUsage], obstacle: str) -> tuple[str, ...]:
    words = ["cordoned"] if node.unschedulable else []
    counts: Counter[str] = Counter()
    for usage in usages:
        counts.update(_device_state(usage))
    for word in _DEVICE_STATES:
        if counts[word]:
            words.append(f"{counted(counts[word], 'card')} {word}")
    if obstacle:
        words.append(obstacle)
    return tuple(words)


def _pod_state(
    cluster: InspectedCluster, holder: Holder, pod: Pod | None, *, is_holding: bool
) -> str:
    record = cluster.view.facts.pods.get(holder.ref.uid)
    if record is not None and record.problems:
        return "Unreadable"
    if pod is not None and pod.deleting:
        return "Terminating"
    if holder.node_name:
        return holder.phase or "Bound"
    return "Reserved" if is_holding else "Pending"


# Tables


def _number(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _change(held: int, wanted: int) -> str:
    return f"{held:,}" if wanted == held else f"{held:,}→{wanted:,}"


NODE_COLUMNS: tuple[Column[NodeRow], ...] = (
    Column("NODE", "name"),
    Column("MODEL", "models"),
    Column("CARDS", "cards"),
    meter_column("MEMORY", "memory_used_mib", "memory_mib"),
    meter_column("CORES", "cores_used", "cores"),
    Column("MIB USED", lambda row: f"{row.memory_used_mib:,}/{row.memory_mib:,}", wide=True),
    Column("SLOTS", lambda row: f"{row.slots_used}/{row.slots}", wide=True),
    Column("LARGEST FREE MIB", lambda row: _number(row.largest_free_mib)),
    Column(
        "STRANDED", lambda row: "" if row.stranded is None else f"{row.stranded:.1f}", wide=True
    ),
    Column(
        "PODS", lambda row: f"{row.pods}" + (f" ({row.reserved} reserved)" if row.reserved else "")
    ),
    Column("MEMORY WALL", "memory_wall", wide=True),
    Column("STATE", lambda row: ", ".join(row.state) or "ok"),
)
DEVICE_COLUMNS: tuple[Column[DeviceRow], ...] = (
    Column("NODE", "node"),
    Column("CARD", "index"),
    Column("UUID", "uuid", wide=True),
    Column("MODEL", "model"),
    meter_column("MEMORY", "memory_used_mib", "memory_mib"),
    meter_column("CORES", "cores_used", "cores"),
    Column("FREE MIB", lambda row: _number(max(0, row.memory_mib - row.memory_used_mib))),
    Column("SLOTS", lambda row: f"{row.slots_used}/{row.slots}"),
    Column("MODE", "mode", wide=True),
    Column("STATE", lambda row: ", ".join(row.state) or "ok"),
    Column("PODS", lambda row: first_names(row.pods), full="pods"),
)
POD_COLUMNS: tuple[Column[PodRow], ...] = (
    Column("NAMESPACE", "namespace"),
    Column("NAME", "name"),
    Column("STATE", "state"),
    Column("NODE", "node"),
    Column("CARDS", lambda row: ",".join(row.cards)),
    Column("MIB", lambda row: _change(row.memory_mib, row.memory_wanted_mib) if row.cards else ""),
    Column("CORES", lambda row: _change(row.cores, row.cores_wanted) if row.cards else ""),
    Column("CORE LIMIT", lambda row: _number(row.cores_limit)),
    Column("AGE", lambda row: age_text(row.age_s)),
    Column("REQUESTS", lambda row: "; ".join(request_texts(row.requests)), wide=True),
)
NAMESPACE_COLUMNS: tuple[Column[NamespaceRow], ...] = (
    Column("NAMESPACE", "name"),
    Column("DEVICES", "vendor"),
    Column("PODS", "pods"),
    Column("MIB", lambda row: _number(row.memory_used_mib)),
    meter_column("OF QUOTA", "memory_used_mib", "memory_limit_mib"),
    Column("CORES", "cores_used"),
    meter_column("OF QUOTA", "cores_used", "cores_limit"),
    Column("QUOTA MIB", lambda row: _number(row.memory_limit_mib), wide=True),
    Column("QUOTA CORES", lambda row: _number(row.cores_limit), wide=True),
)


def _node_summary(rows: Sequence[NodeRow]) -> str:
    return _summary(
        rows, len(rows), sum(row.cards for row in rows), [row.largest_free_mib for row in rows]
    )


def _device_summary(rows: Sequence[DeviceRow]) -> str:
    return _summary(
        rows,
        len({row.node for row in rows}),
        len(rows),
        [
            row.memory_mib - row.memory_used_mib
            for row in rows
            if not row.state and row.slots_used < row.slots
        ],
    )


def _summary(
    rows: Sequence[NodeRow | DeviceRow], nodes: int, devices: int, free: Sequence[int]
) -> str:
    used, total = sum(row.memory_used_mib for row in rows), sum(row.memory_mib for row in rows)
    return (
        f"{counted(nodes, 'node')}, {counted(devices, 'card')}: {gib(used)} of {gib(total)} GiB allocated; "
        f"largest free slice {max(free, default=0):,} MiB"
    )


@dataclass(frozen=True, slots=True)
class TableLayout(Generic[R]):
    """The way in which rows of one kind are shown.

    *name*: the key of the usual order, which no two rows share. *orders*: other keys by name, greatest first; rows with
    equal ones are in the usual order. *summary*: a line below the table. *named*: the field with the name.
    """

    columns: tuple[Column[R], ...]
    name: Callable[[R], tuple[str | int, ...]]
    orders: Mapping[str, Callable[[R], float]]
    summary: Callable[[Sequence[R]], str] | None = None
    named: str = "name"


def _cores_share(row: NodeRow | DeviceRow) -> float:
    """Returns the part of the cores that is allocated: vendors count cores in different units."""
    return row.cores_used / max(row.cores, 1)


NODES = TableLayout(
    NODE_COLUMNS,
    lambda row: (row.name,),
    {
        "memory": lambda row: row.memory_used_mib,
        "cores": _cores_share,
        "free": lambda row: row.largest_free_mib,
        "pods": lambda row: row.pods,
        "stranded": lambda row: row.stranded or 0.0,
    },
    _node_summary,
)
DEVICES = TableLayout(
    DEVICE_COLUMNS,
    lambda row: (row.node, row.vendor, row.index, row.uuid),
    {
        "memory": lambda row: row.memory_used_mib,
        "cores": _cores_share,
        "free": lambda row: row.memory_mib - row.memory_used_mib,
        "pods": lambda row: len(row.pods),
    },
    _device_summary,
    named="uuid",
)
PODS = TableLayout(
    POD_COLUMNS,
    lambda row: (row.namespace, row.name),
    {
        "memory": lambda row: row.memory_mib,
        "cores": lambda row: row.cores,
        "age": lambda row: row.age_s or 0,
    },
)
NAMESPACES = TableLayout(
    NAMESPACE_COLUMNS,
    lambda row: (row.name, row.vendor),
    {
        "memory": lambda row: row.memory_used_mib,
        "cores": lambda row: row.cores_used,
        "pods": lambda row: row.pods,
    },
)
