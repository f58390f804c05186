"""A published form of traces: two CSV files, of nodes and of pods, as those of a cluster with 6,212 GPUs.

The files are those of the paper "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent" (USENIX ATC'23), github.com/hkust-adsl/kubernetes-scheduler-simulator, folder data/csv. The memory of GPUs is
not known, and pods request as much of it as of the cores.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hami.errors import HamiError
from hami.inspect.cluster import catalog_of
from hami.inspect.read_recording import (
    Life,
    NodeSeen,
    PodBound,
    PodCame,
    PodGone,
    Recording,
    ReplayEvent,
)
from hami.model import Container, Device, Pod, PodRef
from hami.quantity import INT32_MAX
from hami.scheduling.node_resources import NodeResources
from hami.state.view import Policies

__all__ = [
    "MEMORY_MIB",
    "NODE_LIST",
    "TraceNode",
    "TracePod",
    "annotations_of",
    "limits_of",
    "read_nodes",
    "read_pods",
    "read_trace",
]

MEMORY_MIB = 100_000
"""Of each GPU."""
NODE_LIST = "openb_node_list_gpu_node.csv"
"""The list of nodes, beside that of pods."""
MAX_BYTES = 256 << 20
VENDOR = "NVIDIA"
MAX_GPUS = 64  # of a node


@dataclass(frozen=True, slots=True)
class TraceNode:
    """A node. Its GPUs have all one *model*; their memory is not known."""

    milli_cpu: int
    memory_mib: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True)
class TracePod:
    """A pod. *cores*: percent of each of its GPUs. *models*: those that it accepts; empty for all."""

    milli_cpu: int
    memory_mib: int
    gpus: int
    cores: int
    models: tuple[str, ...] = ()

    @property
    def size(self) -> float:
        """The part of the cluster that it requests, in GPUs."""
        return self.gpus * self.cores / 100


@dataclass(frozen=True, slots=True)
class _Times:
    """Of a pod, in seconds; ``None`` if it was not placed, or has not ended."""

    created: float
    bound: float | None
    ended: float | None


class _Row:
    """A line of a file. *place*: for errors."""

    def __init__(self, values: Mapping[str, str], place: str) -> None:
        self._values = values
        self._place = place

    def text(self, field: str) -> str:
        """Returns the text of a field; empty if there is none."""
        return self._values.get(field) or ""

    def number(self, field: str, most: int = INT32_MAX) -> int:
        """Returns a number from 0 to *most*; 0 for an empty text. Raises: HamiError."""
        text = self.text(field)
        if not text:
            return 0
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= most):
            raise HamiError(
                f"{self._place}: {field}: {text[:50]!r}, expected a number up to {most}"
            )
        return int(text)


def read_nodes(path: Path) -> list[TraceNode]:
    """Returns the nodes of a list. Raises: HamiError, which names line and field; OSError."""
    nodes: list[TraceNode] = []
    for row in _rows(path):
        nodes.append(
            TraceNode(
                row.number("cpu_milli"),
                row.number("memory_mib"),
                row.number("gpu", MAX_GPUS),
                row.text("model"),
            )
        )
    return nodes


def read_pods(path: Path) -> list[TracePod]:
    """Returns the pods of a list. Raises: HamiError, which names line and field; OSError."""
    return [_pod_of(row) for row in _rows(path)]


def read_trace(path: Path) -> Recording:
    """Returns the recording of the pods in the list at *path*; that of nodes is beside it. Pods without GPUs are left
    out. Raises: HamiError, which names line and field; OSError."""
    events: list[ReplayEvent] = []
    templates: dict[TracePod, Pod] = {}
    pods = without = 0
    for row in _rows(path):
        traced = _pod_of(row)
        if not traced.gpus:
            without += 1
            continue
        if traced not in templates:
            templates[traced] = _template(traced)
        pods += 1
        ref = PodRef("trace", f"pod-{pods}", f"pod-{pods}")
        events += _events_of(templates[traced], ref, pods, _times_of(row))
    events.sort(key=lambda event: event.at)
    start = events[0].at if events else 0.0
    notes = ["the trace does not say where pods were placed"]
    if without:
        notes.append(f"{without:,} pods without GPUs are left out")
    return Recording(
        catalog_of(""),
        Policies("least-waste", "binpack"),
        [*_node_events(read_nodes(path.parent / NODE_LIST), start), *events],
        pods,
        has_places=False,
        notes=notes,
    )


def limits_of(asked: TracePod) -> dict[str, int]:
    """Returns the limits of a pod with GPUs."""
    return {
        "nvidia.com/gpu": asked.gpus,
        "nvidia.com/gpucores": asked.cores,
        "nvidia.com/gpumem-percentage": asked.cores,
    }


def annotations_of(asked: TracePod) -> Mapping[str, str]:
    """Returns the annotations of a pod with GPUs: the models that it accepts."""
    return {"nvidia.com/use-gputype": ",".join(asked.models)} if asked.models else {}


def _pod_of(row: _Row) -> TracePod:
    gpus = row.number("num_gpu", MAX_GPUS)
    return TracePod(
        milli_cpu=row.number("cpu_milli"),
        memory_mib=row.number("memory_mib"),
        gpus=gpus,
        cores=row.number("gpu_milli", 1000) // 10 if gpus else 0,
        models=tuple(filter(None, row.text("gpu_spec").split("|"))),
    )


def _times_of(row: _Row) -> _Times:
    bound = ended = None
    if row.text("scheduled_time"):
        bound = float(row.number("scheduled_time"))
    if row.text("deletion_time"):
        ended = float(row.number("deletion_time"))
    return _Times(float(row.number("creation_time")), bound, ended)


def _template(traced: TracePod) -> Pod:
    container = Container(
        name="c0",
        limits={key: str(amount) for key, amount in limits_of(traced).items()},
        requests={"cpu": f"{traced.milli_cpu}m", "memory": f"{traced.memory_mib}Mi"},
    )
    return Pod(ref=PodRef("", "", ""), containers=(container,), annotations=annotations_of(traced))


def _events_of(template: Pod, ref: PodRef, number: int, times: _Times) -> Iterator[ReplayEvent]:
    life = Life(
        replace(template, ref=ref), number, times.created, bound=times.bound, ended=times.ended
    )
    yield PodCame(times.created, life)
    if times.bound is not None:
        yield PodBound(max(times.created, times.bound), life, "", (), is_first=True)
    if times.ended is not None:
        yield PodGone(max(times.created, times.bound or 0.0, times.ended), life)


def _node_events(nodes: list[TraceNode], at: float) -> Iterator[NodeSeen]:
    """Yields the nodes under the names that they have in the list."""
    width = len(str(len(nodes)))
    for number, node in enumerate(nodes, start=1):
        name = f"node-{number:0{width}}"
        devices: list[Device] = []
        for index in range(node.gpus):
            devices.append(
                Device(
                    uuid=f"{name}-{index}",
                    vendor=VENDOR,
                    model=node.model,
                    slots=10,
                    memory_mib=MEMORY_MIB,
                    index=index,
                )
            )
        left = NodeResources(node.milli_cpu, node.memory_mib)
        yield NodeSeen(at, name, tuple(devices), {}, left)


def _rows(path: Path) -> Iterator[_Row]:
    if path.stat().st_size > MAX_BYTES:
        raise HamiError(f"{path}: larger than {MAX_BYTES >> 20:,} MiB")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for number, values in enumerate(csv.DictReader(file), start=2):
                yield _Row(values, f"{path}: line {number}")
    except (csv.Error, UnicodeDecodeError) as error:
        raise HamiError(f"{path}: not a list of a trace: {error}") from error
