"""Rows about resizes: from the annotation of a user until the limit holds on the node, and until the pod says so.

A real node with its device plugin and monitor, beside fake nodes; containers without a GPU program, whose use is zero.
The time of the limits file is that of its last write, which the same clock gives as that of the annotation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from benchmarks.processes import Cpu, Run, disturbed
from benchmarks.realnode import missing, scheduled_node
from benchmarks.rows import Latency, Row, remarks
from testing.device_plugin import HOOK, SLOTS, DevicePlugin, cards
from testing.monitor import Monitor
from testing.nodes import gpus
from testing.pods import pod
from testing.realnode import RealNode
from testing.resizes import RESIZABLE, answered, resize
from testing.sandbox import Sandbox

__all__ = ["resize_rows"]

GROUP = "resize"
FAKE_NODES = 200
TURNS = 20
SMALL, LARGE = 2000, 4000
PAUSE_SECONDS = 1.2
"""Between two resizes of one pod, which the scheduler answers once a second at most."""
MAX_P50_MS, MAX_P99_MS = 1000, 5000


def resize_rows(run: Run) -> Iterator[Row]:
    """Yields a row for pods that grow and one for pods that shrink, ten at once."""
    if reason := missing():
        yield Row(group=GROUP, what="a real node", measured=f"not measured: {reason}")
        return
    with scheduled_node(run) as (node, scheduler):
        plugin, monitor = DevicePlugin(node), Monitor(node)
        plugin.insert(*cards(1))
        plugin.install_limiter(b"no library: nothing is limited here\n")
        plugin.start().wait_offered(SLOTS)
        monitor.start()
        names = [f"p{number}" for number in range(SLOTS)]
        with (
            Sandbox.opened(node.kube, name="fleet") as fleet,
            Sandbox.opened(node.kube, name="bench") as sandbox,
        ):
            fleet.add_gpu_nodes(
                {f"n{number}": gpus(8) for number in range(FAKE_NODES)}, annotations=RESIZABLE
            )
            with node.lent(sandbox):
                sandbox.create_all(pod(name, gpu=1, gpumem=SMALL) for name in names)
                sandbox.running(*names, timeout=180)
                cpu = Cpu(
                    {
                        "hami": scheduler.program.pid or 0,
                        "plugin": plugin.program.pid or 0,
                        "monitor": monitor.program.pid or 0,
                    }
                )
                timed: dict[int, list[tuple[float, float]]] = {LARGE: [], SMALL: []}
                with ThreadPoolExecutor(SLOTS) as pool:
                    for turn in range(TURNS):
                        for memory, times in timed.items():
                            time.sleep(PAUSE_SECONDS)
                            times += pool.map(partial(one_resize, sandbox, node, memory), names)
                        run.say(f"turn {turn + 1} of {TURNS}")
                disturbance = disturbed(cpu.spent())
        monitor.close()
        plugin.close()
    yield row("grow", "the pod says so", timed[LARGE], disturbance)
    yield row("shrink", "the memory is free for others", timed[SMALL], disturbance)


def one_resize(sandbox: Sandbox, node: RealNode, memory: int, name: str) -> tuple[float, float]:
    """Resizes a pod; returns the microseconds until its limits file was written, and until its status is Applied."""
    uid = sandbox.pod(name)["metadata"]["uid"]
    file = node.path(f"{HOOK}/vgpu/containers") / f"{uid}_main" / "limits"
    begun = time.time()
    text = resize(sandbox, name, {"main": {"memory": f"{memory}Mi"}})
    answered(sandbox, name, text, "Applied")
    done = time.time()
    assert f"memory={memory * 2**20} " in file.read_text(), file.read_text()
    return 1e6 * (file.stat().st_mtime - begun), 1e6 * (done - begun)


def row(verb: str, then: str, times: Sequence[tuple[float, float]], disturbance: str) -> Row:
    enforced, applied = (Latency.of(series) for series in zip(*times, strict=True))
    return Row(
        group=GROUP,
        what=f"{SLOTS} pods of a real node {verb} at once, beside {FAKE_NODES} nodes: annotation to enforced",
        measured=f"{enforced} (p50 / p99), longest {enforced.longest:.0f} ms",
        target=f"{MAX_P50_MS / 1000:g} / {MAX_P99_MS / 1000:g} s",
        met=enforced.p50 <= MAX_P50_MS and enforced.p99 <= MAX_P99_MS,
        compared=remarks(f"until {then}: {applied}", disturbance),
        figures={"microseconds": times},
    )
