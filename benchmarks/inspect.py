"""Rows about the commands for people: time, CPU and memory of one call in a large cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import Run
from benchmarks.replica import stub_api
from benchmarks.rows import Row

__all__ = ["inspect_rows"]

GROUP = "inspect"
NODES, PODS_PER_NODE = 5000, 8
MAX_SECONDS, MAX_CPU_SECONDS, MAX_MIB = 10.0, 3.0, 500.0
COMMANDS = (("top", "nodes"), ("top", "cards"))


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one call of ``hami``. *cpu*: seconds in user mode, with the start of the interpreter."""

    seconds: float
    cpu: float
    mib: float


def inspect_rows(run: Run) -> Iterator[Row]:
    """Rows for each command, from a cluster and from a snapshot of it, where only decoding and drawing are left."""
    run.say(f"inspect: stub API server with {NODES:,} nodes and {NODES * PODS_PER_NODE:,} pods")
    with stub_api(run, NODES, PODS_PER_NODE) as (kubeconfig, _, _):
        snapshot = run.folder / "cluster.snapshot"
        write = cost_of(run, kubeconfig, ("snapshot",), snapshot)
        yield Row(
            group=GROUP,
            what=f"hami snapshot, {NODES:,} nodes",
            measured=text_of(write),
            figures=figures(write),
        )
        for words in COMMANDS:
            run.say(f"inspect: hami {' '.join(words)}")
            live = cost_of(run, kubeconfig, words)
            kept = cost_of(run, kubeconfig, (*words, f"--snapshot={snapshot}"))
            is_met = live.seconds < MAX_SECONDS and live.mib < MAX_MIB
            yield Row(
                group=GROUP,
                what=f"hami {' '.join(words)}, {NODES:,} nodes, stub API server",
                measured=text_of(live),
                target=f"{MAX_SECONDS:g} s, {MAX_MIB:g} MiB",
                met=is_met,
                figures=figures(live),
            )
            yield Row(
                group=GROUP,
                what=f"hami {' '.join(words)} from a snapshot: decoding and drawing",
                measured=text_of(kept),
                target=f"{MAX_CPU_SECONDS:g} s CPU",
                met=kept.cpu < MAX_CPU_SECONDS,
                figures=figures(kept),
            )


def cost_of(run: Run, kubeconfig: Path, words: tuple[str, ...], output: Path | None = None) -> Cost:
    """Runs ``hami`` with *words*, once. Its output goes to *output*, or a file of the run."""
    begun = time.monotonic()
    with (output or run.folder / "hami.out").open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "hami.cli", *words],
            stdout=file,
            env=os.environ | {"KUBECONFIG": str(kubeconfig)},
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # so that Popen does not wait once more
    if process.returncode != 0:
        raise RuntimeError(f"hami {' '.join(words)} ended with {process.returncode}")
    return Cost(time.monotonic() - begun, usage.ru_utime, usage.ru_maxrss / 1024)


def text_of(cost: Cost) -> str:
    return f"{cost.seconds:.1f} s, {cost.cpu:.1f} s CPU, {cost.mib:.0f} MiB"


def figures(cost: Cost) -> dict[str, float]:
    return {"seconds": cost.seconds, "cpu_seconds": cost.cpu, "mib": cost.mib}
