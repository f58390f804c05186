"""``python -m testing.compatibility [--minors 1.33,1.34] [-- pytest arguments]``: tests all pinned versions.

Runs the end-to-end tests for each minor version in ``testing/controlplane``, and writes the tables of
``docs/compatibility.md`` and the README from pytest's reports. Rows of other versions stay unchanged. A digest in the
document detects a table that was edited by hand, which is an error. Failed tests run a second time by themselves, and
the table lists those that passed then. The exit status is 0 if no test failed both times.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from testing import interrupts
from testing.arguments import folder_to_write
from testing.binaries import (
    MINOR_VARIABLE,
    BinariesMissing,
    find,
    minor_of,
    minors,
    reported_version,
)

__all__ = [
    "DOCUMENT",
    "README",
    "Row",
    "RunBroken",
    "TableChanged",
    "left_out",
    "merged",
    "outcomes",
    "summarized",
    "table_rows",
    "write_rows",
]

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "compatibility.md"
README = ROOT / "README.md"
TESTED = ("hami", "testing", "e2e", "manifests", "setup.cfg", "pyproject.toml")
"""What a run's outcome hangs on; changes there that are not committed are told with the commit."""
REAL_NODE, KIND = "*/test_realnode*", "*/test_kind*"
"""Tests that need a kubelet of that version, and tests that need kind."""
ANOTHER_CLUSTER = ("HAMI_E2E_KUBECONFIG", "HAMI_E2E_KIND")
AGAIN_AT_MOST = 10
"""Failed tests that are run once more; if more than these failed, it is no noise."""
HEAD = (
    "| Kubernetes | passed | passed when run again | failed | skipped | left out | date (UTC) | commit |",
    "|---|---|---|---|---|---|---|---|",
)
BEGIN = re.compile(
    r"^<!-- table: written by `python -m testing\.compatibility`, not by hand; sha256 (\w+) -->\n",
    re.MULTILINE,
)
END = "<!-- end of table -->\n"
SUMMARY = "<!-- Kubernetes: written by `python -m testing.compatibility` -->\n"


class RunBroken(RuntimeError):
    """pytest did not complete; the version has no result."""


class TableChanged(RuntimeError):
    """The table of the document is not the one that was written last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Results of one run. *again*, *failed*: test names; *left_out*: in words; *version*: ``v1.36.3``."""

    version: str
    passed: int
    again: tuple[str, ...]
    failed: tuple[str, ...]
    skipped: int
    left_out: str
    date: str
    commit: str

    def __str__(self) -> str:
        cells = (
            self.version,
            str(self.passed),
            listed(self.again),
            listed(self.failed),
            str(self.skipped),
            self.left_out,
            self.date,
            self.commit,
        )
        return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def listed(names: Sequence[str]) -> str:
    """Returns the number of *names* and the first ten of them."""
    shown = [f"`{name}`" for name in names[:10]] + (["…"] if len(names) > 10 else [])
    return f"{len(names)}: {', '.join(shown)}" if names else "0"


def outcomes(report: str) -> dict[str, str]:
    """Maps test IDs to ``passed``, ``failed`` or ``skipped``, from the text of a JUnit file.

    A test whose call or teardown failed may have two entries; the worse one counts. An error is a failure.
    """
    worst: dict[str, str] = {}
    for case in ET.fromstring(report).iter("testcase"):
        name = f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}"
        tags = {child.tag for child in case}
        found = (
            "failed"
            if tags & {"failure", "error"}
            else "skipped"
            if "skipped" in tags
            else "passed"
        )
        worst[name] = min(
            worst.get(name, found), found
        )  # the outcomes sort alphabetically, worst first
    return worst


def left_out(counts: Mapping[str, int], ran: Iterable[str]) -> str:
    """Returns the tests that did not run, in words. *counts*: number of tests by file; *ran*: test IDs."""
    done = Counter(name.partition("::")[0] for name in ran)
    words = [
        f"`{Path(file).name}`" if not done[file] else f"{count - done[file]} of `{Path(file).name}`"
        for file, count in sorted(counts.items())
        if done[file] < count
    ]
    return ", ".join(words) or "nothing"


def row(
    version: str,
    first: Mapping[str, str],
    second: Mapping[str, str],
    counts: Mapping[str, int],
    *,
    date: str,
    commit: str,
) -> Row:
    """Returns the row for the outcomes of the *first* run, and of the *second* run of its failed tests, which may be
    empty.
    """
    failed = {name for name, outcome in first.items() if outcome == "failed"}
    again = {name for name in failed if second.get(name) == "passed"}
    return Row(
        version=version,
        passed=sum(outcome == "passed" for outcome in first.values()),
        again=short(again),
        failed=short(failed - again),
        skipped=sum(outcome == "skipped" for outcome in first.values()),
        left_out=left_out(counts, first),
        date=date,
        commit=commit,
    )


def short(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(name.partition("::")[2] for name in names))


def digest(block: str) -> str:
    return hashlib.sha256(block.encode()).hexdigest()


def table_rows(document: str) -> dict[str, str]:
    """Maps minor versions to lines of the table. Raises: TableChanged."""
    begin, block = block_of(document)
    if digest(block) != begin[1]:
        raise TableChanged(f"the table of {DOCUMENT.name} was changed by hand: take that back")
    return {
        minor_of(line.split()[1]): line for line in block.splitlines() if line.startswith("| v")
    }


def block_of(document: str) -> tuple[re.Match[str], str]:
    if (begin := BEGIN.search(document)) is None or END not in document[begin.end() :]:
        raise TableChanged(
            f"there is no table between its marks ({BEGIN.pattern.splitlines()[0]} and {END.strip()})"
        )
    return begin, document[begin.end() : document.index(END, begin.end())]


def merged(document: str, rows: Iterable[Row], known: Iterable[str]) -> str:
    """Returns the document with *rows* in its table, newest first; drops versions that are not *known*."""
    old = table_rows(document)
    lines = old | {minor_of(fresh.version): str(fresh) for fresh in rows}
    block = "\n".join((*HEAD, *(lines[minor] for minor in known if minor in lines))) + "\n"
    begin, before = block_of(document)
    mark = begin[0].replace(begin[1], digest(block))
    return document[: begin.start()] + mark + block + document[begin.end() + len(before) :]


def summarized(readme: str, document: str) -> str:
    """Returns *readme* with the numbers of *document*. Raises: TableChanged if its marks are missing."""
    before, begin, rest = readme.partition(SUMMARY)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise TableChanged(f"{README.name} has no {SUMMARY.strip()} with {END.strip()} after it")
    versions, passed, again, failed = zip(
        *(
            [cell.strip().partition(":")[0] for cell in line.strip("|").split("|")[:4]]
            for line in table_rows(document).values()
        ),
        strict=True,
    )
    lines = (
        ("Kubernetes", *versions),
        ("---",) * (len(versions) + 1),
        ("end-to-end tests passed", *passed),
        ("passed when run again", *again),
        ("failed", *failed),
    )
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    return f"{before}{begin}{table}{end}{after}"


def commit() -> str:
    """Returns the commit that is checked out, and whether tested files have uncommitted changes."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", *TESTED)
        return f"`{git('rev-parse', '--short=12', 'HEAD')}`" + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def pytest(words: Sequence[str], env: Mapping[str, str]) -> int:
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, env=env, check=False
    ).returncode


def count_tests(env: Mapping[str, str]) -> dict[str, int]:
    """Maps files to their number of tests."""
    command = [sys.executable, "-m", "pytest", "e2e", "--collect-only", "-qq"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RunBroken(f"pytest cannot collect e2e/:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return {
        file: int(count)
        for file, count in re.findall(r"^(e2e/\S+\.py): (\d+)$", done.stdout, re.MULTILINE)
    }


def run(words: Sequence[str], report: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Runs pytest with *words* and returns the outcomes. Raises: RunBroken."""
    status = pytest([*words, "-q", f"--junit-xml={report}"], env)
    if status not in (0, 1) or not report.exists():
        raise RunBroken(f"pytest {' '.join(words)} ended with {status} and is not counted")
    return outcomes(report.read_text())


def run_minor(minor: str, words: Sequence[str], reports: Path) -> Row:
    """Runs the tests on *minor*. Raises: RunBroken, BinariesMissing."""
    env = {key: value for key, value in os.environ.items() if key not in ANOTHER_CLUSTER} | {
        MINOR_VARIABLE: minor
    }
    version = reported_version(find(minor=minor).paths)
    begun, date = commit(), f"{datetime.now(UTC):%F}"
    first = run(["e2e", *words], reports / f"{minor}.xml", env)
    failed = [name for name, outcome in first.items() if outcome == "failed"]
    second = (
        run(failed, reports / f"{minor}-again.xml", env) if 0 < len(failed) <= AGAIN_AT_MOST else {}
    )
    ended = commit()
    return row(
        version,
        first,
        second,
        count_tests(env | {MINOR_VARIABLE: ""}),
        date=date,
        commit=begun if begun == ended else f"{begun} to {ended}",
    )


def options(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m testing.compatibility",
        description="Runs the suite on each minor of Kubernetes and writes the table.",
    )
    known = tuple(minors())
    parser.add_argument(
        "--minors", default=",".join(known), metavar="MINOR,...", help="default: %(default)s"
    )
    parser.add_argument(
        "--real-node", action="store_true", help="include the tests that need a kubelet"
    )
    parser.add_argument(
        "--reports", type=folder_to_write, metavar="FOLDER", help="keep pytest's reports here"
    )
    parser.add_argument("pytest", nargs="*", metavar="ARGUMENT", help="passed to pytest, after --")
    chosen = parser.parse_args(words)
    chosen.minors = chosen.minors.split(",")
    if unknown := [minor for minor in chosen.minors if minor not in known]:
        parser.error(f"--minors: there is no {', '.join(unknown)}; there are {', '.join(known)}")
    return chosen


def pytest_words(chosen: argparse.Namespace) -> list[str]:
    without = (KIND,) if chosen.real_node else (REAL_NODE, KIND)
    return [*(f"--ignore-glob={pattern}" for pattern in without), *chosen.pytest]


def write_rows(
    document: Path, readme: Path, chosen: Iterable[str], run_one: Callable[[str], Row]
) -> int:
    """Runs the *chosen* versions, writes each row when it is complete, and returns the exit status.

    A version that cannot be built or does not complete is reported on standard error and keeps its row.
    """
    status = 0
    for minor in chosen:
        try:
            table_rows(document.read_text())  # fail before the tests run for minutes
            fresh = run_one(minor)
            document.write_text(merged(document.read_text(), [fresh], minors()))
            readme.write_text(summarized(readme.read_text(), document.read_text()))
        except (BinariesMissing, RunBroken, TableChanged) as error:
            print(f"Kubernetes {minor}: {error}", file=sys.stderr)
            status = 1
        else:
            print(fresh, flush=True)
            status = 1 if fresh.failed else status
    return status


def main() -> int:
    chosen = options()
    words = pytest_words(chosen)
    with tempfile.TemporaryDirectory() as scratch:
        reports = (chosen.reports or Path(scratch)).absolute()
        return write_rows(
            DOCUMENT, README, chosen.minors, lambda minor: run_minor(minor, words, reports)
        )


if __name__ == "__main__":
    sys.exit(interrupts.run_whole(main))
