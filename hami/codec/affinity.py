"""The affinity of pods to nodes and to other pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from hami.model import NodePreference, NodeRequirement

MAX_REQUIREMENTS = 16  # of the preferred node affinity of a pod: they are compared with each node
MAX_VALUES = 1024  # of all of these
NodeTerms = tuple[tuple[NodeRequirement, ...], ...]
_NO_NODE: NodeTerms = ((NodeRequirement("", "In"),),)


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


class _NodeSelector(msgspec.Struct, rename="camel", gc=False, frozen=True):
    node_selector_terms: tuple[_NodeTerm, ...] = ()


class _NodeAffinity(msgspec.Struct, gc=False, frozen=True):
    required: _NodeSelector | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )
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
    weighted = affinity.node_affinity.preferred
    preferences: list[NodePreference] = []
    for item, requirements in zip(weighted, _bounded([item.preference for item in weighted])):
        if requirements:  # an empty term has no effect
            preferences.append(NodePreference(item.weight, requirements))
    return tuple(preferences)


def node_terms(selector: Mapping[str, str], affinity: Affinity | None) -> NodeTerms:
    """Returns the terms of which a node must meet one, by node selector and required affinity; empty if any node will
    do. No node meets a selector of more than MAX_REQUIREMENTS labels, nor terms beyond as many conditions, or
    MAX_VALUES."""
    required = None if affinity is None else affinity.node_affinity.required
    if not selector and required is None:  # as most pods
        return ()
    if len(selector) > MAX_REQUIREMENTS:
        return _NO_NODE
    labels = tuple([NodeRequirement(key, "In", frozenset({selector[key]})) for key in selector])
    if required is None:
        return (labels,)
    terms: list[tuple[NodeRequirement, ...]] = []
    for requirements in _bounded(required.node_selector_terms):
        if requirements:  # no node meets an empty term
            terms.append(labels + requirements)
    return tuple(terms) if terms else _NO_NODE


def _bounded(terms: Iterable[_NodeTerm]) -> Iterator[tuple[NodeRequirement, ...]]:
    """Yields the conditions of each of *terms*, as long as they are within the bounds together."""
    requirement_count = value_count = 0
    for term in terms:
        items = (*term.match_expressions, *term.match_fields)
        requirement_count += len(items)
        value_count += sum(len(item.values) for item in items)
        if requirement_count > MAX_REQUIREMENTS or value_count > MAX_VALUES:
            return
        requirements = [_requirement(item.key, item) for item in term.match_expressions]
        requirements += [_requirement("", item) for item in term.match_fields]
        yield tuple(requirements)


def _requirement(key: str, item: _Expression) -> NodeRequirement:
    return NodeRequirement(key, item.operator, frozenset(item.values))
