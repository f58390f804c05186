"""Devices that nodes register in an annotation."""

from dataclasses import replace

import pytest

from hami.codec.device_config import chart_config
from hami.codec.node_template import NODE_TEMPLATE
from hami.errors import MalformedInput
from hami.model import Node
from hami.vendors.entry_points import full_catalog
from hami.vendors.inventory import MAX_TEXT, PAIR_SCORES, read_inventory, registered, with_template
from hami.vendors.spec import Rule
from testing.builders import NVIDIA, ONLY_NVIDIA, gpu, node
from testing.cases import cases

CATALOG = full_catalog(chart_config())
TWO = gpu("dev-0"), gpu("dev-1", index=1)


def test_devices_in_the_order_registered():
    assert registered(NVIDIA, node("n1", *reversed(TWO))) == TWO[::-1]


def test_no_annotation_is_no_inventory():
    assert registered(NVIDIA, node("n1")) is None


def test_cordoned_devices():
    listed = node("n1", *TWO, annotations={"hami.io/device-cordon": " dev-1 ,,dev-9"})
    assert [device.cordoned for device in read_inventory(NVIDIA, listed)] == [False, True]


def test_pair_scores():
    scored = node(
        "n1",
        *TWO,
        annotations={"hami.io/node-nvidia-score": '[{"uuid":"dev-1","score":{"dev-0":50}}]'},
    )
    assert [device.pair_scores for device in registered(NVIDIA, scored)] == [{}, {"dev-0": 50}]


@cases(
    "annotations, labels, by_claims",
    ({"hami.io/allocation-mode": "dra"}, {}, True),
    ({"hami.io/allocation-mode": "device-plugin"}, {}, False),
    ({}, {"hami.io/allocation-mode": "dra"}, False),
)
def test_devices_that_pods_get_by_claims(annotations, labels, by_claims):
    (device,) = read_inventory(NVIDIA, node("n1", gpu(), annotations=annotations, labels=labels))
    assert device.by_claims is by_claims


def test_only_the_vendor_with_that_allocation_mode_is_given_by_claims():
    other = replace(NVIDIA, annotations=replace(NVIDIA.annotations, allocation_mode=""))
    (device,) = read_inventory(
        other, node("n1", gpu(), annotations={"hami.io/allocation-mode": "dra"})
    )
    assert not device.by_claims


@cases("labels, by_claims", ({}, False), ({"hami.io/allocation-mode": "dra"}, True))
def test_a_node_of_a_group_has_the_allocation_mode_of_its_label(labels, by_claims):
    made = with_template(
        ONLY_NVIDIA, Node(name="new", labels={NODE_TEMPLATE: "2x46068.10.100.A40"} | labels)
    )
    assert [device.by_claims for device in read_inventory(NVIDIA, made)] == [by_claims] * 2
    assert ("hami.io/lock-free" in made.annotations) is by_claims


def test_a_device_that_is_named_twice_counts_once():
    assert registered(NVIDIA, node("n1", TWO[0], gpu("dev-0", memory_mib=1), TWO[1])) == TWO


def test_a_device_without_uuid_does_not_count():
    assert registered(NVIDIA, node("n1", gpu(""), TWO[1])) == TWO[1:]


@cases(
    "text, problem",
    ("[]", "no gpu found on node"),
    (":", "no gpu found on node"),
    ("[null]", "expected a mapping"),
)
def test_unreadable(text, problem):
    with pytest.raises(MalformedInput, match=problem):
        registered(NVIDIA, node("n1", annotations={NVIDIA.annotations.register: text}))


def test_unreadable_pair_scores():
    with pytest.raises(MalformedInput, match="hami.io/node-nvidia-score"):
        registered(NVIDIA, node("n1", *TWO, annotations={"hami.io/node-nvidia-score": "x"}))


@cases("form", ("JSON", "[%s]"), ("text", "%s:"))
def test_a_node_registers_256_devices_at_most(form):
    entry, separator = ('{"id":"%d"}', ",") if form == "[%s]" else ("%d,1,1,1,m,0,true", ":")

    def listed(number):
        text = form % separator.join(entry % index for index in range(number))
        return registered(NVIDIA, node("n1", annotations={NVIDIA.annotations.register: text}))

    assert len(listed(256)) == 256
    with pytest.raises(MalformedInput, match="257 devices, expected at most 256 devices on a node"):
        listed(257)


@pytest.mark.parametrize("key", [NVIDIA.annotations.register, PAIR_SCORES, "hami.io/device-cordon"])
def test_a_text_that_is_too_long_is_not_read(key):
    asked = []
    vendor = replace(
        NVIDIA,
        decision=replace(
            NVIDIA.decision, inventory=lambda vendor, node: asked.append(node.name) or TWO
        ),
    )
    assert read_inventory(vendor, node("n1", annotations={key: "x" * MAX_TEXT})) == TWO
    with pytest.raises(MalformedInput, match=f"{key}: 131073 characters, expected at most 131072"):
        read_inventory(vendor, node("n2", annotations={key: "x" * (MAX_TEXT + 1)}))
    assert asked == ["n1"]


def test_the_function_of_a_vendor_of_third_parties_returns_256_devices_at_most():
    vendor = replace(
        NVIDIA, decision=replace(NVIDIA.decision, inventory=lambda vendor, node: (gpu(),) * 257)
    )
    with pytest.raises(
        MalformedInput,
        match="node n1: 257 devices, expected at most 256 devices on a node: 'NVIDIA'",
    ):
        read_inventory(vendor, node("n1"))


@pytest.mark.parametrize("vendor", list(CATALOG), ids=lambda vendor: vendor.key)
def test_devices_of_every_vendor_are_cordoned(vendor):
    """However the devices are found: those that a node registers, and those that follow from its capacity."""
    decision = replace(vendor.decision, inventory=lambda vendor, node: TWO)
    cordon = node("n", annotations={"hami.io/device-cordon": "dev-1, dev-9"})
    devices = read_inventory(replace(vendor, decision=decision), cordon)
    assert [device.cordoned for device in devices] == [False, True]
    assert Rule.CORDON in vendor.decision.rules
    assert Rule.QUOTA in vendor.decision.rules
