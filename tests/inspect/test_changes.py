"""Changes with which a waiting pod would fit."""

import random
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis.strategies import randoms

from hami.inspect.changes import MAX_ENDED, find_changes
from hami.inspect.cluster import InspectedCluster
from hami.model import PodScope, ScopeRequirement
from hami.state import dry_run
from testing.builders import gpu, gpus, node, pod, quota
from testing.cases import cases
from testing.records import PENDING, held, record, some_record

A100 = {"model": "NVIDIA A100", "memory_mib": 80_000}
T4 = {"model": "NVIDIA T4", "memory_mib": 16_000}
TYPE = "nvidia.com/use-gputype"


def changes_of(cluster):
    """Returns the changes for the pod that waits in *cluster*; ``None`` if it fits."""
    inspected = InspectedCluster(cluster)
    waiting, view = inspected.pod_named("default", PENDING), inspected.view
    if dry_run.choose(view, waiting, inspected.offered) is not None:
        return None
    refusal = dry_run.refuse(view, waiting, inspected.offered)
    return find_changes(
        inspected, view, waiting, [node.node for node in dry_run.closest(view, refusal)]
    )


def texts(cluster):
    return [" and ".join(part.text for part in change.parts) for change in changes_of(cluster)]


def waiting(*containers, **notes):
    return pod(*containers, name=PENDING, annotations=notes)


@cases(
    "nodes, pods, requests, notes, expected",
    (
        "memory",
        [node("n", gpu(**T4))],
        [],
        gpus(1, 20_000),
        {},
        ["it asks for at most 16,000 MiB of each NVIDIA device"],
    ),
    (
        "cores",
        [node("n", gpu(**T4))],
        [held("a", "n", ("GPU-0", 6000, 30))],
        gpus(1, 1000, 90),
        {},
        ["it asks for at most 70 cores of each NVIDIA device", "pod default/a ends"],
    ),
    (
        "devices",
        [node("n", gpu(**T4))],
        [],
        gpus(2, 1000),
        {},
        ["each container asks for at most 1 NVIDIA device"],
    ),
    (
        "type",
        [node("n", gpu(**T4))],
        [],
        gpus(1, 1000),
        {TYPE: "A100"},
        [f"it asks for the type NVIDIA T4 (annotation {TYPE})"],
    ),
    (
        "memory and type",
        [node("n", gpu(**T4))],
        [],
        gpus(1, 20_000),
        {TYPE: "A100"},
        [
            f"it asks for at most 16,000 MiB of each NVIDIA device and it asks for the "
            f"type NVIDIA T4 (annotation {TYPE})"
        ],
    ),
    (
        "card",
        [node("n", gpu(**T4), annotations={"hami.io/device-cordon": "GPU-0"})],
        [],
        gpus(1, 1000),
        {},
        ["card GPU-0 of node n is uncordoned (annotation hami.io/device-cordon)"],
    ),
    (
        "node",
        [node("m", gpu(**T4)), replace(node("n", gpu(**A100)), unschedulable=True)],
        [],
        gpus(1, 20_000),
        {},
        [
            "it asks for at most 16,000 MiB of each NVIDIA device",
            "node n is uncordoned (kubectl uncordon n)",
        ],
    ),
    (
        "slot",
        [node("n", gpu(slots=1, **T4))],
        [held("a", "n", ("GPU-0", 10, 0))],
        gpus(1, 1000),
        {},
        ["pod default/a ends"],
    ),
    (
        "mutex",
        [node("n", gpu(**T4))],
        [held("a", "n", ("GPU-0", 10, 0))],
        gpus(1, 1000),
        {"hami.io/gpu-scheduler-policy": "mutex"},
        ["its devices may be shared with other pods", "pod default/a ends"],
    ),
    (
        "numa",
        [node("n", gpu("a", numa=0, **T4), gpu("b", numa=1, **T4))],
        [],
        gpus(2, 1000),
        {"nvidia.com/numa-bind": "true"},
        [
            "each container asks for at most 1 NVIDIA device",
            "its devices may be on several NUMA nodes",
        ],
    ),
    (
        "memory and a pod",
        [node("n", gpu(slots=1, **T4))],
        [held("a", "n", ("GPU-0", 10, 0))],
        gpus(1, 20_000),
        {},
        ["it asks for at most 16,000 MiB of each NVIDIA device and pod default/a ends"],
    ),
    ("nothing", [node("n", gpu(healthy=False, **T4))], [], gpus(1, 1000), {}, []),
)
def test_the_smallest_changes(nodes, pods, requests, notes, expected):
    assert texts(record(nodes, [*pods, waiting(requests, **notes)])) == expected


def test_the_smallest_pod_that_suffices_ends():
    pods = [
        held(name, "n", ("GPU-0", memory, 0))
        for name, memory in (("big", 9000), ("small", 1000), ("fit", 5000))
    ]
    assert (
        texts(record([node("n", gpu(**T4))], [*pods, waiting(gpus(1, 5000))]))[-1]
        == "pod default/fit ends"
    )


def test_a_quota_may_be_higher():
    changes = changes_of(
        record([node("n", gpu(**T4))], [waiting(gpus(1, 3000))], [quota(gpumem=2000)])
    )
    assert [tuple(part.text for part in change.parts) for change in changes] == [
        ("it asks for at most 2,000 MiB of each NVIDIA device",),
        ("the quota quota allows more of limits.nvidia.com/gpumem than 2000",),
    ]


def test_only_quotas_of_the_pod_may_be_lifted():
    quotas = [
        quota(name, gpumem=0, gpucores=0, scopes=[ScopeRequirement(scope)])
        for name, scope in (
            ("plain", "NotTerminating"),
            ("brief", "Terminating"),
            ("short", "Terminating"),
        )
    ]
    brief = replace(waiting(gpus(1, 3000, 10)), scope=PodScope(has_deadline=True))
    assert texts(record([node("n", gpu(**T4))], [brief], quotas)) == [
        "the namespace has no quota of devices (now brief, short)"
    ]


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_quotas_are_in_the_order_of_their_names(names):
    """Not in that of the watch, which differs between processes."""
    quotas = [quota(name, gpumem=0, gpucores=0) for name in names]
    assert texts(record([node("n", gpu(**T4))], [waiting(gpus(1, 3000))], quotas)) == [
        "the namespace has no quota of devices (now a, b)"
    ]


def test_pods_that_a_quota_of_the_pod_does_not_count_are_not_tried():
    """However many there are, the one that helps is found. All are on a node that is not offered."""
    limits = quota(gpumem=9000, scopes=[ScopeRequirement("NotTerminating")])
    full = replace(node("full", gpu(slots=2 * MAX_ENDED, **A100)), unschedulable=True)
    brief = [
        held(f"brief-{number}", "full", ("GPU-0", 1, 0), scope=PodScope(has_deadline=True))
        for number in range(MAX_ENDED + 1)
    ]
    pods = [*brief, held("long", "full", ("GPU-0", 6000, 0)), waiting(gpus(1, 5000))]
    assert "pod default/long ends" in texts(
        record([node("n", gpu("free", **A100)), full], pods, [limits])
    )


@settings(max_examples=200)
@given(rng=randoms(use_true_random=True))
def test_a_waiting_pod_fits_after_the_change(rng):
    changes = changes_of(some_record(rng))
    assume(changes)
    for change in changes:
        assert dry_run.choose(change.view, change.pod, [change.node]) is not None


@pytest.mark.slow
def test_nearly_all_waiting_pods_get_a_change():
    chance, tried, helped = random.Random(0), 0, 0
    while tried < 125:
        if (changes := changes_of(some_record(chance))) is not None:
            tried += 1
            helped += bool(changes)
    assert helped >= 0.95 * tried
