"""Which pods stay where they are and why, and which sets of pods make room on a node."""

import itertools
import random

import pytest

from hami.codec.keys import DO_NOT_MOVE, SAFE_TO_EVICT, SAFE_VOLUMES
from hami.model import DisruptionBudget, Immovable, LabelRequirement
from hami.scheduling.moves import (
    MEANINGS,
    MovableDevice,
    MoveRules,
    victim_sets,
    without,
)
from hami.scheduling.usage import Charge, charged_by
from testing.builders import gpus, pod, request, usage
from testing.cases import cases

NOW = 1_800_000_000


def budget(name, allowed, *requirement):
    return DisruptionBudget(
        namespace="default",
        name=name,
        selector=(LabelRequirement(*requirement),),
        allowed=allowed,
    )


BUDGETS = (
    budget("none", 0, "app", "In", ("db",)),
    budget("one", 1, "app", "In", ("web",)),
    budget("all", 5, "tier", "Exists"),
)
RULES = MoveRules(now=NOW, min_runtime_s=600, budgets=BUDGETS, claiming={"uid-claims"})


def runs(name="a", **fields):
    owned = {"controller": "rs", "controller_kind": "ReplicaSet", "node_name": "n1"}
    return pod(gpus(1), name=name, **owned | {"started": "2026-01-01T00:00:00Z"} | fields)


WAITS = pod(gpus(1), name="waits", priority=100, controller="own")
SAFE = {SAFE_TO_EVICT: "true"}
BARE = {"controller": "", "controller_kind": ""}


@cases(
    "fields, reason",
    ("movable", {}, None),
    ("higher priority", {"priority": 101}, Immovable.PRIORITY),
    ("equal priority", {"priority": 100}, None),
    ("of its controller", {"controller": "own"}, Immovable.SIBLING),
    ("ending", {"deleting": True}, Immovable.ENDING),
    ("waiting", {"node_name": ""}, Immovable.ENDING),
    ("of its node", {"is_node_agent": True}, Immovable.NODE_AGENT),
    ("bare", BARE, Immovable.NO_CONTROLLER),
    ("bare and safe", {**BARE, "annotations": SAFE}, Immovable.NO_CONTROLLER),
    ("Job", {"controller_kind": "Job"}, Immovable.JOB),
    ("Job that may move", {"controller_kind": "Job", "annotations": SAFE}, None),
    ("trainer", {"controller_kind": "PyTorchJob"}, Immovable.UNKNOWN_CONTROLLER),
    ("do not move", {"annotations": {DO_NOT_MOVE: "true"}}, Immovable.DO_NOT_MOVE),
    ("do move", {"annotations": {DO_NOT_MOVE: "false"}}, None),
    ("not safe", {"annotations": {SAFE_TO_EVICT: "false"}}, Immovable.NOT_SAFE),
    ("not preemptible", {"labels": {"hami.io/preemptible": "false"}}, Immovable.PREEMPTIBLE),
    ("gang", {"group": "g"}, Immovable.GANG),
    ("claims", {"uid": "uid-claims"}, Immovable.CLAIMS),
    ("local volumes", {"local_volumes": ("data", "tmp")}, Immovable.LOCAL_STORAGE),
    (
        "one of two volumes may be lost",
        {"local_volumes": ("data", "tmp"), "annotations": {SAFE_VOLUMES: "tmp"}},
        Immovable.LOCAL_STORAGE,
    ),
    (
        "volumes may be lost",
        {"local_volumes": ("data", "tmp"), "annotations": {SAFE_VOLUMES: "tmp, data"}},
        None,
    ),
    ("safe with a volume", {"local_volumes": ("data",), "annotations": SAFE}, None),
    ("budget of none", {"labels": {"app": "db"}}, Immovable.BUDGET),
    ("budget of one", {"labels": {"app": "web"}}, None),
    ("two budgets", {"labels": {"app": "web", "tier": "front"}}, Immovable.BUDGET),
    ("young", {"started": "2027-01-15T07:59:00Z"}, Immovable.YOUNG),
    ("age not known", {"started": ""}, Immovable.YOUNG),
)
def test_a_pod_stays_for_the_first_reason(fields, reason):
    assert RULES.why_stays(runs(**fields), WAITS) is reason


def test_every_reason_has_words():
    assert MEANINGS.keys() == set(Immovable)


def some_devices(rnd):
    """Returns cards with random pods, some of them on two cards."""
    names = [f"p{number}" for number in range(rnd.randint(1, 7))]
    devices = []
    for index in range(rnd.randint(1, 4)):
        card, charges = usage(f"GPU-{index}", memory_mib=80, slots=10), {}
        for name in rnd.sample(names, rnd.randint(0, len(names))):
            charge = Charge(f"GPU-{index}", 1, rnd.choice([10, 20, 40]), rnd.choice([0, 10, 50]))
            card = charged_by(card, charge)
            if rnd.random() < 0.8:
                charges[name] = charge
        devices.append(MovableDevice(card, charges))
    return names, devices


def passing(devices, asked, gone):
    """Returns how many of *devices* have room for *asked* without the pods *gone*."""
    count = 0
    for device in devices:
        left = without(device.usage, [device.charges[uid] for uid in gone & device.charges.keys()])
        count += has_room(left, asked)
    return count


def has_room(card, asked):
    if asked.memory_mib > card.memory_free_mib:
        return False
    return asked.cores <= card.device.cores - card.cores_used


@pytest.mark.parametrize("seed", range(200))
def test_sets_are_enough_and_none_of_that_size_is_missing(seed):
    rnd = random.Random(seed)
    names, devices = some_devices(rnd)
    asked = request(
        rnd.choice([1, 1, 2]), memory_mib=rnd.choice([40, 80]), cores=rnd.choice([0, 50])
    )
    if passing(devices, asked, set()) >= asked.count:
        assert victim_sets(devices, asked, 1, lambda card: has_room(card, asked)) == []
        return
    for size in range(1, 5):
        found = set(victim_sets(devices, asked, size, lambda card: has_room(card, asked)))
        for uids in found:
            assert passing(devices, asked, uids) >= asked.count
        minimal = set()
        for uids in map(frozenset, itertools.combinations(names, size)):
            smaller = [uids - {uid} for uid in uids]
            enough = passing(devices, asked, uids) >= asked.count
            if enough and all(passing(devices, asked, each) < asked.count for each in smaller):
                minimal.add(uids)
        assert minimal <= found


def test_many_pods_and_devices_take_a_bounded_time():
    """Else a tenant with many small pods, or a node with many devices, would stop the search."""
    charges = {f"p{number}": Charge("GPU-0", 1, 1, 0) for number in range(300)}
    devices = []
    for number in range(200):
        card = usage(f"GPU-{number}", 300, 300, memory_mib=300, slots=310)
        devices.append(MovableDevice(card, charges))
    calls = []

    def passes(card):
        calls.append(card)
        return card.memory_free_mib >= 7

    sets = victim_sets(devices[:8], request(8, memory_mib=7), 8, passes)
    assert len(calls) < 8 * 5000
    assert all(len(uids) == 8 for uids in sets)
    free = [
        MovableDevice(device.usage, {f"q{number}": Charge("x", 1, 300, 0)})
        for number, device in enumerate(devices)
    ]
    assert (
        len(victim_sets(free, request(4, memory_mib=7), 4, lambda card: card.memory_free_mib >= 7))
        == 256
    )
