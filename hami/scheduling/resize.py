"""The resize of a bound pod on the devices that it has: what is booked for it and what it is to have, or why not.

Only what grows is decided, with the rules by which pods are placed, beside what others hold. Less always fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hami.codec.allocation import container_positions
from hami.codec.core_limits import pod_cores_limit
from hami.codec.keys import CORES_LIMIT
from hami.codec.resize import ResizeState, Size
from hami.model import Allocation, Budget, ContainerKind, DeviceUsage, Pod, Reason, Request, Share
from hami.scheduling.fit import objection
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.usage import Charge, peak_charges, total_charge
from hami.vendors.mig import in_mig_mode
from hami.vendors.request import WHOLE, device_request
from hami.vendors.spec import Candidate, Vendor


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizableDevices:
    """The devices of *pod* and of its node, as far as a resize depends on them.

    *held*: the shares that are booked. *wanted*: the shares that the pod is to have so far, of the same devices.
    *usages*: of the vendor's devices on the node, and *budget*: what quotas leave, both without what the pod holds.
    *node_resizes*: the device plugin of the node changes the limits of running containers. *evaded*: a quota that the
    pod would evade by growing, and the resource that it limits.
    """

    pod: Pod
    request: PodRequest
    vendor: Vendor
    held: Allocation
    wanted: Allocation
    usages: Sequence[DeviceUsage]
    budget: Budget
    node_resizes: bool
    evaded: tuple[str, str] | None = None

    @property
    def positions(self) -> Mapping[str, int]:
        """The position in *held* of each container that has shares."""
        return container_positions(
            self.pod.containers, self.held, partial(device_request, self.vendor)
        )

    @property
    def kinds(self) -> tuple[ContainerKind, ...]:
        """The kind of the container at each position in *held*."""
        kinds = tuple(container.kind for container in self.pod.containers)
        return kinds if len(kinds) == len(self.held) else (ContainerKind.APP,) * len(self.held)


@dataclass(frozen=True, slots=True)
class ResizePlan:
    """The shares that are *booked* for a pod from now on, and those that it is to have, which are no
    more than these."""

    booked: Allocation
    wanted: Allocation


@dataclass(frozen=True, slots=True)
class ResizeRefusal:
    """Why a pod keeps its size: for now (DEFERRED), or for good (INFEASIBLE)."""

    state: ResizeState
    message: str


def plan_resize(sizes: Mapping[str, Size], devices: ResizableDevices) -> ResizePlan | ResizeRefusal:
    """Returns what follows from the *sizes* that the containers of a pod are to have on each of their devices."""
    if (never := next(_why_never(sizes, devices), None)) is not None:
        return ResizeRefusal(ResizeState.INFEASIBLE, never)
    if (not_now := next(_why_not_yet(sizes, devices), None)) is not None:
        return ResizeRefusal(ResizeState.DEFERRED, not_now)
    by_uuid = {usage.device.uuid: usage for usage in devices.usages}
    wanted = list(devices.wanted)
    for name, size in sizes.items():
        position = devices.positions[name]
        wanted[position] = tuple(
            _sized(share, size, by_uuid.get(share.uuid)) for share in wanted[position]
        )
    booked = larger(devices.held, wanted)
    if booked != devices.held and devices.evaded is not None:
        name, resource = devices.evaded
        return ResizeRefusal(
            ResizeState.INFEASIBLE,
            (
                f"ResourceQuota {name} limits requests.{resource}, and Kubernetes counts only the specification of the "
                f"pod, which stays as it is: HAMi counts limits.{resource} instead"
            ),
        )
    for container, position in devices.positions.items():
        if booked[position] != devices.held[position]:
            if (problem := _objection(container, position, booked, devices)) is not None:
                return ResizeRefusal(ResizeState.DEFERRED, problem)
    return ResizePlan(booked, tuple(wanted))


def larger(held: Allocation, wanted: Sequence[Sequence[Share]]) -> Allocation:
    """Returns the larger of each amount of two allocations of the same devices."""
    return tuple(
        tuple(
            replace(
                share,
                memory_mib=max(share.memory_mib, other.memory_mib),
                cores=max(share.cores, other.cores),
            )
            for share, other in zip(*pair)
        )
        for pair in zip(held, wanted)
    )


def has_same_devices(one: Allocation, other: Allocation) -> bool:
    """Reports whether two allocations have as many shares of the same devices for each container."""
    return [[share.uuid for share in shares] for shares in one] == [
        [share.uuid for share in shares] for shares in other
    ]


def without_charges(
    usages: Sequence[DeviceUsage], charges: Sequence[Charge]
) -> tuple[DeviceUsage, ...]:
    """Returns *usages* without the *charges* of one pod, which have no partitions."""
    by_uuid = {charge.uuid: charge for charge in charges}
    return tuple(
        _less(usage, by_uuid[uuid]) if (uuid := usage.device.uuid) in by_uuid else usage
        for usage in usages
    )


def _less(usage: DeviceUsage, charge: Charge) -> DeviceUsage:
    return replace(
        usage,
        slots_used=usage.slots_used - charge.slots,
        cores_used=usage.cores_used - charge.cores,
        memory_used_mib=usage.memory_used_mib - charge.memory_mib,
    )


def _why_never(sizes: Mapping[str, Size], devices: ResizableDevices) -> Iterator[str]:
    pod, positions = devices.pod, devices.positions
    kinds = {container.name: container.kind for container in pod.containers}
    if pod.claim:
        yield "the pod has its GPUs by a claim, and claims cannot be changed"
    for name in sizes:
        if name not in kinds:
            yield f"the pod has no container {name}"
        elif kinds[name] is ContainerKind.INIT:
            yield f"{name} is an init container, which keeps its size"
        elif name not in positions:
            yield f"container {name} has no GPU of {devices.vendor.key}"
    usages = {usage.device.uuid: usage for usage in devices.usages}
    for name, size in sizes.items():
        for share in devices.held[positions[name]]:
            usage = usages.get(share.uuid)
            if share.partitions or (usage is not None and in_mig_mode(usage)):
                yield f"container {name} has an instance of a GPU in MIG mode, which has a fixed size"
            if share.cores >= WHOLE:
                yield f"container {name} has {share.uuid} alone, and keeps it"
            if usage is not None:
                yield from _beyond(name, size, usage)
        yield from _beyond_limit(name, size, pod_cores_limit(pod.annotations))


def _beyond(name: str, size: Size, usage: DeviceUsage) -> Iterator[str]:
    """Yields why a device cannot have the *size*, however free it is."""
    device = usage.device
    if size.cores is not None and size.cores >= WHOLE:
        yield f"cores {size.cores} of container {name}: at most 99, since a container with all has its GPU alone"
    if size.cores is not None and size.cores > device.cores:
        yield f"cores {size.cores} of container {name}: {device.uuid} has {device.cores}"
    if size.memory_mib is not None and size.memory_mib > device.memory_mib:
        yield f"memory {size.memory_mib} MiB of container {name}: {device.uuid} has {device.memory_mib} MiB"


def _beyond_limit(name: str, size: Size, most: int | None) -> Iterator[str]:
    if size.cores is not None and most is not None and size.cores > most:
        yield f"cores {size.cores} of container {name}: the pod's annotation {CORES_LIMIT} is {most}"


def _why_not_yet(sizes: Mapping[str, Size], devices: ResizableDevices) -> Iterator[str]:
    if devices.pod.phase != "Running":
        yield "the pod has not started yet"
    if not devices.node_resizes:  # as for some seconds while it is replaced
        yield f"the device plugin of node {devices.pod.node_name} does not change the limits of running containers now"
    known = {usage.device.uuid for usage in devices.usages}
    for name, size in sizes.items():
        for share in devices.held[devices.positions[name]]:
            if size.memory_percent is not None and share.uuid not in known:
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
    vendor, init_done = devices.vendor, devices.pod.init_done
    named = tuple(tuple(replace(share, type=vendor.key) for share in shares) for shares in booked)
    peaks = {
        charge.uuid: charge for charge in peak_charges(devices.kinds, named, init_done=init_done)
    }
    shares, kind = named[position], devices.kinds[position]
    placed = tuple(
        (other, own)
        for place, (other, own) in enumerate(zip(devices.kinds, named))
        if place != position and not (init_done and other is ContainerKind.INIT)
    )
    context = devices.request.fit_context(vendor.key, devices.usages, kind, placed, devices.budget)
    by_uuid = {usage.device.uuid: usage for usage in devices.usages}
    beside = [
        _beside(by_uuid[share.uuid], peaks[share.uuid], share)
        for share in shares
        if share.uuid in by_uuid
    ]
    if missing := [share.uuid for share in shares if share.uuid not in by_uuid]:
        return _not_offered(missing[0], container, devices)
    for index, (share, usage) in enumerate(zip(shares, beside)):
        request = Request(
            vendor=vendor.key, count=1, memory_mib=share.memory_mib, cores=share.cores
        )
        reason = objection(Candidate(usage, request, context, shares[:index] + shares[index + 1 :]))
        if reason is not None:
            total = total_charge(peaks.values())
            return _explained(
                container, reason, share, beside, _left(devices.budget, total, shares)
            )
    return None


def _beside(usage: DeviceUsage, peak: Charge, share: Share) -> DeviceUsage:
    """Returns *usage* of other pods, with what the pod takes at most beside *share*."""
    return replace(
        usage,
        slots_used=usage.slots_used + peak.slots - 1,
        memory_used_mib=usage.memory_used_mib + peak.memory_mib - share.memory_mib,
        cores_used=usage.cores_used + peak.cores - share.cores,
    )


def _left(budget: Budget, total: tuple[int, int], shares: Sequence[Share]) -> Budget:
    """Returns what *budget* leaves each of *shares*, which are part of the *total* of their pod."""
    memory, cores = total_charge(
        Charge(share.uuid, 1, share.memory_mib, share.cores) for share in shares
    )
    return Budget(
        None
        if budget.memory_mib is None
        else (budget.memory_mib - total[0] + memory) // len(shares),
        None if budget.cores is None else (budget.cores - total[1] + cores) // len(shares),
    )


def _explained(
    container: str, reason: Reason, share: Share, beside: Sequence[DeviceUsage], left: Budget
) -> str:
    """Returns why *share* does not fit, and the most that does: on each of the container's devices (*beside*), with
    what quotas have *left*."""
    memory = min(usage.memory_free_mib for usage in beside)
    cores = min(usage.device.cores - usage.cores_used for usage in beside)
    most = (
        max(0, min(memory, memory if left.memory_mib is None else left.memory_mib)),
        max(0, min(cores, cores if left.cores is None else left.cores)),
    )
    limits = "the quota of the namespace" if reason is Reason.QUOTA else "the others"
    return (
        f"{share.memory_mib} MiB and {share.cores} percent of container {container} do not fit ({reason}): at most "
        f"{most[0]} MiB and {most[1]} percent fit beside {limits} on {share.uuid}"
    )
