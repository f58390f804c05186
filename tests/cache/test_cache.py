"""Reservations, Bindings with an unknown outcome, quotas, and many threads at once."""

import threading
from dataclasses import replace

import pytest

from hami.cache.cache import RESERVED_FOR, SLICE, Rejected
from hami.codec.mig import MigAllocation, render_mig_allocations
from hami.errors import MalformedInput
from hami.model import Partition
from hami.scheduling.decide import Refusal
from tests.builders import INIT, NVIDIA, SIDECAR, gpu, gpus, node, pod, quota
from tests.cache.caches import BOUND, Books, bound_to

ASKS = pod(gpus(2, memory=3000, cores=10))


def test_a_long_explanation_lets_other_filters_in():
    """Its reasons are of all nodes all the same, and each is named once."""
    served = []

    def filter_elsewhere():
        other = threading.Thread(target=lambda: served.append(books.place(pod(gpus(1, memory=10), name="other"))))
        other.start()
        other.join(10)

    books = Books(*(node(f"n{number}", gpu(f"GPU-{number}", memory_mib=8000)) for number in range(2 * SLICE + 1)),
                  let_others_in=filter_elsewhere)
    names = [*sorted(books.views()), "stranger"]
    answer = books.choose(pod(gpus(1, memory=9000)), names)
    assert isinstance(answer, Refusal) and served == ["n1"] * 2
    assert sorted(answer.unfit) == names[:-1] and answer.unknown == ("stranger",)


# promises

def test_a_reservation_says_what_the_binding_will_carry():
    books = Books()
    books.place(pod(gpus(1, memory=3000, cores=30)))
    reservation = books.reservation("uid-pod1")
    assert reservation.annotations == {
        "hami.io/vgpu-node": "n1", "hami.io/vgpu-time": str(books.time.unix()), "hami.io/bind-phase": "allocating",
        "hami.io/vgpu-devices-to-allocate": "GPU-1,NVIDIA,3000,30:;",
        "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,3000,30:;"}
    assert reservation.labels == {"hami.io/vgpu-node": "n1"} and reservation.locks_node
    books.time.seconds += 24
    binding = books.confirm(books.begin_bind(reservation.ref, "n1"))
    assert binding == {**reservation.annotations, "hami.io/bind-time": str(books.time.unix())}


def test_what_an_earlier_scheduler_has_allocated_is_overwritten_whole():
    partition = Partition(6, 1, "1g.5gb")
    places = render_mig_allocations([MigAllocation(container=0, device=0, gpu="GPU-m", partition=partition)])
    earlier = {"hami.io/vgpu-node": "earlier", "hami.io/vgpu-time": "1", "hami.io/vgpu-mig-allocations": places,
               NVIDIA.allocated: "GPU-m,NVIDIA,4864,15:;", NVIDIA.to_allocate: "GPU-m,NVIDIA,4864,15:;",
               "hami.io/dcu-devices-allocated": "DCU-0,DCU,1,1:;", "hami.io/bind-time": "1", "team": "a"}
    books = Books()
    asked = pod(gpus(1, memory=3000, cores=30), annotations=earlier)
    books.place(asked)
    binding = books.confirm(books.begin_bind(asked.ref, "n1"))
    assert binding["hami.io/vgpu-mig-allocations"] == "[]" and binding["hami.io/dcu-devices-allocated"] == ""
    assert "team" not in binding and binding["hami.io/bind-time"] == str(books.time.unix())
    books.pods.upsert(replace(asked, node_name="n1", resource_version="9", annotations={**earlier, **binding}))
    assert books.pods.unreadable() == [] and books.used("GPU-1") == (1, 3000, 30)


def test_containers_that_ask_for_nothing_keep_their_place():
    books = Books()
    books.place(pod(gpus(1, memory=10, cores=0, kind=INIT), gpus(0), gpus(1, memory=20, cores=0)))
    assert books.reservation("uid-pod1").annotations[NVIDIA.allocated] == "GPU-1,NVIDIA,10,0:;;GPU-1,NVIDIA,20,0:;"


def test_a_node_name_that_is_no_label_does_not_stand_in_one():
    books = Books(node("n" * 64, gpu()))
    assert books.place(pod(gpus(1, memory=1)), "n" * 64) == "n" * 64
    assert books.reservation("uid-pod1").labels == {}


def test_threads_that_filter_at_once_are_never_promised_the_same():
    books = Books()
    start, chosen = threading.Barrier(8), []

    def ask(number):
        start.wait(10)
        for turn in range(5):
            chosen.append(books.place(pod(gpus(1, memory=1500, cores=10), name=f"p{number}-{turn}")))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(chosen) == 40 and chosen.count("n1") == 10
    assert [books.used(uuid) for uuid in ("GPU-0", "GPU-1")] == [(5, 7500, 50)] * 2


def test_a_pod_that_asks_for_nothing_is_promised_nothing():
    assert Books().choose(pod(gpus(0)), ["n1"]) is None


def test_filtering_again_replaces_the_reservation():
    books = Books()
    for _ in range(3):
        assert books.place(ASKS) == "n1"
    assert books.used() == (1, 3000, 10) and books.reserved() == 1


def test_filtering_again_calls_a_waiting_bind_off():
    books = Books()
    books.place(ASKS)
    dropped = []
    books.on_dropped = dropped.append
    waiting = books.begin_bind(ASKS.ref, "n1")
    books.place(ASKS)
    assert not books.is_current(waiting) and dropped == ["uid-pod1"]
    with pytest.raises(Rejected, match="replaced or dropped"):
        books.confirm(waiting)


def test_filtering_again_in_vain_leaves_nothing_behind():
    books = Books()
    books.place(ASKS)
    assert isinstance(books.choose(pod(gpus(3)), ["n1"]), Refusal)
    assert books.free() and books.reserved() == 0


def test_filtering_again_with_garbage_leaves_nothing_behind():
    books = Books()
    books.place(ASKS)
    with pytest.raises(MalformedInput):
        books.choose(pod(gpus(1), annotations={"hami.io/device-scoring-weights": "x"}), ["n1"])
    assert books.free() and books.reserved() == 0


@pytest.mark.parametrize(("waited", "stands"), [(RESERVED_FOR - 1, True), (RESERVED_FOR, False)])
def test_a_reservation_that_is_not_bound_lapses(waited, stands):
    books = Books()
    books.place(ASKS)
    books.time.seconds += waited
    assert [r.ref.name for r in books.sweep()] == ([] if stands else ["pod1"])
    assert books.free() is not stands


def test_a_reservation_does_not_lapse_while_it_is_bound():
    books = Books()
    books.place(ASKS)
    books.begin_bind(ASKS.ref, "n1")
    books.time.seconds += 2 * RESERVED_FOR
    assert books.sweep() == [] and not books.free()


def test_a_bind_that_failed_leaves_the_reservation_its_time():
    books = Books()
    books.place(ASKS)
    books.time.seconds += RESERVED_FOR - 1
    books.give_up(books.begin_bind(ASKS.ref, "n1"), drop=False)
    assert books.reservation("uid-pod1") is not None
    books.time.seconds += 1
    assert len(books.sweep()) == 1 and books.free()


def test_a_bind_that_cannot_succeed_drops_the_reservation():
    books = Books()
    books.place(ASKS)
    books.give_up(books.begin_bind(ASKS.ref, "n1"), drop=True)
    assert books.reservation("uid-pod1") is None and books.free()


# binds that are refused

def test_a_bind_needs_a_reservation_on_that_node():
    books = Books()
    with pytest.raises(Rejected, match="has no reservation"):
        books.begin_bind(ASKS.ref, "n1")
    books.place(ASKS)
    with pytest.raises(Rejected, match="is reserved on node n1, not on n2"):
        books.begin_bind(ASKS.ref, "n2")
    books.begin_bind(ASKS.ref, "n1")
    with pytest.raises(Rejected, match="already being bound"):
        books.begin_bind(ASKS.ref, "n1")


@pytest.mark.parametrize("stage", ["posting", "bound", "seen bound"])
def test_a_pod_that_is_bound_or_about_to_be_is_not_filtered(stage):
    books = Books()
    books.place(ASKS)
    reservation = books.begin_bind(ASKS.ref, "n1")
    books.confirm(reservation)
    if stage != "posting":
        books.bound(reservation)
    if stage == "seen bound":
        books.pods.upsert(bound_to("pod1", reservation.annotations[NVIDIA.allocated], *ASKS.containers))
    with pytest.raises(Rejected, match="is being bound" if stage == "posting" else "already bound to node n1"):
        books.place(ASKS)
    assert books.used() == (1, 3000, 10)


def test_a_deleted_pod_is_promised_nothing():
    books = Books()
    books.pods.upsert(ASKS)
    books.pods.remove(ASKS)
    with pytest.raises(Rejected, match='pod "pod1" not found'):
        books.place(ASKS)
    assert books.free()


def test_a_pod_that_has_terminated_is_promised_nothing():
    books = Books()
    books.pods.upsert(pod(gpus(), phase="Failed"))
    with pytest.raises(Rejected, match="has terminated"):
        books.place(ASKS)


def test_deleting_a_pod_drops_its_reservation():
    books = Books()
    books.place(ASKS)
    books.pods.remove(ASKS)
    assert books.free() and books.reservation("uid-pod1") is None


def devices(*found):
    return lambda books: books.nodes.upsert(node("n1", *found, resource_version="9"))


@pytest.mark.parametrize(("change", "problem"), [
    (devices(gpu("GPU-0")), "gone or unhealthy"),
    (devices(gpu("GPU-0"), gpu("GPU-1", healthy=False)), "gone or unhealthy"),
    (lambda books: books.nodes.remove(node("n1")), "gone or unhealthy"),
    (lambda books: books.pods.upsert(bound_to("other", "GPU-1,NVIDIA,6000,0:;")), "taken by another pod")],
    ids=["device gone", "device unhealthy", "node gone", "device taken by another replica"])
def test_the_last_look_before_the_binding(change, problem):
    books = Books()
    books.place(ASKS)
    reservation = books.begin_bind(ASKS.ref, "n1")
    change(books)
    with pytest.raises(Rejected, match=problem):
        books.confirm(reservation)
    assert books.reservation("uid-pod1") is None


# Bindings in mark_unknown

def test_a_binding_in_doubt_stays_promised():
    books = Books()
    books.outcome_unknown(ASKS)
    books.time.seconds += 10 * RESERVED_FOR
    assert books.sweep() == [] and books.used() == (1, 3000, 10)


def test_a_binding_in_doubt_is_promised_again_and_nothing_else():
    books = Books(*(node(name, gpu(f"GPU-{name}")) for name in ("n1", "n2")))
    asked = pod(gpus(1, memory=3000, cores=10))
    reservation = books.outcome_unknown(asked)
    books.nodes.upsert(node("n3", gpu("better", memory_mib=3000)))
    assert books.place(asked, "n1", "n2", "n3") == "n1" and books.is_current(reservation)
    with pytest.raises(Rejected, match="not known whether it was bound to n1"):
        books.place(asked, "n2", "n3")


def test_a_binding_in_doubt_survives_a_last_look_that_fails():
    books = Books()
    books.outcome_unknown(ASKS)
    again = books.begin_bind(ASKS.ref, "n1")
    books.pods.upsert(bound_to("other", "GPU-1,NVIDIA,6000,0:;"))
    with pytest.raises(Rejected):
        books.confirm(again)
    books.give_up(again, drop=False)
    assert books.is_current(again)


def test_a_binding_in_doubt_is_looked_at_when_it_can_no_longer_come():
    books = Books()
    reservation = books.outcome_unknown(ASKS)
    assert books.unknown_bindings() == []
    books.time.seconds += RESERVED_FOR
    assert books.unknown_bindings() == [reservation]
    books.clear_unknown(reservation)
    assert books.free() and books.unknown_bindings() == []


@pytest.mark.parametrize("stage", ["waiting", "failed again", "bound"])
def test_a_binding_that_is_tried_again_is_not_dispelled_by_an_older_look(stage):
    books = Books()
    reservation = books.outcome_unknown(ASKS)
    books.time.seconds += RESERVED_FOR
    assert books.unknown_bindings() == [reservation]
    books.begin_bind(ASKS.ref, "n1")
    if stage == "failed again":
        books.give_up(reservation, drop=False)
    if stage == "bound":
        books.bound(reservation)
    books.clear_unknown(reservation)
    assert books.is_current(reservation) and not books.free()


def test_the_watch_ends_a_doubt():
    books = Books()
    books.outcome_unknown(ASKS)
    books.pods.upsert(bound_to("pod1", "GPU-1,NVIDIA,3000,10:GPU-0,NVIDIA,3000,10:;", *ASKS.containers))
    books.time.seconds += RESERVED_FOR
    assert books.unknown_bindings() == [] and books.reserved() == 0 and books.used() == (1, 3000, 10)


# what the watch shows

def test_once_seen_bound_the_annotations_count():
    books = Books()
    books.place(ASKS)
    books.bound(books.begin_bind(ASKS.ref, "n1"))
    books.pods.upsert(bound_to("pod1", "GPU-0,NVIDIA,700,7:;", *ASKS.containers))
    assert books.used() == (1, 700, 7) and books.used("GPU-1") == (0, 0, 0)


def test_a_pod_bound_elsewhere_is_booked_there():
    books = Books(node("n1", gpu("GPU-0")), node("n2", gpu("GPU-2")))
    asked = pod(gpus(1, memory=3000, cores=0))
    books.place(asked, "n1")
    waiting = books.begin_bind(asked.ref, "n1")
    books.pods.upsert(pod(gpus(), node_name="n2", resource_version="9",
                          annotations=BOUND | {NVIDIA.allocated: "GPU-2,NVIDIA,100,0:;"}))
    assert books.free() and books.used("GPU-2", "n2") == (1, 100, 0) and not books.is_current(waiting)


def test_a_pod_that_was_bound_and_is_missing_from_a_later_list_is_dropped():
    books = Books()
    books.place(ASKS)
    books.bound(books.begin_bind(ASKS.ref, "n1"))
    books.pods.prune(set(), started=books.time.seconds)
    assert not books.free(), "the list was asked for before the Binding was written"
    books.time.seconds += 1
    books.pods.prune(set(), started=books.time.seconds)
    assert books.free()


def test_a_reservation_of_a_pod_that_no_watch_has_shown_survives_a_list():
    books = Books()
    books.place(ASKS)
    books.time.seconds += 1
    books.pods.prune(set(), started=books.time.seconds)
    assert not books.free()


def test_a_filter_that_comes_before_the_pod_is_seen_is_not_undone_when_it_is():
    books = Books()
    books.place(ASKS)
    books.pods.upsert(ASKS)
    assert books.used() == (1, 3000, 10)


# quotas

def test_the_lowest_of_several_quotas_holds():
    books = Books()
    for name, limit in (("a", 5000), ("b", 2000)):
        books.quotas.upsert(quota(name, gpumem=limit))
    assert books.place(pod(gpus(1, memory=2001, cores=0))) is None
    books.quotas.remove(quota("b"))
    assert books.place(pod(gpus(1, memory=5000, cores=0))) == "n1"
    assert books.place(pod(gpus(1, memory=5001, cores=0))) is None


def test_filtering_again_does_not_count_the_pod_twice():
    books = Books()
    books.quotas.upsert(quota(gpumem=3000, gpucores=30))
    for _ in range(3):
        assert books.place(pod(gpus(1, memory=3000, cores=30))) == "n1"
    assert books.place(pod(gpus(1, memory=1, cores=0), name="other")) is None


def test_a_quota_counts_init_containers_as_the_reservation_does():
    books = Books()
    books.quotas.upsert(quota(gpumem=6000))
    assert books.place(pod(gpus(1, memory=6000, cores=0, kind=INIT), gpus(1, memory=3000, cores=0),
                           gpus(1, memory=3000, cores=0))) == "n1"
    assert books.place(pod(gpus(1, memory=3001, cores=0, kind=INIT), gpus(1, memory=3001, cores=0),
                           gpus(1, memory=3000, cores=0))) is None


def test_a_quota_counts_sidecars_beside_everything():
    books = Books()
    books.quotas.upsert(quota(gpumem=6000))
    assert books.place(pod(gpus(1, memory=3000, cores=0, kind=SIDECAR), gpus(1, memory=3001, cores=0))) is None


def test_usage_of_a_namespace_is_given_back():
    books = Books()
    books.pods.upsert(bound_to("a", "GPU-0,NVIDIA,500,5:;"))
    assert books.namespace_usage() == {("default", "NVIDIA"): (500, 5)}
    books.pods.remove(bound_to("a", ""))
    assert books.namespace_usage() == {}


@pytest.mark.parametrize(("memory", "fits"), [(2000, True), (2001, False)])
def test_covers_before_devices_are_known(memory, fits):
    books = Books()
    books.quotas.upsert(quota(gpumem=2000))
    assert books.covers("default", pod(gpus(1, memory=memory))) is fits
    assert books.covers("other", pod(gpus(1, memory=memory)))


def test_a_pod_that_asks_for_nothing_needs_no_quota():
    books = Books()
    books.pods.upsert(bound_to("a", "GPU-0,NVIDIA,500,5:;"))
    books.quotas.upsert(quota(gpumem=100))
    assert books.covers("default", pod(gpus(0))) and not books.covers("default", pod(gpus(1, memory=1)))


# simulation

def test_a_simulation_reserves_nothing_and_sees_an_empty_cluster():
    books = Books()
    books.pods.upsert(bound_to("a", "GPU-0,NVIDIA,8000,100:;"))
    choice, refusal = books.simulate(pod(gpus(1, memory=8000)), [node("m", gpu("GPU-0", memory_mib=8000)), node("x")])
    assert choice.node == "m" and refusal.unknown == ("x",)
    assert books.reserved() == 0 and "m" not in books.views()
