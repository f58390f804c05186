"""Rows about the replay of a week: how long it takes, with and without changes."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.processes import Run
from benchmarks.rows import Row
from hami.cli.client import YOUNG_OBJECTS
from hami.inspect.read_recording import read_recording
from hami.inspect.segments import segments_at
from hami.inspect.twin import Changes
from hami.inspect.twin_report import TwinReport, make_twin_report
from hami.runtime.interpreter import collect_rarely
from testing.recordings import record_week

__all__ = ["replay_rows"]

GROUP = "replay"
PODS, NODES = 100_000, 200
SECONDS = 60.0
"""By py-spy, of 100 s with another policy, deciding each pod that comes takes 58 (0.6 ms a pod), deciding the waiting
pods again where something became free takes 35, and booking takes 7."""
CASES = (
    ("another policy", Changes(node_policy="spread")),
    ("ten nodes fewer", Changes(without=("10",))),
    ("unchanged, each decision made again", Changes()),
)


def replay_rows(run: Run) -> Iterator[Row]:
    """Yields rows for the replay of a week of PODS pods."""
    collect_rarely(YOUNG_OBJECTS)
    run.say(f"replay: recording {PODS:,} pods on {NODES} nodes")
    with tempfile.TemporaryDirectory() as folder:
        record_week(
            Path(folder), PODS, NODES, random.Random(1), lambda text: run.say(f"replay: {text}")
        )
        size = sum(path.stat().st_size for path in segments_at(Path(folder)))
        for what, changes in CASES:
            run.say(f"replay: {what}")
            begun = time.monotonic()
            report = _replayed(Path(folder), changes)
            seconds = time.monotonic() - begun
            yield Row(
                group=GROUP,
                what=f"a week of {PODS:,} pods, {NODES} × 8, {what}",
                measured=f"{seconds:.0f} s",
                target=f"{SECONDS:g} s",
                met=seconds <= SECONDS,
                compared=_compared(report, size),
                figures={"seconds": seconds, "bytes": size},
            )


def _replayed(folder: Path, changes: Changes) -> TwinReport:
    def ignore(*args: object) -> None:
        return None

    return make_twin_report(read_recording(segments_at(folder), ignore, ignore), changes, ignore)


def _compared(report: TwinReport, size: int) -> str:
    now, then = report.replayed.allocated, report.recorded.allocated
    text = f"{size / (1 << 20):.0f} MiB; {now} % allocated, {then} % in the recording"
    if report.comparison is not None:
        text += f"; {report.comparison.same:,} of {report.comparison.decisions:,} as recorded"
    return text
