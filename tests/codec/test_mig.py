"""MIG instances of a pod's containers in annotations."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import param

from hami.codec.mig import (
    MigAllocation,
    cards_without_places,
    parse_mig_allocations,
    render_mig_allocations,
)
from hami.errors import MalformedInput
from hami.model import Partition
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


@pytest.mark.parametrize(
    "written, expected",
    [
        param(text(ENTRY), (PLACED,), id="as the scheduler writes it"),
        param(text(ENTRY | MADE), (REALIZED,), id="as the device plugin completes it"),
        param(text(ENTRY | {"migUUID": "", "more": 1}), (PLACED,), id="an empty UUID is none"),
        param("[]", (), id="none"),
    ],
)
def test_what_is_read(written, expected):
    assert parse_mig_allocations("field", written) == expected


@pytest.mark.parametrize(
    "allocation, cards",
    [
        param("GPU-m[1-0],NVIDIA,9728,15:;", {"GPU-m"}, id="one"),
        param(
            ";GPU-m[0-6],NVIDIA,4864,0:GPU-n[12-3],NVIDIA,4864,0:;GPU-m[0-5],NVIDIA,4864,0:;",
            {"GPU-m", "GPU-n"},
            id="several",
        ),
        param("GPU-m,NVIDIA,9728,15:;GPU-n[1-0],NVIDIA,1,1:;", {"GPU-n"}, id="beside a share"),
        param("GPU-m,NVIDIA,9728,15:;", set(), id="a share"),
        param(
            "GPU-m[1],NVIDIA,1,1:GPU-n[a-b],NVIDIA,1,1:[1-0],NVIDIA,1,1:;",
            set(),
            id="other brackets",
        ),
        param("", set(), id="nothing"),
    ],
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


@pytest.mark.parametrize(
    "written, problem",
    [
        param("", "expected a list of MIG allocations", id="nothing"),
        param("null", "expected a list of MIG allocations", id="null"),
        param(json.dumps(ENTRY), "expected a list of MIG allocations", id="one entry, no list"),
        param("[" * 100000, "expected a list of MIG allocations", id="deep"),
        param(text(without("containerIndex")), "containerIndex", id="no container"),
        param(text(without("deviceIndex")), "deviceIndex", id="no device"),
        param(text(without("gpuUUID")), "gpuUUID", id="no card"),
        param(text(without("profile")), "profile", id="no profile"),
        param(text(without("placement")), "placement", id="no placement"),
        param(text(ENTRY | {"placement": {"start": 2}}), "size", id="no size"),
        param(text(ENTRY | {"placement": {"size": 2}}), "start", id="no start"),
        param(
            text(ENTRY | {"containerIndex": -1}),
            ">= 0 - at `$[0].containerIndex`",
            id="container below 0",
        ),
        param(
            text(ENTRY | {"deviceIndex": -1}), ">= 0 - at `$[0].deviceIndex`", id="device below 0"
        ),
        param(text(ENTRY | {"gpuUUID": ""}), "length >= 1 - at `$[0].gpuUUID`", id="empty card"),
        param(text(ENTRY | {"profile": ""}), "length >= 1 - at `$[0].profile`", id="empty profile"),
        param(
            text(ENTRY | {"placement": {"start": -1, "size": 1}}),
            ">= 0 - at `$[0].placement.start`",
            id="start below 0",
        ),
        param(
            text(ENTRY | {"placement": {"start": 0, "size": 0}}),
            ">= 1 - at `$[0].placement.size`",
            id="size 0",
        ),
        param(
            text(ENTRY | {"placement": {"start": 0.5, "size": 1}}),
            "expected a list",
            id="half a slice",
        ),
        param(text(ENTRY | {"migUUID": "MIG-1"}), "or none of them", id="UUID alone"),
        param(
            text(ENTRY | {"gpuInstanceID": 1, "computeInstanceID": 0}),
            "or none of them",
            id="no UUID",
        ),
        param(text(ENTRY | MADE | {"migUUID": ""}), "or none of them", id="an empty UUID"),
        param(
            text(ENTRY | {"migUUID": "MIG-1", "gpuInstanceID": 1}),
            "or none of them",
            id="no compute instance",
        ),
        param(
            text(ENTRY, ENTRY | {"gpuUUID": "GPU-n"}),
            "one entry for each container and device",
            id="a share twice",
        ),
    ],
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
