"""A plugin of pytest: a test that is skipped has failed, with the reason of the skip.

For machines that are meant to run everything: ``HAMI_E2E_STRICT=1``.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Makes the report of a skipped test that of a failed one."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"HAMI_E2E_STRICT is set, so nothing may be skipped here. {reason}"
    return report
