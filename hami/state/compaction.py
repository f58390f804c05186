"""Compaction over a view: how many more pods of one kind fit after how many moves of other pods."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from hami.model import Pod
from hami.state import dry_run
from hami.state.moves import (
    MoveLimits,
    MovePlan,
    MoveSearch,
    carried_out,
    choose_with_room,
)
from hami.state.view import View

STEP_MOVES = 8  # of a plan for one more pod
MAX_PLACED = 5000  # pods that are counted


class Compaction:
    """Makes room for pods like *pod* on the nodes *names* by moves of *movable*, by uid. *clock* is monotonic."""

    def __init__(
        self,
        pod: Pod,
        names: Sequence[str],
        movable: Mapping[str, Pod],
        clock: Callable[[], float],
    ) -> None:
        self._pod = pod
        self._names = names
        self._movable = movable
        self._clock = clock
        self._numbers = itertools.count()

    def steps(self, view: View, limits: MoveLimits) -> Iterator[tuple[int, int]]:
        """Yields numbers of moves, and how many pods fit after these: first without any. *limits*: of all moves.

        Raises: MalformedInput for an unreadable annotation of a pod.
        """
        until = self._clock() + limits.seconds
        view, placed = self._filled(view)
        yield 0, placed
        moves = 0
        while moves < limits.moves and placed < MAX_PLACED:
            remaining = until - self._clock()
            if remaining <= 0:
                return
            step = MoveLimits(moves=min(STEP_MOVES, limits.moves - moves), seconds=remaining)
            pod = self._next()
            plan = MoveSearch(self._names, self._movable, self._clock).plan(view, pod, step)
            if not isinstance(plan, MovePlan):
                return
            after = carried_out(view, pod, plan, self._movable, self._names)
            if after is None:
                return
            view, more = self._filled(after)
            moves += len(plan.moves)
            placed += 1 + more
            yield moves, placed

    def _filled(self, view: View) -> tuple[View, int]:
        """Returns *view* with as many pods as fit, and their number."""
        for count in range(MAX_PLACED):
            pod = self._next()
            choice = choose_with_room(view, pod, self._names)
            if choice is None:
                return view.merged, count
            view = dry_run.placed(view, pod, choice)
        return view.merged, MAX_PLACED

    def _next(self) -> Pod:
        ref = replace(self._pod.ref, uid=f"more/{next(self._numbers)}")
        return replace(self._pod, ref=ref)
