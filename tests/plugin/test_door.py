"""The door of a node: the device plugin, or Dynamic Resource Allocation."""

from dataclasses import replace

import pytest
from pytest import param

from hami.dra.guard import PreparedRequest, PreparedShare
from hami.errors import ClusterError, HamiError
from hami.model import Node
from hami.plugin.door import CardDoors, claimed_part, open_door, why_closed, why_undivided
from hami.plugin.settings import PluginSettings
from tests.builders import NVIDIA
from tests.builders import pod as make_pod
from tests.devices.cards import card, config
from tests.fake_cluster import FakeCluster
from tests.plugin.stage import A, B, C, asking, placed, share


@pytest.fixture
def opened(tmp_path):
    """Returns the settings with the door of a node with this label."""

    def opened(door="auto", label=None, *, nodes=True, **given):
        labels = {"hami.io/door": label} if label is not None else {}
        cluster = FakeCluster(nodes=[Node(name="n1", labels=labels)] if nodes else [])
        return open_door(
            PluginSettings(node="n1", door=door, **{"cdi_root": str(tmp_path / "cdi")} | given),
            cluster,
            {},
        )

    return opened


@pytest.mark.parametrize(
    "door, label, found",
    [
        param("auto", None, "plugin", id="no label"),
        param("auto", "plugin", "plugin", id="label plugin"),
        param("auto", "dra", "dra", id="label dra"),
        param("plugin", "dra", "plugin", id="the flag before the label"),
        param("dra", "plugin", "dra", id="likewise"),
        param("dra", None, "dra", id="flag"),
    ],
)
def test_flag_and_label_decide(opened, door, label, found):
    assert opened(door, label).door == found


def test_by_default_nothing_changes_and_nobody_is_asked():
    settings, cluster = PluginSettings(node="n1"), FakeCluster()
    assert open_door(settings, cluster) == settings
    assert cluster.calls == []


def test_with_claims_the_node_publishes_no_capacity(opened):
    assert (opened("dra").publish_capacity, opened("plugin").publish_capacity) == ("off", "totals")


@pytest.mark.parametrize(
    "given, why",
    [
        param(
            {"label": "both"},
            "label hami.io/door=both of node n1: expected plugin or dra",
            id="unknown label",
        ),
        param({"label": "auto"}, "expected plugin or dra", id="no door"),
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
def test_a_door_that_cannot_be_opened(opened, given, why):
    with pytest.raises(HamiError, match=why):
        opened(**given)


def test_the_cards_of_a_node_may_have_different_doors(opened):
    settings = opened(claimed_uuids=("GPU-b",), claimed_indexes=(3,))
    part = claimed_part(settings)
    assert (settings.door, settings.publish_capacity, settings.is_divided) == (
        "plugin",
        "totals",
        True,
    )
    assert (part.door, part.publish_capacity, part.claimed_uuids, part.claimed_indexes) == (
        "dra",
        "off",
        ("GPU-b",),
        (3,),
    )


@pytest.mark.parametrize(
    "one, door",
    [
        (card("GPU-a"), "dra"),
        (card("GPU-c", index=3), "dra"),
        (card("GPU-b"), "plugin"),
        (card("GPU-b", problem="lost"), "plugin"),
    ],
)
def test_a_card_is_at_one_door_and_stays_there(one, door):
    given = {"claimed_uuids": ("GPU-a",), "claimed_indexes": (3,)}
    doors = CardDoors(config(**given))
    for index in (one.index, 3, 5):
        moved = replace(one, index=index)
        assert {
            way: doors.offered(moved, config(door=way, **given)) for way in ("plugin", "dra")
        } == {"plugin": None, "dra": None, door: moved}


def test_without_a_division_all_cards_are_at_the_door_of_the_node():
    for door in ("plugin", "dra"):
        assert CardDoors(config(door=door)).offered(card(), config(door=door)) == card()
    assert CardDoors(config()).offered(card(), config(filtered_indexes=(0,))) is None


def test_at_the_door_for_claims_all_cards_are_for_claims(opened):
    settings = opened("dra", claimed_uuids=("GPU-b",))
    assert claimed_part(settings) is settings
    assert not settings.is_divided
    assert claimed_part(opened()) is None


def test_a_node_that_cannot_be_read_has_no_door_yet(tmp_path):
    cluster = FakeCluster()
    cluster.fail("node", ClusterError("connection refused"))
    with pytest.raises(ClusterError):
        open_door(PluginSettings(node="n1", door="auto"), cluster)


BY_PLUGIN = placed(asking(), shares=[[share(A)]], name="p", bind_phase="success", phase="Running")
BY_CLAIM = make_pod(name="q", node_name="n1", phase="Running")
BY_OURS = replace(BY_PLUGIN, ref=replace(BY_PLUGIN.ref, name="r", uid="uid-r"), claim="hami-r")


MANAGED = config(door="dra", claim_allocator="hami")


@pytest.mark.parametrize(
    "door, pods, why",
    [
        param("plugin", [], "", id="empty node"),
        param("dra", [], "", id="likewise for claims"),
        param("plugin", [BY_PLUGIN], "", id="its own"),
        param("dra", [BY_CLAIM], "", id="its own claims"),
        param(
            "plugin",
            [BY_OURS],
            "1 pods have devices through the door dra, such as default/r",
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
            "the door of the node cannot be dra yet: 1 pods have devices through the door "
            "plugin, such as default/p",
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
            "1 pods have devices through the door plugin, such as default/p",
            id="other",
        ),
        param(
            "plugin",
            [BY_PLUGIN, BY_CLAIM],
            "1 pods have devices through the door dra, such as default/q",
            id="claims",
        ),
        param("dra", [replace(BY_PLUGIN, phase="Succeeded")], "", id="ended"),
    ],
)
def test_the_door_is_closed_while_pods_have_devices_through_the_other(door, pods, why):
    found = why_closed(
        door if door is MANAGED else config(door=door), pods, {BY_CLAIM.ref.uid}, NVIDIA
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
        param([BY_PLUGIN], [prepared(B)], "", id="each at its door"),
        param([], [], "", id="empty node"),
        param(
            [placed(asking(), shares=[[share(C), share(B)]], name="p", phase="Running")],
            [],
            f"device {B} cannot change its door yet: pod default/p has it through the door "
            f"plugin; put claimdevices back",
            id="a pod has it",
        ),
        param([placed(asking(), shares=[[share(B)]], phase="Failed")], [], "", id="ended"),
        param([placed(asking(), text="nonsense")], [], "", id="unreadable"),
        param(
            [placed(asking(), text=f"{B},NVIDIA,much:;")],
            [],
            f"device {B} cannot change its door yet: pod default/p",
            id="unreadable, but named",
        ),
        param(
            [BY_PLUGIN],
            [prepared(B), prepared(A)],
            f"device {A} cannot change its door yet: claim team/c has it through the door dra",
            id="a claim has it",
        ),
    ],
)
def test_a_card_does_not_change_its_door_while_it_is_used(pods, claims, why):
    found = why_undivided(pods, claims, {B}, NVIDIA)
    assert why in found
    assert bool(why) == bool(found)
