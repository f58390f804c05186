"""Refusals in words: the event on a pod that waits, and the first sentence of commands and pages about it.

What a pod requests or lacks is in exact MiB, as it is written in manifests. No UUIDs: they help nobody who reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from hami.model import Reason, Request
from hami.plurals import are, counted, have
from hami.scheduling.refusal import AMOUNTS, DeviceRefusal, NodeRefusal, Refusal
from hami.scheduling.usage import Amounts
from hami.vendors.spec import Vendor

MAX_LENGTH = 250  # of a sentence: kubectl shows events in one line each
MAX_REQUESTS = 2  # that a sentence names

_OF_DEVICES: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.TYPE_MISMATCH: "{are} of another type",
        Reason.UUID_MISMATCH: "{are} excluded by UUID",
        Reason.NO_SLOT: "{have} no free slot",
        Reason.NO_CORES_LEFT: "{have} no free cores",
        Reason.NO_MEMORY: "{have} too little free memory",
        Reason.NO_CORES: "{have} too few free cores",
        Reason.UNHEALTHY: "{are} unhealthy",
        Reason.SGPU_UNHEALTHY: "{are} unhealthy",
        Reason.CORDONED: "{are} cordoned",
        Reason.NUMA: "{are} on NUMA nodes with too few",
        Reason.NOT_ALONE: "cannot be used exclusively",
        Reason.CUSTOM_RULE: "{are} excluded by a rule of the vendor",
        Reason.MIG_TOPOLOGY: "{have} no place for a MIG instance",
        Reason.TOO_FEW_FITTING: "would fit, too few on each node",
        Reason.QUOTA: "would exceed the quota of the namespace",
        Reason.MODE: "{are} not divided in the requested way",
        Reason.QOS: "{have} another quality of service",
        Reason.APP_CLASS: "{have} another application class",
        Reason.ALLOCATION_MODE: "{are} in the other allocation mode",
    }
)
"""What a reason says of the devices that it excludes."""


def refusal_sentence(refusal: Refusal, closest: Iterable[NodeRefusal] = ()) -> str:
    """Returns why no node fits, the most frequent reason first, at most MAX_LENGTH characters: ``1 × NVIDIA with
    9,000 MiB fits none of 3 nodes: 4 of 8 devices have too little free memory, 4 are unhealthy``.

    *closest*: the nearest node, of whose nearest device the sentence says what it lacks.
    """
    text = refusal_head(refusal)
    if not refusal.nodes:
        return f"{text}: none has registered such devices"
    for clause in (*_reason_clauses(refusal), *_node_clauses(refusal, closest)):
        if len(text) + len(clause) > MAX_LENGTH:
            break
        text += clause
    return text


def refusal_head(refusal: Refusal) -> str:
    """Returns what fits none of how many nodes: ``1 × NVIDIA with 9,000 MiB fits none of 3 nodes``."""
    count, requests = _requests_text(refusal)
    fits = "fits" if count == 1 else "fit"
    if not refusal.nodes:
        return f"{requests} {fits} no node"
    return f"{requests} {fits} none of {counted(refusal.nodes, 'node')}"


def device_clause(reason: Reason, count: int) -> str:
    """Returns what *reason* says of *count* devices: ``have too little free memory``."""
    if reason not in _OF_DEVICES:
        return f"{have(count)} the reason {reason}"
    return _OF_DEVICES[reason].format(are=are(count), have=have(count))


def request_text(request: Request, vendor: Vendor) -> str:
    """Returns a request in words: ``1 × NVIDIA with 3,000 MiB and 30 cores``."""
    text = f"{request.count} × {request.vendor}"
    amounts: list[str] = []
    if request.slices:
        amounts.append(f"{request.slices} slices")
    else:
        if vendor.resources.has_memory and request.memory_mib:
            amounts.append(f"{request.memory_mib:,} MiB")
        elif vendor.resources.has_memory and request.memory_percent:
            amounts.append(f"{request.memory_percent} % memory")
        if request.cores:
            amounts.append(counted(request.cores, "core"))
    return f"{text} with {' and '.join(amounts)}" if amounts else text


def shortage_text(short: Amounts) -> str:
    """Returns the missing amounts: ``3,000 MiB and 20 cores``; empty if there are none."""
    amounts: list[str] = []
    if short.memory_mib:
        amounts.append(f"{short.memory_mib:,} MiB")
    if short.cores:
        amounts.append(counted(short.cores, "core"))
    if short.slots:
        amounts.append("a free slot")
    return " and ".join(amounts)


def _requests_text(refusal: Refusal) -> tuple[int, str]:
    """Returns the number of requested devices, and the requests."""
    pod_request = refusal.pod_request
    requests = pod_request.distinct_requests
    texts: list[str] = []
    for request in requests[:MAX_REQUESTS]:
        vendor = pod_request.vendor_request(request.vendor).vendor
        texts.append(request_text(request, vendor))
    more = len(requests) - len(texts)
    if more:
        texts.append(f"{more} more")
    return sum(request.count for request in requests), " and ".join(texts)


def _reason_clauses(refusal: Refusal) -> Iterator[str]:
    """Yields what excludes devices, most frequent first, each with what separates it from the clause before."""
    counts = dict(refusal.devices_by_reason)
    counts.pop(Reason.TOO_FEW_DEVICES, None)
    separator, of_all = ": ", f" of {counted(refusal.devices, 'device')}"
    for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        yield f"{separator}{count:,}{of_all} {device_clause(reason, count)}"
        separator, of_all = ", ", ""


def _node_clauses(refusal: Refusal, closest: Iterable[NodeRefusal]) -> Iterator[str]:
    """Yields how many nodes have too few devices, or none, and what the nearest device lacks."""
    few = len(refusal.nodes_by_reason.get(Reason.TOO_FEW_DEVICES, ()))
    if few:
        yield f"; {counted(few, 'node')} {have(few)} fewer devices than requested"
    unknown = len(refusal.unknown)
    if unknown:
        yield f"; {counted(unknown, 'more node')} {have(unknown)} no such devices"
    for node in closest:
        device = nearest_short(node)
        if device is not None:
            place = f"device {device.device.index} of {node.node}"
            yield f"; the nearest, {place}, lacks {shortage_text(device.short)}"
            return


def nearest_short(node: NodeRefusal) -> DeviceRefusal | None:
    """Returns the device of *node* that is closest to serving and lacks an amount; ``None`` if none does."""
    for device in node.closest_devices:
        if device.reason in AMOUNTS and any(device.short):
            return device
    return None
