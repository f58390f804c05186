"""Namespace quotas."""

from dataclasses import replace

import pytest

from hami.model import Budget, PodScope, ScopeRequirement
from hami.scheduling.quota import budgets_of, lowest_limit, remaining_budget
from testing.builders import NVIDIA, nvidia, quota
from testing.cases import cases

IN_GIB = replace(
    NVIDIA, resources=replace(NVIDIA.resources, memory_factor=1024, memory_units=True)
)  # or as written


@cases(
    "memory_mib, cores, covered", (0, 0, True), (4000, 200, True), (4001, 0, False), (0, 201, False)
)
def test_covers(memory_mib, cores, covered):
    assert Budget(4000, 200).covers(memory_mib, cores) is covered


@pytest.mark.parametrize("devices, covered", [(0, True), (2, True), (3, False)])
def test_covers_devices(devices, covered):
    assert Budget(devices=2).covers(10**9, 10**6, devices) is covered


def test_no_limit_covers_everything():
    assert Budget().covers(10**12, 10**6)
    assert Budget(memory_mib=5).covers(5, 10**6)
    assert Budget(cores=5).covers(10**12, 5)


@cases(
    "quotas, limit",
    ("none", [], None),
    ("one", [quota(gpumem=5)], 5),
    ("nothing at all", [quota(gpumem=0)], 0),
    ("another resource", [quota(gpucores=5)], None),
    ("the lowest of several", [quota("a", gpumem=5), quota("b", gpumem=3), quota("c")], 3),
)
def test_limit(quotas, limit):
    assert lowest_limit(quotas, "nvidia.com/gpumem") == limit


def test_a_resource_without_name_has_no_limit():
    assert lowest_limit([quota(gpumem=5)], "") is None


@cases(
    "vendor, quotas, used, left",
    ("what is left", NVIDIA, [quota(gpumem=4000, gpucores=200)], (1000, 50), Budget(3000, 150)),
    ("overdrawn", NVIDIA, [quota(gpumem=4000)], (5000, 50), Budget(-1000, None)),
    (
        "two quotas",
        NVIDIA,
        [quota("a", gpumem=4000), quota("b", gpucores=10)],
        (0, 0),
        Budget(4000, 10),
    ),
    ("none", NVIDIA, [], (1000, 50), Budget()),
    ("factor", nvidia(memory_factor=1024), [quota(gpumem=4)], (2048, 0), Budget(2048, None)),
    ("bare", IN_GIB, [quota(gpumem=4)], (0, 0), Budget(4096, None)),
    (
        "3Gi as a unit",
        IN_GIB,
        [quota(binary=["gpumem"], gpumem=3 << 30)],
        (1024, 0),
        Budget(2048, None),
    ),
    (
        "the lowest in MiB, not as written",
        IN_GIB,
        [quota("a", binary=["gpumem"], gpumem=3 << 30), quota("b", gpumem=4)],
        (0, 0),
        Budget(3072, None),
    ),
    (
        "3Gi as a number",
        NVIDIA,
        [quota(binary=["gpumem"], gpumem=3 << 30)],
        (0, 0),
        Budget(3 << 30, None),
    ),
    ("factor of nothing", nvidia(memory_factor=0), [quota(gpumem=4)], (0, 0), Budget(4, None)),
)
def test_budget(vendor, quotas, used, left):
    assert remaining_budget(vendor, quotas, {PodScope(): used}) == left


# scopes

HIGH, LOW, PLAIN = PodScope(priority_class="high"), PodScope(priority_class="low"), PodScope()
BRIEF, IDLE, AWAY = (
    PodScope(has_deadline=True),
    PodScope(is_best_effort=True),
    PodScope(crosses_namespaces=True),
)
ALL = {"high": HIGH, "low": LOW, "plain": PLAIN, "brief": BRIEF, "idle": IDLE, "away": AWAY}


def classes(operator, *values):
    """A requirement on the priority class."""
    return ScopeRequirement("PriorityClass", operator, values)


@cases(
    "scopes, matching",
    ("none", [], "high low plain brief idle away"),
    ("Terminating", [ScopeRequirement("Terminating")], "brief"),
    ("NotTerminating", [ScopeRequirement("NotTerminating")], "high low plain idle away"),
    ("BestEffort", [ScopeRequirement("BestEffort")], "idle"),
    ("NotBestEffort", [ScopeRequirement("NotBestEffort")], "high low plain brief away"),
    ("CrossNamespacePodAffinity", [ScopeRequirement("CrossNamespacePodAffinity")], "away"),
    ("In", [classes("In", "high", "other")], "high"),
    ("In the empty name", [classes("In", "")], ""),
    (
        "NotIn, also without a class",
        [classes("NotIn", "high", "other")],
        "low plain brief idle away",
    ),
    ("Exists", [classes("Exists")], "high low"),
    ("DoesNotExist", [classes("DoesNotExist")], "plain brief idle away"),
    ("an operator that is not known", [classes("Like", "high")], ""),
    ("a scope that is not of pods", [ScopeRequirement("VolumeAttributesClass")], ""),
    (
        "all must match",
        [classes("DoesNotExist"), ScopeRequirement("NotTerminating")],
        "plain idle away",
    ),
    (
        "the operator matters for classes only",
        [ScopeRequirement("BestEffort", "In", ("x",))],
        "idle",
    ),
)
def test_a_quota_selects_the_pods_in_all_of_its_scopes(scopes, matching):
    limits = quota(scopes=scopes)
    assert [name for name, scope in ALL.items() if limits.matches(scope)] == matching.split()


USED = {HIGH: (1000, 10), LOW: (300, 5), PLAIN: (20, 1)}
OF_HIGH = quota("a", gpumem=4000, scopes=[classes("In", "high")])
OF_BOTH = quota("b", gpumem=4500, scopes=[classes("Exists")])


@cases(
    "quotas, scope, left",
    ("in scope", [OF_HIGH], HIGH, 3000),
    ("another class", [OF_HIGH], LOW, None),
    ("no class", [OF_HIGH], PLAIN, None),
    ("the least of two", [OF_HIGH, OF_BOTH], HIGH, 3000),
    ("one of two", [OF_HIGH, OF_BOTH], LOW, 3200),
    ("none of two", [OF_HIGH, OF_BOTH], PLAIN, None),
    (
        "the lowest limit is not the least that is left",
        [OF_HIGH, OF_BOTH, quota("c", gpumem=1400)],
        HIGH,
        80,
    ),
    ("beside a quota for all", [OF_HIGH, quota("c", gpumem=1400)], PLAIN, 80),
)
def test_a_budget_is_the_least_that_is_left_by_the_quotas_of_the_pod(quotas, scope, left):
    budgets = budgets_of(
        [NVIDIA], {one.uid: one for one in quotas}, scope, {"NVIDIA": USED}.__getitem__
    )
    assert budgets == ({} if left is None else {"NVIDIA": Budget(left, None)})
