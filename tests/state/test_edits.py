"""Edits of the annotations of bound pods: what was written on the Binding counts until the pod ends."""

import json
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis.strategies import randoms
from msgspec import structs

from hami.codec.keys import ASSIGNED_NODE, GPU_ALLOCATED, RESIZED
from hami.model import PodScope, ScopeRequirement
from hami.scheduling.refusal import Choice
from hami.state.store import Store
from hami.state.view import Policies
from testing.builders import (
    APP,
    INIT,
    NVIDIA,
    container,
    content,
    device_usage,
    gpu,
    gpus,
    node,
    pod,
    quota,
    within_quota,
)
from testing.cases import cases
from testing.replicas import Clock
from testing.stores import SmallStore, bound_to
from testing.vendor_chart import CHART
from tests.state.edits import edited
from tests.vendors.test_mig import card, entry

ALLOCATION = "GPU-0,NVIDIA,3000,30:;"
TWO = gpus(2)


def edit(cache, before, text=None, version="51", **fields):
    """Delivers *before* with another allocation (none: without), at a later version."""
    annotations = {
        key: value
        for key, value in before.annotations.items()
        if key != NVIDIA.annotations.allocated
    }
    if text is not None:
        annotations[NVIDIA.annotations.allocated] = text
    changed = replace(before, annotations=annotations, resource_version=version, **fields)
    cache.pods.upsert(changed)
    return changed


@cases(
    "text",
    ("removed", None),
    ("emptied", ""),
    ("no shares", ";"),
    ("less", "GPU-0,NVIDIA,1,0:;"),
    ("more", "GPU-0,NVIDIA,8000,100:;"),
    ("another device", "GPU-1,NVIDIA,3000,30:;"),
    ("unreadable", "GPU-0,NVIDIA,3000:;"),
    ("unreadable, of all devices", "GPU-0 GPU-1"),
    ("as if in MIG mode", "GPU-0[1-0],NVIDIA,3000,30:;"),
    ("one share of two", "GPU-0,NVIDIA,1500,15:GPU-1,NVIDIA,1500,15:;"),
    ("huge", "x" * 2**20),
)
def test_an_edit_of_a_bound_pod_changes_no_booking(text):
    cache = SmallStore()
    bound = bound_to("a", ALLOCATION, TWO)
    cache.pods.upsert(bound)
    before = content(cache)
    edit(cache, bound, text)
    assert content(cache) == before
    assert cache.pods.edits_refused == 1
    assert cache.pods.take_edited() == [bound.ref]
    assert cache.pods.unreadable() == []
    assert cache.pods.get(bound.ref.uid).problems == ()


def test_an_edit_is_refused_once_however_often_the_pod_is_seen():
    cache = SmallStore()
    bound = bound_to("a", ALLOCATION)
    cache.pods.upsert(bound)
    for version in ("51", "52", "53"):
        edit(cache, bound, ";", version, phase="Running")
    assert (cache.pods.edits_refused, len(cache.pods.take_edited()), cache.pods.take_edited()) == (
        1,
        1,
        [],
    )
    edit(cache, bound, "GPU-1,NVIDIA,1,1:;", "54")
    assert cache.pods.edits_refused == 2
    edit(cache, bound, ALLOCATION, "55")
    assert cache.pods.edits_refused == 2, "it is as the Binding said again"


def test_an_edited_pod_releases_its_devices_when_it_ends():
    for end in ("terminated", "deleted"):
        cache = SmallStore()
        bound = bound_to("a", ALLOCATION)
        cache.pods.upsert(bound)
        last = edit(cache, bound, ";")
        if end == "terminated":
            edit(cache, bound, ";", "52", phase="Succeeded")
        else:
            cache.pods.remove(last)
        assert cache.free()


def test_a_quota_counts_what_the_binding_said():
    cache = SmallStore()
    cache.quotas.upsert(quota(gpumem=3000))
    bound = bound_to("a", ALLOCATION)
    cache.pods.upsert(bound)
    edit(cache, bound)
    assert cache.place(pod(gpus(1, memory=1, cores=0), name="next")) is None


@cases("first", ("app", APP), ("init container", INIT))
def test_quotas_follow_a_deadline_that_is_set_later(first):
    cache = SmallStore()
    cache.quotas.upsert(quota(gpumem=3000, scopes=[ScopeRequirement("NotTerminating")]))
    bound = bound_to(
        "a",
        "GPU-0,NVIDIA,3000,30:;GPU-0,NVIDIA,2000,10:;",
        gpus(1, memory=3000, kind=first),
        gpus(1, memory=2000),
    )
    asked = pod(gpus(1, memory=1, cores=0), name="next")
    cache.pods.upsert(bound)
    assert not within_quota(cache.admissions, "default", asked)
    before = cache.view().used
    cache.pods.upsert(replace(bound, resource_version="51", scope=PodScope(has_deadline=True)))
    assert within_quota(cache.admissions, "default", asked)
    assert cache.view().used == before
    cache.pods.upsert(replace(bound, resource_version="52", init_done=first is INIT))
    assert within_quota(cache.admissions, "default", asked) is (first is INIT)


def test_an_allocation_that_comes_after_the_binding_is_not_booked():
    cache = SmallStore()
    bound = pod(gpus(), name="a", node_name="n1", resource_version="50")
    cache.pods.upsert(bound)
    edit(cache, bound, ALLOCATION)
    assert cache.free()
    assert cache.pods.edits_refused == 1


def test_an_unreadable_edit_books_nothing_that_registers_later():
    cache = SmallStore(node("n1"))
    bound = bound_to("a", ";", TWO)
    cache.pods.upsert(bound)
    edit(cache, bound, "GPU-0 GPU-1")
    cache.nodes.upsert(node("n1", gpu("GPU-0"), gpu("GPU-1", index=1), resource_version="2"))
    assert cache.free()
    assert cache.free("GPU-1")


def bind(cache, asked, until="finished"):
    """Filters and binds *asked*, as far as *until*. Returns the pod as the API server has it then."""
    assert cache.place(asked) == "n1"
    reservation = cache.bindings.start(asked.ref, "n1")
    annotations = cache.bindings.prepare(reservation)
    if until == "finished":
        cache.bindings.finish(reservation)
    return replace(
        asked,
        node_name="n1",
        resource_version="50",
        annotations={**asked.annotations, **annotations},
    )


@pytest.mark.parametrize("text", [";", "GPU-0,NVIDIA,700,7:;", "GPU-1,NVIDIA,700", None])
def test_our_own_binding_counts_even_if_it_was_edited_before_we_saw_it(text):
    cache = SmallStore()
    bound = bind(cache, pod(gpus(1, memory=3000, cores=30)))
    edit(cache, bound, text)
    assert cache.used("GPU-1") == (1, 3000, 30)
    assert cache.free()
    assert cache.open_bindings.unbound() == 0
    assert cache.pods.edits_refused == 1
    assert cache.pods.get(bound.ref.uid).problems == ()


def test_a_binding_of_another_process_counts_as_it_is_seen():
    cache = SmallStore()
    bound = bind(cache, pod(gpus(1, memory=3000, cores=30)), until="written")
    edit(cache, bound, "GPU-0,NVIDIA,700,7:;")
    assert cache.used() == (1, 700, 7)
    assert cache.free("GPU-1")
    assert cache.pods.edits_refused == 0


def test_after_a_restart_the_pod_is_believed():
    cache = SmallStore()
    edit(cache, bound_to("a", ALLOCATION), "GPU-1,NVIDIA,1,1:;")
    assert cache.used("GPU-1") == (1, 1, 1)
    assert cache.free()


# resizes


def resized(before, text, version="51", **annotations):
    """*before* after a resize to *text*."""
    return replace(
        before,
        resource_version=version,
        annotations={**before.annotations, GPU_ALLOCATED: text, RESIZED: text, **annotations},
    )


def test_a_resize_changes_what_a_bound_pod_holds():
    cache = SmallStore()
    bound = bound_to("a", ALLOCATION)
    for version, text, used in (
        ("50", ALLOCATION, (1, 3000, 30)),
        ("51", "GPU-0,NVIDIA,7000,60:;", (1, 7000, 60)),
        ("52", "GPU-0,NVIDIA,1000,10:;", (1, 1000, 10)),
    ):
        cache.pods.upsert(resized(bound, text, version) if version > "50" else bound)
        assert (cache.used(), cache.pods.edits_refused) == (used, 0)
    after = SmallStore()
    after.pods.upsert(resized(bound, "GPU-0,NVIDIA,1000,10:;"))
    assert content(after) == content(cache), "a scheduler that starts later reads the same"


def test_a_resize_counts_until_the_end_of_init_containers_and_after():
    cache = SmallStore()
    bound = bound_to(
        "a", "GPU-0,NVIDIA,7000,40:;GPU-0,NVIDIA,3000,10:;", gpus(kind=INIT), gpus(), init_done=True
    )
    cache.pods.upsert(bound)
    larger = resized(bound, "GPU-0,NVIDIA,7000,40:;GPU-0,NVIDIA,7500,10:;")
    cache.pods.upsert(larger)
    assert cache.used()[1] == 7500
    cache.pods.upsert(replace(larger, resource_version="52", init_done=False))
    assert cache.used() == (1, 7500, 40)
    assert cache.pods.edits_refused == 0


@pytest.mark.parametrize(
    "text",
    [
        "GPU-1,NVIDIA,3000,30:;",
        ";",
        "GPU-0,NVIDIA,1500,15:GPU-1,NVIDIA,1500,15:;",
        "GPU-0,NVIDIA,1,1:GPU-0,NVIDIA,1,1:;",
        "GPU-0,NVIDIA,-1,30:;",
        "garbage,of,4",
        "x" * 2**20,
    ],
)
def test_a_resize_to_other_devices_is_an_edit(text):
    cache = SmallStore()
    bound = bound_to("a", ALLOCATION, TWO)
    cache.pods.upsert(bound)
    before = content(cache)
    cache.pods.upsert(resized(bound, text))
    assert content(cache) == before
    assert cache.pods.edits_refused == 1


@pytest.mark.parametrize("text", ["GPU-0,NVIDIA,1,0:;", "GPU-0,NVIDIA,8000,100:;", ";", None])
@pytest.mark.parametrize("was_resized", [False, True])
def test_a_device_plugin_cannot_resize(text, was_resized):
    """Its token may write the allocation of the pods of its node, but not RESIZED."""
    cache = SmallStore()
    bound = bound_to("a", ALLOCATION)
    cache.pods.upsert(bound)
    if was_resized:
        bound = resized(bound, "GPU-0,NVIDIA,4000,40:;", "51")
        cache.pods.upsert(bound)
    before = content(cache)
    edit(cache, bound, text, "52")
    assert content(cache) == before


def test_a_size_that_a_pod_carries_before_it_is_bound_does_not_count():
    cache = SmallStore()
    forged = "GPU-1,NVIDIA,1,0:;"
    bound = bind(cache, pod(gpus(1, memory=3000, cores=30), annotations={RESIZED: forged}))
    assert bound.annotations[RESIZED] == ""
    cache.pods.upsert(bound)
    assert cache.used("GPU-1") == (1, 3000, 30)
    assert cache.pods.edits_refused == 0
    later = SmallStore()
    later.pods.upsert(bound)
    assert later.used("GPU-1") == (1, 3000, 30)


def test_a_size_between_binding_and_watch_is_a_resize():
    cache = SmallStore()
    bound = bind(cache, pod(gpus(1, memory=3000, cores=30)))
    cache.pods.upsert(resized(bound, "GPU-1,NVIDIA,4000,40:;"))
    assert cache.used("GPU-1") == (1, 4000, 40)
    assert cache.pods.edits_refused == 0


# refinements

CUT = node("n1", card("GPU-0"), card("GPU-1", 1), gpu("GPU-2", index=2))
PLACES = "hami.io/vgpu-mig-allocations"
ONE = "GPU-0,NVIDIA,9984,28:;"


def cut(text, *entries, **fields):
    places = {PLACES: json.dumps(entries)} if entries else {}
    return pod(
        gpus(memory=8000),
        name="a",
        node_name="n1",
        annotations={NVIDIA.annotations.allocated: text} | places,
        **fields,
    )


def partitions(cache, index=0):
    return device_usage(cache)["n1"][index].partitions


def test_a_device_plugin_adds_the_identity_of_its_instance():
    cache = SmallStore(CUT)
    cache.pods.upsert(cut(ONE, entry(gpu="GPU-0")))
    for number in (3, 4):  # the second after a reboot
        cache.pods.upsert(
            cut(ONE, entry(gpu="GPU-0", migUUID="MIG-7", gpuInstanceID=number, computeInstanceID=0))
        )
        assert [place.instance for place in partitions(cache)] == [("MIG-7", str(number), "0")]
    assert cache.pods.edits_refused == 0


@pytest.mark.parametrize("fields", [{"start": 2}, {"profile": "1g.5gb", "size": 1}, {"size": 1}])
def test_an_instance_stays_where_it_was_placed(fields):
    cache = SmallStore(CUT)
    cache.pods.upsert(cut(ONE, entry(gpu="GPU-0")))
    before = partitions(cache)
    cache.pods.upsert(cut(ONE, entry(gpu="GPU-0", **fields)))
    cache.pods.upsert(cut(ONE))
    assert partitions(cache) == before
    assert cache.pods.edits_refused == 2


@cases(
    "first, later, is_refined",
    ("instance", "GPU-0,NVIDIA,4864,0:;", "GPU-0[1-0],NVIDIA,9728,15:;", True),
    (
        "another instance of the card",
        "GPU-0[1-0],NVIDIA,9728,15:;",
        "GPU-0[1-1],NVIDIA,9728,15:;",
        True,
    ),
    ("another card", "GPU-0,NVIDIA,4864,0:;", "GPU-1[1-0],NVIDIA,9728,15:;", False),
    ("readable", "GPU-0[1-0],NVIDIA,9728,15:;", "GPU-0,NVIDIA,1,0:;", False),
    ("removed", "GPU-0[1-0],NVIDIA,9728,15:;", ";", False),
    ("not in MIG mode", "GPU-2,NVIDIA,4864,0:;", "GPU-2[1-0],NVIDIA,9728,15:;", False),
)
def test_a_plugin_of_v25_to_v29_writes_the_instance(first, later, is_refined):
    cache = SmallStore(CUT)
    cache.pods.upsert(cut(first))
    before = device_usage(cache)
    cache.pods.upsert(cut(later))
    assert cache.pods.edits_refused == (not is_refined)
    assert [usage.slots_used for usage in device_usage(cache)["n1"]] == (
        [7, 0, 0] if is_refined else [usage.slots_used for usage in before["n1"]]
    )


def test_finished_init_containers_release_their_devices_although_the_pod_was_edited():
    cache = SmallStore()
    bound = bound_to("a", "GPU-0,NVIDIA,7000,40:;GPU-0,NVIDIA,3000,10:;", gpus(kind=INIT), gpus())
    cache.pods.upsert(bound)
    for version, init_done, used in (
        ("51", False, 7000),
        ("52", True, 3000),
        ("53", False, 7000),
        ("54", True, 3000),
    ):
        edit(cache, bound, ";", version, init_done=init_done)
        assert cache.used()[1] == used
    cache.pods.remove(bound)
    assert cache.free()


def test_devices_of_init_containers_alone_are_released_and_taken_again():
    cache = SmallStore()
    bound = bound_to("a", "GPU-0,NVIDIA,7000,40:;;", gpus(kind=INIT), container())
    cache.pods.upsert(bound)
    for version, init_done, used in (("51", True, 0), ("52", False, 7000), ("53", True, 0)):
        edit(cache, bound, ";", version, init_done=init_done)
        assert cache.used()[1] == used
    assert cache.pods.edits_refused == 1


@pytest.mark.parametrize("text", [";", "GPU-1,NVIDIA", "GPU-1,NVIDIA,1,1:;", None])
def test_an_unreadable_allocation_keeps_the_devices_that_it_named_first(text):
    """Also those of a node that registers later."""
    cache = SmallStore(node("n1"))
    bound = bound_to("a", "GPU-0,NVIDIA,3000:;", TWO)
    cache.pods.upsert(bound)
    edit(cache, bound, text)
    cache.nodes.upsert(node("n1", gpu("GPU-0"), gpu("GPU-1", index=1), resource_version="2"))
    assert cache.used() == (10, 46068, 100)
    assert cache.free("GPU-1")


# a thousand edits

SGPU = CHART["Metax-SGPU"]
DEVICES = [f"GPU-{index}" for index in range(4)]
NODES = (
    node(
        "n1",
        *(gpu(uuid, memory_mib=8000, index=index) for index, uuid in enumerate(DEVICES[:3])),
        annotations={
            SGPU.annotations.register: json.dumps(
                [
                    {
                        "uuid": uuid,
                        "bdf": uuid,
                        "model": "C500",
                        "totalDevCount": 4,
                        "totalCompute": 100,
                        "totalVRam": 8192,
                        "healthy": True,
                    }
                    for uuid in ("sgpu-0", "sgpu-1")
                ]
            )
        },
    ),
    node("n2", card("GPU-3")),
)
WANTED = (
    (gpus(1, memory=1000, cores=10),),
    (gpus(2, memory=500, cores=0), gpus(0)),
    (gpus(1, percent=20, cores=5),),
    (gpus(1, memory=2000, cores=0, kind=INIT), gpus(1, memory=1000, cores=0)),
    (gpus(1, memory=4000, kind=INIT),),
    (
        container(
            {SGPU.resources.count: 1, SGPU.resources.memory: "512Mi", SGPU.resources.cores: 10}
        ),
    ),
    (gpus(0),),
)


def identities_left_out(bookings):
    return {
        one.uid: structs.replace(
            one,
            charges=tuple(
                (
                    key,
                    tuple(
                        structs.replace(
                            charge,
                            partitions=tuple(
                                replace(part, instance=()) for part in charge.partitions
                            ),
                        )
                        for charge in charges
                    ),
                )
                for key, charges in one.charges
            ),
        )
        for one in bookings
    }


@settings(max_examples=20)
@given(rng=randoms(use_true_random=True))
def test_a_thousand_random_edits_change_no_booking(rng):
    """Nor does another pod wait because of them, nor is anything left when the pods have gone."""
    clock = Clock()
    cache = Store(CHART, Policies(), clock=clock, now=clock.now)
    for one in NODES:
        cache.nodes.upsert(one)
    alive, version = {}, 100
    uuids = [*DEVICES, "sgpu-0", "sgpu-1"]

    def place(name):
        asked = pod(
            *rng.choice(WANTED),
            name=name,
            annotations={"metax-tech.com/sgpu-qos-policy": "fixed-share"},
        )
        cache.pods.upsert(asked)
        choice = cache.filtering.assume(asked, ["n1", "n2"])
        if not isinstance(choice, Choice):
            return replace(asked, node_name="n1") if choice is None else None
        reservation = cache.bindings.start(asked.ref, choice.node)
        annotations = cache.bindings.prepare(reservation)
        cache.bindings.finish(reservation)
        return replace(
            asked, node_name=choice.node, annotations={**asked.annotations, **annotations}
        )

    for number in range(12):
        if (placed := place(f"p{number}")) is not None:
            cache.pods.upsert(placed)
            alive[placed.ref] = placed
    waiting = pod(gpus(1, memory=7000), name="waiting")
    cache.pods.upsert(waiting)
    before = identities_left_out(cache.view().bookings.values())
    assume(len(before) > 3)
    for _ in range(1000):
        version += 1
        target = rng.choice([*alive.values(), waiting])
        annotations = edited(
            rng, rng.choice((target.annotations, {}, {ASSIGNED_NODE: "n1"})), uuids
        )
        cache.pods.upsert(replace(target, annotations=annotations, resource_version=str(version)))
        if rng.random() < 0.01:
            for one in NODES:
                cache.nodes.upsert(replace(one, resource_version=str(version)))
        assert identities_left_out(cache.view().bookings.values()) == before
    assert cache.pods.edits_refused > 100
    for placed in alive.values():
        cache.pods.remove(placed)
    assert cache.view().used == {}
    assert all(
        usage.slots_used == usage.memory_used_mib == 0
        for usages in device_usage(cache).values()
        for usage in usages
    )
