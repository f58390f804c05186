"""Nodes and quotas of the API server, decoded to the fields that HAMi reads; `pods` has the pods.

Other fields are skipped without building objects, which makes watching large clusters cheap.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from hami.codec.documents import decode
from hami.model import DisruptionBudget, LabelRequirement, Node, QuotaLimits, ScopeRequirement
from hami.quantity import strict_integer

RESOURCE_GROUP = "resource.k8s.io/v1"  # of slices and claims
LONGEST_VERSION = 18  # digits; annotations may hold any text, also longer than int() accepts
Quantities = dict[str, str | int | float | None]


class OwnerReference(msgspec.Struct, rename="camel", gc=False):
    """An owner of an object. *controller*: it controls it."""

    kind: str | None = ""
    uid: str | None = ""
    controller: bool | None = False


_NO_OWNER = OwnerReference()


class Metadata(msgspec.Struct, rename="camel"):
    """The metadata of any object."""

    name: str | None = ""
    namespace: str | None = ""
    uid: str | None = ""
    resource_version: str | None = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    creation_timestamp: str | None = ""
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    owner_references: list[OwnerReference] | None = None

    @property
    def controller(self) -> OwnerReference:
        """The owner that controls the object; an empty one if there is none."""
        if not self.owner_references:
            return _NO_OWNER
        return next((owner for owner in self.owner_references if owner.controller), _NO_OWNER)


class _NodeInfo(msgspec.Struct, rename="camel"):
    container_runtime_version: str | None = ""
    kubelet_version: str | None = ""


class _NodeStatus(msgspec.Struct, rename="camel"):
    capacity: Quantities | None = None
    allocatable: Quantities | None = None
    node_info: _NodeInfo | None = None


class _NodeSpec(msgspec.Struct):
    unschedulable: bool | None = False


class _Node(msgspec.Struct):
    metadata: Metadata | None = None
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


class _ScopeExpression(msgspec.Struct, rename="camel"):
    scope_name: str | None = ""
    operator: str | None = ""
    values: list[str] | None = None


class _ScopeSelector(msgspec.Struct, rename="camel"):
    match_expressions: list[_ScopeExpression] | None = None


class _QuotaSpec(msgspec.Struct, rename="camel"):
    hard: Quantities | None = None
    scopes: list[str] | None = None
    scope_selector: _ScopeSelector | None = None


class _Quota(msgspec.Struct):
    metadata: Metadata | None = None
    spec: _QuotaSpec | None = None


class _LabelExpression(msgspec.Struct, gc=False):
    key: str | None = ""
    operator: str | None = ""
    values: list[str] | None = None


class _LabelSelector(msgspec.Struct, rename="camel", gc=False):
    match_labels: dict[str, str] | None = None
    match_expressions: list[_LabelExpression] | None = None


class _BudgetSpec(msgspec.Struct, gc=False):
    selector: _LabelSelector | None = None


class _BudgetStatus(msgspec.Struct, rename="camel", gc=False):
    disruptions_allowed: int | None = 0


class _Budget(msgspec.Struct, gc=False):
    metadata: Metadata | None = None
    spec: _BudgetSpec | None = None
    status: _BudgetStatus | None = None


_NODE = msgspec.json.Decoder(_Node)
_BUDGET = msgspec.json.Decoder(_Budget)
_QUOTA = msgspec.json.Decoder(_Quota)


def parse_resource_version(resource_version: str) -> int:
    """A resource version as an integer that increases over time; 0 if *resource_version* is not a number."""
    is_number = (
        resource_version.isdecimal()
        and resource_version.isascii()
        and len(resource_version) <= LONGEST_VERSION
    )
    return int(resource_version) if is_number else 0


def parse_node(data: bytes | msgspec.Raw) -> Node:
    """The node in *data* (JSON). Raises: MalformedInput."""
    wire = decode("node", _NODE, data)
    meta, status = wire.metadata or Metadata(), wire.status or _NodeStatus()
    info = status.node_info or _NodeInfo()
    return Node(
        name=sys.intern(meta.name or ""),
        resource_version=meta.resource_version or "",
        annotations=meta.annotations or {},
        labels=meta.labels or {},
        capacity=quantities(status.capacity),
        allocatable=quantities(status.allocatable),
        runtime_version=sys.intern(info.container_runtime_version or ""),
        kubelet_version=sys.intern(info.kubelet_version or ""),
        uid=meta.uid or "",
        unschedulable=bool(wire.spec and wire.spec.unschedulable),
    )


def parse_quota(data: bytes | msgspec.Raw) -> QuotaLimits:
    """The ResourceQuota in *data* (JSON): scopes, integer ``limits.…`` entries, names of ``requests.…`` entries.

    Raises: MalformedInput.
    """
    wire = decode("resourcequota", _QUOTA, data)
    meta, spec = wire.metadata or Metadata(), wire.spec or _QuotaSpec()
    hard = quantities(spec.hard)
    texts = {
        name.removeprefix("limits."): text
        for name, text in hard.items()
        if name.startswith("limits.")
    }
    limits = {
        name: value for name, text in texts.items() if (value := strict_integer(text)) is not None
    }
    return QuotaLimits(
        namespace=meta.namespace or "",
        name=meta.name or "",
        uid=meta.uid or "",
        resource_version=meta.resource_version or "",
        limits=limits,
        binary=frozenset(name for name in limits if texts[name].endswith("i")),
        scopes=_scopes(spec),
        requests=frozenset(
            name.removeprefix("requests.")
            for name in hard
            if name.startswith("requests.") and "/" in name
        ),
    )


def parse_disruption_budget(data: bytes | msgspec.Raw) -> DisruptionBudget:
    """The PodDisruptionBudget (policy/v1) in *data* (JSON). Raises: MalformedInput."""
    wire = decode("poddisruptionbudget", _BUDGET, data)
    meta, selector = wire.metadata or Metadata(), wire.spec.selector if wire.spec else None
    return DisruptionBudget(
        namespace=meta.namespace or "",
        name=meta.name or "",
        allowed=(wire.status.disruptions_allowed or 0) if wire.status else 0,
        selector=None
        if selector is None
        else (
            *(
                LabelRequirement(key, "In", (value,))
                for key, value in (selector.match_labels or {}).items()
            ),
            *(
                LabelRequirement(
                    expression.key or "", expression.operator or "", tuple(expression.values or ())
                )
                for expression in selector.match_expressions or ()
            ),
        ),
    )


def _scopes(spec: _QuotaSpec) -> tuple[ScopeRequirement, ...]:
    expressions = spec.scope_selector.match_expressions if spec.scope_selector else None
    return (
        *map(ScopeRequirement, spec.scopes or ()),
        *(
            ScopeRequirement(
                expression.scope_name or "",
                expression.operator or "",
                tuple(expression.values or ()),
            )
            for expression in expressions or ()
        ),
    )


def quantities(wire: Mapping[str, Any] | None) -> dict[str, str]:
    """Quantities as text. The API also accepts numbers and null."""
    return {
        sys.intern(name): str(value) for name, value in (wire or {}).items() if value is not None
    }
