"""The list of cards that the plugin's threads share."""

import threading

from hami.devices.inventory import GONE, DeviceInventory

from tests.devices.cards import card, cards


def roster_of(*uuids):
    inventory = DeviceInventory()
    inventory.read(cards(*uuids))
    return inventory


def test_cards_stand_in_the_order_of_their_index():
    inventory = DeviceInventory()
    inventory.read([card("b", index=1), card("a", index=2), card("c", index=0)])
    assert [one.uuid for one in inventory.cards()] == ["c", "b", "a"]


def test_a_second_reading_of_the_same_changes_nothing():
    inventory = roster_of("a", "b")
    version = inventory.roll().version
    inventory.read(list(reversed(cards("a", "b"))))
    assert inventory.roll().version == version


def test_of_two_cards_with_one_uuid_the_first_counts():
    inventory = DeviceInventory()
    inventory.read([card("a", index=0), card("a", index=1)])
    assert [one.index for one in inventory.cards()] == [0]


def test_a_card_turns_bad_and_well_again():
    inventory = roster_of("a", "b")
    inventory.report("a", "XID 79")
    assert inventory.roll().unwell == {"a": "XID 79"}
    inventory.report("a", "")
    assert inventory.roll().unwell == {}


def test_a_report_without_a_uuid_is_of_all():
    inventory = roster_of("a", "b")
    inventory.report("", "no events")
    assert set(inventory.roll().unwell) == {"a", "b"}


def test_a_card_that_is_not_listed_any_more_stays_as_an_unwell_one_until_it_is_back():
    inventory = roster_of("a", "b")
    inventory.read(cards("a"))
    assert [one.uuid for one in inventory.cards()] == ["a", "b"]
    assert inventory.roll().unwell == {"b": GONE}
    inventory.read(cards("a", "b"))
    assert inventory.roll().unwell == {}


def test_what_was_known_of_a_card_stays_when_it_cannot_be_read():
    inventory = roster_of("a")
    inventory.read([card("a", memory_mib=0, model="", problem="memory: GPU is lost")])
    assert inventory.cards()[0].memory_mib == 81920
    assert inventory.roll().unwell == {"a": "memory: GPU is lost"}


def test_a_card_that_was_never_read_well_is_there_with_its_problem():
    inventory = DeviceInventory()
    inventory.read([card("a", memory_mib=0, problem="memory: unknown error")])
    assert inventory.roll().unwell == {"a": "memory: unknown error"}


def test_a_card_that_was_left_out_is_left_out_when_it_cannot_be_read():
    """Not even whether it is in MIG mode can be known then."""
    inventory = DeviceInventory(lambda card: None if card.mig else card)
    inventory.read([card("a", mig=True)])
    inventory.read([])
    inventory.read([card("a", problem="MIG mode: unknown error")])
    assert inventory.cards() == ()
    inventory.read([card("a")])
    assert inventory.roll().unwell == {}
    inventory.read([card("a", problem="memory: unknown error")])
    assert inventory.roll().unwell == {"a": "memory: unknown error"}


def test_who_waits_goes_on_with_the_next_change():
    inventory = roster_of("a")
    found = []
    waiting = threading.Thread(target=lambda: found.append(inventory.wait(inventory.roll().version)))
    waiting.start()
    inventory.report("a", "XID 79")
    inventory.close()  # whichever came first, the waiting ends
    waiting.join(10)
    assert not waiting.is_alive()
    assert len(found) == 1


def test_a_change_that_came_before_the_waiting_is_not_missed():
    inventory = roster_of("a")
    version = inventory.roll().version
    inventory.report("a", "XID 79")
    assert inventory.wait(version).unwell == {"a": "XID 79"}


def test_the_end_lets_all_go_on():
    inventory = roster_of("a")
    inventory.close()
    assert inventory.wait(inventory.roll().version) == inventory.roll()
    assert inventory.wait_until(lambda roll: False) is None
