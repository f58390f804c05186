"""Capacities of Enflame's nodes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.drs import DrsProfile, parse_drs_devices, render_drs_assignments
from hami.errors import MalformedInput
from hami.model import Device
from testing.cases import cases
from testing.fuzz import damaged, mutated

PROFILES = {"1g.6gb": "0", "3g.20gb": "1", "6g.40gb": "2"}


def document(*devices, profiles=None):
    return json.dumps(
        {"devices": list(devices), "profiles": PROFILES if profiles is None else profiles}
    )


def parse(text):
    return parse_drs_devices("capacity", text, "Enflame", "n")


def devices(*entries):
    return [
        (device.index, device.info["minor"], device.slots) for device in parse(document(*entries))
    ]


def test_the_document_of_the_reference():
    profiles = (
        DrsProfile(name="1g.6gb", number="0", slices=1, memory_gb=6),
        DrsProfile(name="3g.20gb", number="1", slices=3, memory_gb=20),
        DrsProfile(name="6g.40gb", number="2", slices=6, memory_gb=40),
    )
    assert parse(document({"index": "0", "minor": "0", "capacity": 6})) == (
        Device(
            uuid="n-enflame-drs-0",
            vendor="Enflame",
            model="Enflame",
            slots=6,
            memory_mib=40960,
            mode="drs",
            info={"minor": "0", "profiles": profiles},
        ),
    )


@cases(
    "entry, expected",
    ("numbers as text", {"index": "3", "minor": "5", "capacity": "6"}, (3, "5", 6)),
    ("numbers", {"index": 3, "minor": 5, "capacity": 6}, (3, "5", 6)),
    ("no number is the place", {"index": "x", "capacity": 6}, (0, "0", 6)),
    ("below 0 is the place", {"index": "-1", "capacity": 6}, (0, "0", 6)),
    ("absurd is the place", {"index": 10**30, "capacity": 6}, (0, "0", 6)),
    ("no index is the place", {"capacity": 6}, (0, "0", 6)),
    ("no minor is the index", {"index": "3", "capacity": 6}, (3, "3", 6)),
    ("a capacity out of bounds", {"index": "3", "capacity": 10**30}, (3, "3", 2147483647)),
)
def test_devices(entry, expected):
    assert devices(entry) == [expected]


def test_a_node_has_256_devices_at_most():
    assert len(devices(*[{"capacity": 6}] * 256)) == 256
    with pytest.raises(MalformedInput, match="257 devices, expected at most 256 devices on a node"):
        devices(*[{"capacity": 6}] * 257)


@cases(
    "names, expected",
    ("case and blanks", [" 2G.16GB "], [("2G.16GB", 2, 16)]),
    (
        "sorted",
        ["3g.20gb", "3g.10gb", "1g.6gb"],
        [("1g.6gb", 1, 6), ("3g.10gb", 3, 10), ("3g.20gb", 3, 20)],
    ),
    (
        "others",
        ["1g.6gb", "x", "g.gb", "1g.6gb+me", "0g.6gb", "-1g.6gb", "99999g.6gb"],
        [("1g.6gb", 1, 6)],
    ),
)
def test_profiles(names, expected):
    text = document({"capacity": 6}, profiles={name: "0" for name in names})
    assert [(p.name, p.slices, p.memory_gb) for p in parse(text)[0].info["profiles"]] == expected


def test_of_equal_profiles_the_lowest_number_is_first():
    text = document({"capacity": 6}, profiles={"1G.6gb": "4", "1g.6gb": "3"})
    assert [profile.number for profile in parse(text)[0].info["profiles"]] == ["3", "4"]


@cases(
    "text, problem",
    ("nothing", "", "expected devices and profiles"),
    ("null", "null", "expected devices and profiles"),
    ("a list", "[]", "expected devices and profiles"),
    ("empty", "{}", "expected at least one device"),
    ("no profiles", '{"devices": [{"capacity": 6}]}', "expected at least one profile"),
    (
        "no valid profile",
        document({"capacity": 6}, profiles={"half": "0"}),
        "expected at least one profile",
    ),
    ("no capacity", document({"index": "0"}), "devices[0]: expected a capacity"),
    ("no slice", document({"capacity": 1}, {"capacity": 0}), "devices[1]: expected a capacity"),
    ("no number", document({"capacity": "six"}), "expected a capacity"),
    ("negative", document({"capacity": -1}), "expected a capacity"),
    ("a boolean", document({"capacity": True}), "expected devices and profiles"),
    ("half a slice", document({"capacity": 1.5}), "expected devices and profiles"),
    (
        "two devices of one index",
        document({"index": 1, "capacity": 6}, {"capacity": 6}),
        "expected a unique index",
    ),
    ("profiles in a list", document(profiles=["1g.6gb"]), "expected devices and profiles"),
    ("deep", "[" * 100000, "expected devices and profiles"),
)
def test_what_cannot_be_read(text, problem):
    with pytest.raises(MalformedInput) as caught:
        parse(text)
    assert str(caught.value).startswith("capacity")
    assert problem in str(caught.value)


ALMOST = {
    "devices": [{"index": "0", "minor": "0", "capacity": 6}, {"index": 1, "capacity": "6"}],
    "profiles": PROFILES,
}


@given(
    text=st.text()
    | (mutated(ALMOST) | damaged(ALMOST)).map(lambda body: body.decode(errors="replace"))
)
def test_any_text_is_read_or_malformed(text):
    try:
        found = parse(text)
    except MalformedInput:
        return
    assert found
    assert all(
        device.slots >= 1 and device.index >= 0 and device.info["profiles"] for device in found
    )
    assert all(profile.slices >= 1 for device in found for profile in device.info["profiles"])


def test_assignments_are_sorted_by_container():
    half = DrsProfile(name="3g.20gb", number="1", slices=3, memory_gb=20)
    assert render_drs_assignments({"b": half, "a": half}) == (
        '{"a":{"allocated":false,"request":3,"profileID":"1","profileName":"3g.20gb"},'
        '"b":{"allocated":false,"request":3,"profileID":"1","profileName":"3g.20gb"}}'
    )
