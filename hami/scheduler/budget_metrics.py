"""Gauges of the budgets of namespaces, and of what is used of them; only the leader has those."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hami.scheduling.gpu_hours import BudgetUse

MAX_SERIES = 1000
"""Of each gauge: the budgets of which most is used."""
_LABELS = ("namespace", "period")


@dataclass(frozen=True, slots=True, eq=False)
class BudgetMetrics(Collector):
    """Functions that are called at each scrape. *failures*: how often this replica could not read what is used."""

    uses: Callable[[], Sequence[BudgetUse]]
    failures: Callable[[], int]

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics."""
        uses = sorted(self.uses(), key=_by_part)[:MAX_SERIES]
        budget = GaugeMetricFamily(
            "hami_budget_gpu_seconds",
            "Budget of a namespace for the current period",
            labels=_LABELS,
        )
        used = GaugeMetricFamily(
            "hami_budget_used_gpu_seconds", "What is used of a budget, as recorded", labels=_LABELS
        )
        for use in uses:
            labels = use.namespace, use.hours.period
            budget.add_metric(labels, use.hours.share_s / 1000)
            used.add_metric(labels, use.share_s / 1000)
        yield budget
        yield used
        yield CounterMetricFamily(
            "hami_budget_read_failures",
            "How often records or the priority class for budgets could not be read",
            value=self.failures(),
        )


def _by_part(use: BudgetUse) -> tuple[float, str]:
    return -use.share_s / use.hours.share_s, use.namespace
