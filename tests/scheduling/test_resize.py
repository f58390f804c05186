"""The resize of a bound pod: what is booked and wanted, or why not and what would fit."""

from dataclasses import replace

from hami.codec.keys import CORES_LIMIT
from hami.codec.resize import ResizeState, Size
from hami.model import Budget
from hami.scheduling.resize import ResizableDevices, ResizePlan, plan_resize, without_charges
from testing.builders import (
    INIT,
    NVIDIA,
    SIDECAR,
    charge,
    gpu,
    gpus,
    pod,
    pod_request,
    share,
    usage,
)
from testing.cases import cases

CARD = 8000
A, B = "GPU-0", "GPU-1"


def card(uuid=A, slots=0, memory=0, cores=0, **fields):
    """A card with what other pods take of it."""
    return replace(usage(uuid, slots, memory, cores, memory_mib=CARD), **fields)


def devices(*held, usages=None, containers=None, wanted=None, **fields):
    """A running pod with one container for each of *held*, its shares."""
    own = containers or tuple(
        replace(gpus(len(shares)), name=f"c{number}") for number, shares in enumerate(held)
    )
    options = {name: fields.pop(name) for name in ("budget", "node_resizes") if name in fields}
    item = pod(*own, **{"phase": "Running", "node_name": "n1"} | fields)
    return ResizableDevices(
        **{
            "pod": item,
            "request": pod_request(*own),
            "vendor": NVIDIA,
            "current": held,
            "target": wanted or held,
            "usages": usages or (card(), card(B)),
            "budget": Budget(),
            "node_resizes": True,
        }
        | options
    )


def one(memory=2000, cores=20, **fields):
    return devices((share(A, memory, cores),), **fields)


def test_the_larger_of_each_amount_is_booked_and_the_size_is_wanted():
    assert plan_resize({"c0": Size(memory_mib=3000, cores=5)}, one()) == ResizePlan(
        ((share(A, 3000, 20),),), ((share(A, 3000, 5),),)
    )


def test_each_device_of_a_container_gets_the_size_and_percent_is_its_own():
    both = (share(A, 100, 1), share(B, 100, 1)), (share(A, 500, 5),)
    plan = plan_resize(
        {"c0": Size(memory_percent=50)},
        devices(*both, usages=(card(), replace(card(B), device=gpu(B, memory_mib=4001)))),
    )
    assert plan.booked == ((share(A, 4000, 1), share(B, 2000, 1)), (share(A, 500, 5),))


def test_what_is_on_its_way_goes_on():
    held, wanted = (
        ((share(A, 2000, 20),), (share(A, 3000, 30),)),
        ((share(A, 1000, 20),), (share(A, 3000, 30),)),
    )
    assert plan_resize({"c1": Size(cores=40)}, devices(*held, wanted=wanted)) == ResizePlan(
        ((share(A, 2000, 20),), (share(A, 3000, 40),)),
        ((share(A, 1000, 20),), (share(A, 3000, 40),)),
    )


@cases(
    "size, beside, fits",
    ("all memory", Size(memory_mib=CARD), {}, True),
    ("what is left", Size(memory_mib=5000), {"slots": 1, "memory": 3000}, True),
    ("one MiB too much", Size(memory_mib=5001), {"slots": 1, "memory": 3000}, False),
    ("99 percent", Size(cores=99), {}, True),
    ("cores that are left", Size(cores=60), {"slots": 1, "cores": 40}, True),
    ("one percent too much", Size(cores=61), {"slots": 1, "cores": 40}, False),
    (
        "less of a card that has too much",
        Size(memory_mib=1),
        {"slots": 9, "memory": 9000, "cores": 110},
        True,
    ),
)
def test_what_grows_has_to_fit_beside_the_others(size, beside, fits):
    assert isinstance(plan_resize({"c0": size}, one(usages=(card(**beside),))), ResizePlan) is fits


def test_containers_that_run_together_grow_together():
    both = devices((share(A, 2000, 20),), (share(A, 2000, 20),))
    assert isinstance(
        plan_resize({"c0": Size(memory_mib=4000), "c1": Size(memory_mib=4000)}, both), ResizePlan
    )
    refusal = plan_resize({"c0": Size(memory_mib=4000), "c1": Size(memory_mib=4001)}, both)
    assert refusal.state is ResizeState.DEFERRED


@cases(
    "kind, init_done, most",
    (INIT, True, CARD),
    (INIT, False, CARD),
    (SIDECAR, True, 2000),
    (SIDECAR, False, 2000),
)
def test_init_containers_have_ended_and_sidecars_have_not(kind, init_done, most):
    own = replace(gpus(kind=kind), name="first"), replace(gpus(), name="main")
    found = devices((share(A, 6000, 0),), (share(A, 1000, 0),), containers=own, init_done=init_done)
    assert isinstance(plan_resize({"main": Size(memory_mib=most)}, found), ResizePlan)
    if most < CARD:
        assert (
            f"at most {most} MiB" in plan_resize({"main": Size(memory_mib=most + 1)}, found).message
        )


@cases(
    "size, found, message",
    (
        "memory",
        Size(memory_mib=6000),
        one(usages=(card(slots=1, memory=3000, cores=50),)),
        (
            "6000 MiB and 20 percent of container c0 do not fit (CardInsufficientMemory): at most 5000 MiB and 50 "
            "percent fit beside the others on GPU-0"
        ),
    ),
    (
        "cores",
        Size(cores=60),
        one(usages=(card(slots=1, memory=3000, cores=50),)),
        (
            "2000 MiB and 60 percent of container c0 do not fit (CardInsufficientCore): at "
            "most 5000 MiB and 50 percent "
            "fit beside the others on GPU-0"
        ),
    ),
    ("quota of memory", Size(memory_mib=6000), one(budget=Budget(4000, None)), "at most 4000 MiB"),
    (
        "quota of cores",
        Size(cores=60),
        one(budget=Budget(None, 45)),
        "and 45 percent fit beside the quota",
    ),
    (
        "quota of two devices",
        Size(memory_mib=3000),
        devices((share(A, 1000, 0), share(B, 1000, 0)), budget=Budget(5000, None)),
        "at most 2500 MiB",
    ),
    (
        "sick",
        Size(memory_mib=3000),
        one(usages=(card(device=gpu(A, healthy=False)),)),
        "CardNotHealth",
    ),
    (
        "cordoned",
        Size(memory_mib=3000),
        one(usages=(card(device=gpu(A, cordoned=True)),)),
        "Cordoned",
    ),
    (
        "gone",
        Size(memory_mib=3000),
        one(usages=(card(B),)),
        "GPU-0 of container c0 is not offered by node n1",
    ),
    (
        "gone, percent",
        Size(memory_percent=1),
        one(usages=(card(B),)),
        "GPU-0 of container c0 is not offered by node n1",
    ),
    ("not started", Size(memory_mib=3000), one(phase="Pending"), "the pod has not started yet"),
    (
        "all cores are taken",
        Size(memory_mib=3000),
        one(cores=0, usages=(card(slots=2, cores=100),)),
        "CardComputeUnitsExhausted",
    ),
    ("device plugin", Size(cores=5), one(node_resizes=False), "node n1 does not change"),
)
def test_what_does_not_fit_now_says_what_would(size, found, message):
    refusal = plan_resize({"c0": size}, found)
    assert refusal.state is ResizeState.DEFERRED
    assert message in refusal.message


@cases(
    "sizes, found, message",
    ("unknown", {"c0": Size(cores=5), "x": Size(cores=5)}, one(), "the pod has no container x"),
    (
        "init",
        {"c": Size(cores=5)},
        devices((share(A, 1, 1),), containers=(replace(gpus(kind=INIT), name="c"),)),
        "c is an init container",
    ),
    ("without", {"c1": Size(cores=5)}, devices((share(A, 1, 1),), ()), "container c1 has no GPU"),
    ("exclusive before", {"c0": Size(cores=5)}, one(cores=100), "container c0 has GPU-0 alone"),
    ("exclusive after", {"c0": Size(cores=100)}, one(), "at most 99"),
    ("more than the card", {"c0": Size(memory_mib=CARD + 1)}, one(), "its GPU has 8,000 MiB"),
    (
        "more cores",
        {"c0": Size(cores=70)},
        one(usages=(card(device=gpu(A, cores=60)),)),
        "container c0 asks for 70 cores, and its GPU has 60",
    ),
    (
        "more than allowed",
        {"c0": Size(cores=50)},
        one(annotations={CORES_LIMIT: "40"}),
        "gpucores-limit is 40",
    ),
    ("MIG", {"c0": Size(cores=5)}, one(usages=(card(device=gpu(A, mode="mig")),)), "MIG mode"),
    ("claim", {"c0": Size(cores=5)}, one(claim="hami-x"), "by a claim"),
)
def test_what_never_fits_says_why(sizes, found, message):
    refusal = plan_resize(sizes, found)
    assert refusal.state is ResizeState.INFEASIBLE
    assert message in refusal.message


def test_less_of_a_device_that_is_not_offered_is_still_less():
    """As while the device plugin is away."""
    plan = plan_resize({"c0": Size(memory_mib=500)}, one(usages=(card(B),)))
    assert [shares[0].memory_mib for shares in (*plan.booked, *plan.target)] == [2000, 500]


@cases("padding", ("left out", ()), ("padded", ((),)))
def test_containers_that_hami_leaves_out_are_found(padding):
    """As the device plugin finds them."""
    own = replace(gpus(0), name="plain"), replace(gpus(), name="main")
    found = devices((share(A, 2000, 20),), *padding, containers=own)
    assert plan_resize({"main": Size(cores=30)}, found).booked == ((share(A, 2000, 30),), *padding)
    assert "container plain has no GPU" in plan_resize({"plain": Size(cores=30)}, found).message


def test_the_usage_of_others_is_what_is_left_without_the_charges_of_a_pod():
    before = card(slots=3, memory=5000, cores=60), card(B, slots=1, memory=100, cores=1)
    assert without_charges(before, [charge(A, 1, 2000, 20)]) == (
        card(slots=2, memory=3000, cores=40),
        before[1],
    )
