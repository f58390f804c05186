"""Kubernetes' own allocator judges what the scheduler allocates and what the guard of nodes
refuses, without a cluster."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hami.codec.claims import AllocatedClaim, parse_claim
from hami.codec.hami_claims import booked_claim, parse_stored_claim, render_allocation, render_claim
from hami.codec.keys import ALLOCATION_MODE, CORDON, GPU_POLICY, NUMA_BIND
from hami.codec.slices import DRIVER, device_name, mig_devices, pool_name, render_slices
from hami.dra.guard import PreparedPlacement, PreparedRequest, PreparedShare, excess
from hami.dra.hami_claims import waiting_claim
from hami.model import Device, Pod, Share
from hami.scheduling.refusal import Choice
from hami.state.store import Store
from hami.state.view import Policies
from testing.builders import ONLY_NVIDIA, container, gpu, node, pod
from testing.cards import A100_PROFILES
from testing.cases import cases
from testing.oracle import Oracle, oracle
from testing.replicas import NOON, Clock

Object = dict[str, Any]
CASES = 60
PODS = 40
NODES = ("alike", "mixed", "divided")
TAKES = {"memory": (None, 1, 1_000, 7_919, 15_000), "cores": (None, None, 0, 1, 30, 50, 100)}


@pytest.fixture(scope="module")
def judge() -> Iterator[Oracle]:
    with oracle() as started:
        yield started


def some_cards(rng: random.Random, name: str, *, alike: bool = True) -> tuple[Device, ...]:
    """Cards of a node whose claims the scheduler allocates."""

    def some_kind() -> Object:
        return {
            "slots": rng.choice((1, 2, 3, 7, 10, 11, 16)),
            "memory_mib": rng.choice((8_000, 15_360, 81_921)),
            "cores": rng.choice((100, 100, 100, 200)),
            "by_claims": True,
        }

    kind = some_kind()
    return tuple(
        gpu(
            f"GPU-{name}-{index}",
            index=index,
            numa=index % 2,
            cordoned=rng.random() < 0.1,
            **(kind if alike else some_kind()),
        )
        for index in range(rng.randint(1, 4))
    )


def some_pod(rng: random.Random, name: str) -> Pod:
    """A pod with a claim, of one or more containers."""
    containers = []
    for number in range(rng.choice((1, 1, 1, 2, 3))):
        count, percent = rng.choice((1, 1, 1, 2)), rng.choice((None, None, 10, 50, 100))
        asked = {
            "gpu": count,
            "gpumem-percentage": percent,
            "gpucores": rng.choice(TAKES["cores"]),
            "gpumem": rng.choice(TAKES["memory"]) if percent is None else None,
        }
        containers.append(
            container(
                {f"nvidia.com/{key}": value for key, value in asked.items() if value is not None},
                name=f"c{number}",
            )
        )
    annotations = {GPU_POLICY: rng.choice(("binpack", "spread", "mutex", "topology-aware"))}
    if rng.random() < 0.2:
        annotations[NUMA_BIND] = "true"
    return pod(
        *containers, name=name, claim=f"hami-{rng.getrandbits(128):032x}", annotations=annotations
    )


def allocated(
    asked: Pod, choice: Choice, cards: Sequence[Device], waiting: Object | None = None
) -> Object:
    """The claim that the scheduler writes for a pod that was placed, as it is stored. *waiting*: that which it made
    before."""
    claim = booked_claim(
        asked, choice.node, choice.placement, {card.uuid: card for card in cards}, uuid.uuid4()
    )
    made = render_claim(claim) if waiting is None else waiting
    stored = parse_stored_claim(
        json.dumps(
            {
                **made,
                "metadata": {
                    **made["metadata"],
                    "uid": f"claim-{asked.ref.uid}",
                    "resourceVersion": "1",
                },
            }
        ).encode()
    )
    update = render_allocation(claim, stored, choice.node, NOON)
    return json.loads(json.dumps({**update, "spec": made["spec"]}))


def forced(rng: random.Random, asked: Pod, cards: Sequence[Device]) -> Choice:
    """Parts of cards for each container, whatever is free."""
    shares = []
    for _ in asked.containers:
        chosen = rng.sample(cards, min(rng.choice((1, 1, 2)), len(cards)))
        cores, memory = (
            rng.choice((0, 1, 30, 100)),
            rng.randint(1, min(card.memory_mib for card in chosen)),
        )
        shares.append(tuple(Share(card.uuid, "NVIDIA", memory, cores) for card in chosen))
    return Choice("n0", tuple(shares), (), 0, 1)


def one_by_one(claim: Object) -> Object:
    """The claim with a request for each device: no request can say that it gets another amount of each."""
    devices = claim["status"]["allocation"]["devices"]
    parts: Object = {
        request["name"]: request["exactly"] for request in claim["spec"]["devices"]["requests"]
    }
    results = [
        {**result, "request": f"{result['request']}-{number}"}
        for number, result in enumerate(devices["results"])
    ]
    requests = [
        {
            "name": one["request"],
            "exactly": {
                **parts[before["request"]],
                "count": 1,
                "capacity": {"requests": one["consumedCapacity"]},
            },
        }
        for before, one in zip(devices["results"], results, strict=True)
    ]
    allocation = {**claim["status"]["allocation"], "devices": {**devices, "results": results}}
    return {
        **claim,
        "spec": {"devices": {"requests": requests}},
        "status": {"allocation": allocation},
    }


def prepared(claim: AllocatedClaim, cards: Sequence[Device]) -> list[PreparedRequest]:
    """The requests of a claim as the node counts them."""
    uuids = {device_name(card.uuid): card.uuid for card in cards}
    return [
        PreparedRequest(
            namespace=claim.namespace,
            claim=claim.name,
            uid=claim.uid,
            request=request.name,
            pod="p",
            container=request.name,
            shares=tuple(
                PreparedShare(
                    uuid=uuids[device.device],
                    memory_mib=device.memory_mib,
                    cores=device.cores,
                    share_milli=device.share_milli,
                )
                for device in request.devices
            ),
        )
        for request in claim.requests
    ]


def guarded(claim: Object, others: Sequence[Object], cards: Sequence[Device]) -> str:
    """Why the node does not prepare *claim* beside *others*; empty if it does."""
    wanted, *rest = (
        prepared(parse_claim(json.dumps(one).encode()), cards) for one in (claim, *others)
    )
    return excess(
        wanted, [request for one in rest for request in one], {card.uuid: card for card in cards}
    )


def remove_tolerations(claim: Object) -> None:
    for request in claim["spec"]["devices"]["requests"]:
        del request["exactly"]["tolerations"]


def remove_time(claim: Object) -> None:
    del claim["status"]["allocation"]["allocationTimestamp"]


def move(claim: Object) -> None:
    claim["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0][
        "values"
    ] = ["other"]


def change_result(**fields: object) -> Callable[[Object], None]:
    def change(claim: Object) -> None:
        claim["status"]["allocation"]["devices"]["results"][0].update(fields)

    return change


@cases(
    "change, objection",
    ("nothing", lambda claim: None, ""),
    ("tolerations", remove_tolerations, "request main: does not fit"),
    ("time", remove_time, "allocationTimestamp is not set"),
    ("node", move, "the node selector differs"),
    ("full-card", change_result(device="gpu-1"), "request main: does not fit"),
    (
        "amount",
        change_result(consumedCapacity={"memory": "1Gi", "cores": "0", "share": "10"}),
        "the allocation differs",
    ),
    ("share-id", change_result(shareID="taken"), "shareID taken is in use"),
    ("no-share-id", change_result(shareID=None), "no shareID"),
    ("request", change_result(request="other"), "request main: does not fit"),
)
def test_the_judge_objects_to_each_fault(judge, change, objection):
    cards = (gpu("GPU-0", by_claims=True), gpu("GPU-1", index=1, by_claims=True))

    def placed(name: str, uuid: str, cores: int) -> Object:
        asked = pod(container({"nvidia.com/gpu": 1}, name="main"), name=name, claim=f"hami-{name}")
        return allocated(
            asked, Choice("n0", ((Share(uuid, "NVIDIA", 1000, cores),),), (), 0, 1), cards
        )

    full, claim = placed("full", "GPU-1", 100), placed("p", "GPU-0", 0)
    other = placed("q", "GPU-0", 50)
    change_result(shareID="taken")(other)
    change(claim)
    found = judge.objection("n0", render_slices("n0", cards), [full, other], claim)
    assert objection in found
    assert bool(objection) is bool(found)


@pytest.mark.parametrize("seed", range(CASES))
def test_the_allocator_could_have_made_each_allocation_of_the_scheduler(judge, seed):
    rng = random.Random(seed)
    cards = {name: some_cards(rng, name, alike=name == "alike") for name in ("alike", "mixed")}
    cards["divided"] = tuple(
        replace(card, by_claims=True) for card in divided_cards(rng.randint(1, 2))
    )
    slices = {name: render_slices(name, own) for name, own in cards.items()}
    clock = Clock()
    store = Store(ONLY_NVIDIA, Policies(), clock=clock, now=clock.now)
    for name, own in cards.items():
        cordoned = ",".join(card.uuid for card in own if card.cordoned)
        store.nodes.upsert(node(name, *own, annotations={ALLOCATION_MODE: "dra", CORDON: cordoned}))
    claims: dict[str, dict[str, Object]] = {name: {} for name in NODES}
    for number in range(PODS):
        asked = some_pod(rng, f"p{number}")
        choice = store.filtering.assume(asked, NODES)
        if not isinstance(choice, Choice):
            continue
        others = claims[choice.node]
        claim = allocated(asked, choice, cards[choice.node])
        asking = one_by_one(claim) if choice.node == "mixed" else claim
        assert (
            judge.objection(choice.node, slices[choice.node], list(others.values()), asking) == ""
        )
        why_not = overlap if choice.node == "divided" else guarded
        assert why_not(claim, list(others.values()), cards[choice.node]) == ""
        others[asked.ref.uid] = claim
        if rng.random() < 0.3:  # a pod ends
            ended = rng.choice(list(others))
            del others[ended]
            store.bindings.drop(store.bindings.get(ended))
    assert claims["divided"]
    assert claims["alike"] or claims["mixed"]


@pytest.mark.parametrize("seed", range(CASES))
def test_the_claim_of_a_pod_that_waited_asks_for_what_it_gets(judge, seed):
    """So an autoscaler that simulates the allocation sees what the pod needs."""
    rng = random.Random(seed)
    names = ("small", "large")
    cards = {
        name: tuple(replace(card, memory_mib=memory, cores=100) for card in some_cards(rng, name))
        for name, memory in zip(names, (15_360, 81_921))
    }
    clock = Clock()
    store = Store(ONLY_NVIDIA, Policies(), clock=clock, now=clock.now)
    for name, own in cards.items():
        store.nodes.upsert(
            node(
                name,
                *own,
                annotations={
                    ALLOCATION_MODE: "dra",
                    CORDON: ",".join(card.uuid for card in own if card.cordoned),
                },
            )
        )
    claims: dict[str, list[Object]] = {name: [] for name in names}
    judged = 0
    for number in range(PODS):
        asked = some_pod(rng, f"p{number}")
        waiting = waiting_claim(asked, ONLY_NVIDIA, "binpack", store.admissions.claimable_sizes)
        assert isinstance(waiting, dict), waiting
        choice = store.filtering.assume(asked, names)
        if isinstance(choice, Choice):
            claim = allocated(asked, choice, cards[choice.node], waiting)
            if "constraints" not in waiting["spec"]["devices"]:
                judged += 1
                assert (
                    judge.objection(
                        choice.node,
                        render_slices(choice.node, cards[choice.node]),
                        claims[choice.node],
                        claim,
                    )
                    == ""
                )
            claims[choice.node].append(claim)
    assert judged


@pytest.mark.parametrize("seed", range(CASES))
def test_what_the_allocator_would_not_do_the_node_refuses(judge, seed):
    """Somebody who may write claims' status chooses cards at random."""
    rng = random.Random(seed)
    cards = tuple(replace(card, cordoned=False) for card in some_cards(rng, "n0"))
    slices = render_slices("n0", cards)
    claims: list[Object] = []
    refused = 0
    for number in range(PODS):
        asked = some_pod(rng, f"p{number}")
        choice = forced(rng, asked, cards)
        claim = allocated(asked, choice, cards)
        objection = judge.objection("n0", slices, claims, claim)
        assert bool(guarded(claim, claims, cards)) is objection.endswith("does not fit"), objection
        assert objection == "" or objection.endswith("does not fit")
        if objection:
            refused += 1
        else:
            claims.append(claim)
    assert refused
    assert claims


def divided_cards(number: int) -> tuple[Device, ...]:
    """Cards in MIG mode."""
    return tuple(
        gpu(f"GPU-{index}", index=index, mode="mig", mig_profiles=A100_PROFILES)
        for index in range(number)
    )


def instances(name: str, chosen: Sequence[str]) -> Object:
    """A claim for these MIG instances, as kube-scheduler writes it."""
    return {
        "metadata": {"namespace": "default", "name": name, "uid": name},
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": f"r{number}",
                        "exactly": {"deviceClassName": "mig.hami.io", "count": 1},
                    }
                    for number in range(len(chosen))
                ]
            }
        },
        "status": {
            "allocation": {
                "allocationTimestamp": "2026-11-26T12:00:00Z",
                "devices": {
                    "results": [
                        {
                            "request": f"r{number}",
                            "driver": DRIVER,
                            "pool": pool_name("n0"),
                            "device": device,
                        }
                        for number, device in enumerate(chosen)
                    ]
                },
                "nodeSelector": {
                    "nodeSelectorTerms": [
                        {
                            "matchFields": [
                                {"key": "metadata.name", "operator": "In", "values": ["n0"]}
                            ]
                        }
                    ]
                },
            }
        },
    }


def overlap(claim: Object, others: Sequence[Object], cards: Sequence[Device]) -> str:
    """Why the node does not prepare a claim for MIG instances beside *others*; empty if it does."""
    places = {
        name: PreparedShare(
            uuid=card.uuid,
            memory_mib=0,
            cores=0,
            share_milli=0,
            placement=PreparedPlacement(place.name, place.start, place.size),
        )
        for card in cards
        for name, (_, place) in mig_devices(card.uuid, card.mig_profiles).items()
    }

    def as_prepared(one: Object) -> list[PreparedRequest]:
        claimed = parse_claim(json.dumps(one).encode())
        return [
            PreparedRequest(
                namespace="default",
                claim=claimed.name,
                uid=claimed.uid,
                request=request.name,
                pod="p",
                container=request.name,
                shares=tuple(places[device.device] for device in request.devices),
            )
            for request in claimed.requests
        ]

    return excess(
        as_prepared(claim),
        [request for one in others for request in as_prepared(one)],
        {card.uuid: card for card in cards},
    )


@pytest.mark.parametrize("seed", range(CASES))
def test_the_allocator_gives_out_mig_instances_as_long_as_they_do_not_overlap(judge, seed):
    """The node refuses exactly what it would not have given out."""
    rng = random.Random(seed)
    cards = divided_cards(rng.randint(1, 2))
    slices = render_slices("n0", cards)
    names = [device["name"] for part in slices for device in part["spec"].get("devices", ())]
    claims: list[Object] = []
    refused = 0
    for number in range(PODS):
        claim = instances(f"p{number}", rng.sample(names, rng.choice((1, 1, 2))))
        objection = judge.objection("n0", slices, claims, claim)
        assert objection == "" or objection.endswith("does not fit"), objection
        assert bool(overlap(claim, claims, cards)) is bool(objection), (claim, objection)
        if objection:
            refused += 1
        else:
            claims.append(claim)
        if claims and rng.random() < 0.2:  # a pod ends
            claims.remove(rng.choice(claims))
    assert refused
