"""Rows about moves that make room: how long a plan takes, and what moves bring on the nodes of a published trace."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator

from benchmarks.processes import Run
from benchmarks.rows import Row
from hami.state.compaction import Compaction
from hami.state.moves import MoveLimits, MovePlan, MoveSearch
from testing.builders import gpus, pod
from testing.fragmented import CARD, PARTS, fragmented, fragmented_trace, without_room
from testing.traces import missing

__all__ = ["room_rows"]

GROUP = "room"
CASES = ((200, 5, 2.0), (1000, 2, 5.0))
"""Nodes with eight cards, clusters, and the time for a plan."""
FIRST_SECONDS = 0.5
SHAPES = ((1, CARD, 100), (2, CARD, 100), (4, CARD, 100), (8, CARD, 100))
TRACE_NODES = 1213
MOVES, SECONDS = 150, 60.0


def room_rows(run: Run) -> Iterator[Row]:
    """Yields rows for plans on random clusters that are full, and for moves on the published trace."""
    for nodes, clusters, limit in CASES:
        run.say(f"moves that make room: {nodes:,} nodes")
        yield from _plan_rows(nodes, clusters, limit)
    problem = missing()
    if problem:
        run.say(f"  left out: {problem}")
        return
    run.say("moves that make room: the published trace")
    yield _trace_row()


def _plan_rows(nodes: int, clusters: int, limit: float) -> Iterator[Row]:
    times: list[float] = []
    firsts: list[float] = []
    moves: list[int] = []
    minimal = 0
    for seed in range(clusters):
        rng = random.Random(seed)
        cluster = fragmented(seed, nodes, 8, ended=rng.choice([0.05, 0.1, 0.2]), parts=PARTS)
        cluster, waiting = without_room(cluster, SHAPES[seed % len(SHAPES)])
        for cascades, taken in ((False, firsts), (True, times)):
            search = MoveSearch(cluster.names, cluster.movable, time.monotonic)
            limits = MoveLimits(seconds=limit, cascades=cascades)
            begun = time.monotonic()
            plan = search.plan(cluster.view, waiting, limits)
            taken.append(time.monotonic() - begun)
        if isinstance(plan, MovePlan):
            moves.append(len(plan.moves))
            minimal += plan.is_minimal
    yield Row(
        group=GROUP,
        what=f"plan for a pod with 1 to 8 whole cards, {nodes:,} × 8: median / longest",
        measured=f"{statistics.median(times):.2f} / {max(times):.2f} s",
        target=f"{limit:g} s",
        met=max(times) <= 1.1 * limit,
        compared=f"{len(moves)} of {clusters} have one, {minimal} proven minimal, up to {max(moves, default=0)} moves",
        figures={"seconds": times, "moves": moves},
    )
    yield Row(
        group=GROUP,
        what=f"the same without pods that move before others, {nodes:,} × 8: median / longest",
        measured=f"{statistics.median(firsts):.2f} / {max(firsts):.2f} s",
        target=f"{FIRST_SECONDS:g} s",
        met=statistics.median(firsts) <= FIRST_SECONDS,
        figures={"seconds": firsts},
    )


def _trace_row() -> Row:
    cluster = fragmented_trace(1, TRACE_NODES)
    waiting = pod(gpus(4, memory=CARD, cores=100), name="more")
    compaction = Compaction(waiting, cluster.names, cluster.movable, time.monotonic)
    begun = time.monotonic()
    steps = list(compaction.steps(cluster.view, MoveLimits(moves=MOVES, seconds=SECONDS)))
    seconds = time.monotonic() - begun
    (_, without), (moves, placed) = steps[0], steps[-1]
    return Row(
        group=GROUP,
        what=f"more pods with 4 whole cards, {TRACE_NODES:,} nodes of the published trace",
        measured=f"{placed - without} after {moves} moves, in {seconds:.0f} s",
        compared=f"{without} fit without",
        figures={"steps": steps, "seconds": seconds},
    )
