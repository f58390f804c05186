"""Refusals as people see them: what a pod asks for and why nodes and their devices do not serve it, as records and as
lines. Explain, simulate and the dashboard say it with these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from hami.inspect.cluster import InspectedCluster
from hami.inspect.tables import OutputRecord, counted
from hami.model import Pod
from hami.scheduling.refusal import DeviceRefusal, NodeRefusal, Refusal
from hami.scheduling.refusal_text import request_text
from hami.state import dry_run
from hami.state.view import View
from hami.vendors.request import device_requests

R = TypeVar("R", bound=str)

AWAITS_SCHEDULER = (
    "It waits for kube-scheduler, which also looks at CPU, memory, taints, affinity and volumes."
)
"""The sentence about a pod that fits."""


class ReportPart(OutputRecord, frozen=True, omit_defaults=True):
    """A part of a report. Memory is in MiB."""


class RequestedDevices(ReportPart, frozen=True):
    """A request of one container, in words."""

    container: str
    requests: tuple[str, ...]


class DeviceShortage(ReportPart, frozen=True):
    """A device: its free and its missing amounts. *reason*: the first rule that it fails, empty if it would serve."""

    index: int
    uuid: str
    model: str
    free: str
    short_mib: int = 0
    short_cores: int = 0
    short_slots: int = 0
    reason: str = ""


class NodeShortage(ReportPart, frozen=True):
    """A node that does not fit. *container*: the first that does not fit. *cards*: nearest first."""

    node: str
    reasons: str
    container: str
    cards: tuple[DeviceShortage, ...]


def nearest_nodes(
    view: View, pod: Pod, refusal: Refusal, count: int | None = None
) -> tuple[NodeShortage, ...]:
    """Returns the nodes of *view* that are closest to serving *pod*, at most *count*, nearest first."""
    return tuple([_node_shortage(pod, node) for node in dry_run.closest(view, refusal, count)])


def _node_shortage(pod: Pod, refusal: NodeRefusal) -> NodeShortage:
    return NodeShortage(
        refusal.node,
        str(refusal.unfit),
        pod.containers[refusal.container].name,
        tuple(map(_device_shortage, refusal.closest_devices)),
    )


def _device_shortage(refusal: DeviceRefusal) -> DeviceShortage:
    device, short = refusal.device, refusal.short
    return DeviceShortage(
        index=device.index,
        uuid=device.uuid,
        model=device.model,
        free=_free_text(refusal),
        short_mib=short.memory_mib,
        short_cores=short.cores,
        short_slots=short.slots,
        reason=str(refusal.reason or ""),
    )


def _free_text(refusal: DeviceRefusal) -> str:
    free, total = refusal.free, refusal.total
    texts = [f"{max(free.cores, 0)}/{total.cores} cores"]
    if total.memory_mib:
        texts.insert(0, f"{max(free.memory_mib, 0)}/{total.memory_mib} MiB")
    return f"{', '.join(texts)}, {max(free.slots, 0)}/{total.slots} slots free"


def requested_devices(cluster: InspectedCluster, pod: Pod | None) -> tuple[RequestedDevices, ...]:
    """Returns what each container of *pod* asks for; nothing of a pod whose object is not known."""
    requested: list[RequestedDevices] = []
    for container in pod.containers if pod is not None else ():
        texts: list[str] = []
        for request in device_requests(cluster.vendors, container):
            texts.append(request_text(request, cluster.vendors[request.vendor]))
        if texts:
            requested.append(RequestedDevices(container.name, tuple(texts)))
    return tuple(requested)


def by_frequency(reasons: Mapping[R, Sequence[str]]) -> Iterator[tuple[str, R]]:
    """Yields how many nodes have each of *reasons*, in words, and the reason, the most frequent first."""
    for reason, nodes in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        yield counted(len(nodes), "node"), reason


def node_lines(node: NodeShortage, count: int) -> Iterator[str]:
    """Yields *node* and its *count* nearest devices, each in a line, and the number of the others."""
    yield f"  {node.node}  {node.reasons} (container {node.container})"
    for device in node.cards[:count]:
        yield f"    card {device.index}  {device.free}{lacks(device)}"
    if count < len(node.cards):
        yield f"    and {len(node.cards) - count} more"


def lacks(device: DeviceShortage) -> str:
    """Returns what *device* lacks, to be added to what is free of it."""
    if not device.reason:
        return "; would serve"
    amounts = []
    for short, unit in (
        (device.short_mib, "MiB"),
        (device.short_cores, "cores"),
        (device.short_slots, "slot"),
    ):
        if short:
            amounts.append(f"{short:,} {unit}")
    if not amounts:
        return f"; {device.model} ({device.reason})"
    return f"; lacks {', '.join(amounts)} ({device.reason})"


def request_lines(
    containers: Sequence[RequestedDevices], annotations: Mapping[str, str] = MappingProxyType({})
) -> Iterator[str]:
    """Yields what each container requests, then *annotations*, each in a line."""
    for container in containers:
        yield f"  {container.container} asks for {'; '.join(container.requests)}"
    for key, text in annotations.items():
        yield f"  {key}: {text}"
