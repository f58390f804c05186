"""The device plugin's metrics: its cards and their health."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hami.plugin.health_reporter import HealthReporter


class HealthMetrics(Collector):
    """The metrics of the reporter that it follows, in *registry*. Threads may share it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._reporter: HealthReporter | None = None
        registry.register(self)

    def follow(self, reporter: HealthReporter | None) -> None:
        """Serves what *reporter* knows from now on; ``None``: nothing."""
        self._reporter = reporter

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
