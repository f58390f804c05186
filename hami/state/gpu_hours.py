"""The budgets of namespaces in GPU-hours, and what of them is used. Fed by a watch and by the records of usage."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping

from hami.codec.gpu_hours import BudgetWindow, GpuHours, parse_gpu_hours, window_of
from hami.codec.objects import parse_resource_version
from hami.errors import MalformedInput
from hami.model import Namespace
from hami.scheduling.gpu_hours import BudgetUse, NamespaceShares, window_shares

MAX_BUDGETS = 5000
"""Namespaces whose budgets are kept; others count as if they had none."""


class WindowShares:
    """The amounts of windows, from *days* by their beginnings; each window is summed up once."""

    def __init__(self, days: Mapping[int, NamespaceShares]) -> None:
        self._days = days
        self._sums: dict[BudgetWindow, NamespaceShares] = {}

    def of(self, window: BudgetWindow) -> NamespaceShares:
        """Returns what namespaces have held in *window*."""
        if window not in self._sums:
            self._sums[window] = window_shares(self._days, window)
        return self._sums[window]


class GpuHoursBudgets:
    """The budgets, by namespace: the sink of a watch. Threads may share it. *now*: Unix seconds."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._lock = threading.Lock()  # guards the rest
        self._namespaces: dict[str, Namespace] = {}  # those with the annotation
        self._hours: dict[str, GpuHours] = {}  # of those whose annotation can be read
        self._shares = WindowShares({})

    def upsert(self, namespace: Namespace, as_of: float = -math.inf) -> None:
        """Takes *namespace* unless a watch shows an earlier version than is known. A list (*as_of*) is always right."""
        version = parse_resource_version(namespace.resource_version)
        with self._lock:
            known = self._namespaces.get(namespace.name)
            is_listed = as_of != -math.inf
            if known and not is_listed and version < parse_resource_version(known.resource_version):
                return
            self._forget(namespace.name)
            if namespace.gpu_hours is None or len(self._namespaces) >= MAX_BUDGETS:
                return
            self._namespaces[namespace.name] = namespace
            try:
                self._hours[namespace.name] = parse_gpu_hours(namespace.gpu_hours)
            except MalformedInput:
                return  # :meth:`unreadable` says so

    def remove(self, namespace: Namespace) -> None:
        """Removes *namespace*, which has been deleted."""
        with self._lock:
            self._forget(namespace.name)

    def prune(self, seen: set[str], started: float) -> None:
        """Removes the namespaces that are not in a complete list (*seen*: names)."""
        with self._lock:
            for name in self._namespaces.keys() - seen:
                self._forget(name)

    def first_day(self) -> int | None:
        """Returns when the earliest window of the budgets began; ``None`` if there are no budgets."""
        now = self._now()
        with self._lock:
            periods = {hours.period for hours in self._hours.values()}
        return min([window_of(period, now).start for period in periods], default=None)

    def record(self, days: Mapping[int, NamespaceShares]) -> None:
        """Takes what has been used, by the beginnings of days: all since `first_day`."""
        self._shares = WindowShares(days)

    def use_of(self, namespace: str) -> BudgetUse | None:
        """Returns what *namespace* has used of its budget; ``None`` if it has none."""
        hours = self._hours.get(namespace)
        if hours is None:
            return None
        window = window_of(hours.period, self._now())
        share_s = self._shares.of(window).get(namespace, 0)
        return BudgetUse(namespace=namespace, hours=hours, window=window, share_s=share_s)

    def uses(self) -> list[tuple[Namespace, BudgetUse]]:
        """Returns the namespaces with budgets, and what they have used."""
        with self._lock:
            namespaces = list(self._namespaces.values())
        uses = []
        for namespace in namespaces:
            use = self.use_of(namespace.name)
            if use is not None:
                uses.append((namespace, use))
        return uses

    def unreadable(self) -> list[tuple[Namespace, MalformedInput]]:
        """Returns the namespaces whose annotation cannot be read, and why."""
        with self._lock:
            namespaces = list(self._namespaces.values())
        problems = []
        for namespace in namespaces:
            if namespace.name in self._hours:
                continue
            try:
                parse_gpu_hours(namespace.gpu_hours or "")
            except MalformedInput as error:
                problems.append((namespace, error))
        return problems

    def _forget(self, name: str) -> None:
        self._namespaces.pop(name, None)
        self._hours.pop(name, None)
