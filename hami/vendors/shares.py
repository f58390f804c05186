"""Shares: the part of a device that a container takes. Vendor records name the functions that make them."""

from __future__ import annotations

from collections.abc import Mapping

from hami.codec.allocation import parse_shares
from hami.codec.keys import GPU_ALLOCATED, RESIZED
from hami.model import Allocation, Pod, Reason, Share
from hami.vendors.request import WHOLE
from hami.vendors.spec import Candidate, Vendor, read_with


def common_share(candidate: Candidate) -> Share:
    """Returns a share with the requested memory and cores, at most all cores."""
    request = candidate.request
    return Share(candidate.device.uuid, request.vendor, candidate.memory_mib, request.device_cores)


def nothing_but_the_device(candidate: Candidate) -> Share:
    """Returns a share without amounts, for vendors whose node agents count devices only."""
    return Share(candidate.device.uuid, candidate.request.vendor, 0, 0)


def compute_units(candidate: Candidate) -> Share:
    """Returns a share with cores in compute units, whose number depends on the model: at least one, at most all.

    A request without cores gets all compute units with the whole memory, and none otherwise.
    Source: HAMi v2.10, pkg/device/amd/device.go, Fit; docs/develop/amd-vgpu.md.
    """
    device, memory, units = candidate.device, candidate.memory_mib, 0
    if candidate.request.cores:
        units = min(max(device.cores * candidate.request.cores // WHOLE, 1), device.cores)
    elif memory >= device.memory_mib:
        units = device.cores
    return Share(device.uuid, candidate.request.vendor, memory, units)


def too_few_units(candidate: Candidate) -> Reason | None:
    """Rejects a device that has too few free compute units, or none at all."""
    units = compute_units(candidate).cores
    if candidate.device.cores - candidate.usage.cores_used < units:
        return Reason.NO_CORES
    if units == 0 and candidate.request.cores > 0:
        return Reason.NO_CORES
    return None


def held_key(annotations: Mapping[str, str], vendor: Vendor) -> str:
    """Returns the annotation in which a pod's shares of *vendor*'s devices are: of NVIDIA's, that of the last resize,
    as in :func:`hami.codec.resize.held_text`."""
    allocated = vendor.annotations.allocated
    return RESIZED if allocated == GPU_ALLOCATED and annotations.get(RESIZED) else allocated


def held_shares(annotations: Mapping[str, str], vendor: Vendor) -> Allocation:
    """Returns the shares of *vendor*'s devices in a pod's *annotations*, as they stand there; none if there are none.

    Raises: MalformedInput.
    """
    key = held_key(annotations, vendor)
    return parse_shares(key, annotations.get(key, ""))


def read_allocation(pod: Pod, vendor: Vendor, limit: int) -> Allocation:
    """Returns the shares of *vendor*'s devices in the pod's annotation, at most *limit*: as many as it requests.

    Raises: MalformedInput.
    """
    keys = vendor.annotations
    containers = held_shares(pod.annotations, vendor)
    if keys.read_shares is not None:
        containers = read_with(keys.read_shares, vendor, pod, containers)
    if sum(map(len, containers)) <= limit:
        return containers
    limited = []
    for shares in containers:
        limited.append(shares[:limit])
        limit -= len(limited[-1])
    return tuple(limited)
