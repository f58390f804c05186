"""Reading a container's amounts: limits, else requests."""

import pytest

from hami.errors import MalformedInput
from hami.vendors import request as module
from hami.vendors.admission import check_amounts
from hami.vendors.draft import PodDraft
from hami.vendors.request import device_request, device_requests, most_shares
from testing.builders import NVIDIA, ONLY_NVIDIA, container, nvidia, request
from testing.cases import cases

GPU, MEMORY, PERCENT = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage"


def draft(limits):
    (draft,) = PodDraft(
        {"spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}}
    ).containers
    return draft.seen_with(NVIDIA.resources)


@cases(
    "limits, requests, expected",
    ("the limit wins", {GPU: 1, MEMORY: 5}, {MEMORY: 7}, request(1, 5)),
    ("requests alone", {}, {GPU: 2, MEMORY: 7}, request(2, 7)),
    ("some of each", {GPU: 1}, {MEMORY: 7}, request(1, 7)),
    ("no count", {MEMORY: 7}, {}, None),
)
def test_limits_then_requests(limits, requests, expected):
    assert device_request(NVIDIA, container(limits, requests=requests)) == expected


@cases(
    "percent, expected",
    ("100", 100),
    ("1", 1),
    ("120", 100),
    ("0", 100),
    ("-5", 100),
    ("2147483647", 100),
)
def test_a_percentage_is_clamped(percent, expected):
    assert device_request(NVIDIA, container({GPU: 1, PERCENT: percent})) == request(1, 0, expected)


def test_amounts_leave_out_names_that_are_not_in_use():
    resources = nvidia(resource_core_name="").resources
    assert resources.amounts({"": "1", GPU: "1", "nvidia.com/gpucores": "5"}, {}) == {GPU: "1"}


@pytest.mark.parametrize("text", ["1.5", "-1", "500m", "9999999999999", "x", "", "NaN", "9" * 5000])
def test_what_makes_a_request_void_is_objected_to(text):
    assert device_request(NVIDIA, container({GPU: 1, MEMORY: text})) is None
    with pytest.raises(MalformedInput) as caught:
        check_amounts(draft({GPU: "1", MEMORY: text}))
    assert str(caught.value) == (
        f"invalid nvidia.com/gpumem value {text} in container c: must be an integer between 0 and "
        "2147483647, in MiB, without a unit"
    )


def test_what_can_be_used_is_not_objected_to():
    check_amounts(draft({GPU: "2147483647", MEMORY: "3k", PERCENT: "-1"}))


def test_resources_of_others_are_not_kept():
    """A tenant who requests thousands of them could otherwise fill the memory."""
    first, second = (
        container({GPU: 1, name: 1}, requests={name: 1})
        for name in ("example.com/a", "example.com/b")
    )
    assert device_requests(ONLY_NVIDIA, first) is device_requests(ONLY_NVIDIA, second)
    assert device_requests(ONLY_NVIDIA, first) == (request(1, 0, 100),)


@cases(
    "containers, shares",
    ("a long amount", [container({GPU: "0" * 100 + "3"})], {"NVIDIA": 3}),
    (
        "many containers",
        [container({GPU: 1, MEMORY: 5}, name=f"c{number}") for number in range(1000)],
        {"NVIDIA": 1000},
    ),
    (
        "long texts that are no amounts",
        [container({GPU: "x" * 100_000}), container({}, requests={GPU: "y" * 100_000})],
        {},
    ),
)
def test_large_requests_are_not_kept(containers, shares):
    """The API server writes short amounts, but anybody may send a review to the webhook."""
    caches = (module._requests, module._most_shares)
    for cache in caches:
        cache.cache_clear()
    assert most_shares(ONLY_NVIDIA, containers) == shares
    assert sum(cache.cache_info().currsize for cache in caches) <= 1
