"""Claims that the scheduler makes: what is booked for a pod, and how the API server and the node read it."""

import json
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.claims import ClaimedDevice, parse_claim
from hami.codec.hami_claims import (
    StoredClaim,
    booked_claim,
    booked_requests,
    differing_containers,
    parse_stored_claim,
    render_allocation,
    render_claim,
    render_deallocation,
    render_waiting_claim,
)
from hami.codec.slices import mig_devices, render_slices
from hami.dra.guard import PreparedRequest, PreparedShare, excess
from hami.errors import MalformedInput
from hami.model import Partition
from hami.quantity import INT32_MAX, parse_quantity
from testing.builders import container, gpu, pod, share
from testing.cards import A100_PROFILES
from testing.cases import cases

NOW = datetime(2026, 8, 21, 12, tzinfo=UTC)
TOKEN = uuid.UUID(int=7)
NAME = "hami-" + "0" * 32
CARDS = {
    card.uuid: card
    for card in (
        gpu("GPU-A", memory_mib=46068),
        gpu("GPU-B", memory_mib=INT32_MAX, slots=3),
        gpu("GPU-C", cores=200),
    )
}
STORED = StoredClaim("u-1", "7", frozenset({"uid-pod1"}), None, False)
SHARES = st.builds(
    share,
    uuid=st.sampled_from(sorted(CARDS)),
    memory_mib=st.integers(0, INT32_MAX),
    cores=st.integers(0, 100),
)
PLACEMENTS = st.lists(
    st.lists(SHARES, max_size=3, unique_by=lambda one: one.uuid).map(tuple), min_size=1, max_size=4
).map(tuple)


def asking(count=1):
    """A pod with containers called c0, c1, …"""
    return pod(*(container(name=f"c{number}") for number in range(count)), claim=NAME)


def booked(*containers):
    return booked_claim(asking(len(containers)), "n1", containers, CARDS, TOKEN)


def stored(claim, status):
    """The document of a claim after both writes."""
    document = render_claim(claim)
    return json.dumps(
        {
            **document,
            "metadata": {**document["metadata"], "uid": "u-1", "resourceVersion": "8"},
            "status": status["status"],
        }
    ).encode()


@given(PLACEMENTS)
def test_what_is_read_is_what_was_booked(placement):
    claim = booked(*placement)
    written = render_allocation(claim, STORED, "n1", NOW)
    assert parse_claim(stored(claim, written)) == replace(claim, uid="u-1")
    assert {
        request.name: [
            (device.device, device.memory_mib, device.cores) for device in request.devices
        ]
        for request in claim.requests
    } == {
        f"c{number}": [(f"gpu-{one.uuid[4:].lower()}", one.memory_mib, one.cores) for one in shares]
        for number, shares in enumerate(placement)
        if shares
    }


def test_a_claim_has_a_request_for_each_container_and_belongs_to_its_pod():
    claim = booked(
        (share("GPU-A", 3000, 30),), (), (share("GPU-A", 1000, 100), share("GPU-B", 1024))
    )
    document = render_claim(claim)
    assert document["metadata"] == {
        "namespace": "default",
        "name": NAME,
        "finalizers": ["resource.kubernetes.io/delete-protection"],
        "ownerReferences": [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": "pod1",
                "uid": "uid-pod1",
                "controller": True,
            }
        ],
    }
    tolerated = [{"key": "hami.io/managed", "operator": "Exists", "effect": "NoSchedule"}]
    assert document["spec"]["devices"]["requests"] == [
        {
            "name": "c0",
            "exactly": {
                "deviceClassName": "gpu.hami.io",
                "count": 1,
                "tolerations": tolerated,
                "capacity": {"requests": {"memory": "3000Mi", "cores": "30", "share": "10"}},
            },
        },
        # of several devices, what the one with the least has
        {
            "name": "c2",
            "exactly": {
                "deviceClassName": "gpu.hami.io",
                "count": 2,
                "tolerations": tolerated,
                "capacity": {"requests": {"memory": "1000Mi", "cores": "0", "share": "33333m"}},
            },
        },
    ]


def test_the_allocation_names_node_devices_and_time():
    claim = booked((share("GPU-A", 3000, 30),))
    assert render_allocation(claim, STORED, "n1", NOW) == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "default", "name": NAME, "uid": "u-1", "resourceVersion": "7"},
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {
                            "request": "c0",
                            "driver": "gpu.hami.io",
                            "pool": "hami/n1",
                            "device": "gpu-a",
                            "shareID": str(uuid.uuid5(TOKEN, "c0/gpu-a")),
                            "tolerations": [
                                {
                                    "key": "hami.io/managed",
                                    "operator": "Exists",
                                    "effect": "NoSchedule",
                                }
                            ],
                            "consumedCapacity": {"memory": "3000Mi", "cores": "30", "share": "10"},
                        }
                    ]
                },
                "nodeSelector": {
                    "nodeSelectorTerms": [
                        {
                            "matchFields": [
                                {"key": "metadata.name", "operator": "In", "values": ["n1"]}
                            ]
                        }
                    ]
                },
                "allocationTimestamp": "2026-08-21T12:00:00Z",
            },
            "reservedFor": [{"resource": "pods", "name": "pod1", "uid": "uid-pod1"}],
        },
    }
    assert render_deallocation(claim, STORED)["status"] == {}


def test_the_claim_of_a_pod_that_waits_is_allocated_by_the_alternative_that_it_gets():
    def part(name, memory):
        return {
            "name": name,
            "deviceClassName": "gpu.hami.io",
            "capacity": {"requests": {"memory": memory}},
        }

    asks = {
        "requests": [
            {"name": "c0", "firstAvailable": [part("large", "40Gi"), part("small", "7680Mi")]},
            {"name": "c1", "exactly": {"deviceClassName": "gpu.hami.io", "count": 1}},
        ],
        "constraints": [],
    }
    document = render_waiting_claim(asking(2), asks)
    tolerated = [{"key": "hami.io/managed", "operator": "Exists", "effect": "NoSchedule"}]
    alternatives, exact = document["spec"]["devices"]["requests"]
    assert [one["tolerations"] for one in (*alternatives["firstAvailable"], exact["exactly"])] == [
        tolerated
    ] * 3
    assert document["metadata"] == render_claim(booked((share("GPU-A", 1),)))["metadata"]
    kept = parse_stored_claim(json.dumps(document).encode())
    assert (kept.claim, kept.is_allocated, kept.owners) == (None, False, {"uid-pod1"})
    claim = booked((share("GPU-A", 7680),), (share("GPU-B", 40_960),))
    written = render_allocation(claim, kept, "n1", NOW)
    assert [one["request"] for one in written["status"]["allocation"]["devices"]["results"]] == [
        "c0/small",
        "c1",
    ]
    assert parse_claim(
        json.dumps(
            document
            | {"status": written["status"], "metadata": {**document["metadata"], "uid": "u-1"}}
        ).encode()
    ) == replace(claim, uid="u-1")


def test_shares_of_another_booking_have_other_names():
    placement = ((share("GPU-A", 1), share("GPU-B", 1)), (share("GPU-A", 1),))
    ids = [
        device.share_id
        for token in (TOKEN, uuid.UUID(int=8))
        for request in booked_claim(asking(2), "n1", placement, CARDS, token).requests
        for device in request.devices
    ]
    assert len(set(ids)) == 6


@cases(
    "one, milli",
    ("a slot", share("GPU-A", 1, 99), 10_000),
    ("the whole card", share("GPU-A", 1, 100), 100_000),
    ("a third", share("GPU-B", 1), 33_333),
    ("half of oversubscribed cores", share("GPU-C", 1, 100), 10_000),
)
def test_all_cores_of_a_card_are_the_whole_card(one, milli):
    ((device,),) = (request.devices for request in booked((one,)).requests)
    assert device == ClaimedDevice(
        pool="hami/n1",
        device=device.device,
        memory_mib=1,
        cores=one.cores,
        share_milli=milli,
        share_id=device.share_id,
    )


DIVIDED = {"GPU-M": gpu("GPU-M", mode="mig", mig_profiles=A100_PROFILES)}


def instance(start, profile="3g.40gb", size=4):
    return replace(share("GPU-M", 40192, 43), partitions=(Partition(start, size, profile),))


def test_the_claim_for_mig_instances_names_them_and_has_no_amounts():
    claim = booked_claim(asking(), "n1", ((instance(4), instance(0)),), DIVIDED, TOKEN)
    (request,) = render_claim(claim)["spec"]["devices"]["requests"]
    tolerated = [{"key": "hami.io/managed", "operator": "Exists", "effect": "NoSchedule"}]
    assert request == {
        "name": "c0",
        "exactly": {"deviceClassName": "mig.hami.io", "count": 2, "tolerations": tolerated},
    }
    written = render_allocation(claim, STORED, "n1", NOW)
    assert written["status"]["allocation"]["devices"]["results"] == [
        {
            "request": "c0",
            "driver": "gpu.hami.io",
            "pool": "hami/n1",
            "device": f"gpu-m-mig-3g-40gb-{start}",
            "tolerations": tolerated,
        }
        for start in (4, 0)
    ]
    assert {device for device in mig_devices("GPU-M", A100_PROFILES)} > {
        result["device"] for result in written["status"]["allocation"]["devices"]["results"]
    }
    assert parse_claim(stored(claim, written)) == replace(claim, uid="u-1")
    bound = replace(asking(), node_name="n1")
    assert differing_containers(claim, bound, ((instance(4), instance(0)),)) == []
    assert differing_containers(claim, bound, ((instance(4), instance(0, "1g.10gb", 1)),)) == ["c0"]


@pytest.mark.parametrize("slots", [1, 2, 3, 7, 10, 100, 128])
def test_as_many_fit_as_there_are_slots_and_no_more(slots):
    """The node counts the shares, and kube-scheduler does by the slice: both know the same least share."""
    card = gpu("GPU-A", slots=slots, memory_mib=1000)
    least = (
        booked_requests(asking(), "n1", ((share("GPU-A", 1),),), {"GPU-A": card})[0]
        .devices[0]
        .share_milli
    )
    (published,) = render_slices("n1", [card])
    policy = published["spec"]["devices"][0]["capacity"]["share"]["requestPolicy"]
    assert parse_quantity(policy["default"]) * 1000 == least == Fraction(100_000) // slots

    def prepared(number):
        return PreparedRequest(
            namespace="default",
            claim=f"c{number}",
            uid=f"c{number}",
            request="c",
            pod="p",
            container="c",
            shares=(PreparedShare(uuid="GPU-A", memory_mib=1, cores=0, share_milli=least),),
        )

    held = [prepared(number) for number in range(slots + 1)]
    assert not excess(held[:1], held[1:slots], {"GPU-A": card})
    assert "share" in excess(held[:1], held[1:], {"GPU-A": card})


def test_a_device_that_the_node_does_not_have_is_none():
    with pytest.raises(MalformedInput, match="GPU-Z"):
        booked((share("GPU-Z", 1),))


@cases(
    "status, allocated, readable",
    ("new", {}, False, True),
    (
        "ours",
        render_allocation(booked((share("GPU-A", 1),)), STORED, "n1", NOW)["status"],
        True,
        True,
    ),
    ("broken", {"allocation": {"devices": {"results": [{"driver": "gpu.hami.io"}]}}}, True, False),
    (
        "another driver's",
        {"allocation": {"devices": {"results": [{"driver": "nic.example.com"}]}}},
        True,
        True,
    ),
)
def test_a_claim_as_it_is_stored(status, allocated, readable):
    found = parse_stored_claim(stored(booked((share("GPU-A", 1),)), {"status": status}))
    assert (found.uid, found.version, found.owners) == ("u-1", "8", {"uid-pod1"})
    assert (found.is_allocated, found.claim is not None) == (allocated, readable)


BOOKED = (share("GPU-A", 3000, 30),), (), (share("GPU-A", 1000, 40), share("GPU-B", 1024))


@cases(
    "changed, names",
    ("nothing", lambda claim: claim, []),
    ("another order", lambda claim: replace(claim, requests=claim.requests[::-1]), []),
    ("the shares of 100", lambda claim: with_first(claim, share_milli=1), []),
    ("memory", lambda claim: with_first(claim, memory_mib=3001), ["c0"]),
    ("cores", lambda claim: with_first(claim, cores=0), ["c0"]),
    ("of another node", lambda claim: with_first(claim, pool="hami/n2"), ["c0"]),
    ("one missing", lambda claim: replace(claim, requests=claim.requests[1:]), ["c0"]),
    (
        "one twice",
        lambda claim: replace(claim, requests=(*claim.requests, claim.requests[1])),
        ["c2"],
    ),
    ("all missing", lambda claim: replace(claim, requests=()), ["c0", "c2"]),
)
def test_a_claim_that_differs_from_what_is_booked(changed, names):
    assert (
        differing_containers(changed(booked(*BOOKED)), replace(asking(3), node_name="n1"), BOOKED)
        == names
    )


def with_first(claim, **fields):
    """*claim* with other *fields* of its first device."""
    first, *rest = claim.requests
    return replace(
        claim, requests=(replace(first, devices=(replace(first.devices[0], **fields),)), *rest)
    )
