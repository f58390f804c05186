"""The verdict on a card."""

import pynvml
import pytest
from pytest import param

from hami.codec.health import DeviceHealth
from hami.devices.verdict import (
    FLAP_S,
    GONE,
    KEEP_S,
    LOST,
    REST_S,
    XID_S,
    CardVerdict,
    Look,
    RecoveryAction,
)

DRIVER, OTHER = "driver-1", "driver-2"
FINE = Look(action=RecoveryAction.NONE)
OLD = Look()
"""A card of a driver before release 570, of which nothing is wrong."""
ASKS = Look(action=RecoveryAction.GPU_RESET)


def verdict(restored=None):
    return CardVerdict(DRIVER, restored)


def cause(health):
    return None if health is None else health.cause


def after_xid(judge, xid, look, now=0.0, *, is_critical=False):
    """The verdict on a look right after an XID."""
    judge.note_xid(f"XID {xid}", is_critical=is_critical, now=now)
    return judge.look(look, now)


def test_the_actions_are_those_of_the_header():
    names = {action.name: action.value for action in RecoveryAction}
    prefix = "NVML_GPU_RECOVERY_ACTION_"
    assert names == {
        name.removeprefix(prefix): getattr(pynvml, name)
        for name in dir(pynvml)
        if name.startswith(prefix)
    }


@pytest.mark.parametrize(
    "action, remedy, harms_pods",
    [
        (1, "reset the GPU", True),
        (2, "reboot the node", True),
        (3, "drain peer-to-peer traffic", False),
        (4, "drain peer-to-peer traffic, then reset the GPU", False),
        (6, "reset the PCIe bus of the GPU", True),
        (7, "reboot the system", True),
        (8, "recovery action 8: see the manual of the driver", False),
    ],
)
def test_a_card_is_unhealthy_if_the_driver_asks_for_something(action, remedy, harms_pods):
    assert verdict().look(Look(action=action), 0) == DeviceHealth(
        cause=f"the driver asks: {remedy}", remedy=remedy, harms_pods=harms_pods
    )


@pytest.mark.parametrize("action", [0, 5])
def test_a_card_is_healthy_if_the_driver_asks_for_nothing_or_for_its_imex_domain(action):
    assert verdict().look(Look(action=action), 0) is None


@pytest.mark.parametrize(
    "look, expected",
    [
        param(Look(is_listed=False), GONE, id="not listed"),
        param(Look(is_lost=True, action=0), LOST, id="lost"),
        param(
            Look(requires_reset=True),
            "the driver refuses calls until a reset",
            id="reset required",
        ),
        param(
            Look(has_remap_failed=True), "remapping of memory rows has failed", id="remap failed"
        ),
        param(Look(has_remap_failed=True, action=0), None, id="remap failed, by the driver's word"),
        param(
            Look(is_mig_pending=True, action=0),
            "MIG mode changes at the next reset of the card",
            id="MIG pending",
        ),
    ],
)
def test_other_faults(look, expected):
    health = verdict().look(look, 0)
    assert cause(health) == (expected.cause if isinstance(expected, DeviceHealth) else expected)
    assert health is None or health.remedy


def test_a_card_that_waits_for_mig_harms_nobody():
    assert not verdict().look(Look(is_mig_pending=True), 0).harms_pods


@pytest.mark.parametrize("xid", [94, 63, 31, 154, 8, 69, 79, 95, 109])
def test_no_xid_counts_while_the_driver_asks_for_nothing(xid):
    judge = verdict()
    judge.look(FINE, 0)
    assert after_xid(judge, xid, FINE, is_critical=True) is None


def test_not_even_the_first():
    assert after_xid(verdict(), 79, FINE, is_critical=True) is None


def test_the_cause_names_the_xid_before_it():
    judge = verdict()
    judge.look(FINE, 0)
    named = "the driver asks: reset the GPU (after XID 109)"
    assert cause(after_xid(judge, 109, ASKS)) == named
    assert cause(after_xid(judge, 31, ASKS, 5)) == named
    assert cause(judge.look(ASKS, 1000)) == named
    assert judge.look(FINE, 1001) is None
    assert cause(judge.look(ASKS, 1002)) == "the driver asks: reset the GPU"


def test_an_xid_of_long_ago_is_no_cause():
    judge = verdict()
    judge.note_xid("XID 31", is_critical=False, now=0)
    assert "XID" not in cause(judge.look(ASKS, XID_S + 1))


def test_without_the_drivers_word_an_xid_counts_until_a_reset_is_seen():
    judge = verdict()
    sticky = DeviceHealth(cause="XID 79", remedy="reset the GPU", harms_pods=True, driver=DRIVER)
    assert after_xid(judge, 79, OLD, is_critical=True) == sticky
    assert judge.look(OLD, 10**6) == sticky
    assert after_xid(judge, 31, OLD) == sticky, "a harmless XID does not heal"
    assert after_xid(judge, 48, OLD, is_critical=True) == sticky, "the first one is the cause"


@pytest.mark.parametrize(
    "down", [Look(is_lost=True), Look(is_listed=False), Look(requires_reset=True)]
)
def test_a_card_that_was_down_and_is_up_again_has_been_reset(down):
    judge = verdict()
    after_xid(judge, 79, OLD, is_critical=True)
    assert judge.look(down, 1) is not None
    assert judge.look(OLD, 2) is None
    assert judge.look(OLD, 3) is None


def test_another_driver_has_reset_the_card():
    judge = verdict()
    after_xid(judge, 79, OLD, is_critical=True)
    judge.note_driver(DRIVER)
    assert judge.look(OLD, 1) is not None
    judge.note_driver(OTHER)
    assert judge.look(OLD, 2) is None


def test_the_drivers_word_ends_what_an_xid_said():
    judge = verdict()
    after_xid(judge, 79, OLD, is_critical=True)
    assert judge.look(FINE, 1) is None


@pytest.mark.parametrize("known", [None, "XID 79"])
def test_a_failed_query_keeps_the_verdict_for_a_while(known):
    judge = verdict()
    if known:
        after_xid(judge, 79, OLD, is_critical=True)
    else:
        judge.look(OLD, 0)
    failed = Look(error="Unknown Error")
    assert cause(judge.look(failed, 100)) == known
    assert cause(judge.look(failed, 100 + KEEP_S - 1)) == known
    assert cause(judge.look(failed, 100 + KEEP_S)) == (
        "the driver does not tell the state of the card: Unknown Error"
    )
    assert cause(judge.look(OLD, 200)) == known
    assert cause(judge.look(failed, 201)) == known


def test_an_xid_counts_at_once_if_the_query_after_it_fails_and_nothing_else_is_known():
    judge = verdict()
    assert cause(after_xid(judge, 79, Look(error="x"), is_critical=True)) == "XID 79"


@pytest.mark.parametrize(
    "driver, look, expected",
    [
        param(DRIVER, OLD, "XID 79", id="the same driver"),
        param(OTHER, OLD, None, id="another driver"),
        param("", OLD, None, id="not of an XID"),
        param(DRIVER, FINE, None, id="the driver says"),
        param("", Look(error="x"), "XID 79", id="the query fails"),
        param(OTHER, Look(error="x"), None, id="another driver, the query fails"),
    ],
)
def test_the_verdict_of_an_earlier_process(driver, look, expected):
    restored = DeviceHealth(cause="XID 79", since=5, driver=driver)
    assert cause(verdict(restored).look(look, 0)) == expected


# ---- cards that become unhealthy again and again


def flaps(judge, times, start=0.0, pause=100.0):
    """The causes, while the card becomes unhealthy so many times and is healthy in between; seconds of the last one."""
    causes = []
    now = start
    for number in range(times):
        now = start + number * pause
        causes.append(cause(judge.look(ASKS, now)))
        causes.append(cause(judge.look(FINE, now + 1)))
    return causes, now


def test_a_card_that_becomes_unhealthy_three_times_in_ten_minutes_stays_so_for_half_an_hour():
    judge = verdict()
    causes, last = flaps(judge, 5)
    plain, rest = causes[0], causes[-1]
    assert causes[:4] == [plain, None, plain, None]
    assert rest == f"{plain}; three times within ten minutes, so it counts for half an hour"
    assert causes[4:] == [rest] * 6
    assert cause(judge.look(FINE, last + REST_S - 1)) == rest
    assert judge.look(FINE, last + REST_S) is None


def test_a_card_that_is_seldom_unhealthy_is_healthy_in_between():
    judge = verdict()
    causes, _ = flaps(judge, 10, pause=FLAP_S / 2 + 1)
    assert causes[1::2] == [None] * 10


def test_a_fault_that_lasts_is_told_as_it_is_after_the_rest():
    judge = verdict()
    _, last = flaps(judge, 3)
    plain = cause(verdict().look(ASKS, 0))
    judge.look(ASKS, last + 2)
    assert cause(judge.look(ASKS, last + 2 + REST_S)) == plain
    assert judge.look(FINE, last + 3 + REST_S) is None


def test_silence_counts_as_a_fault_too():
    judge = verdict()
    for number in range(3):
        judge.look(Look(error="x"), number * 100.0)
        assert judge.look(Look(error="x"), number * 100.0 + KEEP_S) is not None
        health = judge.look(FINE, number * 100.0 + 40)
    assert health is not None
