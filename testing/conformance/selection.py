"""Which of Kubernetes' tests are run, which cannot pass on fake nodes, and what results mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testing.conformance.suite import Result, State
from testing.reasons import parse_reasons

__all__ = ["FILE", "GROUPS", "Choice", "ListOutdated", "chosen", "listed", "shortcomings", "stale"]

FILE = Path(__file__).with_name("not_on_kwok.txt")
GROUPS = (
    "[sig-scheduling] GangScheduling ",
    "[sig-scheduling] Multi-AZ Clusters ",
    "[sig-scheduling] SchedulerPredicates ",
    "[sig-scheduling] SchedulerPreemption ",
    "[sig-scheduling] SchedulerPriorities ",
    "[sig-scheduling] Workload ",
    "[sig-scheduling] WorkloadAwarePreemption ",
    "[sig-apps] Daemon set ",
    "[sig-apps] Deployment ",
    "[sig-apps] DisruptionController ",
    "[sig-apps] ReplicaSet ",
)
"""What the names of the tests begin with that are run.

LimitRange is not among them: its tests say exactly which resources a pod has.
"""
LONGEST = (
    "0.0.0.0 hostIP",
    "async preemption",
    "unmanaged pods",
    "rollouts should eventually",
)
"""What the names of tests contain that take a minute or more. They begin first: else the run could
end with one of them alone.
"""


class ListOutdated(Exception):
    """The list of tests that cannot pass does not match the tests; the message says where."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The tests that are run, and the reasons why others are not."""

    tests: tuple[str, ...]
    left_out: Mapping[str, str]


def listed() -> dict[str, str]:
    """Maps the tests that cannot pass on fake nodes to the reasons. Raises: ListOutdated."""
    try:
        return parse_reasons(FILE.read_text(), FILE.name)
    except ValueError as error:
        raise ListOutdated(str(error)) from None


def chosen(
    names: Iterable[str], reasons: Mapping[str, str], *, focus: re.Pattern[str], with_listed: bool
) -> Choice:
    """Returns which tests are run, of all *names*.

    *reasons*: those of listed tests, which are run only *with_listed*. *focus*: what the names of
    tests must contain. Raises: ListOutdated if there is no such test as listed.
    """
    selected = [name for name in names if name.startswith(GROUPS)]
    selected.sort(key=lambda name: not any(part in name for part in LONGEST))
    missing = reasons.keys() - set(selected)
    if missing:
        raise ListOutdated(
            "\n".join(f"{FILE.name}: there is no test {name!r}" for name in sorted(missing))
        )
    matching = [name for name in selected if focus.search(name)]
    if with_listed:
        return Choice(tuple(matching), {})
    tests = tuple(name for name in matching if name not in reasons)
    return Choice(tests, {name: reasons[name] for name in matching if name in reasons})


def shortcomings(results: Sequence[Result]) -> list[str]:
    """Returns what is wrong with *results* with HAMi: tests that have not passed, or no pods."""
    complaints = []
    for result in results:
        if result.state is not State.PASSED:
            complaints.append(f"{result.state.value}: {result.test}: {result.reason}")
    if not any(result.pods for result in results):
        complaints.append("no pod was bound, so that nothing has been shown about HAMi")
    return complaints


def stale(reasons: Mapping[str, str], results: Iterable[Result]) -> list[str]:
    """Returns where *results* without HAMi contradict the *reasons* of listed tests."""
    complaints = []
    for result in results:
        is_listed = result.test in reasons
        has_passed = result.state is State.PASSED
        if has_passed and is_listed:
            complaints.append(f"passed, but {FILE.name} lists it: {result.test}")
        if not has_passed and not is_listed:
            complaints.append(
                f"{result.state.value}, but {FILE.name} does not list it: "
                f"{result.test}: {result.reason}"
            )
    return complaints
