"""The driver is lost and comes back."""

import pynvml
import pytest

from hami.devices.cards import Card
from hami.devices.nvml_library import RESTART_S, DriverLibrary
from hami.errors import HamiError
from hami.monitor.source import REOPEN_S, DriverSource, FixedSource
from testing.fake_nvml import FakeNvml, Gpu


class Driver(FakeNvml):
    """Counts how often it is opened and closed."""

    def __init__(self):
        super().__init__(Gpu("GPU-0"))
        self.opened = self.closed = 0
        self.present = True

    def nvmlInit(self):
        super().nvmlInit()
        self.opened += 1
        if not self.present:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    def source(self):
        """The source of a monitor that has not asked it yet."""
        return DriverSource(DriverLibrary(load=lambda root: self), "/driver-root")

    def nvmlShutdown(self):
        self.closed += 1
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)


def test_a_driver_that_is_lost_is_opened_again(caplog):
    driver = Driver()
    source = driver.source()
    assert [card.uuid for card in source.read(0.0)] == ["GPU-0"]
    driver.fail("nvmlDeviceGetCount", pynvml.NVML_ERROR_GPU_IS_LOST)
    assert source.read(1.0) is None
    driver.heal()
    assert source.read(2.0) is None
    assert (driver.opened, driver.closed) == (1, 1)
    assert [card.uuid for card in source.read(2.0 + REOPEN_S)] == ["GPU-0"]
    assert driver.opened == 2
    assert len(caplog.records) == 1


def test_a_node_without_driver_says_so_once(caplog):
    driver = Driver()
    driver.present = False
    source = driver.source()
    assert [source.read(second) for second in range(300)] == [None] * 300
    assert 9 <= driver.opened <= 11
    assert len([one for one in caplog.records if "no driver" in one.message]) == 1


def test_the_clock_may_go_back():
    driver = Driver()
    driver.present = False
    source = driver.source()
    source.read(10_000.0)
    driver.present = True
    assert source.read(5.0) is not None


def test_a_driver_that_was_replaced_needs_a_new_process():
    driver = Driver()
    library = DriverLibrary(load=lambda root: driver, clock=lambda: now)
    source = DriverSource(library, "/driver-root")
    now = 0.0
    assert source.read(now) is not None
    driver.fail("nvmlDeviceGetCount", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    assert (source.read(now), source.restart_reason()) == (None, "")
    driver.fail("nvmlInit", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    while now < RESTART_S + REOPEN_S:
        now += 1
        assert source.read(now) is None
    assert (
        "no NVIDIA driver available: RM has detected an NVML/RM version mismatch"
        in source.restart_reason()
    )


@pytest.mark.parametrize("fails", [False, True])
def test_cards_of_a_file(fails):
    def cards():
        if fails:
            raise HamiError("cards.yaml: not YAML")
        return [Card(uuid="GPU-0", index=0, minor=0, model="NVIDIA Mock", memory_mib=1024)]

    found = FixedSource(cards).read(0.0)
    if fails:
        assert found is None
    else:
        (card,) = found
        assert (card.uuid, card.memory, card.processes, card.memory_used) == (
            "GPU-0",
            1 << 30,
            None,
            None,
        )
