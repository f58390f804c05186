"""The allocation mode of a node: the device plugin, or Dynamic Resource Allocation."""

from dataclasses import replace

import pytest
from pytest import param

from hami.dra.guard import PreparedRequest, PreparedShare
from hami.errors import ClusterError, HamiError
from hami.model import Node
from hami.plugin.allocation_mode import (
    CardAllocationModes,
    claimed_part,
    why_closed,
    why_undivided,
    with_allocation_mode,
)
from hami.plugin.settings import PluginSettings
from testing.builders import NVIDIA
from testing.builders import pod as make_pod
from testing.cards import card, config
from testing.fake_cluster import FakeCluster
from testing.plugin_stage import A, B, C, asking, placed, share


@pytest.fixture
def opened(tmp_path):
    """Returns the settings with the allocation mode of a node with this label."""

    def opened(allocation_mode="auto", label=None, *, nodes=True, **given):
        labels = {"hami.io/allocation-mode": label} if label is not None else {}
        cluster = FakeCluster(nodes=[Node(name="n1", labels=labels)] if nodes else [])
        return with_allocation_mode(
            PluginSettings(
                node="n1",
                allocation_mode=allocation_mode,
                **{"cdi_root": str(tmp_path / "cdi")} | given,
            ),
            cluster,
            {},
        )

    return opened


@pytest.mark.parametrize(
    "allocation_mode, label, found",
    [
        param("auto", None, "device-plugin", id="no label"),
        param("auto", "device-plugin", "device-plugin", id="label plugin"),
        param("auto", "dra", "dra", id="label dra"),
        param("device-plugin", "dra", "device-plugin", id="the flag before the label"),
        param("dra", "device-plugin", "dra", id="likewise"),
        param("dra", None, "dra", id="flag"),
    ],
)
def test_flag_and_label_decide(opened, allocation_mode, label, found):
    assert opened(allocation_mode, label).allocation_mode == found


def test_by_default_nothing_changes_and_nobody_is_asked():
    settings, cluster = PluginSettings(node="n1"), FakeCluster()
    assert with_allocation_mode(settings, cluster) == settings
    assert cluster.calls == []


def test_with_claims_the_node_publishes_no_capacity(opened):
    assert (opened("dra").publish_capacity, opened("device-plugin").publish_capacity) == (
        "off",
        "totals",
    )


@pytest.mark.parametrize(
    "given, why",
    [
        param(
            {"label": "both"},
            "label hami.io/allocation-mode=both of node n1: expected device-plugin or dra",
            id="unknown label",
        ),
        param({"label": "auto"}, "expected device-plugin or dra", id="no allocation mode"),
        param({"nodes": False}, "no node n1", id="no node"),
        param(
            {"label": "dra", "mig_strategy": "mixed"},
            "existing MIG instances are only available",
            id="static MIG",
        ),
        param({"label": "dra", "kubelet_socket": ""}, "--kubelet-socket is empty", id="no kubelet"),
        param({"label": "dra", "cdi_root": ""}, "another program writes CDI", id="no folder"),
        param(
            {"claimed_indexes": (1,), "cdi_root": ""},
            "another program writes CDI",
            id="no folder for some cards",
        ),
        param(
            {"claimed_indexes": (1,), "operating_mode": "mig"},
            "claimdevices: with the operating mode mig",
            id="MIG",
        ),
        param(
            {"claimed_indexes": (1,), "claim_allocator": "hami"},
            "claimdevices: with --claim-allocator=hami",
            id="ours",
        ),
    ],
)
def test_an_allocation_mode_that_a_node_cannot_have(opened, given, why):
    with pytest.raises(HamiError, match=why):
        opened(**given)


def test_the_cards_of_a_node_may_have_different_allocation_modes(opened):
    settings = opened(claimed_uuids=("GPU-b",), claimed_indexes=(3,))
    part = claimed_part(settings)
    assert (settings.allocation_mode, settings.publish_capacity, settings.is_divided) == (
        "device-plugin",
        "totals",
        True,
    )
    assert (
        part.allocation_mode,
        part.publish_capacity,
        part.claimed_uuids,
        part.claimed_indexes,
    ) == (
        "dra",
        "off",
        ("GPU-b",),
        (3,),
    )


@pytest.mark.parametrize(
    "one, allocation_mode",
    [
        (card("GPU-a"), "dra"),
        (card("GPU-c", index=3), "dra"),
        (card("GPU-b"), "device-plugin"),
        (card("GPU-b", problem="lost"), "device-plugin"),
    ],
)
def test_a_card_has_one_allocation_mode_and_stays_there(one, allocation_mode):
    given = {"claimed_uuids": ("GPU-a",), "claimed_indexes": (3,)}
    allocation_modes = CardAllocationModes(config(**given))
    for index in (one.index, 3, 5):
        moved = replace(one, index=index)
        assert {
            way: allocation_modes.offered(moved, config(allocation_mode=way, **given))
            for way in ("device-plugin", "dra")
        } == {"device-plugin": None, "dra": None, allocation_mode: moved}


def test_without_a_division_all_cards_have_the_allocation_mode_of_the_node():
    for allocation_mode in ("device-plugin", "dra"):
        assert (
            CardAllocationModes(config(allocation_mode=allocation_mode)).offered(
                card(), config(allocation_mode=allocation_mode)
            )
            == card()
        )
    assert CardAllocationModes(config()).offered(card(), config(filtered_indexes=(0,))) is None


def test_in_the_mode_for_claims_all_cards_are_for_claims(opened):
    settings = opened("dra", claimed_uuids=("GPU-b",))
    assert claimed_part(settings) is settings
    assert not settings.is_divided
    assert claimed_part(opened()) is None


def test_a_node_that_cannot_be_read_has_no_allocation_mode_yet(tmp_path):
    cluster = FakeCluster()
    cluster.fail("node", ClusterError("connection refused"))
    with pytest.raises(ClusterError):
        with_allocation_mode(PluginSettings(node="n1", allocation_mode="auto"), cluster)


BY_PLUGIN = placed(asking(), shares=[[share(A)]], name="p", bind_phase="success", phase="Running")
BY_CLAIM = make_pod(name="q", node_name="n1", phase="Running")
BY_OURS = replace(BY_PLUGIN, ref=replace(BY_PLUGIN.ref, name="r", uid="uid-r"), claim="hami-r")


MANAGED = config(allocation_mode="dra", claim_allocator="hami")


@pytest.mark.parametrize(
    "allocation_mode, pods, why",
    [
        param("device-plugin", [], "", id="empty node"),
        param("dra", [], "", id="likewise for claims"),
        param("device-plugin", [BY_PLUGIN], "", id="its own"),
        param("dra", [BY_CLAIM], "", id="its own claims"),
        param(
            "device-plugin",
            [BY_OURS],
            "1 pods have devices in the allocation mode dra, such as default/r",
            id="claims of ours",
        ),
        param(
            "dra",
            [BY_CLAIM, BY_OURS],
            "kube-scheduler cannot allocate the claims of the node yet: 1 pods have claims "
            "that hami has allocated, such as default/r; set --claim-allocator=hami",
            id="ours, for kube-scheduler",
        ),
        param(MANAGED, [BY_OURS], "", id="managed: its own"),
        param(
            MANAGED,
            [BY_OURS, BY_PLUGIN],
            "the allocation mode of the node cannot be dra yet: 1 pods have devices in the allocation mode "
            "device-plugin, such as default/p",
            id="managed: of the plugin",
        ),
        param(
            MANAGED,
            [BY_OURS, BY_CLAIM],
            "hami cannot allocate the claims of the node yet: 1 pods have claims that "
            "kube-scheduler has allocated, such as default/q",
            id="managed: of kube-scheduler",
        ),
        param(MANAGED, [replace(BY_CLAIM, phase="Failed")], "", id="managed: ended"),
        param(
            "dra",
            [BY_PLUGIN, BY_CLAIM],
            "1 pods have devices in the allocation mode device-plugin, such as default/p",
            id="other",
        ),
        param(
            "device-plugin",
            [BY_PLUGIN, BY_CLAIM],
            "1 pods have devices in the allocation mode dra, such as default/q",
            id="claims",
        ),
        param("dra", [replace(BY_PLUGIN, phase="Succeeded")], "", id="ended"),
    ],
)
def test_the_allocation_mode_stays_while_pods_have_devices_in_the_other(allocation_mode, pods, why):
    found = why_closed(
        allocation_mode if allocation_mode is MANAGED else config(allocation_mode=allocation_mode),
        pods,
        {BY_CLAIM.ref.uid},
        NVIDIA,
    )
    assert why in found
    assert bool(why) == bool(found)


def prepared(uuid):
    return PreparedRequest(
        namespace="team",
        claim="c",
        uid="u",
        request="main",
        pod="uid-q",
        container="main",
        shares=(PreparedShare(uuid=uuid, memory_mib=1, cores=0, share_milli=10_000),),
    )


@pytest.mark.parametrize(
    "pods, claims, why",
    [
        param([BY_PLUGIN], [prepared(B)], "", id="each in its allocation mode"),
        param([], [], "", id="empty node"),
        param(
            [placed(asking(), shares=[[share(C), share(B)]], name="p", phase="Running")],
            [],
            f"device {B} cannot change its allocation mode yet: pod default/p has it in the allocation mode "
            f"device-plugin; put claimdevices back",
            id="a pod has it",
        ),
        param([placed(asking(), shares=[[share(B)]], phase="Failed")], [], "", id="ended"),
        param([placed(asking(), text="nonsense")], [], "", id="unreadable"),
        param(
            [placed(asking(), text=f"{B},NVIDIA,much:;")],
            [],
            f"device {B} cannot change its allocation mode yet: pod default/p",
            id="unreadable, but named",
        ),
        param(
            [BY_PLUGIN],
            [prepared(B), prepared(A)],
            f"device {A} cannot change its allocation mode yet: claim team/c has it in the allocation mode dra",
            id="a claim has it",
        ),
    ],
)
def test_a_card_does_not_change_its_allocation_mode_while_it_is_used(pods, claims, why):
    found = why_undivided(pods, claims, {B}, NVIDIA)
    assert why in found
    assert bool(why) == bool(found)
