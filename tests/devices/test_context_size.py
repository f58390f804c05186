"""Sizes of contexts: measured once for each model and driver, on a card that nobody uses, and remembered."""

from dataclasses import replace

import pytest

from hami.devices.cards import Card
from hami.devices.context_size import FILE, ContextSizes
from hami.errors import HamiError

MIB = 1 << 20
CARD = Card(uuid="GPU-1", index=0, minor=0, model="A40", memory_mib=46068)
SAME, OTHER = replace(CARD, uuid="GPU-2"), replace(CARD, uuid="GPU-3", model="H100")


class Driver:
    """Measures, unless a card is busy."""

    def __init__(self):
        self.busy = set()
        self.measured = []

    def measure(self, uuid, driver_root):
        if uuid in self.busy:
            raise HamiError("the card is in use")
        self.measured.append(uuid)
        return 400 * MIB


@pytest.fixture
def driver():
    return Driver()


@pytest.fixture
def make(tmp_path, driver):
    (tmp_path / "version").write_text("580.1\n")
    return lambda: ContextSizes(
        tmp_path, "/driver-root", version=tmp_path / "version", measure=driver.measure
    )


def test_each_model_is_measured_once(make, driver):
    sizes = make()
    assert sizes.bytes_of(CARD) == 0
    sizes.measure_missing([CARD, SAME, OTHER])
    sizes.measure_missing([CARD, SAME, OTHER])
    assert driver.measured == ["GPU-1", "GPU-3"]
    assert {sizes.bytes_of(one) for one in (CARD, SAME, OTHER)} == {400 * MIB}


def test_another_card_of_the_model_or_a_later_call_measures_what_was_in_use(make, driver):
    sizes = make()
    driver.busy = {"GPU-1", "GPU-3"}
    sizes.measure_missing([CARD, SAME, OTHER])
    assert (driver.measured, sizes.bytes_of(CARD), sizes.bytes_of(OTHER)) == (
        ["GPU-2"],
        400 * MIB,
        0,
    )
    driver.busy = set()
    sizes.measure_missing([CARD, SAME, OTHER])
    assert sizes.bytes_of(OTHER) == 400 * MIB


def test_sizes_outlive_the_process_but_not_the_driver(make, tmp_path):
    make().measure_missing([CARD])
    assert make().bytes_of(CARD) == 400 * MIB
    (tmp_path / "version").write_text("590.2\n")
    assert make().bytes_of(CARD) == 0


@pytest.mark.parametrize(
    "content", ["", "[]", '{"A40, driver 580.1": "much"}', '{"A40, driver 580.1": -1}']
)
def test_broken_file_is_measured_anew(make, tmp_path, content):
    (tmp_path / FILE).write_text(content)
    assert make().bytes_of(CARD) == 0


@pytest.mark.parametrize("card", [replace(CARD, mig=True), replace(CARD, problem="lost")])
def test_card_that_cannot_be_used_whole_is_left_alone(make, driver, card):
    make().measure_missing([card])
    assert driver.measured == []
