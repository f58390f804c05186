"""MIG beyond the table: places that are read back, what happens when they cannot be, and that none is given twice."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.allocation import parse_shares
from hami.errors import MalformedInput
from hami.model import DeviceUsage, MigProfile, Partition
from hami.scheduler.reconcile import pod_moves
from hami.scheduler.settings import Settings
from hami.vendors import mig
from hami.vendors.spec import Candidate
from testing.builders import (
    APP,
    INIT,
    NVIDIA,
    ONLY_NVIDIA,
    SIDECAR,
    device_usage,
    gpu,
    gpus,
    node,
    pod,
)
from testing.cases import cases
from testing.vendor_placing import cache_of, place_pod

PLACES = "hami.io/vgpu-mig-allocations"
PROFILES = (  # those of an A100 with 40 GB
    MigProfile(
        name="1g.5gb",
        memory_mib=4864,
        cores=14,
        slices=1,
        placements=tuple(Partition(i, 1) for i in range(7)),
    ),
    MigProfile(
        name="2g.10gb",
        memory_mib=9984,
        cores=28,
        slices=2,
        placements=tuple(Partition(i, 2) for i in (0, 2, 4)),
    ),
    MigProfile(
        name="3g.20gb",
        memory_mib=19968,
        cores=42,
        slices=3,
        placements=(Partition(0, 4), Partition(4, 4)),
    ),
    MigProfile(name="4g.20gb", memory_mib=19968, cores=57, slices=4, placements=(Partition(0, 4),)),
    MigProfile(
        name="7g.40gb", memory_mib=40192, cores=100, slices=7, placements=(Partition(0, 8),)
    ),
)
ALLOWED = {
    (profile.name, place.start, place.size) for profile in PROFILES for place in profile.placements
}


def card(uuid="GPU-m", index=0, **fields):
    return gpu(
        uuid,
        **{
            "index": index,
            "memory_mib": 40960,
            "slots": 7,
            "mode": "mig",
            "mig_profiles": PROFILES,
            "model": "NVIDIA A100",
        }
        | fields,
    )


CARDS = node("n1", card("GPU-m"), card("GPU-n", 1), gpu("GPU-o", index=2))


def usage_of(cache, uuid="GPU-m"):
    return next(usage for usage in device_usage(cache)["n1"] if usage.device.uuid == uuid)


def entry(container=0, device=0, start=0, gpu="GPU-m", profile="2g.10gb", size=2, **more):
    return {
        "containerIndex": container,
        "deviceIndex": device,
        "gpuUUID": gpu,
        "profile": profile,
        "placement": {"start": start, "size": size},
    } | more


def bound(allocated, *entries, containers=None, places=None):
    """A bound pod with this allocation and these placements."""
    text = json.dumps(list(entries)) if places is None else places
    return pod(
        *(containers or [gpus(memory=8000)]),
        node_name="n1",
        annotations={
            "hami.io/vgpu-node": "n1",
            NVIDIA.annotations.allocated: allocated,
            **({} if text == "" else {PLACES: text}),
        },
    )


ONE = "GPU-m,NVIDIA,9984,28:;"


def test_places_are_read_back():
    found = bound(
        "GPU-m,NVIDIA,9984,28:GPU-o,NVIDIA,100,10:;;GPU-m,NVIDIA,4864,14:;",
        entry(start=2),
        entry(
            container=2,
            profile="1g.5gb",
            start=6,
            size=1,
            migUUID="MIG-7",
            gpuInstanceID=9,
            computeInstanceID=0,
        ),
    )
    shares = mig.read_shares(
        NVIDIA, found, parse_shares("", found.annotations[NVIDIA.annotations.allocated])
    )
    assert [[share.partitions for share in mine] for mine in shares] == [
        [(Partition(2, 2, "2g.10gb"),), ()],
        [],
        [(Partition(6, 1, "1g.5gb", ("MIG-7", "9", "0")),)],
    ]


def test_shares_of_cards_that_are_not_cut_need_no_places():
    found = bound("GPU-o,NVIDIA,100,10:;", places="")
    shares = parse_shares("", found.annotations[NVIDIA.annotations.allocated])
    assert mig.read_shares(NVIDIA, found, shares) == shares


BROKEN = [  # allocated, places, cards that count as taken whole
    ("a place without a share", ONE, [entry(), entry(device=1, start=2)], "m"),
    (
        "a place without a share, on another card",
        ONE,
        [entry(), entry(device=1, start=2, gpu="GPU-n")],
        "mn",
    ),
    ("a share without a place", "GPU-m,NVIDIA,9984,28:GPU-m,NVIDIA,9984,28:;", [entry()], "m"),
    ("the place is on another card", ONE, [entry(gpu="GPU-n")], "mn"),
    ("the place is another container's", ONE, [entry(container=1)], "m"),
    ("half an identity", ONE, [entry(migUUID="MIG-7")], "m"),
    ("two places for a share", ONE, [entry(), entry(start=2)], "m"),
    ("no JSON", ONE, "not JSON", "m"),
    ("the allocation itself", "GPU-m,NVIDIA,9984:;", [entry()], "m"),
    ("an instance of v2.5 to v2.9", "GPU-m[1-0],NVIDIA,9728,15:;", "", "m"),
    (
        "instances of v2.5 to v2.9",
        ";GPU-n[0-6],NVIDIA,4864,0:GPU-m[12-3],NVIDIA,9728,0:;",
        "",
        "mn",
    ),
    ("an instance of v2.5 to v2.9 with a place", "GPU-m[1-0],NVIDIA,9728,15:;", [entry()], "m"),
]


@cases("allocated, places, taken", *BROKEN)
def test_what_does_not_go_together_counts_as_whole_cards(allocated, places, taken):
    cache = cache_of(CARDS)
    broken = bound(allocated, places=places if isinstance(places, str) else json.dumps(places))
    cache.pods.upsert(broken)
    assert cache.pods.unreadable() == [broken.ref]
    for name in "mno":
        usage = usage_of(cache, f"GPU-{name}")
        assert (usage.slots_used, usage.memory_free_mib) == (
            (usage.device.slots, 0) if name in taken else (0, usage.device.memory_mib)
        )
    moves = pod_moves(cache.pods.get(broken.ref.uid), ONLY_NVIDIA, Settings(), 0)
    assert [move.reason for move in moves if move.reason] == ["AllocationUnreadable"]


def test_beside_an_instance_of_v25_to_v29_nothing_is_placed_until_it_has_gone():
    cache = cache_of(node("n1", card()))
    earlier = bound("GPU-m[1-0],NVIDIA,9728,15:;", places="")
    cache.pods.upsert(earlier)
    assert place_pod(cache, "next", gpus(memory=4864)) is None
    cache.pods.remove(earlier)
    assert place_pod(cache, "next", gpus(memory=4864)) is not None


def test_a_share_of_a_cut_card_without_any_place_closes_the_card():
    cache = cache_of(node("n1", card()))
    cache.pods.upsert(bound(ONE, places=""))
    assert place_pod(cache, "next", gpus(memory=4864)) is None
    assert mig.unaccounted(Candidate(usage_of(cache), None, None)) is not None


def test_a_place_on_a_card_that_is_not_cut_closes_the_card():
    cache = cache_of(node("n1", gpu("GPU-m")))
    cache.pods.upsert(bound(ONE, entry()))
    assert place_pod(cache, "next", gpus(memory=100)) is None


def test_the_largest_profile_is_the_whole_card():
    cache = cache_of(node("n1", card()))
    found = place_pod(cache, "whole", gpus())
    assert found.annotations[NVIDIA.annotations.allocated] == "GPU-m,NVIDIA,40192,100:;"
    assert place_pod(cache, "next", gpus(memory=1)) is None


def test_profiles_without_memory_are_no_whole_card():
    profiles = tuple(replace(profile, memory_mib=0) for profile in PROFILES)
    cache = cache_of(node("n1", card(mig_profiles=profiles)))
    assert place_pod(cache, "whole", gpus()) is None


def test_a_bound_pod_is_read_again_when_its_instance_has_been_made():
    cache = cache_of(node("n1", card()))
    before = place_pod(cache, "a", gpus(memory=8000))
    (place,) = json.loads(before.annotations[PLACES])
    made = place | {"migUUID": "MIG-7", "gpuInstanceID": 3, "computeInstanceID": 0}
    cache.pods.upsert(
        pod(
            gpus(memory=8000),
            name="a",
            node_name="n1",
            annotations=before.annotations | {PLACES: json.dumps([made])},
        )
    )
    (partition,) = usage_of(cache, place["gpuUUID"]).partitions
    assert partition.instance == ("MIG-7", "3", "0")


@pytest.mark.parametrize(
    "kinds",
    [(INIT, APP), (INIT, INIT), (SIDECAR, APP), (INIT, SIDECAR, APP), (INIT, APP, APP)],
    ids=lambda kinds: "-".join(kind.value for kind in kinds),
)
def test_containers_of_a_pod_never_share_a_place(kinds):
    cache = cache_of(node("n1", card()))
    found = place_pod(cache, "a", *(gpus(memory=8000, kind=kind) for kind in kinds))
    starts = [one["placement"]["start"] for one in json.loads(found.annotations[PLACES])]
    assert sorted(starts) == [0, 2, 4][: len(kinds)]
    usage = usage_of(cache)
    assert len(usage.partitions) == len(kinds) == usage.slots_used


def test_places_of_init_containers_are_free_when_those_are_done():
    cache = cache_of(node("n1", card()))
    containers = gpus(memory=8000, kind=INIT), gpus(memory=8000)
    found = place_pod(cache, "a", *containers)
    cache.pods.upsert(
        pod(*containers, name="a", node_name="n1", init_done=True, annotations=found.annotations)
    )
    assert len(usage_of(cache).partitions) == 1


SIZES = st.sampled_from([1, 4864, 5000, 9984, 10000, 19968, 30000, None])
PODS = st.lists(
    st.lists(
        st.tuples(SIZES, st.sampled_from([INIT, SIDECAR, APP]), st.integers(1, 2)),
        min_size=1,
        max_size=3,
    ),
    max_size=14,
)


@given(asked=PODS, gone=st.sets(st.integers(0, 13)))
def test_no_place_is_given_twice_nor_one_that_the_profile_does_not_have(asked, gone):
    listed = node("n1", card("GPU-m"), card("GPU-n", 1))
    cache, alive = cache_of(listed), {}
    for number, containers in enumerate(asked):
        name = f"p{number}"
        found = place_pod(
            cache, name, *(gpus(count, memory, kind=kind) for memory, kind, count in containers)
        )
        if found is not None:
            alive[name] = found
        if number in gone and name in alive:
            cache.pods.remove(alive.pop(name))
        for usage in device_usage(cache)["n1"]:
            assert not usage.is_overcommitted
            assert len(usage.partitions) == usage.slots_used
            assert {
                (partition.name, partition.start, partition.size) for partition in usage.partitions
            } <= ALLOWED
    assert readable(device_usage(cache)["n1"]) == readable(read_anew(listed, alive)["n1"])


def read_anew(listed, alive):
    """The usage in a scheduler that has just started and reads the annotations of pods."""
    again = cache_of(listed)
    for one in reversed(alive.values()):
        again.pods.upsert(one)
    return device_usage(again)


def readable(usages):
    """*usages* without the order in which pods were seen."""
    return [
        DeviceUsage(
            usage.device,
            usage.slots_used,
            usage.memory_used_mib,
            usage.cores_used,
            tuple(sorted(usage.partitions)),
        )
        for usage in usages
    ]


def test_an_unreadable_text_raises():
    with pytest.raises(MalformedInput, match="vgpu-mig-allocations: expected no more placements"):
        found = bound(ONE, entry(), entry(device=1, start=2))
        mig.read_shares(NVIDIA, found, parse_shares("", ONE))
