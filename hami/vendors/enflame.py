"""Enflame devices in slices (DRS): a container gets a profile, a number of slices of one device with their memory.

A pod requests a number of slices, or the least memory and cores. The profiles are known on the node only.
Source: HAMi v2.10, pkg/device/enflame/device.go.
"""

from __future__ import annotations

from collections.abc import Mapping

from hami.codec.drs import GIB, DrsProfile, parse_drs_devices, render_drs_assignments
from hami.errors import PodRefused
from hami.model import Container, Device, DeviceUsage, Node, Reason, Request, Share
from hami.vendors.admission import check_amounts
from hami.vendors.draft import ContainerDraft
from hami.vendors.request import WHOLE, parse_amounts
from hami.vendors.resources import Resources
from hami.vendors.shares import common_share
from hami.vendors.spec import AnnotationContext, Candidate, FitContext, Vendor

ASSIGNED, ASSIGNED_TIME = "enflame.com/gcu-assigned", "enflame.com/gcu-assigned-time"
INDEX, ID, MINOR = (f"enflame.com/gcu-assigned-{word}" for word in ("index", "id", "minor"))
SIZE, CONTAINERS = "enflame.com/gcu-request-size", "assigned-containers"
WRITTEN = (ASSIGNED, ASSIGNED_TIME, INDEX, ID, MINOR, SIZE, CONTAINERS)


def inventory(vendor: Vendor, node: Node) -> tuple[Device, ...] | None:
    """Returns the devices in *vendor*'s register annotation. Raises: MalformedInput."""
    text = node.annotations.get(vendor.annotations.register)
    return (
        None
        if text is None
        else parse_drs_devices(vendor.annotations.register, text, vendor.key, node.name)
    )


def admit(draft: ContainerDraft) -> bool:
    """Sets the requested amounts in both limits and requests. Slices take precedence over memory and cores.

    Raises: PodRefused for amounts that are zero, cannot be read, or exceed the cores of a device.
    """
    resources = draft.resources
    names = (
        (resources.count,)
        if resources.count in draft.given
        else (resources.memory, resources.cores)
    )
    amounts = {name: value for name in names if (value := draft.rounded(name)) is not None}
    for name, value in amounts.items():
        if name == resources.cores and not 0 < value <= WHOLE:
            raise PodRefused(f"{name} must be in range (0,100]")
        if value <= 0:
            raise PodRefused(f"{name} must be greater than 0")
    check_amounts(draft)
    for name, value in amounts.items():
        if name not in draft.limits:
            draft.set_limit(name, value)
        if name not in draft.requests:
            draft.set_request(name, value)
    return bool(amounts)


def parse_request(vendor: str, resources: Resources, container: Container) -> Request | None:
    """Returns a request for a number of slices, or for the least memory (GB or MiB, as written) and cores."""
    values = parse_amounts(resources, container)
    slices, memory, cores = (
        values.get(name, 0) for name in (resources.count, resources.memory, resources.cores)
    )
    if slices:
        return Request(vendor=vendor, count=1, slices=slices)
    return (
        Request(vendor=vendor, count=1, memory_mib=memory, cores=cores) if memory or cores else None
    )


def check_node(request: Request, context: FitContext) -> Reason | None:
    """Rejects a node without a profile for *request*."""
    return (
        Reason.MODE
        if all(_smallest_profile(request, usage.device) is None for usage in context.usages)
        else None
    )


def no_profile(candidate: Candidate) -> Reason | None:
    """Rejects a device without a profile for *request*."""
    return Reason.MODE if _smallest_profile(candidate.request, candidate.device) is None else None


def no_slice(candidate: Candidate) -> Reason | None:
    """Rejects a device without a free slice."""
    return Reason.NO_SLOT if _slices_used(candidate.usage) >= candidate.device.slots else None


def no_memory(candidate: Candidate) -> Reason | None:
    """Rejects a device with less free memory than the profile has."""
    return (
        Reason.NO_MEMORY
        if candidate.usage.memory_free_mib < make_share(candidate).memory_mib
        else None
    )


def too_few_slices(candidate: Candidate) -> Reason | None:
    """Rejects a device with fewer free slices than the profile has.

    Percentages are rounded up, so six sixths would exceed a device; slices are compared instead.
    """
    profile = _smallest_profile(candidate.request, candidate.device)
    free = candidate.device.slots - _slices_used(candidate.usage)
    return Reason.NO_CORES if profile is not None and free < profile.slices else None


def make_share(candidate: Candidate) -> Share:
    """Returns a share with the memory of the profile and its percentage of the device, rounded up."""
    profile = _smallest_profile(candidate.request, candidate.device)
    if profile is None:
        return common_share(candidate)
    device = candidate.device
    return Share(
        device.uuid, candidate.request.vendor, profile.memory_gb * GIB, _percent(profile, device)
    )


def annotate(vendor: Vendor, context: AnnotationContext) -> Mapping[str, str]:
    """Returns the annotations for the node agent: the first container's device and size, each container's profile."""
    taken = [
        (container.name, context.devices[share.uuid], profile)
        for container, shares in zip(context.pod.containers, context.shares, strict=True)
        for share in shares[:1]
        if (profile := _profile_of(share, context.devices[share.uuid])) is not None
    ]
    texts = {ASSIGNED: "false", ASSIGNED_TIME: context.nanoseconds}
    if taken:
        _, device, profile = taken[0]
        texts |= {
            INDEX: str(device.index),
            ID: str(device.index),
            MINOR: device.info["minor"],
            SIZE: str(profile.slices),
            CONTAINERS: render_drs_assignments({name: profile for name, _, profile in taken}),
        }
    return texts


def _profiles(device: Device) -> tuple[DrsProfile, ...]:
    profiles: tuple[DrsProfile, ...] = device.info["profiles"]
    return profiles


def _smallest_profile(request: Request, device: Device) -> DrsProfile | None:
    """Returns the smallest profile for *request*. Memory above twice the largest profile's GB is in MiB."""
    profiles = _profiles(device)
    if request.slices:
        return next((profile for profile in profiles if profile.slices == request.slices), None)
    to_mib = request.memory_mib > 2 * profiles[-1].memory_gb
    memory_gb = -(-request.memory_mib // GIB) if to_mib else request.memory_mib
    return next(
        (
            profile
            for profile in profiles
            if profile.memory_gb >= memory_gb and _percent(profile, device) >= request.cores
        ),
        None,
    )


def _profile_of(share: Share, device: Device) -> DrsProfile | None:
    """Returns the profile of *share*."""
    return next(
        (
            profile
            for profile in _profiles(device)
            if (profile.memory_gb * GIB, _percent(profile, device))
            == (share.memory_mib, share.cores)
        ),
        None,
    )


def _percent(profile: DrsProfile, device: Device) -> int:
    return -(-profile.slices * WHOLE // _profiles(device)[-1].slices)


def _slices_used(usage: DeviceUsage) -> int:
    """Returns the number of slices taken, computed from the percentages of the allocations; at least one for each.

    Each percentage is rounded up by less than one. With more than ten slices on a device the result may be one slice
    too many, never too few.
    """
    return max(usage.slots_used, usage.cores_used * _profiles(usage.device)[-1].slices // WHOLE)
