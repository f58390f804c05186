"""The nodes of a published trace (`testing.traces`), on which the core of the scheduler places pods: its table,
verdicts, rooms and workload, without HTTP and API server. Others are placed as kube-scheduler does by default.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy
from numpy.typing import NDArray

from hami.inspect.traces import MEMORY_MIB, TraceNode, TracePod, annotations_of, limits_of
from hami.model import NodePolicy
from hami.scheduling.node_order import NodeOrder
from hami.scheduling.node_resources import NodeResources
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.usual_pods import usual_pod
from hami.state.bookings import booking_of
from hami.state.rooms import Rooms
from hami.state.table import Table
from hami.state.verdicts import Verdicts
from hami.state.workload import Workload
from testing.builders import container, gpu, pod, pod_request
from testing.kube_scores import best_nodes

__all__ = [
    "HAMI",
    "LEAST_WASTE",
    "MEMORY_MIB",
    "Policy",
    "TraceCluster",
    "annotations_of",
    "limits_of",
]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Policy:
    """A node policy with a device policy."""

    node: NodePolicy
    devices: str

    def __str__(self) -> str:
        return f"{self.node.value} + {self.devices}"


HAMI = Policy(NodePolicy.BINPACK, "spread")
LEAST_WASTE = Policy(NodePolicy.LEAST_WASTE, "binpack")


class TraceCluster:
    """The nodes of the trace under one policy. Its pods with GPUs are placed by the scheduler's core."""

    def __init__(self, nodes: Sequence[TraceNode], policy: Policy, seed: int) -> None:
        self._policy = policy
        self._rng = random.Random(seed * 7919 + 13)
        self._names = [f"node-{number:04}" for number in range(len(nodes))]
        self._rng.shuffle(self._names)
        self._places = {name: place for place, name in enumerate(self._names)}
        self._table = Table()
        for name, node in zip(self._names, nodes):
            devices = []
            for index in range(node.gpus):
                uuid = f"{name}-{index}"
                devices.append(gpu(uuid, index=index, model=node.model, memory_mib=MEMORY_MIB))
            self._table.set_devices(name, "NVIDIA", tuple(devices))
        self._rooms = Rooms(self._table)
        self._verdicts = Verdicts(self._table, self._rooms)
        self._workload = Workload()
        self._cpu, self._all_cpu = (numpy.array([node.milli_cpu for node in nodes]) for _ in "ab")
        self._memory, self._all_memory = (
            numpy.array([node.memory_mib for node in nodes]) for _ in "ab"
        )
        self._requests: dict[TracePod, PodRequest] = {}
        self._others = numpy.zeros(len(nodes), dtype=numpy.int64)  # CPU of pods without GPUs
        for name in self._names:
            self._leave(self._places[name])
        self.gpus = float(sum(node.gpus for node in nodes))
        self.given = 0.0
        self.seconds: list[float] = []

    def place(self, uid: str, asked: TracePod, among: Sequence[int] | None = None) -> int | None:
        """Places the pod, on one of the nodes *among* if that is given. Returns its node; ``None`` if none has room."""
        fits = (self._cpu >= asked.milli_cpu) & (self._memory >= asked.memory_mib)
        if among is not None:
            mask = numpy.zeros(len(fits), dtype=bool)
            mask[list(among)] = True
            fits &= mask
        if not fits.any():
            return None
        place = self._choose(uid, asked, fits) if asked.gpus else self._kube(asked, fits)
        if place is not None:
            self._take(place, asked, 1)
        return place

    def end(self, uid: str, asked: TracePod, place: int) -> None:
        """Ends the pod, which is on that node."""
        self._table.bookings.pop(uid)
        self._take(place, asked, -1)
        if asked.gpus:
            self._workload.end(1)

    def _take(self, place: int, asked: TracePod, sign: int) -> None:
        self._cpu[place] -= sign * asked.milli_cpu
        self._memory[place] -= sign * asked.memory_mib
        self.given += sign * asked.size
        if not asked.gpus:
            self._others[place] += sign * asked.milli_cpu
            self._leave(place)

    def _leave(self, place: int) -> None:
        """Tells the table what pods without GPUs leave of a node."""
        left = int(self._all_cpu[place] - self._others[place])
        self._table.set_left(self._names[place], NodeResources(left))

    def _choose(self, uid: str, asked: TracePod, fits: Array) -> int | None:
        request = self._request(asked)
        resources = NodeResources(asked.milli_cpu, asked.memory_mib)
        offered = [self._names[place] for place in numpy.flatnonzero(fits).tolist()]
        began = time.thread_time()
        order = NodeOrder(self._policy.node, resources=resources)
        choice = self._verdicts.choose(request, self._verdicts.rows(offered), order)
        self.seconds.append(time.thread_time() - began)
        if choice is None:
            return None
        booking = booking_of(pod(name=uid, uid=uid), request, choice)
        self._table.bookings.put(msgspec.structs.replace(booking, resources=resources))
        self._learn(uid, request, resources)
        return self._places[choice.node]

    def _learn(self, uid: str, request: PodRequest, resources: NodeResources) -> None:
        kind = usual_pod(request, resources)
        assert kind is not None, "NVIDIA has no scores of its own"
        self._workload.add(uid, "trace", kind)
        self._rooms.follow(self._workload)

    def _request(self, asked: TracePod) -> PodRequest:
        if asked not in self._requests:
            self._requests[asked] = pod_request(
                container(limits_of(asked)),
                annotations=annotations_of(asked),
                policy=self._policy.devices,
            )
        return self._requests[asked]

    def _kube(self, asked: TracePod, fits: Array) -> int:
        """Chooses the node of a pod without GPUs as kube-scheduler does by default, among equals at random."""
        amounts = numpy.array([self._all_cpu, self._all_memory])
        free = numpy.array([self._cpu, self._memory])
        best = best_nodes(amounts, amounts - free, (asked.milli_cpu, asked.memory_mib), fits)
        return int(best[self._rng.randrange(len(best))])
