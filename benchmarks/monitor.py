"""The monitor: what a round over many containers costs, its memory, how soon a container waits for another, and regions
with random content.

A process of its own runs the rounds: a fake driver in memory has the processes of all containers, every container has a
region of our limiter, and each round reads, decides and writes. This module is also that process.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.processes import Run, memory
from benchmarks.rows import Latency, Row
from hami.monitor.feedback import ACTIVE
from hami.node.region_layout import CURRENT, RECENT_KERNEL

__all__ = ["monitor_rows"]

GROUP = "monitor"
CONTAINERS, PROCESSES, ROUNDS = 64, 2, 200
CARDS = 8
MUTATED = 1_000_000
TURNS = 20
RECENT = CURRENT.slots_used + RECENT_KERNEL
"""The word of a region in which a launch says that the container works, and the monitor that it has to wait."""
MAX_CPU_MS, MAX_MIB, MAX_S = 50, 80, 2.0


def monitor_rows(run: Run) -> Iterator[Row]:
    """One row for each target."""
    run.say(f"monitor: {ROUNDS} rounds over {CONTAINERS} containers")
    found = run.ask("monitor", {"work": "rounds"})
    cpu = Latency.of(found["cpu_us"])
    yield Row(
        group=GROUP,
        what=f"CPU of a round over {CONTAINERS} containers with {PROCESSES} processes each",
        measured=f"{cpu} (p50 / p99)",
        target=f"p50 < {MAX_CPU_MS} ms",
        met=cpu.p50 < MAX_CPU_MS,
        compared="fake driver included",
        figures=found,
    )
    yield Row(
        group=GROUP,
        what=f"memory after {ROUNDS} rounds, page included",
        measured=f"{found['rss_mib']:.0f} MiB",
        target=f"< {MAX_MIB} MiB",
        met=found["rss_mib"] < MAX_MIB,
        figures={"rss_mib": found["rss_mib"]},
    )
    run.say(f"monitor: {TURNS} times one container blocks another")
    found = run.ask("monitor", {"work": "priorities"}, timeout=600)
    for what, key in (
        ("a container waits after the first launch of one of higher priority", "blocked_s"),
        ("it goes on after the last launch of that", "freed_s"),
    ):
        times = sorted(found[key])
        yield Row(
            group=GROUP,
            what=what,
            measured=f"{times[len(times) // 2]:.2f} s, {times[-1]:.2f} s at most",
            target=f"< {MAX_S:g} s",
            met=times[-1] < MAX_S,
            compared="the program with its defaults",
            figures={key: times},
        )
    run.say(f"monitor: {MUTATED} regions with random content")
    found = run.ask("monitor", {"work": "mutated"}, timeout=1800)
    yield Row(
        group=GROUP,
        what=f"exceptions in {MUTATED:,} regions with random changes",
        measured=f"{found['exceptions']}, {found['seconds']:.0f} s",
        target="0",
        met=found["exceptions"] == 0,
        figures=found,
    )


def rounds(folder: Path) -> dict[str, Any]:
    """Runs the rounds; returns their CPU times and the memory of this process."""
    import hami.monitor.program  # noqa: F401  all modules that the program loads count
    from hami.monitor.metrics import families
    from hami.web.exposition import render
    from testing.fake_nvml import GIB, Gpu
    from testing.monitor_stage import Stage, node_pod
    from testing.region_bytes import Process

    names = [f"pod-{number:03d}" for number in range(CONTAINERS)]
    stage = Stage(folder, *(Gpu(f"GPU-{number}", memory=80 * GIB) for number in range(CARDS)))
    stage.pods = [
        node_pod(name, f"GPU-{number % CARDS}", priority=number % 3)
        for number, name in enumerate(names)
    ]
    for number, name in enumerate(names):
        slots = [Process(pid=pid + 1, used={0: GIB // 4}, sm={0: 5}) for pid in range(PROCESSES)]
        stage.region(name, uuids=(f"GPU-{number % CARDS}",), processes=slots, priority=number % 3)
        for pid in range(PROCESSES):
            stage.work(
                name,
                4000 + number * PROCESSES + pid,
                GIB // 4,
                5,
                card=number % CARDS,
                inner=pid + 1,
            )
    spent = []
    for _ in range(ROUNDS):
        for name in names:
            stage.launch(name)
        begun = time.process_time()
        report = stage.run()
        spent.append(1e6 * (time.process_time() - begun))
        size = sum(map(len, render(families(report))))
    assert len(report.containers) == CONTAINERS
    assert stage.rounds.errors() == dict.fromkeys(stage.rounds.errors(), 0)
    # not ru_maxrss: that begins with what the parent process took
    return {
        "cpu_us": spent,
        "rss_mib": memory(os.getpid()).rss,
        "page_bytes": size,
        "containers": CONTAINERS,
    }


def priorities(folder: Path) -> dict[str, Any]:
    """Lets a container work now and then; returns for how long another one does not wait, and waits longer."""
    from hami.monitor.processes import HostProcesses
    from hami.monitor.program import MonitorProgram
    from hami.monitor.settings import read_monitor_settings
    from hami.runtime.options import Address
    from testing.monitor_stage import uid_of, wire
    from testing.pod_server import Server
    from testing.region_bytes import UUIDS, region_bytes

    regions = {}
    for name, priority in (("high", 0), ("low", 1)):
        directory = folder / "vgpu" / "containers" / f"{uid_of(name)}_main"
        directory.mkdir(parents=True)
        regions[name] = directory / "t.cache"
        regions[name].write_bytes(region_bytes(priority=priority))
        (directory / "t.sm").write_bytes(bytes(4096))
    pods = [wire(name) for name in regions]
    pods[0]["spec"]["containers"][0]["env"] = [{"name": "CUDA_TASK_PRIORITY", "value": "0"}]
    cards = folder / "cards.yaml"
    cards.write_text(f"cards: [{{uuid: {UUIDS[0]}, memory: 8192}}]")
    settings = read_monitor_settings(
        {
            "node": "n1",
            "mock_devices": str(cards),
            "hook_path": str(folder),
            "metrics_bind_address": Address("127.0.0.1", 0),
        },
        {},
    )
    program = MonitorProgram(
        settings, api=Server((pods, 5)), processes=HostProcesses(folder / "proc")
    )
    program.start()
    found: dict[str, list[float]] = {"blocked_s": [], "freed_s": []}
    rng = random.Random(1)
    try:
        for _ in range(TURNS):
            time.sleep(rng.uniform(2.5, 3.5))
            found["blocked_s"].append(_until(regions, True, works=True))
            ends = time.monotonic() + rng.uniform(0.5, 1.5)
            while time.monotonic() < ends:
                _put(regions["high"], ACTIVE)
                time.sleep(0.01)
            found["freed_s"].append(_until(regions, False, works=False))
    finally:
        program.stop()
    return dict(found)


def _until(regions: dict[str, Path], waits: bool, *, works: bool) -> float:
    """Returns the seconds until the lower container waits, or no longer does; *works*: the higher one launches."""
    begun = time.monotonic()
    while (_recent(regions["low"]) < 0) is not waits:
        if works:
            _put(regions["high"], ACTIVE)
        if time.monotonic() - begun > 30:
            raise RuntimeError("nothing has changed for 30 s")
        time.sleep(0.01)
    return time.monotonic() - begun


def _recent(region: Path) -> int:
    with region.open("rb") as file:
        file.seek(RECENT)
        return int(struct.unpack("<i", file.read(4))[0])


def _put(region: Path, value: int) -> None:
    with region.open("r+b") as file:
        file.seek(RECENT)
        file.write(struct.pack("<i", value))


def mutated(folder: Path) -> dict[str, Any]:
    """Reads regions with random changes; returns how many ended in an exception."""
    from testing.region_mutations import mutate_and_parse

    begun, exceptions, batch = time.monotonic(), 0, 1000
    for seed in range(MUTATED // batch):
        try:
            mutate_and_parse(random.Random(seed), batch)
        except Exception as error:
            exceptions += 1
            print(f"seed {seed}: {error!r}", file=sys.stderr)
    return {"exceptions": exceptions, "seconds": time.monotonic() - begun, "regions": MUTATED}


WORKS = {"rounds": rounds, "priorities": priorities, "mutated": mutated}


def main() -> None:
    """Does the work that standard input names; *argv*: a folder. The answer is JSON."""
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    try:
        answer = WORKS[json.load(sys.stdin)["work"]](folder)
    finally:
        shutil.rmtree(folder)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
