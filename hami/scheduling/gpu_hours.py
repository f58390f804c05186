"""The use of budgets in GPU-hours. Pure: whoever decides by it, or shows it, brings the days."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from hami.codec.gpu_hours import BudgetWindow, GpuHours, hours_text
from hami.codec.times import render_time
from hami.codec.usage_sums import HOUR_S, UsageDay

NEARLY_PERCENT = 80
"""Percent of a budget from which it is nearly used."""

NamespaceShares = Mapping[str, int]
"""Thousandths of devices times seconds that namespaces have held, in a day or in a window, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUse:
    """The use of the budget of a namespace. *share_s*: thousandths of devices times seconds."""

    namespace: str
    hours: GpuHours
    window: BudgetWindow
    share_s: int

    @property
    def is_reached(self) -> bool:
        """Reports whether all of it is used."""
        return self.share_s >= self.hours.share_s

    @property
    def is_nearly_reached(self) -> bool:
        """Reports whether NEARLY_PERCENT of it are used."""
        return 100 * self.share_s >= NEARLY_PERCENT * self.hours.share_s

    @property
    def used_milli(self) -> int:
        """The use in thousandths of GPU-hours, rounded down."""
        return self.share_s // HOUR_S

    @property
    def end(self) -> str:
        """When the window ends, as the Kubernetes API writes it."""
        return render_time(datetime.fromtimestamp(self.window.end, UTC))

    def __str__(self) -> str:
        return (
            f"namespace {self.namespace} has used {hours_text(self.used_milli)} of the {hours_text(self.hours.milli)} "
            f"GPU-hours of its budget for the {self.hours.period} that ends at {self.end}"
        )


def window_shares(days: Mapping[int, NamespaceShares], window: BudgetWindow) -> dict[str, int]:
    """Returns what namespaces have held in *window*, from *days* by their beginnings."""
    sums: dict[str, int] = {}
    for start, shares in days.items():
        if not window.start <= start < window.end:
            continue
        for namespace, share_s in shares.items():
            sums[namespace] = sums.get(namespace, 0) + share_s
    return sums


def day_shares(day: UsageDay) -> dict[str, int]:
    """Returns what namespaces have held in *day*."""
    shares: dict[str, int] = {}
    for key, hours in day.hours.items():
        name = sys.intern(key.namespace)
        held = sum([amounts.share for amounts in hours.values()])
        shares[name] = shares.get(name, 0) + held
    return shares
