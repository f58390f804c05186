"""Records that all packages share. Memory is in MiB and cores are in percent of one device, everywhere.

This module contains no wire format and no scheduling rule.
"""

from __future__ import annotations

import enum
import functools
import itertools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple


class Reason(enum.StrEnum):
    """The reason why a device or a node does not fit. Users see the values."""

    TYPE_MISMATCH = "CardTypeMismatch"
    UUID_MISMATCH = "CardUuidMismatch"
    NO_SLOT = "CardTimeSlicingExhausted"
    NO_CORES_LEFT = "CardComputeUnitsExhausted"
    NO_MEMORY = "CardInsufficientMemory"
    NO_CORES = "CardInsufficientCore"
    UNHEALTHY = "CardNotHealth"
    CORDONED = "CardCordoned"
    NUMA = "NumaNotFit"
    NOT_ALONE = "ExclusiveDeviceAllocateConflict"
    CUSTOM_RULE = "CardNotFoundCustomFilterRule"
    MIG_TOPOLOGY = "CardMigTopologyInfeasible"
    TOO_FEW_DEVICES = "NodeInsufficientDevice"
    TOO_FEW_FITTING = "AllocatedCardsInsufficientRequest"
    QUOTA = "ResourceQuotaNotFit"
    MODE = "ModeNotFit"
    SGPU_UNHEALTHY = "CardUnhealthy"  # MetaX has a reason of its own
    QOS = "CardQosPolicyMismatch"
    APP_CLASS = "CardAppClassMismatch"
    ALLOCATION_MODE = "CardOtherAllocationMode"


class Immovable(enum.StrEnum):
    """Why a pod stays where it is. The first reason that applies is shown."""

    PRIORITY = "HigherPriority"
    SIBLING = "SameController"
    ENDING = "NotRunning"
    NODE_AGENT = "NodeAgent"
    NO_CONTROLLER = "NoController"
    UNKNOWN_CONTROLLER = "UnknownController"
    JOB = "Job"
    DO_NOT_MOVE = "DoNotMove"
    NOT_SAFE = "NotSafeToEvict"
    PREEMPTIBLE = "NotPreemptible"
    GANG = "Gang"
    CLAIMS = "OtherClaims"
    LOCAL_STORAGE = "LocalStorage"
    BUDGET = "DisruptionBudget"
    YOUNG = "Young"


@dataclass(frozen=True, slots=True)
class Unfit:
    """The reasons why a container does not fit a node, each with the number of *devices* that it excludes."""

    reasons: tuple[tuple[Reason, int], ...]
    devices: int

    @classmethod
    def of(cls, reasons: Mapping[Reason, int], fitting: int, devices: int) -> Unfit:
        """Returns the result if only *fitting* of *devices* fit, and *reasons* exclude the others."""
        counts = {**reasons, Reason.TOO_FEW_FITTING: fitting} if fitting else reasons
        return cls(tuple(sorted(counts.items())), devices)

    @classmethod
    def too_few_devices(cls, devices: int) -> Unfit:
        """Returns the result if a node has fewer devices than are requested, free or not."""
        return cls(((Reason.TOO_FEW_DEVICES, devices),), devices)

    def __str__(self) -> str:
        """The text for users: ``1/4 CardInsufficientMemory, 3/4 CardNotHealth``, sorted as text."""
        if self.reasons and self.reasons[0][0] is Reason.TOO_FEW_DEVICES:
            return Reason.TOO_FEW_DEVICES
        return ", ".join(
            sorted(f"{count}/{self.devices} {reason}" for reason, count in self.reasons)
        )


class ContainerKind(enum.Enum):
    """The role of a container in its pod. A sidecar is an init container with restartPolicy Always."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


class BindPhase(enum.StrEnum):
    """Progress of the device plugin with a pod (annotation ``hami.io/bind-phase``)."""

    ALLOCATING = "allocating"
    SUCCESS = "success"
    FAILED = "failed"


class NodePolicy(enum.Enum):
    """The preferred node among those that fit: the fullest (binpack) or the emptiest (spread)."""

    BINPACK = "binpack"
    SPREAD = "spread"
    LEAST_WASTE = "least-waste"


class OrderKey(enum.Enum):
    """A key of the order in which devices are tried: the greatest value first."""

    SCORE = "score"
    SCORE_DESCENDING = "score descending"
    NUMA = "numa"
    NUMA_DESCENDING = "numa descending"
    USED_DESCENDING = "slots used descending"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class DevicePolicy:
    """The policy for selecting a container's devices on a node.

    *mutex*: only unused devices. *topology_aware*: the devices with the best links among all that fit.
    *numa_bind*: all devices of a container on one NUMA node.
    """

    order: tuple[OrderKey, ...]
    mutex: bool = False
    topology_aware: bool = False
    numa_bind: bool = False


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of slots, cores and memory in a device's score."""

    slot: int = 1
    core: int = 1
    memory: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """A vendor's devices that a pod accepts. ``None`` is no constraint; an empty *use* tuple accepts nothing.

    *mode*: a text that must contain the device's mode.
    """

    use_types: tuple[str, ...] | None = None
    nouse_types: tuple[str, ...] | None = None
    use_uuids: tuple[str, ...] | None = None
    nouse_uuids: tuple[str, ...] | None = None
    mode: str | None = None

    @property
    def is_for_instances(self) -> bool:
        """Whether the pod gets MIG instances, not shares of cards."""
        if self.mode is None or "hami-core" in self.mode:
            return False
        return "mig" in self.mode


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """A part of a device that one container holds alone: the memory slices of a MIG instance, or a range of cores.

    *name*: the MIG profile, empty for other partitions. *instance*: identifiers that the node agent assigned when it
    created the partition (for MIG: the UUID, then the GPU instance and compute instance numbers); empty before that.
    """

    start: int
    size: int = 1
    name: str = ""
    instance: tuple[str, ...] = ()

    def overlaps(self, other: Partition) -> bool:
        """Reports whether the two partitions have a part in common."""
        return self.start < other.start + other.size and other.start < self.start + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """A size into which a MIG device can be partitioned, with its possible placements."""

    name: str
    memory_mib: int
    cores: int
    slices: int
    placements: tuple[Partition, ...] = ()

    @property
    def nominal_mib(self) -> int:
        """The memory that its name says, which is more than its instances have: 5120 of ``1g.5gb``; 0 for none."""
        return _nominal_mib(self.name)


@functools.lru_cache(maxsize=256)  # node agents write the names
def _nominal_mib(name: str) -> int:
    found = _NOMINAL_SIZE.search(name)
    return int(found[1]) * 1024 if found else 0


_NOMINAL_SIZE = re.compile(r"\.([0-9]{1,6})gb\b", re.ASCII)
NOTHING: Mapping[str, Any] = MappingProxyType({})  # a dict for each of 160,000 devices takes 20 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator as its node registered it. *slots*: the number of containers that may share it.

    *by_claims*: pods get it by claims that the scheduler makes, not from the kubelet's device plugins.
    *info*: facts that only the rules of its vendor read, keyed by names of that vendor.
    """

    uuid: str
    vendor: str
    model: str
    slots: int
    memory_mib: int
    cores: int = 100
    index: int = 0
    numa: int = 0
    mode: str = "hami-core"
    healthy: bool = True
    cordoned: bool = False
    by_claims: bool = False
    mig_profiles: tuple[MigProfile, ...] = ()
    pair_scores: Mapping[str, int] = field(default_factory=lambda: NOTHING, hash=False)
    info: Mapping[str, Any] = field(default_factory=lambda: NOTHING, hash=False)

    @property
    def is_partitioned(self) -> bool:
        """Reports whether the device is allocated in parts of fixed sizes.

        The cores of such parts are rounded up, so their sum is not limited.
        """
        return self.mode in ("mig", "drs")


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """A device and the part of it that is allocated.

    *partitions*: parts that containers hold alone. *co_tenants*: attributes of the pods that share the device which
    other pods' rules need, one entry for each pod, in a format of its vendor.
    """

    device: Device
    slots_used: int = 0
    memory_used_mib: int = 0
    cores_used: int = 0
    partitions: tuple[Partition, ...] = ()
    co_tenants: tuple[str, ...] = ()

    @property
    def memory_free_mib(self) -> int:
        """Unallocated memory in MiB; negative if the device is overcommitted."""
        return self.device.memory_mib - self.memory_used_mib

    @property
    def is_overcommitted(self) -> bool:
        """Reports whether more is allocated than the device has, or one part twice.

        Cores of partitioned devices are rounded up and do not count.
        """
        device = self.device
        for one, other in itertools.combinations(self.partitions, 2):
            if one.overlaps(other):
                return True
        if self.slots_used > device.slots or self.memory_used_mib > device.memory_mib:
            return True
        return self.cores_used > device.cores and not device.is_partitioned


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The request of one container for devices of one vendor.

    *memory_mib*: 0 if not given in MiB. *memory_percent*: ``None`` if not given in percent. *slices*: the number of
    equal parts of a device; 0 if not given in slices.
    """

    vendor: str
    count: int
    memory_mib: int = 0
    memory_percent: int | None = None
    cores: int = 0
    slices: int = 0

    @property
    def device_cores(self) -> int:
        """The percent that the request needs of one device: at most all of it."""
        return min(self.cores, 100)

    def memory_on(self, device: Device) -> int:
        """The memory in MiB that the request needs on *device*. MiB take precedence over a percentage (truncated).

        The nominal size of a MIG profile of the device is a request for an instance of it, whatever memory that has.
        """
        if self.memory_mib > 0:
            if not device.mig_profiles:
                return self.memory_mib
            nominal = [
                profile.memory_mib
                for profile in device.mig_profiles
                if profile.nominal_mib == self.memory_mib
            ]
            return min([self.memory_mib, *nominal])
        if self.memory_percent is None:
            return 0
        return device.memory_mib * self.memory_percent // 100


@dataclass(frozen=True, slots=True)
class Share:
    """Part of one device, held by one container. *type*: the vendor's key, or the type in the annotation.

    *partitions* and *co_tenants*: as in :class:`DeviceUsage`; the allocation annotation does not contain them.
    """

    uuid: str
    type: str
    memory_mib: int
    cores: int
    partitions: tuple[Partition, ...] = ()
    co_tenants: tuple[str, ...] = ()


Allocation = tuple[tuple[Share, ...], ...]
"""A pod's shares, a tuple for each container, init containers first."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The remaining quota of a namespace for one vendor's devices. ``None`` is no limit; it may be negative."""

    memory_mib: int | None = None
    cores: int | None = None
    devices: int | None = None

    @property
    def is_unlimited(self) -> bool:
        """Reports whether there is no limit."""
        if self.memory_mib is not None or self.cores is not None:
            return False
        return self.devices is None

    def covers(self, memory_mib: int, cores: int, devices: int = 0) -> bool:
        """Reports whether the amounts are within the budget."""
        if self.memory_mib is not None and memory_mib > self.memory_mib:
            return False
        if self.devices is not None and devices > self.devices:
            return False
        return self.cores is None or cores <= self.cores

    def without(self, memory_mib: int, cores: int, devices: int = 0) -> Budget:
        """Returns what is left after the amounts."""
        return Budget(
            None if self.memory_mib is None else self.memory_mib - memory_mib,
            None if self.cores is None else self.cores - cores,
            None if self.devices is None else self.devices - devices,
        )


@dataclass(frozen=True, slots=True)
class PodRef:
    """The identity of one pod; a later pod of the same name has another uid."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class QuotaRef(PodRef):
    """The identity of a ResourceQuota, for events about it."""


@dataclass(frozen=True, slots=True)
class NamespaceRef(PodRef):
    """The identity of a namespace, for events about it, which lie in it: its users see them there."""


@dataclass(frozen=True, slots=True)
class OwnerRef(PodRef):
    """The identity of the object that controls a pod."""

    kind: str = ""
    api_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """A namespace. *gpu_hours*: its annotation with a budget, as it is written; ``None`` without one."""

    name: str
    uid: str
    resource_version: str = ""
    gpu_hours: str | None = None

    @property
    def ref(self) -> NamespaceRef:
        """Its identity."""
        return NamespaceRef(self.name, self.name, self.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The fields of a container that scheduling reads. Quantities are in the API server's notation."""

    name: str
    kind: ContainerKind = ContainerKind.APP
    limits: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodScope:
    """The properties of a pod by which ResourceQuotas with scopes select it. Equal ones are the same object when pods
    are decoded.

    *has_deadline*: ``activeDeadlineSeconds`` is set. *is_best_effort*: its QoS class. *crosses_namespaces*: terms of
    its pod affinity or anti-affinity name other namespaces.
    """

    priority_class: str = ""
    has_deadline: bool = False
    is_best_effort: bool = False
    crosses_namespaces: bool = False


@dataclass(frozen=True, slots=True)
class NodeRequirement:
    """A condition on a node. *key*: the label that it is about; empty for the node's name."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LabelRequirement:
    """A condition on the labels of a pod."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DisruptionBudget:
    """A PodDisruptionBudget. *selector*: the conditions on its pods; ``None`` selects no pod. *allowed*: how many of
    them may be evicted now."""

    namespace: str
    name: str
    selector: tuple[LabelRequirement, ...] | None = None
    allowed: int = 0

    @property
    def key(self) -> str:
        """Its namespace and name."""
        return f"{self.namespace}/{self.name}"

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Reports whether it protects a pod of *namespace* with *labels*."""
        if namespace != self.namespace or self.selector is None:
            return False
        for requirement in self.selector:
            if not selects(requirement.operator, requirement.values, labels.get(requirement.key)):
                return False
        return True


@dataclass(frozen=True, slots=True)
class NodePreference:
    """A term of a pod's preferred node affinity. *weight*: from 1 to 100, of nodes that meet all *requirements*."""

    weight: int
    requirements: tuple[NodeRequirement, ...]


class PodGroupRef(NamedTuple):
    """The identity of a PodGroup. *is_labeled*: its pods name it by a label, as for the coscheduling plugin."""

    namespace: str
    name: str
    is_labeled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """The words of a PodGroup about its pods. *min_count*: how many are placed together or not at all; ``None`` if it
    does not say. *disrupted_with*: the highest group above them that is disrupted as a whole, as ``podgroup/NAME`` or
    ``compositepodgroup/NAME`` of their namespace; empty if they are disrupted one by one."""

    min_count: int | None = None
    disrupted_with: str = ""


@dataclass(frozen=True, slots=True)
class EvictedTogether:
    """Pods that are evicted together or not at all. *count*: how many there are. *last*: the uid of the one that is
    marked last, and deleted last: the first of them is deleted once all are marked."""

    count: int
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """The fields of a pod that HAMi reads."""

    ref: PodRef
    resource_version: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[Container, ...] = ()  # init containers first, then app containers
    node_name: str = ""
    scheduler_name: str = ""
    phase: str = ""
    failure: str = ""  # the reason and the message of one that has failed
    init_done: bool = False  # every init container but sidecars has exited with 0; there is one
    admitted: bool = False  # by the kubelet, so its devices have been allocated
    # a container cannot start, since the kubelet no longer knows its devices
    devices_forgotten: bool = False
    deleting: bool = False
    created: str = ""
    priority: int = 0
    nominated_node: str = ""  # kube-scheduler makes room for it there, or has chosen the node
    # time and message of kube-scheduler's last one, unless it is bound
    scheduling_failure: str = ""
    group: str = ""  # of pods that are placed together
    scope: PodScope = PodScope()  # selects its quotas
    preferences: tuple[NodePreference, ...] = ()  # its preferred node affinity
    # its node selector and required node affinity: a node must meet all requirements of one term, if there is any
    node_terms: tuple[tuple[NodeRequirement, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()  # of taints that keep pods away
    # Has other wishes that only kube-scheduler can judge: preferred pod affinity, or a spread that may be violated.
    soft_constraints: bool = False
    preempts: bool = True  # pods of lower priority may be evicted for it
    preempted: bool = False  # it is evicted for a pod of higher priority
    preemptor: str = ""  # the uid of that pod, unless kube-scheduler evicts
    evicted_with: EvictedTogether | None = None  # the pods that are evicted together then
    claim: str = ""  # the name of the claim that the scheduler makes for it
    other_claims: bool = False  # it names claims that the scheduler does not make for it
    claim_problem: str = ""  # why what its containers request by that claim cannot be read
    controller: str = ""  # the uid of the object that controls it
    # kind and name of that object, or of the Deployment or CronJob that controls it in turn
    workload: tuple[str, str] = ("", "")
    controller_kind: str = ""
    is_node_agent: bool = False  # its node runs it by itself, or by a DaemonSet
    local_volumes: tuple[str, ...] = ()  # names of volumes whose content is lost with the pod
    grace_s: int = 30  # seconds that it may take to end
    started: str = ""  # when the kubelet admitted it
    finished: str = ""  # when the last of its containers ended, if all have
    deletion: str = ""  # when it ends at the latest, if it is being deleted
    deletion_grace_s: int = 0  # seconds that it was given for that
    # what it requests as a whole, and what it takes beside its containers
    requests: Mapping[str, str] = field(default_factory=dict)
    overhead: Mapping[str, str] = field(default_factory=dict)
    size: int = field(
        default=0, compare=False
    )  # bytes of the JSON that it was read from, 0 if unknown

    @property
    def is_terminated(self) -> bool:
        """Reports whether the pod has finished for good."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Taint:
    """A property of a node that keeps pods away which do not tolerate it."""

    key: str
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Toleration:
    """A rule for the taints that a pod tolerates: of all keys if *key* is empty, and of all effects if *effect* is."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The fields of a node that HAMi reads. Quantities are in the API server's notation."""

    name: str
    resource_version: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    runtime_version: str = ""  # such as containerd://2.3.7
    kubelet_version: str = ""  # such as v1.36.3
    unschedulable: bool = False  # cordoned: kube-scheduler does not offer it
    taints: tuple[Taint, ...] = ()  # that keep pods away
    uid: str = ""


def selects(operator: str, values: Collection[str], value: str | None) -> bool:
    """Reports whether *value* (``None``: there is none) is selected by a requirement of a label or scope selector; none
    is by an operator that is not known. Source: k8s.io/apimachinery, pkg/labels/selector.go."""
    match operator:
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "In":
            return value in values
        case "NotIn":
            return value not in values
    return False


@dataclass(frozen=True, slots=True)
class ScopeRequirement:
    """A scope of a ResourceQuota. *operator* and *values* matter for the scope PriorityClass only.

    Source: k8s.io/kubernetes, pkg/quota/v1/evaluator/core/pods.go, podMatchesScopeFunc.
    """

    scope: str
    operator: str = "Exists"
    values: tuple[str, ...] = ()

    def matches(self, pod: PodScope) -> bool:
        """Reports whether a pod with these properties is in the scope. No pod is in a scope that is not known."""
        match self.scope:
            case "Terminating":
                return pod.has_deadline
            case "NotTerminating":
                return not pod.has_deadline
            case "BestEffort":
                return pod.is_best_effort
            case "NotBestEffort":
                return not pod.is_best_effort
            case "PriorityClass":
                return selects(self.operator, self.values, pod.priority_class or None)
            case "CrossNamespacePodAffinity":
                return pod.crosses_namespaces
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLimits:
    """The ``limits.…`` entries of one ResourceQuota, keyed by resource name without that prefix.

    *binary*: resources whose limit has a binary suffix (``4Gi``). *requests*: names of its ``requests.…`` entries,
    which Kubernetes itself counts. *entries*: all that have a resource with a domain, as written.
    *scopes*: the quota limits and counts only the pods that match all of them.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str = ""
    limits: Mapping[str, int] = field(default_factory=dict)
    binary: frozenset[str] = frozenset()
    requests: frozenset[str] = frozenset()
    entries: tuple[tuple[str, str], ...] = ()
    scopes: tuple[ScopeRequirement, ...] = ()

    def matches(self, pod: PodScope) -> bool:
        """Reports whether the quota limits and counts a pod with these properties."""
        return all([scope.matches(pod) for scope in self.scopes])
