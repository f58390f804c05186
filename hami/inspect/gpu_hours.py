"""The budgets of namespaces in GPU-hours, read with the user's own rights. What cannot be read is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from hami.codec.gpu_hours import GpuHours, parse_gpu_hours, window_of
from hami.codec.objects import parse_namespace
from hami.codec.times import render_time
from hami.codec.usage_sums import UsageDay
from hami.errors import HamiError, MalformedInput, NotFound
from hami.inspect.read_usage import USAGE_NAMESPACE, UsageReader
from hami.inspect.tables import OutputRecord
from hami.kube.calls import path_of
from hami.kube.pages import Requester, read_list
from hami.scheduling.gpu_hours import BudgetUse, NamespaceShares, day_shares, window_shares

Budgets = Mapping[str, GpuHours]
"""By namespace."""


class BudgetReport(OutputRecord, frozen=True):
    """The budget of a namespace. *gpu_hours*: for each *period*: day, week or month. *since*, *until*: the ends of the
    current one. *used_gpu_hours*: in it, as recorded; ``None`` if you may not read the records."""

    gpu_hours: float
    period: str
    since: str
    until: str
    used_gpu_hours: float | None = None


def read_budgets(request: Requester, namespace: str, note: Callable[[str], None]) -> Budgets:
    """Returns the budgets of all namespaces, or that of *namespace* unless it is empty. *note*: takes what cannot be
    read."""
    budgets: dict[str, GpuHours] = {}

    def take(raw: bytes | msgspec.Raw) -> None:
        found = parse_namespace(raw)
        if found.gpu_hours is None:
            return
        try:
            budgets[found.name] = parse_gpu_hours(found.gpu_hours)
        except MalformedInput as error:
            note(f"namespace {found.name} counts as without a budget: {error}")

    try:
        if namespace:
            take(request("GET", path_of("namespaces", None, namespace)))
        else:
            read_list(request, "namespaces", path_of("namespaces", None), {}, take, _no_progress)
    except NotFound:  # a namespace that has been deleted
        return budgets
    except HamiError as error:
        note(f"{error}; budgets are not shown")
    return budgets


def first_day(budgets: Budgets, now: int) -> int | None:
    """Returns when the earliest window of *budgets* began; ``None`` if there are none."""
    return min([window_of(hours.period, now).start for hours in budgets.values()], default=None)


def make_budget_reports(
    budgets: Budgets, days: Iterable[UsageDay], now: int
) -> dict[str, BudgetReport]:
    """Returns the reports on *budgets* by namespace, given the days since `first_day`."""
    shares = {day.start: day_shares(day) for day in days}
    used: dict[str, NamespaceShares] = {}  # by period
    reports = {}
    for namespace, hours in budgets.items():
        window = window_of(hours.period, now)
        if hours.period not in used:
            used[hours.period] = window_shares(shares, window)
        share_s = used[hours.period].get(namespace, 0)
        use = BudgetUse(namespace=namespace, hours=hours, window=window, share_s=share_s)
        report = _without_use(hours, now)
        reports[namespace] = msgspec.structs.replace(report, used_gpu_hours=use.used_milli / 1000)
    return reports


def read_budget(request: Requester, namespace: str, now: int) -> BudgetReport | None:
    """Returns the report on the budget of *namespace*; ``None`` if it has none, or may not be read."""
    budgets = read_budgets(request, namespace, _no_note)
    if namespace not in budgets:
        return None
    for only in ("", namespace):  # with rights on the records, or by the API group of HAMi
        reader = UsageReader(request, USAGE_NAMESPACE, _no_note, only=only)
        try:
            sums = reader.current()
            first = first_day(budgets, sums.settled) or sums.settled
            days = list(reader.days(sums, first, with_owners=False))
        except HamiError:
            continue
        return make_budget_reports(budgets, days, sums.settled)[namespace]
    return _without_use(budgets[namespace], now)


def budget_text(report: BudgetReport) -> str:
    """Returns what is used of a budget, in few words."""
    budget = f"{report.gpu_hours:,g} a {report.period}"
    if report.used_gpu_hours is None:
        return budget
    return f"{report.used_gpu_hours:,.1f} of {budget}"


def budget_sentence(report: BudgetReport) -> str:
    """Returns what is used of a budget, and until when it counts."""
    return f"GPU-hours of the namespace's budget: {budget_text(report)}, until {report.until}."


def _without_use(hours: GpuHours, now: int) -> BudgetReport:
    window = window_of(hours.period, now)
    return BudgetReport(
        gpu_hours=hours.milli / 1000,
        period=hours.period,
        since=_time(window.start),
        until=_time(window.end),
    )


def _time(seconds: int) -> str:
    return render_time(datetime.fromtimestamp(seconds, UTC))


def _no_note(text: str) -> None:
    """Leaves out what cannot be read."""


def _no_progress(count: int, total: int) -> None:
    """Shows nothing: there are few namespaces."""
