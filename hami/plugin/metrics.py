"""The device plugin's metrics: its cards, their health, and the driver's limits of memory."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hami.plugin.health_reporter import HealthReporter
from hami.plugin.wall_keeper import WallKeeper


class PluginMetrics(Collector):
    """The metrics of the program that it follows, in *registry*. Threads may share it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._reporter: HealthReporter | None = None
        self._wall: WallKeeper | None = None
        registry.register(self)

    def follow(self, reporter: HealthReporter | None, wall: WallKeeper | None = None) -> None:
        """Serves what *reporter* and *wall* know from now on; ``None``: nothing."""
        self._reporter = reporter
        self._wall = wall

    def collect(self) -> Iterator[Metric]:
        """Yields the current values."""
        reporter = self._reporter
        if reporter is None:
            return
        node = reporter.node
        snapshot = reporter.inventory.snapshot()
        cards = GaugeMetricFamily(
            "hami_device_plugin_cards", "Cards that the device plugin has found", labels=("node",)
        )
        cards.add_metric((node,), len(snapshot.cards))
        yield cards
        healthy = GaugeMetricFamily(
            "hami_device_healthy",
            "1 if a card is healthy, 0 if not",
            labels=("node", "uuid", "model"),
        )
        for card in snapshot.cards:
            is_healthy = card.uuid not in snapshot.unhealthy
            healthy.add_metric((node, card.uuid, card.model), int(is_healthy))
        yield healthy
        actions = GaugeMetricFamily(
            "hami_device_recovery_action",
            "What the driver asks for, by NVML's number",
            labels=("node", "uuid"),
        )
        for uuid, action in sorted(reporter.actions().items()):
            actions.add_metric((node, uuid), action)
        yield actions
        xids = CounterMetricFamily(
            "hami_xid", "XIDs that the driver has reported", labels=("node", "uuid", "xid")
        )
        for (uuid, xid), count in sorted(reporter.xids().items()):
            xids.add_metric((node, uuid, str(xid)), count)
        yield xids
        if self._wall is not None and self._wall.probe.state():
            yield from _wall_metrics(node, self._wall)


def _wall_metrics(node: str, wall: WallKeeper) -> Iterator[Metric]:
    """Yields what the driver limits and counts by control group."""
    is_off = bool(wall.probe.reason_off())
    info = GaugeMetricFamily(
        "hami_memory_wall_info",
        "How the driver limits device memory by control group: dmem, misc, or off; always 1",
        labels=("node", "backend"),
    )
    info.add_metric((node, "off" if is_off else wall.probe.backend()), 1)
    yield info
    repairs = CounterMetricFamily(
        "hami_memory_wall_repairs",
        "Limits of the driver that were lost and set again",
        labels=("node",),
    )
    repairs.add_metric((node,), wall.repairs())
    yield repairs
    failed = GaugeMetricFamily(
        "hami_memory_wall_failed_containers",
        "Running containers for which the driver's limit could not be set",
        labels=("node",),
    )
    failed.add_metric((node,), wall.failed())
    yield failed
    used = GaugeMetricFamily(
        "hami_container_driver_bytes",
        "Memory of a device that a container uses, as the driver counts it for its limit",
        labels=("namespace", "pod", "container", "device_uuid"),
    )
    for use in wall.uses():
        used.add_metric((use.pod.namespace, use.pod.name, use.container, use.uuid), use.used)
    yield used
