"""Which devices a container gets, or why it gets none: rule by rule, then by what must always hold."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis.strategies import randoms

from hami.model import Budget, Reason, Unfit
from hami.scheduling.fit import fit, objection
from hami.scheduling.usage import charge_shares
from hami.vendors.spec import Candidate, Decision, Resources, Rule, Vendor
from testing.builders import container, gpus, pod_request, request, usage
from testing.cases import cases
from testing.seeds import some_budget, some_pod_request, some_usages

MODEST = gpus(1, 3000, 30)


def context(usages, *containers, budget=None, **options):
    return pod_request(*(containers or (MODEST,)), **options).fit_context(
        "NVIDIA", usages, budget=budget
    )


def outcome(usages, asked, **options):
    """The uuids in the order in which they were taken, or the reasons."""
    found = fit(asked, context(usages, **options))
    return str(found) if isinstance(found, Unfit) else [s.uuid for s in found]


ASKED = request(1, 3000, cores=30)
RULES = [  # a device that breaks several rules: the reason is that of the first
    ("given by claims", usage(healthy=False, by_claims=True), ASKED, {}, Reason.ALLOCATION_MODE),
    ("unhealthy", usage(healthy=False, cordoned=True), ASKED, {}, Reason.UNHEALTHY),
    (
        "cordoned",
        usage(cordoned=True, mode="mig"),
        ASKED,
        {"nvidia.com/nouse-gputype": "A40"},
        Reason.CORDONED,
    ),
    (
        "type not wanted",
        usage(slots_used=10),
        ASKED,
        {"nvidia.com/nouse-gputype": "a40"},
        Reason.TYPE_MISMATCH,
    ),
    (
        "another type wanted",
        usage(),
        ASKED,
        {"nvidia.com/use-gputype": "L4,H100"},
        Reason.TYPE_MISMATCH,
    ),
    ("no type wanted", usage(), ASKED, {"nvidia.com/use-gputype": " , "}, Reason.TYPE_MISMATCH),
    (
        "type wanted and not wanted",
        usage(),
        ASKED,
        {"nvidia.com/use-gputype": "A40", "nvidia.com/nouse-gputype": "nvidia"},
        Reason.TYPE_MISMATCH,
    ),
    ("another mode wanted", usage(), ASKED, {"nvidia.com/vgpu-mode": "mig"}, Reason.TYPE_MISMATCH),
    (
        "uuid not wanted",
        usage(slots_used=10),
        ASKED,
        {"nvidia.com/nouse-gpuuuid": "GPU-0"},
        Reason.UUID_MISMATCH,
    ),
    (
        "another uuid wanted",
        usage(),
        ASKED,
        {"nvidia.com/use-gpuuuid": "GPU-00"},
        Reason.UUID_MISMATCH,
    ),
    (
        "no slot",
        usage(slots_used=10),
        ASKED,
        {"hami.io/gpu-scheduler-policy": "mutex"},
        Reason.NO_SLOT,
    ),
    (
        "mutex",
        usage(slots_used=1, memory_used_mib=46068),
        ASKED,
        {"hami.io/gpu-scheduler-policy": "mutex"},
        Reason.NOT_ALONE,
    ),
    ("memory", usage(memory_used_mib=43069, cores_used=100), ASKED, {}, Reason.NO_MEMORY),
    ("cores", usage(slots_used=1, cores_used=71), ASKED, {}, Reason.NO_CORES),
    (
        "cores before exclusive",
        usage(slots_used=1, cores_used=1),
        request(1, 1, cores=100),
        {},
        Reason.NO_CORES,
    ),
    ("exclusive", usage(slots_used=1), request(1, 1, cores=100), {}, Reason.NOT_ALONE),
    (
        "more cores than a card has",
        usage(slots_used=1),
        request(1, 1, cores=400),
        {},
        Reason.NOT_ALONE,
    ),
    ("all cores taken", usage(cores_used=100), request(1, 1), {}, Reason.NO_CORES_LEFT),
    ("MIG", usage(mode="mig"), ASKED, {}, Reason.MIG_TOPOLOGY),
    ("just fits", usage(memory_used_mib=43068, cores_used=70, slots_used=9), ASKED, {}, None),
    ("whole", usage(), request(1, 46068, cores=100), {}, None),
    ("one percent is left to share", usage(cores_used=99), request(1, 1), {}, None),
    ("a device without cores", usage(cores=0), request(1, 1), {}, None),
    (
        "scaled cores are not exclusive",
        usage(cores=200, slots_used=1, cores_used=100),
        request(1, 1, cores=100),
        {},
        None,
    ),
    (
        "type by part of its name",
        usage(),
        ASKED,
        {"nvidia.com/use-gputype": "l4, nvidia a4 "},
        None,
    ),
    ("uuid wanted", usage(), ASKED, {"nvidia.com/use-gpuuuid": "GPU-1, GPU-0"}, None),
    ("mode wanted", usage(), ASKED, {"nvidia.com/vgpu-mode": "mig hami-core"}, None),
    ("no mode", usage(mode=""), ASKED, {"nvidia.com/vgpu-mode": "mig"}, None),
    (
        "blank lists",
        usage(),
        ASKED,
        {"nvidia.com/use-gputype": " ", "nvidia.com/nouse-gpuuuid": ""},
        None,
    ),
]


@cases("device, asked, annotations, reason", *RULES)
def test_rules_in_the_order_users_see(device, asked, annotations, reason):
    assert objection(Candidate(device, asked, context([device], annotations=annotations))) is reason


@pytest.mark.parametrize("by_claims", [True, False])
@pytest.mark.parametrize("claims", [True, False])
def test_a_device_has_one_allocation_mode(by_claims, claims):
    device, asked = usage(by_claims=by_claims), replace(pod_request(MODEST), by_claims=claims)
    reason = objection(Candidate(device, ASKED, asked.fit_context("NVIDIA", [device])))
    assert reason is (None if by_claims is claims else Reason.ALLOCATION_MODE)


FULL, MEMORY = usage("slots", 10), usage("memory", 1, 46000)
CORES, SICK = usage("cores", 1, 0, 90), usage("sick", healthy=False)


@cases(
    "usages, asked, text",
    (
        "a reason each",
        [FULL, MEMORY, CORES, SICK],
        ASKED,
        (
            "1/4 CardInsufficientCore, 1/4 CardInsufficientMemory, 1/4 CardNotHealth, "
            "1/4 CardTimeSlicingExhausted"
        ),
    ),
    (
        "two",
        [usage("a"), MEMORY],
        request(2, 3000),
        "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory",
    ),
    ("too few", [usage("a"), usage("b")], request(3, 1), "NodeInsufficientDevice"),
    ("none", [], ASKED, "NodeInsufficientDevice"),
)
def test_reasons(usages, asked, text):
    assert outcome(usages, asked) == text


IDLE = [usage(f"GPU-{i}", index=i, numa=i // 2) for i in range(4)]


@cases(
    "policy, numa_bind, uuids",
    ("spread", "", ["GPU-3", "GPU-2"]),
    ("binpack", "", ["GPU-3", "GPU-2"]),
    ("spread", "true", ["GPU-3", "GPU-2"]),
    ("binpack", "true", ["GPU-1", "GPU-0"]),
)
def test_equal_devices_are_chosen_by_index_and_numa_node(policy, numa_bind, uuids):
    assert (
        outcome(
            IDLE, request(2, 3000), policy=policy, annotations={"nvidia.com/numa-bind": numa_bind}
        )
        == uuids
    )


def test_numa_bind_is_nothing_to_vendors_without_that_rule():
    vendor = Vendor(
        key="NVIDIA",
        resources=Resources(count="x.io/card"),
        decision=Decision(inventory=lambda vendor, node: None, rules=(Rule.HEALTH,)),
    )
    asked = pod_request(
        container({"x.io/card": 2}), annotations={"nvidia.com/numa-bind": "true"}, vendors=[vendor]
    )
    found = fit(request(2), asked.fit_context("NVIDIA", [usage("A", numa=0), usage("B", numa=1)]))
    assert not isinstance(found, Unfit)
    assert len(found) == 2


def links(**scores):
    """Devices a, b, … whose pairs have these scores: ``ab=100``."""
    names = sorted(set("".join(scores)))
    return [
        usage(
            name,
            pair_scores={
                other: scores.get("".join(sorted(name + other)), 0)
                for other in names
                if other != name
            },
        )
        for name in names
    ]


TOPOLOGY = {"hami.io/gpu-scheduler-policy": "topology-aware"}


@cases(
    "usages, count, uuids",
    ("the one least missed", links(ab=100, ac=200, bc=150), 1, ["b"]),
    ("the best pair", links(ab=100, ac=200, bc=150), 2, ["c", "a"]),
    ("all there are", links(ab=1, ac=2, bc=3), 3, ["c", "b", "a"]),
    ("the first of equals in the order of trying", links(ab=5, bc=5, cd=5), 2, ["d", "c"]),
    ("no links", links(ab=0, cd=0), 1, ["d"]),
    ("only devices that can serve", links(ab=9, cd=5) + [usage("e", healthy=False)], 2, ["b", "a"]),
)
def test_topology(usages, count, uuids):
    assert outcome(usages, request(count, 1), annotations=TOPOLOGY) == uuids


def test_topology_says_why_not():
    usages = [usage("a"), usage("b", healthy=False)]
    assert outcome(usages, request(2, 1), annotations=TOPOLOGY) == (
        "1/2 AllocatedCardsInsufficientRequest, 1/2 CardNotHealth"
    )


@cases(
    "count, uuids", (2, ["d", "c"]), (3, "2/4 AllocatedCardsInsufficientRequest, 2/4 NumaNotFit")
)
def test_topology_with_numa_bind_stays_on_one_node(count, uuids):
    usages = [
        replace(v, device=replace(v.device, numa="abcd".index(v.device.uuid) // 2))
        for v in links(ac=900, bd=900, cd=1)
    ]
    assert (
        outcome(usages, request(count, 1), annotations=TOPOLOGY | {"nvidia.com/numa-bind": "true"})
        == uuids
    )


def test_topology_of_many_devices_is_soon_found():
    usages = [
        usage(
            f"GPU-{i}",
            index=i,
            pair_scores={f"GPU-{j}": 100 * (i // 8 == j // 8) for j in range(64)},
        )
        for i in range(64)
    ]
    found = outcome(usages, request(8, 1), annotations=TOPOLOGY)
    assert len({int(uuid.removeprefix("GPU-")) // 8 for uuid in found}) == 1


G13 = [
    usage(uuid, memory_mib=memory)
    for uuid, memory in (("d0", 2000), ("d1", 8000), ("d2", 4000), ("d3", 6000))
]


@cases(
    "asked, left, text",
    ("fits", request(2, 2000, cores=100), Budget(4000, 200), ["d1", "d3"]),
    (
        "one too many",
        request(2, 3000, cores=60),
        Budget(4000, 200),
        "1/4 AllocatedCardsInsufficientRequest, 3/4 ResourceQuotaNotFit",
    ),
    ("whole cards are larger", request(1, 0, 100, 100), Budget(1500), "4/4 ResourceQuotaNotFit"),
    ("the small card", request(1, 0, 100, 100), Budget(2000), ["d0"]),
    ("cores", request(1, 1, cores=30), Budget(cores=29), "4/4 ResourceQuotaNotFit"),
    ("overdrawn", request(1, 1), Budget(-5), "4/4 ResourceQuotaNotFit"),
    ("before memory", request(1, 9000), Budget(4000), "4/4 ResourceQuotaNotFit"),
)
def test_quota(asked, left, text):
    assert outcome(G13, asked, budget=left) == text


@cases(
    "left, uuids",
    (4000, ["c", "a"]),
    (3999, "1/3 AllocatedCardsInsufficientRequest, 2/3 ResourceQuotaNotFit"),
)
def test_quota_counts_all_devices_that_topology_takes(left, uuids):
    usages = links(ab=100, ac=200, bc=150)
    assert outcome(usages, request(2, 2000), budget=Budget(left), annotations=TOPOLOGY) == uuids


@given(rng=randoms(use_true_random=True))
def test_fit_takes_only_what_is_free_and_nothing_twice(rng):
    usages, asked = some_usages(rng), some_pod_request(rng, containers=1)
    (wanted,) = asked.containers[0].requests
    found = fit(wanted, asked.fit_context("NVIDIA", usages, budget=some_budget(rng)))
    assume(not isinstance(found, Unfit))
    assert len({s.uuid for s in found}) == len(found) == wanted.count
    by_uuid = {v.device.uuid: v for v in usages}
    assert all(
        by_uuid[s.uuid].device.healthy and not by_uuid[s.uuid].device.cordoned for s in found
    )
    assert {by_uuid[s.uuid].device.by_claims for s in found} == {asked.by_claims}
    assert not any(
        v.is_overcommitted
        for v in charge_shares(usages, found)
        if v.device.uuid in {s.uuid for s in found}
    )


@given(rng=randoms(use_true_random=True))
def test_fit_finds_devices_exactly_if_some_choice_of_them_serves(rng):
    """Picking devices in order loses nothing for a single request, unless it requests a percentage under a quota:
    a large device that is taken first may leave too little of the quota for a second one. (Several containers may miss
    each other too: the first may take the only device that could have served the second. So it is upstream.)"""
    usages, asked, budget = (
        some_usages(rng, most=5),
        some_pod_request(rng, containers=1),
        some_budget(rng),
    )
    (wanted,) = asked.containers[0].requests
    assume(wanted.memory_mib or budget.memory_mib is None)
    found = fit(wanted, asked.fit_context("NVIDIA", usages, budget=budget))
    exists = any(
        serves(asked, wanted, choice, budget)
        for choice in itertools.combinations(usages, wanted.count)
    )
    assert exists == (not isinstance(found, Unfit))


def serves(asked, wanted, choice, budget):
    """Reports whether *choice* of devices fits *wanted*, implemented a second time from the reference."""
    vendor_request, policy = asked.vendor_request("NVIDIA"), asked.policy
    if policy.numa_bind and len({v.device.numa for v in choice}) > 1:
        return False
    memory = sum(need(wanted, v) for v in choice)
    cores = min(wanted.cores, 100)
    if not budget.covers(memory, cores * len(choice)):
        return False
    return all(
        v.device.healthy
        and not v.device.cordoned
        and v.device.mode != "mig"
        and v.device.by_claims is asked.by_claims
        and wanted_by(vendor_request.selector, v.device)
        and v.slots_used < v.device.slots
        and not (policy.mutex and v.slots_used)
        and v.memory_used_mib + need(wanted, v) <= v.device.memory_mib
        and v.cores_used + cores <= v.device.cores
        and not (v.device.cores == cores == 100 and v.slots_used)
        and not (cores == 0 and 0 != v.device.cores == v.cores_used)
        for v in choice
    )


def need(wanted, v):
    return wanted.memory_mib or v.device.memory_mib * (wanted.memory_percent or 0) // 100


def wanted_by(selector, device):
    model, uuid = device.model.lower(), device.uuid
    return (
        (selector.use_types is None or any(t.lower() in model for t in selector.use_types))
        and not any(t.lower() in model for t in selector.nouse_types or ())
        and (selector.use_uuids is None or uuid in selector.use_uuids)
        and uuid not in (selector.nouse_uuids or ())
        and (selector.mode is None or device.mode in selector.mode)
    )
