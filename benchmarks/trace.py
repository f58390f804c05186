"""Rows about how much of a cluster is allocated, and how long pods wait, by node policy, on a published trace.

The nodes and pods are the trace's (`benchmarks.traces`). Pods with GPUs are placed by the core of the scheduler: the
same table, verdicts, rooms and workload, without HTTP and API server. Others are placed as kube-scheduler does by
default. Names of nodes are shuffled, so that no policy is helped by their order.
"""

from __future__ import annotations

import heapq
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy
from numpy.typing import NDArray

from benchmarks.processes import Run
from benchmarks.rows import Row, remarks
from benchmarks.traces import (
    Arrival,
    TraceNode,
    TracePod,
    arrivals,
    missing,
    part_of,
    trace_nodes,
    trace_pods,
    until_requested,
)
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

__all__ = ["SEEDS", "trace_rows"]

Array = NDArray[Any]

GROUP = "trace"
SEEDS = (42, 43)
ARRIVED = 1.3
"""The part of all GPUs that the pods of a fill-up request."""
MEMORY_MIB = 100_000
"""Of each GPU: that of the trace is not known, and pods request as much of it as of the cores."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A node policy with a device policy."""

    node: NodePolicy
    devices: str

    def __str__(self) -> str:
        return f"{self.node.value} + {self.devices}"


HAMI = Policy(NodePolicy.BINPACK, "spread")
LEAST_WASTE = Policy(NodePolicy.LEAST_WASTE, "binpack")

TARGETS = {
    "cpu0": 95.4,
    "default": 93.0,
    "cpu050": 95.0,
    "cpu100": 94.0,
    "cpu200": 86.0,
    "cpu250": 81.0,
    "gpushare40": 92.8,
    "gpushare60": 90.5,
    "gpushare80": 88.5,
    "gpushare100": 86.4,
    "gpuspec10": 93.5,
    "gpuspec20": 93.0,
    "gpuspec25": 93.5,
    "gpuspec33": 94.0,
    "multigpu20": 91.0,
    "multigpu30": 91.3,
    "multigpu40": 92.5,
    "multigpu50": 93.5,
}
"""The percent of all GPUs that are allocated when 130 % have been requested, at least."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Pods that come and end. *load*: the part of all GPUs that they request on average. *most*: the mean wait at most,
    in thousandths of a mean duration; ``None``: not longer than with HAMi's policies."""

    name: str
    load: float
    most: float | None


WAITS = (
    Waits("cpu0", 0.95, 8.0),
    Waits("multigpu50", 0.85, 10.0),
    Waits("default", 1.0, 55.0),
    Waits("default", 0.9, None),
)
PART, FROM, UNTIL = 0.25, 3.0, 9.0
"""Of the nodes, for pods that come and end; the time from which their waits count, and that of the end."""


class Cluster:
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
            limits = {
                "nvidia.com/gpu": asked.gpus,
                "nvidia.com/gpucores": asked.cores,
                "nvidia.com/gpumem-percentage": asked.cores,
            }
            annotations = {}
            if asked.models:
                annotations["nvidia.com/use-gputype"] = ",".join(asked.models)
            self._requests[asked] = pod_request(
                container(limits), annotations=annotations, policy=self._policy.devices
            )
        return self._requests[asked]

    def _kube(self, asked: TracePod, fits: Array) -> int:
        """Chooses the node of a pod without GPUs as kube-scheduler does by default, among equals at random."""
        amounts = numpy.array([self._all_cpu, self._all_memory])
        free = numpy.array([self._cpu, self._memory])
        best = best_nodes(amounts, amounts - free, (asked.milli_cpu, asked.memory_mib), fits)
        return int(best[self._rng.randrange(len(best))])


@dataclass(slots=True)
class Filled:
    """The percent of all GPUs that are allocated when 100 % and when ARRIVED have been requested."""

    at_100: float = 0.0
    at_end: float = 0.0
    microseconds: float = 0.0


def fill_up(name: str, policy: Policy, seed: int) -> Filled:
    """Fills the cluster of the trace with pods of a list, of which none ends."""
    nodes = trace_nodes()
    cluster = Cluster(nodes, policy, seed)
    work = until_requested(trace_pods(name), ARRIVED * cluster.gpus, random.Random(seed))
    filled, requested = Filled(), 0.0
    for number, asked in enumerate(work):
        requested += asked.size
        cluster.place(f"p{number}", asked)
        if not filled.at_100 and requested >= cluster.gpus:
            filled.at_100 = 100 * cluster.given / cluster.gpus
    filled.at_end = 100 * cluster.given / cluster.gpus
    filled.microseconds = 1e6 * statistics.median(cluster.seconds)
    return filled


def mean_wait(name: str, load: float, policy: Policy, seed: int) -> float:
    """Returns the mean wait of pods with GPUs that come after FROM, in thousandths of a mean duration.

    When a pod has ended, those that wait are tried again in the order of arrival: before that, none fits anywhere.
    """
    cluster = Cluster(part_of(trace_nodes(), PART), policy, seed)
    work = list(arrivals(trace_pods(name), load * cluster.gpus, UNTIL, random.Random(seed)))
    waits: list[float] = []
    waiting: dict[int, Arrival] = {}
    ends: list[tuple[float, int, int]] = []

    def start(number: int, at: float, among: Sequence[int] | None = None) -> bool:
        arrival = work[number]
        place = cluster.place(f"p{number}", arrival.pod, among)
        if place is None:
            return False
        heapq.heappush(ends, (at + arrival.duration, number, place))
        if arrival.pod.gpus and arrival.at >= FROM:
            waits.append(at - arrival.at)
        return True

    def end_until(at: float) -> None:
        while ends and ends[0][0] <= at:
            now, number, place = heapq.heappop(ends)
            cluster.end(f"p{number}", work[number].pod, place)
            for other in list(waiting):
                if start(other, now, [place]):
                    del waiting[other]

    for number, arrival in enumerate(work):
        end_until(arrival.at)
        if not start(number, arrival.at):
            waiting[number] = arrival
    end_until(UNTIL)
    for arrival in waiting.values():
        if arrival.pod.gpus and arrival.at >= FROM:
            waits.append(UNTIL - arrival.at)
    return 1000 * statistics.mean(waits)


def trace_rows(run: Run, names: Sequence[str], seeds: Sequence[int]) -> Iterator[Row]:
    """Yields a row for each of the lists *names*, and for pods that come and end."""
    if reason := missing():
        yield Row(group=GROUP, what="a published cluster", measured=f"not measured: {reason}")
        return
    for name in names:
        run.say(f"pods of the list {name}")
        ours = [fill_up(name, LEAST_WASTE, seed) for seed in seeds]
        theirs = [fill_up(name, HAMI, seed) for seed in seeds]
        given = statistics.mean(one.at_end for one in ours)
        yield Row(
            group=GROUP,
            what=f"GPUs allocated, 130 % requested, list {name}",
            measured=f"{given:.1f} %",
            target=f"{TARGETS[name]} %",
            met=given >= TARGETS[name],
            compared=remarks(
                f"{HAMI}: {statistics.mean(one.at_end for one in theirs):.1f} %",
                f"{len(seeds)} seeds",
                f"a decision {statistics.mean(one.microseconds for one in ours):.0f} against "
                f"{statistics.mean(one.microseconds for one in theirs):.0f} µs",
            ),
            figures={
                "at_130": [one.at_end for one in ours],
                "at_100": [one.at_100 for one in ours],
                "hami_at_130": [one.at_end for one in theirs],
            },
        )
    for case in WAITS:
        if case.name not in names:
            continue
        run.say(f"pods of the list {case.name} that come and end, at a load of {case.load}")
        ours = [mean_wait(case.name, case.load, LEAST_WASTE, seed) for seed in seeds]
        theirs = [mean_wait(case.name, case.load, HAMI, seed) for seed in seeds]
        wait, other = statistics.mean(ours), statistics.mean(theirs)
        most = other if case.most is None else case.most
        yield Row(
            group=GROUP,
            what=f"mean wait, list {case.name}, {case.load:.0%} requested at a time",
            measured=f"{wait:.1f} thousandths of a duration",
            target=f"{most:.1f}",
            met=wait <= most,
            compared=remarks(f"{HAMI}: {other:.1f}", f"{len(seeds)} seeds"),
            figures={"waits": ours, "hami_waits": theirs},
        )
