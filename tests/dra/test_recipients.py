"""The containers that get what was allocated to a claim."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.claims import AllocatedClaim, ClaimedRequest
from hami.codec.device_requests import used_claims
from hami.dra.recipients import recipients
from hami.errors import Rejected
from hami.model import ContainerKind
from testing.builders import container, pod
from testing.cases import cases

POD = pod(
    container(name="init", kind=ContainerKind.INIT),
    container(name="side", kind=ContainerKind.SIDECAR),
    container(name="main"),
    container(name="log"),
    name="p",
)


def claim(*requests):
    return AllocatedClaim(
        namespace="ns",
        name="c",
        uid="u",
        requests=tuple(ClaimedRequest(name=name, devices=()) for name in requests),
    )


ALL = ()
ROWS = [
    ("another name", {"main": ["gpu"]}, {"gpu": "main"}),
    ("the whole claim", {"main": ALL}, {"gpu": "main"}),
    ("two containers", {"log": ["gpu"], "main": ["gpu"]}, {"gpu": "main"}),
    ("an init container", {"init": ["gpu"]}, {"gpu": "init"}),
    ("an init container and another", {"init": ["gpu"], "main": ["gpu"]}, {"gpu": "main"}),
    ("an init container and a sidecar", {"init": ["gpu"], "side": ["gpu"]}, {"gpu": "side"}),
    ("the name of a later container", {"main": ["log"], "log": ["log"]}, {"log": "log"}),
    ("the name of an init container", {"init": ["init"], "main": ["init"]}, {"init": "init"}),
    ("two requests", {"main": ["a", "b"]}, {"a": "main", "b": "main"}),
    ("a request each", {"main": ["a"], "log": ["b"]}, {"a": "main", "b": "log"}),
    ("the same two requests", {"main": ALL, "log": ["b", "a"]}, {"a": "main", "b": "main"}),
    ("a request that none uses", {"main": ["a"]}, {"a": "main", "b": ""}),
    ("another driver's request", {"main": ["of-another-driver"]}, {"a": ""}),
    ("and another driver's", {"main": ["a", "of-another-driver"], "log": ["a"]}, {"a": "main"}),
    ("not named, by the names of containers", {}, {"main": "main", "log": "log"}),
    (
        "not named, by their numbers",
        {},
        {
            "container-0-request-0": "init",
            "container-2-request-0": "main",
            "container-2-request-1": "main",
        },
    ),
]


@cases("uses, found", *ROWS)
def test_each_request_has_a_directory(uses, found):
    assert recipients(claim(*found), POD, uses) == found


@cases(
    "uses, requests, why",
    (
        "some of the same",
        {"main": ["a", "b"], "log": ["b"]},
        "ab",
        "containers log and main of pod p both use request b of claim ns/c",
    ),
    ("all, and one of them", {"main": ALL, "log": ["a"]}, "ab", "both use request a"),
    ("a chain", {"main": ["a", "b"], "side": ["b", "c"]}, "abc", "both use request b"),
    ("no such name", {}, ["gpu"], "request gpu of claim ns/c: no container of pod p uses it"),
    ("no such number", {}, ["container-4-request-0"], "no container of pod p uses it"),
)
def test_what_no_specifications_can_say_is_refused(uses, requests, why):
    with pytest.raises(Rejected, match=why):
        recipients(claim(*requests), POD, uses)


@given(
    st.dictionaries(
        st.sampled_from([one.name for one in POD.containers]), st.sets(st.sampled_from("abcd"))
    )
)
def test_the_requests_of_a_container_say_the_same(uses):
    used = {name: requests or set("abcd") for name, requests in uses.items()}
    overlap = [
        (one, other)
        for one in used.values()
        for other in used.values()
        if one & other and one != other
    ]
    if not uses:
        return
    if overlap:
        with pytest.raises(Rejected):
            recipients(claim(*"abcd"), POD, uses)
        return
    found = recipients(claim(*"abcd"), POD, uses)
    for name, requests in used.items():
        (directory,) = {found[request] for request in requests}
        assert used[directory] == requests
    assert {request for request, directory in found.items() if not directory} == set(
        "abcd"
    ).difference(*used.values())


def test_what_containers_use_is_read_from_their_pod():
    document = {
        "spec": {
            "initContainers": [
                {"name": "init", "resources": {"claims": [{"name": "gpu", "request": "a"}]}}
            ],
            "containers": [
                {
                    "name": "main",
                    "resources": {
                        "claims": [
                            {"name": "gpu", "request": "a"},
                            {"name": "nic"},
                            {"name": "gpu", "request": "b"},
                        ]
                    },
                },
                {
                    "name": "all",
                    "resources": {"claims": [{"name": "gpu", "request": "a"}, {"name": "gpu"}]},
                },
                {"name": "log"},
                {"name": "nic", "resources": {"claims": [{"name": "nic"}]}},
            ],
            "resourceClaims": [
                {"name": "gpu", "resourceClaimTemplateName": "t"},
                {"name": "nic", "resourceClaimName": "n"},
            ],
        },
        "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "made"}]},
    }
    assert used_claims(document) == {
        "init": {"made": {"a"}},
        "main": {"made": {"a", "b"}, "n": set()},
        "all": {"made": set()},
        "nic": {"n": set()},
    }
    assert used_claims({"spec": document["spec"]}) == {"main": {"n": set()}, "nic": {"n": set()}}
    assert used_claims({}) == {}
