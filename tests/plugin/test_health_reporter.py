"""What the cluster is told about the health of the cards."""

from datetime import UTC, datetime, timedelta

import pytest
from pytest import param

from hami.codec.health import (
    MAX_MESSAGE,
    DeviceHealth,
    parse_device_health,
    render_device_health,
)
from hami.devices.cards import XidEvent
from hami.devices.inventory import GONE, DeviceInventory
from hami.devices.xids import XidKind
from hami.errors import ClusterError
from hami.model import Node
from hami.plugin.health_reporter import HEARTBEAT_S, RETRY_S, WRITES, HealthReporter
from hami.plugin.holders import CardHolders
from testing.cards import cards
from testing.fake_cluster import FakeCluster
from testing.plugin_stage import NODE, NVIDIA, A, B, C, Events, asking, placed, share

HEALTH, CONDITION = "hami.io/device-health", "HamiGpuHealthy"
RESET = DeviceHealth(
    cause="the driver asks: reset the GPU", remedy="reset the GPU", harms_pods=True
)
START = datetime(2026, 11, 28, 12, tzinfo=UTC)


class Scene:
    """A node with the cards A and B, and pods: *a* holds A, *b* holds B, *both* holds both."""

    def __init__(self, text=None, not_watched=""):
        annotations = {} if text is None else {HEALTH: text}
        self.cluster = FakeCluster(nodes=[Node(name=NODE, annotations=annotations)])
        self.events = Events()
        self.inventory = DeviceInventory()
        self.now = START
        self.pods = [
            placed(asking(), name="a", shares=[[share(A)]]),
            placed(asking(), name="b", shares=[[share(B)]]),
            placed(asking(count=2), name="both", shares=[[share(A), share(B)]]),
        ]
        self.reporter = HealthReporter(
            self.cluster,
            self.events,
            NODE,
            self.inventory,
            CardHolders(NVIDIA, lambda: self.pods, list, list),
            now=lambda: self.now,
            clock=lambda: self.now.timestamp(),
            not_watched=not_watched,
        )
        self.inventory.wait_until = lambda *arguments: None
        self.inventory.update(cards(A, B))

    def report(self, uuid, health):
        self.reporter.report(uuid, health, None)
        self.inventory.report(uuid, health.cause if health else "")
        return self

    def step(self, seconds=0):
        self.now += timedelta(seconds=seconds)
        return self.reporter.step()

    @property
    def unhealthy(self):
        return parse_device_health(self.cluster.nodes[NODE].annotations.get(HEALTH))

    @property
    def condition(self):
        return self.cluster.conditions[NODE, CONDITION]

    def heard(self):
        """Names and reasons of new events."""
        recorded, self.events.recorded = self.events.recorded, []
        return sorted((subject.rpartition("/")[2], reason) for subject, _, reason, _ in recorded)


def test_a_node_with_healthy_cards_says_so():
    scene = Scene()
    scene.step()
    assert HEALTH not in scene.cluster.nodes[NODE].annotations
    assert scene.condition == {
        "type": CONDITION,
        "status": "True",
        "reason": "AllHealthy",
        "message": "all cards are healthy",
        "lastHeartbeatTime": "2026-11-28T12:00:00Z",
        "lastTransitionTime": "2026-11-28T12:00:00Z",
    }
    assert scene.heard() == []


def test_an_unhealthy_card_is_told_to_the_node_and_to_exactly_the_pods_that_hold_it():
    scene = Scene()
    scene.step()
    scene.now += timedelta(seconds=7)
    scene.report(A, RESET)
    scene.step(5)
    (health,) = scene.unhealthy.values()
    assert (health.cause, health.remedy, health.harms_pods) == (RESET.cause, RESET.remedy, True)
    assert health.since == int(START.timestamp()) + 7
    assert (scene.condition["status"], scene.condition["reason"]) == ("False", "Unhealthy")
    assert scene.condition["message"] == f"{A}: the driver asks: reset the GPU"
    assert scene.condition["lastTransitionTime"] == "2026-11-28T12:00:12Z"
    message = f"{A} on node {NODE} is unhealthy: {RESET.cause}; remedy: reset the GPU"
    assert sorted(scene.events.recorded) == [
        ("default/a", "Warning", "GpuUnhealthy", message),
        ("default/both", "Warning", "GpuUnhealthy", message),
    ]
    scene.heard()
    scene.report(A, None)
    scene.step(60)
    assert scene.unhealthy == {}
    assert HEALTH not in scene.cluster.nodes[NODE].annotations
    assert scene.condition["status"] == "True"
    assert scene.heard() == [("a", "GpuHealthy"), ("both", "GpuHealthy")]


def test_nothing_is_told_twice():
    scene = Scene().report(A, RESET)
    for _ in range(3):
        scene.step(5)
    assert len(scene.events.recorded) == 2
    assert [call.method for call in scene.cluster.calls].count("publish_health") == 1


def test_the_condition_is_written_again_at_intervals_and_keeps_its_transition():
    scene = Scene()
    scene.step()
    scene.step(HEARTBEAT_S)
    assert scene.condition["lastHeartbeatTime"] == "2026-11-28T12:05:00Z"
    assert scene.condition["lastTransitionTime"] == "2026-11-28T12:00:00Z"


def test_another_cause_is_told_and_the_time_of_the_fault_stays():
    scene = Scene().report(A, RESET)
    scene.step()
    scene.heard()
    scene.report(A, DeviceHealth(cause="the driver has lost the card"))
    scene.step(60)
    assert scene.heard() == [("a", "GpuUnhealthy"), ("both", "GpuUnhealthy")]
    assert scene.unhealthy[A].since == int(START.timestamp())


def test_a_pod_that_turns_out_to_hold_the_card_hears_of_it():
    scene = Scene().report(A, RESET)
    late = scene.pods.pop(0)
    scene.step()
    assert scene.heard() == [("both", "GpuUnhealthy")]
    scene.pods.append(late)
    scene.step()
    assert scene.heard() == [("a", "GpuUnhealthy")]


def test_a_card_that_vanished_is_unhealthy():
    scene = Scene()
    scene.inventory.update(cards(A))
    scene.step()
    assert scene.unhealthy[B].cause == GONE


def test_a_process_that_starts_while_a_card_is_unhealthy_repeats_nothing():
    text = render_device_health({A: DeviceHealth(cause=RESET.cause, since=5)})
    scene = Scene(text)
    assert scene.reporter.restore()[A].since == 5
    scene.report(A, RESET)
    scene.step()
    assert scene.heard() == []
    assert scene.unhealthy[A].since == 5
    assert "lastTransitionTime" not in scene.condition
    scene.report(A, None)
    scene.step()
    assert scene.heard() == [("a", "GpuHealthy"), ("both", "GpuHealthy")]


def test_a_card_that_was_repaired_while_no_process_ran_is_healthy_again():
    scene = Scene(render_device_health({A: RESET}))
    scene.reporter.restore()
    scene.step()
    assert scene.heard() == [("a", "GpuHealthy"), ("both", "GpuHealthy")]
    assert HEALTH not in scene.cluster.nodes[NODE].annotations


def test_a_node_that_cannot_be_read_restores_nothing():
    scene = Scene(render_device_health({A: RESET}))
    scene.cluster.fail("node", ClusterError("no connection"))
    assert scene.reporter.restore() == {}


def test_events_wait_for_the_pods_and_the_node_does_not():
    scene = Scene().report(A, RESET)
    pods, scene.pods = scene.pods, None
    assert scene.step() == RETRY_S
    assert (set(scene.unhealthy), scene.heard()) == ({A}, [])
    scene.pods = pods
    scene.step()
    assert scene.heard() == [("a", "GpuUnhealthy"), ("both", "GpuUnhealthy")]


def test_a_server_that_is_away_hears_the_time_of_the_fault_when_it_is_back():
    scene = Scene().report(A, RESET)
    scene.cluster.fail("publish_health", ClusterError("no connection"), times=3)
    for _ in range(3):
        assert scene.step(60) == RETRY_S
    scene.step(60)
    assert scene.unhealthy[A].since == int(START.timestamp())
    assert scene.heard() == [("a", "GpuUnhealthy"), ("both", "GpuUnhealthy")]


@pytest.mark.parametrize(
    "xid, kind, heard",
    [
        param(
            31, XidKind.APPLICATION, [("a", "GpuApplicationError"), ("both", "GpuApplicationError")]
        ),
        param(170, XidKind.UNKNOWN, [(NODE, "UnknownXid")]),
        param(43, XidKind.LOG, []),
        param(79, XidKind.RESET, []),
    ],
)
def test_an_error_of_a_program_is_told_to_the_pods_of_its_card_only(xid, kind, heard):
    scene = Scene()
    scene.reporter.report_xid(XidEvent(gpu=A, xid=xid, kind=kind))
    scene.step()
    assert scene.heard() == heard
    assert scene.unhealthy == {}
    assert scene.reporter.xids() == {(A, xid): 1}


def test_errors_wait_for_the_pods_and_are_bounded():
    scene = Scene()
    pods, scene.pods = scene.pods, None
    for xid in range(1000):
        scene.reporter.report_xid(XidEvent(gpu=A, xid=xid, kind=XidKind.APPLICATION))
    assert scene.step() == RETRY_S
    scene.pods = pods
    scene.step()
    assert len(scene.events.recorded) == 2 * 256


def test_the_message_of_the_condition_is_bounded():
    scene = Scene().report(A, DeviceHealth(cause="x" * 5000))
    scene.step()
    assert len(scene.condition["message"]) == MAX_MESSAGE


def test_health_that_is_not_watched_is_unknown():
    scene = Scene(not_watched="DP_DISABLE_HEALTHCHECKS disables all XIDs")
    scene.step()
    assert (scene.condition["status"], scene.condition["reason"]) == ("Unknown", "NotWatched")
    assert scene.condition["message"] == "DP_DISABLE_HEALTHCHECKS disables all XIDs"
    scene.inventory.update(cards(A))
    scene.step()
    assert scene.condition["status"] == "False"


def test_a_process_that_stops_leaves_the_condition_unknown_and_the_annotation():
    scene = Scene().report(A, RESET)
    scene.step()
    scene.reporter.leave()
    assert (scene.condition["status"], scene.condition["reason"]) == ("Unknown", "NotWatched")
    assert set(scene.unhealthy) == {A}
    scene.cluster.fail("publish_health", ClusterError("no connection"))
    scene.reporter.leave()


@pytest.fixture
def gone():
    """The card C is gone since before this process; a pod holds it, and no container of it can start."""
    scene = Scene()
    scene.pods.append(placed(asking(), name="c", shares=[[share(C)]]))
    scene.step()
    scene.reporter.report_refused(scene.pods[-1].ref, "refused")
    return scene


def test_a_card_that_a_refused_pod_holds_and_nobody_lists_is_gone(gone):
    assert gone.step() == 0
    assert list(gone.unhealthy) == [C]
    assert gone.unhealthy[C].harms_pods
    assert gone.unhealthy[C].cause == GONE
    assert gone.heard() == [("c", "DeviceGone"), ("c", "GpuUnhealthy")]


def test_another_process_knows_that_the_card_is_gone_until_no_pod_holds_it(gone):
    gone.step()
    later = Scene(gone.cluster.nodes[NODE].annotations[HEALTH])
    later.pods.append(gone.pods[-1])
    later.reporter.restore()
    later.step()
    assert list(later.unhealthy) == [C]
    later.pods.pop()
    later.step()
    assert later.unhealthy == {}
    assert later.heard() == []


def test_a_card_that_only_the_claim_of_a_refused_pod_names_is_gone_while_the_pod_is_here():
    scene = Scene()
    scene.pods.append(placed(asking(), name="c", shares=[]))
    scene.reporter.report_refused(scene.pods[-1].ref, "refused", C)
    scene.step()
    assert list(scene.unhealthy) == [C]
    assert scene.unhealthy[C].harms_pods
    scene.step(3600)
    assert list(scene.unhealthy) == [C]
    scene.pods.pop()
    scene.step(WRITES * 60)
    assert scene.unhealthy == {}


def test_a_card_that_is_back_or_that_is_not_offered_is_not_gone(gone):
    gone.step()
    gone.inventory.update(cards(A, B, C))
    gone.step()
    assert gone.unhealthy == {}
    assert ("c", "GpuHealthy") in gone.heard()
    gone.reporter.report_refused(gone.pods[0].ref, "refused")
    gone.step()
    assert gone.unhealthy == {}


def test_a_refused_pod_waits_until_the_pods_are_known(gone):
    pods, gone.pods = gone.pods, None
    gone.step()
    assert gone.unhealthy == {}
    gone.pods = pods
    gone.step()
    assert list(gone.unhealthy) == [C]


def test_a_card_that_changes_all_the_time_is_not_written_all_the_time():
    scene = Scene()
    scene.step()
    for number in range(600):
        scene.report(A, RESET if number % 2 else None).step(1)
    writes = len(scene.cluster.calls_of("publish_health"))
    assert WRITES + 15 < writes < WRITES + 25
    scene.report(A, None)
    assert scene.step(1) == RETRY_S or scene.unhealthy == {}
    scene.step(60)
    assert scene.unhealthy == {}
