"""Rows about ``/filter``: latency, throughput, start and memory."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import fleet
from benchmarks.processes import Cpu, Memory, Run, disturbed, memory
from benchmarks.replica import PLACED, REFUSED, Replica, stub_api
from benchmarks.rows import Latency, Row, ratio, remarks
from testing.cluster import LocalCluster
from testing.kube import Kube, path_of

__all__ = ["SIZES", "filter_rows"]

SIZES = (100, 1000, 5000)
STUBBED = 2000
"""From so many nodes on the API server is a stub."""
PODS_PER_NODE = 8
CHURN = 1000
SETTLING = 3.0
"""Seconds in which what the start has set in motion comes to rest."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Targets of the design in milliseconds, filters per second, MiB and seconds; and results of upstream."""

    seen: tuple[float, float] | None
    new: float | None
    rate: float | None
    memory: float | None
    start: float | None
    upstream: str
    upstream_start: str = ""


TARGETS = {
    100: Targets((1, 4), None, None, None, None, "20 / 35 ms"),
    1000: Targets((1.5, 5), 6, 700, None, 2, "161 / 284 ms", "36 s"),
    5000: Targets((2, 4), 15, None, 300, 4, "985 / 1,623 ms", "125 s"),
}
NO_TARGETS = Targets(None, None, None, None, None, "")


@dataclass(frozen=True, slots=True)
class Setting:
    """An API server with a number of nodes."""

    nodes: int
    kubeconfig: Path
    pids: dict[str, int]
    stub_port: int | None = None

    @property
    def size(self) -> str:
        return f"{self.nodes:,} × {fleet.GPUS} / {self.nodes * PODS_PER_NODE:,} pods"

    @property
    def beside(self) -> str:
        return "stub API server" if self.stub_port else "real API server"


def filter_rows(run: Run, sizes: Iterable[int]) -> Iterator[Row]:
    """Yields all rows for each of *sizes*, the number of nodes."""
    wanted = sorted(set(sizes))
    if real := [size for size in wanted if size < STUBBED]:
        with real_api(run) as cluster:
            filled = 0
            for size in real:
                fill(run, cluster.kube, filled, size)
                filled = size
                pids = {
                    name: cluster.components[name].pid or 0 for name in ("kube-apiserver", "etcd")
                }
                yield from rows_for(run, Setting(size, cluster.kubeconfig, pids))
    for size in wanted:
        if size >= STUBBED:
            run.say(f"filter: stub API server with {size:,} nodes")
            with stub_api(run, size, PODS_PER_NODE) as (kubeconfig, port, program):
                yield from rows_for(
                    run, Setting(size, kubeconfig, {"stub API server": program.pid or 0}, port)
                )


@contextlib.contextmanager
def real_api(run: Run) -> Iterator[LocalCluster]:
    """Runs etcd and kube-apiserver, without controllers for nodes and pods."""
    with LocalCluster.started(say=run.say, extender=False) as cluster:
        for name in ("kube-controller-manager", "kube-scheduler", "kwok-controller"):
            cluster.components[name].kill()
        for kind in ("Namespace", "ServiceAccount"):
            meta = {
                "name": fleet.NAMESPACE,
                "namespace": fleet.NAMESPACE if kind == "ServiceAccount" else None,
            }
            with contextlib.suppress(Exception):
                cluster.kube.create({"apiVersion": "v1", "kind": kind, "metadata": meta})
        yield cluster


def fill(run: Run, kube: Kube, have: int, want: int) -> None:
    """Creates the nodes from *have* to *want*, with bound pods."""
    begun = time.monotonic()
    nodes, pods = path_of("Node"), path_of("Pod", fleet.NAMESPACE)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda item: kube.call("POST", nodes, item), fleet.nodes(want - have, have)))
        list(
            pool.map(
                lambda item: kube.call("POST", pods, item),
                fleet.bound_pods(want - have, PODS_PER_NODE, have),
            )
        )
    run.say(
        f"filter: {want:,} nodes and {want * PODS_PER_NODE:,} bound pods in the API server "
        f"({time.monotonic() - begun:.0f} s)"
    )


def rows_for(run: Run, setting: Setting) -> Iterator[Row]:
    """Starts the scheduler and measures it."""
    targets = TARGETS.get(setting.nodes, NO_TARGETS)
    names = [fleet.node_name(number) for number in range(setting.nodes)]
    begun = time.monotonic()
    with Replica.started(run, setting.kubeconfig) as replica:
        replica.first_placement(names)
        started = time.monotonic() - begun
        ready = memory(replica.pid)
        run.say(f"filter: {setting.size}: first placement after {started:.2f} s")
        yield start_row(setting, targets, started)
        yield from latency_rows(run, setting, targets, replica, names)
        yield memory_row(setting, targets, ready, memory(replica.pid))
    yield from least_waste_rows(run, setting, names)


def start_row(setting: Setting, targets: Targets, started: float) -> Row:
    upstream = (
        f"upstream, measured elsewhere: {targets.upstream_start}" if targets.upstream_start else ""
    )
    return Row(
        group="filter",
        what=f"start to first placement, {setting.size}",
        measured=f"{started:.2f} s",
        target=f"< {targets.start:g} s" if targets.start else "",
        met=started < targets.start if targets.start else None,
        compared=remarks(upstream, setting.beside),
        figures={"seconds": started},
    )


def latency_rows(
    run: Run, setting: Setting, targets: Targets, replica: Replica, names: list[str]
) -> Iterator[Row]:
    """Measures one client, like kube-scheduler, and then eight."""
    body = fleet.filter_args(names)
    spread = fleet.filter_args(names, policy="spread")
    count = max(300, min(1500, 8 * setting.nodes))
    time.sleep(SETTLING)
    floor = Latency.of(replica.load("/version", "version", requests=1000)["latencies"])
    series: dict[str, dict[str, Any]] = {
        "seen": dict(body=body, requests=count),
        "seen, spread": dict(body=spread, requests=count // 2),
        "new": dict(body=body, requests=count // 3, vary=True),
    }
    for name, job in series.items():
        measured = Measured.taken(run, setting, replica, **job)
        yield latency_row(setting, targets, name, measured, floor)
    refused = fleet.filter_args(names).replace(fleet.MEMORY, "99999")
    measured = Measured.taken(run, setting, replica, expect=REFUSED, body=refused, requests=100)
    yield latency_row(
        setting, NO_TARGETS, "no node fits (every node named in the answer)", measured, floor
    )
    measured = Measured.taken(run, setting, replica, body=body, clients=8, requests=2 * count)
    yield rate_row(setting, targets, measured)
    if setting.stub_port:
        churn(setting.stub_port)
        measured = Measured.taken(run, setting, replica, body=body, requests=count)
        yield latency_row(
            setting, NO_TARGETS, f"seen, beside {CHURN:,} watch events/s", measured, floor
        )
        measured = Measured.taken(run, setting, replica, body=body, requests=count // 3, vary=True)
        yield latency_row(
            setting, NO_TARGETS, f"new, beside {CHURN:,} watch events/s", measured, floor
        )


def least_waste_rows(run: Run, setting: Setting, names: list[str]) -> Iterator[Row]:
    """Measures the policy that computes the room of the nodes, by a scheduler that knows 64 kinds of usual pods.

    Each new pair of request and CPU costs that once: the loss of every node has to be computed.
    """
    body = fleet.filter_args(names, policy="least-waste")
    flags = {"usual-pods": str(fleet.usual_pods_file(run.folder))}
    with Replica.started(run, setting.kubeconfig, flags=flags) as replica:
        replica.first_placement(names)
        time.sleep(SETTLING)
        floor = Latency.of(replica.load("/version", "version", requests=1000)["latencies"])
        measured = Measured.taken(run, setting, replica, body=body, requests=1000)
        yield latency_row(setting, NO_TARGETS, "seen, least-waste", measured, floor)
        measured = Measured.taken(run, setting, replica, body=body, requests=200, vary=True)
        yield latency_row(setting, NO_TARGETS, "new, least-waste", measured, floor)


@dataclass(frozen=True, slots=True)
class Measured:
    """A series of filters."""

    latency: Latency
    rate: float
    cpu: dict[str, float]

    @classmethod
    def taken(
        cls, run: Run, setting: Setting, replica: Replica, *, expect: str = PLACED, **job: Any
    ) -> Measured:
        cpu = Cpu(setting.pids | {"hami": replica.pid})
        result = replica.load("/filter", expect, memory=fleet.MEMORY, **job)
        spent = cpu.spent(load=result["cpu_seconds"])
        return cls(
            Latency.of(result["latencies"]), len(result["latencies"]) / result["seconds"], spent
        )

    @property
    def cpu_ms(self) -> float:
        return 1000 * self.cpu["hami"] / self.latency.count

    def figures(self) -> dict[str, Any]:
        return {
            "p50_ms": self.latency.p50,
            "p99_ms": self.latency.p99,
            "max_ms": self.latency.longest,
            "count": self.latency.count,
            "per_second": self.rate,
            "cpu_seconds": self.cpu,
        }


def latency_row(
    setting: Setting, targets: Targets, name: str, measured: Measured, floor: Latency
) -> Row:
    latency, target, met = measured.latency, "", None
    if name.startswith("seen") and targets.seen is not None:
        target = f"{targets.seen[0]:g} / {targets.seen[1]:g} ms"
        met = latency.p50 <= targets.seen[0] and latency.p99 <= targets.seen[1]
    if name == "new" and targets.new is not None:
        target, met = f"p99 {targets.new:g} ms", latency.p99 <= targets.new
    beside = (
        f"upstream, measured elsewhere: {targets.upstream}" if targets.upstream else "",
        against(floor, latency),
    )
    return Row(
        group="filter",
        what=f"/filter p50 / p99, {setting.size}, {name}",
        measured=f"{latency}; {measured.cpu_ms:.2f} ms CPU each",
        target=target,
        met=met,
        compared=remarks(*beside, setting.beside, disturbed(measured.cpu)),
        figures=measured.figures(),
    )


def rate_row(setting: Setting, targets: Targets, measured: Measured) -> Row:
    upstream = "upstream, measured elsewhere: 6/s" if targets.rate else ""
    return Row(
        group="filter",
        what=f"filters a second from 8 clients, {setting.size}",
        measured=f"{measured.rate:,.0f}/s; {measured.latency}",
        target=f"≥ {targets.rate:g}/s" if targets.rate else "",
        met=measured.rate >= targets.rate if targets.rate else None,
        compared=remarks(upstream, setting.beside, disturbed(measured.cpu)),
        figures=measured.figures(),
    )


def memory_row(setting: Setting, targets: Targets, ready: Memory, after: Memory) -> Row:
    flat = after.rss - ready.rss
    return Row(
        group="filter",
        what=f"memory, {setting.size}",
        measured=f"{ready.rss:.0f} MiB ready, {after.rss:.0f} after the load ({after.pss:.0f} with its parent)",
        target=f"< {targets.memory:g} MiB, flat" if targets.memory else "",
        met=max(after.rss, after.pss) < targets.memory and flat < 50 if targets.memory else None,
        compared=remarks(
            "upstream, measured elsewhere: 1.6 GiB, 4.2 under load" if targets.memory else "",
            ratio(after.rss, ready.rss, "when ready"),
            setting.beside,
        ),
        figures={"ready_rss_mib": ready.rss, "rss_mib": after.rss, "pss_mib": after.pss},
    )


def against(floor: Latency, latency: Latency) -> str:
    return f"{latency.p50 / floor.p50:.1f} × a GET that does nothing ({floor})"


def churn(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", f"/-/churn?rate={CHURN}", b"{}")
    connection.getresponse().read()
    connection.close()
