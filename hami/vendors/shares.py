"""Shares: the part of a device that a container takes. Vendor records name the functions that make them."""

from __future__ import annotations

from collections.abc import Sequence

from hami.codec.allocation import parse_shares
from hami.model import Allocation, DeviceUsage, Pod, Reason, Request, Share
from hami.vendors.request import WHOLE
from hami.vendors.spec import FitContext, Vendor, read_with


def common_share(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Share:
    """Returns a share with the requested memory and cores, at most all cores."""
    return Share(usage.device.uuid, request.vendor, request.memory_on(usage.device), min(request.cores, WHOLE))


def nothing_but_the_device(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Share:
    """Returns a share without amounts, for vendors whose node agents count devices only."""
    return Share(usage.device.uuid, request.vendor, 0, 0)


def compute_units(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Share:
    """Returns a share with cores in compute units, whose number depends on the model: at least one, at most all.

    A request without cores gets all compute units with the whole memory, and none otherwise.
    Source: HAMi v2.10, pkg/device/amd/device.go, Fit; docs/develop/amd-vgpu.md.
    """
    device, memory = usage.device, request.memory_on(usage.device)
    if request.cores:
        units = min(max(device.cores * request.cores // WHOLE, 1), device.cores)
    else:
        units = device.cores if memory >= device.memory_mib else 0
    return Share(device.uuid, request.vendor, memory, units)


def too_few_units(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    """Rejects a device that has too few free compute units, or none at all."""
    units = compute_units(usage, request, context, picks).cores
    missing = usage.device.cores - usage.cores_used < units or (request.cores > 0 and units == 0)
    return Reason.NO_CORES if missing else None


def read_allocation(pod: Pod, vendor: Vendor, limit: int) -> Allocation:
    """Returns the shares of *vendor*'s devices in the pod's annotation, at most *limit*: as many as it requests.

    Raises: MalformedInput.
    """
    keys = vendor.annotations
    containers = parse_shares(keys.allocated, pod.annotations[keys.allocated])
    if keys.read_shares is not None:
        containers = read_with(keys.read_shares, vendor, pod, containers)
    if sum(map(len, containers)) <= limit:
        return containers
    numbers = iter(range(limit))
    return tuple(tuple(share for share, _ in zip(shares, numbers)) for shares in containers)
