"""Rows about how much of a cluster is allocated, and how long pods wait, by node policy, on a published trace.

The nodes and pods are the trace's (`testing.traces`), and `testing.trace_cluster` says who places them. Names of nodes
are shuffled, so that no policy is helped by their order.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from benchmarks.processes import Run
from benchmarks.rows import Row, remarks
from testing.trace_cluster import HAMI, LEAST_WASTE, Policy, TraceCluster
from testing.traces import (
    Arrival,
    TracePod,
    arrivals,
    missing,
    part_of,
    trace_nodes,
    trace_pods,
    until_requested,
)

__all__ = ["SEEDS", "trace_rows"]

Array = NDArray[Any]

GROUP = "trace"
SEEDS = (42, 43)
ARRIVED = 1.3
"""The part of all GPUs that the pods of a fill-up request."""
STEP = 5
"""Percent of all GPUs."""
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
    as a part of that with HAMi's policies and the same seeds: how much comes by chance decides most of it. With 1, the
    wait may be longer by the interval of confidence."""

    name: str
    load: float
    most: float


WAITS = (
    Waits("cpu0", 0.95, 0.72),
    Waits("multigpu50", 0.85, 0.35),
    Waits("default", 1.0, 0.94),
    Waits("default", 0.9, 1.0),
)
CONFIDENCE = 1.96
"""Standard errors of a mean on each side of it, between which it lies with 95 %."""
PART, FROM, UNTIL = 0.25, 3.0, 9.0
"""Of the nodes, for pods that come and end; the time from which their waits count, and that of the end."""


@dataclass(slots=True)
class Filled:
    """*allocated*: the percent of all GPUs that are allocated, by the percent that have been requested, each STEP."""

    allocated: dict[int, float]
    microseconds: float

    @property
    def at_end(self) -> float:
        """The percent that are allocated when all pods have come."""
        return self.allocated[max(self.allocated)]


def fill_up(name: str, policy: Policy, seed: int) -> Filled:
    """Fills the cluster of the trace with pods of a list, of which none ends."""
    nodes = trace_nodes()
    cluster = TraceCluster(nodes, policy, seed)
    work = until_requested(trace_pods(name), ARRIVED * cluster.gpus, random.Random(seed))
    allocated: dict[int, float] = {}
    requested = 0.0
    for number, asked in enumerate(work):
        requested += asked.size
        cluster.place(f"p{number}", asked)
        mark = STEP * len(allocated)
        if 100 * requested >= mark * cluster.gpus:
            allocated[mark] = 100 * cluster.given / cluster.gpus
    allocated[round(100 * ARRIVED)] = 100 * cluster.given / cluster.gpus
    return Filled(allocated, 1e6 * statistics.median(cluster.seconds))


def mean_allocated(runs: Sequence[Filled]) -> dict[int, float]:
    """Returns the mean of *runs*, by the percent that have been requested."""
    marks = runs[0].allocated
    return {mark: statistics.mean(run.allocated[mark] for run in runs) for mark in marks}


def mean_wait(name: str, load: float, policy: Policy, seed: int) -> float:
    """Returns the mean wait of pods with GPUs that come after FROM, in thousandths of a mean duration.

    When a pod has ended, those that wait are tried again in the order of arrival: before that, none fits anywhere. Of
    equal pods, only the first is tried that finds no room: those before them leave the others no more.
    """
    cluster = TraceCluster(part_of(trace_nodes(), PART), policy, seed)
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
            without_room: set[TracePod] = set()
            for other in list(waiting):
                pod = work[other].pod
                if pod in without_room:
                    continue
                if start(other, now, [place]):
                    del waiting[other]
                else:
                    without_room.add(pod)

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
                "list": name,
                "at_130": [one.at_end for one in ours],
                "at_100": [one.allocated[100] for one in ours],
                "hami_at_130": [one.at_end for one in theirs],
                "allocated": mean_allocated(ours),
                "hami_allocated": mean_allocated(theirs),
            },
        )
    for case in WAITS:
        if case.name not in names:
            continue
        run.say(f"pods of the list {case.name} that come and end, at a load of {case.load}")
        ours = [mean_wait(case.name, case.load, LEAST_WASTE, seed) for seed in seeds]
        theirs = [mean_wait(case.name, case.load, HAMI, seed) for seed in seeds]
        yield _wait_row(case, ours, theirs)


def _wait_row(case: Waits, ours: Sequence[float], theirs: Sequence[float]) -> Row:
    """Returns the row of the mean waits by seed."""
    wait, other = statistics.mean(ours), statistics.mean(theirs)
    interval = confidence([mine - its for mine, its in zip(ours, theirs)])
    most = case.most * other
    if case.most == 1:
        most += interval
    return Row(
        group=GROUP,
        what=f"mean wait, list {case.name}, {case.load:.0%} requested at a time",
        measured=f"{wait:.1f} thousandths of a duration",
        target=f"{most:.1f}",
        met=wait <= most,
        compared=remarks(
            f"{HAMI}: {other:.1f}",
            f"difference {wait - other:+.1f} ± {interval:.1f}",
            f"{len(ours)} seeds",
        ),
        figures={"waits": ours, "hami_waits": theirs},
    )


def confidence(values: Sequence[float]) -> float:
    """Returns half of the interval in which the mean of *values* lies with a confidence of 95 %; 0 for one value."""
    if len(values) < 2:
        return 0.0
    return CONFIDENCE * statistics.stdev(values) / math.sqrt(len(values))
