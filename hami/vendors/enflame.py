"""Enflame's devices in slices (DRS): a container gets a profile, so many slices of one device with their memory.

It is asked for by its slices, or by the memory and cores that it shall at least have. Which profiles there are is known
on the node only.
Source: HAMi v2.10, pkg/device/enflame/device.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hami.codec.drs import DrsProfile, parse_drs_capacity, render_drs_assignments
from hami.errors import MalformedInput
from hami.model import Container, Device, Node, Reason, Request, Share, DeviceUsage
from hami.quantity import strict_integer
from hami.vendors.admission import Draft, check_amounts
from hami.vendors.request import WHOLE, amounts, objection
from hami.vendors.shares import common_share
from hami.vendors.spec import Admission, FitContext, AnnotationContext, Vendor

__all__ = [
    "WRITTEN", "admit", "annotate", "check_node", "inventory", "no_memory", "no_profile", "no_slice", "request",
    "share", "too_few_slices",
]

ASSIGNED, ASSIGNED_TIME = "enflame.com/gcu-assigned", "enflame.com/gcu-assigned-time"
INDEX, ID, MINOR = (f"enflame.com/gcu-assigned-{word}" for word in ("index", "id", "minor"))
SIZE, CONTAINERS = "enflame.com/gcu-request-size", "assigned-containers"
WRITTEN = (ASSIGNED, ASSIGNED_TIME, INDEX, ID, MINOR, SIZE, CONTAINERS)
MODE = "drs"
GIB = 1024  # MiB


def inventory(vendor: Vendor, node: Node) -> tuple[Device, ...] | None:
    """The devices in *vendor*'s register annotation, each as large as the largest profile.

    ``Device.info``: ``minor`` (the number of its device file) and ``profiles``, smallest first.
    Raises: MalformedInput.
    """
    if (text := node.annotations.get(vendor.register)) is None:
        return None
    found = parse_drs_capacity(vendor.register, text)
    memory_gb = max(profile.memory_gb for profile in found.profiles) or found.profiles[-1].slices
    return tuple(Device(uuid=f"{node.name}-enflame-drs-{device.index}", vendor=vendor.key, model=vendor.key,
                        slots=device.slices, memory_mib=memory_gb * GIB, cores=WHOLE, index=device.index, mode=MODE,
                        info={"minor": device.minor, "profiles": found.profiles}) for device in found.devices)


def admit(vendor: Vendor, pod: Mapping[str, Any], container: Mapping[str, Any]) -> Admission:
    """What is asked for stands among limits and requests. Slices go before memory and cores, which do not count then.

    Raises: MalformedInput for amounts of nothing, cores beyond a device's, and what cannot be read.
    """
    draft = Draft(vendor, pod, container)
    given = draft.given
    names = (vendor.count,) if vendor.count in given else (vendor.memory, vendor.cores)
    found = {name: value for name in names if (value := draft.rounded(name)) is not None}
    for name, value in found.items():
        if name == vendor.cores and not 0 < value <= WHOLE:
            raise _refusal(name, value, "must be in range (0,100]")
        if value <= 0:
            raise _refusal(name, value, "must be greater than 0")
    check_amounts(draft)
    for name, value in found.items():
        if name not in draft.limits:
            draft.set_limit(name, value)
        if name not in draft.requests:
            draft.set_request(name, value)
    return draft.result(found=bool(found))


def request(vendor: Vendor, container: Container) -> Request | None:
    """A profile of so many slices, or one that has at least so much memory (GB or MiB, as written) and cores."""
    given = amounts(vendor, container.limits, container.requests)
    if objection(vendor, container.name, given) is not None:
        return None
    slices, memory, cores = (strict_integer(given.get(name, "0")) or 0
                             for name in (vendor.count, vendor.memory, vendor.cores))
    if slices:
        return Request(vendor=vendor.key, count=1, slices=slices)
    return Request(vendor=vendor.key, count=1, memory_mib=memory, cores=cores) if memory or cores else None


def check_node(request: Request, context: FitContext) -> Reason | None:
    """The node has no profile for *request*."""
    return Reason.MODE if all(_wanted(request, usage.device) is None for usage in context.usages) else None


def no_profile(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    """The device cannot be cut as *request* wants it."""
    return Reason.MODE if _wanted(request, usage.device) is None else None


def no_slice(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    """All slices are taken."""
    return Reason.NO_SLOT if _slices_used(usage) >= usage.device.slots else None


def no_memory(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    """The profile has more memory than the device has left."""
    return Reason.NO_MEMORY if usage.memory_free_mib < share(usage, request, context, picks).memory_mib else None


def too_few_slices(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    """The profile has more slices than the device has left.

    Slices are counted, not percents: those are rounded up, so that six sixths would be more than a whole.
    """
    profile = _wanted(request, usage.device)
    free = usage.device.slots - _slices_used(usage)
    return Reason.NO_CORES if profile is not None and free < profile.slices else None


def share(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Share:
    """The memory of the profile, and its part of the device in percent, rounded up."""
    profile = _wanted(request, usage.device)
    if profile is None:
        return common_share(usage, request, context, picks)
    return Share(usage.device.uuid, request.vendor, profile.memory_gb * GIB, _percent(profile, usage.device))


def annotate(vendor: Vendor, context: AnnotationContext) -> Mapping[str, str]:
    """What Enflame's agent reads: the first container's device and size, and each container's profile."""
    taken = [(container.name, context.devices[mine.uuid], profile)
             for container, shares in zip(context.pod.containers, context.shares, strict=True)
             for mine in shares[:1] if (profile := _given(mine, context.devices[mine.uuid])) is not None]
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


def _refusal(name: str, value: object, problem: str) -> MalformedInput:
    return MalformedInput(name, value, problem, message=f"{name} {problem}")


def _profiles(device: Device) -> tuple[DrsProfile, ...]:
    found: tuple[DrsProfile, ...] = device.info["profiles"]
    return found


def _wanted(request: Request, device: Device) -> DrsProfile | None:
    """The smallest profile that does for *request*. Memory beyond twice the largest's GB is taken to be in MiB."""
    profiles = _profiles(device)
    if request.slices:
        return next((profile for profile in profiles if profile.slices == request.slices), None)
    to_mib = request.memory_mib > 2 * profiles[-1].memory_gb
    memory_gb = -(-request.memory_mib // GIB) if to_mib else request.memory_mib
    return next((profile for profile in profiles
                 if profile.memory_gb >= memory_gb and _percent(profile, device) >= request.cores), None)


def _given(share: Share, device: Device) -> DrsProfile | None:
    """The profile that *share* is one of."""
    return next((profile for profile in _profiles(device)
                 if (profile.memory_gb * GIB, _percent(profile, device)) == (share.memory_mib, share.cores)), None)


def _percent(profile: DrsProfile, device: Device) -> int:
    return -(-profile.slices * WHOLE // _profiles(device)[-1].slices)


def _slices_used(usage: DeviceUsage) -> int:
    """How many slices are taken: what the percents of allocations come to, and never less than one for each.

    Each percent is rounded up by less than one, which makes no whole slice while a device has ten or fewer; with more
    of them it may count a slice too many, never one too few.
    """
    return max(usage.slots_used, usage.cores_used * _profiles(usage.device)[-1].slices // WHOLE)
