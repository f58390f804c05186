"""The record of a vendor, where it has no code of its own."""

import pytest

from hami.errors import MalformedInput
from hami.vendors.spec import Catalog, Decision, Resources, Vendor
from testing.builders import gpu, request
from testing.cases import cases
from testing.vendor_rows import admit

DECISION = Decision(inventory=lambda vendor, node: None)
PLAIN = Vendor(key="X", resources=Resources(count="x.io/card"), decision=DECISION)


@cases(
    "container, found",
    ({}, False),
    ({"resources": None}, False),
    ({"resources": {"limits": None}}, False),
    ({"resources": {"limits": {"x.io/card": "1"}}}, True),
)
def test_common_admission_changes_nothing(container, found):
    admission = admit(PLAIN, container)
    assert admission.container is container
    assert (admission.requests_devices, admission.pod_spec) == (found, {})


def test_a_request_without_a_limit_becomes_the_limit():
    card = {"x.io/card": "1"}
    admission = admit(PLAIN, {"resources": {"requests": card}})
    assert admission.container["resources"] == {"requests": card, "limits": card}
    assert admission.requests_devices


def test_resources_that_have_no_name_are_left_out():
    assert PLAIN.resources.names == ("x.io/card",)


@cases(
    "asked, need",
    (request(1, 3000), 3000),
    (request(1, 0, 50), 23034),
    (request(1, 0, 33), 15202),
    (request(1, 3000, 50), 3000),
    (request(1, 0, 100), 46068),
    (request(1), 0),
)
def test_memory_on_a_device(asked, need):
    assert asked.memory_on(gpu()) == need


def test_amounts_that_cannot_be_used_are_refused_by_all():
    with pytest.raises(
        MalformedInput, match="invalid x.io/card value 1.5 in container c: must be an integer"
    ):
        admit(PLAIN, {"name": "c", "resources": {"limits": {"x.io/card": "1.5"}}})


CARDS = Vendor(
    key="Y", resources=Resources(count="y.io/card", memory="y.io/memory"), decision=DECISION
)


def test_a_catalog_finds_vendors_by_key_and_by_resource():
    catalog = Catalog([CARDS, PLAIN])
    assert list(catalog) == [PLAIN, CARDS]
    assert len(catalog) == 2
    assert catalog["Y"] is CARDS
    assert catalog.requested_by({"y.io/memory": "1"}, {"cpu": "1", "x.io/card": "2"}) == (
        PLAIN,
        CARDS,
    )
    assert catalog.requested_by({"cpu": "1"}) == ()


@cases(
    "key, count, says",
    ("one key", "X", "z.io/card", "vendor: expected a key that no other vendor has: 'X'"),
    (
        "one resource",
        "Z",
        "x.io/card",
        "vendor Z: expected a name of its own, this one is X's: 'x.io/card'",
    ),
)
def test_two_vendors_may_not_share(key, count, says):
    with pytest.raises(MalformedInput) as caught:
        Catalog([PLAIN, Vendor(key=key, resources=Resources(count=count), decision=DECISION)])
    assert str(caught.value) == says
