"""Whether a device plugin is still there, from every state that its signs can be in."""

from datetime import UTC, datetime, timedelta

import pytest

from hami.codec.states import render_request
from hami.state.liveness import (
    PluginLiveness,
    PluginObservation,
    is_schedulable,
    needs_handshake_request,
    observe,
)
from hami.state.sighting import Sighting
from testing.cases import cases

NOW = datetime(2026, 8, 21, 10, 0, 0, tzinfo=UTC)
CLOCK = 1000.0


def requested(seconds_ago, dotted=False):
    text = render_request(NOW - timedelta(seconds=seconds_ago))
    return text.replace("-", ".") if dotted else text


# handshake, seconds that we have seen it so; where the kubelet does not know the resource: is it offered, does it want
# asking
STATES = [
    ("absent", None, 0, True, True),
    ("absent for long", None, 3600, True, True),
    ("fresh", requested(30), 0, True, False),
    ("just in time", requested(59), 59, True, False),
    ("a minute old when first seen", requested(60), 0, False, False),
    ("old", requested(86400), 0, False, False),
    ("dotted, fresh", requested(30, dotted=True), 0, True, False),
    ("dotted, old", requested(61, dotted=True), 0, False, False),
    ("from a clock that is ahead", requested(-3600), 0, True, False),
    ("from a clock that is ahead, seen for a minute", requested(-3600), 60, False, False),
    ("malformed", "Requesting_yesterday", 3600, True, True),
    ("no time", "Requesting", 3600, True, True),
    ("reported", "Reported 2024-01-23 04:30:04.43 +0000 UTC m=+1104711.7", 3600, True, True),
    ("reported by another vendor", "Reported_2026-08-21 10:00:00", 3600, True, True),
    ("deleted by v2.4", "Deleted_2026.08.21 10:00:00", 3600, True, True),
    ("empty", "", 3600, True, True),
]


def seen_before(seconds):
    return Sighting(CLOCK - seconds, NOW.timestamp() - seconds)


@cases("handshake, seen, offered, needs_request", *STATES)
def test_the_handshake_says_whether_a_plugin_is_there_that_the_kubelet_does_not_know(
    handshake, seen, offered, needs_request
):
    def said(allocatable, withdrawn=False):
        observation = PluginObservation(handshake, "[]", allocatable)
        liveness = PluginLiveness(observation, seen_before(seen), withdrawn=withdrawn)
        return is_schedulable(liveness, CLOCK), needs_handshake_request(liveness)

    assert said(None) == (offered, needs_request)
    assert said(20) == (True, needs_request)
    assert said(None, withdrawn=True) == (False, False)


ASKED, LATER = "Requesting_2026-08-21 09:00:00", "Requesting_2026-08-21 09:30:00"
REPORTED, DELETED = "Reported x", "Deleted_x"


@cases(
    "observation, withdrawn",
    ("never had any", [(None, "a", None)], False),
    ("has some", [(None, "a", 20)], False),
    ("taken back", [(None, "a", 20), (None, "a", None)], True),
    ("fewer", [(None, "a", 20), (None, "a", 10)], False),
    ("asked since", [(None, "a", 20), (None, "a", None), (ASKED, "a", None)], True),
    ("asked again", [(ASKED, "a", 20), (ASKED, "a", None), (LATER, "a", None)], True),
    ("handshake deleted", [(ASKED, "a", 20), (ASKED, "a", None), (None, "a", None)], True),
    ("marked as deleted", [(ASKED, "a", 20), (ASKED, "a", None), (DELETED, "a", None)], True),
    ("made unreadable", [(ASKED, "a", 20), (ASKED, "a", None), ("Requesting_x", "a", None)], True),
    ("one is back", [(ASKED, "a", 20), (ASKED, "a", None), (ASKED, "a", 1)], False),
    ("reports", [(ASKED, "a", 20), (ASKED, "a", None), (REPORTED, "a", None)], False),
    ("reported before", [(REPORTED, "a", 20), (REPORTED, "a", None)], True),
    (
        "reports again",
        [(REPORTED, "a", 20), (REPORTED, "a", None), (REPORTED + "y", "a", None)],
        False,
    ),
    ("registers anew", [(ASKED, "a", 20), (ASKED, "a", None), (ASKED, "b", None)], False),
    ("registers anew while taken back", [(ASKED, "a", 20), (ASKED, "b", None)], False),
    ("none from the start", [(None, "a", 0)], True),
    ("none once the kubelet knows it", [(None, "a", None), (None, "a", 0)], True),
    ("none, whatever the plugin reports", [(ASKED, "a", 0), (REPORTED, "a", 0)], True),
    ("none, whatever it registers", [(ASKED, "a", 0), (ASKED, "b", 0)], True),
    ("none, then some", [(None, "a", 0), (None, "a", 10)], False),
)
def test_withdrawn(observation, withdrawn):
    liveness = None
    for clock, sign in enumerate(observation):
        liveness = observe(liveness, PluginObservation(*sign), clock, NOW)
    assert (liveness.observation, liveness.withdrawn) == (
        PluginObservation(*observation[-1]),
        withdrawn,
    )


def test_the_minute_counts_from_when_the_handshake_last_changed():
    liveness = observe(None, PluginObservation(ASKED, "a", None), 10.0, NOW)
    assert observe(liveness, PluginObservation(ASKED, "a", None), 20.0, NOW).changed.at == 10.0
    assert observe(liveness, PluginObservation(ASKED, "b", None), 20.0, NOW).changed.at == 10.0
    assert observe(liveness, PluginObservation(LATER, "a", None), 20.0, NOW).changed.at == 20.0


@pytest.mark.parametrize("hours", [1, -1])
def test_a_time_of_day_that_jumps_withdraws_no_device_and_keeps_no_dead_plugin(hours):
    liveness = observe(None, PluginObservation(None, "[]", None), 0.0, NOW)
    liveness = observe(
        liveness,
        PluginObservation(render_request(NOW), "[]", None),
        1.0,
        NOW + timedelta(hours=hours),
    )
    assert is_schedulable(liveness, 60.0)
    assert not is_schedulable(liveness, 61.0)


def test_a_plugin_that_dies_is_given_up_at_once_and_does_not_flap():
    handshake, liveness, offers = None, None, []
    for minute, allocatable in enumerate([20, 20, 0, 0, 0, 0, 20]):
        liveness = observe(
            liveness, PluginObservation(handshake, "[]", allocatable), minute * 60.0, NOW
        )
        now = NOW + timedelta(minutes=minute)
        offers.append(is_schedulable(liveness, minute * 60.0))
        handshake = render_request(now) if needs_handshake_request(liveness) else handshake
    assert offers == [True, True, False, False, False, False, True]
    assert handshake == render_request(NOW), "asked once only"


def test_a_plugin_that_left_its_annotation_behind_is_given_up_after_a_minute():
    liveness = observe(None, PluginObservation(None, "[]", None), 0.0, NOW)
    assert is_schedulable(liveness, 0.0)
    assert needs_handshake_request(liveness)
    liveness = observe(liveness, PluginObservation(render_request(NOW), "[]", None), 1.0, NOW)
    assert is_schedulable(liveness, 59.0)
    assert not is_schedulable(liveness, 61.0)


def test_no_pod_is_placed_after_a_reboot_until_the_plugin_has_registered_with_the_kubelet():
    """The kubelet rejects pods for good then, whether this scheduler has seen the node before or not. The plugin writes
    annotations before it registers with the kubelet."""
    for before in (None, observe(None, PluginObservation(REPORTED, "a", 20), 0.0, NOW)):
        liveness, offers = before, []
        for register, allocatable in (("a", 0), ("unhealthy", 0), ("b", 0), ("b", 20)):
            liveness = observe(liveness, PluginObservation(REPORTED, register, allocatable), 1, NOW)
            offers.append(is_schedulable(liveness, 2.0))
        assert offers == [False, False, False, True]
