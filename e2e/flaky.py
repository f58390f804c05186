"""Known flaky tests: only those in ``flaky.txt`` get a second attempt, and the summary of the run shows it.

That file (``e2e.reasons``) has the ID of a test as pytest prints it, and the cause of the failures:
``e2e/test_faults.py::test_name[case]  the node's lease expires when the disk is slow``.
A test is listed only until it is repaired.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

__all__ = ["FILE", "FlakyTests"]

FILE = Path(__file__).with_name("flaky.txt")
FIRST_FAILURE = "failure of the first attempt"
"""Property of the report of the second attempt."""


class FlakyTests:
    """A pytest plugin that runs a failed test of *causes* a second time, and counts only the second result."""

    def __init__(self, causes: dict[str, str]) -> None:
        self._causes = causes
        self._failures: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if item.nodeid not in self._causes:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if any(report.failed for report in reports):
            failure = "\n".join(report.longreprtext for report in reports if report.failed)
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
            reports[0].user_properties.append((FIRST_FAILURE, failure))
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collects failures from reports: the tests may have run in other processes (pytest-xdist)."""
        if report.when == "setup":
            self._failures.update(
                {
                    report.nodeid: str(text)
                    for name, text in report.user_properties
                    if name == FIRST_FAILURE
                }
            )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._failures:
            terminalreporter.section("known flaky tests that failed at the first attempt")
        for test, failure in self._failures.items():
            terminalreporter.write_line(f"{test}: {self._causes[test]}\n{failure}")
