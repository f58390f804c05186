"""The watch of the cards' health. Time passes while it waits for events."""

import pynvml
import pytest
from pytest import param

from hami.codec.health import DeviceHealth
from hami.devices.health import PAUSE_S, POLL_S, HealthWatch, loaded_driver
from hami.devices.nvml import NvmlCards
from hami.devices.verdict import GONE, LOST
from hami.devices.xids import XidKind, XidRules
from testing.cards import Reports, Stop
from testing.fake_nvml import FakeNvml, Gpu

IS_LOST, RESET, UNKNOWN = (
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_UNKNOWN,
)
NOT_SUPPORTED, MISMATCH = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)
NOT_LOADED = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
NOBODY_TELLS = "the driver does not tell the state of the card"
NOBODY_TELLS_ALL = "the driver does not tell the state of the cards"
ASKS = "the driver asks: reset the GPU"


class Scene:
    """A driver with three cards, and the watch of their health. *action*: what it asks for of each, ``None`` before
    release 570."""

    def __init__(self, action=0, rules=XidRules()):
        self.nvml = FakeNvml(*(Gpu(f"GPU-{index}", action=action) for index in range(3)))
        self.nvml.nvmlEventSetWait = self._wait
        self.now, self.until = 1000.0, 0.0
        self.heard = Reports()
        self.events, self.waits, self.looks = [], [], 0
        self.driver = "driver-1"
        self.watch = HealthWatch(
            self.nvml, rules, clock=lambda: self.now, driver=lambda: self.driver
        )

    def run(self, seconds, *events):
        """Lets so many seconds pass, with *events* at their beginning: events, or functions that change the driver."""
        self.events = list(events)
        self.until = self.now + seconds
        self.watch.run(self.heard, Stop(lambda: self.now >= self.until, self._pass))
        assert self.nvml.open_sets == 0
        return self

    def xid(self, index, xid, **fields):
        return self.nvml.xid(index, xid, **fields)

    def ask(self, index, action, *, is_told=True):
        """A change of what the driver asks for, with an event if *is_told*."""

        def change():
            self.nvml.gpus[index].action = action
            return self.nvml.xid(index, 0, kind=0x8000) if is_told else None

        return change

    def causes(self, index=1):
        """What was heard of a card."""
        return [cause for uuid, cause in self.heard.causes if uuid in ("", f"GPU-{index}")]

    def _pass(self, seconds):
        self.now += seconds

    def _wait(self, events, timeout_ms):
        self.nvml._enter("nvmlEventSetWait")
        event = self.events.pop(0) if self.events else None
        if callable(event):
            event = event()
        if event is not None:
            return event
        self.now += timeout_ms / 1000
        raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)


def test_all_cards_are_watched_for_supported_events():
    scene = Scene()
    scene.nvml.nvmlDeviceGetSupportedEventTypes = lambda handle: 0xFFFF
    scene.run(20)
    assert scene.nvml.registered == [(f"GPU-{index}", 0x8 | 0xE800) for index in range(3)]
    assert scene.heard.causes == [(f"GPU-{index}", "") for index in range(3)]


def test_cards_are_looked_at_every_five_seconds():
    scene = Scene().run(60)
    asked = scene.nvml.calls.count("nvmlDeviceGetFieldValues")
    assert asked == 3 * 60 / POLL_S


@pytest.mark.parametrize("is_told, latest", [(True, 0), (False, POLL_S)])
def test_a_card_is_unhealthy_at_once_or_with_the_next_look_and_well_again(is_told, latest):
    scene = Scene().run(1)
    scene.run(latest + 0.6, scene.ask(1, 1, is_told=is_told))
    assert scene.causes() == ["", ASKS]
    scene.run(latest + 0.6, scene.ask(1, 0, is_told=is_told))
    assert scene.causes() == ["", ASKS, ""]
    assert (scene.causes(0), scene.causes(2)) == ([""], [""])


def test_many_events_cost_few_looks():
    scene = Scene()
    scene.run(1, *[scene.xid(1, 31)] * 1000)
    assert len(scene.heard.xids) == 1000
    assert scene.nvml.calls.count("nvmlDeviceGetFieldValues") <= 3 * (2 + 1 / PAUSE_S)


@pytest.mark.parametrize(
    "xid, kind",
    [(31, XidKind.APPLICATION), (43, XidKind.LOG), (79, XidKind.RESET), (170, XidKind.UNKNOWN)],
)
def test_an_xid_is_told_and_does_not_decide(xid, kind):
    scene = Scene()
    scene.run(20, scene.xid(1, xid))
    (event,) = scene.heard.xids
    assert (event.gpu, event.xid, event.kind, event.instance) == ("GPU-1", xid, kind, None)
    assert scene.causes() == [""]


@pytest.mark.parametrize(
    "xid, rules, expected",
    [
        param(79, XidRules(), ["", "XID 79"], id="critical"),
        param(109, XidRules(), ["", "XID 109"], id="critical, says the catalog"),
        param(31, XidRules(), [""], id="caused by an application"),
        param(31, XidRules(enabled=frozenset({31})), ["", "XID 31"], id="enabled"),
        param(79, XidRules(disabled=frozenset({79})), [""], id="disabled"),
        param(79, XidRules(disabled=None, enabled=frozenset({48})), [""], id="all but another"),
    ],
)
def test_an_xid_decides_where_the_driver_does_not_say(xid, rules, expected):
    scene = Scene(None, rules)
    scene.run(20, scene.xid(1, xid))
    assert scene.causes() == expected
    assert (scene.causes(0), scene.causes(2)) == ([""], [""])


@pytest.mark.parametrize(
    "rules",
    [XidRules(disabled=frozenset({79})), XidRules(enabled=frozenset({31})), XidRules(enabled=None)],
)
def test_the_variables_do_not_override_the_driver(rules, caplog):
    scene = Scene(0, rules)
    scene.run(1, scene.xid(1, 31))
    assert scene.causes() == [""]
    scene.run(1, scene.ask(1, 1))
    assert scene.causes()[-1].startswith(ASKS)
    assert sum("have no effect" in record.message for record in caplog.records) == 1


def test_nothing_is_watched_if_all_xids_are_disabled(caplog):
    scene = Scene(0, XidRules(disabled=None))
    scene.watch.look(scene.heard)
    scene.run(60)
    assert (scene.nvml.calls, scene.heard.causes) == ([], [])
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_an_xid_in_an_instance_names_it():
    scene = Scene(None)
    scene.run(20, scene.xid(0, 79, instance=2))
    assert scene.causes(0) == ["", "XID 79 in MIG instance 2/2"]
    assert scene.heard.xids[0].instance == (2, 2)


def test_an_xid_of_an_unknown_card_makes_all_cards_unhealthy_of_which_the_driver_says_nothing():
    scene = Scene(None)
    scene.nvml.gpus[2].action = 0
    event = scene.xid(1, 79)
    event.device = Gpu("GPU-9")
    scene.run(1)
    scene.run(0.5, lambda: scene.nvml.fail("nvmlDeviceGetUUID", UNKNOWN) or event, scene.nvml.heal)
    scene.run(20)
    said = "XID 79 on an unknown card: Unknown Error"
    assert scene.heard.health["GPU-0"].cause == said
    assert scene.heard.health["GPU-1"].cause == said
    assert scene.heard.health["GPU-2"] is None


ANY_CALL = pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetFieldValues",
        "recovery action",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceRegisterEvents",
        "nvmlDeviceGetSupportedEventTypes",
    ],
)


@ANY_CALL
@pytest.mark.parametrize(
    "status, says", [(IS_LOST, LOST.cause), (RESET, "the driver refuses calls until a reset")]
)
@pytest.mark.parametrize("action", [None, 0])
def test_a_card_is_lost_or_needs_a_reset_whatever_call_says_so(function, status, says, action):
    scene = Scene(action)
    scene.nvml.fail(function, status, 1)
    scene.run(6)
    assert scene.causes() == [says]
    assert scene.heard.health["GPU-1"].harms_pods
    scene.nvml.heal()
    scene.run(6)
    assert scene.causes() == [says, ""]
    assert (scene.causes(0), scene.causes(2)) == ([""], [""])


def test_a_card_that_has_lost_rows_is_unhealthy_where_the_driver_does_not_say():
    scene = Scene(None)
    scene.nvml.gpus[0].remap_failed = True
    scene.run(1)
    assert scene.causes(0) == ["remapping of memory rows has failed"]


def test_a_card_whose_mig_mode_changes_at_its_next_reset_is_unhealthy():
    scene = Scene()
    scene.nvml.gpus[0].mig, scene.nvml.gpus[0].needs_reset = False, True
    scene.run(60)
    assert scene.causes(0) == ["MIG mode changes at the next reset of the card"]
    assert not scene.heard.health["GPU-0"].harms_pods


@pytest.mark.parametrize("function", ["nvmlDeviceGetFieldValues", "recovery action"])
def test_a_failed_query_keeps_the_verdict_for_30_seconds_at_most(function):
    scene = Scene().run(1)
    scene.nvml.fail(function, UNKNOWN, 1)
    scene.run(28)
    assert set(scene.causes()) == {""}
    scene.run(2)
    assert scene.causes()[-1] == f"{NOBODY_TELLS}: Unknown Error"
    scene.nvml.heal()
    scene.run(2)
    assert scene.causes()[-1] == ""


def test_an_unknown_field_is_none():
    """A driver that has never heard of the number."""
    scene = Scene(0)
    scene.nvml.fail("recovery action", pynvml.NVML_ERROR_INVALID_ARGUMENT)
    scene.run(1, scene.xid(1, 79))
    assert scene.causes() == ["", "XID 79"]


@pytest.mark.parametrize(
    "function, status",
    [
        ("nvmlDeviceGetCount", UNKNOWN),
        ("nvmlDeviceGetCount", MISMATCH),
        ("nvmlDeviceGetFieldValues", MISMATCH),
        ("nvmlDeviceGetHandleByIndex", NOT_LOADED),
    ],
)
def test_a_driver_that_fails_as_a_whole_withdraws_all_cards_at_once(function, status):
    scene = Scene().run(1)
    scene.nvml.fail(function, status)
    scene.run(POLL_S)
    says = f"{NOBODY_TELLS_ALL}: {pynvml.NVMLError(status)}"
    assert scene.heard.causes[3:] == [("", says)]
    scene.nvml.heal()
    scene.run(2)
    assert sorted(scene.heard.causes[4:]) == [(f"GPU-{index}", "") for index in range(3)]
    scene.nvml.fail(function, status)
    scene.run(POLL_S)
    assert scene.heard.causes[7:] == [("", says)]


@pytest.mark.parametrize("driver, expected", [("driver-1", "XID 79"), ("driver-2", "")])
def test_a_driver_that_was_loaded_again_has_reset_the_cards(driver, expected):
    scene = Scene(None)
    scene.run(1, scene.xid(1, 79))
    scene.nvml.fail("nvmlDeviceGetCount", NOT_LOADED)
    scene.run(10)
    scene.nvml.heal()
    scene.driver = driver
    scene.run(10)
    assert scene.causes()[-1] == expected


@pytest.mark.parametrize("action", [None, 0])
def test_a_card_that_vanishes_is_unhealthy_and_back_again(action):
    scene = Scene(action).run(1)
    second = scene.nvml.gpus.pop(1)
    scene.run(POLL_S)
    assert scene.causes(1) == ["", GONE.cause]
    scene.nvml.gpus.insert(1, second)
    scene.run(POLL_S)
    assert scene.causes(1) == ["", GONE.cause, ""]


def test_events_that_are_interrupted_are_registered_again_and_the_cards_looked_at():
    scene = Scene()

    def interrupt():
        scene.nvml.gpus[1].action = 1
        raise pynvml.NVMLError(UNKNOWN)

    scene.run(2.1, interrupt)
    assert len(scene.nvml.registered) == 6
    assert scene.causes() == ["", ASKS]


def test_no_event_is_lost_while_one_card_cannot_be_registered():
    scene = Scene(None)
    scene.nvml.fail("nvmlDeviceRegisterEvents", IS_LOST, 0)
    scene.run(60, *[None] * 20, scene.xid(1, 79))
    assert scene.causes(1) == ["", "XID 79"]
    assert scene.nvml.calls.count("nvmlEventSetCreate") == 1


@pytest.mark.parametrize("function", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents"])
@pytest.mark.parametrize("action, latest", [(None, f"{NOBODY_TELLS}: Unknown Error"), (0, "")])
def test_events_that_cannot_be_had_matter_only_where_the_driver_does_not_say(
    function, action, latest
):
    scene = Scene(action)
    scene.nvml.fail(function, UNKNOWN)
    scene.run(40)
    assert scene.causes()[-1:] in ([latest], [] if latest else [""])
    assert scene.heard.health["GPU-1"] is None or scene.heard.health["GPU-1"].cause == latest


def test_a_driver_without_events_is_asked():
    scene = Scene()
    scene.nvml.fail("nvmlEventSetCreate", NOT_SUPPORTED)
    scene.run(1)
    scene.nvml.gpus[1].action = 2
    scene.run(POLL_S + 1)
    assert scene.causes() == ["", "the driver asks: reboot the node"]


def test_a_card_without_events_is_healthy():
    scene = Scene(None)
    scene.nvml.fail("nvmlDeviceRegisterEvents", NOT_SUPPORTED, 1)
    assert scene.run(60).causes() == [""]


def test_the_first_look_tells_what_is_wrong_and_knows_what_was():
    scene = Scene(None)
    sticky = DeviceHealth(cause="XID 79", since=5, driver="driver-1")
    scene.nvml.gpus[2].remap_failed = True
    scene.watch.look(scene.heard, {"GPU-1": sticky, "GPU-7": sticky})
    assert (scene.causes(1), scene.causes(7)) == (["XID 79"], [GONE.cause])
    assert scene.causes(2) == ["remapping of memory rows has failed"]
    scene.run(60)
    assert scene.causes(1) == ["XID 79"]


def test_what_the_driver_asks_for_is_told():
    scene = Scene(5)
    scene.nvml.gpus[0].action = None
    scene.run(1)
    assert scene.heard.actions == {"GPU-0": None, "GPU-1": 5, "GPU-2": 5}
    assert scene.heard.health == {"GPU-0": None, "GPU-1": None, "GPU-2": None}


def test_a_source_of_cards_watches_them():
    nvml = FakeNvml(Gpu("GPU-0", action=1))
    nvml.events = [pynvml.NVML_ERROR_TIMEOUT]
    heard = Reports()
    source = NvmlCards(nvml)
    source.look(heard)
    source.watch_health(heard, Stop(lambda: not nvml.events))
    assert heard.causes == [("GPU-0", ASKS)]


def test_the_loaded_driver_is_another_after_a_reboot_and_when_it_is_loaded_again(tmp_path):
    boot = tmp_path / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    module = tmp_path / "sys/module/nvidia"
    seen = [loaded_driver(tmp_path)]
    for text in ("one", "two"):
        boot.write_text(text)
        seen.append(loaded_driver(tmp_path))
    module.mkdir(parents=True)
    seen.append(loaded_driver(tmp_path))
    (tmp_path / "sys/module/other").mkdir()  # so that the inode is not used again
    module.rename(tmp_path / "old")
    module.mkdir()
    seen.append(loaded_driver(tmp_path))
    assert len(set(seen)) == 5
    assert loaded_driver(tmp_path) == seen[-1]
    assert {len(driver) for driver in seen} == {16}
