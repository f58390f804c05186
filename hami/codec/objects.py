"""Pods, nodes and quotas of the API server, decoded to the fields that HAMi reads.

Other fields are skipped without building objects, which makes watching large clusters cheap.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from hami.codec.documents import decode
from hami.errors import MalformedInput
from hami.model import Container, ContainerKind, Node, Pod, PodRef, QuotaLimits
from hami.quantity import strict_integer

LONGEST_VERSION = 18  # digits; annotations may hold any text, also longer than int() accepts
Quantities = dict[str, str | int | float | None]


class _Meta(msgspec.Struct, rename="camel"):
    name: str | None = ""
    namespace: str | None = ""
    uid: str | None = ""
    resource_version: str | None = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    creation_timestamp: str | None = ""
    deletion_timestamp: str | None = None


class _Resources(msgspec.Struct):
    limits: Quantities | None = None
    requests: Quantities | None = None


class _Variable(msgspec.Struct):
    name: str | None = ""
    value: str | None = None


class _Settled(msgspec.Struct):
    """A container with its environment variables."""

    name: str | None = ""
    env: list[_Variable] | None = None


class _Container(msgspec.Struct, rename="camel"):
    name: str | None = ""
    restart_policy: str | None = None
    resources: _Resources | None = None


C = TypeVar("C", _Container, _Settled)


class _Ended(msgspec.Struct):
    container_id: str | None = msgspec.field(name="containerID", default=None)


class _Phase(msgspec.Struct):
    terminated: _Ended | None = None


class _Observed(msgspec.Struct, rename="camel"):
    """The status of a container, with the runtime's ids of this run and the one before."""

    name: str | None = ""
    container_id: str | None = msgspec.field(name="containerID", default=None)
    state: _Phase | None = None
    last_state: _Phase | None = None


class _ObservedStatus(msgspec.Struct, rename="camel"):
    init_container_statuses: list[_Observed] | None = None
    container_statuses: list[_Observed] | None = None


class _ObservedPod(msgspec.Struct):
    status: _ObservedStatus | None = None


class _PodSpec(msgspec.Struct, Generic[C], rename="camel"):
    init_containers: list[C] | None = None
    containers: list[C] | None = None
    node_name: str | None = ""
    scheduler_name: str | None = ""


class _Terminated(msgspec.Struct, rename="camel"):
    exit_code: int = 0


class _State(msgspec.Struct):
    terminated: _Terminated | None = None


class _ContainerStatus(msgspec.Struct):
    name: str | None = ""
    state: _State | None = None


class _PodStatus(msgspec.Struct, rename="camel"):
    phase: str | None = ""
    start_time: str | None = None
    init_container_statuses: list[_ContainerStatus] | None = None


class _Pod(msgspec.Struct, Generic[C]):
    metadata: _Meta | None = None
    spec: _PodSpec[C] | None = None
    status: _PodStatus | None = None


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
    metadata: _Meta | None = None
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


class _QuotaSpec(msgspec.Struct):
    hard: Quantities | None = None


class _Quota(msgspec.Struct):
    metadata: _Meta | None = None
    spec: _QuotaSpec | None = None


_POD = msgspec.json.Decoder(_Pod[_Container])
_SETTLED_POD = msgspec.json.Decoder(_Pod[_Settled])
_OBSERVED_POD = msgspec.json.Decoder(_ObservedPod)
_NODE = msgspec.json.Decoder(_Node)
_QUOTA = msgspec.json.Decoder(_Quota)


def parse_pod(data: bytes | msgspec.Raw) -> Pod:
    """The pod in *data* (JSON). Missing parts are empty. Raises: MalformedInput naming the field of a wrong type."""
    return _pod(decode("pod", _POD, data))


def convert_pod(value: Mapping[str, Any]) -> Pod:
    """Returns the pod in *value*, which was decoded from JSON. Raises: MalformedInput as :func:`parse_pod`."""
    try:
        return _pod(msgspec.convert(value, _Pod[_Container]))
    except msgspec.ValidationError as error:
        raise MalformedInput("pod", "", str(error), message=f"pod: {error}") from error


def _pod(wire: _Pod[_Container]) -> Pod:
    meta, spec, status = wire.metadata or _Meta(), wire.spec or _PodSpec(), wire.status or _PodStatus()
    inits = [_container(c, ContainerKind.SIDECAR if c.restart_policy == "Always" else ContainerKind.INIT)
             for c in spec.init_containers or ()]
    return Pod(
        ref=PodRef(sys.intern(meta.namespace or ""), meta.name or "", meta.uid or ""),
        resource_version=meta.resource_version or "",
        annotations=meta.annotations or {},
        labels=meta.labels or {},
        containers=(*inits, *(_container(c, ContainerKind.APP) for c in spec.containers or ())),
        node_name=sys.intern(spec.node_name or ""),
        scheduler_name=sys.intern(spec.scheduler_name or ""),
        phase=sys.intern(status.phase or ""),
        init_done=_init_done(inits, status.init_container_statuses or ()),
        admitted=bool(status.start_time),
        deleting=meta.deletion_timestamp is not None,
        created=meta.creation_timestamp or "",
    )


def parse_resource_version(resource_version: str) -> int:
    """A resource version as an integer that increases over time; 0 if *resource_version* is not a number."""
    is_number = resource_version.isdecimal() and resource_version.isascii() and len(resource_version) <= LONGEST_VERSION
    return int(resource_version) if is_number else 0


def parse_environment(data: bytes | msgspec.Raw) -> tuple[str, dict[str, dict[str, str]]]:
    """The uid of the pod in *data* (JSON), and the environment variables with literal values of each container.

    Values from elsewhere (``valueFrom``, ``envFrom``) are left out.
    Raises: MalformedInput.
    """
    wire = decode("pod", _SETTLED_POD, data)
    spec = wire.spec or _PodSpec()
    return (wire.metadata or _Meta()).uid or "", {
        container.name or "": {one.name or "": one.value for one in container.env or () if one.value is not None}
        for container in (*(spec.init_containers or ()), *(spec.containers or ()))}


@dataclass(frozen=True, slots=True)
class ContainerRuns:
    """The containers of a pod as the kubelet has seen them run. *ids*: names by the runtime's id, without its scheme.
    *ended*: names of those that have ended and were not started again."""

    ids: Mapping[str, str] = field(default_factory=dict)
    ended: frozenset[str] = frozenset()


def parse_runs(data: bytes | msgspec.Raw) -> ContainerRuns:
    """The runs of the containers in *data*, a pod (JSON). Raises: MalformedInput."""
    status = decode("pod", _OBSERVED_POD, data).status or _ObservedStatus()
    ids: dict[str, str] = {}
    ended = set()
    for one in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        states = [state.terminated for state in (one.state, one.last_state) if state and state.terminated]
        for text in (one.container_id, *(state.container_id for state in states)):
            if text:
                ids[text.rpartition("//")[2]] = one.name or ""
        if one.state is not None and one.state.terminated is not None:
            ended.add(one.name or "")
    return ContainerRuns(ids, frozenset(ended))


def parse_node(data: bytes | msgspec.Raw) -> Node:
    """The node in *data* (JSON). Raises: MalformedInput."""
    wire = decode("node", _NODE, data)
    meta, status = wire.metadata or _Meta(), wire.status or _NodeStatus()
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
        unschedulable=bool(wire.spec and wire.spec.unschedulable),
    )


def parse_quota(data: bytes | msgspec.Raw) -> QuotaLimits:
    """The integer ``limits.…`` entries of the ResourceQuota in *data* (JSON); HAMi ignores others.

    Raises: MalformedInput.
    """
    wire = decode("resourcequota", _QUOTA, data)
    meta, spec = wire.metadata or _Meta(), wire.spec or _QuotaSpec()
    texts = {name.removeprefix("limits."): text for name, text in quantities(spec.hard).items()
             if name.startswith("limits.")}
    limits = {name: value for name, text in texts.items() if (value := strict_integer(text)) is not None}
    return QuotaLimits(namespace=meta.namespace or "", name=meta.name or "", uid=meta.uid or "",
                       resource_version=meta.resource_version or "", limits=limits,
                       binary=frozenset(name for name in limits if texts[name].endswith("i")))


def _container(wire: _Container, kind: ContainerKind) -> Container:
    resources = wire.resources or _Resources()
    return Container(name=wire.name or "", kind=kind, limits=quantities(resources.limits),
                     requests=quantities(resources.requests))


def quantities(wire: Mapping[str, Any] | None) -> dict[str, str]:
    """Quantities as text. The API also accepts numbers and null."""
    return {sys.intern(name): str(value) for name, value in (wire or {}).items() if value is not None}


def _init_done(inits: list[Container], statuses: Iterable[_ContainerStatus]) -> bool:
    succeeded = {status.name for status in statuses
                 if status.state and status.state.terminated and status.state.terminated.exit_code == 0}
    plain = [c.name for c in inits if c.kind is ContainerKind.INIT]
    return bool(plain) and all(name in succeeded for name in plain)
