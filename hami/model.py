"""Records that every room shares. Memory in MiB, cores in percent of one device, everywhere.

This module knows no wire form and no rule; it only names things.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "BindPhase", "Budget", "Container", "ContainerKind", "Device", "DevicePolicy", "MigProfile", "Node", "NodePolicy",
    "OrderKey", "Pod", "PodRef", "QuotaLimits", "Reason", "Request", "Selector", "Share", "Partition", "DeviceUsage", "Weights",
]


class Reason(enum.StrEnum):
    """Why a device, or a node, cannot serve; the values are what users of HAMi see."""

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
    SGPU_UNHEALTHY = "CardUnhealthy"  # MetaX's own word
    QOS = "CardQosPolicyMismatch"
    APP_CLASS = "CardAppClassMismatch"


class ContainerKind(enum.Enum):
    """What a container is to the pod's life; a sidecar is an init container that restarts always."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


class BindPhase(enum.StrEnum):
    """How far the device plugin is with a pod (annotation ``hami.io/bind-phase``)."""

    ALLOCATING = "allocating"
    SUCCESS = "success"
    FAILED = "failed"


class NodePolicy(enum.Enum):
    """Which of the nodes that fit is taken: the fullest, or the emptiest."""

    BINPACK = "binpack"
    SPREAD = "spread"


class OrderKey(enum.Enum):
    """What devices are sorted by, ascending; the last of the list is tried first."""

    SCORE = "score"
    SCORE_DESCENDING = "score descending"
    NUMA = "numa"
    NUMA_DESCENDING = "numa descending"
    USED_DESCENDING = "slots used descending"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class DevicePolicy:
    """How a container's devices are chosen on a node.

    *mutex*: only devices that nobody uses. *topology_aware*: collect all that fit, then take the best linked.
    *numa_bind*: all devices of a container on one NUMA node.
    """

    order: tuple[OrderKey, ...]
    mutex: bool = False
    topology_aware: bool = False
    numa_bind: bool = False


@dataclass(frozen=True, slots=True)
class Weights:
    """What slots, cores and memory count for in a device's score."""

    slot: int = 1
    core: int = 1
    memory: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Which of a vendor's devices a pod accepts; ``None`` is no constraint, an empty tuple accepts nothing.

    *mode* is a text that must contain the device's mode.
    """

    use_types: tuple[str, ...] | None = None
    nouse_types: tuple[str, ...] | None = None
    use_uuids: tuple[str, ...] | None = None
    nouse_uuids: tuple[str, ...] | None = None
    mode: str | None = None


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """A part of a device that one container holds alone: the place of a MIG instance, in memory slices, or a core.

    *name*: what stands there (a MIG profile), where that matters. *instance*: what it is called since its agent has
    made it (of a MIG instance its UUID, then the numbers of its GPU instance and compute instance); empty before.
    """

    start: int
    size: int = 1
    name: str = ""
    instance: tuple[str, ...] = ()

    def overlaps(self, other: Partition) -> bool:
        """Both cannot be held at once."""
        return self.start < other.start + other.size and other.start < self.start + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """A size in which a card can be cut, with the places where that may happen."""

    name: str
    memory_mib: int
    cores: int
    slices: int
    placements: tuple[Partition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator as its node registered it; *slots* is how many containers may share it.

    *info*: what only its vendor's own rules read, by names of theirs.
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
    mig_profiles: tuple[MigProfile, ...] = ()
    pair_scores: Mapping[str, int] = field(default_factory=dict, hash=False)
    info: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def is_cut(self) -> bool:
        """It is given out in parts of fixed sizes, whose cores are rounded up, so that their sum says nothing."""
        return self.mode in ("mig", "drs")


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """A device and what of it is taken.

    *partitions*: the parts that containers hold alone. *co_tenants*: what pods that share the device have to know of each other,
    in words of its vendor, one entry a pod.
    """

    device: Device
    slots_used: int = 0
    memory_used_mib: int = 0
    cores_used: int = 0
    partitions: tuple[Partition, ...] = ()
    co_tenants: tuple[str, ...] = ()

    def charged(self, slots: int, memory_mib: int, cores: int) -> DeviceUsage:
        """The same device with so much more taken."""
        return DeviceUsage(self.device, self.slots_used + slots, self.memory_used_mib + memory_mib, self.cores_used + cores,
                    self.partitions, self.co_tenants)

    @property
    def memory_free_mib(self) -> int:
        """MiB that nobody has taken; negative when more is taken than there is."""
        return self.device.memory_mib - self.memory_used_mib

    @property
    def is_over(self) -> bool:
        """More is taken than there is, or one part twice. Cores of cut devices are rounded and do not count."""
        device = self.device
        if any(one.overlaps(other) for place, one in enumerate(self.partitions) for other in self.partitions[:place]):
            return True
        return (self.slots_used > device.slots or self.memory_used_mib > device.memory_mib
                or (self.cores_used > device.cores and not device.is_cut))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one container asks of one vendor.

    *memory_mib* 0 means «not given in MiB»; *memory_percent* ``None`` means «not given in percent». *slices*: how many,
    of devices that are cut in equal parts; 0 means «not given so».
    """

    vendor: str
    count: int
    memory_mib: int = 0
    memory_percent: int | None = None
    cores: int = 0
    slices: int = 0

    def memory_on(self, device: Device) -> int:
        """MiB that this request needs on *device*; an absolute amount wins over a percentage (truncated)."""
        if self.memory_mib > 0:
            return self.memory_mib
        return device.memory_mib * self.memory_percent // 100 if self.memory_percent is not None else 0


@dataclass(frozen=True, slots=True)
class Share:
    """Part of one device, held by one container. *type* is the vendor's key, or the word in the annotation.

    *partitions* and *co_tenants* as in :class:`DeviceUsage`; they do not stand in the annotation itself.
    """

    uuid: str
    type: str
    memory_mib: int
    cores: int
    partitions: tuple[Partition, ...] = ()
    co_tenants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Budget:
    """What a namespace has left of one vendor, MiB and percent; ``None`` is no limit. It may be negative."""

    memory_mib: int | None = None
    cores: int | None = None

    def covers(self, memory_mib: int, cores: int) -> bool:
        """So much more may be taken."""
        return ((self.memory_mib is None or memory_mib <= self.memory_mib)
                and (self.cores is None or cores <= self.cores))


@dataclass(frozen=True, slots=True)
class PodRef:
    """Names one pod and no later one of the same name."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The part of a container that scheduling reads; quantities as the API server wrote them."""

    name: str
    kind: ContainerKind = ContainerKind.APP
    limits: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """The part of a pod that HAMi reads. *containers*: init containers first, then app containers.

    *init_done*: every init container that is no sidecar has terminated with exit code 0 (false without any).
    """

    ref: PodRef
    resource_version: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[Container, ...] = ()
    node_name: str = ""
    scheduler_name: str = ""
    phase: str = ""
    init_done: bool = False
    deleting: bool = False
    created: str = ""

    @property
    def is_terminated(self) -> bool:
        """Nothing of the pod runs any more, nor ever will."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The part of a node that HAMi reads; quantities as the API server wrote them."""

    name: str
    resource_version: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLimits:
    """The ``limits.…`` entries of one ResourceQuota, keyed by resource name without that prefix.

    *binary*: those of the resources whose limit is written with a binary unit (``4Gi``).
    """

    namespace: str
    name: str
    uid: str
    resource_version: str = ""
    limits: Mapping[str, int] = field(default_factory=dict)
    binary: frozenset[str] = frozenset()
