"""A table that was updated step by step equals one that was built at once."""

import random
from collections import Counter, defaultdict

import numpy
from hypothesis import given
from hypothesis.strategies import integers, randoms

from hami.model import PodScope
from hami.scheduling.columns import FIELDS
from hami.scheduling.score import node_score
from hami.state.table import FEW_JUMPS, Table, jumps, side_by_side
from testing.builders import booking, charge, gpu, usage
from testing.cards import A100_PROFILES
from testing.cases import cases
from tests.state.mirror import Mirror

NAMES = [f"n{number}" for number in range(6)]


def test_devices_with_what_is_taken_of_them():
    table = Table()
    table.set_devices("n1", "NVIDIA", (gpu("a"), gpu("b")))
    table.bookings.put(booking("p", "n1", charge("b", 2, 300, 10), charge("gone", 1, 1, 1)))
    assert table.usages("n1") == {"NVIDIA": (usage("a"), usage("b", 2, 300, 10))}
    assert table.usages("unknown") == {}


def test_a_later_booking_of_a_pod_replaces_the_earlier():
    table = Table()
    table.set_devices("n1", "NVIDIA", (gpu("a"),))
    table.bookings.put(booking("p", "n1", charge("a", 1, 300, 10)))
    table.bookings.put(booking("p", "n2", charge("a", 1, 500, 20)))
    assert table.usages("n1") == {"NVIDIA": (usage("a"),)}
    assert table.bookings.in_namespace("default", "NVIDIA") == {PodScope(): (500, 20, 1)}


def test_bookings_wait_for_their_node():
    table = Table()
    table.bookings.put(booking("p", "n1", charge("a", 1, 300, 10)))
    table.set_devices("n1", "NVIDIA", (gpu("a"),))
    table.remove_node("n1")
    table.set_devices("n1", "NVIDIA", (gpu("a"),))
    assert table.usages("n1") == {"NVIDIA": (usage("a", 1, 300, 10),)}


def test_nothing_is_kept_of_what_is_gone():
    table = Table()
    for number in range(3):
        table.set_devices(f"n{number}", "NVIDIA", (gpu("a"),))
        table.bookings.put(
            booking(f"p{number}", f"n{number}", charge("a", 1, 300, 10), charge("b", 0, 0, 0))
        )
    for number in range(3):
        table.bookings.pop(f"p{number}")
        table.remove_node(f"n{number}")
    assert not any(
        (
            table.nodes,
            table.rows,
            table.names,
            table.bookings.by_uid,
            table.bookings.by_namespace(),
            table.bookings._sums,
        )
    )


def test_unbook_gives_back_what_there_was():
    table, held = Table(), booking("p", "n1", charge("a", 1, 300, 10))
    table.bookings.put(held)
    assert (table.bookings.pop("p"), table.bookings.pop("p")) == (held, None)
    assert table.bookings.by_namespace() == {}


@cases("devices, news", ((gpu("a"),), False), ((gpu("a", healthy=False),), True), ((), True))
def test_inventories_that_are_news(devices, news):
    table = Table()
    table.set_devices("n1", "NVIDIA", (gpu("a"),))
    assert table.set_devices("n1", "NVIDIA", devices) is news
    assert not Table().set_devices("n1", "NVIDIA", ())


def test_sizes_of_shares_by_claims_are_those_of_the_devices_there_are():
    table = Table()
    in_parts = gpu("c", memory_mib=3000, by_claims=True, mode="mig", mig_profiles=A100_PROFILES)
    table.set_devices(
        "n1",
        "NVIDIA",
        (gpu("a", memory_mib=1000), gpu("b", memory_mib=2000, by_claims=True), in_parts),
    )
    assert table.claimable_sizes() == {2000}
    table.set_devices("n2", "NVIDIA", (gpu("d", memory_mib=4000, by_claims=True),))
    assert table.claimable_sizes() == {2000, 4000}
    table.remove_node("n2")
    assert table.claimable_sizes() == {2000}
    table.set_devices("n1", "NVIDIA", (gpu("a", memory_mib=1000),))
    assert table.claimable_sizes() == set()


def test_versions_rise_with_every_change_of_a_node_and_only_then():
    table = Table()
    versions = []
    for change in (
        lambda: table.set_devices("n1", "NVIDIA", (gpu("a"),)),
        lambda: table.set_devices("n2", "NVIDIA", (gpu("b"),)),
        lambda: table.bookings.put(booking("p", "n1", charge("a"))),
        lambda: table.set_devices("n1", "NVIDIA", (gpu("a"),)),
        lambda: table.bookings.put(booking("p", "n1", charge("a"))),
        lambda: table.bookings.pop("p"),
    ):
        change()
        table.refresh()
        versions.append(int(table.versions[table.rows["n1"]]))
    assert versions == [1, 1, 3, 3, 3, 4]


def test_amounts_beyond_all_bounds_can_be_counted():
    table = Table()
    table.set_devices("n1", "NVIDIA", (gpu("a", slots=2**31 - 1, memory_mib=2**31 - 1),))
    for number in range(12):
        table.bookings.put(
            booking(f"p{number}", "n1", charge("a", 2**31 - 1, 2**31 - 1, 2**31 - 1))
        )
    assert table.usages("n1")["NVIDIA"][0].is_overcommitted
    assert table.columns.all().facts[FIELDS.index("cores_used"), 0] == 12 * (2**31 - 1)


@given(rng=randoms(use_true_random=True), changes=integers(1, 60))
def test_a_table_that_is_kept_current_equals_one_that_is_made_at_once(rng, changes):
    mirror = Mirror(NAMES)
    for _ in range(changes):
        mirror.change(rng)
        if rng.random() < 0.3:
            mirror.table.refresh()
            mirror.table.rank()
    table, fresh = mirror.table, mirror.fresh()
    assert {name: table.usages(name) for name in NAMES} == {
        name: fresh.usages(name) for name in NAMES
    }
    assert (table.bookings.by_uid, table.bookings.by_namespace()) == (
        fresh.bookings.by_uid,
        fresh.bookings.by_namespace(),
    )
    assert set(table.nodes) == set(table.rows) == set(fresh.nodes)
    assert {name: row for row, name in table.names.items()} == table.rows
    assert [
        name for _, name in sorted((table.rank()[row], name) for name, row in table.rows.items())
    ] == sorted(table.nodes)
    for name, row in table.rows.items():
        assert table.scores[row] == node_score(
            [usage for own in table.usages(name).values() for usage in own]
        )
        assert facts(table, row) == facts(fresh, fresh.rows[name])
    assert (table.columns._models.by_text.keys(), table.sizes()) == (
        fresh.columns._models.by_text.keys(),
        fresh.sizes(),
    )


@given(rng=randoms(use_true_random=True), changes=integers(1, 60))
def test_usage_is_the_sum_of_the_bookings_of_a_namespace_by_scope(rng, changes):
    mirror = Mirror(NAMES)
    for _ in range(changes):
        mirror.change(rng)
    sums = defaultdict(Counter)
    for held in mirror.bookings.values():
        for vendor, charges in held.charges:
            for one in charges:
                sums[held.namespace, vendor, held.scope].update(
                    memory=one.memory_mib, cores=one.cores, devices=one.slots
                )
    assert {
        (namespace, vendor, scope): amounts
        for (namespace, vendor), scoped in mirror.table.bookings.by_namespace().items()
        for scope, amounts in scoped.items()
    } == {
        key: (total["memory"], total["cores"], total["devices"])
        for key, total in sums.items()
        if total.total()
    }


@given(rng=randoms(use_true_random=True))
def test_what_changes_in_a_table_does_not_change_in_its_copy(rng):
    mirror = Mirror(NAMES)
    for _ in range(20):
        mirror.change(rng)
    copy, fresh = mirror.table.copy(), mirror.fresh()
    for _ in range(20):
        mirror.change(rng)
    mirror.table.refresh()
    assert {name: copy.usages(name) for name in NAMES} == {
        name: fresh.usages(name) for name in NAMES
    }
    assert (copy.bookings.by_uid, copy.bookings.by_namespace()) == (
        fresh.bookings.by_uid,
        fresh.bookings.by_namespace(),
    )
    assert {name: facts(copy, row) for name, row in copy.rows.items()} == {
        name: facts(fresh, row) for name, row in fresh.rows.items()
    }


def test_a_node_with_many_devices_makes_no_room_for_as_many_on_other_nodes():
    table = Table()
    for number in range(500):
        table.set_devices(f"n{number}", "NVIDIA", (gpu("a"),))
    table.set_devices("wide", "NVIDIA", tuple(gpu(f"GPU-{number}") for number in range(256)))
    table.refresh()
    assert table.columns.all().facts.shape[1] == 500 + 256


def test_models_that_no_device_has_any_more_are_forgotten():
    table = Table()
    for number in range(1000):
        table.set_devices("n1", "NVIDIA", (gpu("a", model=f"model {number}"),))
        table.refresh()
    assert list(table.columns.all().models) == ["model 999"]


def facts(table, row):
    """The columns of one node, with names in place of numbers."""
    columns = table.columns.of(numpy.array([row]))
    names = [
        {number: text for text, number in numbers.items()}
        for numbers in (columns.vendors, columns.models, columns.modes)
    ]
    return [
        [names[place][value] if place < 3 else value for place, value in enumerate(device)]
        for device in columns.facts.T.tolist()
    ]


# Objects side by side in memory

COUNT, LENGTH = 500, 400
"""The length of the texts is one that few other objects have: their gaps are those of the test."""


def texts() -> list[str]:
    return [f"{number:0{LENGTH}}" for number in range(COUNT)]


def test_new_objects_lie_side_by_side_although_there_are_gaps_between_old_ones():
    old = [text for _ in range(4) for text in texts()]
    random.Random(1).shuffle(old)
    del old[: 2 * COUNT]
    assert jumps(texts()) > FEW_JUMPS * COUNT
    made = side_by_side(texts)
    assert jumps(made) <= FEW_JUMPS * COUNT
    assert made == texts()


def test_few_or_no_objects():
    assert side_by_side(list[int]) == []
    assert side_by_side(lambda: [1000]) == [1000]
    assert jumps([]) == jumps(["a"]) == 0
