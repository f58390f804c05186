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
MOST_GB = 4096
"""In a ResourceQuota, more than so many GB are MiB: as many MiB are less than the smallest profile has, and as many GB
more than 80 devices have."""
WRITTEN = (ASSIGNED, ASSIGNED_TIME, INDEX, ID, MINOR, SIZE, CONTAINERS)


def inventory(vendor: Vendor, node: Node) -> tuple[Device, ...] | None:
    """Returns the devices in *vendor*'s register annotation. Raises: MalformedInput."""
    text = node.annotations.get(vendor.annotations.register)
    if text is None:
        return None
    return parse_drs_devices(vendor.annotations.register, text, vendor.key, node.name)


def admit(draft: ContainerDraft) -> bool:
    """Sets the requested amounts in both limits and requests. Slices take precedence over memory and cores.

    Raises: PodRefused for amounts that are zero, cannot be read, or exceed the cores of a device.
    """
    amounts = _amounts(draft)
    check_amounts(draft)
    for name, value in amounts.items():
        if name not in draft.limits:
            draft.set_limit(name, value)
        if name not in draft.requests:
            draft.set_request(name, value)
    return bool(amounts)


def _amounts(draft: ContainerDraft) -> dict[str, int]:
    resources = draft.resources
    names: tuple[str, ...] = (resources.memory, resources.cores)
    if resources.count in draft.given:
        names = (resources.count,)
    amounts: dict[str, int] = {}
    for name in names:
        value = draft.rounded(name)
        if value is None:
            continue
        if name == resources.cores and not 0 < value <= WHOLE:
            raise PodRefused(f"{name} must be in range (0,100]")
        if value <= 0:
            raise PodRefused(f"{name} must be greater than 0")
        amounts[name] = value
    return amounts


def parse_request(vendor: str, resources: Resources, container: Container) -> Request | None:
    """Returns a request for a number of slices, or for the least memory (GB or MiB, as written) and cores."""
    values = parse_amounts(resources, container)
    slices = values.get(resources.count, 0)
    if slices:
        return Request(vendor=vendor, count=1, slices=slices)
    memory, cores = values.get(resources.memory, 0), values.get(resources.cores, 0)
    if memory or cores:
        return Request(vendor=vendor, count=1, memory_mib=memory, cores=cores)
    return None


def check_node(request: Request, context: FitContext) -> Reason | None:
    """Rejects a node without a profile for *request*."""
    for usage in context.usages:
        if _smallest_profile(request, usage.device) is not None:
            return None
    return Reason.MODE


def no_profile(candidate: Candidate) -> Reason | None:
    """Rejects a device without a profile for *request*."""
    return Reason.MODE if _smallest_profile(candidate.request, candidate.device) is None else None


def no_slice(candidate: Candidate) -> Reason | None:
    """Rejects a device without a free slice."""
    return Reason.NO_SLOT if _slices_used(candidate.usage) >= candidate.device.slots else None


def no_memory(candidate: Candidate) -> Reason | None:
    """Rejects a device with less free memory than the profile has."""
    needed = make_share(candidate).memory_mib
    return Reason.NO_MEMORY if candidate.usage.memory_free_mib < needed else None


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
    texts = {ASSIGNED: "false", ASSIGNED_TIME: context.nanoseconds}
    profiles: dict[str, DrsProfile] = {}
    for container, shares in zip(context.pod.containers, context.shares, strict=True):
        for share in shares[:1]:
            device = context.devices[share.uuid]
            profile = _profile_of(share, device)
            if profile is None:
                continue
            if not profiles:
                texts |= {
                    INDEX: str(device.index),
                    ID: str(device.index),
                    MINOR: device.info["minor"],
                    SIZE: str(profile.slices),
                }
            profiles[container.name] = profile
    if profiles:
        texts[CONTAINERS] = render_drs_assignments(profiles)
    return texts


def _profiles(device: Device) -> tuple[DrsProfile, ...]:
    profiles: tuple[DrsProfile, ...] = device.info["profiles"]
    return profiles


def _smallest_profile(request: Request, device: Device) -> DrsProfile | None:
    """Returns the smallest profile for *request*. Memory above twice the largest profile's GB is in MiB."""
    profiles, memory_gb = _profiles(device), request.memory_mib
    if memory_gb > 2 * profiles[-1].memory_gb:
        memory_gb = -(-request.memory_mib // GIB)
    for profile in profiles:
        if request.slices:
            if profile.slices == request.slices:
                return profile
        elif profile.memory_gb >= memory_gb and _percent(profile, device) >= request.cores:
            return profile
    return None


def _profile_of(share: Share, device: Device) -> DrsProfile | None:
    """Returns the profile of *share*."""
    for profile in _profiles(device):
        amounts = profile.memory_gb * GIB, _percent(profile, device)
        if amounts == (share.memory_mib, share.cores):
            return profile
    return None


def _percent(profile: DrsProfile, device: Device) -> int:
    return -(-profile.slices * WHOLE // _profiles(device)[-1].slices)


def _slices_used(usage: DeviceUsage) -> int:
    """Returns the number of slices taken, computed from the percentages of the allocations; at least one for each.

    Each percentage is rounded up by less than one. With more than ten slices on a device the result may be one slice
    too many, never too few.
    """
    return max(usage.slots_used, usage.cores_used * _profiles(usage.device)[-1].slices // WHOLE)
