"""Device ids and annotations of a node's cards."""

import json
from datetime import UTC, datetime

import pytest

from hami.codec.keys import NODE_RESIZES
from hami.codec.register import parse_devices, parse_pair_scores
from hami.devices.inventory import DeviceInventory
from hami.devices.registration import (
    annotation_changes,
    devices,
    kubelet_ids,
    node_annotations,
    offered_card,
)
from hami.model import Node
from hami.vendors.inventory import PAIR_SCORES
from testing.builders import NVIDIA
from testing.cards import A100_PROFILES, HALF, SMALL, card, cards, config
from testing.cases import cases

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def snapshot(*found, **unhealthy):
    inventory = DeviceInventory()
    inventory.update(found)
    for uuid, reason in unhealthy.items():
        inventory.report(uuid, reason)
    return inventory.snapshot()


def register(*found, unhealthy=(), **fields):
    """The register annotation of these cards."""
    current = snapshot(*found, **dict.fromkeys(unhealthy, "XID 79"))
    text = node_annotations(current, config(**fields), NVIDIA)[NVIDIA.annotations.register]
    assert text is not None
    return text


def test_with_claims_a_node_has_no_devices_for_hami_s_scheduler():
    current = snapshot(*cards("GPU-a", "GPU-b"))
    assert set(
        node_annotations(
            current, config(allocation_mode="dra", topology_score=True), NVIDIA
        ).values()
    ) == {None}


def test_a_node_whose_claims_hami_allocates_registers_what_claims_can_name():
    current, managed = (
        snapshot(*cards("GPU-a", "GPU-b_c")),
        {"allocation_mode": "dra", "claim_allocator": "hami"},
    )
    found = node_annotations(current, config(topology_score=True, **managed), NVIDIA)
    assert [
        device.uuid for device in parse_devices("k", found[NVIDIA.annotations.register], "NVIDIA")
    ] == ["GPU-a"]
    assert (found["hami.io/allocation-mode"], found[PAIR_SCORES] is None) == ("dra", False)
    assert set(node_annotations(snapshot(), config(**managed), NVIDIA).values()) == {None}
    assert (
        node_annotations(current, config(claim_allocator="hami"), NVIDIA)["hami.io/allocation-mode"]
        is None
    )


def test_a_node_in_mig_mode_whose_claims_hami_allocates_registers_its_cards():
    current = snapshot(card("GPU-a", mig=True, profiles=A100_PROFILES))
    found = node_annotations(
        current, config(allocation_mode="dra", claim_allocator="hami", operating_mode="mig"), NVIDIA
    )
    (device,) = parse_devices("k", found[NVIDIA.annotations.register], "NVIDIA")
    assert (device.mode, device.mig_profiles, found["hami.io/allocation-mode"]) == (
        "mig",
        A100_PROFILES,
        "dra",
    )


# As HAMi v2.10 writes them (keys in this order, zero values left out)
@cases(
    "found, unhealthy, fields, text",
    (
        "one card",
        [card("GPU-a", memory_mib=81559, numa=1)],
        [],
        {},
        (
            '[{"id":"GPU-a","count":10,"devmem":81559,"devcore":100,"type":"NVIDIA A100-SXM4-80GB","numa":1,'
            '"mode":"hami-core","health":true}]'
        ),
    ),
    (
        "sorted by index, one unhealthy, a model without vendor name",
        [
            card("GPU-b", index=1, memory_mib=15360, model="Tesla T4"),
            card("GPU-a", memory_mib=15360, model="Tesla T4"),
        ],
        ["GPU-b"],
        {"device_split_count": 3},
        (
            '[{"id":"GPU-a","count":3,"devmem":15360,"devcore":100,"type":"NVIDIA-Tesla T4","mode":"hami-core",'
            '"health":true},{"id":"GPU-b","index":1,"count":3,"devmem":15360,"devcore":100,"type":"NVIDIA-Tesla T4",'
            '"mode":"hami-core"}]'
        ),
    ),
    (
        "scaled and truncated",
        [card("GPU-a", memory_mib=1001)],
        [],
        {"device_memory_scaling": 1.5, "device_core_scaling": 1.29},
        (
            '[{"id":"GPU-a","count":10,"devmem":1501,"devcore":129,"type":"NVIDIA A100-SXM4-80GB","mode":"hami-core",'
            '"health":true}]'
        ),
    ),
    (
        "configured memory if the driver reports none",
        [card("GPU-a", memory_mib=0)],
        [],
        {"preconfigured_device_memory": 98304},
        (
            '[{"id":"GPU-a","count":10,"devmem":98304,"devcore":100,"type":"NVIDIA A100-SXM4-80GB","mode":"hami-core",'
            '"health":true}]'
        ),
    ),
    (
        "MIG is never scaled",
        [card("GPU-a", mig=True, profiles=(HALF,))],
        [],
        {"operating_mode": "mig", "device_memory_scaling": 2.0, "device_core_scaling": 2.0},
        (
            '[{"id":"GPU-a","count":2,"devmem":81920,"devcore":100,"type":"NVIDIA A100-SXM4-80GB","mode":"mig",'
            '"migProfiles":[{"name":"3g.40gb","memoryMB":40192,"core":43,"sliceCount":3,'
            '"placements":[{"start":0,"size":4},{"start":4,"size":4}]}],"health":true}]'
        ),
    ),
    (
        "csv, seven fields",
        [card("GPU-a", memory_mib=46068, model="NVIDIA A40", numa=1)],
        [],
        {"register_format": "csv"},
        "GPU-a,10,46068,100,NVIDIA A40,1,true:",
    ),
    (
        "csv, unhealthy",
        cards("GPU-a", "GPU-b", memory_mib=46068, model="NVIDIA A40"),
        ["GPU-a"],
        {"register_format": "csv"},
        "GPU-a,10,46068,100,NVIDIA A40,0,false:GPU-b,10,46068,100,NVIDIA A40,0,true:",
    ),
)
def test_register_annotation(found, unhealthy, fields, text):
    assert register(*found, unhealthy=unhealthy, **fields) == text


@pytest.mark.parametrize("format", ["json", "csv"])
def test_schedulers_can_parse_the_register(format):
    text = register(*cards("GPU-a", "GPU-b", numa=1), unhealthy=["GPU-b"], register_format=format)
    read = parse_devices("register", text, "NVIDIA")
    assert [(one.uuid, one.slots, one.memory_mib, one.numa, one.healthy) for one in read] == [
        ("GPU-a", 10, 81920, 1, True),
        ("GPU-b", 10, 81920, 1, False),
    ]


def test_a_node_without_cards_has_no_annotations():
    assert node_annotations(snapshot(), config(topology_score=True), NVIDIA) == {
        NVIDIA.annotations.register: None,
        PAIR_SCORES: None,
        "hami.io/allocation-mode": None,
        NODE_RESIZES: None,
    }


@cases(
    "settings, offers",
    ({}, True),
    ({"operating_mode": "mig"}, False),
    ({"allocation_mode": "dra"}, False),
    ({"allocation_mode": "dra", "claim_allocator": "hami"}, False),
    ({"memory_by": "both"}, False),
    ({"memory_by": "driver"}, False),
)
def test_only_a_node_whose_limits_are_files_resizes(settings, offers):
    annotations = node_annotations(snapshot(card("GPU-a")), config(**settings), NVIDIA)
    assert annotations[NODE_RESIZES] == ("true" if offers else None)


def test_memory_beyond_int32_is_truncated():
    (device,) = devices(
        snapshot(card("GPU-a", memory_mib=2_000_000_000)), config(device_memory_scaling=10.0)
    )
    assert device.memory_mib == 2_147_483_647


def test_pair_scores_name_each_other_card():
    found = [
        card("GPU-a", links={"GPU-b": 150}),
        card("GPU-b", index=1, links={"GPU-a": 150}),
        card("GPU-c", index=2),
    ]
    text = node_annotations(snapshot(*found), config(topology_score=True), NVIDIA)[PAIR_SCORES]
    assert json.loads(text) == [
        {"uuid": "GPU-a", "score": {"GPU-b": 150, "GPU-c": 0}},
        {"uuid": "GPU-b", "score": {"GPU-a": 150, "GPU-c": 0}},
        {"uuid": "GPU-c", "score": {"GPU-a": 0, "GPU-b": 0}},
    ]
    assert parse_pair_scores(PAIR_SCORES, text)["GPU-a"]["GPU-b"] == 150


def test_pair_scores_are_off_by_default():
    assert node_annotations(snapshot(card()), config(), NVIDIA)[PAIR_SCORES] is None


def test_kubelet_ids_are_the_uuid_with_a_suffix():
    assert kubelet_ids(card("GPU-a"), config(device_split_count=3)) == (
        "GPU-a-0",
        "GPU-a-1",
        "GPU-a-2",
    )


@cases(
    "one, fields, problem",
    ("a card", card(), {}, ""),
    ("filtered by uuid", card("GPU-a"), {"filtered_uuids": ("GPU-a",)}, None),
    ("filtered by index", card(index=3), {"filtered_indexes": (3,)}, None),
    ("filtered, whatever its problem", card(problem="lost"), {"filtered_indexes": (0,)}, None),
    ("unknown memory", card(memory_mib=0), {}, None),
    ("configured memory", card(memory_mib=0), {"preconfigured_device_memory": 1}, ""),
    ("unreadable", card(memory_mib=0, problem="memory: lost"), {}, "memory: lost"),
    (
        "MIG on a sharing node",
        card(mig=True),
        {},
        "in MIG mode, while this node shares whole cards",
    ),
    ("no profiles on a MIG node", card(), {"operating_mode": "mig"}, None),
    (
        "MIG mode not enabled yet on a MIG node",
        card(profiles=(SMALL,)),
        {"operating_mode": "mig"},
        "",
    ),
)
def test_cards_that_a_node_offers(one, fields, problem):
    offered = offered_card(one, config(**fields))
    assert (None if offered is None else offered.problem) == problem


@cases(
    "one, mode, offered",
    ("in MIG mode", card(mig=True), "hami-core", False),
    ("unreadable", card(mig=True, memory_mib=0, problem="memory: lost"), "hami-core", False),
    ("not in MIG mode", card(problem="lost"), "hami-core", True),
    ("on a MIG node", card(mig=True, profiles=(SMALL,)), "mig", True),
)
def test_cards_in_mig_mode_are_not_offered_with_ignore_mig_cards(one, mode, offered):
    assert (
        offered_card(one, config(operating_mode=mode), ignore_mig_cards=True) is not None
    ) is offered


REGISTERED = {NVIDIA.annotations.register: "x"}


@cases(
    "format, annotations, wanted, changes",
    ("no annotation yet", "json", {}, REGISTERED, REGISTERED),
    ("already there", "json", REGISTERED, REGISTERED, {}),
    ("another value", "json", {NVIDIA.annotations.register: "y"}, REGISTERED, REGISTERED),
    ("to be removed", "json", {PAIR_SCORES: "s"}, {PAIR_SCORES: None}, {PAIR_SCORES: None}),
    ("already removed", "json", {}, {PAIR_SCORES: None}, {}),
    (
        "v2.8 and later: not answered",
        "json",
        {NVIDIA.annotations.handshake: "Requesting_2026-01-02 03:04:00"},
        {},
        {},
    ),
    (
        "v2.5: answered",
        "csv",
        {NVIDIA.annotations.handshake: "Requesting_2026-01-02 03:04:00"},
        {},
        {NVIDIA.annotations.handshake: "Reported 2026-01-02 03:04:05"},
    ),
    (
        "v2.4: answered",
        "csv",
        {NVIDIA.annotations.handshake: "Requesting_2026.01.02 03:04:00"},
        {},
        {NVIDIA.annotations.handshake: "Reported 2026-01-02 03:04:05"},
    ),
    (
        "forgotten: answered",
        "csv",
        {NVIDIA.annotations.handshake: "Deleted_2026.01.02 03:04:00"},
        {},
        {NVIDIA.annotations.handshake: "Reported 2026-01-02 03:04:05"},
    ),
    (
        "answered already",
        "csv",
        {NVIDIA.annotations.handshake: "Reported 2026-01-02 03:04:00"},
        {},
        {},
    ),
    ("not requested yet", "csv", {}, {}, {}),
)
def test_only_differences_are_written(format, annotations, wanted, changes):
    node = Node(name="n1", annotations=annotations)
    assert annotation_changes(node, wanted, config(register_format=format), NVIDIA, NOW) == changes
