"""When only a new process can use the driver."""

import pynvml
import pytest

from hami.devices.nvml import NvmlCards
from hami.devices.nvml_library import LIBRARY, RESTART_S, DriverLibrary
from hami.devices.usage import NvmlUsage
from hami.errors import DriverError
from testing.cases import cases
from testing.fake_nvml import FakeNvml, Gpu

UNINITIALIZED, NOT_LOADED = pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED
MISMATCH, LOST = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, pynvml.NVML_ERROR_GPU_IS_LOST
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN


class Scene:
    """A driver with two cards at a root, and the library of a process that reads them."""

    def __init__(self, path):
        self.nvml = FakeNvml(Gpu("GPU-0"), Gpu("GPU-1"))
        self.root = path
        self.file = path / "usr" / "lib64" / LIBRARY
        self.file.parent.mkdir(parents=True)
        self.file.write_text("570.1")
        self.now = 1000.0
        self.library = DriverLibrary(load=lambda root: self.nvml, clock=lambda: self.now)

    def open(self):
        """Opens the driver, and reports whether that was possible."""
        try:
            self.library.open(str(self.root))
        except DriverError:
            return False
        return True

    def read(self):
        """Reads the cards, and reports whether that was possible."""
        try:
            self.library.noted(NvmlCards(self.nvml).cards)
        except DriverError:
            return False
        return True

    def fail(self, function, *statuses):
        """Has a function fail, for each card with its own status or for all with the same."""
        self.nvml.heal()
        for index, status in enumerate(statuses):
            self.nvml.fail(function, status, index if len(statuses) > 1 else None)


@pytest.fixture
def scene(tmp_path):
    """One whose driver works."""
    return Scene(tmp_path)


@cases(
    "function, statuses, ends",
    ("mismatch", "nvmlDeviceGetCount", [MISMATCH], True),
    ("uninitialized", "nvmlDeviceGetCount", [UNINITIALIZED], True),
    ("not loaded", "nvmlDeviceGetCount", [NOT_LOADED], True),
    ("no card has a handle", "nvmlDeviceGetHandleByIndex", [MISMATCH], True),
    ("no card has a UUID", "nvmlDeviceGetUUID", [MISMATCH, UNINITIALIZED], True),
    ("no card has its memory", "nvmlDeviceGetMemoryInfo", [MISMATCH], True),
    ("one card is lost", "nvmlDeviceGetUUID", [MISMATCH, LOST], False),
    ("lost", "nvmlDeviceGetCount", [LOST], False),
    ("unknown", "nvmlDeviceGetCount", [UNKNOWN], False),
    ("all cards are lost", "nvmlDeviceGetHandleByIndex", [LOST], False),
)
def test_a_process_that_had_the_driver_ends_after_a_minute_of_errors_that_only_a_new_one_mends(
    scene, function, statuses, ends
):
    assert scene.open()
    assert scene.read()
    scene.fail(function, *statuses)
    scene.read()
    scene.now += RESTART_S - 1
    scene.read()
    assert scene.library.restart_reason() == ""
    scene.now += 1
    scene.read()
    reason = scene.library.restart_reason()
    assert bool(reason) is ends
    assert "only a new process could use the driver: NVML cannot" in reason or not ends


@cases("between", ("an answer", []), ("an error that may pass", [LOST]))
def test_the_minute_begins_again_after(scene, between):
    assert scene.open()
    assert scene.read()
    for statuses in ([MISMATCH], between, [MISMATCH]):
        scene.fail("nvmlDeviceGetCount", *statuses)
        scene.read()
        scene.now += RESTART_S
    assert scene.library.restart_reason() == ""
    scene.read()
    assert scene.library.restart_reason() != ""


def test_one_error_is_not_a_minute_of_errors(scene):
    assert scene.open()
    assert scene.read()
    scene.fail("nvmlDeviceGetCount", MISMATCH)
    scene.read()
    scene.now += 10 * RESTART_S
    assert scene.library.restart_reason() == ""


@pytest.mark.parametrize("is_replaced, ends", [(False, False), (True, True)])
@pytest.mark.parametrize("status", [NOT_LOADED, MISMATCH])
def test_a_process_that_waits_for_a_driver_ends_only_for_another_library(
    scene, status, is_replaced, ends
):
    scene.fail("nvmlInit", status)
    assert not scene.open()
    if is_replaced:
        scene.file.unlink()
        scene.file.write_text("580.2.1")
    scene.now += 100 * RESTART_S
    assert not scene.open()
    assert bool(scene.library.restart_reason()) is ends


def test_a_library_that_appears_while_a_process_waits_is_loaded_by_it(scene):
    scene.file.unlink()
    scene.fail("nvmlInit", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    assert not scene.open()
    scene.file.write_text("580.2")
    scene.now += 100 * RESTART_S
    scene.fail("nvmlInit")
    assert scene.open()
    assert scene.read()
    assert scene.library.restart_reason() == ""


@cases(
    "name, refused",
    ("the same", "libnvidia-ml.so.570.1", False),
    ("another", "libnvidia-ml.so.580.2", True),
    ("without a version", "libnvidia-ml.so.1", False),
)
def test_cards_are_not_offered_with_the_libraries_of_another_driver(tmp_path, name, refused):
    """Containers would be given libraries that refuse all their calls, until the node is rebooted."""
    folder = tmp_path / "usr" / "lib64"
    folder.mkdir(parents=True)
    (folder / name).touch()
    if name != LIBRARY:
        (folder / LIBRARY).symlink_to(name)
    source = NvmlCards(FakeNvml(Gpu("GPU-0")), driver_root=str(tmp_path))
    if not refused:
        assert len(source.cards()) == 1
        return
    says = "driver 570.1 is loaded, but its libraries on the node are those of 580.2"
    with pytest.raises(DriverError, match=says) as caught:
        source.cards()
    assert not caught.value.needs_new_process


def test_a_driver_that_does_not_tell_its_version_is_believed(tmp_path):
    (tmp_path / "usr" / "lib64").mkdir(parents=True)
    (tmp_path / "usr" / "lib64" / "libnvidia-ml.so.580.2").touch()
    (tmp_path / "usr" / "lib64" / LIBRARY).symlink_to("libnvidia-ml.so.580.2")
    nvml = FakeNvml(Gpu("GPU-0"))
    nvml.fail("nvmlSystemGetDriverVersion", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    assert len(NvmlCards(nvml, driver_root=str(tmp_path)).cards()) == 1


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetCount", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo"]
)
def test_usage_that_no_card_tells_any_more_is_an_error(function):
    nvml = FakeNvml(Gpu("GPU-0"), Gpu("GPU-1"))
    nvml.fail(function, MISMATCH)
    with pytest.raises(DriverError) as caught:
        NvmlUsage(nvml).read(0.0)
    assert caught.value.needs_new_process
