"""Namespace quotas."""

from dataclasses import replace

import pytest
from pytest import param

from hami.model import Budget
from hami.scheduling.quota import lowest_limit, remaining_budget
from tests.builders import NVIDIA, nvidia, quota

IN_GIB = replace(NVIDIA, resources=replace(NVIDIA.resources, memory_factor=1024, memory_units=True))  # or as written


@pytest.mark.parametrize("memory_mib, cores, covered", [
    (0, 0, True), (4000, 200, True), (4001, 0, False), (0, 201, False),
])
def test_covers(memory_mib, cores, covered):
    assert Budget(4000, 200).covers(memory_mib, cores) is covered


def test_no_limit_covers_everything():
    assert Budget().covers(10**12, 10**6)
    assert Budget(memory_mib=5).covers(5, 10**6) and Budget(cores=5).covers(10**12, 5)


@pytest.mark.parametrize("quotas, limit", [
    ([], None), ([quota(gpumem=5)], 5), ([quota(gpumem=0)], 0), ([quota(gpucores=5)], None),
    ([quota("a", gpumem=5), quota("b", gpumem=3), quota("c")], 3),
], ids=["none", "one", "nothing at all", "another resource", "the lowest of several"])
def test_limit(quotas, limit):
    assert lowest_limit(quotas, "nvidia.com/gpumem") == limit


def test_a_resource_without_name_has_no_limit():
    assert lowest_limit([quota(gpumem=5)], "") is None


@pytest.mark.parametrize("vendor, quotas, used, left", [
    param(NVIDIA, [quota(gpumem=4000, gpucores=200)], (1000, 50), Budget(3000, 150), id="what is left"),
    param(NVIDIA, [quota(gpumem=4000)], (5000, 50), Budget(-1000, None), id="overdrawn"),
    param(NVIDIA, [quota("a", gpumem=4000), quota("b", gpucores=10)], (0, 0), Budget(4000, 10), id="two quotas"),
    param(NVIDIA, [], (1000, 50), Budget(), id="none"),
    param(nvidia(memory_factor=1024), [quota(gpumem=4)], (2048, 0), Budget(2048, None), id="factor"),
    param(IN_GIB, [quota(gpumem=4)], (0, 0), Budget(4096, None), id="bare"),
    param(IN_GIB, [quota(binary=["gpumem"], gpumem=3 << 30)], (1024, 0), Budget(2048, None), id="3Gi as a unit"),
    param(IN_GIB, [quota("a", binary=["gpumem"], gpumem=3 << 30), quota("b", gpumem=4)], (0, 0), Budget(3072, None),
          id="the lowest in MiB, not as written"),
    param(NVIDIA, [quota(binary=["gpumem"], gpumem=3 << 30)], (0, 0), Budget(3 << 30, None), id="3Gi as a number"),
    param(nvidia(memory_factor=0), [quota(gpumem=4)], (0, 0), Budget(4, None), id="factor of nothing"),
])
def test_budget(vendor, quotas, used, left):
    assert remaining_budget(vendor, {q.name: q for q in quotas}, used) == left


def test_a_memory_factor_scales_the_quota():
    left = remaining_budget(nvidia(memory_factor=1024), {"q": quota(gpumem=4)}, (2048, 0))
    assert left.covers(2048, 0) and not left.covers(2049, 0)
