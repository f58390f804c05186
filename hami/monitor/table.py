"""The usage of containers, for a person on the node: as a table or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from hami.monitor.loop import NodeReport
from hami.monitor.usage import ContainerReport, DeviceUsageReport
from hami.quantity import MIB

_HEADER = (
    "NODE",
    "CARD",
    "MEMORY",
    "LIMIT",
    "COMPUTE",
    "LIMIT",
    "STATE",
    "NAMESPACE",
    "POD",
    "CONTAINER",
)


def render_table(report: NodeReport) -> str:
    """Returns a line for each device of each container, below a header. Memory in MiB, compute in percent."""
    rows: list[Sequence[str]] = [_HEADER]
    for entry, usage in _devices(report):
        rows.append(_row(report.node, entry, usage))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        line = "  ".join(text.ljust(width) for text, width in zip(row, widths))
        lines.append(f"{line.rstrip()}\n")
    return "".join(lines)


def render_json(report: NodeReport) -> str:
    """Returns the cards and the containers of the node as JSON. Bytes, percent, seconds; null if unknown."""
    document = {
        "node": report.node,
        "driver": report.cards is not None,
        "cards": [
            {
                "uuid": card.uuid,
                "index": card.index,
                "model": card.model,
                "memory": card.memory,
                "memoryUsed": card.memory_used,
                "utilization": card.utilization,
            }
            for card in report.cards or ()
        ],
        "devices": [_entry(entry, usage) for entry, usage in _devices(report)],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _devices(report: NodeReport) -> Iterator[tuple[ContainerReport, DeviceUsageReport]]:
    for entry in report.containers or ():
        for usage in entry.devices:
            yield entry, usage


def _row(node: str, report: ContainerReport, usage: DeviceUsageReport) -> Sequence[str]:
    container, device = report.container, usage.device
    return (
        node,
        device.uuid,
        f"{usage.used // MIB}",
        f"{device.memory // MIB}",
        f"{usage.utilization}%",
        f"{device.cores or 100}%",
        _state(report, usage),
        container.pod.namespace,
        container.pod.name,
        container.name,
    )


def _state(report: ContainerReport, usage: DeviceUsageReport) -> str:
    region = report.reading.region
    if report.container.has_ended:
        return "ended"
    if region is not None and region.recent_kernel < 0:
        return "blocked"
    if usage.is_over_limit:
        return "over limit"
    return "ok"


def _entry(report: ContainerReport, usage: DeviceUsageReport) -> dict[str, Any]:
    container, device = report.container, usage.device
    return {
        "namespace": container.pod.namespace,
        "pod": container.pod.name,
        "container": container.name,
        "card": device.card,
        "device": device.uuid,
        "index": device.index,
        "memoryUsed": usage.used,
        "memoryLimit": device.memory,
        "memorySource": usage.memory_source,
        "hostMemory": usage.host_memory,
        "countedMemory": usage.counted,
        "utilization": usage.utilization,
        "coreLimit": device.cores,
        "utilizationSource": usage.utilization_source,
        "priority": container.priority,
        "state": _state(report, usage),
        "lastKernelSeconds": report.last_kernel_s,
        "throttledSeconds": usage.throttled,
        "region": {"state": report.reading.state, "version": report.reading.version or None},
    }
