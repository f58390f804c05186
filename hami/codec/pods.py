"""Pods of the API server, decoded once: the fields that any program of HAMi reads, and no others.

Environment variables, container statuses and conditions stay JSON text until a program asks for them: the scheduler,
which watches all pods of a cluster, never does.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from hami.codec.affinity import Affinity, is_cross_namespace, node_preferences, prefers_pods
from hami.codec.claim_amounts import CLAIM, is_claim_name, with_amounts
from hami.codec.device_requests import UsedClaims, used_claims
from hami.codec.documents import decode
from hami.codec.keys import CLAIM_AMOUNTS, PREEMPTING
from hami.codec.objects import Metadata, quantities
from hami.codec.scopes import ResourceRequirements, is_best_effort, make_scope
from hami.errors import MalformedInput
from hami.model import Container, ContainerKind, EvictedTogether, Pod, PodRef

T = TypeVar("T")

GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
"""Of the coscheduling plugin; newer versions of Kubernetes have a field."""
DEFAULT_GRACE_S = 30  # terminationGracePeriodSeconds of a pod that names none
DISRUPTION_TARGET, PREEMPTED = "DisruptionTarget", "PreemptionByScheduler"
"""The condition of a pod that is about to be ended, and its reason if that is for a pod of higher priority."""
_DISRUPTION = DISRUPTION_TARGET.encode()
_PREEMPTED_BY = re.compile(
    r"Preempted by pod (?P<preemptor>\S+) on node \S+?"
    r"(: (?P<count>[0-9]{1,6}) pods are evicted together, the last of them is pod (?P<last>\S+))?"
)


class _Variable(msgspec.Struct, gc=False):
    name: str | None = ""
    value: str | None = None


class _Container(msgspec.Struct, rename="camel", gc=False):
    name: str | None = ""
    restart_policy: str | None = None
    resources: ResourceRequirements | None = None
    env: msgspec.Raw = msgspec.Raw()


class _SchedulingGroup(msgspec.Struct, rename="camel", gc=False):
    pod_group_name: str | None = ""


class _SpreadConstraint(msgspec.Struct, rename="camel", gc=False):
    when_unsatisfiable: str | None = ""


class _ResourceClaim(msgspec.Struct, rename="camel", gc=False):
    name: str | None = ""
    resource_claim_name: str | None = ""


class _Spec(msgspec.Struct, rename="camel", gc=False):
    init_containers: list[_Container] | None = None
    containers: list[_Container] | None = None
    node_name: str | None = ""
    scheduler_name: str | None = ""
    priority: int | None = 0
    preemption_policy: str | None = None
    termination_grace_period_seconds: int | None = None
    scheduling_group: _SchedulingGroup | None = None
    priority_class_name: str | None = ""
    active_deadline_seconds: int | None = None
    resources: ResourceRequirements | None = None
    affinity: Affinity | None = None
    topology_spread_constraints: list[_SpreadConstraint] | None = None
    resource_claims: list[msgspec.Raw] | None = None

    @property
    def all_containers(self) -> list[_Container]:
        return [*(self.init_containers or ()), *(self.containers or ())]


class _Terminated(msgspec.Struct, rename="camel", gc=False):
    exit_code: int = 0
    container_id: str | None = msgspec.field(name="containerID", default=None)


class _State(msgspec.Struct, gc=False):
    terminated: _Terminated | None = None


class _ContainerStatus(msgspec.Struct, rename="camel", gc=False):
    name: str | None = ""
    container_id: str | None = msgspec.field(name="containerID", default=None)
    state: _State | None = None
    last_state: _State | None = None


class PodCondition(msgspec.Struct, rename="camel", frozen=True):
    """A condition of a pod's status. *last_transition_time*: in the API server's format."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class _ExtendedClaim(msgspec.Struct, gc=False):
    """The claim that kube-scheduler has made for extended resources."""


class _Status(msgspec.Struct, rename="camel", gc=False):
    phase: str | None = ""
    nominated_node_name: str | None = ""
    qos_class: str | None = ""
    start_time: str | None = None
    pod_ip: str | None = msgspec.field(name="podIP", default="")
    init_container_statuses: list[_ContainerStatus] | None = None
    extended_resource_claim_status: _ExtendedClaim | None = None
    container_statuses: msgspec.Raw = msgspec.Raw()
    conditions: msgspec.Raw = msgspec.Raw()


class _Pod(msgspec.Struct, gc=False):
    metadata: Metadata | None = None
    spec: _Spec | None = None
    status: _Status | None = None


_POD = msgspec.json.Decoder(_Pod)
_DOCUMENT = msgspec.json.Decoder(dict[str, Any])
_VARIABLES = msgspec.json.Decoder(list[_Variable] | None)
_STATUSES = msgspec.json.Decoder(list[_ContainerStatus] | None)
_CONDITIONS = msgspec.json.Decoder(list[PodCondition] | None)
_CLAIM = msgspec.json.Decoder(_ResourceClaim | None)
_OWN_CLAIM = b'"hami-'  # only claims with this are read


@dataclass(frozen=True, slots=True)
class ContainerRuns:
    """The containers of a pod as the kubelet has seen them run. *ids*: names by the runtime's id, without its scheme.
    *ended*: names of those that have ended and were not started again."""

    ids: Mapping[str, str] = field(default_factory=dict)
    ended: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod as programs on its node need it. *environments*: the variables that each container sets to a literal value;
    those from elsewhere (``valueFrom``, ``envFrom``) are left out. *runs*: how the containers run. *has_claims*: it
    has ResourceClaims, of any driver, also for extended resources. *claims*: those that its containers
    use; ``None`` if that cannot be read."""

    pod: Pod
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    runs: ContainerRuns = ContainerRuns()
    has_claims: bool = False
    claims: UsedClaims | None = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """A pod as the cluster reports it: its address, empty without one, and its conditions."""

    ip: str
    conditions: tuple[PodCondition, ...]

    def condition(self, type: str) -> PodCondition | None:
        """Returns the condition of that *type*, or None."""
        return next((condition for condition in self.conditions if condition.type == type), None)


def parse_pod(data: bytes | msgspec.Raw) -> Pod:
    """The pod in *data* (JSON). Missing parts are empty. Raises: MalformedInput naming the field of a wrong type."""
    return _pod(decode("pod", _POD, data), memoryview(data).nbytes)


def parse_node_pod(data: bytes | msgspec.Raw) -> NodePod:
    """The pod in *data* (JSON) with its variables and the runs of its containers. Raises: MalformedInput."""
    wire = decode("pod", _POD, data)
    containers = wire.spec.all_containers if wire.spec else []
    status, names_claims = wire.status or _Status(), bool(wire.spec and wire.spec.resource_claims)
    return NodePod(
        _pod(wire),
        {container.name or "": _environment(container) for container in containers},
        _runs(status),
        names_claims or status.extended_resource_claim_status is not None,
        _used_claims(data) if names_claims else {},
    )


def _used_claims(data: bytes | msgspec.Raw) -> UsedClaims | None:
    """The claims that the containers of the pod in *data* use; ``None`` if they cannot be read, such as too many: a
    tenant must not be able to hide the pod by them."""
    document: dict[str, Any] = decode("pod", _DOCUMENT, data)
    try:
        return used_claims(document)
    except MalformedInput:
        return None


def parse_observed_pod(data: bytes | msgspec.Raw) -> ObservedPod:
    """The address and the conditions of the pod in *data* (JSON). Raises: MalformedInput."""
    status = decode("pod", _POD, data).status or _Status()
    return ObservedPod(
        status.pod_ip or "", tuple(_part("pod conditions", _CONDITIONS, status.conditions) or ())
    )


def convert_pod(value: Mapping[str, Any]) -> Pod:
    """Returns the pod in *value*, which was decoded from JSON. Raises: MalformedInput as :func:`parse_pod`."""
    try:
        return _pod(_POD.decode(msgspec.json.encode(value)))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise MalformedInput("pod", "", str(error), message=f"pod: {error}") from error


def _pod(wire: _Pod, size: int = 0) -> Pod:
    meta, spec, status = wire.metadata or Metadata(), wire.spec or _Spec(), wire.status or _Status()
    inits = [
        _container(
            container,
            ContainerKind.SIDECAR if container.restart_policy == "Always" else ContainerKind.INIT,
        )
        for container in spec.init_containers or ()
    ]
    containers = (
        *inits,
        *(_container(container, ContainerKind.APP) for container in spec.containers or ()),
    )
    claim_problem = ""
    if claim := _own_claim(spec.resource_claims) if spec.resource_claims else "":
        try:
            containers = with_amounts(containers, (meta.annotations or {}).get(CLAIM_AMOUNTS))
        except MalformedInput as error:  # of this pod alone: it is refused, and others are read
            claim_problem = str(error)
    deadline, affinity, controller = spec.active_deadline_seconds, spec.affinity, meta.controller
    grace_s = spec.termination_grace_period_seconds
    disruption = _preemption(status)
    preemptor, evicted_with = parse_preempted(
        (disruption.message or "") if disruption is not None else ""
    )
    return Pod(
        ref=PodRef(sys.intern(meta.namespace or ""), meta.name or "", meta.uid or ""),
        resource_version=meta.resource_version or "",
        annotations=meta.annotations or {},
        labels=meta.labels or {},
        containers=containers,
        node_name=sys.intern(spec.node_name or ""),
        scheduler_name=sys.intern(spec.scheduler_name or ""),
        phase=sys.intern(status.phase or ""),
        init_done=bool(inits) and _init_done(inits, status.init_container_statuses or ()),
        admitted=bool(status.start_time),
        deleting=meta.deletion_timestamp is not None,
        created=meta.creation_timestamp or "",
        priority=spec.priority or 0,
        nominated_node=status.nominated_node_name or "",
        scheduling_failure="" if spec.node_name else _scheduling_failure(status),
        group=(
            spec.scheduling_group
            and spec.scheduling_group.pod_group_name
            or (meta.labels or {}).get(GROUP_LABEL, "")
        ),
        scope=make_scope(
            spec.priority_class_name or "",
            deadline is not None and deadline >= 0,
            status.qos_class == "BestEffort" if status.qos_class else _is_best_effort(spec),
            affinity is not None and is_cross_namespace(affinity),
        ),
        preferences=() if affinity is None else node_preferences(affinity),
        soft_constraints=(
            (affinity is not None and prefers_pods(affinity))
            or any(
                constraint.when_unsatisfiable == "ScheduleAnyway"
                for constraint in spec.topology_spread_constraints or ()
            )
        ),
        preempts=spec.preemption_policy != "Never",
        preempted=disruption is not None,
        preemptor=preemptor,
        evicted_with=evicted_with,
        claim=claim,
        claim_problem=claim_problem,
        controller=sys.intern(controller.uid or ""),
        is_node_agent=controller.kind in ("DaemonSet", "Node"),
        grace_s=DEFAULT_GRACE_S if grace_s is None else grace_s,
        started=status.start_time or "",
        deletion=meta.deletion_timestamp or "",
        deletion_grace_s=meta.deletion_grace_period_seconds or 0,
        size=size,
    )


def _own_claim(entries: Iterable[msgspec.Raw]) -> str:
    """Returns the name of the claim among *entries* that the scheduler makes; empty if there is none."""
    for entry in entries:
        if (
            _OWN_CLAIM in bytes(entry)
            and (claim := _part("claims of a pod", _CLAIM, entry)) is not None
        ):
            if claim.name == CLAIM and is_claim_name(name := claim.resource_claim_name or ""):
                return name
    return ""


def _preemption(status: _Status) -> PodCondition | None:
    """Returns the condition of a pod that is evicted for one of higher priority."""
    if _DISRUPTION not in bytes(status.conditions):  # conditions are read only where one may matter
        return None
    conditions = _part("pod conditions", _CONDITIONS, status.conditions) or ()
    return next(
        (
            condition
            for condition in conditions
            if condition.type == DISRUPTION_TARGET
            and condition.status == "True"
            and condition.reason == PREEMPTED
        ),
        None,
    )


def preempting_on(pod: Pod) -> str:
    """Returns the node on which others are evicted for *pod*, by the preemptor or by kube-scheduler, which may clear a
    nomination at any time; empty if there is none."""
    return pod.annotations.get(PREEMPTING) or pod.nominated_node


def render_preempted(uid: str, node: str, together: EvictedTogether | None = None) -> str:
    """The message of a victim's condition and event. It does not name the preemptor: that may be another tenant's.
    *together*: the pods with which it is evicted, so that the next leader can tell whether some of them are gone."""
    message = f"Preempted by pod {uid} on node {node}"
    if together is not None:
        message += (
            f": {together.count} pods are evicted together, the last of them is pod {together.last}"
        )
    return message


def parse_preempted(message: str) -> tuple[str, EvictedTogether | None]:
    """The uid of the preemptor, empty if *message* is of another program, and the pods that are evicted together."""
    match = _PREEMPTED_BY.fullmatch(message)
    if match is None:
        return "", None
    together = EvictedTogether(int(match["count"]), match["last"]) if match["count"] else None
    return match["preemptor"], together


def _scheduling_failure(status: _Status) -> str:
    for condition in _part("pod conditions", _CONDITIONS, status.conditions) or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return f"{condition.last_transition_time} {condition.reason} {condition.message}"
    return ""


def _container(wire: _Container, kind: ContainerKind) -> Container:
    resources = wire.resources or ResourceRequirements()
    return Container(
        name=wire.name or "",
        kind=kind,
        limits=quantities(resources.limits),
        requests=quantities(resources.requests),
    )


def _is_best_effort(spec: _Spec) -> bool:
    return is_best_effort(
        spec.resources, [container.resources for container in spec.all_containers]
    )


def _init_done(inits: list[Container], statuses: Iterable[_ContainerStatus]) -> bool:
    succeeded = {
        status.name
        for status in statuses
        if status.state and status.state.terminated and status.state.terminated.exit_code == 0
    }
    plain = [container.name for container in inits if container.kind is ContainerKind.INIT]
    return bool(plain) and all(name in succeeded for name in plain)


def _environment(wire: _Container) -> dict[str, str]:
    variables = _part("environment of a container", _VARIABLES, wire.env) or ()
    return {
        variable.name or "": variable.value for variable in variables if variable.value is not None
    }


def _runs(status: _Status) -> ContainerRuns:
    ids: dict[str, str] = {}
    ended = set()
    statuses = _part("container statuses", _STATUSES, status.container_statuses) or ()
    for container in (*(status.init_container_statuses or ()), *statuses):
        runs = [
            state.terminated
            for state in (container.state, container.last_state)
            if state and state.terminated
        ]
        for text in (container.container_id, *(run.container_id for run in runs)):
            if text:
                ids[text.rpartition("//")[2]] = container.name or ""
        if container.state is not None and container.state.terminated is not None:
            ended.add(container.name or "")
    return ContainerRuns(ids, frozenset(ended))


def _part(field: str, decoder: msgspec.json.Decoder[T | None], data: msgspec.Raw) -> T | None:
    return decode(field, decoder, data) if bytes(data) else None
