"""Explains why a pod waits: its requests, and the free amounts of the devices on the closest nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hami.model import DeviceUsage, Reason, Request
from hami.scheduling.decide import Refusal
from hami.scheduling.fit import objection
from hami.scheduling.placement import NodeUsage
from hami.vendors.spec import CoreUnit, FitContext, Vendor

MOST_NODES = 50  # nodes that one event names
CLOSEST_NODES = 3  # nodes whose devices are described
MOST_DEVICES = 8  # devices described of each node


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


def describe(refusal: Refusal, usages_of: Callable[[str], NodeUsage]) -> str:
    """Returns the pod's requests and, for the devices of the closest nodes, the free amounts and the failed rule.

    The closest nodes are those with the device that has the most free memory, among the first by name. Their devices
    are described for the first request.
    """
    pod_request = refusal.pod_request
    requests = pod_request.distinct_requests
    found = [(name, usages) for name in sorted(refusal.unfit)[:MOST_NODES] if any((usages := usages_of(name)).values())]
    found.sort(key=lambda item: -max(usage.memory_free_mib for devices in item[1].values() for usage in devices))
    nodes = []
    for name, usages in found[:CLOSEST_NODES]:
        context = pod_request.fit_context(requests[0].vendor, usages.get(requests[0].vendor, ()))
        devices = [_device_text(usage, requests[0], context) for usage in context.usages[:MOST_DEVICES]]
        nodes.append(f"{name}: {', '.join(devices) or 'no such device'}")
    texts = [_request_text(request, pod_request.vendor_request(request.vendor).vendor) for request in requests]
    return f"requests {'; '.join(texts)}. {'. '.join(nodes) or 'no node offers such devices'}"


def _request_text(request: Request, vendor: Vendor) -> str:
    if request.slices or (request.memory_mib, request.memory_percent, request.cores) == (0, None, 0):
        return f"{request.count} × {request.vendor}" + f" with {request.slices} slices" * (request.slices > 0)
    memory = f"{request.memory_mib} MiB, " if request.memory_mib else f"{request.memory_percent or 0} % memory, "
    return f"{request.count} × {request.vendor} with {memory if vendor.has_memory else ''}{request.cores} cores"


def _device_text(usage: DeviceUsage, request: Request, context: FitContext) -> str:
    """Returns what is free of the device's total, and the reason of the first rule that it fails, if any."""
    device, vendor = usage.device, context.vendor
    cores, cores_used = device.cores, usage.cores_used
    if vendor.core_unit is CoreUnit.MASK:
        cores, cores_used = cores.bit_count(), cores_used.bit_count()
    amounts = [(cores - cores_used, cores, "cores"), (device.slots - usage.slots_used, device.slots, "slots")]
    if vendor.has_memory or device.memory_mib:
        amounts.insert(0, (usage.memory_free_mib, device.memory_mib, "MiB"))
    free = ", ".join(f"{max(left, 0)}/{total} {unit}" for left, total, unit in amounts)
    reason = objection(usage, request, context)
    return f"{device.uuid} {free} free" + (f" ({reason})" if reason else "")
