"""``python -m benchmarks [GROUP …] [--nodes N] [--json FILE]``; ``--help`` names all groups."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import beside
from benchmarks.admission import creation_rows, webhook_rows
from benchmarks.beside_records import beside_records_rows
from benchmarks.dashboard import dashboard_rows
from benchmarks.dra import dra_rows
from benchmarks.extender import SIZES, filter_rows
from benchmarks.health import health_rows
from benchmarks.hostile import hostile_rows
from benchmarks.inspect import inspect_rows
from benchmarks.limiter import limiter_rows
from benchmarks.monitor import monitor_rows
from benchmarks.placing import GROUPS, LARGE, placing_rows
from benchmarks.preemption import preemption_rows
from benchmarks.processes import Run, loop_seconds, objects_seconds
from benchmarks.realnode import realnode_rows
from benchmarks.replay import replay_rows
from benchmarks.resize import resize_rows
from benchmarks.room import room_rows
from benchmarks.rows import Row, table
from benchmarks.trace import SEEDS, trace_rows
from benchmarks.usage import usage_rows
from testing import interrupts
from testing.arguments import file_to_write, number_from
from testing.binaries import BinariesMissing
from testing.traces import LISTS

ALL = (
    "filter",
    "hostile",
    "webhook",
    "admission",
    *GROUPS,
    "preemption",
    "realnode",
    "resize",
    "health",
    "dra",
    "limiter",
    "inspect",
    "monitor",
    "trace",
    "usage",
    "room",
    "replay",
)
RESULTS = Path(__file__).parent / "results"
WIDTH = 160
"""Width of the table if standard output is not a terminal."""


def options(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measures the targets of the design."
    )
    parser.add_argument(
        "groups",
        nargs="*",
        metavar="GROUP",
        help=f"rows to measure: {', '.join(ALL)} (default: all)",
    )
    parser.add_argument(
        "--nodes",
        nargs="+",
        type=number_from(1),
        default=list(SIZES),
        metavar="N",
        help="cluster sizes for filter (default: %(default)s)",
    )
    parser.add_argument(
        "--large",
        type=number_from(1),
        default=LARGE.nodes,
        metavar="N",
        help="nodes of the group large, with two pods for each (default: %(default)s)",
    )
    parser.add_argument(
        "--lists",
        nargs="+",
        choices=LISTS,
        default=["cpu0", "default", "multigpu50"],
        metavar="LIST",
        help=f"lists of pods for trace: {', '.join(LISTS)} (default: %(default)s)",
    )
    parser.add_argument(
        "--seeds",
        nargs="+",
        type=int,
        default=list(SEEDS),
        metavar="N",
        help="seeds for trace (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds",
        type=number_from(1),
        default=2,
        metavar="N",
        help="runs of each end-to-end case (default: 2)",
    )
    parser.add_argument(
        "--json",
        type=file_to_write,
        metavar="FILE",
        help="file for the results (default: benchmarks/results/)",
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument(
        "--beside",
        type=beside.checkout,
        metavar="CHECKOUT",
        help="measure in turns with the groups of another checkout, by its .venv/bin/python; exit with 1 if a "
        "figure is worse here, by more than 5 %% beyond its spread",
    )
    parser.add_argument(
        "--pairs",
        type=number_from(2),
        default=3,
        metavar="N",
        help="turns of each checkout with --beside (default: 3)",
    )
    chosen = parser.parse_args(words)
    if unknown := set(chosen.groups) - set(ALL):
        parser.error(f"unknown groups {', '.join(sorted(unknown))}; valid: {', '.join(ALL)}")
    chosen.groups = chosen.groups or list(ALL)
    return chosen


def measure(run: Run, chosen: argparse.Namespace) -> Iterator[Row]:
    yield from yardstick_rows()
    if "filter" in chosen.groups:
        yield from filter_rows(run, chosen.nodes)
    if "hostile" in chosen.groups:
        yield from hostile_rows(run)
    if "webhook" in chosen.groups:
        yield from webhook_rows(run)
    if "admission" in chosen.groups:
        yield from creation_rows(run, chosen.rounds)
    if placing := [group for group in chosen.groups if group in GROUPS]:
        yield from placing_rows(run, placing, chosen.rounds, chosen.large)
    if "preemption" in chosen.groups:
        yield from preemption_rows(run)
    if "realnode" in chosen.groups:
        yield from realnode_rows(run, chosen.rounds)
    if "resize" in chosen.groups:
        yield from resize_rows(run)
    if "health" in chosen.groups:
        yield from health_rows(run)
    if "dra" in chosen.groups:
        yield from dra_rows(run, chosen.rounds)
    if "limiter" in chosen.groups:
        yield from limiter_rows(run)
    if "inspect" in chosen.groups:
        yield from inspect_rows(run)
        yield from dashboard_rows(run)
    if "monitor" in chosen.groups:
        yield from monitor_rows(run)
    if "trace" in chosen.groups:
        yield from trace_rows(run, chosen.lists, chosen.seeds)
    if "usage" in chosen.groups:
        yield from usage_rows(run)
        yield from beside_records_rows(run)
    if "room" in chosen.groups:
        yield from room_rows(run)
    if "replay" in chosen.groups:
        yield from replay_rows(run)


def yardstick_rows() -> Iterator[Row]:
    compared = "the best of five; times of other days compare by their multiples of it"
    for what, seconds in (
        ("a million steps of Python", loop_seconds()),
        ("decoding 100,000 records, and looking each up", objects_seconds()),
    ):
        yield Row(
            group="machine",
            what=f"yardstick: CPU time of {what}",
            measured=f"{1000 * seconds:.0f} ms",
            compared=compared,
            figures={"seconds": seconds},
        )


def machine() -> dict[str, Any]:
    revision = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "revision": revision,
    }


def write(path: Path, begun: datetime, seconds: float, results: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "began": begun.isoformat(timespec="seconds"),
        "seconds": round(seconds),
        "machine": machine(),
        **results,
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


class Report:
    """Says how far the measuring is, and shows and writes the results."""

    def __init__(self, path: Path | None) -> None:
        self._begun, self._clock = datetime.now(UTC), time.monotonic()
        self._path = path or RESULTS / f"{self._begun:%Y%m%dT%H%M%SZ}.json"
        self._console = Console() if sys.stdout.isatty() else Console(width=WIDTH)

    @property
    def title(self) -> str:
        return f"{os.cpu_count()} CPUs shared by everything, {self._begun:%Y-%m-%d %H:%M} UTC"

    def say(self, line: str) -> None:
        seconds = time.monotonic() - self._clock
        print(f"{seconds:6.1f} s  {line}", file=sys.stderr, flush=True)

    def end(self, shown: Table, results: dict[str, Any]) -> None:
        write(self._path, self._begun, time.monotonic() - self._clock, results)
        self._console.print(shown)
        self._console.print(f"figures: {self._path}")


def main() -> int:
    chosen = options()
    report = Report(chosen.json)
    try:
        with Run.begun(report.say) as run:
            if chosen.beside:
                return main_beside(run, chosen, report)
            return main_alone(run, chosen, report)
    except BinariesMissing as error:
        print(error, file=sys.stderr)
        return 1


def main_alone(run: Run, chosen: argparse.Namespace, report: Report) -> int:
    rows: list[Row] = []
    try:
        for row in measure(run, chosen):
            rows.append(row)
            report.say(f"  {row.what}: {row.measured}")
    finally:
        if rows:
            report.end(table(rows, report.title), {"rows": [row.as_json() for row in rows]})
    return 1 if chosen.check and any(row.met is False for row in rows) else 0


def main_beside(run: Run, chosen: argparse.Namespace, report: Report) -> int:
    other = chosen.beside
    results = beside.Results()
    try:
        beside.compare(run, chosen, results)
    finally:
        if results.found:
            report.end(
                beside.table(results.found, other.name),
                {"beside": str(other.folder), **results.as_json()},
            )
    for line in results.alone:
        print(line)
    for line in results.failed:
        print(f"failed: {line}")
    for row in results.worse:
        times = f"{row.ratio:.2f} ± {row.spread:.2f} times {other.name}"
        print(f"worse: {row.what}: {row.figure}: {times}")
    return 1 if results.worse or results.failed else 0


if __name__ == "__main__":
    sys.exit(interrupts.run_whole(main))
