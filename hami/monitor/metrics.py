"""The monitor's metrics page: names and labels of HAMi's monitor, and what it does not have.

Every series comes from the last round. No text of a region is on the page, and no number that was not clamped.
Source: HAMi v2.10, cmd/vGPUmonitor/metrics.go; `docs/metrics.md` lists all series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hami.devices.usage import CardUsage
from hami.monitor.loop import TAMPERED, NodeReport
from hami.monitor.totals import UseTotals
from hami.monitor.usage import ContainerReport, DeviceUsageReport
from hami.web.exposition import ZONE, Family, Gauge, escape_label, gauge_families

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_CONTAINER_LABELS = ("container", "namespace", "pod")
_DEVICE_LABELS = (*_CONTAINER_LABELS, "device_uuid", "vdevice_index", "zone")


class _CardRow(NamedTuple):
    """A card of a node. *type*: its model, as upstream writes it."""

    node: str
    type: str
    usage: CardUsage


class _DeviceRow(NamedTuple):
    """A device of a container."""

    report: ContainerReport
    usage: DeviceUsageReport


class _InstanceRow(NamedTuple):
    """A MIG instance that a container has been given."""

    report: ContainerReport
    usage: DeviceUsageReport
    uuid: str
    gpu_instance: str
    compute_instance: str


def families(report: NodeReport, *, legacy: bool = False) -> list[Family]:
    """Returns all gauges of *report*, sorted by name; with *legacy* also those with upstream's old names."""
    containers = report.containers or ()
    cards = [_CardRow(report.node, f"NVIDIA-{card.model}", card) for card in report.cards or ()]
    devices: list[_DeviceRow] = []
    instances: list[_InstanceRow] = []
    for entry in containers:
        for usage in entry.devices:
            devices.append(_DeviceRow(entry, usage))
            identity = usage.device.identity
            if len(identity) == 3:
                instances.append(_InstanceRow(entry, usage, *identity))
    gauges = [
        *gauge_families(_CARD_GAUGES, lambda: cards, legacy, escape=escape_label),
        *gauge_families(_DEVICE_GAUGES, lambda: devices, legacy, escape=escape_label),
        *gauge_families(_INSTANCE_GAUGES, lambda: instances, legacy, escape=escape_label),
        *gauge_families(_REGION_GAUGES, lambda: containers, legacy, escape=escape_label),
    ]
    return sorted(gauges, key=lambda family: family.name)


class MonitorMetrics(Collector):
    """The metrics of the monitor itself, and the counters of containers, in *registry*."""

    def __init__(
        self,
        registry: CollectorRegistry,
        report: Callable[[], NodeReport],
        errors: Callable[[], Mapping[str, int]],
        is_stale: Callable[[], bool] = lambda: False,
    ) -> None:
        """*report*: returns the last round. *errors*: how often what has failed. *is_stale*: reports whether the last
        round was long ago, as when the driver hangs."""
        self._report = report
        self._errors = errors
        self._is_stale = is_stale
        self._rounds = Histogram(
            "hami_monitor_round_seconds", "Duration of a round", registry=registry, buckets=SECONDS
        )
        registry.register(self)

    def observe_round(self, seconds: float) -> None:
        """Records the duration of a round."""
        self._rounds.observe(seconds)

    def collect(self) -> Iterator[Metric]:
        """Yields the current gauges and counters."""
        report = self._report()
        yield GaugeMetricFamily(
            "hami_monitor_nvml_up",
            "1 if the driver answers",
            value=int(report.cards is not None and not self._is_stale()),
        )
        errors = CounterMetricFamily(
            "hami_monitor_errors", "What could not be read or written, by round", labels=("what",)
        )
        for step, count in self._errors().items():
            errors.add_metric((step,), count)
        yield errors
        yield from _counters(report)


def _counters(report: NodeReport) -> Iterator[Metric]:
    throttled = CounterMetricFamily(
        "hami_container_throttled_seconds",
        "Time that launches of a container have waited for its compute limit",
        labels=_DEVICE_LABELS,
    )
    compute = CounterMetricFamily(
        "hami_container_compute_seconds",
        "Time for which a container has used the compute of a device",
        labels=_DEVICE_LABELS,
    )
    memory = CounterMetricFamily(
        "hami_container_memory_byte_seconds",
        "Memory of a device that a container has used, times seconds",
        labels=_DEVICE_LABELS,
    )
    given = CounterMetricFamily(
        "hami_container_memory_given_byte_seconds",
        "Memory of a device that a container was given, times the seconds in which its use was known",
        labels=_DEVICE_LABELS,
    )
    tampered = CounterMetricFamily(
        "hami_vgpu_tampered",
        "Changes of a container to what only the monitor or the device plugin may write",
        labels=(*_CONTAINER_LABELS, "what", "zone"),
    )
    for entry in report.containers or ():
        labels = (entry.container.name, entry.container.pod.namespace, entry.container.pod.name)
        for usage in entry.devices:
            of_device = (*labels, usage.device.card, str(usage.device.index), ZONE)
            if usage.throttled is not None:
                throttled.add_metric(of_device, usage.throttled)
            totals = report.totals.get((entry.container.key, usage.device.index), UseTotals())
            for family, total in (
                (compute, totals.compute_s),
                (memory, totals.memory_byte_s),
                (given, totals.given_byte_s),
            ):
                if total is not None:
                    family.add_metric(of_device, total)
        for fault in TAMPERED:
            count = report.tampered.get((entry.container.key, fault), 0)
            if count or entry.reading.region is not None:
                tampered.add_metric((*labels, fault, ZONE), count)
    yield throttled
    yield compute
    yield memory
    yield given
    yield tampered


_CARD_UNNAMED = {"device_index": "usage.index", "device_uuid": "usage.uuid", "device_type": "type"}
_CARD = {"node": "node", **_CARD_UNNAMED}
_OLD_CARD = {
    "nodeid": "node",
    "deviceidx": "usage.index",
    "deviceuuid": "usage.uuid",
    "devicetype": "type",
}
_CONTAINER = {
    "namespace": "container.pod.namespace",
    "pod": "container.pod.name",
    "container": "container.name",
}
_DEVICE = {
    **{label: f"report.{path}" for label, path in _CONTAINER.items()},
    "vdevice_index": "usage.device.index",
    "device_uuid": "usage.device.card",
}
_OLD_NAMES = {
    "namespace": "podnamespace",
    "pod": "podname",
    "container": "ctrname",
    "vdevice_index": "vdeviceid",
    "device_uuid": "deviceuuid",
}
_OLD_DEVICE = {_OLD_NAMES[label]: path for label, path in _DEVICE.items()}

_CARD_GAUGES: tuple[Gauge[_CardRow], ...] = (
    Gauge(
        "hami_host_gpu_memory_used_bytes",
        "Memory of a card that is in use",
        _CARD,
        lambda row: row.usage.memory_used,
        "HostGPUMemoryUsage",
        _OLD_CARD,
    ),
    Gauge(
        "hami_host_gpu_utilization_ratio",
        "Utilization of a card, in percent",
        _CARD,
        lambda row: row.usage.utilization,
        "HostCoreUtilization",
        _OLD_CARD,
    ),
    Gauge(
        "hami_host_gpu_memory_controller_utilization_ratio",
        "Utilization of a card's memory controller, in percent",
        _CARD_UNNAMED,
        lambda row: row.usage.memory_utilization,
    ),
)
_DEVICE_GAUGES: tuple[Gauge[_DeviceRow], ...] = (
    Gauge(
        "hami_vgpu_memory_used_bytes",
        "Memory of a device that a container uses",
        _DEVICE,
        lambda row: row.usage.used,
        "vGPU_device_memory_usage_in_bytes",
        _OLD_DEVICE,
    ),
    Gauge(
        "hami_vgpu_memory_limit_bytes",
        "Memory of a device that a container may use",
        _DEVICE,
        lambda row: row.usage.device.memory,
        "vGPU_device_memory_limit_in_bytes",
        _OLD_DEVICE,
    ),
    Gauge(
        "hami_container_device_memory_bytes",
        "Memory of a device that a container uses",
        _DEVICE,
        lambda row: row.usage.used,
        "Device_memory_desc_of_container",
        {
            **_OLD_DEVICE,
            "context": "usage.context",
            "module": "usage.module",
            "data": "usage.buffer",
            "offset": "usage.offset",
        },
    ),
    Gauge(
        "hami_vgpu_memory_context_bytes",
        "Part of the counted memory: contexts",
        _DEVICE,
        lambda row: row.usage.context,
    ),
    Gauge(
        "hami_vgpu_memory_module_bytes",
        "Part of the counted memory: modules",
        _DEVICE,
        lambda row: row.usage.module,
    ),
    Gauge(
        "hami_vgpu_memory_buffer_bytes",
        "Part of the counted memory: allocations",
        _DEVICE,
        lambda row: row.usage.buffer,
    ),
    Gauge(
        "hami_container_device_utilization_ratio",
        "Compute of a device that a container uses, in percent",
        _DEVICE,
        lambda row: row.usage.utilization,
        "Device_utilization_desc_of_container",
        _OLD_DEVICE,
    ),
    Gauge(
        "hami_container_last_kernel_elapsed_seconds",
        "Time since the last kernel of a container",
        _DEVICE,
        lambda row: row.report.last_kernel_s,
        "Device_last_kernel_of_container",
        _OLD_DEVICE,
    ),
    Gauge(
        "hami_container_core_limit_ratio",
        "Compute of a device that a container was given, in percent",
        _DEVICE,
        lambda row: row.usage.device.cores,
    ),
    Gauge(
        "hami_container_memory_host_bytes",
        "Memory of a device that a container uses by the driver's account",
        _DEVICE,
        lambda row: row.usage.host_memory,
    ),
    Gauge(
        "hami_container_uncounted_bytes",
        "Memory that the driver sees and the limiter does not",
        _DEVICE,
        lambda row: row.usage.uncounted,
    ),
    Gauge(
        "hami_container_over_limit",
        "1 if a container uses more memory than it was given",
        _DEVICE,
        lambda row: int(row.usage.is_over_limit),
    ),
    Gauge(
        "hami_container_usage_source_info",
        "Where memory and utilization come from: host, region or none; always 1",
        {
            **_DEVICE,
            "memory_source": "usage.memory_source",
            "utilization_source": "usage.utilization_source",
        },
        lambda row: 1,
    ),
)
_INSTANCE_GAUGES: tuple[Gauge[_InstanceRow], ...] = (
    Gauge(
        "hami_mig_device_info",
        "A MIG instance that a container was given, always 1",
        {
            **_DEVICE,
            "mig_uuid": "uuid",
            "profile": "usage.device.instance.name",
            "gpu_instance_id": "gpu_instance",
            "compute_instance_id": "compute_instance",
        },
        lambda row: 1,
        "MigInfo",
        {**_OLD_DEVICE, "instanceid": "gpu_instance"},
    ),
)
_REGION_GAUGES: tuple[Gauge[ContainerReport], ...] = (
    Gauge(
        "hami_vgpu_region_info",
        "The shared region of a container: its limiter, version and state; always 1",
        {
            **_CONTAINER,
            "limiter": "reading.limiter",
            "version": "reading.version",
            "state": "reading.state",
        },
        lambda row: 1,
    ),
    Gauge(
        "hami_container_blocked",
        "1 while a container waits for one of higher priority",
        _CONTAINER,
        lambda row: int(row.is_blocked),
    ),
    Gauge(
        "hami_container_limited",
        "1 while the compute limit of a container counts",
        _CONTAINER,
        lambda row: int(row.is_limited),
    ),
)
