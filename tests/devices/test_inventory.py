"""The cards that the plugin's threads share."""

import threading

from hami.devices.inventory import GONE, DeviceInventory
from testing.cards import card, cards


def inventory_of(*uuids):
    inventory = DeviceInventory()
    inventory.update(cards(*uuids))
    return inventory


def test_cards_are_sorted_by_index():
    inventory = DeviceInventory()
    inventory.update([card("b", index=1), card("a", index=2), card("c", index=0)])
    assert [one.uuid for one in inventory.cards()] == ["c", "b", "a"]


def test_the_same_cards_do_not_change_the_version():
    inventory = inventory_of("a", "b")
    version = inventory.snapshot().version
    inventory.update(list(reversed(cards("a", "b"))))
    assert inventory.snapshot().version == version


def test_of_two_cards_with_one_uuid_the_first_counts():
    inventory = DeviceInventory()
    inventory.update([card("a", index=0), card("a", index=1)])
    assert [one.index for one in inventory.cards()] == [0]


def test_a_card_becomes_unhealthy_and_healthy():
    inventory = inventory_of("a", "b")
    inventory.report("a", "XID 79")
    assert inventory.snapshot().unhealthy == {"a": "XID 79"}
    inventory.report("a", "")
    assert inventory.snapshot().unhealthy == {}


def test_a_report_without_a_uuid_applies_to_all_cards():
    inventory = inventory_of("a", "b")
    inventory.report("", "no events")
    assert set(inventory.snapshot().unhealthy) == {"a", "b"}


def test_while_the_state_is_unknown_for_any_cause_all_cards_are_unhealthy():
    inventory = inventory_of("a", "b")
    inventory.report("a", "XID 79")
    version = inventory.snapshot().version
    inventory.report_unknown("read", "the driver is lost")
    inventory.report_unknown("silent", "the driver does not answer")
    assert inventory.snapshot().unhealthy == {"a": "the driver is lost", "b": "the driver is lost"}
    inventory.report_unknown("read", "")
    inventory.update(cards("a", "b", "c"))
    assert set(inventory.snapshot().unhealthy) == {"a", "b", "c"}
    inventory.report_unknown("silent", "")
    assert (inventory.snapshot().unhealthy, inventory.snapshot().unknown) == ({"a": "XID 79"}, "")
    assert inventory.snapshot().version > version


def test_a_card_that_is_no_longer_listed_is_unhealthy_until_it_is_back():
    inventory = inventory_of("a", "b")
    inventory.update(cards("a"))
    assert [one.uuid for one in inventory.cards()] == ["a", "b"]
    assert inventory.snapshot().unhealthy == {"b": GONE}
    inventory.update(cards("a", "b"))
    assert inventory.snapshot().unhealthy == {}


def test_an_unreadable_card_keeps_its_last_known_state():
    inventory = inventory_of("a")
    inventory.update([card("a", memory_mib=0, model="", problem="memory: GPU is lost")])
    assert inventory.cards()[0].memory_mib == 81920
    assert inventory.snapshot().unhealthy == {"a": "memory: GPU is lost"}


def test_a_card_that_was_never_readable_is_unhealthy():
    inventory = DeviceInventory()
    inventory.update([card("a", memory_mib=0, problem="memory: unknown error")])
    assert inventory.snapshot().unhealthy == {"a": "memory: unknown error"}


def test_a_card_that_was_not_offered_is_not_offered_when_unreadable():
    """Whether it is in MIG mode is unknown then."""
    inventory = DeviceInventory(lambda card: None if card.mig else card)
    inventory.update([card("a", mig=True)])
    inventory.update([])
    inventory.update([card("a", problem="MIG mode: unknown error")])
    assert inventory.cards() == ()
    inventory.update([card("a")])
    assert inventory.snapshot().unhealthy == {}
    inventory.update([card("a", problem="memory: unknown error")])
    assert inventory.snapshot().unhealthy == {"a": "memory: unknown error"}


def newer(before):
    """Whether a snapshot is a later one."""
    return lambda snapshot: snapshot.version > before.version


def test_a_wait_ends_with_the_next_change():
    inventory = inventory_of("a")
    found = []
    waiting = threading.Thread(
        target=lambda: found.append(inventory.wait_until(newer(inventory.snapshot())))
    )
    waiting.start()
    inventory.report("a", "XID 79")
    inventory.close()  # ends the wait in any case
    waiting.join(10)
    assert not waiting.is_alive()
    assert len(found) == 1


def test_a_change_before_the_wait_is_not_missed():
    inventory = inventory_of("a")
    before = inventory.snapshot()
    inventory.report("a", "XID 79")
    assert inventory.wait_until(newer(before)).unhealthy == {"a": "XID 79"}


def test_close_ends_all_waits():
    inventory = inventory_of("a")
    inventory.close()
    assert inventory.wait_until(newer(inventory.snapshot()), 10) is None
    assert inventory.wait_until(lambda snapshot: False) is None
