"""Explains why a pod waits: its requests, and the free amounts of the devices on the closest nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hami.model import Device, DeviceUsage, Reason, Request
from hami.scheduling.amounts import Amounts, total_amounts, used_amounts
from hami.scheduling.decide import Refusal
from hami.scheduling.fit import Unfit, objection
from hami.scheduling.placement import NodeUsage, place_pod
from hami.scheduling.pod_request import PodRequest
from hami.vendors.spec import FitContext, Vendor

MAX_NODES = 50  # nodes that one event names
CLOSEST_NODES = 3  # nodes whose devices are described
MAX_DEVICES = 8  # devices described of each node

_AMOUNTS = frozenset({Reason.NO_MEMORY, Reason.NO_CORES, Reason.NO_CORES_LEFT, Reason.NO_SLOT})
_OTHER_RULE, _NO_DEVICE = 5.0, 10.0  # distances of a device that another rule excludes, and of one that does not exist


def nodes_by_reason(refusal: Refusal) -> dict[Reason, list[str]]:
    """Returns, for each reason, the nodes on which it excludes devices, sorted by name."""
    nodes: dict[Reason, list[str]] = {}
    for name in sorted(refusal.unfit):
        for reason, _ in refusal.unfit[name].reasons:
            nodes.setdefault(reason, []).append(name)
    return nodes


def summarize(nodes_of: Mapping[Reason, Sequence[str]]) -> list[str]:
    """Returns a sentence for each reason of `nodes_by_reason`: ``2 nodes CardInsufficientMemory(node1,node2)``.

    Nodes that have too few devices, free or not, are left out.
    Source: HAMi v2.10, pkg/scheduler/event.go.
    """
    return [f"{len(nodes)} nodes {reason}({','.join(nodes[:MAX_NODES])}{',…' if len(nodes) > MAX_NODES else ''})"
            for reason, nodes in sorted(nodes_of.items()) if reason is not Reason.TOO_FEW_DEVICES]


@dataclass(frozen=True, slots=True)
class DeviceRefusal:
    """A device that was asked for a request.

    *asked*: what the request needs of this device. *free*: what is left of *total*; it may be negative. *reason*: the
    first rule that the device fails; ``None`` if it could serve.
    """

    device: Device
    asked: Amounts
    free: Amounts
    total: Amounts
    has_memory: bool
    reason: Reason | None

    @property
    def short(self) -> Amounts:
        """The missing part of each amount."""
        short = self.asked - self.free
        return Amounts(max(0, short.memory_mib), max(0, short.cores), max(0, short.slots))

    @property
    def distance(self) -> float:
        """The distance of the device from serving: 0 if it would; below 5 if only amounts are short; more otherwise."""
        if self.reason is None:
            return 0.0
        if self.reason not in _AMOUNTS:
            return _OTHER_RULE
        short, total = self.short, self.total
        return 1.0 + _share(short.memory_mib, total.memory_mib) + _share(short.cores, total.cores)


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """A node that a pod does not fit.

    *unfit*: the verdict on the container at the position *container*. *devices*: what each says to its *request*,
    beside the containers before it.
    """

    node: str
    unfit: Unfit
    container: int
    request: Request
    devices: tuple[DeviceRefusal, ...]

    @property
    def distance(self) -> float:
        """The distance of the node from serving: the sum over the nearest devices, as many as are requested."""
        nearest = sorted(device.distance for device in self.devices)[:self.request.count]
        return sum(nearest) + _NO_DEVICE * (self.request.count - len(nearest))


def refused_nodes(refusal: Refusal, usages_of: Callable[[str], NodeUsage]) -> list[NodeRefusal]:
    """Returns each node that does not fit, nearest first."""
    found = [explained for name in refusal.unfit
             if (explained := explain_node(name, usages_of(name), refusal.pod_request)) is not None]
    found.sort(key=lambda node: (node.distance, node.node))
    return found


def explain_node(name: str, usages: NodeUsage, pod_request: PodRequest) -> NodeRefusal | None:
    """Returns why *pod_request* does not fit the node *name* with *usages*; ``None`` if it fits."""
    failed: list[tuple[int, Request, FitContext]] = []
    unfit = place_pod(usages, pod_request, lambda *what: failed.append(what))
    if not isinstance(unfit, Unfit):
        return None
    (position, request, context), = failed
    return NodeRefusal(name, unfit, position, request, device_refusals(context.usages, request, context))


def device_refusals(usages: Sequence[DeviceUsage], request: Request,
                    context: FitContext) -> tuple[DeviceRefusal, ...]:
    """Returns what each of *usages* says to *request*, in their order."""
    vendor = context.vendor
    found = []
    for usage in usages:
        device, total = usage.device, total_amounts(usage.device, vendor)
        found.append(DeviceRefusal(
            device, Amounts(request.memory_on(device), request.cores, 1), total - used_amounts(usage, vendor), total,
            vendor.resources.has_memory or bool(device.memory_mib), objection(usage, request, context)))
    return tuple(found)


def describe(refusal: Refusal, usages_of: Callable[[str], NodeUsage]) -> str:
    """Returns the pod's requests and, for the devices of the closest nodes, the free amounts and the failed rule.

    The closest nodes are those with the device that has the most free memory, among the first by name. Their devices
    are described for the first request.
    """
    pod_request = refusal.pod_request
    requests = pod_request.distinct_requests
    found = [(name, usages) for name in sorted(refusal.unfit)[:MAX_NODES] if any((usages := usages_of(name)).values())]
    found.sort(key=lambda item: -max(usage.memory_free_mib for devices in item[1].values() for usage in devices))
    nodes = []
    for name, usages in found[:CLOSEST_NODES]:
        context = pod_request.fit_context(requests[0].vendor, usages.get(requests[0].vendor, ()))
        devices = device_refusals(context.usages[:MAX_DEVICES], requests[0], context)
        nodes.append(f"{name}: {', '.join(map(_device_text, devices)) or 'no such device'}")
    texts = [request_text(request, pod_request.vendor_request(request.vendor).vendor) for request in requests]
    return f"requests {'; '.join(texts)}. {'. '.join(nodes) or 'no node offers such devices'}"


def request_text(request: Request, vendor: Vendor) -> str:
    """Returns a request in words: ``1 × NVIDIA with 3000 MiB, 30 cores``."""
    if request.slices or (request.memory_mib, request.memory_percent, request.cores) == (0, None, 0):
        return f"{request.count} × {request.vendor}" + f" with {request.slices} slices" * (request.slices > 0)
    memory = f"{request.memory_mib} MiB, " if request.memory_mib else f"{request.memory_percent or 0} % memory, "
    amounts = f"{memory if vendor.resources.has_memory else ''}{request.cores} cores"
    return f"{request.count} × {request.vendor} with {amounts}"


def free_text(refusal: DeviceRefusal) -> str:
    """Returns what is free of the device's total: ``68/46068 MiB, 100/100 cores, 9/10 slots free``."""
    free, total = refusal.free, refusal.total
    amounts = [(free.cores, total.cores, "cores"), (free.slots, total.slots, "slots")]
    if refusal.has_memory:
        amounts.insert(0, (free.memory_mib, total.memory_mib, "MiB"))
    return ", ".join(f"{max(left, 0)}/{whole} {unit}" for left, whole, unit in amounts) + " free"


def _share(short: int, total: int) -> float:
    return min(1.0, short / total) if total > 0 else float(short > 0)


def _device_text(refusal: DeviceRefusal) -> str:
    return f"{refusal.device.uuid} {free_text(refusal)}" + (f" ({refusal.reason})" if refusal.reason else "")
