"""Why a pod waits, in words: what it asks for, and what is free where."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hami.model import Reason, Request, DeviceUsage
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.decide import Refusal
from hami.scheduling.fit import objection
from hami.vendors.spec import FitContext, CoresIn, Vendor

__all__ = ["describe", "nodes_by_reason", "summarize"]

NAMED = 50  # nodes that one event names
CLOSEST = 3  # nodes whose devices are described
DEVICES = 8  # devices described of each

Views = Mapping[str, Sequence[DeviceUsage]]


def nodes_by_reason(refusal: Refusal) -> dict[Reason, list[str]]:
    """For each reason the nodes on which it rules devices out, sorted by name."""
    nodes: dict[Reason, list[str]] = {}
    for name in sorted(refusal.unfit):
        for reason, _ in refusal.unfit[name].reasons:
            nodes.setdefault(reason, []).append(name)
    return nodes


def summarize(nodes_of: Mapping[Reason, Sequence[str]]) -> list[str]:
    """A sentence for each reason of `nodes_by_reason`: ``2 nodes CardInsufficientMemory(node1,node2)``.

    None for nodes that have too few devices whatever is free.

    Source: HAMi v2.10, pkg/scheduler/event.go.
    """
    return [f"{len(nodes)} nodes {reason}({','.join(nodes[:NAMED])}{',…' if len(nodes) > NAMED else ''})"
            for reason, nodes in sorted(nodes_of.items()) if reason is not Reason.TOO_FEW_DEVICES]


def describe(refusal: Refusal, views_of: Callable[[str], Views]) -> str:
    """What the pod asks, and what each device of the closest nodes has free and lacks."""
    ask = refusal.ask
    asked = "; ".join(_asked(request, ask.vendor_request(request.vendor).vendor) for request in _requests(ask))
    found = [(name, views) for name in sorted(refusal.unfit)[:NAMED] if any((views := views_of(name)).values())]
    found.sort(key=lambda item: -max(view.memory_free_mib for vendor in item[1].values() for view in vendor))
    nodes = [f"{name}: {_devices(ask, views)}" for name, views in found[:CLOSEST]]
    where = ". ".join(nodes) if nodes else "no node offers such devices"
    return f"asks {asked}. {where}"


def _requests(ask: PodRequest) -> list[Request]:
    return list(dict.fromkeys(request for container in ask.containers for request in container.requests))


def _asked(request: Request, vendor: Vendor) -> str:
    if request.slices or (request.memory_mib, request.memory_percent, request.cores) == (0, None, 0):
        return f"{request.count} × {request.vendor}" + f" with {request.slices} slices" * (request.slices > 0)
    memory = f"{request.memory_mib} MiB, " if request.memory_mib else f"{request.memory_percent or 0} % memory, "
    return f"{request.count} × {request.vendor} with {memory if _has_memory(vendor) else ''}{request.cores} cores"


def _devices(ask: PodRequest, views: Views) -> str:
    first = _requests(ask)[0]
    mine = views.get(first.vendor, ())
    case = ask.case(first.vendor, mine)
    return ", ".join(_device(first, view, case) for view in mine[:DEVICES]) or "no such device"


def _device(request: Request, view: DeviceUsage, case: FitContext) -> str:
    device = view.device
    reason = objection(view, request, case)
    cores, cores_used = device.cores, view.cores_used
    if case.vendor.cores_in is CoresIn.MASK:
        cores, cores_used = cores.bit_count(), cores_used.bit_count()
    amounts = ((view.memory_free_mib, device.memory_mib, "MiB"), (cores - cores_used, cores, "cores"),
               (device.slots - view.slots_used, device.slots, "slots"))
    free = ", ".join(f"{max(left, 0)}/{total} {unit}" for left, total, unit in amounts
                     if unit != "MiB" or _has_memory(case.vendor) or total) + " free"
    return f"{device.uuid} {free}" + (f" ({reason})" if reason else "")


def _has_memory(vendor: Vendor) -> bool:
    """Pods can ask for so much memory."""
    return bool(vendor.memory or vendor.memory_percent)
