"""Containers that enlarge their region: truncated, logged once, reported in events."""

import os
import shutil
import subprocess

import pytest

from hami.devices.config import PluginConfig
from hami.errors import ClusterError
from hami.node.host import Host
from hami.node.limits import ContainerLimits, DeviceLimit
from hami.node.region_layout import REGION_SIZE
from hami.plugin.region_guard import RegionGuard
from testing.builders import pod as make_pod
from testing.fake_cluster import FakeCluster
from testing.plugin_stage import Events

LIMITS = ContainerLimits(devices=(DeviceLimit("GPU-1", 1 << 30, 30),))
MESSAGE = "container c has enlarged its shared region, which was truncated"


class Node:
    """A node with the pods u-1 and u-2, and a third directory, whose pod is gone."""

    def __init__(self, folder):
        self.cluster = FakeCluster(
            pods=[
                make_pod(name=name, uid=uid, node_name="n1")
                for name, uid in (("p", "u-1"), ("q", "u-2"))
            ]
        )
        self.host = Host(
            PluginConfig(
                node="n1", hook_path=str(folder), kubelet_socket=str(folder / "kubelet.sock")
            )
        )
        self.events = Events()
        self.guard = RegionGuard("n1", self.cluster, self.host, self.events)
        self.containers = folder / "vgpu" / "containers"
        (folder / "vgpu").mkdir()
        for uid in ("u-1", "u-2", "u-3"):
            self.host.prepare(uid, "c")
            self.host.write_limits(uid, "c", "t", LIMITS)

    def enlarge(self, *uids):
        """Their containers do; then the guard looks."""
        for uid in uids:
            os.truncate(self.region(uid), 9_000_000)
        self.guard.shrink()
        assert {self.region(uid).stat().st_size for uid in ("u-1", "u-2", "u-3")} == {REGION_SIZE}

    def region(self, uid):
        return self.containers / f"{uid}_c" / "t.cache"

    def reported(self):
        """The pods of all events so far."""
        assert {event[1:] for event in self.events.recorded} <= {
            ("Warning", "RegionEnlarged", MESSAGE)
        }
        return [event[0] for event in self.events.recorded]


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def test_a_container_is_logged_once_and_reported_each_time(node, caplog):
    for _ in range(3):
        node.enlarge("u-1")
    assert node.reported() == ["default/p"] * 3
    assert [(one.message, one.pod, one.container) for one in caplog.records] == [
        ("region was enlarged by its container", "u-1", "c")
    ]
    assert len(node.cluster.calls_of("pods_on")) == 1


def test_each_container_is_reported(node):
    node.enlarge("u-1", "u-2", "u-3")
    assert node.reported() == ["default/p", "default/q"]


def test_nothing_is_asked_of_the_cluster_while_all_have_their_size(node, caplog):
    node.enlarge()
    assert (node.reported(), node.cluster.calls, caplog.records) == ([], [], [])


def test_an_api_server_that_does_not_answer_delays_reports_only(node, caplog):
    node.cluster.fail("pods_on", ClusterError("no answer"), times=2)
    node.enlarge("u-1", "u-2")
    assert node.reported() == []
    node.enlarge("u-1", "u-2")
    assert node.reported() == ["default/p", "default/q"]
    assert [one.message for one in caplog.records].count(
        "the pod of an enlarged region cannot be found"
    ) == 1


def test_a_directory_that_cannot_be_read_is_logged_once(node, caplog):
    node.containers.rename(node.containers.with_name("elsewhere"))
    node.containers.write_text("a file")
    node.guard.shrink()
    node.guard.shrink()
    assert [one.message for one in caplog.records] == ["sizes of regions cannot be checked"]


def test_a_region_that_cannot_be_truncated_is_reported_as_such(node, caplog):
    """Its container executes it."""
    region = node.region("u-1")
    shutil.copyfile(shutil.which("sleep"), region)
    region.chmod(0o777)
    os.truncate(region, 9_000_000)
    with subprocess.Popen([region, "60"]) as process:
        node.guard.shrink()
        node.guard.shrink()
        process.kill()
    [(pod, kind, reason, message)] = node.events.recorded
    assert (pod, kind, reason) == ("default/p", "Warning", "RegionEnlarged")
    assert message == (
        "container c has enlarged its shared region, which cannot be truncated and was replaced: the "
        "monitor ends the containers of the pod"
    )
    assert region.stat().st_size == REGION_SIZE
    assert len(caplog.records) == 1
