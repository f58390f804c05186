"""The containers of a node that have devices, as the API server says, or the limits on the node for those of claims.
Pure.

What a container may use and its priority come from here, never from what it can write to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hami.codec.allocation import container_positions
from hami.codec.keys import GPU_ALLOCATED, RESIZE_APPLIED, RESIZED
from hami.codec.pods import NodePod
from hami.codec.resize import parse_applied, wanted_text
from hami.errors import MalformedInput
from hami.model import Partition, Pod, PodRef, Share
from hami.monitor.processes import ContainerId, plain_uid
from hami.node.instances import GivenInstance
from hami.node.limits import ContainerLimits, task_priority
from hami.quantity import MIB
from hami.vendors.request import most_shares, requesting
from hami.vendors.shares import read_allocation
from hami.vendors.spec import Catalog, Vendor

Key = tuple[str, str]
"""A pod's uid, and the name of a container of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedDevice:
    """A device that a container has been given. *index*: its number in the container. *card*: the UUID of the card.

    *memory*: bytes. *cores*: percent. *instance*: of a MIG instance, with its identity if it has been created.
    """

    index: int
    card: str
    memory: int
    cores: int
    instance: Partition | None = None

    @property
    def uuid(self) -> str:
        """The UUID of what processes run on: that of the MIG instance if it is known."""
        return self.identity[0] if self.identity else self.card

    @property
    def identity(self) -> tuple[str, ...]:
        """The UUID and the numbers of the MIG instance; empty without one, or if it has not been created."""
        return self.instance.instance if self.instance is not None else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoredContainer:
    """A container with devices. *priority*: 0 is the highest. *has_ended*: it has ended and was not started again.
    *is_resizing*: the device plugin has not confirmed the present sizes of its pod yet. *sharing*: other containers of
    the pod that have the same directory, limits and use."""

    pod: PodRef
    name: str
    devices: tuple[AllocatedDevice, ...]
    priority: int = 1
    has_ended: bool = False
    is_resizing: bool = False
    sharing: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        """Identifies the container on the node."""
        return self.pod.uid, self.name

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by card."""
        return {device.card: device.memory for device in self.devices}


@dataclass(frozen=True, slots=True)
class NodeContainers:
    """The containers of a node. *by_id*: keys by identity in control groups. *problems*: pods that cannot be read."""

    containers: tuple[MonitoredContainer, ...]
    by_id: Mapping[ContainerId, Key]
    problems: Mapping[PodRef, str]


def find_containers(
    pods: Iterable[NodePod],
    vendors: Catalog,
    vendor: Vendor,
    card_indexes: Mapping[str, int],
    limits: Callable[[str, str], ContainerLimits | None] = lambda uid, name: None,
    instances: Callable[[str, str], Sequence[GivenInstance]] = lambda uid, name: (),
) -> NodeContainers:
    """Returns the containers of *pods* that have devices of *vendor*, by namespace and name of the pod.

    Pods that have finished have none. *card_indexes*: the driver's order, by UUID: devices have the same order in the
    container. Unknown cards come last. *limits*, *instances*: return those of a container, by uid of the pod and its
    own name: those of a pod with claims say what it was really given.
    """
    containers: list[MonitoredContainer] = []
    by_id: dict[ContainerId, Key] = {}
    problems: dict[PodRef, str] = {}
    for node_pod in sorted(
        pods, key=lambda item: (item.pod.ref.namespace, item.pod.ref.name, item.pod.ref.uid)
    ):
        pod = node_pod.pod
        try:
            allocated = list(_of_pod(node_pod, vendors, vendor, card_indexes))
            if not allocated and node_pod.has_claims and not pod.is_terminated:
                allocated = list(_of_claims(node_pod, limits, instances))
        except MalformedInput as error:
            problems[pod.ref] = str(error)
            continue
        containers += allocated
        keys: dict[str, Key] = {}
        for container in allocated:
            keys |= dict.fromkeys((container.name, *container.sharing), container.key)
        uid = plain_uid(pod.ref.uid)
        for number, name in node_pod.runs.ids.items():
            if name in keys:
                by_id[ContainerId(uid, number)] = keys[name]
    return NodeContainers(tuple(containers), by_id, problems)


def is_resizing(pod: Pod) -> bool:
    """Reports whether *pod* was resized and the device plugin has not confirmed its present sizes yet."""
    if not pod.annotations.get(RESIZED):
        return False
    applied = parse_applied(pod.annotations.get(RESIZE_APPLIED))
    return applied is None or applied.sizes != wanted_text(pod.annotations)


def _as_wanted(pod: Pod) -> Pod:
    """Returns *pod* as if it held what it is to have, which is what its containers are limited to."""
    wanted = wanted_text(pod.annotations)
    if not pod.annotations.get(RESIZED) or wanted is None:
        return pod
    return replace(pod, annotations={**pod.annotations, RESIZED: wanted, GPU_ALLOCATED: wanted})


def _of_pod(
    node_pod: NodePod, vendors: Catalog, vendor: Vendor, card_indexes: Mapping[str, int]
) -> Iterator[MonitoredContainer]:
    pod = node_pod.pod
    limit = most_shares(vendors, pod.containers).get(vendor.key, 0)
    if pod.is_terminated or pod.claim or not limit:
        return
    if vendor.annotations.allocated not in pod.annotations:
        return
    allocation = read_allocation(_as_wanted(pod), vendor, limit)
    names = requesting(vendor, pod.containers)
    for name, position in container_positions(pod.containers, allocation, names).items():
        yield MonitoredContainer(
            pod=pod.ref,
            name=name,
            devices=_devices(allocation[position], card_indexes),
            priority=task_priority(node_pod.environments.get(name, {})),
            has_ended=name in node_pod.runs.ended,
            is_resizing=is_resizing(pod),
        )


def _of_claims(
    node_pod: NodePod,
    limits: Callable[[str, str], ContainerLimits | None],
    instances: Callable[[str, str], Sequence[GivenInstance]],
) -> Iterator[MonitoredContainer]:
    pod, uses = node_pod.pod, node_pod.claims or {}
    limited: dict[str, MonitoredContainer] = {}
    for container in pod.containers:
        monitored = _limited_container(pod.ref, container.name, limits, instances)
        if monitored is not None:
            limited[container.name] = monitored
    others = [entry.name for entry in pod.containers if entry.name not in limited]
    for name, monitored in limited.items():
        use = uses.get(name)
        sharing = [other for other in others if other in uses and uses[other] == use]
        has_ended = {name, *sharing} <= node_pod.runs.ended
        yield replace(monitored, sharing=tuple(sharing), has_ended=has_ended)


def _limited_container(
    pod: PodRef,
    name: str,
    limits: Callable[[str, str], ContainerLimits | None],
    instances: Callable[[str, str], Sequence[GivenInstance]],
) -> MonitoredContainer | None:
    limit = limits(pod.uid, name)
    if limit is not None:
        devices = _limited(limit)
        return MonitoredContainer(pod=pod, name=name, devices=devices, priority=limit.priority)
    devices = _instances(instances(pod.uid, name))
    if not devices:
        return None
    return MonitoredContainer(pod=pod, name=name, devices=devices)


def _limited(limit: ContainerLimits) -> tuple[AllocatedDevice, ...]:
    return tuple(
        AllocatedDevice(index=index, card=device.uuid, memory=device.memory, cores=device.cores)
        for index, device in enumerate(limit.devices)
    )


def _instances(held: Iterable[GivenInstance]) -> tuple[AllocatedDevice, ...]:
    return tuple(
        AllocatedDevice(
            index=index,
            card=one.card,
            memory=one.memory_mib * MIB,
            cores=one.cores,
            instance=one.partition,
        )
        for index, one in enumerate(held)
    )


def _devices(
    shares: Iterable[Share], card_indexes: Mapping[str, int]
) -> tuple[AllocatedDevice, ...]:
    last = len(card_indexes)
    ordered = sorted(shares, key=lambda share: card_indexes.get(share.uuid, last))
    return tuple(
        AllocatedDevice(
            index=index,
            card=share.uuid,
            memory=share.memory_mib * MIB,
            cores=share.cores,
            instance=share.partitions[0] if share.partitions else None,
        )
        for index, share in enumerate(ordered)
    )
