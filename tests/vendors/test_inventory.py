"""Devices that nodes register in an annotation."""

import pytest

from hami.errors import MalformedInput
from hami.vendors.inventory import registered
from tests.builders import NVIDIA, gpu, node

TWO = gpu("dev-0"), gpu("dev-1", index=1)


def test_devices_in_the_order_registered():
    assert registered(NVIDIA, node("n1", *reversed(TWO))) == TWO[::-1]


def test_no_annotation_is_no_inventory():
    assert registered(NVIDIA, node("n1")) is None


def test_cordoned_devices():
    listed = node("n1", *TWO, annotations={"hami.io/device-cordon": " dev-1 ,,dev-9"})
    assert [device.cordoned for device in registered(NVIDIA, listed)] == [False, True]


def test_pair_scores():
    scored = node("n1", *TWO, annotations={"hami.io/node-nvidia-score": '[{"uuid":"dev-1","score":{"dev-0":50}}]'})
    assert [device.pair_scores for device in registered(NVIDIA, scored)] == [{}, {"dev-0": 50}]


def test_a_device_that_is_named_twice_counts_once():
    assert registered(NVIDIA, node("n1", TWO[0], gpu("dev-0", memory_mib=1), TWO[1])) == TWO


def test_a_device_without_uuid_does_not_count():
    assert registered(NVIDIA, node("n1", gpu(""), TWO[1])) == TWO[1:]


@pytest.mark.parametrize("text, problem", [
    ("[]", "no gpu found on node"), (":", "no gpu found on node"), ("[null]", "expected a mapping"),
])
def test_unreadable(text, problem):
    with pytest.raises(MalformedInput, match=problem):
        registered(NVIDIA, node("n1", annotations={NVIDIA.annotations.register: text}))


def test_unreadable_pair_scores():
    with pytest.raises(MalformedInput, match="hami.io/node-nvidia-score"):
        registered(NVIDIA, node("n1", *TWO, annotations={"hami.io/node-nvidia-score": "x"}))
