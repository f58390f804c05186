"""The allocation mode of a node: the device plugin, or Dynamic Resource Allocation."""

from dataclasses import replace

import pytest

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
from testing.cases import cases
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


@cases(
    "allocation_mode, label, found",
    ("no label", "auto", None, "device-plugin"),
    ("label plugin", "auto", "device-plugin", "device-plugin"),
    ("label dra", "auto", "dra", "dra"),
    ("the flag before the label", "device-plugin", "dra", "device-plugin"),
    ("likewise", "dra", "device-plugin", "dra"),
    ("flag", "dra", None, "dra"),
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


@cases(
    "given, why",
    (
        "unknown label",
        {"label": "both"},
        "label hami.io/allocation-mode=both of node n1: expected device-plugin or dra",
    ),
    ("no allocation mode", {"label": "auto"}, "expected device-plugin or dra"),
    ("no node", {"nodes": False}, "no node n1"),
    (
        "static MIG",
        {"label": "dra", "mig_strategy": "mixed"},
        "existing MIG instances are only available",
    ),
    ("no kubelet", {"label": "dra", "kubelet_socket": ""}, "--kubelet-socket is empty"),
    ("no folder", {"label": "dra", "cdi_root": ""}, "another program writes CDI"),
    (
        "no folder for some cards",
        {"claimed_indexes": (1,), "cdi_root": ""},
        "another program writes CDI",
    ),
    (
        "MIG",
        {"claimed_indexes": (1,), "operating_mode": "mig"},
        "claimdevices: with the operating mode mig",
    ),
    (
        "ours",
        {"claimed_indexes": (1,), "claim_allocator": "hami"},
        "claimdevices: with --claim-allocator=hami",
    ),
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
    ) == ("dra", "off", ("GPU-b",), (3,))


@cases(
    "one, allocation_mode",
    (card("GPU-a"), "dra"),
    (card("GPU-c", index=3), "dra"),
    (card("GPU-b"), "device-plugin"),
    (card("GPU-b", problem="lost"), "device-plugin"),
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


@cases(
    "allocation_mode, pods, why",
    ("empty node", "device-plugin", [], ""),
    ("likewise for claims", "dra", [], ""),
    ("its own", "device-plugin", [BY_PLUGIN], ""),
    ("its own claims", "dra", [BY_CLAIM], ""),
    (
        "claims of ours",
        "device-plugin",
        [BY_OURS],
        "1 pods have devices in the allocation mode dra, such as default/r",
    ),
    (
        "ours, for kube-scheduler",
        "dra",
        [BY_CLAIM, BY_OURS],
        (
            "kube-scheduler cannot allocate the claims of the node yet: 1 pods have claims "
            "that hami has allocated, such as default/r; set --claim-allocator=hami"
        ),
    ),
    ("managed: its own", MANAGED, [BY_OURS], ""),
    (
        "managed: of the plugin",
        MANAGED,
        [BY_OURS, BY_PLUGIN],
        (
            "the allocation mode of the node cannot be dra yet: 1 pods have devices in the allocation mode "
            "device-plugin, such as default/p"
        ),
    ),
    (
        "managed: of kube-scheduler",
        MANAGED,
        [BY_OURS, BY_CLAIM],
        (
            "hami cannot allocate the claims of the node yet: 1 pods have claims that "
            "kube-scheduler has allocated, such as default/q"
        ),
    ),
    ("managed: ended", MANAGED, [replace(BY_CLAIM, phase="Failed")], ""),
    (
        "other",
        "dra",
        [BY_PLUGIN, BY_CLAIM],
        "1 pods have devices in the allocation mode device-plugin, such as default/p",
    ),
    (
        "claims",
        "device-plugin",
        [BY_PLUGIN, BY_CLAIM],
        "1 pods have devices in the allocation mode dra, such as default/q",
    ),
    ("ended", "dra", [replace(BY_PLUGIN, phase="Succeeded")], ""),
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


@cases(
    "pods, claims, why",
    ("each in its allocation mode", [BY_PLUGIN], [prepared(B)], ""),
    ("empty node", [], [], ""),
    (
        "a pod has it",
        [placed(asking(), shares=[[share(C), share(B)]], name="p", phase="Running")],
        [],
        (
            f"device {B} cannot change its allocation mode yet: pod default/p has it in the allocation mode "
            f"device-plugin; put claimdevices back"
        ),
    ),
    ("ended", [placed(asking(), shares=[[share(B)]], phase="Failed")], [], ""),
    ("unreadable", [placed(asking(), text="nonsense")], [], ""),
    (
        "unreadable, but named",
        [placed(asking(), text=f"{B},NVIDIA,much:;")],
        [],
        f"device {B} cannot change its allocation mode yet: pod default/p",
    ),
    (
        "a claim has it",
        [BY_PLUGIN],
        [prepared(B), prepared(A)],
        f"device {A} cannot change its allocation mode yet: claim team/c has it in the allocation mode dra",
    ),
)
def test_a_card_does_not_change_its_allocation_mode_while_it_is_used(pods, claims, why):
    found = why_undivided(pods, claims, {B}, NVIDIA)
    assert why in found
    assert bool(why) == bool(found)
