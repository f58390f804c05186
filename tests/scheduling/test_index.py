"""An index that was updated step by step equals one that was built at once."""

import random

import pytest

from hami.scheduling.index import DEVICE, Index
from hami.scheduling.score import node_score
from tests.builders import booking, charge, gpu, usage
from tests.scheduling.mirror import Mirror

NAMES = [f"n{number}" for number in range(6)]


def test_devices_with_what_is_taken_of_them():
    index = Index()
    index.set_devices("n1", "NVIDIA", (gpu("a"), gpu("b")))
    index.book(booking("p", "n1", charge("b", 2, 300, 10), charge("gone", 1, 1, 1)))
    assert index.usages("n1") == {"NVIDIA": (usage("a"), usage("b", 2, 300, 10))}
    assert index.usages("unknown") == {}


def test_a_later_booking_of_a_pod_replaces_the_earlier():
    index = Index()
    index.set_devices("n1", "NVIDIA", (gpu("a"),))
    index.book(booking("p", "n1", charge("a", 1, 300, 10)))
    index.book(booking("p", "n2", charge("a", 1, 500, 20)))
    assert index.usages("n1") == {"NVIDIA": (usage("a"),)}
    assert index.namespace_usage("default", "NVIDIA") == (500, 20)


def test_bookings_wait_for_their_node():
    index = Index()
    index.book(booking("p", "n1", charge("a", 1, 300, 10)))
    index.set_devices("n1", "NVIDIA", (gpu("a"),))
    index.remove_node("n1")
    index.set_devices("n1", "NVIDIA", (gpu("a"),))
    assert index.usages("n1") == {"NVIDIA": (usage("a", 1, 300, 10),)}


def test_nothing_is_kept_of_what_is_gone():
    index = Index()
    for number in range(3):
        index.set_devices(f"n{number}", "NVIDIA", (gpu("a"),))
        index.book(booking(f"p{number}", f"n{number}", charge("a", 1, 300, 10), charge("b", 0, 0, 0)))
    for number in range(3):
        index.unbook(f"p{number}")
        index.remove_node(f"n{number}")
    assert not any((index.nodes, index.rows, index.names, index.bookings, index.usage_by_namespace(), index._used))


def test_unbook_gives_back_what_there_was():
    index, held = Index(), booking("p", "n1", charge("a", 1, 300, 10))
    index.book(held)
    assert (index.unbook("p"), index.unbook("p")) == (held, None)
    assert index.usage_by_namespace() == {}


@pytest.mark.parametrize("devices, news", [((gpu("a"),), False), ((gpu("a", healthy=False),), True), ((), True)])
def test_inventories_that_are_news(devices, news):
    index = Index()
    index.set_devices("n1", "NVIDIA", (gpu("a"),))
    assert index.set_devices("n1", "NVIDIA", devices) is news
    assert not Index().set_devices("n1", "NVIDIA", ())


def test_versions_rise_with_every_change_of_a_node_and_only_then():
    index = Index()
    versions = []
    for change in (lambda: index.set_devices("n1", "NVIDIA", (gpu("a"),)), lambda: index.set_devices("n2",
                                                                                                     "NVIDIA",
                                                                                                     (gpu("b"),)),
                   lambda: index.book(booking("p", "n1", charge("a"))), lambda: index.set_devices("n1", "NVIDIA",
                                                                                                  (gpu("a"),)),
                   lambda: index.book(booking("p", "n1", charge("a"))), lambda: index.unbook("p")):
        change()
        index.refresh()
        versions.append(int(index.versions[index.rows["n1"]]))
    assert versions == [1, 1, 3, 3, 3, 4]


def test_amounts_beyond_all_bounds_can_be_counted():
    index = Index()
    index.set_devices("n1", "NVIDIA", (gpu("a", slots=2**31 - 1, memory_mib=2**31 - 1),))
    for number in range(12):
        index.book(booking(f"p{number}", "n1", charge("a", 2**31 - 1, 2**31 - 1, 2**31 - 1)))
    assert index.usages("n1")["NVIDIA"][0].is_overcommitted
    assert index.devices["cores_free"][0, 0] == 100 - 12 * (2**31 - 1)


@pytest.mark.parametrize("seed", range(150))
def test_books_equal_adding_everything_up_again(seed):
    rng, mirror = random.Random(seed), Mirror(NAMES)
    for _ in range(rng.randint(1, 60)):
        mirror.change(rng)
        if rng.random() < 0.3:
            mirror.index.refresh()
    index, fresh = mirror.index, mirror.fresh()
    assert {name: index.usages(name) for name in NAMES} == {name: fresh.usages(name) for name in NAMES}
    assert (index.bookings, index.usage_by_namespace()) == (fresh.bookings, fresh.usage_by_namespace())
    assert set(index.nodes) == set(index.rows) == set(index.names.values()) == set(fresh.nodes)
    assert [name for _, name in sorted((index.rank()[row], name) for name,
                                       row in index.rows.items())] == sorted(index.nodes)
    for name, row in index.rows.items():
        assert index.scores[row] == node_score(index.nodes[name].all_usages())
        assert facts(index, row) == facts(fresh, fresh.rows[name])


def facts(index, row):
    """The flat columns of one node, with names in place of numbers."""
    devices = index.devices[row]
    devices = devices[devices["vendor"] > 0]
    vendors = {number: name for name, number in index.vendors.items()}
    models = {number: name for name, number in index.models.items()}
    numbers = [devices[name].tolist() for name in DEVICE.names if name not in ("vendor", "model")]
    return [numbers, [(vendors[device["vendor"]], models[device["model"]]) for device in devices]]
