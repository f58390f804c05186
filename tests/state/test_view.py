"""A view is the store at one moment; a view with changes is that of a cluster that has changed in this way."""

import random

import msgspec
from hypothesis import given
from hypothesis.strategies import integers

from hami.scheduling.refusal import Choice
from hami.state import dry_run
from hami.state.store import Store
from hami.state.view import MAX_OVERLAY, Policies
from testing.builders import ONLY_NVIDIA, content, gpu, gpus, node, pod, quota
from testing.replicas import Clock
from testing.seeds import some_preferences, some_scope, some_scopes

NAMES = [f"n{number}" for number in range(5)]


def some_node(rng, name):
    return node(
        name,
        *(
            gpu(
                f"GPU-{name}-{place}",
                index=place,
                memory_mib=rng.choice((8_000, 16_000)),
                healthy=rng.random() < 0.9,
            )
            for place in range(rng.randint(1, 3))
        ),
        labels={key: rng.choice("xy") for key in ("zone", "disk") if rng.random() < 0.7},
    )


def some_pod(rng, name):
    return pod(
        gpus(
            rng.choice((1, 1, 2)),
            memory=rng.choice((None, 1_000, 3_000, 9_000)),
            cores=rng.choice((0, 30)),
        ),
        name=name,
        namespace=rng.choice(("a", "b")),
        scope=some_scope(rng),
        preferences=some_preferences(rng),
    )


def some_cluster(rng):
    """Nodes, pods that are to be placed, and quotas."""
    nodes = {name: some_node(rng, name) for name in NAMES}
    pods = [some_pod(rng, f"p{number}") for number in range(rng.randrange(12))]
    quotas = [
        quota(
            f"q{number}",
            namespace="a",
            gpumem=rng.choice((4_000, 20_000, 60_000)),
            scopes=some_scopes(rng),
        )
        for number in range(rng.randrange(4))
    ]
    return nodes, pods, quotas


def store_of(nodes, bookings, quotas):
    """A store that has seen nothing else; what pods hold is booked as it is."""
    clock = Clock()
    store = Store(ONLY_NVIDIA, Policies(), clock=clock, now=clock.now)
    for one in nodes.values():
        store.nodes.upsert(one)
    for one in quotas:
        store.quotas.upsert(one)
    for booking in bookings:
        store._state.table.bookings.put(booking)
    return store


@given(seed=integers(0, 2**32))
def test_a_view_with_changes_is_that_of_a_changed_cluster(seed):
    rng = random.Random(seed)
    nodes, pods, quotas = some_cluster(rng)
    store = store_of(nodes, (), quotas)
    for one in pods:
        store.filtering.assume(one, NAMES)
    before = store.view()
    held = list(before.bookings.values())
    ended = [booking.uid for booking in held if rng.random() < 0.3]
    moved = [
        replace_node(booking, rng)
        for booking in held
        if booking.uid not in ended and rng.random() < 0.2
    ]
    new = {name: some_node(rng, name) for name in rng.sample([*NAMES, "more"], rng.randrange(3))}
    lifted = {} if rng.random() < 0.3 else None
    first = before.what_if(without=ended)
    view = first.what_if(
        with_=moved, nodes=new.values(), quotas=None if lifted is None else {"a": lifted}
    )

    after = {booking.uid: booking for booking in held if booking.uid not in ended} | {
        b.uid: b for b in moved
    }
    changed = store_of(nodes | new, after.values(), quotas if lifted is None else ())
    assert (view.nodes, view.bookings, view.used) == content(changed)[:3]
    for number in range(4):
        asked, names = (
            some_pod(rng, f"new{number}"),
            rng.sample([*NAMES, "more", "unknown"], rng.randint(1, 7)),
        )
        choice, expected = (
            dry_run.choose(view, asked, names),
            dry_run.choose(changed.view(), asked, names),
        )
        assert (choice and (choice.node, choice.placement)) == (
            expected and (expected.node, expected.placement)
        )
        if choice is None:
            refusal, other = (
                dry_run.refuse(view, asked, names),
                dry_run.refuse(changed.view(), asked, names),
            )
            assert (refusal.unfit, refusal.unknown) == (other.unfit, other.unknown)
            assert dry_run.closest(view, refusal) == dry_run.closest(changed.view(), other)
    assert content(store)[:3] == (before.nodes, before.bookings, before.used)


def replace_node(booking, rng):
    """What the pod would hold on another node, in part of devices that are not there."""
    return msgspec.structs.replace(booking, node=rng.choice(NAMES))


@given(seed=integers(0, 2**32))
def test_pods_that_are_assumed_one_after_the_other_go_where_the_store_puts_them(seed):
    rng = random.Random(seed)
    nodes, pods, quotas = some_cluster(rng)
    store = store_of(nodes, (), quotas)
    view = store.view()
    for one in pods:
        answer, view = dry_run.assume(view, one, NAMES)
        expected = store.filtering.assume(one, NAMES)
        assert isinstance(answer, Choice) == isinstance(expected, Choice)
        if isinstance(answer, Choice):
            assert (answer.node, answer.placement) == (expected.node, expected.placement)
    assert (view.nodes, view.bookings, view.used) == content(store)[:3]


def test_a_view_that_differs_in_many_nodes_makes_a_table_of_its_own():
    names = [f"n{number}" for number in range(2 * MAX_OVERLAY)]
    view = store_of(
        {name: node(name, gpu(f"GPU-{name}", slots=1)) for name in names}, (), ()
    ).view()
    placed = set()
    for number in range(len(names)):
        answer, view = dry_run.assume(view, pod(gpus(1, memory=10), name=f"p{number}"), names)
        placed.add(answer.node)
        assert len(view.overlay) <= MAX_OVERLAY
    assert placed == set(names)
    assert not isinstance(
        dry_run.assume(view, pod(gpus(1, memory=10), name="late"), names)[0], Choice
    )
