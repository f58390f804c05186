"""What a container takes of a device that serves it: rules that vendors name in their records."""

from __future__ import annotations

from collections.abc import Sequence

from hami.model import Reason, Request, Share, DeviceUsage
from hami.vendors.request import WHOLE
from hami.vendors.spec import FitContext

__all__ = ["common_share", "compute_units", "nothing_but_the_device", "too_few_units"]


def common_share(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Share:
    """The memory and the cores asked for; more cores than a device has are all of them."""
    return Share(usage.device.uuid, request.vendor, request.memory_on(usage.device), min(request.cores, WHOLE))


def nothing_but_the_device(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Share:
    """A slot, without any amounts: for vendors whose agents count devices only."""
    return Share(usage.device.uuid, request.vendor, 0, 0)


def compute_units(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Share:
    """Cores as compute units, of which each make of device has another number: at least one, at most all.

    Without a percentage they come with the whole memory, or not at all.
    Source: HAMi v2.10, pkg/device/amd/device.go, Fit; docs/develop/amd-vgpu.md.
    """
    device, memory = usage.device, request.memory_on(usage.device)
    if request.cores:
        units = min(max(device.cores * request.cores // WHOLE, 1), device.cores)
    else:
        units = device.cores if memory >= device.memory_mib else 0
    return Share(device.uuid, request.vendor, memory, units)


def too_few_units(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    """The device has no more so many compute units, or none at all where some are asked for."""
    units = compute_units(usage, request, context, picks).cores
    missing = usage.device.cores - usage.cores_used < units or (request.cores > 0 and units == 0)
    return Reason.NO_CORES if missing else None
