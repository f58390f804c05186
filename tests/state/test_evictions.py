"""What the conditions of pods say of an eviction that an earlier leader has begun."""

from dataclasses import replace

from hami.model import EvictedTogether
from hami.state.evictions import marked_units
from testing.cases import cases
from testing.stores import SmallStore, bound_to

TOGETHER = EvictedTogether(3, "uid-c")
GONE, PLAIN, MARKED, ENDING, DONE = "gone", "plain", "marked", "ending", "done"


def state_of(name, state, together=TOGETHER, preemptor="p"):
    """A pod in one of these states, ``None`` if it is gone."""
    item = bound_to(
        name,
        "GPU-0,NVIDIA,1000,0:;",
        preempted=state != PLAIN,
        preemptor="" if state == PLAIN else preemptor,
        evicted_with=None if state == PLAIN else together,
    )
    if state == ENDING:
        item = replace(item, deletion="2026-08-21T12:00:30Z", deletion_grace_s=30)
    if state == DONE:
        item = replace(item, phase="Succeeded")
    return None if state == GONE else item


def units(**states):
    cache = SmallStore()
    for name, state in states.items():
        if (item := state_of(name, state)) is not None:
            cache.pods.upsert(item)
    return [
        (unit.has_begun, unit.is_complete, [record.ref.name for record in unit.records])
        for unit in marked_units(cache.pods.preempted(), cache.pods.get)
    ]


@cases(
    "a, b, c, expected",
    ("nobody is marked", PLAIN, PLAIN, PLAIN, []),
    ("one is marked", MARKED, PLAIN, PLAIN, [(False, False, ["a"])]),
    ("the last one is not marked", MARKED, MARKED, PLAIN, [(False, False, ["a", "b"])]),
    ("one has ended by itself before all are marked", GONE, MARKED, PLAIN, [(False, False, ["b"])]),
    ("all are marked", MARKED, MARKED, MARKED, [(False, True, ["a", "b", "c"])]),
    ("one is being deleted", ENDING, MARKED, MARKED, [(True, True, ["a", "b", "c"])]),
    ("one is gone", GONE, MARKED, MARKED, [(True, True, ["b", "c"])]),
    ("one has terminated", DONE, MARKED, MARKED, [(True, True, ["b", "c"])]),
    ("one is left", GONE, GONE, MARKED, [(True, True, ["c"])]),
    (
        "the last one has ended by itself, since it is deleted last",
        MARKED,
        MARKED,
        GONE,
        [(False, True, ["a", "b"])],
    ),
    ("the last one has terminated", MARKED, MARKED, DONE, [(False, True, ["a", "b"])]),
    ("one is left, and the last one is gone", GONE, MARKED, GONE, [(True, True, ["b"])]),
    ("all are gone", GONE, GONE, GONE, []),
)
def test_whether_one_of_the_pods_that_are_evicted_together_has_been_deleted(a, b, c, expected):
    assert units(a=a, b=b, c=c) == expected


def test_pods_of_several_evictions_are_told_apart():
    cache = SmallStore()
    for name, together, preemptor in (
        ("a", EvictedTogether(2, "uid-b"), "p"),
        ("b", EvictedTogether(2, "uid-b"), "p"),
        ("c", EvictedTogether(2, "uid-d"), "p"),
        ("d", EvictedTogether(2, "uid-d"), "p"),
        ("e", None, "p"),
        ("f", None, "q"),
        ("g", None, ""),
    ):
        cache.pods.upsert(state_of(name, MARKED, together, preemptor))
    found = {
        (unit.preemptor, "".join(record.ref.name for record in unit.records))
        for unit in marked_units(cache.pods.preempted(), cache.pods.get)
    }
    assert found == {("p", "ab"), ("p", "cd"), ("p", "e"), ("q", "f"), ("", "g")}
