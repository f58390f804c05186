"""Events on namespaces about their budgets of GPU-hours: nearly used, used, or not readable. The leader writes them.

Every replica follows the budgets. So a new leader knows what has been said, and says nothing twice in one window.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from hami.kube.events import EventRecorder
from hami.model import Namespace
from hami.runtime.once import OncePerKey
from hami.scheduler.settings import DEMOTE, REFUSE, Settings
from hami.scheduling.gpu_hours import BudgetUse
from hami.state.gpu_hours import MAX_BUDGETS, GpuHoursBudgets

log = logging.getLogger(__name__)


class BudgetReports:
    """The reports on *budgets*."""

    def __init__(
        self,
        budgets: GpuHoursBudgets,
        events: EventRecorder,
        settings: Settings,
        *,
        leads: Callable[[], bool],
    ) -> None:
        self._budgets = budgets
        self._events = events
        self._action = settings.over_budget
        self._class_name = settings.over_budget_priority_class
        self._leads = leads
        self._reported = OncePerKey(
            MAX_BUDGETS
        )  # how far the use has come in its window, by namespace
        self._problems = OncePerKey(MAX_BUDGETS)

    def report(self, *, is_class_missing: bool) -> None:
        """Records what has not been said yet. *is_class_missing*: that of pods which exceed a budget."""
        leads = self._leads()
        for namespace, use in self._budgets.uses():
            fact = (use.window.start, use.hours, use.is_nearly_reached, use.is_reached)
            if not self._reported.is_new(namespace.uid, fact) or not leads:
                continue
            if use.is_reached:
                text = self._text(use, is_class_missing=is_class_missing)
                self._warn(namespace, "BudgetExceeded", text)
            elif use.is_nearly_reached:
                self._warn(namespace, "BudgetNearlyUsed", str(use))
        if not leads:
            return
        for namespace, error in self._budgets.unreadable():
            if self._problems.is_new(namespace.uid, namespace.gpu_hours):
                self._warn(namespace, "BudgetUnreadable", f"the budget counts as none: {error}")

    def _text(self, use: BudgetUse, *, is_class_missing: bool) -> str:
        """Returns what becomes of new pods of a namespace that has used its budget."""
        if self._action == REFUSE:
            return f"{use}: no more pods with devices are admitted until then"
        if self._action != DEMOTE:
            return str(use)
        if is_class_missing:
            return f"{use}: new pods keep their priority, since the priority class {self._class_name} does not exist"
        return f"{use}: new pods with devices get the priority class {self._class_name}"

    def _warn(self, namespace: Namespace, reason: str, text: str) -> None:
        log.warning("budget", extra={"namespace": namespace.name, "reason": reason, "detail": text})
        self._events.record(namespace.ref, "Warning", reason, text)
