"""Counters of who has held how much of the devices, as far as that is recorded; only the leader has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hami.codec.usage_sums import HeldAmounts, TotalKey
from hami.quantity import MIB

MAX_SERIES = 5000
"""The largest ones, of each counter."""
_COUNTERS: tuple[tuple[str, str, Callable[[HeldAmounts], float]], ...] = (
    (
        "hami_usage_gpu_seconds",
        "Devices that pods have held, times seconds: of each the larger share of memory and cores",
        lambda amounts: amounts.share / 1000,
    ),
    (
        "hami_usage_memory_byte_seconds",
        "Memory of devices that pods have held, times seconds",
        lambda amounts: amounts.memory_mib * MIB,
    ),
    (
        "hami_usage_core_seconds",
        "Cores that pods have held, times seconds; 1 for all cores of a device",
        lambda amounts: amounts.cores / 100,
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class UsageMetrics(Collector):
    """Functions that are called at each scrape: the sums that are recorded, and until when (Unix seconds)."""

    counters: Callable[[], Mapping[TotalKey, HeldAmounts]]
    settled: Callable[[], int | None]

    def collect(self) -> Iterator[Metric]:
        """Yields the counters."""
        counters = self.counters()
        keys = sorted(counters, key=lambda key: (-counters[key].share, key))[:MAX_SERIES]
        for name, help, value in _COUNTERS:
            family = CounterMetricFamily(name, help, labels=TotalKey._fields)
            for key in sorted(keys):
                family.add_metric(key, value(counters[key]))
            yield family
        settled = self.settled()
        if settled is not None:
            yield GaugeMetricFamily(
                "hami_usage_settled_timestamp_seconds",
                "Until when usage is recorded",
                value=settled,
            )
