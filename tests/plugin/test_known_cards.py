"""The cards that a node had when its driver last answered."""

from dataclasses import replace

import pytest

from hami.errors import DriverError
from hami.plugin.known_cards import NO_ANSWER, KnownCards, SilentDriver
from testing.cards import A100_PROFILES, cards
from testing.cases import cases

CARDS = tuple(
    replace(card, profiles=A100_PROFILES, links={"GPU-x": 20}) for card in cards("a", "b")
)


def test_cards_are_what_they_were(tmp_path):
    path = tmp_path / "vgpu" / "cards.json"
    KnownCards(path).save(CARDS)
    assert KnownCards(path).load() == CARDS
    KnownCards(path).save(CARDS[:1])
    assert KnownCards(path).load() == CARDS[:1]


@cases("text", ("nothing", None), ("no JSON", "x"), ("something else", '[{"uuid": 1}]'))
def test_a_file_that_cannot_be_read_names_no_cards(tmp_path, text):
    path = tmp_path / "cards.json"
    if text is not None:
        path.write_text(text)
    assert KnownCards(path).load() == ()


def test_a_disk_that_is_full_stops_nothing(tmp_path):
    (tmp_path / "file").touch()
    KnownCards(tmp_path / "file" / "cards.json").save(CARDS)


def test_without_a_path_nothing_is_kept():
    KnownCards(None).save(CARDS)
    assert KnownCards(None).load() == ()


def test_a_driver_that_does_not_answer_has_no_instances():
    with pytest.raises(DriverError, match=NO_ANSWER):
        _ = SilentDriver(CARDS).instances
