"""Rows about the verbs of a scheduler that records usage, beside one that does not, in turns on one API server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from benchmarks import cycles, fleet
from benchmarks.extender import fill, real_api
from benchmarks.processes import Run
from benchmarks.replica import Replica
from benchmarks.rows import Latency, Row, ratio, remarks
from testing.kube import Kube
from testing.nodes import LOCK_FREE

__all__ = ["beside_records_rows"]

GROUP = "usage"
NODES = 200
TURNS, PODS = 8, 60
"""So many turns of each scheduler, and pods in each."""
WORSE = 1.05
CREATING = 4  # pods at once


def beside_records_rows(run: Run) -> Iterator[Row]:
    """Yields a row of filter, prioritize and bind, with and without records."""
    names = [fleet.node_name(number) for number in range(NODES)]
    with real_api(run) as cluster, ExitStack() as stack:
        fill(run, cluster.kube, 0, NODES)
        for name in names:
            cluster.kube.merge_patch("Node", name, {"metadata": {"annotations": LOCK_FREE}})
        replicas = []
        for flags in ({}, {"usage-namespace": fleet.NAMESPACE}):
            replica = stack.enter_context(Replica.started(run, cluster.kubeconfig, flags=flags))
            replica.first_placement(names)
            replicas.append(replica)
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(TURNS + 1):
            for replica, found in zip(replicas, times, strict=True):
                pods = created(cluster.kube, PODS)
                job = cycles.job(port=replica.port, pods=pods, names=names)
                answer = run.ask("cycles", job)
                if turn:  # the first warms up
                    found += answer["microseconds"]
            run.say(f"usage: filter and bind, turn {turn} of {TURNS}")
    yield row(*map(Latency.of, times))


def created(kube: Kube, count: int) -> list[dict[str, object]]:
    """Returns *count* new pods that wait."""
    pods = []
    for _ in range(count):
        pod = fleet.asking_pod(f"cycle-{uuid.uuid4()}")
        pod["metadata"]["namespace"] = fleet.NAMESPACE
        pod["spec"]["schedulerName"] = "benchmark"
        pods.append(pod)
    with ThreadPoolExecutor(CREATING) as pool:
        return list(pool.map(kube.create, pods))


def row(without: Latency, recording: Latency) -> Row:
    return Row(
        group=GROUP,
        what=f"filter, prioritize and bind beside the records of usage, {NODES} × {fleet.GPUS}, p50 / p99",
        measured=str(recording),
        target=f"p50 ≤ {WORSE:g} × without records",
        met=recording.p50 <= WORSE * without.p50,
        compared=remarks(
            ratio(recording.p50, without.p50, "the p50 without records, in turns"),
            ratio(recording.p99, without.p99, "its p99"),
            f"{without}; {TURNS * PODS} pods each",
        ),
        figures={
            "p50_ms": recording.p50,
            "p99_ms": recording.p99,
            "without_p50_ms": without.p50,
            "without_p99_ms": without.p99,
        },
    )
