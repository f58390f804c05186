"""Devices in ResourceSlices and the claims that hold parts of them, as a view."""

from hypothesis import given
from hypothesis import strategies as st

from hami.codec.claims import AllocatedClaim, ClaimedDevice, ClaimedRequest
from hami.codec.slices import PublishedSlice, device_name, pool_name
from hami.state.claims import claimed_view, latest_devices
from hami.state.view import Facts, Policies
from tests.builders import NVIDIA, gpu

CARD = gpu("GPU-0", slots=4, memory_mib=10_000)


def claim(*devices, uid="claim", **fields):
    return AllocatedClaim(namespace="default", name=uid, uid=uid, requests=(
        ClaimedRequest(name="main", devices=devices, **fields),))


def part(uuid="GPU-0", node="n", memory=0, cores=0, share_milli=25_000):
    return ClaimedDevice(pool=pool_name(node), device=device_name(uuid), memory_mib=memory, cores=cores,
                         share_milli=share_milli)


def view(*claims, slices=(PublishedSlice("n", 1, (CARD,)),)):
    return claimed_view(slices, claims, Facts(vendors=NVIDIA, policies=Policies()))


def used(made, node="n"):
    return {usage.device.uuid: (usage.slots_used, usage.memory_used_mib, usage.cores_used)
            for usages in made.usages(node).values() for usage in usages}


def test_claims_take_what_they_consume():
    made = view(claim(part(memory=3000, cores=10)), claim(part(memory=2000, share_milli=50_000), uid="second"))
    assert used(made) == {"GPU-0": (3, 5000, 10)}
    assert {uid: booking.node for uid, booking in made.bookings.items()} == {"claim": "n", "second": "n"}


def test_a_card_that_is_claimed_alone_has_no_slot_left():
    assert used(view(claim(part(share_milli=100_000)))) == {"GPU-0": (4, 0, 0)}


def test_requests_of_one_claim_add_up():
    both = AllocatedClaim(namespace="default", name="c", uid="c", requests=(
        ClaimedRequest(name="a", devices=(part(memory=1),)), ClaimedRequest(name="b", devices=(part(memory=2),))))
    assert used(view(both)) == {"GPU-0": (2, 3, 0)}


def test_admin_access_and_devices_that_nobody_publishes_take_nothing():
    made = view(claim(part(memory=1), admin=True), claim(part("GPU-1", memory=1), uid="gone"),
                claim(part(node="other", memory=1), uid="elsewhere"))
    assert used(made) == {"GPU-0": (0, 0, 0)} and not made.bookings


@given(st.permutations([PublishedSlice("n", 1, (gpu("GPU-9"),)), PublishedSlice("n", 2, (gpu("GPU-0"),)),
                        PublishedSlice("n", 2, (gpu("GPU-1"),)), PublishedSlice("m", 1, (gpu("GPU-2"),))]))
def test_slices_of_earlier_generations_do_not_count(slices):
    devices = latest_devices(slices)
    assert {node: {device.uuid for device in own} for node, own in devices.items()} == {
        "n": {"GPU-0", "GPU-1"}, "m": {"GPU-2"}}
