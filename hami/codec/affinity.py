"""The affinity of pods to nodes and to other pods."""

from __future__ import annotations

from typing import Any

import msgspec

from hami.model import NodePreference, NodeRequirement

MAX_REQUIREMENTS = 16  # of the preferred node affinity of a pod: they are compared with each node
MAX_VALUES = 1024  # of all of these


class _Term(msgspec.Struct, rename="camel", gc=False):
    namespaces: list[str] | None = None
    namespace_selector: dict[str, Any] | None = None


class _WeightedTerm(msgspec.Struct, rename="camel", gc=False):
    pod_affinity_term: _Term | None = None


class _PodAffinity(msgspec.Struct, gc=False):
    required: list[_Term] | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )
    preferred: list[_WeightedTerm] | None = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=None
    )


class _Expression(msgspec.Struct, gc=False):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class _NodeTerm(msgspec.Struct, rename="camel", gc=False):
    match_expressions: list[_Expression] | None = None
    match_fields: list[_Expression] | None = None


class _WeightedNodeTerm(msgspec.Struct, gc=False):
    weight: int = 0
    preference: _NodeTerm | None = None


class _NodeAffinity(msgspec.Struct, gc=False):
    preferred: list[_WeightedNodeTerm] | None = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=None
    )


class Affinity(msgspec.Struct, rename="camel", gc=False):
    """The affinity of a pod to other pods, and what it prefers of nodes."""

    node_affinity: _NodeAffinity | None = None
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


def is_cross_namespace(affinity: Affinity) -> bool:
    """Reports whether a term names namespaces, or selects them. An empty selector selects all."""
    for kind in (affinity.pod_affinity, affinity.pod_anti_affinity):
        if kind is not None:
            preferred = [weighted.pod_affinity_term for weighted in kind.preferred or ()]
            if any(
                term.namespaces or term.namespace_selector is not None
                for term in (*(kind.required or ()), *preferred)
                if term is not None
            ):
                return True
    return False


def prefers_pods(affinity: Affinity) -> bool:
    """Reports whether the pod prefers to be near other pods, or away from them."""
    return any(
        kind is not None and kind.preferred
        for kind in (affinity.pod_affinity, affinity.pod_anti_affinity)
    )


def node_preferences(affinity: Affinity) -> tuple[NodePreference, ...]:
    """Returns the preferred node affinity. Terms beyond MAX_REQUIREMENTS conditions or MAX_VALUES do not count."""
    preferences: list[NodePreference] = []
    left, values_left = MAX_REQUIREMENTS, MAX_VALUES
    for weighted in (affinity.node_affinity and affinity.node_affinity.preferred) or ():
        term = weighted.preference or _NodeTerm()
        of_labels, of_names = term.match_expressions or [], term.match_fields or []
        left -= len(of_labels) + len(of_names)
        values_left -= sum(len(item.values or ()) for item in (*of_labels, *of_names))
        if left < 0 or values_left < 0:
            break
        requirements = (
            *(_requirement(item.key, item) for item in of_labels),
            *(_requirement("", item) for item in of_names),
        )
        if requirements:  # an empty term has no effect
            preferences.append(NodePreference(weighted.weight, requirements))
    return tuple(preferences)


def _requirement(key: str, item: _Expression) -> NodeRequirement:
    return NodeRequirement(key, item.operator, frozenset(item.values or ()))
