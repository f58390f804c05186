"""A published cluster and its pods: 1,213 nodes with 6,212 GPUs, and lists of pods that were made from a trace of them.

`hami.inspect.traces` reads the files and says where they come from. None is part of this project: `TRACES` names the
folder where they are.
"""

from __future__ import annotations

import functools
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hami.inspect.traces import NODE_LIST, TraceNode, TracePod, read_nodes, read_pods

__all__ = [
    "LISTS",
    "TRACES",
    "Arrival",
    "TraceNode",
    "TracePod",
    "arrivals",
    "missing",
    "part_of",
    "trace_nodes",
    "trace_pods",
    "until_requested",
]

TRACES = "HAMI_TRACES"
"""The environment variable with the folder of the files."""
_BESIDE = Path(__file__).parents[2] / "shared" / "traces" / "openb"
LISTS = (
    "cpu0",
    "default",
    *(f"cpu{percent:03}" for percent in (50, 100, 200, 250)),
    *(f"gpushare{percent}" for percent in (40, 60, 80, 100)),
    *(f"gpuspec{percent}" for percent in (10, 20, 25, 33)),
    *(f"multigpu{percent}" for percent in (20, 30, 40, 50)),
)
"""The lists of pods. *cpu0*: that called default without its pods without GPUs."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A pod that comes *at* a time and runs for *duration*; both in mean durations."""

    pod: TracePod
    at: float
    duration: float


def missing() -> str:
    """Returns why the files cannot be read; empty if they are there."""
    if (_folder() / NODE_LIST).is_file():
        return ""
    return f"no published trace in {_folder()}; set {TRACES} to its folder"


def trace_nodes() -> list[TraceNode]:
    """Returns the nodes."""
    return read_nodes(_folder() / NODE_LIST)


@functools.cache
def trace_pods(name: str) -> tuple[TracePod, ...]:
    """Returns the pods of the list *name*."""
    if name == "cpu0":
        return tuple([pod for pod in trace_pods("default") if pod.gpus])
    return tuple(read_pods(_folder() / f"openb_pod_list_{name}.csv"))


def until_requested(pods: Sequence[TracePod], gpus: float, rng: random.Random) -> list[TracePod]:
    """Returns *pods* in random order, some left out or repeated at random, until they request *gpus*. As the paper."""
    chosen = list(pods)
    total = sum(pod.size for pod in chosen)
    while total > gpus:
        total -= chosen.pop(rng.randrange(len(chosen))).size
    while True:
        pod = pods[rng.randrange(len(pods))]
        if total + pod.size > gpus:
            break
        total += pod.size
        chosen.append(pod)
    rng.shuffle(chosen)
    return chosen


def arrivals(
    pods: Sequence[TracePod], gpus: float, until: float, rng: random.Random
) -> Iterator[Arrival]:
    """Yields pods that request *gpus* at a time on average: drawn from *pods*, with exponential gaps and durations."""
    rate = gpus * len(pods) / sum(pod.size for pod in pods)
    at = rng.expovariate(rate)
    while at <= until:
        yield Arrival(pods[rng.randrange(len(pods))], at, rng.expovariate(1.0))
        at += rng.expovariate(rate)


def part_of(nodes: Sequence[TraceNode], part: float) -> list[TraceNode]:
    """Returns about a *part* of *nodes*, as many of each kind."""
    chosen: list[TraceNode] = []
    for node, count in Counter(nodes).items():
        chosen += [node] * round(count * part)
    return chosen


def _folder() -> Path:
    return Path(os.environ.get(TRACES) or _BESIDE)
