"""Stranded devices: what is free, but of no use to the usual pods, by cause."""

import random

import numpy
import pytest
from hypothesis import given
from hypothesis.strategies import integers
from pytest import param

from hami.scheduling.room import UsualPods
from hami.scheduling.stranded import FreeDevices, free_devices
from hami.scheduling.usual_pods import UsualPod
from testing.builders import cluster, usage
from testing.seeds import some_usages

A_LOT = 10**6


def free_of(kinds, milli_cpu=A_LOT, vendors=("NVIDIA",), **nodes):
    """What is free of each model of the *nodes* for pods of *kinds*."""
    table = cluster(**nodes)
    table.refresh()
    rows = numpy.array([table.rows[name] for name in nodes], dtype=numpy.intp)
    devices = table.columns.of(rows)
    pods = UsualPods.of(kinds, table.columns.all())
    total = {}
    for _, model, free in free_devices(
        devices, numpy.full(len(rows), milli_cpu, dtype=float), pods, vendors
    ):
        total[model] = total.get(model, FreeDevices()) + free
    return total


def gpu_pod(count=1, cores=0, **fields):
    return UsualPod("NVIDIA", count, cores, **fields)


IDLE = [usage(f"GPU-{place}") for place in range(4)]
HALF = [usage("GPU-0", 1, 1000, 50), *IDLE[1:]]
FULL_SLOTS = [usage("GPU-0", 10, 0, 50)]
OF_TWO = {gpu_pod(cores=50): 3.0, gpu_pod(cores=100): 1.0}


@pytest.mark.parametrize(
    ("usages", "kinds", "milli_cpu", "expected"),
    [
        param(IDLE, {gpu_pod(cores=50): 1}, A_LOT, (4, 0, 0, 0), id="all of it is of use"),
        param(IDLE, {gpu_pod(cores=60): 1}, A_LOT, (4, 0, 1.6, 0), id="the rest of each device"),
        param(
            IDLE, {gpu_pod(cores=50, milli_cpu=2000): 1}, 5000, (4, 3, 0, 0), id="CPU for two pods"
        ),
        param(
            IDLE,
            {gpu_pod(cores=60, milli_cpu=2000): 1},
            5000,
            (4, 1.2, 1.6, 0),
            id="CPU for two of four pods, and the rest of each device",
        ),
        param(
            IDLE, {gpu_pod(cores=50, milli_cpu=1): 1}, -1, (4, 4, 0, 0), id="too much CPU booked"
        ),
        param(HALF, {gpu_pod(cores=100): 1}, A_LOT, (3.5, 0, 0.5, 0), id="half a device"),
        param(HALF, OF_TWO, A_LOT, (3.5, 0, 0.125, 0), id="of use to three pods of four"),
        param(HALF, {gpu_pod(4, 100): 1}, A_LOT, (3.5, 0, 3.5, 0), id="no whole node"),
        param(IDLE, {gpu_pod(3, 100): 1}, A_LOT, (4, 0, 1, 0), id="a device too many"),
        param(IDLE, {gpu_pod(alone=True, cores=5): 1}, A_LOT, (4, 0, 0, 0), id="devices alone"),
        param(IDLE, {gpu_pod(memory_percent=50): 1}, A_LOT, (4, 0, 0, 0), id="by memory"),
        param(IDLE, {gpu_pod(): 1}, A_LOT, (4, 0, 0, 0), id="by slots"),
        param(FULL_SLOTS, {gpu_pod(cores=50): 1}, A_LOT, (0.5, 0, 0.5, 0), id="no slot"),
        param(
            IDLE, {gpu_pod(cores=50, use_types=("H100",)): 1}, A_LOT, (4, 0, 0, 4), id="other model"
        ),
        param(
            IDLE,
            {gpu_pod(cores=60, use_types=("H100",)): 9, gpu_pod(cores=50): 1},
            A_LOT,
            (4, 0, 0, 0),
            id="pods that do not accept the model do not count",
        ),
    ],
)
def test_what_is_stranded_by_cause(usages, kinds, milli_cpu, expected):
    free = free_of(kinds, milli_cpu, n1=usages)["NVIDIA A40"]
    found = free.free, free.lacks_cpu, free.crumbs, free.not_accepted
    assert found == pytest.approx(expected, abs=1e-5)


def test_models_are_told_apart_on_one_node():
    usages = [usage("GPU-0", 1, 0, 50), usage("GPU-1", model="NVIDIA L4"), usage("GPU-2")]
    free = free_of({gpu_pod(cores=100): 1.0}, n1=usages)
    assert {model: of.stranded for model, of in free.items()} == {
        "NVIDIA A40": pytest.approx(0.5),
        "NVIDIA L4": pytest.approx(0),
    }
    assert {model: of.devices for model, of in free.items()} == {"NVIDIA A40": 2, "NVIDIA L4": 1}


def test_without_usual_pods_nothing_is_said():
    assert free_of({}, n1=IDLE) == {}


def test_vendors_without_usual_pods_are_left_out():
    assert free_of({gpu_pod(cores=50): 1.0}, vendors=("DCU",), n1=IDLE) == {}


@pytest.mark.parametrize("broken", [{"healthy": False}, {"cordoned": True}, {"mode": "mig"}])
def test_devices_that_serve_nobody_are_not_free(broken):
    free = free_of({gpu_pod(cores=50): 1.0}, n1=[usage("GPU-0", **broken), usage("GPU-1")])
    assert free["NVIDIA A40"].devices == 1


def some_kinds(rng):
    kinds = {}
    for _ in range(rng.randint(1, 6)):
        kind = gpu_pod(
            rng.randint(1, 4),
            rng.choice((0, 5, 30, 50, 100)),
            memory_mib=rng.choice((0, 300, 1000)),
            milli_cpu=rng.choice((0, 500, 4000)),
            alone=rng.random() < 0.1,
            by_claims=rng.random() < 0.1,
            use_types=rng.choice((None, None, ("A40",), ("L4", "A100"))),
        )
        kinds[kind] = rng.random() + 0.01
    return kinds


@given(seed=integers(0, 2**32))
def test_causes_add_up_and_are_part_of_what_is_free(seed):
    rng = random.Random(seed)
    kinds, usages = some_kinds(rng), some_usages(rng, least=1)
    free = free_of(kinds, rng.choice((0, 700, 9000, A_LOT)), n1=usages)
    plenty = free_of(kinds, A_LOT * A_LOT, n1=usages)
    assert free.keys() == plenty.keys()
    for model, of in free.items():
        assert min(of.by_cause.values()) >= 0
        assert of.stranded == pytest.approx(sum(of.by_cause.values()))
        assert of.stranded <= of.free + 1e-9
        assert of.free <= of.devices
        # CPU is no cause where there is plenty of it, and changes no other
        assert plenty[model].lacks_cpu == 0
        assert of.crumbs == pytest.approx(plenty[model].crumbs)
        assert of.not_accepted in (0.0, of.free)


@given(seed=integers(0, 2**32))
def test_nothing_is_stranded_in_an_empty_cluster_that_is_made_for_its_pods(seed):
    """Devices that the pods divide without a rest, and CPU for as many as there are slots."""
    rng = random.Random(seed)
    kinds = {}
    for _ in range(rng.randint(1, 5)):
        fields = rng.choice(({"cores": rng.choice((10, 20, 25, 50, 100))}, {"memory_percent": 50}))
        kinds[gpu_pod(rng.choice((1, 2, 4)), milli_cpu=rng.randrange(2000), **fields)] = 1.0
    free = free_of(kinds, 80 * 2000, n1=IDLE, n2=[usage(f"GPU-{place}") for place in range(4, 8)])
    assert free["NVIDIA A40"].stranded == pytest.approx(0, abs=1e-4)


@given(seed=integers(0, 2**32))
def test_shares_may_be_scaled_and_kinds_that_accept_nothing_change_nothing(seed):
    rng = random.Random(seed)
    kinds, usages = some_kinds(rng), some_usages(rng, least=1)
    free = free_of(kinds, 9000, n1=usages)
    other = {kind: 7 * often for kind, often in kinds.items()}
    other[gpu_pod(cores=50, use_types=("B200",))] = 3.0
    for model, of in free_of(other, 9000, n1=usages).items():
        assert of.stranded == pytest.approx(free[model].stranded, abs=1e-4)
