"""Where on a node a pod's containers go."""

from hypothesis import assume, given
from hypothesis.strategies import randoms

from hami.codec.allocation import render_shares
from hami.model import Budget, DeviceUsage, Unfit
from hami.scheduling.placement import NO_BUDGETS, place_pod
from hami.scheduling.usage import peak_charges, total_charge
from testing.builders import INIT, SIDECAR, container, gpus, pod_request, usage, usages
from testing.cases import cases
from testing.seeds import some_budget, some_pod_request, some_usages

CPU = container({"cpu": "1"})
PAIR = usages("GPU-0", "GPU-1")
ONE = [usage("GPU-a0", memory_mib=10_000)]


def outcome(devices, *containers, budgets=NO_BUDGETS, **options):
    found = place_pod({"NVIDIA": devices}, pod_request(*containers, **options), budgets)
    return str(found) if isinstance(found, Unfit) else render_shares(found)


@cases(
    "devices, containers, policy, text",
    (
        "spread",
        PAIR,
        [gpus(1, 3000, 30), gpus(1, 5000, 20)],
        "spread",
        "GPU-1,NVIDIA,3000,30:;GPU-0,NVIDIA,5000,20:;",
    ),
    (
        "binpack",
        PAIR,
        [gpus(1, 3000, 30), gpus(1, 5000, 20)],
        "binpack",
        "GPU-1,NVIDIA,3000,30:;GPU-1,NVIDIA,5000,20:;",
    ),
    ("two devices", PAIR, [gpus(2, 3000)], "spread", "GPU-1,NVIDIA,3000,0:GPU-0,NVIDIA,3000,0:;"),
    ("in the middle", ONE, [CPU, gpus(1, 1000, 30), CPU], "spread", ";GPU-a0,NVIDIA,1000,30:;;"),
    (
        "plain init container",
        usages("GPU-B", "GPU-A"),
        [container(kind=INIT), gpus(1, 2500, 25), gpus(1, 2500, 25)],
        "spread",
        ";GPU-A,NVIDIA,2500,25:;GPU-B,NVIDIA,2500,25:;",
    ),
    (
        "truncated",
        [usage("GPU-0", memory_mib=46068)],
        [gpus(1, percent=33)],
        "spread",
        "GPU-0,NVIDIA,15202,0:;",
    ),
    (
        "whole",
        [usage("GPU-0", memory_mib=46068)],
        [gpus(1, cores=100)],
        "spread",
        "GPU-0,NVIDIA,46068,100:;",
    ),
)
def test_shares_by_container(devices, containers, policy, text):
    assert outcome(devices, *containers, policy=policy) == text


@cases(
    "containers, text",
    (
        "apps come after init",
        [gpus(1, 10_000, kind=INIT), gpus(1, 10_000)],
        "GPU-a0,NVIDIA,10000,0:;GPU-a0,NVIDIA,10000,0:;",
    ),
    (
        "inits come one by one",
        [gpus(1, 10_000, kind=INIT), gpus(1, 9_000, kind=INIT), gpus(1, 1)],
        "GPU-a0,NVIDIA,10000,0:;GPU-a0,NVIDIA,9000,0:;GPU-a0,NVIDIA,1,0:;",
    ),
    ("apps run together", [gpus(1, 6_000), gpus(1, 5_000)], "1/1 CardInsufficientMemory"),
    (
        "a sidecar runs beside apps",
        [gpus(1, 6_000, kind=SIDECAR), gpus(1, 5_000)],
        "1/1 CardInsufficientMemory",
    ),
    (
        "a sidecar runs beside init containers",
        [gpus(1, 6_000, kind=SIDECAR), gpus(1, 5_000, kind=INIT)],
        "1/1 CardInsufficientMemory",
    ),
    (
        "even beside one before it, since that may run again",
        [gpus(1, 5_000, kind=INIT), gpus(1, 6_000, kind=SIDECAR)],
        "1/1 CardInsufficientMemory",
    ),
    (
        "sidecars add up",
        [
            gpus(1, 4_000, kind=SIDECAR),
            gpus(1, 4_000, kind=SIDECAR),
            gpus(1, 2_000, kind=INIT),
            gpus(1, 2_000),
        ],
        "GPU-a0,NVIDIA,4000,0:;GPU-a0,NVIDIA,4000,0:;GPU-a0,NVIDIA,2000,0:;GPU-a0,NVIDIA,2000,0:;",
    ),
    (
        "an init container that does not fit",
        [gpus(1, 10_001, kind=INIT), gpus(1, 1)],
        "1/1 CardInsufficientMemory",
    ),
    (
        "init has the device to itself",
        [gpus(1, cores=100, kind=INIT), gpus(1, 1, 10)],
        "GPU-a0,NVIDIA,10000,100:;GPU-a0,NVIDIA,1,10:;",
    ),
)
def test_what_runs_together(containers, text):
    assert outcome(ONE, *containers) == text


@cases(
    "containers, left, text",
    (
        "init alone is too much",
        [gpus(1, 30_000, kind=INIT), gpus(1, 4_000)],
        24_000,
        "1/1 ResourceQuotaNotFit",
    ),
    (
        "the larger counts",
        [gpus(1, 20_000, kind=INIT), gpus(1, 10_000)],
        24_000,
        "GPU-0,NVIDIA,20000,0:;GPU-0,NVIDIA,10000,0:;",
    ),
    (
        "a sidecar adds up",
        [gpus(1, 20_000, kind=SIDECAR), gpus(1, 10_000)],
        24_000,
        "1/1 ResourceQuotaNotFit",
    ),
    ("apps add up", [gpus(1, 10_000), gpus(1, 10_000)], 19_999, "1/1 ResourceQuotaNotFit"),
    (
        "also after a plain init container",
        [container(kind=INIT), gpus(1, 10_000), gpus(1, 10_000)],
        19_999,
        "1/1 ResourceQuotaNotFit",
    ),
)
def test_quota_counts_what_runs_together(containers, left, text):
    assert outcome([usage()], *containers, budgets={"NVIDIA": Budget(left)}) == text


def test_a_vendor_that_the_node_does_not_have():
    assert str(place_pod({}, pod_request(gpus()))) == "NodeInsufficientDevice"


@given(rng=randoms(use_true_random=True))
def test_the_pod_never_takes_more_than_is_free(rng):
    devices, asked, budget = some_usages(rng, least=2), some_pod_request(rng), some_budget(rng)
    placement = place_pod({"NVIDIA": devices}, asked, {"NVIDIA": budget})
    assume(not isinstance(placement, Unfit))
    assert [len(shares) for shares in placement] == [
        sum(r.count for r in c.requests) for c in asked.containers
    ]
    charges = peak_charges(asked.kinds, placement)
    by_uuid = {v.device.uuid: v for v in devices}
    for taken in charges:
        before = by_uuid[taken.uuid]
        after = DeviceUsage(
            before.device,
            before.slots_used + taken.slots,
            before.memory_used_mib + taken.memory_mib,
            before.cores_used + taken.cores,
        )
        assert not after.is_overcommitted
        assert by_uuid[taken.uuid].device.healthy
        assert not by_uuid[taken.uuid].device.cordoned
    assert budget.covers(*total_charge(charges))
    assert all(len({s.uuid for s in shares}) == len(shares) for shares in placement)
