"""The resize of a bound pod on the devices that it has: what is booked for it and what it is to have, or why not.

Only what grows is decided, with the rules by which pods are placed, beside what others hold. Less always fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hami.codec.allocation import container_positions
from hami.codec.core_limits import pod_cores_limit
from hami.codec.keys import CORES_LIMIT
from hami.codec.resize import ResizeState, Size
from hami.model import (
    Allocation,
    Budget,
    ContainerKind,
    Device,
    DeviceUsage,
    Pod,
    Reason,
    Request,
    Share,
)
from hami.scheduling.fit import objection
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.usage import Amounts, Charge, peak_charges, total_charge
from hami.vendors.mig import in_mig_mode
from hami.vendors.request import WHOLE, requesting
from hami.vendors.spec import Candidate, Vendor


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizableDevices:
    """The devices of *pod* and of its node, as far as a resize depends on them."""

    pod: Pod
    request: PodRequest
    vendor: Vendor
    current: Allocation  # the shares that are booked
    target: Allocation  # the shares that the pod is to have so far, of the same devices
    usages: Sequence[DeviceUsage]  # of the vendor's devices on the node, without what the pod holds
    budget: Budget  # what quotas leave, without what the pod holds
    node_resizes: bool  # the device plugin of the node changes the limits of running containers
    # a quota that the pod would evade by growing, and the resource that it limits
    evaded: tuple[str, str] | None = None

    @property
    def positions(self) -> Mapping[str, int]:
        """The position in *current* of each container that has shares."""
        containers = self.pod.containers
        return container_positions(containers, self.current, requesting(self.vendor, containers))

    @property
    def kinds(self) -> tuple[ContainerKind, ...]:
        """The kind of the container at each position in *current*."""
        kinds = tuple(container.kind for container in self.pod.containers)
        if len(kinds) != len(self.current):
            return (ContainerKind.APP,) * len(self.current)
        return kinds

    @property
    def usage_by_uuid(self) -> dict[str, DeviceUsage]:
        """The devices of the node by uuid."""
        return {usage.device.uuid: usage for usage in self.usages}


@dataclass(frozen=True, slots=True)
class ResizePlan:
    """The shares that are *booked* for a pod from now on, and its *target*: those that it is to have, which are no
    more than these."""

    booked: Allocation
    target: Allocation


@dataclass(frozen=True, slots=True)
class ResizeRefusal:
    """Why a pod keeps its size: for now (DEFERRED), or for good (INFEASIBLE)."""

    state: ResizeState
    message: str


def plan_resize(sizes: Mapping[str, Size], devices: ResizableDevices) -> ResizePlan | ResizeRefusal:
    """Returns what follows from the *sizes* that the containers of a pod are to have on each of their devices."""
    positions = devices.positions
    for problem in _why_never(sizes, positions, devices):
        return ResizeRefusal(ResizeState.INFEASIBLE, problem)
    for problem in _why_not_yet(sizes, positions, devices):
        return ResizeRefusal(ResizeState.DEFERRED, problem)
    target = _with_sizes(sizes, positions, devices)
    booked = larger(devices.current, target)
    if booked != devices.current and devices.evaded is not None:
        name, resource = devices.evaded
        return ResizeRefusal(
            ResizeState.INFEASIBLE,
            f"ResourceQuota {name} limits requests.{resource}, and Kubernetes counts only the specification of the "
            f"pod, which stays as it is: HAMi counts limits.{resource} instead",
        )
    for container, position in positions.items():
        if booked[position] == devices.current[position]:
            continue
        objected = _objection(container, position, booked, devices)
        if objected is not None:
            return ResizeRefusal(ResizeState.DEFERRED, objected)
    return ResizePlan(booked, target)


def _with_sizes(
    sizes: Mapping[str, Size], positions: Mapping[str, int], devices: ResizableDevices
) -> Allocation:
    by_uuid, target = devices.usage_by_uuid, list(devices.target)
    for name, size in sizes.items():
        position = positions[name]
        target[position] = tuple(
            [_sized(share, size, by_uuid.get(share.uuid)) for share in target[position]]
        )
    return tuple(target)


def larger(allocation: Allocation, other: Allocation) -> Allocation:
    """Returns the larger of each amount of two allocations of the same devices."""
    containers = []
    for shares, others in zip(allocation, other):
        containers.append(tuple(map(_larger, shares, others)))
    return tuple(containers)


def _larger(share: Share, other: Share) -> Share:
    return replace(
        share,
        memory_mib=max(share.memory_mib, other.memory_mib),
        cores=max(share.cores, other.cores),
    )


def has_same_devices(allocation: Allocation, other: Allocation) -> bool:
    """Reports whether two allocations have as many shares of the same devices for each container."""
    return _uuids(allocation) == _uuids(other)


def _uuids(allocation: Allocation) -> list[list[str]]:
    containers = []
    for shares in allocation:
        containers.append([share.uuid for share in shares])
    return containers


def without_charges(
    usages: Sequence[DeviceUsage], charges: Sequence[Charge]
) -> tuple[DeviceUsage, ...]:
    """Returns *usages* without the *charges* of one pod, which have no partitions."""
    by_uuid = {charge.uuid: charge for charge in charges}
    remaining = []
    for usage in usages:
        charge = by_uuid.get(usage.device.uuid)
        remaining.append(usage if charge is None else _less(usage, charge))
    return tuple(remaining)


def _less(usage: DeviceUsage, charge: Charge) -> DeviceUsage:
    return replace(
        usage,
        slots_used=usage.slots_used - charge.slots,
        cores_used=usage.cores_used - charge.cores,
        memory_used_mib=usage.memory_used_mib - charge.memory_mib,
    )


def _why_never(
    sizes: Mapping[str, Size], positions: Mapping[str, int], devices: ResizableDevices
) -> Iterator[str]:
    if devices.pod.claim:
        yield "the pod has its GPUs by a claim, and claims cannot be changed"
    yield from _unsuitable_containers(sizes, positions, devices)
    limit = pod_cores_limit(devices.pod.annotations)
    usages = devices.usage_by_uuid
    for name, size in sizes.items():
        for share in devices.current[positions[name]]:
            yield from _beyond(name, size, share, usages.get(share.uuid))
        if size.cores is not None and limit is not None and size.cores > limit:
            yield f"cores {size.cores} of container {name}: the pod's annotation {CORES_LIMIT} is {limit}"


def _unsuitable_containers(
    sizes: Mapping[str, Size], positions: Mapping[str, int], devices: ResizableDevices
) -> Iterator[str]:
    kinds = {container.name: container.kind for container in devices.pod.containers}
    for name in sizes:
        if name not in kinds:
            yield f"the pod has no container {name}"
        elif kinds[name] is ContainerKind.INIT:
            yield f"{name} is an init container, which keeps its size"
        elif name not in positions:
            yield f"container {name} has no GPU of {devices.vendor.key}"


def _beyond(name: str, size: Size, share: Share, usage: DeviceUsage | None) -> Iterator[str]:
    """Yields why a container cannot have the *size* on the device of its *share*, however free it is."""
    if share.partitions or (usage is not None and in_mig_mode(usage)):
        yield f"container {name} has an instance of a GPU in MIG mode, which has a fixed size"
    if share.cores >= WHOLE:
        yield f"container {name} has {share.uuid} alone, and keeps it"
    if usage is not None:
        yield from _beyond_device(name, size.memory_mib or 0, size.cores or 0, usage.device)


def _beyond_device(name: str, memory_mib: int, cores: int, device: Device) -> Iterator[str]:
    if cores >= WHOLE:
        yield f"container {name} asks for {cores} cores: at most 99, since one with all has its GPU alone"
    if cores > device.cores:
        yield f"container {name} asks for {cores} cores, and its GPU has {device.cores}"
    if memory_mib > device.memory_mib:
        yield f"container {name} asks for {memory_mib:,} MiB, and its GPU has {device.memory_mib:,} MiB"


def _why_not_yet(
    sizes: Mapping[str, Size], positions: Mapping[str, int], devices: ResizableDevices
) -> Iterator[str]:
    if devices.pod.phase != "Running":
        yield "the pod has not started yet"
    if not devices.node_resizes:  # as for some seconds while it is replaced
        yield f"the device plugin of node {devices.pod.node_name} does not change the limits of running containers now"
    usages = devices.usage_by_uuid
    for name, size in sizes.items():
        if size.memory_percent is None:
            continue
        for share in devices.current[positions[name]]:
            if share.uuid not in usages:
                yield _not_offered(share.uuid, name, devices)


def _not_offered(uuid: str, container: str, devices: ResizableDevices) -> str:
    return f"{uuid} of container {container} is not offered by node {devices.pod.node_name} now"


def _sized(share: Share, size: Size, usage: DeviceUsage | None) -> Share:
    memory = size.memory_mib
    if size.memory_percent is not None and usage is not None:
        memory = max(1, usage.device.memory_mib * size.memory_percent // WHOLE)
    return replace(
        share,
        memory_mib=share.memory_mib if memory is None else memory,
        cores=share.cores if size.cores is None else size.cores,
    )


def _objection(
    container: str, position: int, booked: Allocation, devices: ResizableDevices
) -> str | None:
    """Returns why the shares at *position* do not fit as they are *booked*; ``None`` if they do."""
    init_done = devices.pod.init_done
    named = [_of_vendor(devices.vendor, shares) for shares in booked]
    charges = peak_charges(devices.kinds, named, init_done=init_done)
    peaks = {charge.uuid: charge for charge in charges}
    by_uuid, shares, beside = devices.usage_by_uuid, named[position], []
    for share in shares:
        if share.uuid not in by_uuid:
            return _not_offered(share.uuid, container, devices)
        beside.append(_beside(by_uuid[share.uuid], peaks[share.uuid], share))
    context = devices.request.fit_context(
        devices.vendor.key,
        devices.usages,
        devices.kinds[position],
        _placed_beside(position, devices.kinds, named, init_done),
        devices.budget,
    )
    for index, (share, usage) in enumerate(zip(shares, beside)):
        request = Request(
            vendor=devices.vendor.key, count=1, memory_mib=share.memory_mib, cores=share.cores
        )
        reason = objection(Candidate(usage, request, context, shares[:index] + shares[index + 1 :]))
        if reason is not None:
            left = _left(devices.budget, total_charge(charges), shares)
            return _explained(container, reason, share, beside, left)
    return None


def _placed_beside(
    position: int,
    kinds: Sequence[ContainerKind],
    containers: Sequence[tuple[Share, ...]],
    init_done: bool,
) -> tuple[tuple[ContainerKind, tuple[Share, ...]], ...]:
    """Returns the shares of the containers that run beside the one at *position*."""
    placed = []
    for place, (kind, shares) in enumerate(zip(kinds, containers)):
        if place == position or (init_done and kind is ContainerKind.INIT):
            continue
        placed.append((kind, shares))
    return tuple(placed)


def _of_vendor(vendor: Vendor, shares: Sequence[Share]) -> tuple[Share, ...]:
    return tuple([replace(share, type=vendor.key) for share in shares])


def _beside(usage: DeviceUsage, peak: Charge, share: Share) -> DeviceUsage:
    """Returns *usage* of other pods, with what the pod takes at most beside *share*."""
    return replace(
        usage,
        slots_used=usage.slots_used + peak.slots - 1,
        memory_used_mib=usage.memory_used_mib + peak.memory_mib - share.memory_mib,
        cores_used=usage.cores_used + peak.cores - share.cores,
    )


def _left(budget: Budget, total: Amounts, shares: Sequence[Share]) -> Budget:
    """Returns what *budget* leaves each of *shares*, which are part of the *total* of their pod."""
    memory, cores, _ = total
    for share in shares:
        memory -= share.memory_mib
        cores -= share.cores
    left = budget.without(memory, cores)
    return Budget(
        None if left.memory_mib is None else left.memory_mib // len(shares),
        None if left.cores is None else left.cores // len(shares),
    )


def _explained(
    container: str, reason: Reason, share: Share, beside: Sequence[DeviceUsage], left: Budget
) -> str:
    """Returns why *share* does not fit, and the most that does: on each of the container's devices (*beside*), with
    what quotas have *left*."""
    memory = min(usage.memory_free_mib for usage in beside)
    cores = min(usage.device.cores - usage.cores_used for usage in beside)
    if left.memory_mib is not None:
        memory = min(memory, left.memory_mib)
    if left.cores is not None:
        cores = min(cores, left.cores)
    limits = "the quota of the namespace" if reason is Reason.QUOTA else "the others"
    return (
        f"{share.memory_mib} MiB and {share.cores} percent of container {container} do not fit ({reason}): at most "
        f"{max(0, memory)} MiB and {max(0, cores)} percent fit beside {limits} on {share.uuid}"
    )
