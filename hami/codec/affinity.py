"""The affinity of pods to nodes and to other pods."""

from __future__ import annotations

from typing import Any

import msgspec

from hami.model import NodePreference, NodeRequirement

MAX_REQUIREMENTS = 16  # of the preferred node affinity of a pod: they are compared with each node
MAX_VALUES = 1024  # of all of these


class _Term(msgspec.Struct, rename="camel", gc=False, frozen=True):
    namespaces: tuple[str, ...] = ()
    namespace_selector: dict[str, Any] | None = None


class _WeightedTerm(msgspec.Struct, rename="camel", gc=False):
    pod_affinity_term: _Term = _Term()


class _PodAffinity(msgspec.Struct, gc=False, frozen=True):
    required: tuple[_Term, ...] = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=()
    )
    preferred: tuple[_WeightedTerm, ...] = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=()
    )


class _Expression(msgspec.Struct, gc=False):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class _NodeTerm(msgspec.Struct, rename="camel", gc=False, frozen=True):
    match_expressions: tuple[_Expression, ...] = ()
    match_fields: tuple[_Expression, ...] = ()


class _WeightedNodeTerm(msgspec.Struct, gc=False):
    weight: int = 0
    preference: _NodeTerm = _NodeTerm()


class _NodeAffinity(msgspec.Struct, gc=False, frozen=True):
    preferred: tuple[_WeightedNodeTerm, ...] = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=()
    )


class Affinity(msgspec.Struct, rename="camel", gc=False):
    """The affinity of a pod to other pods, and what it prefers of nodes."""

    node_affinity: _NodeAffinity = _NodeAffinity()
    pod_affinity: _PodAffinity = _PodAffinity()
    pod_anti_affinity: _PodAffinity = _PodAffinity()


def is_cross_namespace(affinity: Affinity | None) -> bool:
    """Reports whether a term names namespaces, or selects them. An empty selector selects all."""
    if affinity is None:
        return False
    for kind in (affinity.pod_affinity, affinity.pod_anti_affinity):
        preferred = [weighted.pod_affinity_term for weighted in kind.preferred]
        for term in (*kind.required, *preferred):
            if term.namespaces or term.namespace_selector is not None:
                return True
    return False


def prefers_pods(affinity: Affinity | None) -> bool:
    """Reports whether the pod prefers to be near other pods, or away from them."""
    if affinity is None:
        return False
    return bool(affinity.pod_affinity.preferred or affinity.pod_anti_affinity.preferred)


def node_preferences(affinity: Affinity | None) -> tuple[NodePreference, ...]:
    """Returns the preferred node affinity. Terms beyond MAX_REQUIREMENTS conditions or MAX_VALUES do not count."""
    if affinity is None:
        return ()
    preferences: list[NodePreference] = []
    requirement_count = value_count = 0
    for weighted in affinity.node_affinity.preferred:
        of_labels = weighted.preference.match_expressions
        of_names = weighted.preference.match_fields
        requirement_count += len(of_labels) + len(of_names)
        value_count += sum(len(item.values) for item in (*of_labels, *of_names))
        if requirement_count > MAX_REQUIREMENTS or value_count > MAX_VALUES:
            break
        requirements = [_requirement(item.key, item) for item in of_labels]
        requirements += [_requirement("", item) for item in of_names]
        if requirements:  # an empty term has no effect
            preferences.append(NodePreference(weighted.weight, tuple(requirements)))
    return tuple(preferences)


def _requirement(key: str, item: _Expression) -> NodeRequirement:
    return NodeRequirement(key, item.operator, frozenset(item.values))
