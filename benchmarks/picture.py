"""``python -m benchmarks.picture RESULTS SVG`` draws how much of a cluster is allocated, the more is requested.

RESULTS is the JSON of ``python -m benchmarks trace``. `make_lines` says which lists of pods are shown.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Line", "make_lines", "picture"]

WIDTH, HEIGHT = 800, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 540, 30, 360
"""The edges of the plot."""
FIRST, STEP = 80, 5
"""The first percent on each axis, and between two marks."""
LABEL = 16
"""Pixels between two labels of lines, at least."""
SHOWN = (
    ("cpu0", "allocated", "least-waste, GPU nodes for GPUs", "#0550ae"),
    ("cpu0", "hami_allocated", "binpack, GPU nodes for GPUs", "#bc4c00"),
    ("default", "allocated", "least-waste", "#218bff"),
    ("default", "hami_allocated", "binpack", "#e16f24"),
)
"""List of pods, figures of its row, label, color."""


@dataclass(frozen=True, slots=True)
class Line:
    """*points*: the percent of all GPUs that are allocated, by the percent that are requested."""

    label: str
    color: str
    points: Mapping[int, float]

    @property
    def end(self) -> float:
        """The percent that is allocated at the end."""
        return self.points[max(self.points)]


def make_lines(rows: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Returns the lines that *rows* of the results have."""
    lines = []
    for row in rows:
        figures = row["figures"]
        for name, key, label, color in SHOWN:
            if figures.get("list") == name:
                points = {int(mark): percent for mark, percent in figures[key].items()}
                lines.append(Line(label, color, points))
    return lines


def picture(lines: Sequence[Line]) -> str:
    """Returns the SVG document with *lines*, each with its label at its end."""
    last = max(max(line.points) for line in lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="13" fill="#24292f">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *_axes(last),
        *_lines(lines, last),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _axes(last: int) -> Iterator[str]:
    for percent in range(FIRST, 101, STEP):
        y = _y(percent)
        yield f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="#d0d7de"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{percent}</text>'
    for percent in range(FIRST, last + 1, STEP):
        x = _x(percent, last)
        yield f'<text x="{x:.1f}" y="{BOTTOM + 20}" text-anchor="middle">{percent}</text>'
    middle = (LEFT + RIGHT) / 2
    yield f'<text x="{middle}" y="{BOTTOM + 44}" text-anchor="middle">requested, % of all GPUs</text>'
    yield f'<text x="{LEFT - 40}" y="{TOP - 12}">allocated, % of all GPUs</text>'
    yield (
        f'<path d="M{LEFT} {_y(FIRST):.1f}L{_x(100, last):.1f} {_y(100):.1f}" '
        'stroke="#8c959f" stroke-dasharray="4 4"/>'
    )


def _lines(lines: Sequence[Line], last: int) -> Iterator[str]:
    free = 0.0  # below the label before
    for line in sorted(lines, key=lambda line: -line.end):
        places = []
        for requested, allocated in line.points.items():
            if requested >= FIRST:
                places.append(f"{_x(requested, last):.1f},{_y(allocated):.1f}")
        yield (
            f'<polyline points="{" ".join(places)}" fill="none" stroke="{line.color}" '
            'stroke-width="2"/>'
        )
        y = max(_y(line.end) + 4, free)
        free = y + LABEL
        text = f"{line.label}: {line.end:.1f}"
        yield f'<text x="{RIGHT + 8}" y="{y:.1f}" fill="{line.color}">{text}</text>'


def _x(percent: float, last: int) -> float:
    return LEFT + (RIGHT - LEFT) * (percent - FIRST) / (last - FIRST)


def _y(percent: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * (percent - FIRST) / (100 - FIRST)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picture")
    parser.add_argument("results", type=Path, help="JSON of python -m benchmarks trace")
    parser.add_argument("svg", type=Path, help="file to write")
    chosen = parser.parse_args()
    rows = json.loads(chosen.results.read_text())["rows"]
    chosen.svg.write_text(picture(make_lines(rows)))


if __name__ == "__main__":
    main()
