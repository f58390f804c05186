"""``python -m e2e.gpu``: the steps, each a process of its own with a limit of time. One that fails is recorded, and the
next one runs; after each, the results are written as JSON and printed as a table, so that a run that is cut off loses
one step.

``--pack`` builds what they need, on a machine with a compiler and a network. ``--fake`` runs them on the fake driver.
``--slot a`` runs the steps of one slot, ``--only a1,b2`` these steps. Slot e has the questions that are open.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from e2e.gpu import compute, holds, interplay, questions
from e2e.gpu.builds import FOLDER, pack
from e2e.gpu.card import Card, Skipped, Way
from testing import interrupts
from testing.arguments import folder_to_write
from testing.limiter.builds import ROOT, Unavailable
from testing.limiter.wheels import WheelMissing

__all__ = ["STEPS", "Step"]


@dataclass(frozen=True, slots=True)
class Step:
    """A question. *seconds*: after which it is given up."""

    name: str
    seconds: int
    run: Callable[[Card], dict[str, Any]]

    @property
    def title(self) -> str:
        """What it finds out, in a few words."""
        told = self.run.func.__doc__ if isinstance(self.run, partial) else self.run.__doc__
        return re.split(r"[.:;,]", " ".join((told or "").split()))[0]


STEPS = {
    step.name: step
    for step in (
        Step("a1", 20, holds.record),
        Step("a2", 20, holds.resolution),
        Step("a3", 30, holds.capture_matrix),
        Step("a4", 120, holds.suite),
        Step("a5", 60, holds.granularity),
        Step("a6", 150, holds.truth),
        Step("a7", 45, holds.kills),
        Step("a8", 75, holds.neighbor),
        Step("a9", 90, holds.others),
        Step("b1", 60, compute.costs),
        Step("b2", 90, compute.events),
        Step("b3", 110, compute.lazy),
        Step("b4", 150, compute.accuracy),
        Step("b5", 120, compute.tenants),
        Step("b6", 30, compute.autotune),
        Step("b7", 120, partial(compute.tenants, monitored=True)),
        Step("b8", 30, compute.brackets),
        Step("b9", 30, compute.samples),
        Step("c1", 30, interplay.captures),
        Step("c2", 20, interplay.deep_binding),
        Step("c3", 20, interplay.no_nvml),
        Step("c4", 30, interplay.own_pids),
        Step("c5", 90, interplay.tools),
        Step("c6", 120, interplay.starts),
        Step("c7", 120, interplay.churn),
        Step("d1", 110, partial(compute.lazy, way=Way.HAMI_CORE)),
        Step("d2", 150, partial(compute.accuracy, limits=(30,), way=Way.HAMI_CORE)),
        Step("d3", 120, partial(compute.tenants, way=Way.HAMI_CORE)),
        Step("e1", 20, questions.queries),
        Step("e2", 60, questions.contexts),
        Step("e3", 30, questions.escapes),
        Step("e4", 45, questions.checkpoints),
        Step("e5", 115, questions.training),
        Step("e6", 90, questions.minute),
        Step("e7", 140, questions.server),
        Step("e8", 90, questions.copies),
        Step("e9", 90, questions.frameworks),
        Step("e10", 80, questions.serving),
    )
}
"""Slot d is HAMi-core, for comparison: after ``--pack --hami-core`` with a library of theirs. Slot e takes at most 13
minutes."""


def in_process(step: Step, is_fake: bool, folder: Path) -> dict[str, Any]:
    """Runs a step in a process of its own; returns what it has found, or why it has not."""
    path = folder / f"{step.name}.json"
    path.unlink(missing_ok=True)
    words = [sys.executable, "-m", "e2e.gpu", "--step", step.name, "--out", str(folder)] + [
        "--fake"
    ] * is_fake
    begun = time.monotonic()
    failed = {}
    try:
        done = subprocess.run(
            words, cwd=ROOT, capture_output=True, text=True, timeout=step.seconds, check=False
        )
        if done.returncode:
            failed = {
                "error": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[
                    -1
                ],
                "stderr": done.stderr[-4000:],
            }
    except subprocess.TimeoutExpired:
        failed = {"error": f"not done in {step.seconds} s"}
    found = json.loads(path.read_text()) if path.exists() else {}
    path.unlink(missing_ok=True)
    took = round(time.monotonic() - begun, 1)
    return {"step": step.name, "title": step.title, "took_s": took, **found, **failed}


def here(step: Step, is_fake: bool, folder: Path) -> int:
    """Runs a step in this process, and writes what it has found. Raises whatever the step raises."""
    results = folder / f"{step.name}.json"
    try:
        card = Card(results, is_fake=is_fake)
        card.keep(step.run(card))
    except Skipped as error:
        results.write_text(json.dumps({"skipped": str(error)}))
    return 0


def verdict(result: dict[str, Any]) -> str:
    """One word, and a reason if there is one."""
    for word in ("error", "skipped"):
        if word in result:
            return f"{word}: {result[word]}"
    return {True: "good", False: "NOT GOOD"}.get(result.get("good", ""), "recorded")


def table(results: list[dict[str, Any]]) -> str:
    """All results so far."""
    lines = []
    for one in results:
        lines.append(f"{one['step']}  {one['took_s']:6.1f} s  {one['title']}\n    {verdict(one)}")
        rows = [one["columns"], *one["rows"]] if "columns" in one else []
        lines += [
            "    "
            + "  ".join(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row)
            for row in rows
        ]
    return "\n".join(lines)


def chosen(slot: str, only: str) -> list[Step]:
    """The steps that were asked for; a slot begins with what its figures belong to. Raises: SystemExit for a name that
    there is not."""
    if not only:
        steps = [step for step in STEPS.values() if step.name.startswith(slot)]
        return steps if STEPS["a1"] in steps else [STEPS["a1"], *steps]
    if unknown := [name for name in only.split(",") if name not in STEPS]:
        raise SystemExit(f"no such step: {', '.join(unknown)}")
    return [STEPS[name] for name in only.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.gpu", description=__doc__.partition("\n\n")[0]
    )
    parser.add_argument("--pack", action="store_true", help="build what the steps need, and end")
    parser.add_argument(
        "--hami-core",
        type=Path,
        metavar="FILE",
        help="with --pack: a library of HAMi-core to compare with",
    )
    parser.add_argument("--fake", action="store_true", help="run on the fake driver")
    parser.add_argument(
        "--slot", default="", choices=["", "a", "b", "c", "d", "e"], help="steps of one slot"
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="the results are NAME-SLOT.json; by default, NAME is fake or gpu",
    )
    parser.add_argument("--only", default="", metavar="STEP,...", help="these steps")
    parser.add_argument(
        "--out",
        type=folder_to_write,
        metavar="FOLDER",
        default=os.environ.get("OUT") or str(ROOT / "benchmarks" / "results" / "gpu"),
        help="folder of the results; default: $OUT, or benchmarks/results/gpu",
    )
    parser.add_argument("--step", choices=list(STEPS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.hami_core and not given.pack:
        parser.error("--hami-core needs --pack")
    if given.hami_core and not given.hami_core.is_file():
        parser.error(f"--hami-core: there is no file {given.hami_core}")
    if given.step:
        return here(STEPS[given.step], given.fake, given.out)
    try:
        if given.pack or (given.fake and not (FOLDER / "libvgpu.so").exists()):
            print("\n".join(pack(hami_core=given.hami_core)))
        if given.pack:
            return 0
    except (Unavailable, WheelMissing) as error:
        raise SystemExit(str(error)) from error
    results: list[dict[str, Any]] = []
    name = given.name or ("fake" if given.fake else "gpu")
    part = given.slot or given.only.replace(",", "-") or "all"
    path = given.out / f"{name}-{part}.json"
    for step in chosen(given.slot, given.only):
        results.append(in_process(step, given.fake, given.out))
        path.write_text(json.dumps(results, indent=1) + "\n")
        print(table(results[-1:]), flush=True)
    print(f"results: {path}")
    return 1 if given.fake and any("error" in one for one in results) else 0


if __name__ == "__main__":
    sys.exit(interrupts.run_whole(main))
