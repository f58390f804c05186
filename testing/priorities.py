"""PriorityClasses of tests."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from testing.eventually import eventually
from testing.kube import ApiError, Kube
from testing.pods import pod

__all__ = ["add_priorities", "class_name", "is_admitted", "of_priority", "remove_priorities"]

Object = dict[str, Any]
PATIENT = "patient"
PRIORITIES = {"low": 100, "mid": 500, "high": 1000, PATIENT: 1000, "urgent": 5000}
"""Values by name. Pods that are patient preempt none."""


def add_priorities(kube: Kube, names: Iterable[str] = PRIORITIES) -> None:
    """Creates PriorityClasses, and returns when pods of them are admitted.

    The API server rejects pods of a class that its own watch has not seen yet.
    """
    for name in names:
        kube.apply(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": class_name(name)},
                "value": PRIORITIES[name],
                "preemptionPolicy": "Never" if name == PATIENT else "PreemptLowerPriority",
            }
        )
    for name in names:
        eventually(
            partial(is_admitted, kube, of_priority(name, pod(f"of-{name}"))),
            f"pods of {name} are admitted",
        )


def remove_priorities(kube: Kube) -> None:
    for name in PRIORITIES:
        kube.delete("PriorityClass", class_name(name))


def of_priority(name: str, item: Object) -> Object:
    """Returns the pod *item* with the priority *name*."""
    return {**item, "spec": {**item["spec"], "priorityClassName": class_name(name)}}


def class_name(name: str) -> str:
    return f"e2e-{name}"


def is_admitted(kube: Kube, item: Object) -> bool:
    try:
        kube.dry_run(item, "default")
    except ApiError as error:
        if error.status != 403:
            raise
        return False
    return True
