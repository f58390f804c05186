"""The health of the kubelet's ids is that of the cards that their containers use."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from hami.model import ContainerKind
from hami.node.checkpoint import CheckpointEntry
from hami.plugin.used_cards import cards_in_use, unhealthy_ids
from testing.plugin_stage import ALLOCATED, GPU, NVIDIA, A, B, C, D, asking, placed, share

CARDS = (A, B, C, D)


def ids_of(*cards, slots=4):
    return {card: [f"{card}-{place}" for place in range(slots)] for card in cards}


def pod_on(name, *cards, **fields):
    made = placed(asking(count=len(cards)), name=name, shares=[[share(card) for card in cards]])
    return replace(made, ref=replace(made.ref, uid=name), **fields)


def entry(pod, *ids, container="c", resource=GPU):
    return CheckpointEntry(pod, container, resource, {"-1": list(ids)})


def used(entries, pods):
    return cards_in_use(entries, pods, CARDS, GPU, NVIDIA)


def test_the_card_of_the_container_counts_and_not_the_name_of_the_id():
    assert used([entry("p", f"{A}-0")], [pod_on("p", B)]) == {f"{A}-0": B}


def test_an_id_keeps_its_own_card_if_the_container_has_that_too():
    assert used([entry("p", f"{A}-3", f"{C}-0")], [pod_on("p", B, C)]) == {
        f"{A}-3": B,
        f"{C}-0": C,
    }


def test_ids_of_unknown_containers_use_the_card_of_their_name():
    broken = pod_on("q", B)
    broken = replace(broken, annotations={**broken.annotations, ALLOCATED: "x,y"})
    entries = [entry("gone", f"{A}-0"), entry("q", f"{A}-1"), entry("q", f"{D}-1", container="z")]
    assert used(entries, [broken]) == {f"{A}-0": A, f"{A}-1": A, f"{D}-1": D}


def test_ids_of_pods_that_have_ended_and_of_other_resources_are_not_in_use():
    entries = [entry("p", f"{A}-0"), entry("q", "MIG-1", resource="nvidia.com/mig-1g.10gb")]
    assert used(entries, [pod_on("p", B, phase="Failed")]) == {}


def test_ids_that_an_init_container_hands_on_use_the_card_of_the_later_container():
    made = placed(
        asking("i", kind=ContainerKind.INIT), asking("c"), name="p", shares=[[share(B)], [share(C)]]
    )
    made = replace(made, ref=replace(made.ref, uid="p"))
    assert used([entry("p", f"{A}-0"), entry("p", f"{A}-0", container="i")], [made]) == {
        f"{A}-0": C
    }


def test_an_unhealthy_card_without_pods():
    ids = ids_of(A, B)
    assert unhealthy_ids(ids, {B}, {}) == set(ids[B])
    assert unhealthy_ids(ids, set(), {}) == set()


def test_ids_in_use_have_the_health_of_the_card_that_is_used():
    ids = ids_of(A, B)
    assert unhealthy_ids(ids, {B}, {f"{A}-0": B, f"{B}-0": A}) == {f"{A}-0", *ids[B]} - {f"{B}-0"}


def test_as_many_free_ids_are_healthy_as_healthy_cards_have_free_slots():
    """All of B's pods have ids with the name of A."""
    ids = ids_of(A, B)
    unhealthy = unhealthy_ids(ids, {B}, dict.fromkeys(ids[A], B))
    assert unhealthy == set(ids[A])
    unhealthy = unhealthy_ids(ids, {B}, dict.fromkeys(ids[B], A))
    assert unhealthy == set(ids[A])


@pytest.mark.parametrize("seed", range(200))
def test_free_healthy_ids_are_exactly_the_free_slots_of_healthy_cards(seed):
    rng = random.Random(seed)
    ids = ids_of(*CARDS)
    slots = Counter()
    taken = {}
    for device_id in rng.sample([one for of_card in ids.values() for one in of_card], 9):
        card = rng.choice([card for card in CARDS if slots[card] < 4])
        slots[card] += 1
        taken[device_id] = card
    bad = set(rng.sample(CARDS, rng.randint(1, 3)))
    unhealthy = unhealthy_ids(ids, bad, taken)
    free = sum(4 - slots[card] for card in CARDS if card not in bad)
    healthy = {one for of_card in ids.values() for one in of_card} - unhealthy
    assert len(healthy - taken.keys()) == free
    assert {one for one in taken if one in unhealthy} == {
        one for one, card in taken.items() if card in bad
    }
