"""The words of the documentation: who reads each page, and a bound on its length that only shrinks.

``python -m tools.words`` prints the words of README.md and docs/*.md by page and reader, and fails above a bound of
``tools/words.json``. ``--shrink`` lowers the bounds to the words of today; it never raises one. Code blocks do not
count. What a program writes, a page or the table between two marks, is counted apart.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["READERS", "Words", "complaints", "count", "measure", "shrunk", "sums"]

ROOT = Path(__file__).parents[1]
BOUNDS = Path(__file__).with_name("words.json")
GENERATED_PART = re.compile(
    r"^<!-- [^\n]*(?:python -m|hami vendors)[^\n]*-->\n.*?^<!-- end[^\n]*-->", re.M | re.S
)
BLOCK = re.compile(r"^ *```.*?^ *```$", re.M | re.S)
COMMENT = re.compile(r"<!--.*?-->", re.S)
TARGET = re.compile(r"\]\([^)]*\)")
WORD = re.compile(r"\S*\w\S*")
STEP = 100
"""A bound is a multiple of this, so that a changed sentence seldom changes it."""

PROGRAM = "written by a program"
"""In place of a reader: people only look things up there."""

READERS = {
    "README.md": "users",
    "docs/concepts.md": "users",
    "docs/dashboard.md": "users",
    "docs/dra.md": "users",
    "docs/inspection.md": "users",
    "docs/mig.md": "users",
    "docs/priority.md": "users",
    "docs/quickstart.md": "users",
    "docs/quickstart-gpu-operator.md": "users",
    "docs/resize.md": "users",
    "docs/room.md": "users",
    "docs/usage.md": "users",
    "docs/vendors.md": "users",
    "docs/accounting.md": "operators",
    "docs/alerts.md": "operators",
    "docs/events.md": "operators",
    "docs/failures.md": "operators",
    "docs/installation.md": "operators",
    "docs/maintenance.md": "operators",
    "docs/metrics.md": "operators",
    "docs/migrate.md": "operators",
    "docs/platforms.md": "operators",
    "docs/queues.md": "operators",
    "docs/rights.md": "operators",
    "docs/troubleshooting.md": "operators",
    "docs/upgrade.md": "operators",
    "docs/utilization.md": "operators",
    "docs/add-a-vendor.md": "vendors",
    "docs/protocol.md": "vendors",
    "docs/comparison.md": "evaluators",
    "docs/compatibility.md": "evaluators",
    "docs/performance.md": "evaluators",
    "docs/threat-model.md": "security reviewers",
    "docs/architecture.md": "contributors",
    "docs/claims.md": "contributors",
    "docs/limiter.md": "contributors",
    "docs/tested-failures.md": "contributors",
    "docs/configuration.md": PROGRAM,
    "docs/documents.md": PROGRAM,
    "docs/helm-values.md": PROGRAM,
}
"""Every page has one reader."""
BOUNDED = {"users and operators": ("users", "operators")}
"""Sums of readers with a bound, beside that of all."""


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a page. *generated*: of these, what a program writes is apart."""

    written: int
    generated: int


def count(text: str) -> Words:
    """Returns the words of a page without its code blocks."""
    generated = sum(words_of(part) for part in GENERATED_PART.findall(text))
    return Words(words_of(GENERATED_PART.sub("", text)), generated)


def words_of(text: str) -> int:
    """Returns the words of *text*: what has a letter or digit, without code blocks, comments and targets of links."""
    for part in (BLOCK, COMMENT):
        text = part.sub("", text)
    return len(WORD.findall(TARGET.sub("]", text).replace("|", " ")))


def measure(root: Path = ROOT) -> dict[str, Words]:
    """Returns the words of each page, by its path."""
    result = {}
    for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        path, text = str(page.relative_to(root)), page.read_text()
        generated = READERS.get(path) == PROGRAM
        result[path] = Words(0, words_of(text)) if generated else count(text)
    return result


def sums(pages: Mapping[str, Words]) -> dict[str, int]:
    """Returns the written words of each bounded group of readers, and of all."""
    by_reader: Counter[str] = Counter()
    for path, words in pages.items():
        by_reader[READERS[path]] += words.written
    result = {}
    for name, readers in BOUNDED.items():
        result[name] = sum(by_reader[reader] for reader in readers)
    result["all"] = by_reader.total()
    return result


def complaints(totals: Mapping[str, int], bounds: Mapping[str, int]) -> list[str]:
    """Returns which sums exceed their bounds."""
    return [
        f"{name}: {total} words, {bounds[name]} allowed: say it shorter, or cut what is said elsewhere"
        for name, total in totals.items()
        if total > bounds[name]
    ]


def shrunk(totals: Mapping[str, int], bounds: Mapping[str, int]) -> dict[str, int]:
    """Returns *bounds*, lowered to the next multiple above the sums."""
    return {name: min(bounds[name], -(-total // STEP) * STEP) for name, total in totals.items()}


def report(pages: Mapping[str, Words]) -> list[str]:
    """Returns a line for each page, the pages of a reader together."""
    order = list(dict.fromkeys(READERS.values()))
    lines = []
    for path in sorted(pages, key=lambda path: (order.index(READERS[path]), path)):
        words = pages[path]
        apart = f", {words.generated} generated" if words.generated else ""
        lines.append(f"{words.written:6} {path} ({READERS[path]}{apart})")
    return lines


def main(arguments: list[str]) -> int:
    """Prints the words; returns the status to exit with."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.words",
        description="Print the words of the documentation, and fail if it has become longer.",
    )
    parser.add_argument("--shrink", action="store_true", help="lower the bounds to the words now")
    flags = parser.parse_args(arguments)
    pages = measure()
    unlisted = sorted(pages.keys() - READERS.keys())
    if unlisted:
        print(f"{', '.join(unlisted)}: name the reader in tools/words.py", file=sys.stderr)
        return 1
    totals, bounds = sums(pages), json.loads(BOUNDS.read_text())
    if flags.shrink:
        bounds = shrunk(totals, bounds)
        BOUNDS.write_text(json.dumps(bounds, indent=1) + "\n")
    for line in report(pages):
        print(line)
    for name, total in totals.items():
        print(f"{total:6} {name} (bound {bounds[name]})")
    found = complaints(totals, bounds)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
