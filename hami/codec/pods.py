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

from hami.codec.affinity import (
    Affinity,
    is_cross_namespace,
    node_preferences,
    node_terms,
    prefers_pods,
)
from hami.codec.claim_amounts import CLAIM, is_claim_name, with_amounts
from hami.codec.device_requests import UsedClaims, used_claims
from hami.codec.documents import decode, decode_object
from hami.codec.keys import CLAIM_AMOUNTS, PREEMPTING
from hami.codec.objects import Metadata, Quantities, quantities
from hami.codec.scopes import ResourceRequirements, is_best_effort, make_scope
from hami.codec.taints import parse_tolerations
from hami.errors import MalformedInput
from hami.model import Container, ContainerKind, EvictedTogether, OwnerRef, Pod, PodRef

T = TypeVar("T")

GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
"""Of the coscheduling plugin; newer versions of Kubernetes have a field."""
DEFAULT_GRACE_S = 30  # terminationGracePeriodSeconds of a pod that names none
DISRUPTION_TARGET, PREEMPTED = "DisruptionTarget", "PreemptionByScheduler"
"""The condition of a pod that is about to be ended, and its reason if that is for a pod of higher priority."""
REJECTED = "UnexpectedAdmissionError"
"""The reason of a pod that its kubelet has rejected for good, such as for a device plugin that was not there yet."""
TERMINATED = ("Succeeded", "Failed")
"""Phases of pods that have finished for good."""
_TEMPLATE = "pod-template-hash"
_SCHEDULED = re.compile(r"-[0-9]{8,10}\Z")  # the minute of a CronJob's Job, since 1970
_DISRUPTION = DISRUPTION_TARGET.encode()
# Kubernetes 1.37, pkg/kubelet/cm/devicemanager/manager.go: the message of a container that waits
_FORGOTTEN = b"no devices found allocated in local cache"
_PREEMPTED_BY = re.compile(
    r"Preempted by pod (?P<preemptor>\S+) on node \S+?"
    r"(: (?P<count>[0-9]{1,6}) pods are evicted together, the last of them is pod (?P<last>\S+))?"
)


class _Variable(msgspec.Struct, gc=False):
    name: str = ""
    value: str | None = None


class _Container(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    restart_policy: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    env: msgspec.Raw = msgspec.Raw()


class _SchedulingGroup(msgspec.Struct, rename="camel", gc=False, frozen=True):
    pod_group_name: str = ""


class _SpreadConstraint(msgspec.Struct, rename="camel", gc=False):
    when_unsatisfiable: str = ""


class _EmptyDir(msgspec.Struct, gc=False):
    medium: str = ""


class _Volume(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    empty_dir: _EmptyDir | None = None
    host_path: msgspec.Raw = msgspec.Raw()

    @property
    def is_local(self) -> bool:
        """As cluster-autoscaler counts it: utils/drain, IsLocalVolume."""
        if self.empty_dir is not None:
            return self.empty_dir.medium != "Memory"
        return bytes(self.host_path) not in (b"", b"null")


class _ResourceClaim(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    resource_claim_name: str = ""


class _Spec(msgspec.Struct, rename="camel", gc=False, frozen=True):
    init_containers: tuple[_Container, ...] = ()
    containers: tuple[_Container, ...] = ()
    node_name: str = ""
    scheduler_name: str = ""
    priority: int = 0
    preemption_policy: str = ""
    termination_grace_period_seconds: int = DEFAULT_GRACE_S
    scheduling_group: _SchedulingGroup = _SchedulingGroup()
    priority_class_name: str = ""
    active_deadline_seconds: int = -1
    resources: ResourceRequirements = ResourceRequirements()
    overhead: Quantities = {}
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: msgspec.Raw = msgspec.Raw()
    topology_spread_constraints: tuple[_SpreadConstraint, ...] = ()
    resource_claims: tuple[msgspec.Raw, ...] = ()
    volumes: msgspec.Raw = msgspec.Raw()

    @property
    def all_containers(self) -> tuple[_Container, ...]:
        return self.init_containers + self.containers


class _Terminated(msgspec.Struct, rename="camel", gc=False):
    exit_code: int = 0
    finished_at: str | None = ""
    container_id: str = msgspec.field(name="containerID", default="")


class _State(msgspec.Struct, gc=False, frozen=True):
    terminated: _Terminated | None = None


class _ContainerStatus(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    container_id: str = msgspec.field(name="containerID", default="")
    state: _State = _State()
    last_state: _State = _State()


class PodCondition(msgspec.Struct, rename="camel", frozen=True):
    """A condition of a pod's status. *last_transition_time*: in the API server's format."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class _ExtendedClaim(msgspec.Struct, gc=False):
    """The claim that kube-scheduler has made for extended resources."""


class _Status(msgspec.Struct, rename="camel", gc=False, frozen=True):
    phase: str = ""
    reason: str | None = None
    message: str | None = None
    nominated_node_name: str = ""
    qos_class: str = ""
    start_time: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    init_container_statuses: tuple[_ContainerStatus, ...] = ()
    extended_resource_claim_status: _ExtendedClaim | None = None
    container_statuses: msgspec.Raw = msgspec.Raw()
    conditions: msgspec.Raw = msgspec.Raw()


class _Pod(msgspec.Struct, gc=False):
    metadata: Metadata = Metadata()
    spec: _Spec = _Spec()
    status: _Status = _Status()


_POD = msgspec.json.Decoder(_Pod)
_DOCUMENT = msgspec.json.Decoder(dict[str, Any])
_VARIABLES = msgspec.json.Decoder(list[_Variable] | None)
_STATUSES = msgspec.json.Decoder(list[_ContainerStatus] | None)
_CONDITIONS = msgspec.json.Decoder(list[PodCondition] | None)
_CLAIM = msgspec.json.Decoder(_ResourceClaim)
_VOLUMES = msgspec.json.Decoder(tuple[_Volume, ...] | None)
_LOCAL = (b'"emptyDir"', b'"hostPath"')  # only volumes with one of these are read
_OWN_CLAIM = b'"hami-'  # only claims with this are read
_NOTHING: Mapping[str, str] = {}  # of most pods


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
    names_claims = bool(wire.spec.resource_claims)
    return NodePod(
        _pod(wire),
        {container.name: _environment(container) for container in wire.spec.all_containers},
        _runs(wire.status),
        names_claims or wire.status.extended_resource_claim_status is not None,
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
    status = decode("pod", _POD, data).status
    return ObservedPod(status.pod_ip, tuple(_conditions(status)))


def convert_pod(value: Mapping[str, Any]) -> Pod:
    """Returns the pod in *value*, which was decoded from JSON. Raises: MalformedInput as :func:`parse_pod`."""
    try:
        return _pod(decode_object(_POD, msgspec.json.encode(value)))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise MalformedInput("pod", "", str(error), message=f"pod: {error}") from error


def _pod(wire: _Pod, size: int = 0) -> Pod:
    meta, spec, status = wire.metadata, wire.spec, wire.status
    containers = _containers(spec)
    claim, claim_problem = _own_claim(spec.resource_claims), ""
    if claim:
        try:
            containers = with_amounts(containers, meta.annotations.get(CLAIM_AMOUNTS))
        except MalformedInput as error:  # of this pod alone: it is refused, and others are read
            claim_problem = str(error)
    controller = meta.controller
    disruption = _preemption(status)
    preemptor, evicted_with = parse_preempted(disruption)
    return Pod(
        ref=PodRef(sys.intern(meta.namespace), meta.name, meta.uid),
        resource_version=meta.resource_version,
        annotations=meta.annotations,
        labels=meta.labels,
        containers=containers,
        node_name=sys.intern(spec.node_name),
        scheduler_name=sys.intern(spec.scheduler_name),
        phase=sys.intern(status.phase),
        failure=_failure(status),
        init_done=_init_done(containers, status.init_container_statuses),
        admitted=bool(status.start_time),
        devices_forgotten=_FORGOTTEN in bytes(status.container_statuses),
        deleting=bool(meta.deletion_timestamp),
        created=meta.creation_timestamp or "",
        priority=spec.priority,
        nominated_node=status.nominated_node_name,
        scheduling_failure="" if spec.node_name else _scheduling_failure(status),
        group=spec.scheduling_group.pod_group_name or meta.labels.get(GROUP_LABEL, ""),
        scope=make_scope(
            spec.priority_class_name,
            spec.active_deadline_seconds >= 0,
            _is_best_effort(spec, status),
            is_cross_namespace(spec.affinity),
        ),
        preferences=node_preferences(spec.affinity),
        node_terms=node_terms(spec.node_selector, spec.affinity),
        tolerations=parse_tolerations(bytes(spec.tolerations)),
        soft_constraints=prefers_pods(spec.affinity) or _prefers_spread(spec),
        preempts=spec.preemption_policy != "Never",
        preempted=disruption is not None,
        preemptor=preemptor,
        evicted_with=evicted_with,
        claim=claim,
        other_claims=_has_other_claims(wire, claim),
        claim_problem=claim_problem,
        controller=sys.intern(controller.uid),
        workload=_workload(meta),
        controller_kind=sys.intern(controller.kind),
        is_node_agent=controller.kind in ("DaemonSet", "Node"),
        local_volumes=_local_volumes(spec.volumes),
        grace_s=spec.termination_grace_period_seconds,
        started=status.start_time,
        finished=_finished(meta, status),
        deletion=meta.deletion_timestamp,
        deletion_grace_s=meta.deletion_grace_period_seconds,
        requests=_of_pod(spec.resources.requests),
        overhead=_of_pod(spec.overhead),
        size=size,
    )


def _has_other_claims(wire: _Pod, claim: str) -> bool:
    """Reports whether the pod has claims beside the one that the scheduler makes, whose name is *claim*."""
    if wire.status.extended_resource_claim_status is not None:
        return True
    return len(wire.spec.resource_claims) > (1 if claim else 0)


def _of_pod(wire: Quantities) -> Mapping[str, str]:
    if not wire:  # as nearly always
        return _NOTHING
    return quantities(wire)


def parse_controller(data: bytes) -> tuple[str, OwnerRef | None]:
    """The uid of the pod in *data* (JSON), and the object that controls it; ``None`` if there is none.

    Raises: MalformedInput.
    """
    meta = decode("pod", _POD, data).metadata
    owner = meta.controller
    if not owner.uid:
        return meta.uid, None
    ref = OwnerRef(meta.namespace, owner.name, owner.uid, owner.kind, owner.api_version)
    return meta.uid, ref


def _workload(meta: Metadata) -> tuple[str, str]:
    """Returns kind and name of the workload of a pod, empty without one. Deployments and CronJobs make objects under
    names by which they can be told."""
    owner = meta.controller
    kind, name = owner.kind, owner.name
    template = meta.labels.get(_TEMPLATE)
    if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
        kind, name = "Deployment", name.removesuffix(f"-{template}")
    elif kind == "Job" and _SCHEDULED.search(name):
        kind, name = "CronJob", _SCHEDULED.sub("", name)
    return sys.intern(kind), sys.intern(name)


def _finished(meta: Metadata, status: _Status) -> str:
    """Returns when the last container of a pod ended, by its kubelet; empty while one runs, or if that is not known."""
    if status.phase not in TERMINATED and not meta.deletion_timestamp:
        return ""  # as nearly always, so the statuses need not be read
    latest = ""
    try:
        containers = _parts("container statuses", _STATUSES, status.container_statuses)
    except MalformedInput:  # the pod counts nonetheless
        return ""
    for container in containers:
        terminated = container.state.terminated
        if terminated is not None:
            latest = max(latest, terminated.finished_at or "")
        elif status.phase not in TERMINATED:
            return ""
    return latest


def _containers(spec: _Spec) -> tuple[Container, ...]:
    containers = []
    for wire in spec.init_containers:
        is_sidecar = wire.restart_policy == "Always"
        kind = ContainerKind.SIDECAR if is_sidecar else ContainerKind.INIT
        containers.append(_container(wire, kind))
    for wire in spec.containers:
        containers.append(_container(wire, ContainerKind.APP))
    return tuple(containers)


def _own_claim(entries: Iterable[msgspec.Raw]) -> str:
    """Returns the name of the claim among *entries* that the scheduler makes; empty if there is none."""
    for entry in entries:
        if _OWN_CLAIM not in bytes(entry):
            continue
        claim = decode("claims of a pod", _CLAIM, entry)
        if claim.name == CLAIM and is_claim_name(claim.resource_claim_name):
            return claim.resource_claim_name
    return ""


def _local_volumes(volumes: msgspec.Raw) -> tuple[str, ...]:
    """Returns the names of volumes that are on the pod's node."""
    text = bytes(volumes)
    if not any([word in text for word in _LOCAL]):
        return ()
    read = decode("volumes of a pod", _VOLUMES, volumes) or ()
    return tuple([volume.name for volume in read if volume.is_local])


def _preemption(status: _Status) -> str | None:
    """Returns the message for a pod that is evicted for one of higher priority; ``None`` for others."""
    if _DISRUPTION not in bytes(status.conditions):  # conditions are read only where one may matter
        return None
    for condition in _conditions(status):
        if (condition.type, condition.status) == (DISRUPTION_TARGET, "True"):
            if condition.reason == PREEMPTED:
                return condition.message or ""
    return None


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


def parse_preempted(message: str | None) -> tuple[str, EvictedTogether | None]:
    """The uid of the preemptor, empty if *message* is of another program, and the pods that are evicted together."""
    match = _PREEMPTED_BY.fullmatch(message or "")
    if match is None:
        return "", None
    together = EvictedTogether(int(match["count"]), match["last"]) if match["count"] else None
    return match["preemptor"], together


def _failure(status: _Status) -> str:
    if status.phase != "Failed":
        return ""
    return ": ".join(filter(None, (status.reason, status.message)))


def _scheduling_failure(status: _Status) -> str:
    for condition in _conditions(status):
        if condition.type == "PodScheduled" and condition.status == "False":
            return f"{condition.last_transition_time} {condition.reason} {condition.message}"
    return ""


def _conditions(status: _Status) -> list[PodCondition]:
    return _parts("pod conditions", _CONDITIONS, status.conditions)


def _container(wire: _Container, kind: ContainerKind) -> Container:
    return Container(
        name=wire.name,
        kind=kind,
        limits=quantities(wire.resources.limits),
        requests=quantities(wire.resources.requests),
    )


def _is_best_effort(spec: _Spec, status: _Status) -> bool:
    if status.qos_class:
        return status.qos_class == "BestEffort"
    return is_best_effort(
        spec.resources, [container.resources for container in spec.all_containers]
    )


def _prefers_spread(spec: _Spec) -> bool:
    for constraint in spec.topology_spread_constraints:
        if constraint.when_unsatisfiable == "ScheduleAnyway":
            return True
    return False


def _init_done(containers: Iterable[Container], statuses: Iterable[_ContainerStatus]) -> bool:
    if not statuses:
        return False
    succeeded = set()
    for status in statuses:
        if status.state.terminated is not None and status.state.terminated.exit_code == 0:
            succeeded.add(status.name)
    inits = [container.name for container in containers if container.kind is ContainerKind.INIT]
    return bool(inits) and succeeded.issuperset(inits)


def _environment(wire: _Container) -> dict[str, str]:
    variables = _parts("environment of a container", _VARIABLES, wire.env)
    return {variable.name: variable.value for variable in variables if variable.value is not None}


def _runs(status: _Status) -> ContainerRuns:
    ids: dict[str, str] = {}
    ended = set()
    statuses = _parts("container statuses", _STATUSES, status.container_statuses)
    for container in (*status.init_container_statuses, *statuses):
        texts = [container.container_id]
        for state in (container.state, container.last_state):
            if state.terminated is not None:
                texts.append(state.terminated.container_id)
        for text in filter(None, texts):
            ids[text.rpartition("//")[2]] = container.name
        if container.state.terminated is not None:
            ended.add(container.name)
    return ContainerRuns(ids, frozenset(ended))


def _parts(field: str, decoder: msgspec.json.Decoder[list[T] | None], data: msgspec.Raw) -> list[T]:
    """Returns the list that is still text; empty if there is none, or null."""
    if not bytes(data):
        return []
    return decode(field, decoder, data) or []
