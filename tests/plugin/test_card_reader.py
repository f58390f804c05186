"""The cards are read again and again; while they cannot be, their state is unknown."""

import threading

import pytest

from hami.devices.inventory import DeviceInventory
from hami.errors import DriverError, HostError
from hami.plugin.card_reader import INTERVAL_S, READ, RETRY_S, CardReader
from testing.cards import cards
from testing.cases import cases


class Scene:
    """Two cards, and an inventory of them. *error*: raised by the next reads."""

    def __init__(self):
        self.error = None
        self.inventory = DeviceInventory()
        self.reader = CardReader(self.read, self.inventory, self.inventory.report_unknown)

    def read(self):
        if self.error is not None:
            raise self.error
        return cards("GPU-a", "GPU-b")

    @property
    def unhealthy(self):
        return self.inventory.snapshot().unhealthy


@pytest.fixture
def scene():
    """One whose cards were read."""
    made = Scene()
    assert made.reader.step() == INTERVAL_S
    return made


@cases(
    "error",
    ("the driver", DriverError("NVML cannot count the cards: Driver/library version mismatch")),
    ("the node", HostError("cannot write a CDI specification: /run/cdi: Read-only file system")),
)
def test_no_card_is_healthy_while_they_cannot_be_read(scene, error, caplog):
    caplog.set_level("INFO", "hami")
    scene.error = error
    for _ in range(2):
        assert scene.reader.step() == RETRY_S
    assert scene.unhealthy == {"GPU-a": str(error), "GPU-b": str(error)}
    scene.error = None
    assert scene.reader.step() == INTERVAL_S
    assert scene.unhealthy == {}
    assert [record.message for record in caplog.records] == [
        "cards cannot be read",
        "cards can be read again",
    ]


def test_an_unexpected_error_makes_the_state_unknown_and_is_retried(scene, caplog):
    raised = threading.Event()

    class Bug(ValueError):
        def __init__(self):
            raised.set()

    def read():
        raise Bug

    scene.reader._read_cards = read
    scene.reader.start()
    assert raised.wait(20)
    scene.reader.stop()
    scene.reader.join(20)
    assert set(scene.unhealthy) == {"GPU-a", "GPU-b"}
    assert "task failed, will retry" in caplog.text


def test_a_health_change_is_logged_once(scene, caplog):
    caplog.set_level("INFO", "hami")
    for reason in ("", "XID 79", "XID 79", ""):
        scene.inventory.report("GPU-b", reason)
        scene.reader.step()
    assert [record.message for record in caplog.records] == ["device unhealthy", "device healthy"]


def test_a_card_that_is_unhealthy_stays_so_when_all_are_known_again(scene):
    scene.inventory.report("GPU-b", "XID 79")
    scene.inventory.report_unknown(READ, "the driver is lost")
    scene.reader.step()
    assert scene.unhealthy == {"GPU-b": "XID 79"}
