"""The properties of pods by which ResourceQuotas with scopes select them, as Kubernetes derives them.

Source: k8s.io/kubernetes, pkg/quota/v1/evaluator/core/pods.go, and pkg/apis/core/v1/helper/qos/qos.go.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgspec

from hami.codec.objects import Quantities
from hami.errors import MalformedInput
from hami.model import PodScope
from hami.quantity import parse_quantity


class ResourceRequirements(msgspec.Struct, gc=False, frozen=True):
    """The resources of a container or of a whole pod."""

    limits: Quantities = {}
    requests: Quantities = {}


# characters of the name of a priority class; the API server accepts no longer one
LONGEST_CLASS = 253

_cached_scope = functools.lru_cache(maxsize=1024)(PodScope)


def make_scope(
    priority_class: str, has_deadline: bool, is_best_effort: bool, crosses_namespaces: bool
) -> PodScope:
    """Returns a PodScope; equal ones are one object. Most pods of a cluster have one of a few."""
    make = _cached_scope if len(priority_class) <= LONGEST_CLASS else PodScope
    return make(priority_class, has_deadline, is_best_effort, crosses_namespaces)


def is_best_effort(
    of_pod: ResourceRequirements, of_containers: Sequence[ResourceRequirements]
) -> bool:
    """Reports whether a pod has no request and no limit of CPU and memory. Resources of the pod as a whole go first."""
    for name in (*of_pod.requests, *of_pod.limits):
        if name in ("cpu", "memory") or name.startswith("hugepages-"):
            return not _has_cpu_or_memory(of_pod)
    return not any(map(_has_cpu_or_memory, of_containers))


def _has_cpu_or_memory(resources: ResourceRequirements) -> bool:
    for amounts in (resources.limits, resources.requests):
        if _is_some(amounts.get("cpu")) or _is_some(amounts.get("memory")):
            return True
    return False


def _is_some(amount: str | int | float | None) -> bool:
    if not isinstance(amount, str):
        return bool(amount)
    try:
        return parse_quantity(amount) != 0
    except MalformedInput:  # the API server accepts no such text
        return False
