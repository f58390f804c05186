"""AWS Neuron: whole devices, or cores of them, which belong to one container alone.

An allocation's cores are a bit mask of the device's: bit 0 is its first core. How many cores a device has differs
between kinds of instances and is known on the node only, never when a pod is admitted.
Source: HAMi v2.10, pkg/device/awsneuron/device.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hami.errors import MalformedInput
from hami.model import Container, Device, Node, Pod, Reason, Request, Share, Partition, DeviceUsage
from hami.quantity import INT32_MAX, strict_integer
from hami.vendors.admission import Draft
from hami.vendors.inventory import capacity_of, counted
from hami.vendors.request import amounts
from hami.vendors.select import aligned_run
from hami.vendors.spec import Admission, FitContext, AnnotationContext, NoCombination, Vendor

__all__ = [
    "INSTANCE_TYPE", "WRITTEN", "admit", "annotate", "inventory", "read", "request", "select_devices", "share",
    "too_few_cores",
]

INSTANCE_TYPE = "node.kubernetes.io/instance-type"  # label
IDS, ALLOC_TIME, ALLOCATED = "AWS_NEURON_IDS", "NEURON_ALLOC_TIME", "NEURON_ALLOCATED"
PREDICATE_NODE, RESOURCE_TYPE = "aws.amazon.com/predicate-node", "NEURON_RESOURCE_TYPE"
WRITTEN = (IDS, ALLOC_TIME, ALLOCATED, PREDICATE_NODE, RESOURCE_TYPE)
MOST_CORES = 31  # of a device: their mask is a signed integer of 32 bits on the wire
PAIR = 2  # cores beyond so many come in multiples of it, as upstream has it before it has seen a node
RUNS = (1, 4, 8, 16)  # devices that Trainium links to each other, starting at a multiple of as many
_ALL = Partition(0, MOST_CORES)  # a whole device, however many cores it has


def inventory(vendor: Vendor, node: Node) -> tuple[Device, ...] | None:
    """As many equal devices as the node's capacity says, which share its capacity of cores evenly.

    Where cores have no resource name, a device is one core. ``Device.info``: ``instance_type``, from the node's label.
    Raises: MalformedInput when the capacities do not go together, or the label is missing.
    """
    devices = capacity_of(node, vendor.count) or 0
    cores = devices if not vendor.cores else capacity_of(node, vendor.cores) or 0
    if not devices and not cores:
        return None
    if not devices or cores % devices or not 1 <= cores // devices <= MOST_CORES:
        raise MalformedInput(f"capacity of {vendor.cores}", cores, f"expected 1 to {MOST_CORES} cores for each of the "
                             f"{devices} devices that {vendor.count} names")
    kind = node.labels.get(INSTANCE_TYPE)
    if not kind:
        raise MalformedInput(f"label {INSTANCE_TYPE}", "", f"missing, expected the kind of instance that has "
                             f"{devices} {vendor.count}: it says which devices are linked")
    each = cores // devices
    made = counted("AWSNeuron", slots=each, memory_mib=0, cores=(1 << each) - 1)(vendor, node)
    return tuple(replace(device, info={"instance_type": kind}) for device in made or ())


def admit(vendor: Vendor, pod: Mapping[str, Any], container: Mapping[str, Any]) -> Admission:
    """Nothing is changed; amounts that cannot be served anywhere are refused. Raises: MalformedInput."""
    draft = Draft(vendor, pod, container)
    return draft.result(found=_asked(vendor, draft.limits, draft.requests) is not None)


def request(vendor: Vendor, container: Container) -> Request | None:
    """*count* whole devices (cores 0), or so many cores in all, of one device if they go there; void if unreadable."""
    try:
        return _asked(vendor, container.limits, container.requests)
    except MalformedInput:
        return None


def too_few_cores(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    """The device has fewer free cores than it would have to give."""
    total = _total(usage.device)
    need = min(request.cores, total) if request.cores else total
    return Reason.NO_CORES if len(_free(usage)) < need else None


def select_devices(eligible: Sequence[DeviceUsage], request: Request,
                   context: FitContext) -> Sequence[DeviceUsage] | NoCombination:
    """The first device that will do; several are of a run of neighbours, which are linked."""
    device = eligible[0].device
    count = -(-request.cores // _total(device)) if request.cores else request.count
    if count == 1:
        return eligible[:1]
    inferentia = "inf" in device.info["instance_type"].lower()
    if not inferentia and count not in RUNS:
        return NoCombination(Reason.NUMA)
    return aligned_run(eligible, count, step=1 if inferentia else count) or NoCombination(Reason.NUMA)


def share(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Share:
    """The device's first free cores, neighbours if there are any: what the container has not got yet, or all."""
    device = usage.device
    if not request.cores:
        return Share(device.uuid, request.vendor, 0, device.cores, (_ALL,))
    left = request.cores - sum(pick.cores.bit_count() for pick in picks)
    mask = sum(1 << core for core in _neighbours(_free(usage), left))
    return Share(device.uuid, request.vendor, 0, mask, _runs(mask))


def annotate(vendor: Vendor, context: AnnotationContext) -> Mapping[str, str]:
    """What the agent of the node sets in the containers: numbers of devices, or of cores, of the whole node.

    They follow each other for all containers, as upstream's agent expects them.
    """
    ids: list[int] = []
    of_cores = False
    for container, shares in zip(context.pod.containers, context.shares, strict=True):
        for mine in shares:
            device = context.devices[mine.uuid]
            if _wants_devices(vendor, container):
                ids.append(device.index)
            else:
                of_cores = True
                ids += [device.index * _total(device) + core for core in _cores(mine.cores)]
    if not ids:
        return {}
    texts = {IDS: ",".join(map(str, ids)), ALLOC_TIME: context.nanoseconds, ALLOCATED: "false",
             PREDICATE_NODE: context.node}
    return texts | ({RESOURCE_TYPE: vendor.cores} if of_cores else {})


def read(vendor: Vendor, pod: Pod, containers: tuple[tuple[Share, ...], ...]) -> tuple[tuple[Share, ...], ...]:
    """The shares with the cores that their masks name; a container that asked for devices has all of theirs.

    (Upstream's masks name two cores of such a device even if it has more.)
    """
    whole = [_wants_devices(vendor, container) for container in pod.containers]
    if len(whole) != len(containers):
        whole = [False] * len(containers)
    return tuple(tuple(replace(one, partitions=(_ALL,) if all_of_it else _runs(one.cores)) for one in shares)
                 for shares, all_of_it in zip(containers, whole, strict=True))


def _asked(vendor: Vendor, limits: Mapping[str, str], requests: Mapping[str, str]) -> Request | None:
    given = amounts(vendor, limits, requests)
    if vendor.count in given:
        return Request(vendor=vendor.key, count=_amount(vendor.count, given[vendor.count], INT32_MAX))
    if vendor.cores not in given:
        return None
    cores = _amount(vendor.cores, given[vendor.cores], PAIR * INT32_MAX)
    if cores > PAIR and cores % PAIR:
        raise _refusal(vendor.cores, cores, f"must be 1 or a multiple of {PAIR}, got {cores}")
    return Request(vendor=vendor.key, count=1, cores=cores)


def _amount(name: str, text: str, most: int) -> int:
    try:
        value = strict_integer(text)
    except MalformedInput:
        value = None
    if value is None:
        raise _refusal(name, text, "must be an integer")
    if value < 1:
        raise _refusal(name, text, "must be greater than 0")
    if value > most:
        raise _refusal(name, text, f"must not exceed {most}")
    return value


def _refusal(name: str, value: object, problem: str) -> MalformedInput:
    return MalformedInput(name, value, problem, message=f"{name} {problem}")


def _wants_devices(vendor: Vendor, container: Container) -> bool:
    """*container* names whole devices, in its limits or its requests; cores do not count then."""
    return vendor.count in amounts(vendor, container.limits, container.requests)


def _total(device: Device) -> int:
    """The cores of *device*, whose ``cores`` is the mask of them all."""
    return device.cores.bit_length()


def _free(usage: DeviceUsage) -> list[int]:
    held = {core for partition in usage.partitions for core in range(partition.start, partition.start + partition.size)}
    return [core for core in range(_total(usage.device)) if core not in held]


def _neighbours(free: Sequence[int], count: int) -> Sequence[int]:
    """The first *count* of *free* that follow each other; if none do, the first."""
    for place in range(len(free) - count + 1):
        if free[place + count - 1] - free[place] == count - 1:
            return free[place:place + count]
    return free[:count]


def _cores(mask: int) -> list[int]:
    return [core for core in range(mask.bit_length()) if mask >> core & 1]


def _runs(mask: int) -> tuple[Partition, ...]:
    """The cores in *mask*, those that follow each other as one."""
    return tuple(Partition(run.start(), len(run[0])) for run in re.finditer("1+", f"{mask:b}"[::-1]))
