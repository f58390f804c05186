"""The budgets of namespaces in the scheduler program: what watches, reads, reports and decides about them."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry

from hami.kube.api import Api
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.kube.watches import watch_namespaces
from hami.runtime.clock import utc_now
from hami.runtime.parts import Part
from hami.scheduler.budget_metrics import BudgetMetrics
from hami.scheduler.budget_reports import BudgetReports
from hami.scheduler.gpu_hours import BudgetReader
from hami.scheduler.leadership import Leadership
from hami.scheduler.over_budget import OverBudget
from hami.scheduler.settings import Settings
from hami.scheduling.gpu_hours import BudgetUse
from hami.state.gpu_hours import GpuHoursBudgets


class BudgetPart(Part):
    """The tasks. No request waits until they have read something."""

    def __init__(
        self,
        api: Api,
        cluster: Cluster,
        events: EventRecorder,
        leadership: Leadership,
        settings: Settings,
    ) -> None:
        self._settings = settings
        self._leads = leadership.leads
        self._budgets = GpuHoursBudgets(_seconds)
        reports = BudgetReports(self._budgets, events, settings, leads=self._leads)
        self._reader = BudgetReader(cluster, self._budgets, reports, settings, clock=time.monotonic)
        super().__init__(watch_namespaces(api, self._budgets), self._reader)

    def over_budget(self) -> OverBudget:
        """Returns what admission does with pods of namespaces that have used their budgets."""
        return OverBudget(
            use_of=self._budgets.use_of,
            action=self._settings.over_budget,
            class_name=self._settings.over_budget_priority_class,
            priority_class=self._reader.priority_class,
        )

    def register(self, registry: CollectorRegistry) -> None:
        """Adds the metrics."""
        registry.register(BudgetMetrics(self._uses, lambda: self._reader.failures))

    def _uses(self) -> list[BudgetUse]:
        """Returns the uses; none in other replicas than the leader."""
        if not self._leads():
            return []
        return [use for _, use in self._budgets.uses()]


def _seconds() -> int:
    return int(utc_now().timestamp())
