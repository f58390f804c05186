"""Devices in ResourceSlices and the claims that hold parts of them, as a view."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hami.codec.claims import AllocatedClaim, ClaimedDevice, ClaimedRequest
from hami.codec.slices import PublishedInstance, PublishedSlice, device_name, mig_devices, pool_name
from hami.model import MigProfile, Partition
from hami.state.claims import ClaimCache, latest_devices
from hami.state.view import Facts, Policies
from testing.builders import NVIDIA, gpu

CARD = gpu("GPU-0", slots=4, memory_mib=10_000)
PROFILES = (
    MigProfile(
        name="1g.5gb", memory_mib=4864, cores=15, slices=0, placements=(Partition(0), Partition(1))
    ),
    MigProfile(
        name="3g.20gb", memory_mib=19_968, cores=43, slices=0, placements=(Partition(0, 4),)
    ),
)
DIVIDED = gpu("GPU-0", mode="mig", slots=2, memory_mib=40_960, mig_profiles=PROFILES)
INSTANCES = tuple(
    PublishedInstance(
        name=name,
        card=replace(DIVIDED, mig_profiles=(), slots=0),
        profile=replace(profile, placements=(replace(place, name=""),)),
    )
    for name, (profile, place) in mig_devices("GPU-0", PROFILES).items()
)


def claim(*devices, uid="claim", **fields):
    return AllocatedClaim(
        namespace="default",
        name=uid,
        uid=uid,
        requests=(ClaimedRequest(name="main", devices=devices, **fields),),
    )


def part(uuid="GPU-0", node="n", memory=0, cores=0, share_milli=25_000):
    return ClaimedDevice(
        pool=pool_name(node),
        device=device_name(uuid),
        memory_mib=memory,
        cores=cores,
        share_milli=share_milli,
    )


def seen(*claims, slices=(PublishedSlice("n", 1, (CARD,)),)):
    cache = ClaimCache()
    for number, part_of_node in enumerate(slices):
        cache.set_slice(str(number), part_of_node)
    for given_claim in claims:
        cache.set_claim(given_claim.uid, given_claim)
    return cache


def content(cache):
    return cache.at_once(Facts(vendors=NVIDIA, policies=Policies()))


def view(*claims, **slices):
    return content(seen(*claims, **slices)).view


def used(made, node="n"):
    return {
        usage.device.uuid: (usage.slots_used, usage.memory_used_mib, usage.cores_used)
        for usages in made.usages(node).values()
        for usage in usages
    }


def test_claims_take_what_they_consume():
    made = view(
        claim(part(memory=3000, cores=10)),
        claim(part(memory=2000, share_milli=50_000), uid="second"),
    )
    assert used(made) == {"GPU-0": (3, 5000, 10)}
    assert {uid: booking.node for uid, booking in made.bookings.items()} == {
        "claim": "n",
        "second": "n",
    }


def test_a_card_that_is_claimed_alone_has_no_slot_left():
    assert used(view(claim(part(share_milli=100_000)))) == {"GPU-0": (4, 0, 0)}


def placed(name, **fields):
    return claim(ClaimedDevice(pool=pool_name("n"), device=f"gpu-0-mig-{name}"), **fields)


def test_claims_hold_mig_instances_at_their_places():
    """The slices of a node may have parts of what a card can be divided into."""
    found = content(
        seen(
            placed("1g-5gb-1"),
            placed("3g-20gb-0", uid="forged"),
            slices=(
                PublishedSlice("n", 1, (), INSTANCES[:1]),
                PublishedSlice("n", 1, (), INSTANCES[1:]),
            ),
        )
    )
    (usage,) = found.view.usages("n")["NVIDIA"]
    assert {one.name: set(one.placements) for one in usage.device.mig_profiles} == {
        one.name: set(one.placements) for one in PROFILES
    }
    assert replace(usage.device, mig_profiles=PROFILES) == DIVIDED
    assert used(found.view) == {"GPU-0": (2, 24_832, 58)}
    assert usage.is_overcommitted
    assert set(usage.partitions) == {Partition(1, 1, "1g.5gb"), Partition(0, 4, "3g.20gb")}
    assert {name for _, name in found.devices} == {"gpu-0", *(one.name for one in INSTANCES)}


def test_requests_of_one_claim_add_up():
    both = AllocatedClaim(
        namespace="default",
        name="c",
        uid="c",
        requests=(
            ClaimedRequest(name="a", devices=(part(memory=1),)),
            ClaimedRequest(name="b", devices=(part(memory=2),)),
        ),
    )
    assert used(view(both)) == {"GPU-0": (2, 3, 0)}


def test_admin_access_and_devices_that_nobody_publishes_take_nothing():
    made = view(
        claim(part(memory=1), admin=True),
        claim(part("GPU-1", memory=1), uid="gone"),
        claim(part(node="other", memory=1), uid="elsewhere"),
    )
    assert used(made) == {"GPU-0": (0, 0, 0)}
    assert not made.bookings


@given(
    st.permutations(
        [
            PublishedSlice("n", 1, (gpu("GPU-9"),)),
            PublishedSlice("n", 2, (gpu("GPU-0"),)),
            PublishedSlice("n", 2, (gpu("GPU-1"),)),
        ]
    )
)
def test_slices_of_earlier_generations_do_not_count(slices):
    assert {device.uuid for device in latest_devices(slices)} == {"GPU-0", "GPU-1"}


CARDS = [gpu(f"GPU-{number}", slots=4, by_claims=number == 2) for number in range(3)]
SLICES = st.builds(
    PublishedSlice,
    st.sampled_from("mn"),
    st.integers(1, 3),
    st.lists(st.sampled_from(CARDS), unique=True).map(tuple),
    st.lists(st.sampled_from(INSTANCES), unique=True).map(tuple),
)
CLAIMS = st.builds(
    lambda uid, parts: claim(*parts, uid=uid),
    st.sampled_from("abc"),
    st.lists(
        st.builds(
            part,
            st.sampled_from(["GPU-0", "GPU-2", "GPU-9"]),
            st.sampled_from("mn"),
            st.integers(0, 9),
        ),
        unique_by=lambda one: (one.pool, one.device),
    ),
) | st.builds(
    placed, st.sampled_from(["1g-5gb-0", "1g-5gb-1", "3g-20gb-0"]), uid=st.sampled_from("abc")
)
STEPS = st.one_of(
    st.tuples(st.just("slice"), st.sampled_from("xyz"), st.none() | SLICES),
    CLAIMS.map(lambda made: ("claim", made.uid, made)),
    st.tuples(st.just("claim"), st.sampled_from("abc"), st.none()),
)


@given(st.lists(STEPS, max_size=20))
def test_what_came_before_leaves_nothing_behind(steps):
    cache, slices, claims = ClaimCache(), {}, {}
    for kind, uid, value in steps:
        (cache.set_slice if kind == "slice" else cache.set_claim)(uid, value)
        (slices if kind == "slice" else claims)[uid] = value
    fresh = ClaimCache()
    for uid, value in slices.items():
        fresh.set_slice(uid, value)
    for uid, value in claims.items():
        fresh.set_claim(uid, value)
    now, expected = content(cache), content(fresh)
    assert (now.devices, now.claims, now.instances) == (
        expected.devices,
        expected.claims,
        expected.instances,
    )
    assert now.view.nodes == expected.view.nodes
    assert now.view.bookings == expected.view.bookings


def test_what_hami_allocates_is_in_the_table_of_the_store_only():
    managed = replace(CARD, by_claims=True)
    cache = seen(claim(part(memory=1)))
    cache.set_slice("0", PublishedSlice("n", 2, (managed,)))
    found = content(cache)
    assert (found.devices, found.view.usages("n"), found.view.bookings) == (
        {},
        {},
        {},
    )
    assert "claim" in found.claims
    cache.set_slice("0", PublishedSlice("n", 3, (CARD,)))
    assert used(content(cache).view) == {"GPU-0": (1, 1, 0)}
    divided = tuple(replace(one, card=replace(one.card, by_claims=True)) for one in INSTANCES)
    found = content(seen(placed("1g-5gb-1"), slices=(PublishedSlice("n", 1, (), divided),)))
    assert (found.devices, found.view.usages("n"), found.view.bookings) == ({}, {}, {})


def test_the_cards_are_those_of_all_slices():
    slices = [
        PublishedSlice(node, 1, tuple(gpu(f"GPU-{node}-{size}", memory_mib=size) for size in sizes))
        for node, sizes in (("a", [81920]), ("b", [81920, 15360]), ("c", [46068]))
    ]
    cache = seen(slices=slices)

    def sizes():
        return {device.memory_mib for device in content(cache).devices.values()}

    assert sizes() == {81920, 15360, 46068}
    cache.set_slice("1", None)
    cache.keep_slices({"0"})
    assert sizes() == {81920}


def test_what_a_list_does_not_show_is_gone():
    cache = seen(claim(part(memory=1)), claim(part(memory=2), uid="second"))
    cache.keep_claims({"second"})
    assert used(content(cache).view) == {"GPU-0": (1, 2, 0)}
    before = cache.version()
    cache.keep_slices(set())
    assert not content(cache).view.nodes
    assert cache.version() > before
