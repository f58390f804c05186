"""The sums of a node's devices, for programs that count nodes by their capacity: queues and autoscalers."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from hami.codec.keys import CLAIM_RESOURCE
from hami.model import Device
from hami.vendors.request import WHOLE
from hami.vendors.resources import Resources


def total_name(resource: str) -> str:
    """Returns the name of the sum of *resource*, which no pod requests: ``nvidia.com/total-gpumem``."""
    domain, slash, name = resource.rpartition("/")
    return f"{domain}{slash}total-{name}"


def capacity_names(resources: Resources) -> list[str]:
    """Returns all names that may be published: the sums of memory and cores, and what pods request of them.

    Not the priority: it is no amount, so the sum of those of all pods says nothing, but the kubelet would enforce it.
    """
    names = [total_name(name) for name in filter(None, (resources.memory, resources.cores))]
    requests = (resources.memory, resources.memory_percent, resources.cores, CLAIM_RESOURCE)
    return [*names, *filter(None, requests)]


def offered_devices(devices: Iterable[Device]) -> list[Device]:
    """Returns the *devices* that are healthy and not cordoned."""
    offered = []
    for device in devices:
        if device.healthy and not device.cordoned:
            offered.append(device)
    return offered


def device_sums(resources: Resources, devices: Iterable[Device]) -> dict[str, int]:
    """Returns memory and cores of the `offered_devices`, by the resource and in the unit in which pods request them."""
    memory = cores = 0
    for device in offered_devices(devices):
        memory += device.memory_mib // max(resources.memory_factor, 1)
        cores += device.cores
    sums = {resources.memory: memory, resources.cores: cores}
    sums.pop("", None)
    return sums


def request_sums(resources: Resources, devices: Collection[Device]) -> dict[str, int]:
    """Returns `device_sums` and, where pods may request percentages of memory, 100 for each of the devices.

    Where pods get the devices by claims of the scheduler, returns their slots: such a pod requests none of the amounts,
    and `CLAIM_RESOURCE` once.
    """
    offered = offered_devices(devices)
    if any(device.by_claims for device in devices):
        return {CLAIM_RESOURCE: sum(device.slots for device in offered)}
    sums = device_sums(resources, offered)
    if resources.memory_percent:
        sums[resources.memory_percent] = WHOLE * len(offered)
    return sums
