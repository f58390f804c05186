"""Enflame's slices beyond the table: what nodes offer, and what is taken after a restart."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.errors import MalformedInput
from hami.model import Node
from testing.builders import container, device_usage
from testing.vendor_placing import cache_of, place_pod
from tests.vendors.rows_enflame import CORES, COUNT, DRS, MEMORY, device

PROFILES = {"1g.6gb": "0", "3g.20gb": "1", "6g.40gb": "2"}


def sliced(*capacities, profiles=None, name="n"):
    """A node whose devices have these capacities."""
    document = {
        "devices": [
            {"index": str(i), "minor": str(i + 7), "capacity": capacity}
            for i, capacity in enumerate(capacities)
        ],
        "profiles": PROFILES if profiles is None else profiles,
    }
    return Node(name=name, annotations={"enflame.com/gcu-drs-capacity": json.dumps(document)})


def asking(*limits):
    """Containers with these limits, named after their profiles."""
    return [container(amounts, name=f"c{place}") for place, amounts in enumerate(limits)]


def test_devices():
    assert DRS.decision.inventory(DRS, sliced(6, 6)) == (device(0).device, device(1).device)


def test_without_memory_in_any_profile_a_slice_counts_as_a_gb():
    (found,) = DRS.decision.inventory(DRS, sliced(4, profiles={"1g.0gb": "0", "4g.0gb": "1"}))
    assert found.memory_mib == 4096


def test_a_node_without_the_annotation():
    assert DRS.decision.inventory(DRS, Node(name="n")) is None


def test_a_node_that_cannot_be_read_offers_nothing_and_says_why():
    with pytest.raises(
        MalformedInput, match="enflame.com/gcu-drs-capacity: devices.0.: expected a capacity"
    ):
        DRS.decision.inventory(DRS, sliced(0))
    cache = cache_of(sliced(0, name="bad"), sliced(6))
    assert list(device_usage(cache)) == ["n"]
    assert "expected a capacity" in cache.nodes.problems()["bad", "Enflame"]


def test_six_sixths_go_on_a_device_and_a_seventh_waits():
    cache = cache_of(sliced(6))
    assert [place_pod(cache, f"p{i}", *asking({COUNT: "1"})) is not None for i in range(7)] == [
        True
    ] * 6 + [False]


def test_slices_are_known_after_a_restart():
    before = cache_of(sliced(6))
    bound = [place_pod(before, name, *asking({COUNT: "3"})) for name in "ab"]
    after = cache_of(sliced(6))
    for one in bound:
        after.pods.upsert(one)
    assert device_usage(after) == device_usage(before)
    assert place_pod(after, "c", *asking({COUNT: "1"})) is None


ASKED = st.lists(
    st.lists(
        st.sampled_from([{COUNT: 1}, {COUNT: 3}, {COUNT: 6}, {MEMORY: 7}, {CORES: 20}]),
        min_size=1,
        max_size=2,
    ),
    max_size=16,
)


@given(asked=ASKED, gone=st.sets(st.integers(0, 15)), capacity=st.integers(1, 6))
def test_no_more_slices_are_given_than_there_are_and_all_are_read_back(asked, gone, capacity):
    cache = cache_of(sliced(capacity, capacity))
    slices, bound = {}, {}
    for number, limits in enumerate(asked):
        name = f"p{number}"
        if (found := place_pod(cache, name, *asking(*limits))) is not None:
            given = json.loads(found.annotations["assigned-containers"])
            uuids = [
                text.split(",")[0]
                for text in found.annotations[DRS.annotations.allocated].split(";")[:-1]
            ]
            slices[name] = list(
                zip(uuids, (one["request"] for _, one in sorted(given.items())), strict=True)
            )
            bound[name] = found
        if number in gone and name in bound:
            cache.pods.remove(bound.pop(name))
            del slices[name]
    for usage in device_usage(cache)["n"]:
        taken = sum(
            count for held in slices.values() for uuid, count in held if uuid == usage.device.uuid
        )
        assert taken <= capacity
        assert not usage.is_overcommitted
    again = cache_of(sliced(capacity, capacity))
    for one in bound.values():
        again.pods.upsert(one)
    assert device_usage(again) == device_usage(cache)
