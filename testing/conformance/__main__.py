"""``python -m testing.conformance``: Kubernetes' own tests, with a slice of a GPU in every pod."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from testing import binaries
from testing.cluster import ClusterUnavailable
from testing.conformance import clusters, selection
from testing.conformance.output import Printer, say, summary
from testing.conformance.run import Run
from testing.conformance.suite import Result, Suite, SuiteBroken

DESCRIPTION = """\
Runs Kubernetes' own end-to-end tests of scheduling and of some controllers, on fake nodes.
Each of their pods gets a slice of a GPU, so that HAMi schedules it. All tests must pass, except
those in testing/conformance/not_on_kwok.txt, which cannot pass on fake nodes with any scheduler, and
are left out. The first run builds the tests and the control plane."""
EPILOG = """\
The exit status is 0 if all tests have passed and each pod had its slice, 1 if not, and 2 if no
test was selected. With --without-hami, it is 0 if the list of tests that cannot pass is right."""
DEFAULT_CLUSTERS = 3
EXPECTED = (
    binaries.BinariesMissing,
    selection.ListOutdated,
    SuiteBroken,
    ClusterUnavailable,
    AssertionError,  # a cluster that is not ready in time
)
"""Errors whose message says all that a user needs."""


def main(words: list[str] | None = None) -> int:
    """Returns the exit status of the command line *words* (default: that of this process)."""
    chosen = options(words)
    try:
        return carry_out(chosen)
    except KeyboardInterrupt:
        print("stopped; nothing is left running", file=sys.stderr)
        return 130
    except EXPECTED as error:
        print(error, file=sys.stderr)
        return 1


def options(words: list[str] | None) -> argparse.Namespace:
    """Returns the options. Ends the process if they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m testing.conformance",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--focus",
        type=pattern,
        default=re.compile(""),
        metavar="REGEX",
        help="run only tests whose names contain this expression",
    )
    parser.add_argument(
        "--without-hami",
        action="store_true",
        help="run the tests with Kubernetes' own scheduler alone, also those that are listed, "
        "and print where the list is outdated",
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="print which tests would run, and why others are left out",
    )
    parser.add_argument(
        "--clusters",
        type=count,
        default=DEFAULT_CLUSTERS,
        metavar="NUMBER",
        help="run tests on so many clusters at once (default: %(default)s)",
    )
    parser.add_argument(
        "--logs",
        type=Path,
        metavar="FOLDER",
        help="keep what each test prints in a file of this folder",
    )
    return parser.parse_args(words)


def pattern(text: str) -> re.Pattern[str]:
    """Returns a regular expression of the command line."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None


def count(text: str) -> int:
    """Returns a number of clusters of the command line."""
    if not re.fullmatch(r"[1-9]\d?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 99")
    return int(text)


def carry_out(chosen: argparse.Namespace) -> int:
    """Runs the tests, or lists them; returns the exit status."""
    suite = Suite(binaries.find_conformance())
    choice = selection.chosen(
        suite.names(),
        selection.listed(),
        focus=chosen.focus,
        with_listed=chosen.without_hami,
    )
    for test, reason in choice.left_out.items():
        say(f"left out: {test}: {reason}")
    if not choice.tests:
        print(f"--focus: no test is left that contains {chosen.focus.pattern!r}", file=sys.stderr)
        return 2
    if chosen.list:
        say("\n".join(choice.tests))
        return 0
    check_version()
    results = run_tests(suite, choice.tests, chosen)
    if chosen.without_hami:
        complaints = selection.stale(selection.listed(), results)
    else:
        complaints = selection.shortcomings(results)
    for complaint in complaints:
        say(complaint)
    return int(bool(complaints))


def run_tests(suite: Suite, tests: Sequence[str], chosen: argparse.Namespace) -> list[Result]:
    """Runs *tests*, and prints their results and a summary."""
    started = time.monotonic()
    printer = Printer(len(tests), chosen.logs)
    opened = clusters.without_hami if chosen.without_hami else clusters.with_hami
    run = Run(suite, opened, tests, report=printer.report, say=say)
    results = run.carry_out(min(chosen.clusters, len(tests)))
    say(f"{summary(results)}, in {time.monotonic() - started:.0f} s")
    return results


def check_version() -> None:
    """Builds the control plane if needed.

    Raises: ClusterUnavailable if it is of another version than the tests.
    """
    found, tests = binaries.find().kube_version, binaries.CONFORMANCE.version
    if binaries.minor_of(found) != binaries.minor_of(tests):
        raise ClusterUnavailable(
            f"the tests are those of Kubernetes {tests}, but the control plane is {found}: "
            f"check {binaries.MINOR_VARIABLE}, HAMI_E2E_BIN and PATH"
        )


if __name__ == "__main__":
    sys.exit(main())
