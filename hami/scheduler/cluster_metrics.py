"""Metrics of the cluster's devices, allocations and quotas: Prometheus gauges with upstream's names, labels and values.

Samples are rendered from a view of the store one by one while they are read, so a large cluster needs neither much
memory nor a long computation without a pause. This module holds no locks and does no I/O.
Source: HAMi v2.10, cmd/scheduler/metrics.go; ``hami_node_gpu_mig_instance_info`` and ``hami_node_devices`` are our own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator
from itertools import chain, groupby
from operator import attrgetter
from typing import NamedTuple

from hami.model import Device, DeviceUsage, Partition, QuotaLimits
from hami.quantity import MIB
from hami.scheduling.quota import allowed_budget, lowest_limit, without_scopes
from hami.scheduling.usual_pods import UsualPod
from hami.state.bookings import Booking
from hami.state.stranded import Stranded, stranded_in
from hami.state.view import View
from hami.vendors.spec import Catalog, CoreUnit
from hami.web.exposition import Family, Gauge, escape_label, gauge_families


def families(
    view: View,
    vendors: Catalog,
    *,
    legacy: bool = False,
    claimed: View | None = None,
    registered: Collection[str] = (),
) -> list[Family]:
    """Returns all gauges of *view*, sorted by name; with *legacy* also those with upstream's old names.

    *claimed*: the devices that claims hold, which quotas do not count. *registered*: nodes that should offer devices.
    The new names convert compute units to percent, the old ones do not. ``hami_build_info`` is not among them.
    Order of samples: devices by node and then as registered, pods by node, namespace and name, quotas by namespace.
    """
    # no device twice, whatever nodes say: a page with two equal samples is refused as a whole
    parts: list[tuple[View, View | None]] = [(view, None)]
    if claimed is not None:
        parts.append((claimed, view))
    in_units = frozenset(
        vendor.key for vendor in vendors if vendor.resources.core_unit is CoreUnit.COMPUTE_UNITS
    )
    families = [
        *gauge_families(
            _DEVICE_GAUGES,
            lambda: chain.from_iterable(_devices(of, in_units, beside) for of, beside in parts),
            legacy,
        ),
        *gauge_families(_INSTANCE_GAUGES, lambda: _instances(view), legacy),
        *gauge_families(
            _ALLOCATION_GAUGES,
            lambda: chain.from_iterable(_allocations(of, in_units, beside) for of, beside in parts),
            legacy,
        ),
        *gauge_families(_QUOTA_GAUGES, lambda: _quotas(view, vendors), legacy),
    ]
    if registered:
        families += gauge_families(_NODE_GAUGES, lambda: _nodes(view, registered), legacy)
    stranded = stranded_in(view)
    if stranded is not None:
        families += gauge_families(_STRANDED_GAUGES, lambda: _stranded(stranded), legacy)
        families += gauge_families(_ROOM_GAUGES, lambda: _room(stranded), legacy)
    return sorted(families, key=lambda family: family.name)


MAX_USUAL_PODS = 10  # of which the room is a sample
MAX_MODELS = 63  # characters of a label: tenants write them


class _DeviceRow(NamedTuple):
    """A device. Strings are escaped. *in_units*: its cores are compute units."""

    node: str
    uuid: str
    type: str
    usage: DeviceUsage
    in_units: bool


class _NodeRow(NamedTuple):
    """A node that should offer devices. Its name is escaped."""

    node: str
    devices: int


class _InstanceRow(NamedTuple):
    """A MIG instance that the device plugin has created. Strings are escaped. *name*: profile and GPU instance."""

    node: str
    uuid: str
    usage: DeviceUsage
    partition: Partition
    mig_uuid: str
    profile: str
    gpu_instance: str
    compute_instance: str
    name: str


class _AllocationRow(NamedTuple):
    """One pod's share of one device. Strings are escaped. *percent*: its cores in percent, None if unknown."""

    namespace: str
    node: str
    pod: str
    uuid: str
    memory_mib: int
    cores: int
    percent: int | None
    container: str = "0"  # upstream sums up a pod's containers and always writes 0


class _QuotaRow(NamedTuple):
    """A namespace's usage of one resource. Strings are escaped.

    *limit*: as written, None without one; *limit_text* is 0 then, as in upstream. *allowed*: the enforced limit in the
    unit of *used* (MiB or percent), None if nothing is enforced.
    """

    namespace: str
    resource: str
    used: int
    limit: int | None
    limit_text: int
    allowed: int | None


class _StrandedRow(NamedTuple):
    """The stranded part of a model for one cause. Strings are escaped. *ratio*: of all that is free of it."""

    model: str
    cause: str
    ratio: float


class _RoomRow(NamedTuple):
    """The number of further usual pods of one kind that fit. Strings are escaped."""

    vendor: str
    devices: int
    cores: int
    memory: str
    cpu: float
    models: str
    pods: int


def _devices(
    view: View, in_units: Container[str] = (), beside: View | None = None
) -> Iterator[_DeviceRow]:
    """Yields all devices. Skips devices without a UUID, a UUID's repetitions on the same node, and what *beside* has
    there."""
    for name in sorted(view.nodes):
        node, seen = escape_label(name), {"", *_uuids(beside, name)}
        for usages in view.nodes[name].values():
            for usage in usages:
                device = usage.device
                if device.uuid not in seen:
                    seen.add(device.uuid)
                    yield _DeviceRow(
                        node,
                        escape_label(device.uuid),
                        escape_label(device.model),
                        usage,
                        device.vendor in in_units,
                    )


def _nodes(view: View, registered: Collection[str]) -> Iterator[_NodeRow]:
    """Yields how many devices the nodes offer."""
    for name in sorted(registered):
        usages = view.nodes.get(name, {})
        yield _NodeRow(escape_label(name), sum(map(len, usages.values())))


def _instances(view: View) -> Iterator[_InstanceRow]:
    """Yields the MIG instances of all devices, sorted by placement."""
    for row in _devices(view):
        for partition in sorted(set(row.usage.partitions)):
            if len(partition.instance) == 3:
                uuid, gpu_instance, compute_instance = map(escape_label, partition.instance)
                profile = escape_label(partition.name)
                yield _InstanceRow(
                    row.node,
                    row.uuid,
                    row.usage,
                    partition,
                    uuid,
                    profile,
                    gpu_instance,
                    compute_instance,
                    f"{profile}-{gpu_instance}",
                )


def _uuids(view: View | None, node: str) -> set[str]:
    """Returns the UUIDs of the devices of *node* in *view*."""
    usages = view.nodes.get(node, {}) if view is not None else {}
    return {usage.device.uuid for of_vendor in usages.values() for usage in of_vendor}


def _allocations(
    view: View, in_units: Collection[str], beside: View | None = None
) -> Iterator[_AllocationRow]:
    """Yields each pod's share of each device by node, except for devices that *beside* has there. A terminating pod and
    its successor of the same name are summed up."""
    for name, on_node in groupby(
        sorted(view.bookings.values(), key=attrgetter("node")), key=attrgetter("node")
    ):
        node, others = escape_label(name), _uuids(beside, name)
        usages = view.nodes.get(name, {})
        devices = {
            usage.device.uuid: usage.device for key in in_units for usage in usages.get(key, ())
        }
        for (namespace, pod, uuid), (memory, cores, vendor) in sorted(
            _amounts(on_node, view).items()
        ):
            if uuid in others:
                continue
            percent = _percent(devices.get(uuid), cores) if vendor in in_units else cores
            yield _AllocationRow(
                escape_label(namespace),
                node,
                escape_label(pod),
                escape_label(uuid),
                memory,
                cores,
                percent,
            )


def _amounts(
    bookings: Iterable[Booking], view: View
) -> dict[tuple[str, str, str], tuple[int, int, str]]:
    """Returns MiB, cores and vendor by namespace, pod and device."""
    amounts: dict[tuple[str, str, str], tuple[int, int, str]] = {}
    for booking in bookings:
        ref = view.ref(booking.uid)
        for vendor, charges in booking.charges:
            for charge in charges:
                if charge.uuid:
                    key = (booking.namespace, ref.name if ref is not None else "", charge.uuid)
                    memory, cores, _ = amounts.get(key, (0, 0, vendor))
                    amounts[key] = (memory + charge.memory_mib, cores + charge.cores, vendor)
    return amounts


def _percent(device: Device | None, cores: int) -> int | None:
    """Returns *cores* in percent of the device's cores, rounded up; None if those are unknown."""
    return -(-cores * 100 // device.cores) if device is not None and device.cores > 0 else None


def _ratio(part: int, whole: int | None) -> float | None:
    return part / whole if whole and whole > 0 else None


def _quotas(view: View, vendors: Catalog) -> Iterator[_QuotaRow]:
    """Yields resources with a limit or usage, also in namespaces without a ResourceQuota."""
    names: set[str] = set()
    for vendor in vendors:
        names.update((vendor.resources.memory, vendor.resources.cores))
    resources = sorted(filter(None, names))
    namespaces = {namespace for namespace, _ in view.used}
    for namespace in sorted(namespaces.union(view.facts.quotas)):
        quotas = without_scopes(view.facts.quotas.get(namespace, {}).values())
        used, allowed = _used(view, namespace, vendors), _allowed(quotas, vendors)
        for resource in resources:
            limit = lowest_limit(quotas, resource)
            if limit is None and resource not in used:
                continue
            yield _QuotaRow(
                escape_label(namespace),
                escape_label(resource),
                used[resource],
                limit,
                limit or 0,
                allowed.get(resource),
            )


def _used(view: View, namespace: str, vendors: Catalog) -> Counter[str]:
    """Returns the usage of *namespace* by resource name. Vendors may share a name."""
    used: Counter[str] = Counter()
    for vendor in vendors:
        amounts = view.used.get((namespace, vendor.key), ())
        names = (vendor.resources.memory, vendor.resources.cores, vendor.resources.count)
        for resource, amount in zip(names, amounts):
            used[resource] += amount
    return used


def _allowed(quotas: Collection[QuotaLimits], vendors: Catalog) -> dict[str, int]:
    """Returns the enforced limits of *quotas* by resource name, in MiB or percent."""
    allowed: dict[str, int] = {}
    if not quotas:
        return allowed
    for vendor in vendors:
        budget = allowed_budget(vendor, quotas)
        if budget.memory_mib is not None:
            allowed[vendor.resources.memory] = budget.memory_mib
        if budget.cores is not None:
            allowed[vendor.resources.cores] = budget.cores
        if budget.devices is not None:
            allowed[vendor.resources.count] = budget.devices
    return allowed


def _stranded(stranded: Stranded) -> Iterator[_StrandedRow]:
    """Yields each model, of which nothing is free counts as nothing stranded, with each cause."""
    for model, free in stranded.by_model().items():
        for cause, devices in free.by_cause.items():
            ratio = devices / free.free if free.free > 0 else 0.0
            yield _StrandedRow(escape_label(model), cause, round(ratio, 4))


def _room(stranded: Stranded) -> Iterator[_RoomRow]:
    """Yields the most common usual pods. Of those with equal labels, which differ otherwise, the most common one."""
    rows: dict[tuple[object, ...], _RoomRow] = {}
    for kind, pods in stranded.room.items():
        row = _RoomRow(*_labels_of(kind), pods)
        rows.setdefault(row[:-1], row)
        if len(rows) == MAX_USUAL_PODS:
            break
    yield from rows.values()


def _labels_of(kind: UsualPod) -> tuple[str, int, int, str, float, str]:
    memory = f"{kind.memory_percent}%" if kind.memory_percent else str(kind.memory_mib)
    models = [*(kind.use_types or ())]
    models += [f"not {model}" for model in kind.nouse_types or ()]
    return (
        escape_label(kind.vendor),
        kind.count,
        kind.cores,
        memory,
        kind.milli_cpu / 1000,
        escape_label(",".join(models)[:MAX_MODELS]),
    )


_DEVICE = {
    "node": "node",
    "device_uuid": "uuid",
    "device_index": "usage.device.index",
    "device_type": "type",
}
_OLD_UNTYPED = {"nodeid": "node", "deviceuuid": "uuid", "deviceidx": "usage.device.index"}
_OLD_DEVICE = {**_OLD_UNTYPED, "devicetype": "type"}
_INSTANCE = {
    "node": "node",
    "device_uuid": "uuid",
    "device_index": "usage.device.index",
    "mig_uuid": "mig_uuid",
    "profile": "profile",
    "gpu_instance_id": "gpu_instance",
    "compute_instance_id": "compute_instance",
    "placement_start": "partition.start",
    "placement_size": "partition.size",
}
_ALLOCATION = {
    "namespace": "namespace",
    "node": "node",
    "pod": "pod",
    "container_index": "container",
    "device_uuid": "uuid",
}
_OLD_ALLOCATION = {
    "podnamespace": "namespace",
    "nodename": "node",
    "podname": "pod",
    "containeridx": "container",
    "deviceuuid": "uuid",
}
_ROOM = {
    "vendor": "vendor",
    "count": "devices",
    "cores": "cores",
    "memory": "memory",
    "cpu": "cpu",
    "models": "models",
}
_QUOTA = {"namespace": "namespace", "quota_name": "resource"}

_DEVICE_GAUGES: tuple[Gauge[_DeviceRow], ...] = (
    Gauge(
        "hami_gpu_memory_limit_bytes",
        "Allocatable memory of a device",
        _DEVICE,
        lambda row: row.usage.device.memory_mib * MIB,
        "GPUDeviceMemoryLimit",
        _OLD_DEVICE,
    ),
    Gauge(
        "hami_gpu_core_limit_ratio",
        "Allocatable cores of a device, in percent",
        _DEVICE,
        lambda row: 100 if row.in_units else row.usage.device.cores,
        "GPUDeviceCoreLimit",
        _OLD_DEVICE,
        lambda row: row.usage.device.cores,
    ),
    Gauge(
        "hami_gpu_memory_allocated_bytes",
        "Memory of a device that pods have been given",
        {**_DEVICE, "device_cores": "usage.device.cores"},
        lambda row: row.usage.memory_used_mib * MIB,
        "GPUDeviceMemoryAllocated",
        {**_OLD_DEVICE, "devicecores": "usage.device.cores"},
    ),
    Gauge(
        "hami_gpu_shared_count",
        "Containers that share a device",
        _DEVICE,
        lambda row: row.usage.slots_used,
        "GPUDeviceSharedNum",
        _OLD_DEVICE,
    ),
    Gauge(
        "hami_gpu_core_allocated_ratio",
        "Cores of a device that pods have been given, in percent",
        _DEVICE,
        lambda row: (
            _percent(row.usage.device, row.usage.cores_used)
            if row.in_units
            else row.usage.cores_used
        ),
        "GPUDeviceCoreAllocated",
        _OLD_DEVICE,
        lambda row: row.usage.cores_used,
    ),
    Gauge(
        "hami_node_gpu_overview",
        "A device with its limits; the value is its memory that pods have been given",
        {
            **_DEVICE,
            "device_cores": "usage.device.cores",
            "device_memory_limit": "usage.device.memory_mib",
        },
        lambda row: row.usage.memory_used_mib * MIB,
        "nodeGPUOverview",
        {
            **_OLD_DEVICE,
            "devicecores": "usage.device.cores",
            "devicememorylimit": "usage.device.memory_mib",
        },
    ),
    Gauge(
        "hami_node_gpu_memory_allocated_ratio",
        "Part of a device's memory that pods have been given, 0 to 1",
        _DEVICE,
        lambda row: _ratio(row.usage.memory_used_mib, row.usage.device.memory_mib),
        "nodeGPUMemoryPercentage",
        _OLD_UNTYPED,
    ),
)
_NODE_GAUGES: tuple[Gauge[_NodeRow], ...] = (
    Gauge(
        "hami_node_devices",
        "Devices that a node offers, healthy or not; 0 if it has registered some and offers none now",
        {"node": "node"},
        lambda row: row.devices,
    ),
)
_INSTANCE_GAUGES: tuple[Gauge[_InstanceRow], ...] = (
    Gauge(
        "hami_node_gpu_mig_instance_info",
        "A MIG instance that the device plugin has made, always 1",
        _INSTANCE,
        lambda row: 1,
        "nodeGPUMigInstance",
        {**_OLD_UNTYPED, "migname": "name"},
    ),
)
_ALLOCATION_GAUGES: tuple[Gauge[_AllocationRow], ...] = (
    Gauge(
        "hami_vgpu_memory_allocated_bytes",
        "Memory of a device that a pod has been given",
        _ALLOCATION,
        lambda row: row.memory_mib * MIB,
        "vGPUMemoryAllocated",
        _OLD_ALLOCATION,
    ),
    Gauge(
        "hami_vgpu_core_allocated_ratio",
        "Cores of a device that a pod has been given, in percent",
        _ALLOCATION,
        lambda row: row.percent,
        "vGPUCoreAllocated",
        _OLD_ALLOCATION,
        lambda row: row.cores,
    ),
)
_QUOTA_GAUGES: tuple[Gauge[_QuotaRow], ...] = (
    Gauge(
        "hami_resource_quota_used",
        "What a namespace's pods take of a resource that can be limited",
        {**_QUOTA, "limit": "limit_text"},
        lambda row: row.used,
        "QuotaUsed",
        {"quotanamespace": "namespace", "quotaName": "resource", "limit": "limit_text"},
    ),
    Gauge(
        "hami_resource_quota_limit",
        "Limit of a namespace on a resource, as its ResourceQuota has it",
        _QUOTA,
        lambda row: row.limit,
    ),
    Gauge(
        "hami_resource_quota_used_ratio",
        "Part of a namespace's limit on a resource that its pods take, 0 to 1",
        _QUOTA,
        lambda row: _ratio(row.used, row.allowed),
    ),
)
_STRANDED_GAUGES: tuple[Gauge[_StrandedRow], ...] = (
    Gauge(
        "hami_gpu_stranded_ratio",
        "Part of what is free of a model's devices that the usual pods cannot use, 0 to 1, by cause",
        {"model": "model", "cause": "cause"},
        lambda row: row.ratio,
    ),
)
_ROOM_GAUGES: tuple[Gauge[_RoomRow], ...] = (
    Gauge(
        "hami_usual_pod_room",
        "Further usual pods that would fit if only such pods came",
        _ROOM,
        lambda row: row.pods,
    ),
)
