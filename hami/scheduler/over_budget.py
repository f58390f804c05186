"""Admission of pods whose namespace has used its budget of GPU-hours: as the operator says, they get another priority
class, are refused, or come with a warning. Without any knowledge of the budget, they come as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hami.codec.keys import OVER_BUDGET
from hami.codec.objects import PriorityClass
from hami.scheduler.settings import DEMOTE, REFUSE
from hami.scheduling.gpu_hours import BudgetUse
from hami.vendors.draft import PodDraft


def _no_budget(namespace: str) -> BudgetUse | None:
    return None


def _no_class() -> PriorityClass | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverBudget:
    """The admission of such pods. *use_of*: the budget of a namespace, and what is used of it. *action*: the flag
    ``--over-budget``. *class_name*: the priority class that pods get, and *priority_class* what is known of it: nothing
    if it does not exist. Functions make no calls to the API server: a pod waits for them."""

    use_of: Callable[[str], BudgetUse | None] = _no_budget
    action: str = ""
    class_name: str = ""
    priority_class: Callable[[], PriorityClass | None] = _no_class

    def apply(self, draft: PodDraft) -> str:
        """Changes *draft*, a pod with devices, if the budget of its namespace is used. Returns why it is refused; empty
        if it is not."""
        use = self.use_of(draft.namespace)
        if use is None or not use.is_reached:
            return ""
        if self.action == REFUSE:
            return f"{use}: no more pods with devices are admitted until then"
        if self.action == DEMOTE:
            self._demote(draft, use)
        else:
            draft.warnings.append(str(use))
        return ""

    def _demote(self, draft: PodDraft, use: BudgetUse) -> None:
        """Gives the pod the priority class, unless its own priority is no higher, or the API server would refuse the
        pod for a class that does not exist."""
        priority_class = self.priority_class()
        if priority_class is None:
            draft.warnings.append(f"{use}; priority class {self.class_name} does not exist")
            return
        if draft.decoded.priority <= priority_class.value:
            draft.warnings.append(str(use))
            return
        former = draft.decoded.scope.priority_class
        instead = f" in place of {former}" if former else ""
        text = f"{use}: the pod has the priority class {self.class_name}{instead}"
        draft.spec.set_priority_class(self.class_name)
        draft.set_annotation(OVER_BUDGET, text)
        draft.warnings.append(text)
