"""Clusters that were filled, and from which pods have ended at random, so that much is free in small parts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hami.model import Pod
from hami.scheduling.refusal import Choice
from hami.state import dry_run
from hami.state.bookings import booking_of
from hami.state.moves import choose_with_room, held, promised
from hami.state.plans import planned_uid
from hami.state.table import Table
from hami.state.view import Facts, Policies, View
from testing.builders import ONLY_NVIDIA, gpu, gpus, pod
from testing.traces import trace_nodes, trace_pods

CARD = 80_000
PARTS = ((8000, 10), (10000, 10), (16000, 20), (20000, 25), (24000, 30), (40000, 50), (60000, 70))
"""MiB and cores of pods with one card."""
WHOLE = (CARD, 100)
FILLED = 0.95  # of the memory of all cards, before pods end
MAX_REFUSED = 30  # pods that do not fit while a cluster is filled
LARGE = ((1, *WHOLE), (1, 60000, 70), (1, 40000, 50), (2, *WHOLE), (2, 40000, 50))


@dataclass(slots=True)
class Fragmented:
    """*names*: of the nodes. *movable*: pods by uid."""

    view: View
    names: list[str]
    movable: dict[str, Pod] = field(default_factory=dict)


Draw = Callable[[random.Random], tuple[int, int, int]]
"""Returns cards, MiB and cores of the next pod."""


def fragmented(
    seed: int,
    nodes: int,
    cards: int,
    *,
    ended: float,
    parts: Sequence[tuple[int, int]] = (*PARTS, WHOLE),
) -> Fragmented:
    """Returns a cluster of equal *nodes* whose *cards* were filled with pods of one card, before pods *ended*."""
    models = {f"n{number:04}": ["NVIDIA A100"] * cards for number in range(nodes)}
    return _churned(models, lambda rnd: (1, *rnd.choice(parts)), ended, random.Random(seed))


def fragmented_trace(seed: int, nodes: int, *, ended: float = 0.1) -> Fragmented:
    """Returns the first *nodes* of the published trace in random order, with pods of it. Each GPU has the same memory,
    and pods request as much of it as of the cores."""
    rnd = random.Random(seed)
    some = trace_nodes()
    rnd.shuffle(some)
    pods = trace_pods("cpu0")
    models = {
        f"n{number:04}": [f"NVIDIA-{node.model}"] * node.gpus
        for number, node in enumerate(some[:nodes])
    }

    def draw(rnd: random.Random) -> tuple[int, int, int]:
        drawn = rnd.choice(pods)
        return drawn.gpus, drawn.cores * CARD // 100, drawn.cores

    return _churned(models, draw, ended, rnd)


def _churned(
    models: Mapping[str, Sequence[str]], draw: Draw, ended: float, rnd: random.Random
) -> Fragmented:
    """Returns nodes with cards of these *models* that were filled with pods before some *ended*. One pod in seven
    cannot be moved."""
    table, names = Table(), list(models)
    for name, of_node in models.items():
        devices = [
            gpu(f"{name}-{index}", index=index, memory_mib=CARD, model=model)
            for index, model in enumerate(of_node)
        ]
        table.set_devices(name, "NVIDIA", tuple(devices))
    view = View(table, Facts(vendors=ONLY_NVIDIA, policies=Policies("binpack", "binpack")))
    pods: dict[str, Pod] = {}
    total = CARD * sum(map(len, models.values()))
    used = refused = 0
    while used < FILLED * total and refused < MAX_REFUSED:
        count, memory, cores = draw(rnd)
        new = pod(gpus(count, memory=memory, cores=cores), name=f"p{len(pods)}-{refused}")
        choice = dry_run.choose(view, new, names)
        if choice is None:
            refused += 1
            continue
        view = _booked(view, new, choice)
        pods[new.ref.uid] = new
        used += count * memory
    for uid in rnd.sample(sorted(pods), int(ended * len(pods))):
        table.bookings.pop(uid)
        del pods[uid]
    movable = {uid: pods[uid] for uid in sorted(pods) if rnd.random() > 1 / 7}
    return Fragmented(View(table, view.facts), names, movable)


def blocked_pod(cluster: Fragmented, seed: int, shapes=LARGE) -> Pod | None:
    """Returns a pod that fits no node although as much as it requests is free; ``None`` if there is none."""
    view = cluster.view
    free = 0
    for name in cluster.names:
        for of_vendor in view.usages(name).values():
            free += sum(usage.memory_free_mib for usage in of_vendor)
    for count, memory, cores in random.Random(seed).sample(list(shapes), len(shapes)):
        waiting = pod(gpus(count, memory=memory, cores=cores), name="waits")
        if dry_run.choose(view, waiting, cluster.names) is None and free >= count * memory:
            return waiting
    return None


def fewest_moves(cluster: Fragmented, waiting: Pod, limit: int) -> int | None:
    """Returns the fewest moves, by trying every order of every set of pods on every node; ``None`` if more than *limit*
    are needed."""
    for count in range(1, limit + 1):
        for uids in itertools.permutations(cluster.movable, count):
            if any(_is_room(cluster, waiting, node, uids) for node in cluster.names):
                return count
    return None


def _is_room(cluster: Fragmented, waiting: Pod, node: str, uids: Sequence[str]) -> bool:
    view = cluster.view
    there = [uid for uid in uids if cluster.view.bookings[uid].node == node]
    promise = promised(view, waiting, node, there)
    if promise is None:
        return False
    view = held(view, promise, there)
    for uid in uids:
        if uid in there:
            there.remove(uid)
        view = held(view, promise, there, ended=[uid])
        moved = cluster.movable[uid]
        choice = choose_with_room(view, moved, cluster.names)
        if choice is None:
            return False
        view = dry_run.placed(view, moved, choice)
    view = view.what_if(without=[planned_uid(waiting.ref.uid)])
    return dry_run.choose(view, waiting, [node]) is not None


def without_room(cluster: Fragmented, shape: tuple[int, int, int]) -> tuple[Fragmented, Pod]:
    """Returns *cluster* with as many pods of *shape* (cards, MiB, cores) as fit, which stay, and one more."""
    count, memory, cores = shape
    base = cluster.view
    view = View(base.table.copy(), base.facts)
    for number in itertools.count():
        new = pod(gpus(count, memory=memory, cores=cores), name=f"fills-{number}")
        choice = dry_run.choose(view, new, cluster.names)
        if choice is None:
            return Fragmented(View(view.table, view.facts), cluster.names, cluster.movable), new
        view = _booked(view, new, choice)
    raise AssertionError("a cluster has no end")


def _booked(view: View, new: Pod, choice: Choice) -> View:
    """Books what *choice* gives to *new* in the table of *view*, and returns the view after it."""
    request = view.request_of(new)
    assert request is not None
    view.table.bookings.put(booking_of(new, request, choice))
    return View(view.table, view.facts, verdicts=view.verdicts)
