"""Kubernetes' own tests as a program: their names, and the result of one of them on a cluster."""

from __future__ import annotations

import enum
import json
import re
import subprocess
import textwrap
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Interrupted", "Result", "State", "Suite", "SuiteBroken", "parse_names", "parse_report"]

SUITE = "Kubernetes e2e suite"
"""What the full name of each test begins with."""
TIMEOUT_S = 30 * 60
"""For one test, which has shorter limits of its own for what it waits for."""
ENDING_S = 120
"""For what a test that has reached its limit still does: it prints the state, and cleans up."""
POLL_S = 0.2
REASON_WIDTH = 300
"""Characters of a reason; the log has all of it."""


class Interrupted(Exception):
    """The run has been ended before the test."""


class SuiteBroken(Exception):
    """The program does not list its tests; the message is what it has printed."""


class State(enum.Enum):
    """How a test has ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one test has shown."""

    test: str
    state: State
    reason: str
    """Why it failed or was skipped; empty if it passed."""
    seconds: float
    log: str
    """What it has printed, and if it failed, the end of the logs of the cluster."""
    pods: int = 0
    """Its pods that were bound."""


class Suite:
    """The *program* that contains the tests."""

    def __init__(self, program: Path) -> None:
        self._program = program

    def names(self) -> tuple[str, ...]:
        """Returns the names of all tests, sorted. Raises: SuiteBroken."""
        command = [str(self._program), "--list-tests"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        names = parse_names(done.stdout)
        if done.returncode != 0 or not names:
            raise SuiteBroken(
                f"{self._program} lists no tests (status {done.returncode}):\n{done.stderr[-4000:]}"
            )
        return names

    def run(self, test: str, kubeconfig: Path, folder: Path, ended: threading.Event) -> Result:
        """Runs *test* on the cluster of *kubeconfig*, with files in *folder*.

        Raises: Interrupted if *ended* is set meanwhile.
        """
        report, log = folder / "report.json", folder / "test.log"
        report.unlink(missing_ok=True)
        command = [
            str(self._program),
            f"--kubeconfig={kubeconfig}",
            "--provider=skeleton",
            f"--ginkgo.focus=^{re.escape(f'{SUITE} {test}')}$",
            f"--ginkgo.json-report={report}",
            f"--ginkgo.timeout={TIMEOUT_S}s",
            "--ginkgo.no-color",
        ]
        started = time.monotonic()
        with (
            open(log, "w") as output,
            # a session of its own: the run decides what an interrupt from the terminal ends
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                start_new_session=True,
            ) as process,
        ):
            wait(process, ended)
        seconds = time.monotonic() - started
        text = log.read_text(errors="replace")
        if not report.exists():
            reason = f"the program ended with status {process.returncode} and without a report"
            return Result(test=test, state=State.FAILED, reason=reason, seconds=seconds, log=text)
        state, reason = parse_report(report.read_text(), test)
        return Result(test=test, state=state, reason=reason, seconds=seconds, log=text)


def wait(process: subprocess.Popen[bytes], ended: threading.Event) -> None:
    """Waits until *process* has ended; kills it at its time limit. Raises: Interrupted."""
    deadline = time.monotonic() + TIMEOUT_S + ENDING_S
    while process.poll() is None:
        if ended.wait(POLL_S):
            process.kill()
            raise Interrupted
        if time.monotonic() > deadline:
            process.kill()


def parse_names(listing: str) -> tuple[str, ...]:
    """Returns the names in the *listing* of a suite, whose lines are ``file:line: name``."""
    return tuple(sorted(re.findall(r"^ +\S+:\d+: (.+)$", listing, re.MULTILINE)))


def parse_report(text: str, test: str) -> tuple[State, str]:
    """Returns the state of *test* in a report of Ginkgo, and why it failed or was skipped.

    What runs before and after it fails it, too. Tests that were not selected are skipped in the
    report, or missing.
    """
    (suite,) = json.loads(text)
    parts: list[dict[str, Any]] = suite["SpecReports"] or []
    for part in parts:
        if part["State"] not in ("passed", "skipped"):
            return State.FAILED, reason_of(part)
    found = [part for part in parts if name_of(part) == test]
    if len(found) != 1:
        return State.FAILED, f"the report contains {len(found)} tests of this name"
    if found[0]["State"] == "skipped":
        return State.SKIPPED, reason_of(found[0])
    return State.PASSED, ""


def name_of(part: dict[str, Any]) -> str:
    """Returns the name of a *part* of a report, as the listing has it."""
    return " ".join([*(part["ContainerHierarchyTexts"] or []), part["LeafNodeText"]])


def reason_of(part: dict[str, Any]) -> str:
    """Returns why a *part* of a report has failed, as a short line."""
    words = part.get("Failure", {}).get("Message", "").split()
    return textwrap.shorten(" ".join(words), REASON_WIDTH) or part["State"]
