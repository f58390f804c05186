"""The record of a vendor, where it has no code of its own."""

import pytest

from hami.vendors.spec import Vendor, untouched
from tests.builders import gpu, request

PLAIN = Vendor(key="X", count="x.io/card", inventory=lambda vendor, node: None)


@pytest.mark.parametrize("container, found", [
    ({}, False), ({"resources": None}, False), ({"resources": {"limits": None}}, False),
    ({"resources": {"limits": {"x.io/card": "1"}}}, True), ({"resources": {"requests": {"x.io/card": "1"}}}, False),
])
def test_untouched(container, found):
    admission = untouched(PLAIN, {}, container)
    assert admission.container is container
    assert (admission.found, admission.pod_spec) == (found, {})


def test_resources_that_have_no_name_are_left_out():
    assert PLAIN.resources == ("x.io/card",)


@pytest.mark.parametrize("asked, need", [
    (request(1, 3000), 3000), (request(1, 0, 50), 23034), (request(1, 0, 33), 15202), (request(1, 3000, 50), 3000),
    (request(1, 0, 100), 46068), (request(1), 0),
])
def test_memory_on_a_device(asked, need):
    assert asked.memory_on(gpu()) == need
