"""MIG instances of a pod's containers in annotations."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.mig import (
    MigAllocation,
    cards_without_places,
    parse_mig_allocations,
    render_mig_allocations,
)
from hami.errors import MalformedInput
from hami.model import Partition
from testing.cases import cases
from testing.fuzz import damaged, mutated

ENTRY = {
    "containerIndex": 0,
    "deviceIndex": 1,
    "gpuUUID": "GPU-m",
    "profile": "2g.10gb",
    "placement": {"start": 2, "size": 2},
}
MADE = {"migUUID": "MIG-1", "gpuInstanceID": 3, "computeInstanceID": 0}
PLACED = MigAllocation(container=0, device=1, gpu="GPU-m", partition=Partition(2, 2, "2g.10gb"))
REALIZED = MigAllocation(
    container=0, device=1, gpu="GPU-m", partition=Partition(2, 2, "2g.10gb", ("MIG-1", "3", "0"))
)


def text(*entries):
    return json.dumps(list(entries))


def without(*keys):
    return {key: value for key, value in ENTRY.items() if key not in keys}


@cases(
    "written, expected",
    ("as the scheduler writes it", text(ENTRY), (PLACED,)),
    ("as the device plugin completes it", text(ENTRY | MADE), (REALIZED,)),
    ("an empty UUID is none", text(ENTRY | {"migUUID": "", "more": 1}), (PLACED,)),
    ("none", "[]", ()),
)
def test_what_is_read(written, expected):
    assert parse_mig_allocations("field", written) == expected


@cases(
    "allocation, cards",
    ("one", "GPU-m[1-0],NVIDIA,9728,15:;", {"GPU-m"}),
    (
        "several",
        ";GPU-m[0-6],NVIDIA,4864,0:GPU-n[12-3],NVIDIA,4864,0:;GPU-m[0-5],NVIDIA,4864,0:;",
        {"GPU-m", "GPU-n"},
    ),
    ("beside a share", "GPU-m,NVIDIA,9728,15:;GPU-n[1-0],NVIDIA,1,1:;", {"GPU-n"}),
    ("a share", "GPU-m,NVIDIA,9728,15:;", set()),
    ("other brackets", "GPU-m[1],NVIDIA,1,1:GPU-n[a-b],NVIDIA,1,1:[1-0],NVIDIA,1,1:;", set()),
    ("nothing", "", set()),
)
def test_cards_of_instances_whose_places_are_not_said(allocation, cards):
    assert cards_without_places(allocation) == cards


def test_what_anybody_writes_in_place_of_a_card_is_read_in_no_time():
    assert cards_without_places("a" * 250_000 + "[") == frozenset()


def test_what_is_written():
    assert render_mig_allocations([PLACED]) == (
        '[{"containerIndex":0,"deviceIndex":1,"gpuUUID":"GPU-m","profile":"2g.10gb","placement":{"start":2,"size":2}}]'
    )
    assert json.loads(render_mig_allocations([REALIZED])) == [ENTRY | MADE]


@cases(
    "written, problem",
    ("nothing", "", "expected a list of MIG allocations"),
    ("null", "null", "expected a list of MIG allocations"),
    ("one entry, no list", json.dumps(ENTRY), "expected a list of MIG allocations"),
    ("deep", "[" * 100000, "expected a list of MIG allocations"),
    ("no container", text(without("containerIndex")), "containerIndex"),
    ("no device", text(without("deviceIndex")), "deviceIndex"),
    ("no card", text(without("gpuUUID")), "gpuUUID"),
    ("no profile", text(without("profile")), "profile"),
    ("no placement", text(without("placement")), "placement"),
    ("no size", text(ENTRY | {"placement": {"start": 2}}), "size"),
    ("no start", text(ENTRY | {"placement": {"size": 2}}), "start"),
    ("container below 0", text(ENTRY | {"containerIndex": -1}), ">= 0 - at `$[0].containerIndex`"),
    ("device below 0", text(ENTRY | {"deviceIndex": -1}), ">= 0 - at `$[0].deviceIndex`"),
    ("empty card", text(ENTRY | {"gpuUUID": ""}), "length >= 1 - at `$[0].gpuUUID`"),
    ("empty profile", text(ENTRY | {"profile": ""}), "length >= 1 - at `$[0].profile`"),
    (
        "start below 0",
        text(ENTRY | {"placement": {"start": -1, "size": 1}}),
        ">= 0 - at `$[0].placement.start`",
    ),
    (
        "size 0",
        text(ENTRY | {"placement": {"start": 0, "size": 0}}),
        ">= 1 - at `$[0].placement.size`",
    ),
    ("half a slice", text(ENTRY | {"placement": {"start": 0.5, "size": 1}}), "expected a list"),
    ("UUID alone", text(ENTRY | {"migUUID": "MIG-1"}), "or none of them"),
    ("no UUID", text(ENTRY | {"gpuInstanceID": 1, "computeInstanceID": 0}), "or none of them"),
    ("an empty UUID", text(ENTRY | MADE | {"migUUID": ""}), "or none of them"),
    (
        "no compute instance",
        text(ENTRY | {"migUUID": "MIG-1", "gpuInstanceID": 1}),
        "or none of them",
    ),
    (
        "a share twice",
        text(ENTRY, ENTRY | {"gpuUUID": "GPU-n"}),
        "one entry for each container and device",
    ),
)
def test_what_cannot_be_read(written, problem):
    with pytest.raises(MalformedInput) as caught:
        parse_mig_allocations("field", written)
    assert str(caught.value).startswith("field")
    assert problem in str(caught.value)


@given(
    written=st.text()
    | (mutated([ENTRY, ENTRY | MADE | {"deviceIndex": 2}]) | damaged([ENTRY, ENTRY | MADE])).map(
        lambda body: body.decode(errors="replace")
    )
)
def test_any_text_is_read_or_malformed(written):
    try:
        found = parse_mig_allocations("field", written)
    except MalformedInput:
        return
    assert len({(one.container, one.device) for one in found}) == len(found)
    assert all(
        one.gpu and one.partition.name and one.partition.start >= 0 and one.partition.size >= 1
        for one in found
    )
    assert parse_mig_allocations("field", render_mig_allocations(found)) == found


NAMES = st.text(min_size=1)
NUMBERS = st.integers(0, 2**31 - 1)
INSTANCES = st.just(()) | st.tuples(NAMES, NUMBERS.map(str), NUMBERS.map(str))


@given(
    allocations=st.lists(
        st.builds(
            MigAllocation,
            container=NUMBERS,
            device=NUMBERS,
            gpu=NAMES,
            partition=st.builds(Partition, NUMBERS, st.integers(1, 2**31), NAMES, INSTANCES),
        ),
        unique_by=lambda one: (one.container, one.device),
    )
)
def test_what_is_written_is_read_back(allocations):
    assert parse_mig_allocations("field", render_mig_allocations(allocations)) == tuple(allocations)
