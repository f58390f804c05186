"""Namespace quotas."""

from dataclasses import replace

import pytest
from pytest import param

from hami.model import Budget, PodScope, ScopeRequirement
from hami.scheduling.quota import budgets_of, lowest_limit, remaining_budget
from testing.builders import NVIDIA, nvidia, quota

IN_GIB = replace(
    NVIDIA, resources=replace(NVIDIA.resources, memory_factor=1024, memory_units=True)
)  # or as written


@pytest.mark.parametrize(
    "memory_mib, cores, covered",
    [
        (0, 0, True),
        (4000, 200, True),
        (4001, 0, False),
        (0, 201, False),
    ],
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


@pytest.mark.parametrize(
    "quotas, limit",
    [
        ([], None),
        ([quota(gpumem=5)], 5),
        ([quota(gpumem=0)], 0),
        ([quota(gpucores=5)], None),
        ([quota("a", gpumem=5), quota("b", gpumem=3), quota("c")], 3),
    ],
    ids=["none", "one", "nothing at all", "another resource", "the lowest of several"],
)
def test_limit(quotas, limit):
    assert lowest_limit(quotas, "nvidia.com/gpumem") == limit


def test_a_resource_without_name_has_no_limit():
    assert lowest_limit([quota(gpumem=5)], "") is None


@pytest.mark.parametrize(
    "vendor, quotas, used, left",
    [
        param(
            NVIDIA,
            [quota(gpumem=4000, gpucores=200)],
            (1000, 50),
            Budget(3000, 150),
            id="what is left",
        ),
        param(NVIDIA, [quota(gpumem=4000)], (5000, 50), Budget(-1000, None), id="overdrawn"),
        param(
            NVIDIA,
            [quota("a", gpumem=4000), quota("b", gpucores=10)],
            (0, 0),
            Budget(4000, 10),
            id="two quotas",
        ),
        param(NVIDIA, [], (1000, 50), Budget(), id="none"),
        param(
            nvidia(memory_factor=1024),
            [quota(gpumem=4)],
            (2048, 0),
            Budget(2048, None),
            id="factor",
        ),
        param(IN_GIB, [quota(gpumem=4)], (0, 0), Budget(4096, None), id="bare"),
        param(
            IN_GIB,
            [quota(binary=["gpumem"], gpumem=3 << 30)],
            (1024, 0),
            Budget(2048, None),
            id="3Gi as a unit",
        ),
        param(
            IN_GIB,
            [quota("a", binary=["gpumem"], gpumem=3 << 30), quota("b", gpumem=4)],
            (0, 0),
            Budget(3072, None),
            id="the lowest in MiB, not as written",
        ),
        param(
            NVIDIA,
            [quota(binary=["gpumem"], gpumem=3 << 30)],
            (0, 0),
            Budget(3 << 30, None),
            id="3Gi as a number",
        ),
        param(
            nvidia(memory_factor=0),
            [quota(gpumem=4)],
            (0, 0),
            Budget(4, None),
            id="factor of nothing",
        ),
    ],
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


@pytest.mark.parametrize(
    ("scopes", "matching"),
    [
        param([], "high low plain brief idle away", id="none"),
        param([ScopeRequirement("Terminating")], "brief", id="Terminating"),
        param(
            [ScopeRequirement("NotTerminating")], "high low plain idle away", id="NotTerminating"
        ),
        param([ScopeRequirement("BestEffort")], "idle", id="BestEffort"),
        param([ScopeRequirement("NotBestEffort")], "high low plain brief away", id="NotBestEffort"),
        param(
            [ScopeRequirement("CrossNamespacePodAffinity")], "away", id="CrossNamespacePodAffinity"
        ),
        param([classes("In", "high", "other")], "high", id="In"),
        param([classes("In", "")], "", id="In the empty name"),
        param(
            [classes("NotIn", "high", "other")],
            "low plain brief idle away",
            id="NotIn, also without a class",
        ),
        param([classes("Exists")], "high low", id="Exists"),
        param([classes("DoesNotExist")], "plain brief idle away", id="DoesNotExist"),
        param([classes("Like", "high")], "", id="an operator that is not known"),
        param([ScopeRequirement("VolumeAttributesClass")], "", id="a scope that is not of pods"),
        param(
            [classes("DoesNotExist"), ScopeRequirement("NotTerminating")],
            "plain idle away",
            id="all must match",
        ),
        param(
            [ScopeRequirement("BestEffort", "In", ("x",))],
            "idle",
            id="the operator matters for classes only",
        ),
    ],
)
def test_a_quota_selects_the_pods_in_all_of_its_scopes(scopes, matching):
    limits = quota(scopes=scopes)
    assert [name for name, scope in ALL.items() if limits.matches(scope)] == matching.split()


USED = {HIGH: (1000, 10), LOW: (300, 5), PLAIN: (20, 1)}
OF_HIGH = quota("a", gpumem=4000, scopes=[classes("In", "high")])
OF_BOTH = quota("b", gpumem=4500, scopes=[classes("Exists")])


@pytest.mark.parametrize(
    ("quotas", "scope", "left"),
    [
        ([OF_HIGH], HIGH, 3000),
        ([OF_HIGH], LOW, None),
        ([OF_HIGH], PLAIN, None),
        ([OF_HIGH, OF_BOTH], HIGH, 3000),
        ([OF_HIGH, OF_BOTH], LOW, 3200),
        ([OF_HIGH, OF_BOTH], PLAIN, None),
        ([OF_HIGH, OF_BOTH, quota("c", gpumem=1400)], HIGH, 80),
        ([OF_HIGH, quota("c", gpumem=1400)], PLAIN, 80),
    ],
    ids=[
        "in scope",
        "another class",
        "no class",
        "the least of two",
        "one of two",
        "none of two",
        "the lowest limit is not the least that is left",
        "beside a quota for all",
    ],
)
def test_a_budget_is_the_least_that_is_left_by_the_quotas_of_the_pod(quotas, scope, left):
    budgets = budgets_of(
        [NVIDIA], {one.uid: one for one in quotas}, scope, {"NVIDIA": USED}.__getitem__
    )
    assert budgets == ({} if left is None else {"NVIDIA": Budget(left, None)})
