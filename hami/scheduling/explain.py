"""Explains why a pod waits: its requests, and the free amounts of the devices on the closest nodes.

:func:`explain` returns records. Their text is made last: :func:`describe` for the event on the pod.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hami.model import DeviceUsage, Reason, Request
from hami.scheduling.decide import Refusal
from hami.scheduling.fit import objection
from hami.scheduling.placement import NodeUsage
from hami.vendors.spec import CoreUnit, FitContext, Vendor

__all__ = ["DeviceRefusal", "NodeRefusal", "describe", "explain", "nodes_by_reason", "summarize"]

MOST_NODES = 50  # nodes that one event names
CLOSEST_NODES = 3  # nodes whose devices are described
MOST_DEVICES = 8  # devices described of each node


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRefusal:
    """One device for *request*: what is free of its total, and the reason of the first rule that it fails, if any.

    *cores*: in the vendor's unit, where it counts single cores.
    """

    uuid: str
    request: Request
    memory_mib: int
    memory_free_mib: int
    cores: int
    cores_free: int
    slots: int
    slots_free: int
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """One node that does not fit, with those of its devices that the first request is for."""

    node: str
    devices: tuple[DeviceRefusal, ...]


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
    return [f"{len(nodes)} nodes {reason}({','.join(nodes[:MOST_NODES])}{',…' if len(nodes) > MOST_NODES else ''})"
            for reason, nodes in sorted(nodes_of.items()) if reason is not Reason.TOO_FEW_DEVICES]


def explain(refusal: Refusal, usages_of: Callable[[str], NodeUsage]) -> tuple[NodeRefusal, ...]:
    """Returns the closest nodes: those with the device that has the most free memory, among the first by name."""
    found = [(name, usages) for name in sorted(refusal.unfit)[:MOST_NODES] if any((usages := usages_of(name)).values())]
    found.sort(key=lambda item: -max(usage.memory_free_mib for devices in item[1].values() for usage in devices))
    request = refusal.pod_request.distinct_requests[0]
    nodes = []
    for name, usages in found[:CLOSEST_NODES]:
        devices = usages.get(request.vendor, ())
        context = refusal.pod_request.fit_context(request.vendor, devices)
        nodes.append(NodeRefusal(name, tuple(_refusal(usage, request, context) for usage in devices[:MOST_DEVICES])))
    return tuple(nodes)


def describe(refusal: Refusal, usages_of: Callable[[str], NodeUsage]) -> str:
    """Returns the pod's requests and, for the devices of the closest nodes, the free amounts and the failed rule."""
    request = refusal.pod_request
    vendors = {found.vendor.key: found.vendor for found in request.vendor_requests}
    requests = "; ".join(_request_text(one, vendors[one.vendor]) for one in request.distinct_requests)
    nodes = [f"{node.node}: " + (", ".join(_device_text(device, vendors[device.request.vendor])
                                           for device in node.devices) or "no such device")
             for node in explain(refusal, usages_of)]
    return f"requests {requests}. {'. '.join(nodes) or 'no node offers such devices'}"


def _refusal(usage: DeviceUsage, request: Request, context: FitContext) -> DeviceRefusal:
    device = usage.device
    cores, cores_used = device.cores, usage.cores_used
    if context.vendor.core_unit is CoreUnit.MASK:
        cores, cores_used = cores.bit_count(), cores_used.bit_count()
    return DeviceRefusal(
        uuid=device.uuid, request=request, memory_mib=device.memory_mib, memory_free_mib=usage.memory_free_mib,
        cores=cores, cores_free=cores - cores_used, slots=device.slots, slots_free=device.slots - usage.slots_used,
        reason=objection(usage, request, context))


def _request_text(request: Request, vendor: Vendor) -> str:
    if request.slices or (request.memory_mib, request.memory_percent, request.cores) == (0, None, 0):
        return f"{request.count} × {request.vendor}" + f" with {request.slices} slices" * (request.slices > 0)
    memory = f"{request.memory_mib} MiB, " if request.memory_mib else f"{request.memory_percent or 0} % memory, "
    return f"{request.count} × {request.vendor} with {memory if vendor.has_memory else ''}{request.cores} cores"


def _device_text(device: DeviceRefusal, vendor: Vendor) -> str:
    amounts = [(device.cores_free, device.cores, "cores"), (device.slots_free, device.slots, "slots")]
    if vendor.has_memory or device.memory_mib:
        amounts.insert(0, (device.memory_free_mib, device.memory_mib, "MiB"))
    free = ", ".join(f"{max(left, 0)}/{total} {unit}" for left, total, unit in amounts)
    return f"{device.uuid} {free} free" + (f" ({device.reason})" if device.reason else "")
