"""The same rows from two checkouts, measured in turns: ``python -m benchmarks --beside CHECKOUT``.

Times of two hours do not compare, since other machines of the host take a part of the processors. So a group runs here,
there, here, there, and each pair of neighbors gives one ratio. Each side has its own interpreter and working directory,
and is called by the command line that every revision has, so an older one needs nothing of this module.
"""

from __future__ import annotations

import argparse
import enum
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.processes import Run

__all__ = [
    "Checkout",
    "Comparison",
    "Results",
    "checkout",
    "compare",
    "comparisons",
    "table",
    "values_of",
]

TOLERANCE = 0.05
"""A figure may be so much worse, beyond its spread."""
ROOT = Path(__file__).parents[1]
YARDSTICK = "machine"
"""The group of rows about the machine: the same in every checkout."""
NOT_JUDGED = frozenset({"max_ms", "stolen_seconds", "created_seconds", "batch_seconds"})
"""Figures that one moment decides, that come from other machines, or that others contain."""
RATES = frozenset({"rate", "per_second", "pods_per_second"})
COSTS = frozenset({"seconds", "milliseconds", "microseconds", "mib"})
COST_UNITS = ("_seconds", "_ms", "_us", "_ns", "_s", "_mib")

Object = dict[str, Any]
Key = tuple[str, str, str]
"""Group, row and figure."""


class Direction(enum.Enum):
    """How a figure becomes worse."""

    GROWS = "grows"
    SHRINKS = "shrinks"


@dataclass(frozen=True, slots=True)
class Checkout:
    """A working tree of this project, and the interpreter whose packages belong to it."""

    name: str
    folder: Path
    python: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A figure of a row, measured in turns. *ours* and *theirs* have the same length."""

    group: str
    what: str
    figure: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def direction(self) -> Direction:
        """Raises: KeyError if the figure is not judged, and so in no comparison."""
        direction = direction_of(self.figure)
        if direction is None:
            raise KeyError(self.figure)
        return direction

    @property
    def ratios(self) -> list[float]:
        """For each pair of runs, ours as a multiple of theirs; above 1, ours is worse."""
        if self.direction is Direction.GROWS:
            return [mine / other for mine, other in zip(self.ours, self.theirs, strict=True)]
        return [other / mine for mine, other in zip(self.ours, self.theirs, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def spread(self) -> float:
        """Half of the distance between the smallest and the largest ratio."""
        return (max(self.ratios) - min(self.ratios)) / 2

    @property
    def is_worse(self) -> bool:
        return self.ratio - self.spread > 1 + TOLERANCE

    def as_json(self) -> Object:
        return {
            "group": self.group,
            "what": self.what,
            "figure": self.figure,
            "ours": self.ours,
            "theirs": self.theirs,
            "ratio": self.ratio,
            "spread": self.spread,
            "worse": self.is_worse,
        }


def checkout(text: str) -> Checkout:
    """Returns the checkout at the path *text*, as the type of an argument. Raises: ArgumentTypeError."""
    folder = Path(text).resolve()
    python = folder / ".venv" / "bin" / "python"
    if not (folder / "benchmarks" / "__main__.py").is_file():
        raise argparse.ArgumentTypeError(f"{text}: expected a checkout: it has no benchmarks")
    if not python.is_file():
        raise argparse.ArgumentTypeError(
            f"{text}: it has no interpreter .venv/bin/python with its packages"
        )
    home = package_home(python)
    if home != folder:
        raise argparse.ArgumentTypeError(
            f"{text}: the package hami of .venv/bin/python is that of {home}"
        )
    return Checkout(folder.name, folder, python)


def package_home(python: Path) -> Path | None:
    """Returns the directory whose package *hami* the programs started by *python* use; None if there is none."""
    done = subprocess.run(
        [python, "-c", "import hami; print(hami.__file__)"],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return None
    return Path(done.stdout.strip()).resolve().parents[1]


def direction_of(figure: str) -> Direction | None:
    """Returns how *figure*, a path with dots, becomes worse; None if it is not judged."""
    name = figure.rpartition(".")[2]
    if name in NOT_JUDGED:
        return None
    if name in RATES:
        return Direction.SHRINKS
    if name in COSTS or name.endswith(COST_UNITS):
        return Direction.GROWS
    return None


def values_of(figures: Mapping[str, Any], path: str = "") -> dict[str, float]:
    """Returns the judged figures of a row by their path; a series counts with its median, and runs with their mean."""
    found: dict[str, float] = {}
    for name, value in figures.items():
        at = f"{path}{name}"
        if name == "cpu_seconds" and isinstance(value, dict):
            continue  # of all programs of the machine, in a time that is not always the same
        if isinstance(value, dict):
            found |= values_of(value, f"{at}.")
        elif direction_of(at) is None and not is_series_of_runs(value):
            continue
        elif isinstance(value, list):
            found |= values_of_list(value, at)
        elif isinstance(value, int | float):
            found[at] = float(value)
    each = cpu_ms_each(figures)
    if each is not None:
        found[f"{path}cpu_ms"] = each
    return found


def is_series_of_runs(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def values_of_list(values: list[Any], path: str) -> dict[str, float]:
    """Returns the median of numbers, or the means over runs."""
    if not is_series_of_runs(values):
        numbers = [value for value in values if isinstance(value, int | float)]
        return {path: statistics.median(numbers)} if numbers else {}
    series: dict[str, list[float]] = {}
    for run in values:
        for name, value in values_of(run, f"{path}.").items():
            series.setdefault(name, []).append(value)
    return {name: statistics.mean(numbers) for name, numbers in series.items()}


def cpu_ms_each(figures: Mapping[str, Any]) -> float | None:
    """Returns the CPU time of hami for each of a number of requests."""
    spent, count = figures.get("cpu_seconds"), figures.get("count")
    if not isinstance(spent, dict) or "hami" not in spent or not count:
        return None
    return float(1000 * spent["hami"] / count)


def comparisons(
    ours: Sequence[Sequence[Object]], theirs: Sequence[Sequence[Object]]
) -> tuple[list[Comparison], list[str]]:
    """Compares the rows of runs: *ours* and *theirs* have the rows of each run, as JSON.

    Returns the comparisons, and what only one of them measures. A figure is compared if it is above 0 in all runs.
    """
    mine, other = series_of(ours), series_of(theirs)
    found, alone = [], []
    for key in [*mine, *(key for key in other if key not in mine)]:
        if key not in mine or key not in other:
            where = "only here" if key in mine else "only there"
            alone.append(f"{where}: {' · '.join(key)}")
            continue
        pairs = list(zip(mine[key], other[key], strict=False))
        if all(one > 0 and another > 0 for one, another in pairs):
            group, what, figure = key
            found.append(
                Comparison(
                    group=group,
                    what=what,
                    figure=figure,
                    ours=tuple(one for one, _ in pairs),
                    theirs=tuple(another for _, another in pairs),
                )
            )
    return found, alone


def series_of(runs: Sequence[Sequence[Object]]) -> dict[Key, list[float]]:
    """Returns the values of each figure in the order of *runs*."""
    series: dict[Key, list[float]] = {}
    for rows in runs:
        for row in rows:
            if row["group"] == YARDSTICK:
                continue
            for figure, value in values_of(row["figures"]).items():
                series.setdefault((row["group"], row["what"], figure), []).append(value)
    return series


def units(chosen: argparse.Namespace) -> Iterator[list[str]]:
    """Yields the arguments of each run: the smaller a run, the closer the two sides are in time."""
    for group in chosen.groups:
        if group == "filter":
            for size in chosen.nodes:
                yield [group, "--nodes", str(size)]
        elif group == "large":
            yield [group, "--large", str(chosen.large), "--rounds", str(chosen.rounds)]
        else:
            yield [group, "--rounds", str(chosen.rounds)]


def measured(run: Run, where: Checkout, words: list[str]) -> list[Object]:
    """Returns the rows of one run in a checkout. Raises: CalledProcessError if it ends with an error."""
    run.say(f"{where.name}: {' '.join(words)}")
    file = run.folder / "rows.json"
    subprocess.run(
        [where.python, "-m", "benchmarks", *words, "--json", file],
        cwd=where.folder,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    rows: list[Object] = json.loads(file.read_text())["rows"]
    file.unlink()
    return rows


@dataclass(slots=True)
class Results:
    """What a run with ``--beside`` has found so far."""

    found: list[Comparison] = field(default_factory=list)
    alone: list[str] = field(default_factory=list)
    """Figures that only one checkout has."""
    failed: list[str] = field(default_factory=list)
    """Runs that ended with an error."""

    @property
    def worse(self) -> list[Comparison]:
        return [comparison for comparison in self.found if comparison.is_worse]

    def as_json(self) -> Object:
        return {
            "comparisons": [comparison.as_json() for comparison in self.found],
            "alone": self.alone,
            "failed": self.failed,
        }


def compare(run: Run, chosen: argparse.Namespace, results: Results) -> None:
    """Measures the groups of *chosen* in turns with the checkout ``chosen.beside``, and adds to *results*."""
    for words in units(chosen):
        measure_in_turns(run, chosen, words, results)


def measure_in_turns(
    run: Run, chosen: argparse.Namespace, words: list[str], results: Results
) -> None:
    """Runs a group several times on each side. What two pairs of runs have shown counts, however the third ends."""
    here = Checkout("here", ROOT, Path(sys.executable))
    ours: list[list[Object]] = []
    theirs: list[list[Object]] = []
    try:
        for _ in range(chosen.pairs):
            ours.append(measured(run, here, words))
            theirs.append(measured(run, chosen.beside, words))
    except subprocess.CalledProcessError as error:
        name = here.name if len(ours) == len(theirs) else chosen.beside.name
        results.failed.append(f"{' '.join(words)}: ended with {error.returncode} in {name}")
    finally:
        if len(theirs) > 1:
            compared, alone = comparisons(ours[: len(theirs)], theirs)
            results.found += compared
            results.alone += alone


def table(found: Sequence[Comparison], other: str) -> Table:
    """Returns the comparisons as a table for a terminal; *other*: the name of the other checkout."""
    made = Table(
        title=f"{os.cpu_count()} CPUs shared by everything; in turns with {other}; medians. "
        f"Worse: the ratio without its spread is above {1 + TOLERANCE:g}",
        title_justify="left",
    )
    for name, width in (("what", 60), ("figure", 24)):
        made.add_column(name, max_width=width, overflow="fold")
    for name in ("here", "there", "ratio", "spread"):
        made.add_column(name, justify="right")
    made.add_column("worse")
    for comparison in found:
        made.add_row(
            comparison.what,
            comparison.figure,
            f"{statistics.median(comparison.ours):,.4g}",
            f"{statistics.median(comparison.theirs):,.4g}",
            f"{comparison.ratio:.2f}",
            f"± {comparison.spread:.2f}",
            "[red]worse[/]" if comparison.is_worse else "",
        )
    return made
