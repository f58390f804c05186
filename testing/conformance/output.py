"""What a run prints: a line for each test, the log of each test that failed, and a summary."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from testing.conformance.suite import Result, State

__all__ = ["Printer", "say", "summary"]

LONGEST_FILE_NAME = 150
"""Of a log, without its number; file systems allow 255 bytes."""


def say(text: str) -> None:
    """Prints *text* at once, also to a file."""
    print(text, flush=True)


class Printer:
    """Prints the results of *count* tests as they come.

    *logs*: a folder that keeps what the tests print.
    """

    def __init__(self, count: int, logs: Path | None) -> None:
        self._count = count
        self._logs = logs
        self._done = 0

    def report(self, result: Result) -> None:
        """Prints one result."""
        self._done += 1
        say(
            f"[{self._done}/{self._count}] {result.state.value:<7} {result.seconds:4.0f} s "
            f"{result.pods:4} pods  {result.test}"
        )
        if result.state is State.SKIPPED:
            say(f"  {result.reason}")
        if result.state is State.FAILED:
            say(f"{result.log}\n  failed: {result.test}: {result.reason}")
        if self._logs is not None:
            self._logs.mkdir(parents=True, exist_ok=True)
            (self._logs / file_name(result.test)).write_text(result.log)


def file_name(test: str) -> str:
    """Returns a name for the log of *test*."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", test).strip("-")
    return f"{words[:LONGEST_FILE_NAME]}.log"


def summary(results: Sequence[Result]) -> str:
    """Returns how many tests have ended in which way, and how many pods they had."""
    counts = Counter(result.state for result in results)
    states = [f"{counts[state]} {state.value}" for state in State]
    pods = sum(result.pods for result in results)
    return f"{', '.join(states)}; {pods} pods were bound"
