"""What is shared out and to whom, as Prometheus gauges with upstream's names, labels and values, and one of ours.

A snapshot of the cache becomes lines of text. They are made while they are read, one by one, so that a large cluster
costs neither much memory nor a long hold of anything. This module holds no lock and opens nothing.
Source: HAMi v2.10, cmd/scheduler/metrics.go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from hami.cache.cache import Snapshot
from hami.model import Device, QuotaLimits, DeviceUsage
from hami.scheduling.index import Booking
from hami.scheduling.quota import allowance, limit_of
from hami.vendors.spec import Catalog, CoresIn
from hami.web.exposition import Family, escape_label

__all__ = ["families"]

ZONE = "vGPU"
MIB = 1 << 20



def families(snapshot: Snapshot, vendors: Catalog, *, legacy: bool = False) -> list[Family]:
    """All gauges that follow from *snapshot*, sorted by name; with *legacy* those of upstream's old names too.

    The new names show cores that are compute units in percent, the old ones as they are.
    ``hami_build_info``, which asks for no snapshot, is :func:`build_info`'s.
    Order of samples: devices by node and then as registered, pods by node, namespace and name, quotas by namespace.
    """
    bookings = _by_node(snapshot.bookings)
    in_units = frozenset(vendor.key for vendor in vendors if vendor.cores_in is CoresIn.COMPUTE_UNITS)
    made = [
        *(gauge.family(_cards(snapshot, in_units)) for gauge in _CARD_GAUGES + legacy * _LEGACY_CARD_GAUGES),
        *(gauge.family(_instances(snapshot)) for gauge in _INSTANCE_GAUGES + legacy * _LEGACY_INSTANCE_GAUGES),
        *(gauge.family(_holdings(snapshot, bookings, in_units))
          for gauge in _HOLDING_GAUGES + legacy * _LEGACY_HOLDING_GAUGES),
        *(gauge.family(_quotas(snapshot, vendors)) for gauge in _QUOTA_GAUGES + legacy * _LEGACY_QUOTA_GAUGES),
    ]
    return sorted(made, key=lambda family: family.name)


class _CardRow(NamedTuple):
    """A device; texts are escaped. *in_units*: its cores are compute units."""

    node: str
    uuid: str
    type: str
    place: int
    cores: int
    memory_mib: int
    view: DeviceUsage
    in_units: bool


class _Instance(NamedTuple):
    """A MIG instance that the device plugin has made; texts are escaped. *name*: its profile and GPU instance."""

    node: str
    uuid: str
    place: int
    mig_uuid: str
    profile: str
    gpu_instance: str
    compute_instance: str
    start: int
    size: int
    name: str


class _Holding(NamedTuple):
    """What one pod holds of one device; texts are escaped. *percent*: its cores in percent, ``None`` if unknown."""

    namespace: str
    node: str
    pod: str
    uuid: str
    memory_mib: int
    cores: int
    percent: int | None
    container: str = "0"  # upstream sums a pod's containers up before it counts them


class _QuotaRow(NamedTuple):
    """What a namespace takes of one resource, and its limit, ``None`` without; texts are escaped.

    *limit* is as written; *allowed*, where it is held to, in the unit of *used*: MiB or percent.
    """

    namespace: str
    resource: str
    used: int
    limit: int | None
    allowed: int | None

    @property
    def limit_text(self) -> int:
        """The limit; upstream writes 0 when there is none."""
        return self.limit or 0


Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class _Gauge(Generic[Row]):
    """How rows become samples. *labels*: the field of the row that each shows. A value of ``None`` is no sample."""

    name: str
    help: str
    labels: Mapping[str, str]
    value: Callable[[Row], int | float | None]

    def family(self, rows: Iterable[Row]) -> Family:
        """The gauge over *rows*."""
        return Family(self.name, self.help, self._samples(rows))

    def _samples(self, rows: Iterable[Row]) -> Iterator[str]:
        names = sorted(self.labels)
        pairs = [*(f'{name}="%s"' for name in names), f'zone="{ZONE}"']
        template = f"{self.name}{{{','.join(pairs)}}} %s"
        texts, value = attrgetter(*(self.labels[name] for name in names)), self.value
        for row in rows:
            if (amount := value(row)) is not None:
                yield template % (*texts(row), amount)


def _cards(snapshot: Snapshot, in_units: Container[str] = ()) -> Iterator[_CardRow]:
    """Devices; those without uuid, and repetitions of one on the same node, are left out."""
    for name in sorted(snapshot.nodes):
        node, seen = escape_label(name), {""}
        for views in snapshot.nodes[name].values():
            for view in views:
                device = view.device
                if device.uuid not in seen:
                    seen.add(device.uuid)
                    yield _CardRow(node, escape_label(device.uuid), escape_label(device.model), device.index, device.cores,
                                device.memory_mib, view, device.vendor in in_units)


def _instances(snapshot: Snapshot) -> Iterator[_Instance]:
    """The MIG instances of all cards, by their places on them."""
    for card in _cards(snapshot):
        for partition in sorted(set(card.view.partitions)):
            if len(partition.instance) == 3:
                uuid, gpu_instance, compute_instance = map(escape_label, partition.instance)
                profile = escape_label(partition.name)
                yield _Instance(card.node, card.uuid, card.place, uuid, profile, gpu_instance, compute_instance,
                                partition.start, partition.size, f"{profile}-{gpu_instance}")


def _by_node(bookings: Iterable[Booking]) -> dict[str, list[Booking]]:
    nodes: dict[str, list[Booking]] = {}
    for booking in bookings:
        nodes.setdefault(booking.node, []).append(booking)
    return nodes


def _holdings(snapshot: Snapshot, bookings: Mapping[str, Sequence[Booking]],
              in_units: Collection[str]) -> Iterator[_Holding]:
    """What pods hold. A pod whose predecessor of the same name is not quite gone is one with it."""
    for name in sorted(bookings):
        node = escape_label(name)
        views = snapshot.nodes.get(name, {})
        devices = {view.device.uuid: view.device for key in in_units for view in views.get(key, ())}
        for (namespace, pod, uuid), (memory, cores, vendor) in sorted(_amounts(bookings[name], snapshot).items()):
            percent = _percent(devices.get(uuid), cores) if vendor in in_units else cores
            yield _Holding(escape_label(namespace), node, escape_label(pod), escape_label(uuid), memory, cores, percent)


def _amounts(bookings: Iterable[Booking], snapshot: Snapshot) -> dict[tuple[str, str, str], tuple[int, int, str]]:
    """MiB and cores by namespace, pod and device, and the device's vendor."""
    amounts: dict[tuple[str, str, str], tuple[int, int, str]] = {}
    for booking in bookings:
        ref = snapshot.pods.get(booking.uid)
        for vendor, charges in booking.charges:
            for charge in charges:
                if charge.uuid:
                    key = (booking.namespace, ref.name if ref is not None else "", charge.uuid)
                    memory, cores, _ = amounts.get(key, (0, 0, vendor))
                    amounts[key] = (memory + charge.memory_mib, cores + charge.cores, vendor)
    return amounts


def _percent(device: Device | None, cores: int) -> int | None:
    """*cores* in percent of those of *device*, rounded up; ``None`` when it is not known how many those are."""
    return -(-cores * 100 // device.cores) if device is not None and device.cores > 0 else None


def _quotas(snapshot: Snapshot, vendors: Catalog) -> Iterator[_QuotaRow]:
    """Resources that are limited or taken; namespaces without any ResourceQuota are counted too."""
    limits: dict[str, list[QuotaLimits]] = {}
    for quota in snapshot.quotas:
        limits.setdefault(quota.namespace, []).append(quota)
    for namespace in sorted(limits.keys() | {namespace for namespace, _ in snapshot.used}):
        mine = limits.get(namespace, [])
        used, allowed = _used(snapshot, namespace, vendors), _allowed(mine, vendors)
        for resource in sorted({name for vendor in vendors for name in (vendor.memory, vendor.cores) if name}):
            limit = limit_of(mine, resource)
            if limit is not None or resource in used:
                yield _QuotaRow(escape_label(namespace), escape_label(resource), used.get(resource, 0), limit,
                             allowed.get(resource))


def _used(snapshot: Snapshot, namespace: str, vendors: Catalog) -> dict[str, int]:
    """What *namespace* takes by resource name; vendors may share one."""
    used: dict[str, int] = {}
    for vendor in vendors:
        if (taken := snapshot.used.get((namespace, vendor.key))) is not None:
            for resource, amount in zip((vendor.memory, vendor.cores), taken):
                used[resource] = used.get(resource, 0) + amount
    return used


def _allowed(quotas: Collection[QuotaLimits], vendors: Catalog) -> dict[str, int]:
    """What *quotas* allow by resource name, in MiB or percent, where they are held to."""
    allowances = [(vendor, allowance(vendor, quotas)) for vendor in vendors] if quotas else []
    return {resource: amount for vendor, budget in allowances
            for resource, amount in ((vendor.memory, budget.memory_mib), (vendor.cores, budget.cores))
            if amount is not None}


_CARD = {"node": "node", "device_uuid": "uuid", "device_index": "place", "device_type": "type"}
_OLD_CARD = {"nodeid": "node", "deviceuuid": "uuid", "deviceidx": "place"}
_OLD_TYPED_CARD = {**_OLD_CARD, "devicetype": "type"}
_INSTANCE = {"node": "node", "device_uuid": "uuid", "device_index": "place", "mig_uuid": "mig_uuid",
             "profile": "profile", "gpu_instance_id": "gpu_instance",
             "compute_instance_id": "compute_instance", "placement_start": "start", "placement_size": "size"}
_OLD_INSTANCE = {**_OLD_CARD, "migname": "name"}
_HOLDING = {"namespace": "namespace", "node": "node", "pod": "pod", "container_index": "container",
            "device_uuid": "uuid"}
_OLD_HOLDING = {"podnamespace": "namespace", "nodename": "node", "podname": "pod", "containeridx": "container",
                "deviceuuid": "uuid"}
_QUOTA = {"namespace": "namespace", "quota_name": "resource"}


def _memory_limit(card: _CardRow) -> int:
    return card.memory_mib * MIB


def _core_limit(card: _CardRow) -> int:
    return 100 if card.in_units else card.cores


def _old_core_limit(card: _CardRow) -> int:
    return card.cores


def _memory_taken(card: _CardRow) -> int:
    return card.view.memory_used_mib * MIB


def _memory_ratio(card: _CardRow) -> float | None:
    return card.view.memory_used_mib / card.memory_mib if card.memory_mib > 0 else None


def _slots_taken(card: _CardRow) -> int:
    return card.view.slots_used


def _cores_taken(card: _CardRow) -> int | None:
    view = card.view
    return _percent(view.device, view.cores_used) if card.in_units else view.cores_used


def _old_cores_taken(card: _CardRow) -> int:
    return card.view.cores_used


def _is_made(instance: _Instance) -> int:
    return 1


def _memory_held(holding: _Holding) -> int:
    return holding.memory_mib * MIB


def _cores_held(holding: _Holding) -> int | None:
    return holding.percent


def _old_cores_held(holding: _Holding) -> int:
    return holding.cores


def _quota_used(quota: _QuotaRow) -> int:
    return quota.used


def _quota_limit(quota: _QuotaRow) -> int | None:
    return quota.limit


def _quota_ratio(quota: _QuotaRow) -> float | None:
    return quota.used / quota.allowed if quota.allowed else None


_CARD_GAUGES: tuple[_Gauge[_CardRow], ...] = (
    _Gauge("hami_gpu_memory_limit_bytes", "Memory of a device that may be given out", _CARD, _memory_limit),
    _Gauge("hami_gpu_core_limit_ratio", "Cores of a device that may be given out, in percent", _CARD, _core_limit),
    _Gauge("hami_gpu_memory_allocated_bytes", "Memory of a device that pods have been given",
           {**_CARD, "device_cores": "cores"}, _memory_taken),
    _Gauge("hami_gpu_shared_count", "Containers that share a device", _CARD, _slots_taken),
    _Gauge("hami_gpu_core_allocated_ratio", "Cores of a device that pods have been given, in percent", _CARD,
           _cores_taken),
    _Gauge("hami_node_gpu_overview", "A device with its limits; the value is its memory that pods have been given",
           {**_CARD, "device_cores": "cores", "device_memory_limit": "memory_mib"}, _memory_taken),
    _Gauge("hami_node_gpu_memory_allocated_ratio", "Part of a device's memory that pods have been given, 0 to 1",
           _CARD, _memory_ratio),
)
_LEGACY_CARD_GAUGES: tuple[_Gauge[_CardRow], ...] = (
    _Gauge("GPUDeviceMemoryLimit", "Old name of hami_gpu_memory_limit_bytes", _OLD_TYPED_CARD, _memory_limit),
    _Gauge("GPUDeviceCoreLimit", "Old name of hami_gpu_core_limit_ratio", _OLD_TYPED_CARD, _old_core_limit),
    _Gauge("GPUDeviceMemoryAllocated", "Old name of hami_gpu_memory_allocated_bytes",
           {**_OLD_TYPED_CARD, "devicecores": "cores"}, _memory_taken),
    _Gauge("GPUDeviceSharedNum", "Old name of hami_gpu_shared_count", _OLD_TYPED_CARD, _slots_taken),
    _Gauge("GPUDeviceCoreAllocated", "Old name of hami_gpu_core_allocated_ratio", _OLD_TYPED_CARD, _old_cores_taken),
    _Gauge("nodeGPUOverview", "Old name of hami_node_gpu_overview",
           {**_OLD_TYPED_CARD, "devicecores": "cores", "devicememorylimit": "memory_mib"}, _memory_taken),
    _Gauge("nodeGPUMemoryPercentage", "Old name of hami_node_gpu_memory_allocated_ratio", _OLD_CARD, _memory_ratio),
)
_INSTANCE_GAUGES: tuple[_Gauge[_Instance], ...] = (
    _Gauge("hami_node_gpu_mig_instance_info", "A MIG instance that the device plugin has made, always 1", _INSTANCE,
           _is_made),
)
_LEGACY_INSTANCE_GAUGES: tuple[_Gauge[_Instance], ...] = (
    _Gauge("nodeGPUMigInstance", "Old name of hami_node_gpu_mig_instance_info", _OLD_INSTANCE, _is_made),
)
_HOLDING_GAUGES: tuple[_Gauge[_Holding], ...] = (
    _Gauge("hami_vgpu_memory_allocated_bytes", "Memory of a device that a pod has been given", _HOLDING, _memory_held),
    _Gauge("hami_vgpu_core_allocated_ratio", "Cores of a device that a pod has been given, in percent", _HOLDING,
           _cores_held),
)
_LEGACY_HOLDING_GAUGES: tuple[_Gauge[_Holding], ...] = (
    _Gauge("vGPUMemoryAllocated", "Old name of hami_vgpu_memory_allocated_bytes", _OLD_HOLDING, _memory_held),
    _Gauge("vGPUCoreAllocated", "Old name of hami_vgpu_core_allocated_ratio", _OLD_HOLDING, _old_cores_held),
)
_QUOTA_GAUGES: tuple[_Gauge[_QuotaRow], ...] = (
    _Gauge("hami_resource_quota_used", "What a namespace's pods take of a resource that can be limited",
           {**_QUOTA, "limit": "limit_text"}, _quota_used),
    _Gauge("hami_resource_quota_limit", "Limit of a namespace on a resource, as its ResourceQuota has it", _QUOTA,
           _quota_limit),
    _Gauge("hami_resource_quota_used_ratio", "Part of a namespace's limit on a resource that its pods take, 0 to 1",
           _QUOTA, _quota_ratio),
)
_LEGACY_QUOTA_GAUGES: tuple[_Gauge[_QuotaRow], ...] = (
    _Gauge("QuotaUsed", "Old name of hami_resource_quota_used",
           {"quotanamespace": "namespace", "quotaName": "resource", "limit": "limit_text"}, _quota_used),
)
