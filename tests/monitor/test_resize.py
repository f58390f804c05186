"""Pods that are resized while they run: what the monitor shows of them, and what it tells the device plugin."""

import os
import time
from dataclasses import replace

import pytest

from hami.codec.allocation import render_shares
from hami.codec.keys import RESIZE_APPLIED, RESIZE_TARGET, RESIZED
from hami.codec.resize import AppliedSizes, render_applied
from hami.monitor.containers import find_containers
from hami.node.limits import ContainerLimits, DeviceLimit, render_limits
from hami.node.live_limits import SETTLED_NS, read_use, resize
from hami.node.tenant_files import opened_directory
from testing.builders import NVIDIA, ONLY_NVIDIA, container, share
from testing.cases import cases
from testing.eventually import eventually
from testing.fake_nvml import GIB, MIB
from testing.monitor_stage import CARD, Stage, node_pod
from testing.region_bytes import Process as Slot

HELD, TARGET = (render_shares(((share(CARD, memory_mib, 30),),)) for memory_mib in (1024, 512))


def resized(pod, target=TARGET, applied=None):
    """The pod holds 1,024 MiB and is to have 512."""
    annotations = (
        {RESIZED: HELD}
        | ({RESIZE_TARGET: target} if target else {})
        | ({RESIZE_APPLIED: render_applied(AppliedSizes(applied))} if applied else {})
    )
    return replace(pod, pod=replace(pod.pod, annotations=pod.pod.annotations | annotations))


def emptied(pod):
    """The texts of an earlier assignment, which a Binding cannot remove."""
    return replace(
        pod,
        pod=replace(pod.pod, annotations=pod.pod.annotations | {RESIZED: "", RESIZE_TARGET: ""}),
    )


@pytest.fixture
def stage(tmp_path):
    """A container that shrinks; its files were written long ago."""
    stage = Stage(tmp_path)
    prepare(stage)
    stage.now = time.time() + 100
    return stage


def prepare(stage, memory=GIB // 2):
    stage.pods = [resized(node_pod("a", CARD))]
    stage.region("a", limits=(memory,), processes=[Slot(used={0: 400 * MIB})])
    (stage.directory("a") / "limits").write_text(
        render_limits(ContainerLimits(devices=(DeviceLimit(CARD, memory, 30),)), "/x/t.cache")
    )


def test_shares_are_those_of_the_container_that_requests_them():
    """HAMi v2.10 leaves out containers without devices."""
    one = node_pod("a", CARD)
    beside = replace(
        one, pod=replace(one.pod, containers=(container(name="plain"), *one.pod.containers))
    )
    found = find_containers([beside], ONLY_NVIDIA, NVIDIA, {CARD: 0})
    assert [(own.name, [device.card for device in own.devices]) for own in found.containers] == [
        ("main", [CARD])
    ]


def use(stage):
    """What the device plugin learns, ``None`` without a file."""
    with opened_directory(stage.directory("a")) as directory:
        return read_use(directory)


def changed_ns(stage):
    return (stage.directory("a") / "use").stat().st_ctime_ns


@pytest.fixture
def settled(monkeypatch):
    """The clock of the file system does not count."""
    monkeypatch.setattr("hami.node.live_limits.SETTLED_NS", 0)


def test_the_limit_is_what_a_pod_is_to_have(stage):
    assert stage.usage()["a"].device.memory == 512 * MIB
    stage.pods = [resized(node_pod("a", CARD, memory_mib=700), None)]
    assert stage.usage()["a"].device.memory == 1024 * MIB


def test_the_device_plugin_is_told_what_a_container_uses(stage, settled):
    stage.run()
    assert use(stage) == {CARD: 400 * MIB}
    stage.work("a", 4007, 300 * MIB)
    stage.run()
    assert use(stage) == {CARD: 300 * MIB}, "the driver is believed"


def test_the_same_use_is_written_once(stage, settled):
    stage.run()
    before = changed_ns(stage)
    stage.run()
    assert changed_ns(stage) == before


def test_use_that_the_plugin_cannot_believe_is_written_again(stage, monkeypatch):
    """The clocks of the monitor and the file system differ."""
    monkeypatch.setattr("hami.node.live_limits.SETTLED_NS", 3600 * 10**9)
    stage.run()
    before = changed_ns(stage)
    assert use(stage) is None
    eventually(lambda: stage.run() and changed_ns(stage) > before, "it is written again")


def test_use_is_about_limits_that_all_processes_follow(stage, settled):
    changed = (stage.directory("a") / "limits").stat().st_ctime_ns
    stage.now = (changed + SETTLED_NS) / 1e9 - 0.5
    stage.run()
    assert use(stage) is None
    stage.run()
    assert use(stage) == {CARD: 400 * MIB}


def test_a_clock_that_was_set_back_does_not_make_old_limits_new(stage, settled):
    stage.now -= 3600
    stage.run()
    assert use(stage) == {CARD: 400 * MIB}


def test_limits_that_change_while_the_use_is_read_are_not_confirmed(stage, settled):
    """The use of the round is that of before."""
    read = stage.read

    def changing(now):
        with opened_directory(stage.directory("a")) as directory:
            resize(directory, [DeviceLimit(CARD, 300 * MIB, 30)], cores=True)
        return read(now)

    stage.read = changing
    stage.run()
    assert ((stage.directory("a") / "use").exists(), use(stage)) == (True, None)


@cases(
    "pod",
    ("never resized", node_pod("a", CARD)),
    ("confirmed", resized(node_pod("a", CARD), applied=TARGET)),
    ("grown", resized(node_pod("a", CARD), None, HELD)),
    ("resized before it was bound", emptied(node_pod("a", CARD))),
)
def test_nothing_is_written_about_pods_that_are_not_resized_now(stage, pod):
    stage.pods = [pod]
    stage.run()
    assert not (stage.directory("a") / "use").exists()


def test_nothing_is_written_without_feedback(tmp_path):
    stage = Stage(tmp_path, writes=False)
    prepare(stage)
    stage.now = time.time() + 100
    stage.run()
    assert not (stage.directory("a") / "use").exists()


def test_a_container_of_which_nobody_knows_the_use_is_not_said_to_use_nothing(stage, settled):
    (stage.directory("a") / "t.cache").unlink()
    stage.has_driver = False
    stage.run()
    assert use(stage) == {}


def test_a_link_in_the_place_of_the_use_is_replaced(stage, settled, tmp_path):
    (precious := tmp_path / "precious").write_text("secret")
    (stage.directory("a") / "use").symlink_to(precious)
    stage.run()
    assert (precious.read_text(), use(stage)) == ("secret", {CARD: 400 * MIB})


def test_use_that_cannot_be_written_is_counted_and_ends_no_round(stage):
    os.mkdir(stage.directory("a") / "use")
    assert stage.usage().keys() == {"a"}
    assert stage.rounds.errors()["write"] == 1


# -- what looks like tampering


def tampered(stage):
    return {what: count for (_, what), count in stage.run().tampered.items()}


def test_a_resize_is_no_tampering(stage):
    """Whether the pod or the files change first."""
    assert tampered(stage) == {}
    for pod in (node_pod("a", CARD), node_pod("a", CARD, memory_mib=2000)):
        stage.pods = [pod]
        assert tampered(stage) == {}


def test_a_region_that_differs_from_the_limits_file_is_tampering(stage):
    stage.put("a", 1600, 77, "<Q")
    assert [tampered(stage) for _ in range(2)] == [{"limit": 1}] * 2


def test_the_device_plugin_may_be_between_the_two_files(stage):
    stage.put("a", 1600, GIB, "<Q")
    stage.now = (stage.directory("a") / "limits").stat().st_ctime_ns / 1e9
    assert [tampered(stage) for _ in range(4)][-1] == {"limit": 1}, "but not for ever"
    stage.now = (stage.directory("a") / "limits").stat().st_ctime_ns / 1e9
    stage.put("a", 1600, GIB // 2, "<Q")
    tampered(stage)
    stage.put("a", 1600, GIB, "<Q")
    assert tampered(stage) == {"limit": 1}


@pytest.mark.parametrize("applied, counted", [(None, {}), (TARGET, {"limit": 1})])
def test_without_a_limits_file_the_region_is_compared_once_the_resize_is_confirmed(
    stage, applied, counted
):
    (stage.directory("a") / "limits").unlink()
    stage.put("a", 1600, GIB, "<Q")
    stage.pods = [resized(node_pod("a", CARD), applied=applied)]
    assert tampered(stage) == counted
