"""Rows about containers on a real node: kubelet, containerd and runc on this machine, with mock GPUs.

The log of the device plugin contains the duration of the call that gives a container its devices: PreStartContainer in
start-time mode, otherwise Allocate; that of the scheduler contains the time between filter and bind of each pod.
Allocate of start-time mode, which asks nobody and logs nothing, is called here like by the kubelet.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import grpc

from benchmarks.processes import Cpu, Run, disturbed
from benchmarks.rows import Latency, Row, remarks
from hami.plugin import api_pb2 as api
from testing.cluster import LocalCluster
from testing.device_plugin import DevicePlugin, cards
from testing.pods import pod
from testing.realnode import RealNode, missing
from testing.sandbox import Sandbox
from testing.scheduler import Certificates, Scheduler, install

__all__ = ["CARDS", "PODS", "STEP", "Stage", "missing", "realnode_rows", "scheduled_node"]

Object = dict[str, Any]
GROUP = "realnode"
CARDS, SLOTS = 4, 10
PODS = CARDS * SLOTS
IN_TURN = 40
TIMEOUT_SECONDS = 180
QUIET_SECONDS = 2
CALLS = 1000
PLUGIN_SOCKET = "/var/lib/kubelet/device-plugins/nvidia-gpu.sock"
STEP = re.compile(r'time=(\S+) .*message="pod (filtered|bound)" pod=\S+/(\S+) ')


@contextmanager
def scheduled_node(run: Run) -> Iterator[tuple[RealNode, Scheduler]]:
    """Yields a real node in a cluster of its own, and the scheduler of that cluster, which runs."""
    with (
        LocalCluster.started(say=run.say) as cluster,
        RealNode.joined(cluster, say=run.say) as node,
    ):
        certificates = Certificates(cluster.folder / "tls")
        scheduler = Scheduler(cluster, certificates, install(cluster, certificates)).start()
        yield node, scheduler
        scheduler.close()


def realnode_rows(run: Run, rounds: int) -> Iterator[Row]:
    """Yields Allocate for pods one after the other, and forty pods at once, *rounds* times."""
    if reason := missing():
        yield Row(group=GROUP, what="a real node", measured=f"not measured: {reason}")
        return
    with scheduled_node(run) as (node, scheduler):
        plugin = DevicePlugin(node)
        plugin.insert(*cards(CARDS))
        plugin.install_limiter(b"no library: nothing is limited here\n")
        plugin.start().wait_offered(PODS)
        stage = Stage(run, node, scheduler, plugin)
        stage.play(["warm-up"])
        yield stage.in_turn_row()
        if stage.is_start_time:
            yield stage.allocate_row()
        yield stage.burst_row(rounds)
        plugin.close()


class Stage:
    """A cluster with a real node, on which pods are started and ended."""

    def __init__(
        self, run: Run, node: RealNode, scheduler: Scheduler, plugin: DevicePlugin
    ) -> None:
        self.run, self.node, self.scheduler, self.plugin = run, node, scheduler, plugin
        self.is_start_time = "allocate=start" in plugin.log()
        self._call = "PreStartContainer" if self.is_start_time else "Allocate"
        self._programs = {
            **node.cluster.components,
            "hami": scheduler.program,
            "plugin": plugin.program,
            "kubelet": node.kubelet,
            "containerd": node.containerd,
        }

    def play(self, *batches: list[str]) -> Object:
        """Starts the pods of each batch at once, one batch after the other, and deletes them."""
        allocated, logged = (
            len(self.plugin.allocate_seconds()),
            self.scheduler.program.log.stat().st_size,
        )
        pids = {name: program.pid for name, program in self._programs.items() if program.pid}
        before = Cpu(pids)
        time.sleep(
            QUIET_SECONDS
        )  # other load can be measured only without short-lived container processes
        disturbance, cpu = disturbed(before.spent()), Cpu(pids)
        with Sandbox.opened(self.node.kube, name="bench") as sandbox, self.node.lent(sandbox):
            pods = {name: self.asking(sandbox, name) for names in batches for name in names}
            batch_seconds = []
            for names in batches:
                began_batch = time.monotonic()
                sandbox.create_all(pods[name] for name in names)
                sandbox.running(*names, timeout=TIMEOUT_SECONDS)
                batch_seconds.append(time.monotonic() - began_batch)
            spent = cpu.spent()
            judged = self.judged(sandbox, list(pods))
        text = self.scheduler.program.log.read_bytes()[logged:].decode(errors="replace")
        return {
            "seconds": sum(batch_seconds),
            "batch_seconds": batch_seconds,
            "allocate_seconds": self.plugin.allocate_seconds()[allocated:],
            "waited_seconds": waited(text),
            "cpu_seconds": spent,
            "disturbance": disturbance,
        } | judged

    def asking(self, sandbox: Sandbox, name: str) -> Object:
        """Returns the pod *name*, which is then created in *sandbox*."""
        return pod(name, gpu=1, gpumem=3000)

    def judged(self, sandbox: Sandbox, names: list[str]) -> Object:
        """Returns more to say about the pods *names*, which run."""
        return {}

    def in_turn_row(self) -> Row:
        names = [f"p{number}" for number in range(IN_TURN)]
        outcome = self.play(*([name] for name in names))
        latency = Latency.of([1e6 * seconds for seconds in outcome["allocate_seconds"]])
        self.run.say(f"in turn: {latency.count} pods, {outcome['seconds'] / IN_TURN:.2f} s a pod")
        return Row(
            group=GROUP,
            what=f"{self._call}, real API server, {IN_TURN} pods one after the other",
            measured=f"{latency} (p50 / p99), longest {latency.longest:.1f} ms",
            compared=remarks(
                f"a pod's whole way, container included: {outcome['seconds'] / IN_TURN:.2f} s",
                outcome["disturbance"],
            ),
            figures=outcome,
        )

    def allocate_row(self) -> Row:
        """Allocate of start-time mode, from as many threads as there are slices."""
        slots = [f"{card.uuid}-{number}" for card in self.plugin.cards for number in range(SLOTS)]

        def allocate(slot: str) -> float:
            began = time.monotonic()
            ask(
                api.AllocateRequest(
                    container_requests=[api.ContainerAllocateRequest(devices_ids=[slot])]
                ),
                timeout=30,
            )
            return 1e6 * (time.monotonic() - began)

        with (
            grpc.insecure_channel(f"unix:{self.node.path(PLUGIN_SOCKET)}") as channel,
            ThreadPoolExecutor(PODS) as pool,
        ):
            ask = channel.unary_unary(
                "/v1beta1.DevicePlugin/Allocate",
                api.AllocateRequest.SerializeToString,
                api.AllocateResponse.FromString,
            )
            one = Latency.of([allocate(slots[number % PODS]) for number in range(CALLS)])
            many = Latency.of(list(pool.map(allocate, slots * (CALLS // PODS))))
        return Row(
            group=GROUP,
            what="Allocate, one call after the other",
            measured=f"{one} (p50 / p99)",
            target="p99 < 5 ms",
            met=one.p99 < 5,
            compared=f"from {PODS} clients at once, which share the cores with the plugin: {many}",
        )

    def burst_row(self, rounds: int) -> Row:
        names = [f"p{number}" for number in range(PODS)]
        outcomes = []
        for _ in range(rounds):
            outcomes.append(self.play(names))
            self.run.say(f"{PODS} pods at once: {outcomes[-1]['seconds']:.2f} s")
        allocate = Latency.of(
            [1e6 * seconds for outcome in outcomes for seconds in outcome["allocate_seconds"]]
        )
        waits = [seconds for outcome in outcomes for seconds in outcome["waited_seconds"].values()]
        slowest = max(outcome["seconds"] for outcome in outcomes)
        is_met = (
            slowest <= 6
            and len(waits) == rounds * PODS
            and max(waits) <= 0.3
            and allocate.count == rounds * PODS
            and allocate.p50 <= 3
            and allocate.p99 <= 40
        )
        return Row(
            group=GROUP,
            what=f"{PODS} one-slice pods at once on one real node: until all containers run",
            measured=remarks(
                ", ".join(f"{outcome['seconds']:.1f}" for outcome in outcomes) + " s",
                f"from filter to bound {statistics.median(waits):.2f} s in the middle, "
                f"{max(waits):.2f} s at most",
                f"{self._call} {allocate}",
            ),
            target=f"<= 6 s; from filter to bound <= 0.3 s; {self._call} 3 / 40 ms",
            met=is_met,
            compared=remarks(
                "the slowest run counts", *{outcome["disturbance"] for outcome in outcomes}
            ),
            figures={"runs": outcomes},
        )


def waited(text: str) -> dict[str, float]:
    """Returns the seconds from filter to bind of each pod in the scheduler's log *text*."""
    filtered: dict[str, datetime] = {}
    found = {}
    for moment, step, name in STEP.findall(text):
        at = datetime.fromisoformat(moment)
        if step == "filtered":
            filtered[name] = at
        elif name in filtered:
            found[name] = (at - filtered[name]).total_seconds()
    return found
