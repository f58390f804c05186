"""Nodes and quotas of the API server, decoded to the fields that HAMi reads; `pods` has the pods.

Other fields are skipped without building objects, which makes watching large clusters cheap.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from hami.codec.documents import decode
from hami.codec.gpu_hours import MAX_TEXT
from hami.codec.keys import GPU_HOURS
from hami.codec.taints import keeping_away
from hami.model import (
    DisruptionBudget,
    LabelRequirement,
    Namespace,
    Node,
    QuotaLimits,
    ScopeRequirement,
    Taint,
)
from hami.quantity import strict_integer

RESOURCE_GROUP = "resource.k8s.io/v1"  # of slices and claims
LONGEST_AMOUNT = 64  # characters of an entry of a quota that is remembered as it is written
LONGEST_VERSION = 18  # digits; annotations may hold any text, also longer than int() accepts
Quantities = dict[str, str | int | float | None]


class OwnerReference(msgspec.Struct, rename="camel", gc=False, frozen=True):
    """An owner of an object. *controller*: it controls it."""

    kind: str = ""
    uid: str = ""
    controller: bool = False
    name: str = ""
    api_version: str = ""


_NO_OWNER = OwnerReference()


class Metadata(msgspec.Struct, rename="camel", frozen=True):
    """The metadata of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    creation_timestamp: str | None = ""  # null in objects of older clients
    deletion_timestamp: str = ""
    deletion_grace_period_seconds: int = 0
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def controller(self) -> OwnerReference:
        """The owner that controls the object; an empty one if there is none."""
        for owner in self.owner_references:
            if owner.controller:
                return owner
        return _NO_OWNER


class PriorityClass(msgspec.Struct, frozen=True, rename="camel"):
    """A PriorityClass. *global_default*: it is that of pods that name none."""

    value: int = 0
    global_default: bool | None = False
    preemption_policy: str | None = None


class _NodeInfo(msgspec.Struct, rename="camel", frozen=True):
    container_runtime_version: str = ""
    kubelet_version: str = ""


class _NodeStatus(msgspec.Struct, rename="camel", frozen=True):
    capacity: Quantities = {}
    allocatable: Quantities = {}
    node_info: _NodeInfo = _NodeInfo()


class _Taint(msgspec.Struct, gc=False, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class _NodeSpec(msgspec.Struct, frozen=True):
    unschedulable: bool = False
    taints: tuple[_Taint, ...] = ()


class _Node(msgspec.Struct):
    metadata: Metadata = Metadata()
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


class _Namespace(msgspec.Struct):
    metadata: Metadata = Metadata()


class _ScopeExpression(msgspec.Struct, rename="camel", frozen=True):
    scope_name: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class _ScopeSelector(msgspec.Struct, rename="camel", frozen=True):
    match_expressions: tuple[_ScopeExpression, ...] = ()


class _QuotaSpec(msgspec.Struct, rename="camel", frozen=True):
    hard: Quantities = {}
    scopes: tuple[str, ...] = ()
    scope_selector: _ScopeSelector = _ScopeSelector()


class _Quota(msgspec.Struct):
    metadata: Metadata = Metadata()
    spec: _QuotaSpec = _QuotaSpec()


class _LabelExpression(msgspec.Struct, gc=False):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class _LabelSelector(msgspec.Struct, rename="camel", gc=False):
    match_labels: dict[str, str] = {}
    match_expressions: tuple[_LabelExpression, ...] = ()


class _BudgetSpec(msgspec.Struct, gc=False, frozen=True):
    selector: _LabelSelector | None = None


class _BudgetStatus(msgspec.Struct, rename="camel", gc=False, frozen=True):
    disruptions_allowed: int = 0


class _Budget(msgspec.Struct, gc=False):
    metadata: Metadata = Metadata()
    spec: _BudgetSpec = _BudgetSpec()
    status: _BudgetStatus = _BudgetStatus()


_NAMESPACE = msgspec.json.Decoder(_Namespace)
_NODE = msgspec.json.Decoder(_Node)
_BUDGET = msgspec.json.Decoder(_Budget)
_PRIORITY_CLASS = msgspec.json.Decoder(PriorityClass)
_QUOTA = msgspec.json.Decoder(_Quota)


def parse_resource_version(resource_version: str) -> int:
    """A resource version as an integer that increases over time; 0 if *resource_version* is not a number."""
    if len(resource_version) > LONGEST_VERSION:
        return 0
    if resource_version.isdecimal() and resource_version.isascii():
        return int(resource_version)
    return 0


def parse_node(data: bytes | msgspec.Raw) -> Node:
    """The node in *data* (JSON). Raises: MalformedInput."""
    wire = decode("node", _NODE, data)
    meta, status = wire.metadata, wire.status
    return Node(
        name=sys.intern(meta.name),
        resource_version=meta.resource_version,
        annotations=meta.annotations,
        labels=meta.labels,
        capacity=quantities(status.capacity),
        allocatable=quantities(status.allocatable),
        runtime_version=sys.intern(status.node_info.container_runtime_version),
        kubelet_version=sys.intern(status.node_info.kubelet_version),
        uid=meta.uid,
        unschedulable=wire.spec.unschedulable,
        taints=keeping_away(
            tuple([Taint(taint.key, taint.value, taint.effect) for taint in wire.spec.taints])
        ),
    )


def parse_quota(data: bytes | msgspec.Raw) -> QuotaLimits:
    """The ResourceQuota in *data* (JSON): scopes, integer ``limits.…`` entries, names of ``requests.…`` entries.

    Raises: MalformedInput.
    """
    wire = decode("resourcequota", _QUOTA, data)
    limits: dict[str, int] = {}
    binary, requests = set(), set()
    entries: list[tuple[str, str]] = []
    for entry, text in quantities(wire.spec.hard).items():
        kind, _, name = entry.partition(".")
        if "/" in entry and len(text) <= LONGEST_AMOUNT:
            entries.append((entry, text))
        value = strict_integer(text)
        if kind == "limits" and value is not None:
            limits[name] = value
            if text.endswith("i"):
                binary.add(name)
        elif kind == "requests" and "/" in name:
            requests.add(name)
    meta = wire.metadata
    return QuotaLimits(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        limits=limits,
        binary=frozenset(binary),
        scopes=_scopes(wire.spec),
        requests=frozenset(requests),
        entries=tuple(entries),
    )


def parse_namespace(data: bytes | msgspec.Raw) -> Namespace:
    """The namespace in *data* (JSON). Raises: MalformedInput."""
    meta = decode("namespace", _NAMESPACE, data).metadata
    text = meta.annotations.get(GPU_HOURS)
    return Namespace(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        gpu_hours=None if text is None else text[: MAX_TEXT + 1],
    )


def parse_priority_class(data: bytes | msgspec.Raw) -> PriorityClass:
    """The PriorityClass in *data* (JSON). Raises: MalformedInput."""
    return decode("priorityclass", _PRIORITY_CLASS, data)


def parse_disruption_budget(data: bytes | msgspec.Raw) -> DisruptionBudget:
    """The PodDisruptionBudget (policy/v1) in *data* (JSON). Raises: MalformedInput."""
    wire = decode("poddisruptionbudget", _BUDGET, data)
    selector = wire.spec.selector
    return DisruptionBudget(
        namespace=wire.metadata.namespace,
        name=wire.metadata.name,
        allowed=wire.status.disruptions_allowed,
        selector=None if selector is None else tuple(_requirements(selector)),
    )


def _requirements(selector: _LabelSelector) -> Iterator[LabelRequirement]:
    for key, value in selector.match_labels.items():
        yield LabelRequirement(key, "In", (value,))
    for expression in selector.match_expressions:
        yield LabelRequirement(expression.key, expression.operator, expression.values)


def _scopes(spec: _QuotaSpec) -> tuple[ScopeRequirement, ...]:
    scopes = [ScopeRequirement(scope) for scope in spec.scopes]
    for expression in spec.scope_selector.match_expressions:
        scopes.append(
            ScopeRequirement(expression.scope_name, expression.operator, expression.values)
        )
    return tuple(scopes)


def quantities(wire: Mapping[str, Any]) -> dict[str, str]:
    """Quantities as text. The API also accepts numbers and null."""
    return {sys.intern(name): str(value) for name, value in wire.items() if value is not None}
