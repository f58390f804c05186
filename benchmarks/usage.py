"""Rows about the records of usage: what they cost a scheduler that follows 40,000 pods of 500 namespaces.

Each case is a process of its own, which is this module: the same store is filled with and without followers.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.processes import Run
from benchmarks.rows import Row
from hami.codec.usage_objects import render_current
from hami.codec.usage_sums import MAX_OWNERS_TEXT, MAX_TEXT, UsageSums
from hami.model import Pod
from hami.scheduler.held_pods import HeldPods
from hami.state.ledger import fresh_sums
from hami.state.store import Store
from hami.state.view import Policies
from testing.builders import ONLY_NVIDIA, gpu, node
from testing.usage_stage import NOON, bound, time_of

__all__ = ["usage_rows"]

GROUP = "usage"
PODS, NAMESPACES, NODES, CARDS = 40_000, 500, 2500, 8
MODELS = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100-SXM5-80GB", "NVIDIA L40S")
CLASSES = ("", "high")
INTERVAL_S = 300
STARTS_PER_S = 20  # that also end
MAX_MIB, MAX_CPU_PERCENT = 30.0, 1.0


def usage_rows(run: Run) -> Iterator[Row]:
    """Rows of the memory that following takes, and of the CPU of five minutes with one record."""
    run.say(f"usage: {PODS:,} pods, {NAMESPACES} namespaces")
    without, following = measured("without"), measured("following")
    mib = (following["rss"] - without["rss"]) / (1 << 20)
    yield Row(
        group=GROUP,
        what=f"memory of following {PODS:,} pods and their ledger",
        measured=f"{mib:.1f} MiB",
        target=f"{MAX_MIB:g} MiB",
        met=mib <= MAX_MIB,
        figures={"mib": mib, "keys": following["keys"]},
    )
    event_s = max(0.0, following["event_s"] - without["event_s"])
    changes = 2 * STARTS_PER_S * INTERVAL_S
    percent = 100 * (following["record_s"] + changes * event_s) / INTERVAL_S
    yield Row(
        group=GROUP,
        what=f"CPU of {INTERVAL_S} s with one record, while {STARTS_PER_S} pods a second begin and end",
        measured=f"{percent:.2f} %: {following['record_s'] * 1000:.0f} ms a record, "
        f"{event_s * 1e6:.0f} µs an event",
        target=f"{MAX_CPU_PERCENT:g} %",
        met=percent <= MAX_CPU_PERCENT,
        figures={"percent": percent, "record_s": following["record_s"], "event_s": event_s},
    )
    size = following["size"]
    yield Row(
        group=GROUP,
        what=f"a record of {following['keys']:,.0f} keys, at the end of a day",
        measured=f"{size / 1024:.0f} KiB",
        target=f"{(MAX_TEXT + MAX_OWNERS_TEXT) // 1024} KiB",
        met=size <= MAX_TEXT + MAX_OWNERS_TEXT,
        figures={"bytes": size},
    )


def measured(case: str) -> dict[str, float]:
    """Returns the figures of a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.usage", case], capture_output=True, text=True, check=True
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def pods(random_of: random.Random) -> Iterator[Pod]:
    for number in range(PODS):
        on = f"n{number % NODES}"
        workload = number % 10
        memory = (4_000, 10_000, 20_000)[workload % 3]
        made = bound(f"p{number}", NOON - random_of.randrange(86400), memory=memory, cores=10)
        texts = {}
        for key, text in made.annotations.items():
            text = text.replace("GPU-0", f"GPU-{on}-{number // NODES % CARDS}")
            texts[key] = on if text == "n1" else text
        namespace = f"team-{random_of.randrange(NAMESPACES)}"
        yield replace(
            made,
            ref=replace(made.ref, namespace=namespace),
            resource_version="1",
            node_name=on,
            annotations=texts,
            scope=replace(made.scope, priority_class=CLASSES[workload % 2]),
            workload=("Deployment", f"web-{workload}"),
        )


def filled(*, follows: bool) -> tuple[Store, HeldPods | None]:
    now: Callable[[], datetime] = lambda: datetime.fromtimestamp(NOON, UTC)  # noqa: E731
    store = Store(ONLY_NVIDIA, Policies(), clock=lambda: 0.0, now=now)
    for number in range(NODES):
        cards = []
        for index in range(CARDS):
            model = MODELS[number % len(MODELS)]
            cards.append(gpu(f"GPU-n{number}-{index}", memory_mib=81_920, model=model))
        store.nodes.upsert(node(f"n{number}", *cards))
    held = HeldPods(store.pods, store, now) if follows else None
    sink = held or store.pods
    for pod in pods(random.Random(1)):
        sink.upsert(pod)
    if held is not None:
        held.lead(fresh_sums(NOON - 60))
        held.checkpoint(NOON - 30)
    return store, held


def resident() -> int:
    """Returns the memory of this process in bytes."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def event_seconds(store: Store, held: HeldPods | None) -> float:
    """Returns the CPU seconds of one event: pods that begin, and end."""
    sink: Any = held or store.pods
    batch = [
        replace(pod, ref=replace(pod.ref, uid=f"{pod.ref.uid}-again"), resource_version="2")
        for pod, _ in zip(pods(random.Random(2)), range(2000))
    ]
    begun = time.process_time()
    for pod in batch:
        sink.upsert(pod)
        sink.upsert(replace(pod, phase="Succeeded", finished=time_of(NOON), resource_version="3"))
    return (time.process_time() - begun) / 2 / len(batch)


def record_seconds(held: HeldPods) -> tuple[float, UsageSums, int]:
    """Returns the CPU seconds of a record, the sums, and the size of its texts, all at the end of a day."""
    until = NOON + 12 * 3600 - 60
    for at in range(NOON, until, 1800):
        held.checkpoint(at)
    begun = time.process_time()
    sums, _ = held.checkpoint(until)
    record = render_current("hami-usage", "", sums)
    seconds = time.process_time() - begun
    return seconds, sums, sum(map(len, record.data.values()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.usage")
    parser.add_argument("case", choices=("without", "following"))
    store, held = filled(follows=parser.parse_args().case == "following")
    figures: dict[str, float] = {"rss": resident()}
    figures["event_s"] = event_seconds(store, held)
    if held is not None:
        seconds, sums, size = record_seconds(held)
        figures |= {"record_s": seconds, "keys": len(sums.day.hours), "size": size}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
