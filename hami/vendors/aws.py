"""AWS Neuron: whole devices, or some of their cores, each for one container alone.

The cores of an allocation are a bit mask; bit 0 is the first core of the device. The number of cores of a device
depends on the instance type. It is known on the node only, not at admission.
Source: HAMi v2.10, pkg/device/awsneuron/device.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hami.errors import MalformedInput, PodRefused
from hami.model import (
    Allocation,
    Container,
    Device,
    DeviceUsage,
    Node,
    Partition,
    Pod,
    Reason,
    Request,
    Share,
    Unfit,
)
from hami.quantity import INT32_MAX, strict_integer
from hami.vendors.draft import ContainerDraft
from hami.vendors.inventory import capacity_of, counted
from hami.vendors.resources import Resources
from hami.vendors.select import aligned_run
from hami.vendors.spec import AnnotationContext, Candidate, FitContext, Vendor

INSTANCE_TYPE = "node.kubernetes.io/instance-type"  # label
IDS, ALLOC_TIME, ALLOCATED = "AWS_NEURON_IDS", "NEURON_ALLOC_TIME", "NEURON_ALLOCATED"
PREDICATE_NODE, RESOURCE_TYPE = "aws.amazon.com/predicate-node", "NEURON_RESOURCE_TYPE"
WRITTEN = (IDS, ALLOC_TIME, ALLOCATED, PREDICATE_NODE, RESOURCE_TYPE)
MAX_CORES = 31  # of a device: the mask is a signed 32-bit integer on the wire
PAIR = 2  # a larger number of cores must be a multiple of it, as upstream requires
# numbers of linked devices on Trainium; a run starts at a multiple of its length
RUNS = (1, 4, 8, 16)
_ALL = Partition(0, MAX_CORES)  # a whole device with any number of cores


def inventory(vendor: Vendor, node: Node) -> tuple[Device, ...] | None:
    """Returns as many equal devices as the node's capacity, which share its capacity of cores evenly.

    If cores have no resource name, a device is one core. ``Device.info``: ``instance_type``, from the node's label.
    Raises: MalformedInput if the capacities contradict each other or the label is missing.
    """
    resources = vendor.resources
    count = cores = capacity_of(node, resources.count) or 0
    if resources.cores:
        cores = capacity_of(node, resources.cores) or 0
    if not count and not cores:
        return None
    each = _cores_of_each(resources, count, cores)
    kind = node.labels.get(INSTANCE_TYPE)
    if not kind:
        raise MalformedInput(
            f"label {INSTANCE_TYPE}",
            "",
            "missing, expected the instance type: it determines which devices are linked",
        )
    make = counted("AWSNeuron", slots=each, memory_mib=0, cores=(1 << each) - 1)
    devices = make(vendor, node) or ()
    return tuple([replace(device, info={"instance_type": kind}) for device in devices])


def _cores_of_each(resources: Resources, count: int, cores: int) -> int:
    if count and cores % count == 0 and 1 <= cores // count <= MAX_CORES:
        return cores // count
    raise MalformedInput(
        f"capacity of {resources.cores}",
        cores,
        f"expected 1 to {MAX_CORES} cores for each of "
        f"the {count} devices that {resources.count} names",
    )


def admit(draft: ContainerDraft) -> bool:
    """Rejects amounts that fit nowhere and changes nothing. Raises: PodRefused."""
    return _parse(draft.resources, draft.limits, draft.requests) is not None


def parse_request(vendor: str, resources: Resources, container: Container) -> Request | None:
    """Returns a request for whole devices (cores 0) or for a total of cores; ``None`` if it cannot be parsed."""
    try:
        parsed = _parse(resources, container.limits, container.requests)
    except PodRefused:
        return None
    if parsed is None:
        return None
    count, cores = parsed
    return Request(vendor=vendor, count=count, cores=cores)


def too_few_cores(candidate: Candidate) -> Reason | None:
    """Rejects a device with fewer free cores than its part of the request."""
    total = _total(candidate.device)
    need = min(candidate.request.cores, total) if candidate.request.cores else total
    return Reason.NO_CORES if len(_free(candidate.usage)) < need else None


def select_devices(
    eligible: Sequence[DeviceUsage], request: Request, context: FitContext
) -> Sequence[DeviceUsage] | Unfit:
    """Selects the first device, or several linked devices with consecutive indexes."""
    device, count = eligible[0].device, request.count
    if request.cores:
        count = -(-request.cores // _total(device))
    if count == 1:
        return eligible[:1]
    if "inf" in device.info["instance_type"].lower():  # Inferentia
        selected = aligned_run(eligible, count)
    elif count in RUNS:
        selected = aligned_run(eligible, count, step=count)
    else:
        selected = ()
    return selected or Unfit.of({Reason.NUMA: 1}, 0, len(context.usages))


def make_share(candidate: Candidate) -> Share:
    """Returns a share with the device's first free cores that the container still needs, consecutive if possible."""
    device = candidate.device
    if not candidate.request.cores:
        return Share(device.uuid, candidate.request.vendor, 0, device.cores, (_ALL,))
    left = candidate.request.cores - sum(pick.cores.bit_count() for pick in candidate.picks)
    mask = sum(1 << core for core in _consecutive(_free(candidate.usage), left))
    return Share(device.uuid, candidate.request.vendor, 0, mask, _runs(mask))


def annotate(vendor: Vendor, context: AnnotationContext) -> Mapping[str, str]:
    """Returns the annotations for the node agent: numbers of devices or cores of the node, for all
    containers in order."""
    ids: list[int] = []
    of_cores = False
    for container, shares in zip(context.pod.containers, context.shares, strict=True):
        for share in shares:
            device = context.devices[share.uuid]
            if _wants_devices(vendor, container):
                ids.append(device.index)
            else:
                of_cores = True
                ids += [device.index * _total(device) + core for core in _cores(share.cores)]
    if not ids:
        return {}
    texts = {
        IDS: ",".join(map(str, ids)),
        ALLOC_TIME: context.nanoseconds,
        ALLOCATED: "false",
        PREDICATE_NODE: context.node,
    }
    if of_cores:
        texts[RESOURCE_TYPE] = vendor.resources.cores
    return texts


def read_shares(vendor: Vendor, pod: Pod, containers: Allocation) -> Allocation:
    """Adds the cores in the masks as partitions. A container that requests devices holds all their cores.

    (Upstream's masks contain two cores of such a device even if it has more.)
    """
    whole = [_wants_devices(vendor, container) for container in pod.containers]
    if len(whole) != len(containers):
        whole = [False] * len(containers)
    completed = []
    for shares, is_whole in zip(containers, whole):
        completed.append(tuple([_with_partitions(share, is_whole) for share in shares]))
    return tuple(completed)


def _with_partitions(share: Share, is_whole: bool) -> Share:
    return replace(share, partitions=(_ALL,) if is_whole else _runs(share.cores))


def _parse(
    resources: Resources, limits: Mapping[str, str], requests: Mapping[str, str]
) -> tuple[int, int] | None:
    """Returns the numbers of devices and of cores that are requested; 0 cores for whole devices."""
    given = resources.amounts(limits, requests)
    if resources.count in given:
        return _amount(resources.count, given[resources.count], INT32_MAX), 0
    if resources.cores not in given:
        return None
    cores = _amount(resources.cores, given[resources.cores], PAIR * INT32_MAX)
    if cores > PAIR and cores % PAIR:
        raise PodRefused(f"{resources.cores} must be 1 or a multiple of {PAIR}, got {cores}")
    return 1, cores


def _amount(name: str, text: str, limit: int) -> int:
    value = strict_integer(text)
    if value is None:
        raise PodRefused(f"{name} must be an integer")
    if value < 1:
        raise PodRefused(f"{name} must be greater than 0")
    if value > limit:
        raise PodRefused(f"{name} must not exceed {limit}")
    return value


def _wants_devices(vendor: Vendor, container: Container) -> bool:
    """Reports whether *container* requests whole devices, in limits or requests. Cores do not count then."""
    return vendor.resources.count in vendor.resources.amounts(container.limits, container.requests)


def _total(device: Device) -> int:
    """Returns the number of cores of *device*, whose ``cores`` is the mask of all."""
    return device.cores.bit_length()


def _free(usage: DeviceUsage) -> list[int]:
    free = set(range(_total(usage.device)))
    for partition in usage.partitions:
        free.difference_update(range(partition.start, partition.start + partition.size))
    return sorted(free)


def _consecutive(free: Sequence[int], count: int) -> Sequence[int]:
    """Returns the first *count* of *free* that are consecutive; if there are none, the first."""
    for index in range(len(free) - count + 1):
        if free[index + count - 1] - free[index] == count - 1:
            return free[index : index + count]
    return free[:count]


def _cores(mask: int) -> list[int]:
    return [core for core in range(mask.bit_length()) if mask >> core & 1]


def _runs(mask: int) -> tuple[Partition, ...]:
    """Returns the cores in *mask*; consecutive cores are one partition."""
    return tuple(
        Partition(run.start(), len(run[0])) for run in re.finditer("1+", f"{mask:b}"[::-1])
    )
