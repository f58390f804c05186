"""Several quotas in a namespace, as their watch delivers them."""

from dataclasses import replace

import pytest

from testing.builders import quota
from testing.stores import SmallStore


@pytest.fixture
def quotas():
    return SmallStore().quotas


def test_all_quotas_of_a_namespace_apply(quotas):
    quotas.upsert(quota("a", gpumem=1))
    quotas.upsert(quota("b", gpumem=2))
    quotas.upsert(quota("c", namespace="other", gpumem=3))
    assert set(quotas.of("default")) == {"uid-a", "uid-b"}
    quotas.remove(quota("a"))
    assert set(quotas.of("default")) == {"uid-b"}


def test_the_latest_version_of_a_quota_applies(quotas):
    for version, limit in (("10", 1), ("12", 2), ("11", 3)):
        quotas.upsert(replace(quota(gpumem=limit), resource_version=version))
    assert [one.limits for one in quotas.all()] == [{"nvidia.com/gpumem": 2}]


def test_objects_that_are_missing_from_a_list_are_removed(quotas):
    quotas.upsert(quota("a", gpumem=1))
    quotas.upsert(quota("b", namespace="other", gpumem=1))
    quotas.prune({"uid-a"}, 0.0)
    assert [one.name for one in quotas.all()] == ["a"]
    assert quotas.of("other") == {}


def test_removing_an_unknown_quota_does_nothing(quotas):
    quotas.remove(quota("a"))
    assert quotas.all() == []
