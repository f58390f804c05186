"""Refusals as people see them: what a pod asks for and why nodes and their devices do not serve it, as records and as
lines. Explain, simulate and the dashboard say it with these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from hami.inspect.cluster import InspectedCluster
from hami.inspect.tables import OutputRecord, gib
from hami.model import Pod, Reason, Request, Unfit
from hami.plurals import counted
from hami.scheduling.refusal import DeviceRefusal, NodeRefusal, Refusal
from hami.scheduling.refusal_text import device_clause, request_text, shortage_text
from hami.scheduling.usage import Amounts
from hami.state import dry_run
from hami.state.view import View
from hami.vendors.request import device_requests
from hami.vendors.spec import Vendor

R = TypeVar("R", bound=str)

NEAREST_DEVICES = 2  # of a node in a line
AWAITS_SCHEDULER = (
    "It waits for kube-scheduler, which also looks at CPU, memory, taints, affinity and volumes."
)
"""The sentence about a pod that fits."""


class ReportPart(OutputRecord, frozen=True, omit_defaults=True):
    """A part of a report. Memory is in MiB."""


class RequestedAmounts(ReportPart, frozen=True):
    """A request for *count* devices of a vendor, and for amounts of each. *cores*: percent of a device, or their
    number where the vendor counts cores. What is not requested is left out. *text*: all of it in words."""

    vendor: str
    count: int
    text: str
    memory_mib: int = 0
    memory_percent: int = 0
    cores: int = 0
    slices: int = 0


class RequestedDevices(ReportPart, frozen=True):
    """The requests of one container."""

    container: str
    devices: tuple[RequestedAmounts, ...]

    @property
    def texts(self) -> list[str]:
        """The requests in words."""
        return [request.text for request in self.devices]


class DeviceShortage(OutputRecord, frozen=True):
    """A device: its total, free and missing amounts. *reason*: the first rule that it fails, empty if it has enough.
    *too_small*: it has less than is requested even if nothing else uses it."""

    index: int
    uuid: str
    model: str
    memory_mib: int
    memory_free_mib: int
    cores: int
    cores_free: int
    slots: int
    slots_free: int
    short_mib: int = 0
    short_cores: int = 0
    short_slots: int = 0
    reason: str = ""
    too_small: bool = False

    @property
    def short(self) -> Amounts:
        """The missing amounts."""
        return Amounts(self.short_mib, self.short_cores, self.short_slots)

    @property
    def free_text(self) -> str:
        """The free amounts: ``8.8 of 15.6 GiB, 70/100 cores, 8/10 slots free``."""
        texts = [f"{self.cores_free}/{self.cores} cores", f"{self.slots_free}/{self.slots} slots"]
        if self.memory_mib:
            texts.insert(0, f"{gib(self.memory_free_mib)} of {gib(self.memory_mib)} GiB")
        return f"{', '.join(texts)} free"


class NodeShortage(OutputRecord, frozen=True):
    """A node that does not fit. *container*: the first that does not fit. *reasons*: how many of its *devices* each
    excludes. *cards*: nearest first."""

    node: str
    devices: int
    reasons: dict[str, int]
    container: str
    cards: tuple[DeviceShortage, ...]

    @property
    def reason_text(self) -> str:
        """The reasons as kube-scheduler shows them: ``1/4 CardInsufficientMemory, 3/4 CardNotHealth``."""
        reasons = tuple((Reason(name), count) for name, count in self.reasons.items())
        return str(Unfit(reasons, self.devices))


def nearest_nodes(
    view: View, pod: Pod, refusal: Refusal, count: int | None = None
) -> tuple[NodeShortage, ...]:
    """Returns the nodes of *view* that are closest to serving *pod*, at most *count*, nearest first."""
    return tuple([_node_shortage(pod, node) for node in dry_run.closest(view, refusal, count)])


def _node_shortage(pod: Pod, refusal: NodeRefusal) -> NodeShortage:
    return NodeShortage(
        refusal.node,
        refusal.unfit.devices,
        {str(reason): count for reason, count in refusal.unfit.reasons},
        pod.containers[refusal.container].name,
        tuple(map(_device_shortage, refusal.closest_devices)),
    )


def _device_shortage(refusal: DeviceRefusal) -> DeviceShortage:
    device, short, total = refusal.device, refusal.short, refusal.total
    free = Amounts(*[max(0, amount) for amount in refusal.free])
    return DeviceShortage(
        index=device.index,
        uuid=device.uuid,
        model=device.model,
        memory_mib=total.memory_mib,
        memory_free_mib=free.memory_mib,
        cores=total.cores,
        cores_free=free.cores,
        slots=total.slots,
        slots_free=free.slots,
        short_mib=short.memory_mib,
        short_cores=short.cores,
        short_slots=short.slots,
        reason=str(refusal.reason or ""),
        too_small=refusal.requested.memory_mib > total.memory_mib,
    )


def requested_devices(cluster: InspectedCluster, pod: Pod | None) -> tuple[RequestedDevices, ...]:
    """Returns what each container of *pod* asks for; nothing of a pod whose object is not known."""
    requested: list[RequestedDevices] = []
    for container in pod.containers if pod is not None else ():
        devices: list[RequestedAmounts] = []
        for request in device_requests(cluster.vendors, container):
            devices.append(_requested_amounts(request, cluster.vendors[request.vendor]))
        if devices:
            requested.append(RequestedDevices(container.name, tuple(devices)))
    return tuple(requested)


def request_texts(containers: Sequence[RequestedDevices]) -> list[str]:
    """Returns what *containers* ask for, in words."""
    texts: list[str] = []
    for container in containers:
        texts += container.texts
    return texts


def _requested_amounts(request: Request, vendor: Vendor) -> RequestedAmounts:
    memory_mib = memory_percent = 0
    if vendor.resources.has_memory:
        memory_mib = request.memory_mib
        memory_percent = request.memory_percent or 0
    return RequestedAmounts(
        vendor=request.vendor,
        count=request.count,
        text=request_text(request, vendor),
        memory_mib=memory_mib,
        memory_percent=memory_percent,
        cores=request.cores,
        slices=request.slices,
    )


def by_frequency(reasons: Mapping[R, Sequence[str]]) -> Iterator[tuple[str, R]]:
    """Yields how many nodes have each of *reasons*, in words, and the reason, the most frequent first."""
    for reason, nodes in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        yield counted(len(nodes), "node"), reason


def node_lines(node: NodeShortage, count: int) -> Iterator[str]:
    """Yields *node* and its *count* nearest devices, each in a line, and the number of the others."""
    yield f"  {node.node}  {node.reason_text} (container {node.container})"
    for device in node.cards[:count]:
        text = f"    card {device.index}  {device.free_text}; {lacks(device)}"
        if device.reason:
            text += f" ({device.reason})"
        yield text
    if count < len(node.cards):
        yield f"    and {len(node.cards) - count} more"


def nearest_lines(nodes: Sequence[NodeShortage]) -> Iterator[str]:
    """Yields each of *nodes* with its nearest devices, in a line."""
    for node in nodes:
        texts: list[str] = []
        for device in node.cards[:NEAREST_DEVICES]:
            texts.append(f"card {device.index} {lacks(device)}")
        more = len(node.cards) - len(texts)
        if more:
            texts.append(f"and {more} more")
        yield f"  {node.node}: {', '.join(texts) or node.reason_text}"


def lacks(device: DeviceShortage) -> str:
    """Returns what *device* lacks, or why the pod cannot use it."""
    if not device.reason:
        return "has enough"
    if any(device.short):
        return f"lacks {shortage_text(device.short)}"
    return device_clause(Reason(device.reason), 1)


def request_lines(
    containers: Sequence[RequestedDevices], annotations: Mapping[str, str] = MappingProxyType({})
) -> Iterator[str]:
    """Yields what each container requests, then *annotations*, each in a line."""
    for container in containers:
        yield f"  {container.container} asks for {'; '.join(container.texts)}"
    for key, text in annotations.items():
        yield f"  {key}: {text}"
