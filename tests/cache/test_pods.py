"""The pods as the watch shows them: late, twice, out of order, unreadable, forged, promised by another scheduler."""

import pytest

from hami.cache.cache import Cache, Policies
from hami.cache.pods import FOREIGN_TTL_S
from hami.codec.keys import ASSIGNED_NODE, BIND_PHASE, NODE_LOCK
from hami.vendors.spec import Catalog, Vendor
from tests.builders import INIT, NVIDIA, SIDECAR, container, gpu, gpus, node, pod
from tests.cache.caches import BOUND, SmallCache, bound_to
from tests.world import Clock

ALLOCATION = "GPU-0,NVIDIA,3000,30:;"
CONTAINERS = (gpus(1, memory=3000, cores=30),)


def promised(cache, age=0, text=ALLOCATION, containers=CONTAINERS, **fields):
    """An unbound pod on which another scheduler has written an assignment *age* seconds ago."""
    return pod(*containers, annotations={ASSIGNED_NODE: "n1", "hami.io/vgpu-time": str(int(cache.time.unix() - age)),
                                         NVIDIA.allocated: text, NVIDIA.to_allocate: text}, **fields)


# order

def test_what_is_older_than_what_is_known_does_not_count():
    cache = SmallCache()
    cache.pods.upsert(bound_to("a", ALLOCATION, version="50"))
    cache.pods.upsert(bound_to("a", "GPU-0,NVIDIA,1,1:;", version="49"))
    assert cache.used() == (1, 3000, 30)


def test_what_comes_twice_counts_once():
    cache = SmallCache()
    for _ in range(3):
        cache.pods.upsert(bound_to("a", ALLOCATION))
    assert cache.used() == (1, 3000, 30)


def test_what_is_deleted_stays_deleted():
    cache = SmallCache()
    cache.pods.upsert(bound_to("a", ALLOCATION, version="50"))
    cache.pods.remove(bound_to("a", ALLOCATION, version="60"))
    cache.pods.upsert(bound_to("a", ALLOCATION, version="55"))
    assert cache.free() and cache.pods.is_deleted("uid-a") and cache.pods.get("uid-a") is None


def test_a_later_pod_of_the_name_is_another_one():
    cache = SmallCache()
    cache.pods.upsert(bound_to("a", ALLOCATION, uid="old", version="50"))
    cache.pods.upsert(bound_to("a", ALLOCATION, uid="new", version="70"))
    cache.pods.upsert(bound_to("a", ALLOCATION, uid="old", version="60"))
    assert cache.pods.named("default", "a").ref.uid == "new"
    cache.pods.remove(bound_to("a", ALLOCATION, uid="old"))
    assert cache.used() == (1, 3000, 30) and cache.pods.named("default", "a").ref.uid == "new"


@pytest.mark.parametrize("text", ["²", "9" * 5000, "-1", "soon", ""])
def test_what_anybody_writes_into_a_time_stops_nothing(text):
    cache = SmallCache()
    cache.pods.upsert(pod(*CONTAINERS, annotations={ASSIGNED_NODE: "n1", "hami.io/vgpu-time": text,
                                                    "hami.io/bind-time": text, NVIDIA.allocated: ALLOCATION}))
    assert cache.free() and cache.pods.get("uid-pod1").assigned_at == 0


def test_whose_devices_were_promised_is_known_until_the_pod_is_bound():
    cache = SmallCache()
    cache.pods.upsert(promised(cache))
    assert cache.pods.get("uid-pod1").vendors == ("NVIDIA",)
    cache.pods.upsert(promised(cache, node_name="n1", resource_version="9"))
    assert cache.pods.get("uid-pod1").vendors == ()


# lists

def test_what_a_list_does_not_show_is_gone():
    cache = SmallCache()
    cache.pods.upsert(bound_to("a", ALLOCATION))
    cache.pods.upsert(bound_to("b", ALLOCATION))
    cache.time.seconds += 1
    cache.pods.prune({"uid-b"}, started=cache.time.seconds)
    assert cache.used() == (1, 3000, 30) and cache.pods.is_deleted("uid-a")


def test_a_pod_seen_while_the_list_was_on_its_way_is_not_buried():
    cache = SmallCache()
    started = cache.time.seconds
    cache.pods.upsert(bound_to("a", ALLOCATION))
    cache.pods.prune(set(), started)
    assert cache.used() == (1, 3000, 30) and not cache.pods.is_deleted("uid-a")


# life cycle

def test_a_terminating_pod_keeps_its_devices_also_at_start():
    cache = SmallCache()
    cache.pods.upsert(bound_to("a", ALLOCATION, deleting=True))
    assert cache.used() == (1, 3000, 30)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_terminated_pod_gives_its_devices_back(phase):
    cache = SmallCache()
    cache.pods.upsert(bound_to("a", ALLOCATION))
    cache.pods.upsert(bound_to("a", ALLOCATION, version="51", phase=phase))
    assert cache.free()


@pytest.mark.parametrize(("containers", "text", "before", "after"), [
    ((gpus(kind=INIT), gpus()), "GPU-0,NVIDIA,7000,40:;GPU-0,NVIDIA,3000,10:;", (1, 7000, 40), (1, 3000, 10)),
    ((gpus(0, kind=INIT), gpus()), ";GPU-0,NVIDIA,3000,10:;", (1, 3000, 10), (1, 3000, 10)),
    ((gpus(0, kind=INIT), gpus()), "GPU-0,NVIDIA,3000,10:;", (1, 3000, 10), (1, 3000, 10)),
    ((gpus(kind=SIDECAR), gpus()), "GPU-0,NVIDIA,500,5:;GPU-0,NVIDIA,3000,10:;", (2, 3500, 15), (2, 3500, 15))],
    ids=["init shrinks", "plain init", "places lost by upstream", "sidecar stays"])
def test_what_init_containers_took_is_given_back_when_they_are_done(containers, text, before, after):
    cache = SmallCache()
    cache.pods.upsert(bound_to("a", text, *containers))
    assert cache.used() == before
    cache.pods.upsert(bound_to("a", text, *containers, version="51", init_done=True))
    assert cache.used() == after


def test_changed_annotations_of_a_bound_pod_are_read_again():
    cache = SmallCache()
    cache.pods.upsert(bound_to("a", ALLOCATION))
    cache.pods.upsert(bound_to("a", "GPU-1,NVIDIA,1000,0:;", version="51"))
    assert cache.free() and cache.used("GPU-1") == (1, 1000, 0)


def test_two_uids_never_share_a_booking():
    cache = SmallCache()
    for uid in ("a", "b"):
        cache.pods.upsert(bound_to("same", ALLOCATION, uid=uid))
    assert cache.used() == (2, 6000, 60)


def test_one_uid_is_booked_where_it_is_bound():
    cache = SmallCache(node("n1", gpu("GPU-0")), node("n2", gpu("GPU-0")))
    cache.pods.upsert(promised(cache, resource_version="1"))
    assert cache.used(node="n1") == (1, 3000, 30)
    cache.pods.upsert(promised(cache, node_name="n2", resource_version="2"))
    assert cache.used(node="n1") == (0, 0, 0) and cache.used(node="n2") == (1, 3000, 30)


# what cannot be read

def test_what_cannot_be_read_counts_as_taken_whole():
    cache = SmallCache()
    cache.pods.upsert(bound_to("a", "GPU-0,NVIDIA,3000:;"))
    assert cache.used() == (10, 8000, 100) and cache.used("GPU-1") == (0, 0, 0)
    assert "missing fields" in cache.pods.get("uid-a").problems[0]


@pytest.mark.parametrize("bound", [True, False])
def test_what_cannot_be_read_is_held_against_devices_that_come_later(bound):
    cache = SmallCache(node("n1"))
    broken = "GPU-0,NVIDIA,3000:;"
    cache.pods.upsert(bound_to("a", broken) if bound else promised(cache, text=broken))
    cache.nodes.upsert(node("n1", gpu("GPU-0"), resource_version="2"))
    assert cache.used() == (10, 46068, 100)


def test_what_can_be_read_again_counts_as_it_says():
    cache = SmallCache()
    cache.pods.upsert(bound_to("a", "GPU-0,NVIDIA"))
    cache.pods.upsert(bound_to("a", ALLOCATION, version="51"))
    cache.nodes.upsert(node("n1", gpu("GPU-0"), resource_version="2"))
    assert cache.used() == (1, 3000, 30) and cache.pods.get("uid-a").problems == ()


# promises of other schedulers

@pytest.mark.parametrize(("age", "counts"), [(0, True), (FOREIGN_TTL_S - 1, True), (FOREIGN_TTL_S, False),
                                             (10 * FOREIGN_TTL_S, False), (-10 * FOREIGN_TTL_S, False)])
def test_another_schedulers_promise_counts_while_it_is_fresh(age, counts):
    cache = SmallCache()
    cache.pods.upsert(promised(cache, age))
    assert cache.free() is not counts


def test_another_schedulers_promise_lapses():
    cache = SmallCache()
    cache.pods.upsert(promised(cache))
    cache.time.seconds += FOREIGN_TTL_S
    cache.expire()
    assert cache.free()


def test_another_schedulers_promise_ends_when_we_decide_on_the_pod():
    cache = SmallCache()
    asked = promised(cache, resource_version="1")
    cache.pods.upsert(asked)
    assert cache.assume(asked, []).__class__.__name__ == "Refusal"
    assert cache.free()
    cache.pods.upsert(promised(cache, resource_version="2", phase="Pending"))
    assert cache.free(), "the status that kube-scheduler writes brings the old annotations along"


@pytest.mark.parametrize("end", ["lapses", "we decide"])
def test_a_promise_that_cannot_be_read_is_complained_of_no_longer_than_it_counts(end):
    cache = SmallCache()
    asked = promised(cache, text="GPU-0,NVIDIA,3000:;")
    cache.pods.upsert(asked)
    assert cache.pods.unreadable() == [asked.ref] and cache.used() == (10, 8000, 100)
    if end == "lapses":
        cache.time.seconds += FOREIGN_TTL_S
        cache.expire()
    else:
        cache.assume(asked, [])
    assert cache.free() and cache.pods.unreadable() == [] and cache.pods.get(asked.ref.uid).problems == ()


def test_another_schedulers_promise_to_a_pod_that_asks_for_nothing_is_forged():
    cache = SmallCache()
    cache.pods.upsert(promised(cache, containers=(gpus(0),)))
    assert cache.free()


def test_our_own_reservation_does_not_give_way_to_old_annotations():
    cache = SmallCache()
    cache.place(pod(gpus(1, memory=100, cores=1)))
    cache.pods.upsert(promised(cache, text="GPU-0,NVIDIA,8000,100:;"))
    assert cache.used("GPU-1") == (1, 100, 1) and cache.free()


# what is waited for

ALLOCATING, LABEL = BOUND | {BIND_PHASE: "allocating"}, {ASSIGNED_NODE: "n1"}


@pytest.mark.parametrize(("fields", "settled"), [
    ({}, False), ({"node_name": "n1"}, True),
    ({"node_name": "n1", "annotations": BOUND}, False),
    ({"node_name": "n1", "annotations": BOUND, "labels": {ASSIGNED_NODE: "n1"}}, True),
    ({"node_name": "n1", "annotations": ALLOCATING | {NVIDIA.allocated: ALLOCATION}, "labels": LABEL}, False),
    ({"node_name": "n1", "annotations": ALLOCATING, "labels": LABEL}, True),
    ({"phase": "Succeeded"}, True)],
    ids=["unbound", "without us", "label missing", "done", "allocating", "of a vendor whose agent never says", "over"])
def test_what_a_pod_waits_for(fields, settled):
    cache = SmallCache()
    cache.pods.upsert(pod(gpus(), **fields))
    assert [record.ref.name for record in cache.pods.unsettled()] == ([] if settled else ["pod1"])


@pytest.mark.parametrize(("lock", "settled"), [(NODE_LOCK, False), ("x.io/lock", True), ("", True)],
                         ids=["HAMi's", "its own", "none"])
def test_only_agents_that_know_hamis_lock_say_that_they_are_done(lock, settled):
    """A pod of Cambricon's that pulls its image for minutes is not one that was never given its devices."""
    vendor = Vendor(key="X", count="x.io/card", allocated="hami.io/x-devices-allocated", lock=lock,
                    inventory=lambda vendor, node: None)
    cache = Cache(Catalog([vendor]), Policies(), clock=(time := Clock()), now=time.now)
    cache.pods.upsert(pod(container({"x.io/card": "1"}), node_name="n1", labels=LABEL,
                          annotations=ALLOCATING | {vendor.allocated: "x0,X,0,0:;"}))
    assert [record.allocating for record in cache.pods.all()] == [not settled]


def test_a_pod_that_has_nothing_to_do_with_devices_is_not_remembered():
    cache = SmallCache()
    cache.pods.upsert(pod(gpus(0)))
    assert cache.pods.all() == []
