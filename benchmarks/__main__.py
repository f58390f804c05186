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

from benchmarks.admission import creation_rows, webhook_rows
from benchmarks.dashboard import dashboard_rows
from benchmarks.dra import dra_rows
from benchmarks.extender import SIZES, filter_rows
from benchmarks.hostile import hostile_rows
from benchmarks.inspect import inspect_rows
from benchmarks.limiter import limiter_rows
from benchmarks.monitor import monitor_rows
from benchmarks.placing import GROUPS, LARGE, placing_rows
from benchmarks.preemption import preemption_rows
from benchmarks.processes import Run, loop_seconds, objects_seconds
from benchmarks.realnode import realnode_rows
from benchmarks.resize import resize_rows
from benchmarks.rows import Row, table
from e2e import interrupts
from e2e.arguments import file_to_write, number_from
from e2e.binaries import BinariesMissing

ALL = (
    "filter",
    "hostile",
    "webhook",
    "admission",
    *GROUPS,
    "preemption",
    "realnode",
    "resize",
    "dra",
    "limiter",
    "inspect",
    "monitor",
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
    if "dra" in chosen.groups:
        yield from dra_rows(run, chosen.rounds)
    if "limiter" in chosen.groups:
        yield from limiter_rows(run)
    if "inspect" in chosen.groups:
        yield from inspect_rows(run)
        yield from dashboard_rows(run)
    if "monitor" in chosen.groups:
        yield from monitor_rows(run)


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


def write(path: Path, rows: list[Row], begun: datetime, seconds: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "began": begun.isoformat(timespec="seconds"),
        "seconds": round(seconds),
        "machine": machine(),
        "rows": [row.as_json() for row in rows],
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def main() -> int:
    chosen = options()
    begun, clock = datetime.now(UTC), time.monotonic()
    rows: list[Row] = []

    def say(line: str) -> None:
        print(f"{time.monotonic() - clock:6.1f} s  {line}", file=sys.stderr, flush=True)

    try:
        with Run.begun(say) as run:
            for row in measure(run, chosen):
                rows.append(row)
                say(f"  {row.what}: {row.measured}")
    except BinariesMissing as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if rows:
            path = chosen.json or RESULTS / f"{begun:%Y%m%dT%H%M%SZ}.json"
            write(path, rows, begun, time.monotonic() - clock)
            console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
            console.print(
                table(
                    rows, f"{os.cpu_count()} CPUs shared by everything, {begun:%Y-%m-%d %H:%M} UTC"
                )
            )
            console.print(f"figures: {path}")
    return 1 if chosen.check and any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(interrupts.run_whole(main))
