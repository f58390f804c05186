"""The list of cards that the plugin's threads share."""

import threading

from hami.plugin.roster import GONE, Roster

from tests.plugin.cards import card, cards


def roster_of(*uuids):
    roster = Roster()
    roster.read(cards(*uuids))
    return roster


def test_cards_stand_in_the_order_of_their_index():
    roster = Roster()
    roster.read([card("b", index=1), card("a", index=2), card("c", index=0)])
    assert [one.uuid for one in roster.cards()] == ["c", "b", "a"]


def test_a_second_reading_of_the_same_changes_nothing():
    roster = roster_of("a", "b")
    version = roster.roll().version
    roster.read(list(reversed(cards("a", "b"))))
    assert roster.roll().version == version


def test_of_two_cards_with_one_uuid_the_first_counts():
    roster = Roster()
    roster.read([card("a", index=0), card("a", index=1)])
    assert [one.index for one in roster.cards()] == [0]


def test_a_card_turns_bad_and_well_again():
    roster = roster_of("a", "b")
    roster.report("a", "XID 79")
    assert roster.roll().unwell == {"a": "XID 79"}
    roster.report("a", "")
    assert roster.roll().unwell == {}


def test_a_report_without_a_uuid_is_of_all():
    roster = roster_of("a", "b")
    roster.report("", "no events")
    assert set(roster.roll().unwell) == {"a", "b"}


def test_a_card_that_is_not_listed_any_more_stays_as_an_unwell_one_until_it_is_back():
    roster = roster_of("a", "b")
    roster.read(cards("a"))
    assert [one.uuid for one in roster.cards()] == ["a", "b"]
    assert roster.roll().unwell == {"b": GONE}
    roster.read(cards("a", "b"))
    assert roster.roll().unwell == {}


def test_what_was_known_of_a_card_stays_when_it_cannot_be_read():
    roster = roster_of("a")
    roster.read([card("a", memory_mib=0, model="", problem="memory: GPU is lost")])
    assert roster.cards()[0].memory_mib == 81920
    assert roster.roll().unwell == {"a": "memory: GPU is lost"}


def test_a_card_that_was_never_read_well_is_there_with_its_problem():
    roster = Roster()
    roster.read([card("a", memory_mib=0, problem="memory: unknown error")])
    assert roster.roll().unwell == {"a": "memory: unknown error"}


def test_a_card_that_was_left_out_is_left_out_when_it_cannot_be_read():
    """Not even whether it is in MIG mode can be known then."""
    roster = Roster(lambda card: None if card.mig else card)
    roster.read([card("a", mig=True)])
    roster.read([])
    roster.read([card("a", problem="MIG mode: unknown error")])
    assert roster.cards() == ()
    roster.read([card("a")])
    assert roster.roll().unwell == {}
    roster.read([card("a", problem="memory: unknown error")])
    assert roster.roll().unwell == {"a": "memory: unknown error"}


def test_who_waits_goes_on_with_the_next_change():
    roster = roster_of("a")
    found = []
    waiting = threading.Thread(target=lambda: found.append(roster.wait(roster.roll().version)))
    waiting.start()
    roster.report("a", "XID 79")
    roster.close()  # whichever came first, the waiting ends
    waiting.join(10)
    assert not waiting.is_alive()
    assert len(found) == 1


def test_a_change_that_came_before_the_waiting_is_not_missed():
    roster = roster_of("a")
    version = roster.roll().version
    roster.report("a", "XID 79")
    assert roster.wait(version).unwell == {"a": "XID 79"}


def test_the_end_lets_all_go_on():
    roster = roster_of("a")
    roster.close()
    assert roster.wait(roster.roll().version) == roster.roll()
    assert roster.wait_until(lambda roll: False) is None
