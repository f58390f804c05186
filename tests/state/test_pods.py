"""Pods as the watch delivers them: late, twice, out of order, unreadable, forged, assigned by another scheduler."""

import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from hami.codec import allocation
from hami.codec.keys import ASSIGNED_NODE, BIND_PHASE, NODE_LOCK
from hami.state.pods import DECIDED, FOREIGN_TTL_S
from hami.state.rooms import free_cpu
from hami.state.store import Store
from hami.state.view import Policies
from hami.vendors.spec import Annotations, Catalog, Decision, Resources, Vendor
from testing.builders import APP, INIT, NVIDIA, container, gpu, gpus, node, pod
from testing.cases import cases
from testing.replicas import Clock
from testing.stores import BOUND, SmallStore, bound_to

ALLOCATION = "GPU-0,NVIDIA,3000,30:;"
CONTAINERS = (gpus(1, memory=3000, cores=30),)


def assigned_elsewhere(cache, age=0, text=ALLOCATION, containers=CONTAINERS, **fields):
    """An unbound pod that another scheduler has assigned *age* seconds ago."""
    return pod(
        *containers,
        annotations={
            ASSIGNED_NODE: "n1",
            "hami.io/vgpu-time": str(int(cache.time.unix() - age)),
            NVIDIA.annotations.allocated: text,
            NVIDIA.annotations.to_allocate: text,
        },
        **fields,
    )


LONG = "".join("".join(f"GPU-{number},NVIDIA,1,1:" for number in range(8)) + ";" for _ in range(8))


@cases("text", ("readable", LONG), ("unreadable", f"{LONG}GPU-0,NVIDIA,x,1:;"))
@cases("first", ("apps", APP), ("with an init container", INIT))
def test_long_allocations_are_parsed_once_and_not_under_the_lock(monkeypatch, text, first):
    cache, parsed, parse = SmallStore(), [], allocation._shares
    monkeypatch.setattr(
        allocation,
        "_shares",
        lambda *args: parsed.append(is_held(cache.pods._lock)) or parse(*args),
    )
    allocation._recent_shares.cache_clear()
    containers = [gpus(8, memory=1, kind=first), *[gpus(8, memory=1)] * 7]
    for version in ("50", "51"):
        cache.pods.upsert(bound_to("a", text, *containers, version=version))
    assert parsed == [False]
    assert not cache.free()


def is_held(lock):
    """Reports whether another thread would have to wait for *lock*."""

    def take():
        if lock.acquire(blocking=False):
            lock.release()
            return False
        return True

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(take).result()


# CPU and memory


CPU = {"requests": {"cpu": "2"}}
ELSE = container({}, **CPU)
ASKS = container({"nvidia.com/gpu": 1}, **CPU)


@cases(
    "versions, left",
    ("a pod without devices", [(ELSE, {})], 6000),
    ("one that names devices", [(ELSE, {"text": ALLOCATION})], 6000),
    ("one that names devices later", [(ELSE, {}), (ELSE, {"text": ALLOCATION})], 6000),
    (
        "one that has named devices and terminated",
        [(ELSE, {}), (ELSE, {"text": ALLOCATION, "phase": "Succeeded"})],
        8000,
    ),
    ("one that requests devices and holds none", [(ASKS, {})], 6000),
    ("one that holds devices", [(ASKS, {"text": ALLOCATION})], 6000),
    ("one that holds devices later", [(ASKS, {}), (ASKS, {"text": ALLOCATION})], 6000),
    (
        "one that has held devices and terminated",
        [(ASKS, {"text": ALLOCATION}), (ASKS, {"phase": "Failed"})],
        8000,
    ),
)
def test_each_bound_pod_takes_cpu_once(versions, left):
    cache = SmallStore(node("n1", gpu("GPU-0"), allocatable={"cpu": "8"}))
    for number, (asked, fields) in enumerate(versions):
        cache.pods.upsert(seen_bound(asked, version=str(50 + number), **fields))
    view = cache.view()
    assert free_cpu(view.table, "n1") == left


def seen_bound(asked, version, text="", **fields):
    annotations = BOUND | {NVIDIA.annotations.allocated: text} if text else {}
    return pod(asked, node_name="n1", resource_version=version, annotations=annotations, **fields)


# order


def test_an_older_version_of_a_pod_is_ignored():
    cache = SmallStore()
    cache.pods.upsert(bound_to("a", ALLOCATION, version="50"))
    cache.pods.upsert(bound_to("a", "GPU-0,NVIDIA,1,1:;", version="49"))
    assert cache.used() == (1, 3000, 30)


def test_a_repeated_event_is_booked_once():
    cache = SmallStore()
    for _ in range(3):
        cache.pods.upsert(bound_to("a", ALLOCATION))
    assert cache.used() == (1, 3000, 30)


def test_a_deleted_pod_stays_deleted():
    cache = SmallStore()
    cache.pods.upsert(bound_to("a", ALLOCATION, version="50"))
    cache.pods.remove(bound_to("a", ALLOCATION, version="60"))
    cache.pods.upsert(bound_to("a", ALLOCATION, version="55"))
    assert cache.free()
    assert cache.pods.is_deleted("uid-a")
    assert cache.pods.get("uid-a") is None


def test_a_later_pod_of_the_same_name_is_another_pod():
    cache = SmallStore()
    cache.pods.upsert(bound_to("a", ALLOCATION, uid="old", version="50"))
    cache.pods.upsert(bound_to("a", ALLOCATION, uid="new", version="70"))
    cache.pods.upsert(bound_to("a", ALLOCATION, uid="old", version="60"))
    assert cache.pods.named("default", "a").ref.uid == "new"
    cache.pods.remove(bound_to("a", ALLOCATION, uid="old"))
    assert cache.used() == (1, 3000, 30)
    assert cache.pods.named("default", "a").ref.uid == "new"


@pytest.mark.parametrize("text", ["²", "9" * 5000, "-1", "soon", ""])
def test_a_malformed_time_is_ignored(text):
    cache = SmallStore()
    cache.pods.upsert(
        pod(
            *CONTAINERS,
            annotations={
                ASSIGNED_NODE: "n1",
                "hami.io/vgpu-time": text,
                "hami.io/bind-time": text,
                NVIDIA.annotations.allocated: ALLOCATION,
            },
        )
    )
    assert cache.free()
    assert cache.pods.get("uid-pod1").assigned_at == 0


def test_the_vendors_of_an_unbound_pod_are_recorded():
    cache = SmallStore()
    cache.pods.upsert(assigned_elsewhere(cache))
    assert cache.pods.get("uid-pod1").vendors == ("NVIDIA",)
    cache.pods.upsert(assigned_elsewhere(cache, node_name="n1", resource_version="9"))
    assert cache.pods.get("uid-pod1").vendors == ()


# lists


def test_objects_that_are_missing_from_a_list_are_removed():
    cache = SmallStore()
    cache.pods.upsert(bound_to("a", ALLOCATION))
    cache.pods.upsert(bound_to("b", ALLOCATION))
    cache.time.seconds += 1
    cache.pods.prune({"uid-b"}, started=cache.time.seconds)
    assert cache.used() == (1, 3000, 30)
    assert cache.pods.is_deleted("uid-a")


def test_a_pod_that_was_seen_after_the_list_began_is_kept():
    cache = SmallStore()
    started = cache.time.seconds
    cache.pods.upsert(bound_to("a", ALLOCATION))
    cache.pods.prune(set(), started)
    assert cache.used() == (1, 3000, 30)
    assert not cache.pods.is_deleted("uid-a")


# life cycle


def test_a_terminating_pod_keeps_its_devices():
    cache = SmallStore()
    cache.pods.upsert(bound_to("a", ALLOCATION, deleting=True))
    assert cache.used() == (1, 3000, 30)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_terminated_pod_releases_its_devices(phase):
    cache = SmallStore()
    cache.pods.upsert(bound_to("a", ALLOCATION))
    cache.pods.upsert(bound_to("a", ALLOCATION, version="51", phase=phase))
    assert cache.free()


def test_finished_init_containers_release_their_devices():
    cache = SmallStore()
    text, containers = "GPU-0,NVIDIA,7000,40:;GPU-0,NVIDIA,3000,10:;", (gpus(kind=INIT), gpus())
    cache.pods.upsert(bound_to("a", text, *containers))
    assert cache.used() == (1, 7000, 40)
    cache.pods.upsert(bound_to("a", text, *containers, version="51", init_done=True))
    assert cache.used() == (1, 3000, 10)


def test_two_uids_never_share_a_booking():
    cache = SmallStore()
    for uid in ("a", "b"):
        cache.pods.upsert(bound_to("same", ALLOCATION, uid=uid))
    assert cache.used() == (2, 6000, 60)


def test_one_uid_is_booked_where_it_is_bound():
    cache = SmallStore(
        node("n1", gpu("GPU-0")), node("n2", gpu("GPU-0")), foreign_reservations=True
    )
    cache.pods.upsert(assigned_elsewhere(cache, resource_version="1"))
    assert cache.used(node="n1") == (1, 3000, 30)
    cache.pods.upsert(assigned_elsewhere(cache, node_name="n2", resource_version="2"))
    assert cache.used(node="n1") == (0, 0, 0)
    assert cache.used(node="n2") == (1, 3000, 30)


# unreadable allocations


def test_devices_in_an_unreadable_allocation_count_as_fully_used():
    cache = SmallStore()
    cache.pods.upsert(bound_to("a", "GPU-0,NVIDIA,3000:;"))
    assert cache.used() == (10, 8000, 100)
    assert cache.used("GPU-1") == (0, 0, 0)
    assert "missing fields" in cache.pods.get("uid-a").problems[0]


@pytest.mark.parametrize("bound", [True, False])
def test_an_unreadable_allocation_also_counts_for_devices_registered_later(bound):
    cache = SmallStore(node("n1"), foreign_reservations=True)
    broken = "GPU-0,NVIDIA,3000:;"
    cache.pods.upsert(bound_to("a", broken) if bound else assigned_elsewhere(cache, text=broken))
    cache.nodes.upsert(node("n1", gpu("GPU-0"), resource_version="2"))
    assert cache.used() == (10, 46068, 100)


def test_a_repaired_allocation_is_believed_after_a_restart():
    cache = SmallStore()
    cache.pods.upsert(bound_to("a", "GPU-0,NVIDIA"))
    cache.pods.upsert(bound_to("a", ALLOCATION, version="51"))
    assert cache.used() == (10, 8000, 100)
    assert len(cache.pods.get("uid-a").problems) == 1
    restarted = SmallStore()
    restarted.pods.upsert(bound_to("a", ALLOCATION, version="51"))
    assert restarted.used() == (1, 3000, 30)
    assert restarted.pods.get("uid-a").problems == ()


# reservations of other schedulers


@cases(
    "age, counts",
    (0, True),
    (FOREIGN_TTL_S - 1, True),
    (FOREIGN_TTL_S, False),
    (10 * FOREIGN_TTL_S, False),
    (-10 * FOREIGN_TTL_S, False),
)
def test_a_foreign_reservation_counts_while_it_is_fresh(age, counts):
    cache = SmallStore(foreign_reservations=True)
    cache.pods.upsert(assigned_elsewhere(cache, age))
    assert cache.free() is not counts


@pytest.mark.parametrize("text", [ALLOCATION, "GPU-0 GPU-1"])
def test_a_foreign_reservation_counts_only_during_an_upgrade(text):
    cache = SmallStore()
    cache.pods.upsert(assigned_elsewhere(cache, text=text))
    assert cache.free()
    assert cache.free("GPU-1")
    assert cache.pods.unreadable() == []


def test_a_foreign_reservation_expires():
    cache = SmallStore(foreign_reservations=True)
    cache.pods.upsert(assigned_elsewhere(cache))
    assert not cache.free()
    cache.time.seconds += FOREIGN_TTL_S
    cache.expire()
    assert cache.free()


@pytest.mark.parametrize("hours", [1, -1])
def test_a_time_of_day_that_jumps_ends_no_foreign_reservation_and_keeps_none(hours):
    cache = SmallStore(foreign_reservations=True)
    cache.pods.upsert(assigned_elsewhere(cache))
    cache.time.jump(timedelta(hours=hours))
    cache.time.seconds += FOREIGN_TTL_S - 1
    cache.expire()
    assert not cache.free()
    cache.time.seconds += 1
    cache.expire()
    assert cache.free()


def test_the_age_of_a_binding_counts_from_when_it_was_first_seen():
    cache = SmallStore()
    cache.pods.prune(set(), cache.time())
    stuck = BOUND | {
        BIND_PHASE: "allocating",
        "hami.io/bind-time": "1",
        NVIDIA.annotations.allocated: ALLOCATION,
        NVIDIA.annotations.to_allocate: ALLOCATION,
    }
    for version in ("1", "2"):
        cache.pods.upsert(pod(gpus(), node_name="n1", annotations=stuck, resource_version=version))
        cache.time.seconds += 100
    record = cache.pods.get("uid-pod1")
    assert record.bound.proven_age(record.bound_at, cache.time()) == 200


def test_a_foreign_reservation_ends_when_we_filter_the_pod():
    cache = SmallStore(foreign_reservations=True)
    asked = assigned_elsewhere(cache, resource_version="1")
    cache.pods.upsert(asked)
    assert not cache.free()
    assert cache.filtering.assume(asked, []).__class__.__name__ == "Refusal"
    assert cache.free()
    cache.pods.upsert(assigned_elsewhere(cache, resource_version="2", phase="Pending"))
    assert cache.free(), "the status that kube-scheduler writes brings the old annotations along"


@pytest.mark.parametrize("end", ["lapses", "we decide"])
def test_an_unreadable_foreign_reservation_is_reported_only_while_it_counts(end):
    cache = SmallStore(foreign_reservations=True)
    asked = assigned_elsewhere(cache, text="GPU-0,NVIDIA,3000:;")
    cache.pods.upsert(asked)
    assert cache.pods.unreadable() == [asked.ref]
    assert cache.used() == (10, 8000, 100)
    if end == "lapses":
        cache.time.seconds += FOREIGN_TTL_S
        cache.expire()
    else:
        cache.filtering.assume(asked, [])
    assert cache.free()
    assert cache.pods.unreadable() == []
    assert cache.pods.get(asked.ref.uid).problems == ()


@cases("fields", ("unbound", {}), ("bound", {"node_name": "n1"}))
@pytest.mark.parametrize("text", [ALLOCATION, "GPU-0,NVIDIA"])
def test_the_annotations_of_a_pod_that_requests_no_device_are_ignored(text, fields):
    cache = SmallStore(foreign_reservations=True)
    cache.pods.upsert(assigned_elsewhere(cache, text=text, containers=(gpus(0),), **fields))
    assert cache.free()
    assert cache.pods.unreadable() == []


def test_our_reservation_overrides_old_annotations():
    cache = SmallStore(foreign_reservations=True)
    cache.place(pod(gpus(1, memory=100, cores=1)))
    cache.pods.upsert(assigned_elsewhere(cache, text="GPU-0,NVIDIA,8000,100:;"))
    assert cache.used("GPU-1") == (1, 100, 1)
    assert cache.free()


# settled pods

ALLOCATING, LABEL = BOUND | {BIND_PHASE: "allocating"}, {ASSIGNED_NODE: "n1"}
DEVICES = {NVIDIA.annotations.allocated: ALLOCATION}


@cases(
    "fields, settled",
    ("unbound", {}, False),
    ("without us", {"node_name": "n1"}, True),
    ("label missing", {"node_name": "n1", "annotations": BOUND}, False),
    ("done", {"node_name": "n1", "annotations": BOUND, "labels": {ASSIGNED_NODE: "n1"}}, True),
    (
        "allocating",
        {
            "node_name": "n1",
            "annotations": ALLOCATING | DEVICES | {NVIDIA.annotations.to_allocate: ALLOCATION},
            "labels": LABEL,
        },
        False,
    ),
    (
        "of a lock-free vendor beside another",
        {"node_name": "n1", "annotations": ALLOCATING | DEVICES, "labels": LABEL},
        True,
    ),
    (
        "of a vendor without bind phase",
        {"node_name": "n1", "annotations": ALLOCATING, "labels": LABEL},
        True,
    ),
    ("over", {"phase": "Succeeded"}, True),
)
def test_pods_that_are_settled(fields, settled):
    cache = SmallStore()
    cache.pods.upsert(pod(gpus(), **fields))
    assert [record.ref.name for record in cache.pods.unsettled()] == ([] if settled else ["pod1"])


@cases(
    "lock, settled",
    ("HAMi's", NODE_LOCK, False),
    ("its own", "x.io/lock", True),
    ("none", "", True),
)
def test_only_pods_of_vendors_with_hamis_lock_are_allocating(lock, settled):
    """A pod of Cambricon's that pulls its image for minutes is not one that was never given its devices."""
    vendor = Vendor(
        key="X",
        resources=Resources(count="x.io/card"),
        annotations=Annotations(allocated="hami.io/x-devices-allocated", lock=lock),
        decision=Decision(inventory=lambda vendor, node: None),
    )
    cache = Store(Catalog([vendor]), Policies(), clock=(time := Clock()), now=time.now)
    cache.pods.upsert(
        pod(
            container({"x.io/card": "1"}),
            node_name="n1",
            labels=LABEL,
            annotations=ALLOCATING | {vendor.annotations.allocated: "x0,X,0,0:;"},
        )
    )
    assert [record.allocating for record in cache.pods.by_uid().values()] == [not settled]


def test_a_pod_without_devices_is_not_recorded():
    cache = SmallStore()
    cache.pods.upsert(pod(gpus(0)))
    assert cache.pods.by_uid() == {}


def test_a_pod_that_is_gone_is_not_kept_where_nobody_looks_at_those_that_come():
    """As in the dashboard: tenants choose how large the annotations of their pods are."""
    cache, waiting = SmallStore(), pod(gpus(1))
    references = sys.getrefcount(waiting)
    cache.pods.upsert(waiting)
    assert sys.getrefcount(waiting) > references
    cache.pods.remove(waiting)
    assert sys.getrefcount(waiting) == references


def test_pods_whose_coming_and_going_a_list_swallowed_are_forgotten():
    cache = SmallStore()
    for number in range(5):
        cache.filtering.assume(pod(gpus(9), name=f"p{number}"), ["n1"])
    cache.pods.upsert(pod(gpus(1), name="kept"))
    cache.filtering.assume(pod(gpus(1), name="kept"), ["n1"])
    cache.pods.prune({"uid-kept"}, cache.time())
    assert list(cache.pods._decided) == ["uid-kept"]


def test_few_pods_that_the_watch_does_not_show_are_remembered_as_filtered():
    """Whoever may call /filter can name any."""
    cache = SmallStore()
    for number in range(DECIDED + 10):
        cache.pods.take_over(f"uid-{number}")
    assert len(cache.pods._decided) == DECIDED
    assert next(reversed(cache.pods._decided)) == f"uid-{DECIDED + 9}"
