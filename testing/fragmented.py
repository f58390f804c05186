"""Clusters that were filled, and from which pods have ended at random, so that much is free in small parts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from hami.model import Pod
from hami.state import dry_run
from hami.state.bookings import booking_of
from hami.state.moves import choose_with_room, held, promised
from hami.state.plans import planned_uid
from hami.state.table import Table
from hami.state.view import Facts, Policies, View
from testing.builders import ONLY_NVIDIA, gpu, gpus, pod

CARD = 80_000
PARTS = ((8000, 10), (10000, 10), (16000, 20), (20000, 25), (24000, 30), (40000, 50), (60000, 70))
"""MiB and cores of pods with one card."""
WHOLE = (CARD, 100)
LARGE = ((1, *WHOLE), (1, 60000, 70), (1, 40000, 50), (2, *WHOLE), (2, 40000, 50))


@dataclass(slots=True)
class Fragmented:
    """*names*: of the nodes. *movable*: pods by uid."""

    view: View
    names: list[str]
    movable: dict[str, Pod] = field(default_factory=dict)


def fragmented(
    seed: int,
    nodes: int,
    cards: int,
    *,
    ended: float,
    filled: float = 0.95,
    parts: Sequence[tuple[int, int]] = (*PARTS, WHOLE),
    policy: str = "binpack",
) -> Fragmented:
    """Returns a cluster whose *cards* were *filled*, before pods *ended*. One pod in seven cannot be moved."""
    rnd = random.Random(seed)
    table = Table()
    names = [f"n{number:04}" for number in range(nodes)]
    for name in names:
        devices = [
            gpu(f"{name}-{index}", index=index, memory_mib=CARD, model="NVIDIA A100")
            for index in range(cards)
        ]
        table.set_devices(name, "NVIDIA", tuple(devices))
    facts = Facts(vendors=ONLY_NVIDIA, policies=Policies(policy, policy))
    view = View(table, facts)
    pods: dict[str, Pod] = {}
    used = refused = 0
    while used < filled * nodes * cards * CARD and refused < 30:
        memory, cores = rnd.choice(parts)
        new = pod(gpus(1, memory=memory, cores=cores), name=f"p{len(pods)}-{refused}")
        choice = dry_run.choose(view, new, names)
        if choice is None:
            refused += 1
            continue
        request = view.request_of(new)
        assert request is not None
        table.bookings.put(booking_of(new, request, choice))
        view = View(table, facts, verdicts=view.verdicts)
        pods[new.ref.uid] = new
        used += memory
    for uid in rnd.sample(sorted(pods), int(ended * len(pods))):
        table.bookings.pop(uid)
        del pods[uid]
    movable = {uid: pods[uid] for uid in sorted(pods) if rnd.random() > 1 / 7}
    return Fragmented(View(table, facts), names, movable)


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
    view = cluster.view
    count, memory, cores = shape
    for number in itertools.count():
        new = pod(gpus(count, memory=memory, cores=cores), name=f"fills-{number}")
        choice = dry_run.choose(view, new, cluster.names)
        if choice is None:
            return Fragmented(view.merged, cluster.names, cluster.movable), new
        view = dry_run.placed(view, new, choice)
    raise AssertionError("a cluster has no end")
