"""The door of a node: the device plugin, or Dynamic Resource Allocation."""

from dataclasses import replace

import pytest
from pytest import param

from hami.errors import ClusterError, HamiError
from hami.model import Node
from hami.plugin.door import open_door, why_closed
from hami.plugin.settings import PluginSettings
from tests.builders import NVIDIA
from tests.builders import pod as make_pod
from tests.devices.cards import config
from tests.fake_cluster import FakeCluster
from tests.plugin.stage import A, asking, placed, share


@pytest.fixture
def opened(tmp_path):
    """Returns the settings with the door of a node with this label."""
    def opened(door="auto", label=None, *, nodes=True, **given):
        labels = {"hami.io/door": label} if label is not None else {}
        cluster = FakeCluster(nodes=[Node(name="n1", labels=labels)] if nodes else [])
        return open_door(PluginSettings(node="n1", door=door, **{"cdi_root": str(tmp_path / "cdi")} | given), cluster,
                         {})
    return opened


@pytest.mark.parametrize("door, label, found", [
    param("auto", None, "plugin", id="no label"), param("auto", "plugin", "plugin", id="label plugin"),
    param("auto", "dra", "dra", id="label dra"), param("plugin", "dra", "plugin", id="the flag before the label"),
    param("dra", "plugin", "dra", id="likewise"), param("dra", None, "dra", id="flag"),
])
def test_flag_and_label_decide(opened, door, label, found):
    assert opened(door, label).door == found


def test_by_default_nothing_changes_and_nobody_is_asked():
    settings, cluster = PluginSettings(node="n1"), FakeCluster()
    assert open_door(settings, cluster) == settings and cluster.calls == []


def test_with_claims_the_node_publishes_no_capacity(opened):
    assert (opened("dra").publish_capacity, opened("plugin").publish_capacity) == ("off", "totals")


@pytest.mark.parametrize("given, why", [
    param({"label": "both"}, "label hami.io/door=both of node n1: expected plugin or dra", id="unknown label"),
    param({"label": "auto"}, "expected plugin or dra", id="no door"),
    param({"nodes": False}, "no node n1", id="no node"),
    param({"label": "dra", "mig_strategy": "mixed"}, "existing MIG instances are only available", id="static MIG"),
    param({"label": "dra", "kubelet_socket": ""}, "--kubelet-socket is empty", id="no kubelet"),
    param({"label": "dra", "cdi_root": ""}, "another program writes CDI", id="no folder"),
])
def test_a_door_that_cannot_be_opened(opened, given, why):
    with pytest.raises(HamiError, match=why):
        opened(**given)


def test_a_node_that_cannot_be_read_has_no_door_yet(tmp_path):
    cluster = FakeCluster()
    cluster.fail("node", ClusterError("connection refused"))
    with pytest.raises(ClusterError):
        open_door(PluginSettings(node="n1", door="auto"), cluster)


BY_PLUGIN = placed(asking(), shares=[[share(A)]], name="p", bind_phase="success", phase="Running")
BY_CLAIM = make_pod(name="q", node_name="n1", phase="Running")
BY_OURS = replace(BY_PLUGIN, ref=replace(BY_PLUGIN.ref, name="r", uid="uid-r"), claim="hami-r")


MANAGED = config(door="dra", claim_allocator="hami")


@pytest.mark.parametrize("door, pods, why", [
    param("plugin", [], "", id="empty node"), param("dra", [], "", id="likewise for claims"),
    param("plugin", [BY_PLUGIN], "", id="its own"), param("dra", [BY_CLAIM], "", id="its own claims"),
    param("plugin", [BY_OURS], "1 pods have devices through the door dra, such as default/r", id="claims of ours"),
    param("dra", [BY_CLAIM, BY_OURS], "kube-scheduler cannot allocate the claims of the node yet: 1 pods have claims "
          "that hami has allocated, such as default/r; set --claim-allocator=hami", id="ours, for kube-scheduler"),
    param(MANAGED, [BY_OURS], "", id="managed: its own"),
    param(MANAGED, [BY_OURS, BY_PLUGIN], "the door of the node cannot be dra yet: 1 pods have devices through the door "
          "plugin, such as default/p", id="managed: of the plugin"),
    param(MANAGED, [BY_OURS, BY_CLAIM], "hami cannot allocate the claims of the node yet: 1 pods have claims that "
          "kube-scheduler has allocated, such as default/q", id="managed: of kube-scheduler"),
    param(MANAGED, [replace(BY_CLAIM, phase="Failed")], "", id="managed: ended"),
    param("dra", [BY_PLUGIN, BY_CLAIM], "1 pods have devices through the door plugin, such as default/p", id="other"),
    param("plugin", [BY_PLUGIN, BY_CLAIM], "1 pods have devices through the door dra, such as default/q", id="claims"),
    param("dra", [replace(BY_PLUGIN, phase="Succeeded")], "", id="ended"),
])
def test_the_door_is_closed_while_pods_have_devices_through_the_other(door, pods, why):
    found = why_closed(door if door is MANAGED else config(door=door), pods, {BY_CLAIM.ref.uid}, NVIDIA)
    assert why in found and bool(why) == bool(found)
