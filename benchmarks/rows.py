"""Rows of the results as a table and as JSON. Measures nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

__all__ = ["Latency", "Row", "ratio", "remarks", "table"]


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of a series, in milliseconds."""

    p50: float
    p99: float
    longest: float
    count: int

    @classmethod
    def of(cls, microseconds: Sequence[float]) -> Latency:
        """Returns nearest-rank percentiles."""
        ordered = sorted(microseconds)

        def at(share: float) -> float:
            return ordered[max(0, math.ceil(share * len(ordered)) - 1)] / 1000

        return cls(at(0.5), at(0.99), ordered[-1] / 1000, len(ordered))

    def __str__(self) -> str:
        return f"{self.p50:.2f} / {self.p99:.2f} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table.

    *met*: ``None`` without a target. *compared*: a comparison, measured in the same run unless it says otherwise.
    *figures*: raw values for the JSON.
    """

    group: str
    what: str
    measured: str
    target: str = ""
    met: bool | None = None
    compared: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def ratio(value: float, other: float, name: str) -> str:
    """Returns *value* as a multiple of *other*, in words."""
    return f"{value / other:.2f} × {name}" if other else f"{name} came to nothing"


def remarks(*texts: str) -> str:
    """Joins the remarks that are not empty."""
    return "; ".join(filter(None, texts))


def table(rows: Sequence[Row], title: str) -> Table:
    """Returns the rows as a table for a terminal."""
    made = Table(title=title, title_justify="left", show_lines=True)
    for name, width in (
        ("what", 40),
        ("measured", 34),
        ("target", 22),
        ("met", 3),
        ("compared to", 48),
    ):
        made.add_column(name, max_width=width, overflow="fold")
    marks = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}
    for row in rows:
        made.add_row(row.what, row.measured, row.target, marks[row.met], row.compared)
    return made
