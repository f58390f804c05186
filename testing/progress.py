"""What a long command is doing: a spinner on a terminal, and lines elsewhere, such as in the log of a CI job."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

__all__ = ["Steps", "shown"]

QUIET_S = 30.0
"""Seconds after which a step that still goes on is named again: who reads a log must not think that nothing happens."""
POLL_S = 0.2


class Steps(Protocol):
    """Shows one step after the other. Threads may share it."""

    def say(self, step: str) -> None:
        """Shows that *step* begins."""

    def stop(self) -> None:
        """Ends: the console is for something else now."""


class Spinner:
    """The present step and the seconds since the first one, in a line that moves."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("")
        self._progress.start()

    def say(self, step: str) -> None:
        self._progress.update(self._task, description=step)

    def stop(self) -> None:
        self._progress.stop()


class Lines:
    """A line for each step, with the seconds since the first one; another one for a step that takes long.

    Without a lock: a signal may end the main thread while it holds one.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun = self._said_at = time.monotonic()
        self._step = ""
        self._is_over = False
        self._thread = threading.Thread(target=self._repeat, name="progress", daemon=True)
        self._thread.start()

    def say(self, step: str) -> None:
        self._step = step
        self._print(step)

    def stop(self) -> None:
        self._is_over = True
        self._thread.join(2 * POLL_S)

    def _repeat(self) -> None:
        while not self._is_over:
            time.sleep(POLL_S)
            is_quiet = time.monotonic() - self._said_at > QUIET_S
            if is_quiet and self._step and not self._is_over:
                self._print(f"still: {self._step}")

    def _print(self, text: str) -> None:
        self._said_at = time.monotonic()
        line = f"{self._said_at - self._begun:5.0f} s  {text}"
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)


@contextlib.contextmanager
def shown(console: Console, first: str) -> Iterator[Steps]:
    """Yields what shows the steps, of which *first* begins."""
    steps: Steps = Spinner(console) if console.is_terminal else Lines(console)
    try:
        steps.say(first)
        yield steps
    finally:
        steps.stop()
