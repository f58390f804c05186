"""Who has held how much of the devices: the rows of ``hami usage``, from the days that are recorded.

Amounts are hours: GPU-hours of devices, by the share that is asked for, GiB-hours of memory, and core-hours, of which
one is all cores of a device for an hour.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from hami.codec.documents import decode_yaml
from hami.codec.times import render_time
from hami.codec.usage_sums import DAY_S, HOUR_S, HeldAmounts, OwnerKey, UsageDay, UsageKey
from hami.errors import MalformedInput
from hami.inspect.gpu_hours import BudgetReport, budget_text
from hami.inspect.tables import Column, OutputRecord, Style, printable, render_rows
from hami.plurals import counted
from hami.quantity import GIB, MIB

GROUPS = {
    "namespace": ("namespace", "namespaces"),
    "owner": ("workload", "workloads"),
    "pod": ("pod", "pods"),
    "model": ("model", "models"),
    "priority": ("priority class", "priority classes"),
    "vendor": ("vendor", "vendors"),
    "mode": ("allocation mode", "allocation modes"),
}
"""The groups, and their nouns."""
SHARES = ("dominant", "memory", "cores", "mean")
MAX_SINCE_S = 400 * DAY_S
_UNITS = {"h": HOUR_S, "d": DAY_S, "w": 7 * DAY_S}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would compute such a cell
_SHARE_TEXTS = {
    "dominant": "the larger of the shares of memory and cores",
    "memory": "the share of the memory",
    "cores": "the share of the cores",
    "mean": "the mean of the shares of memory and cores",
}


class UsagePrices(msgspec.Struct, forbid_unknown_fields=True):
    """The prices of GPU-hours. *prices*: by model. *default*: of other models; none without one."""

    currency: Annotated[str, Meta(max_length=16)] = ""
    prices: dict[str, Annotated[float, Meta(ge=0)]] = {}
    default: Annotated[float, Meta(ge=0)] | None = None

    def price(self, model: str) -> float | None:
        """Returns the price of a GPU-hour; ``None`` if it is not known."""
        return self.prices.get(model, self.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredUse:
    """The use of devices while a monitor measured. *compute_s*: seconds of all compute of a device. *memory_byte_s*: of
    the memory in use. *given_byte_s*: of the memory given meanwhile."""

    compute_s: float = 0.0
    memory_byte_s: float = 0.0
    given_byte_s: float = 0.0

    def plus(self, other: MeasuredUse) -> MeasuredUse:
        """Returns the sum."""
        return MeasuredUse(
            compute_s=self.compute_s + other.compute_s,
            memory_byte_s=self.memory_byte_s + other.memory_byte_s,
            given_byte_s=self.given_byte_s + other.given_byte_s,
        )


UseOf = Callable[[str], MeasuredUse | None]
"""Returns what a group has used; ``None`` if nobody has measured it."""


class UsageRow(OutputRecord, frozen=True):
    """The sums of one group, in hours. *name*: of the group; a workload is NAMESPACE/KIND/NAME, a pod NAMESPACE/NAME.
    *device_hours*: of devices of which something was held, whatever part. *cost*: absent without prices of all its
    models. Of pods that have ended only *gib_hours*, and what they have used, are known.

    *budget*: that of a namespace, if it has one.

    *used_...*: what was used while a monitor measured, *wasted_gpu_hours* what was not; absent where none did.
    *resize*: the commands after which each container has what it has needed."""

    name: str
    gpu_hours: float | None
    gib_hours: float
    core_hours: float | None
    device_hours: float | None
    cost: float | None = None
    used_gpu_hours: float | None = None
    wasted_gpu_hours: float | None = None
    used_gib_hours: float | None = None
    resize: tuple[str, ...] = ()
    budget: BudgetReport | None = None


class UsageReport(OutputRecord, frozen=True):
    """The sums of a time. *since*, *until*: its ends. *by*: the kind of the groups. *share*: the part of a device that
    GPU-hours count. *hours*: of that time. *covered_hours*: in which somebody recorded. *items*: greatest first."""

    since: str
    until: str
    by: str
    share: str
    hours: float
    covered_hours: float
    items: tuple[UsageRow, ...]
    currency: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """The question. *namespace*: empty for all. *by_waste*: what was wasted first, instead of what was held."""

    since: int
    until: int
    by: str = "namespace"
    namespace: str = ""
    share: str = "dominant"
    prices: UsagePrices | None = None
    by_waste: bool = False

    @property
    def start(self) -> int:
        """The beginning of the hour of *since*, or of its day, where sums are only known by day."""
        if self.by == "pod":
            return self.since
        unit = DAY_S if self.by == "owner" else HOUR_S
        return self.since - self.since % unit


def parse_since(text: str, now: int) -> int:
    """Returns the time (Unix seconds) that *text* names: 36h, 7d, 4w, or a date in UTC. Raises: MalformedInput."""
    number, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is not None and number.isascii() and number.isdigit() and len(number) <= 6:
        seconds = int(number) * unit
        if 0 < seconds <= MAX_SINCE_S:
            return now - seconds
    else:
        at = _parse_day(text)
        if at is not None and now - MAX_SINCE_S <= at < now:
            return at
    problem = "expected hours, days or weeks such as 36h, 7d or 4w, or a date such as 2026-11-01, within 400 days"
    raise MalformedInput("--since", text, problem)


def _parse_day(text: str) -> int | None:
    try:
        return int(datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp())
    except ValueError:
        return None


def parse_prices(text: str, source: str) -> UsagePrices:
    """Returns the prices in a YAML file. *source*: its name. Raises: MalformedInput."""
    return decode_yaml(text, UsagePrices, source, unique_keys=True)


def make_report(
    days: Sequence[UsageDay], query: UsageQuery, use_of: UseOf = lambda name: None
) -> UsageReport:
    """Returns the sums of *days* that are asked for."""
    groups: dict[str, dict[str, HeldAmounts]] = defaultdict(dict)
    for group, model, amounts in _amounts(days, query):
        models = groups[group]
        models[model] = models.get(model, HeldAmounts()).plus(amounts)
    rows = [make_row(name, models, query, use_of(name)) for name, models in groups.items()]
    return report_of(rows, query, _covered_s(days, query))


def report_of(rows: Iterable[UsageRow], query: UsageQuery, covered_s: int) -> UsageReport:
    """Returns the report with *rows*. *covered_s*: seconds in which somebody recorded."""
    order = _by_waste if query.by_waste else _by_size
    return UsageReport(
        since=_time(query.start),
        until=_time(query.until),
        by=query.by,
        share=query.share,
        hours=_hours(query.until - query.start),
        covered_hours=_hours(covered_s),
        items=tuple(sorted(rows, key=order)),
        currency=query.prices.currency if query.prices else "",
    )


def with_budgets(report: UsageReport, budgets: Mapping[str, BudgetReport]) -> UsageReport:
    """Returns *report* with the budgets of namespaces."""
    rows = []
    for row in report.items:
        rows.append(msgspec.structs.replace(row, budget=budgets.get(row.name)))
    return msgspec.structs.replace(report, items=tuple(rows))


def _by_size(row: UsageRow) -> tuple[float, float, str]:
    return -(row.gpu_hours or 0), -row.gib_hours, row.name


def _by_waste(row: UsageRow) -> tuple[float, float, float, str]:
    return -(row.wasted_gpu_hours or 0), *_by_size(row)


def _amounts(days: Iterable[UsageDay], query: UsageQuery) -> Iterator[tuple[str, str, HeldAmounts]]:
    """Yields group, model and sum."""
    for day in days:
        if query.by == "owner":
            yield from _of_owners(day, query)
            continue
        for key, hour, amounts in _of_hours(day, query):
            yield _group(key, query.by), key.model, amounts


def _of_owners(day: UsageDay, query: UsageQuery) -> Iterator[tuple[str, str, HeldAmounts]]:
    for key, amounts in day.owners.items():
        if query.namespace in ("", key.namespace):
            yield _owner_name(key), key.model, amounts


def _of_hours(day: UsageDay, query: UsageQuery) -> Iterator[tuple[UsageKey, int, HeldAmounts]]:
    """Yields the sums of the hours that are asked for, each with the beginning of the hour."""
    for key, hours in day.hours.items():
        if query.namespace not in ("", key.namespace):
            continue
        for hour, amounts in hours.items():
            start = day.start + hour * HOUR_S
            if query.start <= start < query.until:
                yield key, start, amounts


def _owner_name(key: OwnerKey) -> str:
    return f"{key.namespace}/{key.kind}/{key.name}"


def _group(key: UsageKey, by: str) -> str:
    groups = {
        "namespace": key.namespace,
        "model": key.model,
        "priority": key.priority_class,
        "vendor": key.vendor,
        "mode": key.allocation_mode,
    }
    return groups[by]


def make_row(
    name: str, models: Mapping[str, HeldAmounts], query: UsageQuery, use: MeasuredUse | None = None
) -> UsageRow:
    """Returns the row of a group that has held these sums, by model. *use*: what it has used, if that is known."""
    total, cost = HeldAmounts(), 0.0
    is_priced = query.prices is not None
    for model, amounts in models.items():
        total = total.plus(amounts)
        price = query.prices.price(model) if query.prices else None
        if price is None:
            is_priced = False
        else:
            cost += price * gpu_hours(amounts, query.share)
    row = UsageRow(
        name=name,
        gpu_hours=round(gpu_hours(total, query.share), 3),
        gib_hours=round(total.memory_mib / 1024 / HOUR_S, 3),
        core_hours=round(total.cores / 100 / HOUR_S, 3),
        device_hours=_hours(total.devices),
        cost=round(cost, 4) if is_priced else None,
    )
    if use is None:
        return row
    return _with_use(row, total, use, query.share)


def _with_use(row: UsageRow, total: HeldAmounts, use: MeasuredUse, share: str) -> UsageRow:
    """Returns *row* with what was used. A monitor may have measured a part of the time or of the pods: only as much as
    it knows can be wasted."""
    if not use.given_byte_s or not total.memory_mib:
        return row
    part = min(1.0, use.given_byte_s / MIB / total.memory_mib)
    memory = part * total.memory_share / 1000 / HOUR_S * use.memory_byte_s / use.given_byte_s
    used = _share_of(share, memory, use.compute_s / HOUR_S)
    held = part * gpu_hours(total, share)
    return msgspec.structs.replace(
        row,
        used_gpu_hours=round(used, 3),
        wasted_gpu_hours=round(max(0.0, held - used), 3),
        used_gib_hours=gib_hours(use.memory_byte_s),
    )


def _share_of(share: str, memory: float, cores: float) -> float:
    shares = {
        "dominant": max(memory, cores),
        "memory": memory,
        "cores": cores,
        "mean": (memory + cores) / 2,
    }
    return shares[share]


def gib_hours(byte_s: float) -> float:
    """Returns bytes times seconds as GiB-hours."""
    return round(byte_s / GIB / HOUR_S, 3)


def gpu_hours(amounts: HeldAmounts, share: str) -> float:
    """Returns hours of whole devices, by one of SHARES."""
    thousandths = {
        "dominant": amounts.share,
        "memory": amounts.memory_share,
        "cores": amounts.cores * 10,
        "mean": (amounts.memory_share + amounts.cores * 10) / 2,
    }
    return thousandths[share] / 1000 / HOUR_S


def _covered_s(days: Iterable[UsageDay], query: UsageQuery) -> int:
    """Returns the seconds of the time that is asked for in which somebody recorded."""
    covered = 0
    for day in days:
        start = max(query.start, day.start, day.recorded_from)
        end = min(query.until, day.start + DAY_S)
        covered += max(0, end - start)
        for gap in day.gaps:
            covered -= max(0, min(gap.end, end) - max(gap.start, start))
    return covered


def _hours(seconds: int) -> float:
    return round(seconds / HOUR_S, 3)


def _time(seconds: int) -> str:
    return render_time(datetime.fromtimestamp(seconds, UTC))


def render_usage(report: UsageReport, style: Style) -> str:
    """Returns the table of *report* and what it is about."""
    columns: list[Column[UsageRow]] = [
        Column(report.by.upper(), "name"),
        Column("GPU-HOURS", lambda row: _amount(row.gpu_hours, 1)),
    ]
    if _is_measured(report):
        columns += [
            Column("USED", _used_text),
            Column("WASTED", lambda row: _amount(row.wasted_gpu_hours, 1)),
        ]
    columns.append(Column("GIB-HOURS", lambda row: _amount(row.gib_hours, 0)))
    if _is_measured(report):
        columns.append(Column("GIB USED", lambda row: _amount(row.used_gib_hours, 0)))
    columns += [
        Column("CORE-HOURS", lambda row: _amount(row.core_hours, 1)),
        Column("DEVICE-HOURS", lambda row: _amount(row.device_hours, 1), wide=True),
    ]
    if any([row.cost is not None for row in report.items]):
        title = " ".join(filter(None, ("COST", printable(report.currency))))
        columns.append(Column(title, lambda row: _amount(row.cost, 2)))
    if any([row.budget for row in report.items]):
        columns.append(Column("BUDGET", _budget_text))
    if any([row.resize for row in report.items]):
        columns.append(Column("RESIZE", lambda row: "; ".join(row.resize)))
    table = render_rows(report.items, columns, style)
    if not style.headers:
        return table
    return f"{table}\n{_summary(report)}"


def _budget_text(row: UsageRow) -> str:
    if row.budget is None:
        return ""
    return budget_text(row.budget)


def _amount(value: float | None, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:,.{digits}f}"


def _is_measured(report: UsageReport) -> bool:
    return any([row.used_gib_hours is not None for row in report.items])


def _used_text(row: UsageRow) -> str:
    """Returns the percent of what was held while somebody measured."""
    if row.used_gpu_hours is None or row.wasted_gpu_hours is None:
        return ""
    held = row.used_gpu_hours + row.wasted_gpu_hours
    if not held:
        return ""
    return f"{100 * row.used_gpu_hours / held:.0f} %"


def _summary(report: UsageReport) -> str:
    total = sum([row.gpu_hours or 0 for row in report.items])
    return (
        f"{counted(len(report.items), *GROUPS[report.by])}, {total:,.1f} GPU-hours "
        f"({_SHARE_TEXTS[report.share]}).\n"
        f"{report.since} to {report.until}: {report.covered_hours:,.1f} of {report.hours:,.1f} hours "
        "are recorded."
    )


def render_csv(report: UsageReport) -> str:
    """Returns the rows of *report* as CSV."""
    names = ["gpu_hours", "gib_hours", "core_hours", "device_hours", "cost"]
    if _is_measured(report):
        names += ["used_gpu_hours", "wasted_gpu_hours", "used_gib_hours"]
    rows: list[Sequence[object]] = [(report.by, *names)]
    for row in report.items:
        values = [getattr(row, name) for name in names]
        rows.append((row.name, *["" if value is None else value for value in values]))
    return _csv(rows)


def render_focus(days: Iterable[UsageDay], query: UsageQuery) -> str:
    """Returns rows with the columns of FOCUS, one for each hour, namespace, model and priority class."""
    rows: list[Sequence[object]] = [tuple(_FOCUS)]
    for day in days:
        for key, start, amounts in sorted(_of_hours(day, query), key=lambda each: each[1::-1]):
            usage = _FocusRow(key, start, amounts, query)
            rows.append([value(usage) for value in _FOCUS.values()])
    return _csv(rows)


@dataclass(frozen=True, slots=True)
class _FocusRow:
    key: UsageKey
    start: int
    amounts: HeldAmounts
    query: UsageQuery

    @property
    def quantity(self) -> float:
        return round(gpu_hours(self.amounts, self.query.share), 6)

    @property
    def price(self) -> float | str:
        price = self.query.prices.price(self.key.model) if self.query.prices else None
        return "" if price is None else price

    @property
    def cost(self) -> float | str:
        price = self.price
        return round(self.quantity * price, 6) if isinstance(price, float) else ""

    @property
    def tags(self) -> str:
        tags = {
            "priorityClass": self.key.priority_class,
            "allocationMode": self.key.allocation_mode,
        }
        return msgspec.json.encode(tags).decode()


_FOCUS: Mapping[str, Callable[[_FocusRow], object]] = {
    "ChargePeriodStart": lambda row: _time(row.start),
    "ChargePeriodEnd": lambda row: _time(row.start + HOUR_S),
    "ServiceName": lambda row: "HAMi",
    "ProviderName": lambda row: row.key.vendor,
    "ResourceId": lambda row: row.key.model,
    "ResourceType": lambda row: "GPU share",
    "SubAccountId": lambda row: row.key.namespace,
    "ChargeCategory": lambda row: "Usage",
    "ConsumedQuantity": lambda row: row.quantity,
    "ConsumedUnit": lambda row: "GPU-Hours",
    "PricingUnit": lambda row: "GPU-Hours",
    "ListUnitPrice": lambda row: row.price,
    "BilledCost": lambda row: row.cost,
    "EffectiveCost": lambda row: row.cost,
    "BillingCurrency": lambda row: row.query.prices.currency if row.query.prices else "",
    "Tags": lambda row: row.tags,
}


def _csv(rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return out.getvalue().rstrip("\n")


def _cell(value: object) -> str:
    """Returns the text of a cell, in which nothing is computed, and which cannot change a terminal."""
    text = printable(str(value))
    if isinstance(value, str) and text.startswith(_FORMULA):
        return f"'{text}"
    return text
