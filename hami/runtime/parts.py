"""The parts of a program: tasks that belong together, with what the program asks of them."""

from __future__ import annotations

from collections.abc import Iterable

from hami.runtime.tasks import Task, problems


class Part:
    """A part of a program, which starts, asks and stops its parts in the order of a list.

    A part that a program can do without is left out of the list, so nobody asks whether it is there.
    """

    def __init__(self, *tasks: Task) -> None:
        self.tasks = list(tasks)
        """What the part does in the background, in the order in which it must begin."""

    def prepare(self) -> None:
        """Does what must be done before the tasks of any part begin. Raises: HamiError."""

    def start(self) -> None:
        """Starts the tasks."""
        for task in self.tasks:
            task.start()

    def unready_reason(self) -> str:
        """Returns why the part does not do its work yet; empty if it does."""
        return ""

    def hung_reason(self) -> str:
        """Returns why the process must be restarted; empty if it must not."""
        return problems(self.tasks)

    def stop(self) -> None:
        """Makes the tasks end after their current steps."""
        for task in self.tasks:
            task.stop()

    def join(self, timeout_s: float) -> None:
        """Waits until the tasks have ended, for each of them at most so many seconds."""
        for task in self.tasks:
            task.join(timeout_s)


def unready_reasons(parts: Iterable[Part]) -> str:
    """Returns why *parts* do not do their work yet; empty if they do."""
    return join_reasons(part.unready_reason() for part in parts)


def hung_reasons(parts: Iterable[Part]) -> str:
    """Returns why *parts* need a new process; empty if they do not."""
    return join_reasons(part.hung_reason() for part in parts)


def join_reasons(reasons: Iterable[str]) -> str:
    """Returns those of *reasons* that are not empty, as one text."""
    return "; ".join(filter(None, reasons))
