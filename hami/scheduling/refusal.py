"""The answer of a decision: the node that a pod gets, or a refusal: for each node, and each device of it, the reason.

Texts for people are made of it last: :mod:`hami.scheduling.refusal_text`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hami.model import Allocation, Budget, Device, Reason, Request, Unfit
from hami.scheduling.amounts import total_amounts, used_amounts
from hami.scheduling.fit import objection
from hami.scheduling.placement import NodeUsage, placing_steps
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.usage import Amounts
from hami.vendors.spec import Candidate, CoreUnit, FitContext

AMOUNTS = frozenset({Reason.NO_MEMORY, Reason.NO_CORES, Reason.NO_CORES_LEFT, Reason.NO_SLOT})
UNTOLD = 1.0
"""What a device lacks of an amount if its numbers do not tell, such as a part of a card without free cores: all."""


class Distance(NamedTuple):
    """The distance of devices from serving a request. The smaller one is nearer.

    *absent*: devices that the node does not have. *excluded*: devices that another rule than an amount excludes.
    *missing*: the parts of the requested amounts that devices lack, added up: 0.5 for half of the memory, 1.5 for that
    and all cores. It may be any number: more than is requested is missing of a device that is overcommitted.
    """

    absent: int = 0
    excluded: int = 0
    missing: float = 0.0


SERVES, EXCLUDED = Distance(), Distance(excluded=1)


def nearest_sum(distances: Iterable[Distance], count: int) -> Distance:
    """Returns the distance of a node from serving a request for *count* devices: the sum over the nearest of them."""
    nearest = heapq.nsmallest(count, distances)
    excluded = sum(distance.excluded for distance in nearest)
    missing = sum(distance.missing for distance in nearest)
    return Distance(count - len(nearest), excluded, missing)


@dataclass(frozen=True, slots=True)
class Choice:
    """The node for the pod. *fitting*: the nodes that were found to fit, with their scores, worst first.

    *unfit*: the number of nodes that were found not to fit. *candidates*: the number of nodes to choose from.
    """

    node: str
    placement: Allocation
    fitting: tuple[tuple[str, float], ...]
    unfit: int
    candidates: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """No node fits *pod_request*. *groups*: the known nodes by the reasons for which they do not fit.

    *unknown*: names without any devices. *budgets*: those of the namespace that played a part, by vendor. *resolvable*:
    the nodes where the end of a pod of lower priority could make room.
    """

    pod_request: PodRequest
    groups: tuple[tuple[Unfit, tuple[str, ...]], ...]
    unknown: tuple[str, ...] = ()
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    resolvable: frozenset[str] = frozenset()

    @property
    def nodes(self) -> int:
        """The number of known nodes that do not fit."""
        return sum(len(names) for _, names in self.groups)

    @property
    def devices(self) -> int:
        """The number of devices that were judged: all but those of nodes that have fewer than are requested."""
        devices = 0
        for unfit, names in self.groups:
            if unfit.reasons and unfit.reasons[0][0] is Reason.TOO_FEW_DEVICES:
                continue
            devices += unfit.devices * len(names)
        return devices

    @property
    def devices_by_reason(self) -> dict[Reason, int]:
        """For each reason, the number of devices that it excludes."""
        counts: dict[Reason, int] = {}
        for unfit, names in self.groups:
            for reason, count in unfit.reasons:
                counts[reason] = counts.get(reason, 0) + count * len(names)
        return counts

    @property
    def unfit(self) -> dict[str, Unfit]:
        """The reasons for each known node."""
        by_node: dict[str, Unfit] = {}
        for unfit, names in self.groups:
            by_node.update(dict.fromkeys(names, unfit))
        return by_node

    @property
    def texts(self) -> dict[str, str]:
        """The reasons for each known node, as text."""
        texts: dict[str, str] = {}
        for unfit, names in self.groups:
            texts.update(dict.fromkeys(names, str(unfit)))
        return texts

    @property
    def nodes_by_reason(self) -> dict[Reason, list[str]]:
        """For each reason, the nodes on which it excludes devices."""
        nodes: dict[Reason, list[str]] = {}
        for unfit, names in self.groups:
            for reason, _ in unfit.reasons:
                nodes.setdefault(reason, []).extend(names)
        return nodes


@dataclass(frozen=True, slots=True)
class DeviceRefusal:
    """A device, compared with a request.

    *requested*: what the request needs of this device. *free*: what is left of *total*; it may be negative. *reason*:
    the first rule that the device fails; ``None`` if it could serve.
    """

    device: Device
    requested: Amounts
    free: Amounts
    total: Amounts
    reason: Reason | None

    @property
    def short(self) -> Amounts:
        """The missing part of each amount."""
        short = self.requested.plus(self.free, -1)
        return Amounts(*[max(0, amount) for amount in short])

    @property
    def distance(self) -> Distance:
        """The distance of the device from serving, as in :func:`hami.scheduling.columns.distances`."""
        if self.reason is None:
            return SERVES
        if self.reason not in AMOUNTS:
            return EXCLUDED
        missing = 0.0
        for short, requested in zip(self.short, self.requested):
            missing += short / max(requested, 1)
        return Distance(missing=missing or UNTOLD)


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """A node that a pod does not fit.

    *unfit*: the verdict on the container at the position *container*. *devices*: what each has for its *request*,
    beside the containers before it, in the order of registration.
    """

    node: str
    unfit: Unfit
    container: int
    request: Request
    devices: tuple[DeviceRefusal, ...]

    @property
    def closest_devices(self) -> list[DeviceRefusal]:
        """The devices, those that are closest to serving first."""
        return sorted(
            self.devices,
            key=lambda device: (device.distance, device.device.index, device.device.uuid),
        )


def explain_node(name: str, usages: NodeUsage, refusal: Refusal) -> NodeRefusal | None:
    """Returns why the pod of *refusal* does not fit the node *name* with *usages*; ``None`` if it fits by now."""
    for step in placing_steps(usages, refusal.pod_request, refusal.budgets):
        if isinstance(step.result, Unfit):
            devices = _device_refusals(step.request, step.context)
            return NodeRefusal(name, step.result, step.position, step.request, devices)
    return None


def distance_of(usages: NodeUsage, pod_request: PodRequest) -> Distance:
    """Returns how far a node with *usages* is from serving *pod_request*: the sum over its distinct requests, each by
    itself. It is what :func:`hami.scheduling.columns.distances` finds where columns tell everything."""
    total = SERVES
    for request in pod_request.distinct_requests:
        context = pod_request.fit_context(request.vendor, usages=usages.get(request.vendor, ()))
        distances = [device.distance for device in _device_refusals(request, context)]
        nearest = nearest_sum(distances, request.count)
        total = Distance(
            total.absent + nearest.absent,
            total.excluded + nearest.excluded,
            total.missing + nearest.missing,
        )
    return total


def _device_refusals(request: Request, context: FitContext) -> tuple[DeviceRefusal, ...]:
    return tuple([_device_refusal(Candidate(usage, request, context)) for usage in context.usages])


def _device_refusal(candidate: Candidate) -> DeviceRefusal:
    device, vendor = candidate.device, candidate.context.vendor
    total = total_amounts(device, vendor)
    cores = candidate.request.device_cores
    if vendor.resources.core_unit is CoreUnit.MASK:  # of all devices together, or of whole devices
        cores = min(candidate.request.cores or total.cores, total.cores)
    return DeviceRefusal(
        device,
        Amounts(candidate.memory_mib, cores, 1),
        total.plus(used_amounts(candidate.usage, vendor), -1),
        total,
        objection(candidate),
    )
