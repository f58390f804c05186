"""Reads what namespaces have used of their budgets, in every replica: admission asks each of them.

It is read in the background, so that no pod waits for it: the object with all until a moment, and once each day of the
windows that has ended. While it cannot be read, what was read last counts: within a window, no use becomes less.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

from hami.codec.objects import PriorityClass
from hami.codec.usage_objects import CURRENT, name_of_day, parse_day_data, parse_sums
from hami.codec.usage_sums import DAY_S, date_of
from hami.errors import HamiError, MalformedInput
from hami.kube.cluster import Cluster
from hami.runtime.once import OncePerKey
from hami.runtime.tasks import Task
from hami.scheduler.budget_reports import BudgetReports
from hami.scheduler.settings import DEMOTE, Settings
from hami.scheduling.gpu_hours import NamespaceShares, day_shares
from hami.state.gpu_hours import GpuHoursBudgets

log = logging.getLogger(__name__)

PERIOD_S = 5.0  # between looks at budgets, and at the priority class
READ_S = 30.0  # between looks at the records; no more than the time between two records


class BudgetReader(Task):
    """Keeps *budgets* up to date, and has *reports* written. *clock* is monotonic."""

    def __init__(
        self,
        cluster: Cluster,
        budgets: GpuHoursBudgets,
        reports: BudgetReports,
        settings: Settings,
        *,
        clock: Callable[[], float],
    ) -> None:
        super().__init__("gpu-hours")
        self._cluster = cluster
        self._budgets = budgets
        self._reports = reports
        self._namespace = settings.usage_namespace
        self._class_name = settings.over_budget_priority_class
        self._reads_class = settings.over_budget == DEMOTE
        self._read_s = min(READ_S, settings.usage_interval)
        self._clock = clock
        self._read_at = -math.inf
        self._first: int | None = None  # day that was to be read
        self._version = ""  # of the object that was read last
        self._today: tuple[int, NamespaceShares] | None = None  # in that object
        self._ended: dict[int, NamespaceShares] = {}  # days before it
        self._priority_class: PriorityClass | None = None
        self._logged = OncePerKey()
        self.failures = 0
        """How often records or the priority class could not be read."""

    def priority_class(self) -> PriorityClass | None:
        """Returns the class that pods get which exceed a budget; ``None`` if it does not exist, or is not known."""
        return self._priority_class

    def step(self) -> float:
        """Reads what is due, and reports what has changed."""
        first = self._budgets.first_day()
        if first is not None:
            if self._reads_class:
                self._attempt("priority class", self._read_class)
            if self._clock() >= self._read_at or first != self._first:
                self._attempt("records", lambda: self._read(first))
                self._read_at = self._clock() + self._read_s
                self._first = first
        self._reports.report(is_class_missing=self._reads_class and self._priority_class is None)
        return min(PERIOD_S, self._read_s)

    def _attempt(self, what: str, read: Callable[[], None]) -> None:
        try:
            read()
            self._logged.clear(what)
        except HamiError as error:
            self.failures += 1
            if self._logged.is_new(what, str(error)):
                fields = {"what": what, "namespace": self._namespace, "error": error}
                log.warning("budgets are not up to date, will retry", extra=fields)

    def _read_class(self) -> None:
        """Raises: ClusterError, MalformedInput; then what was known stays."""
        self._priority_class = self._cluster.priority_class(self._class_name)

    def _read(self, first: int) -> None:
        """Reads all days since *first*. Raises: ClusterError, MalformedInput."""
        current = self._cluster.config_map(self._namespace, CURRENT)
        if current is None:
            self._budgets.record({})
            return
        if current.resource_version != self._version or self._today is None:
            sums = parse_sums(current.data)
            self._today = sums.day.start, day_shares(sums.day)
            self._version = current.resource_version
        today, shares = self._today
        days: dict[int, NamespaceShares] = {}
        for start in self.each(range(first, today, DAY_S)):
            days[start] = self._ended_day(start)
        self._ended = dict(days)
        days[today] = shares
        self._budgets.record(days)

    def _ended_day(self, start: int) -> NamespaceShares:
        """Returns the shares of a day that has ended, which are read once: they do not change any more, and days are
        written before the object with the current one. Raises: ClusterError."""
        known = self._ended.get(start)
        if known is not None:
            return known
        name = name_of_day(date_of(start))
        record = self._cluster.config_map(self._namespace, name)
        if record is None:
            return self._keep(start, {})
        try:
            return self._keep(start, day_shares(parse_day_data(record.data, start)))
        except MalformedInput as error:
            log.error("a day cannot be read and is left out", extra={"day": name, "error": error})
            return self._keep(start, {})

    def _keep(self, start: int, shares: NamespaceShares) -> Mapping[str, int]:
        self._ended[start] = shares
        return shares
