"""Several quotas in a namespace, and what their watch may do."""

from dataclasses import replace

import pytest

from tests.builders import quota
from tests.cache.caches import SmallCache


@pytest.fixture
def book():
    return SmallCache().quotas


def test_all_quotas_of_a_namespace_hold(book):
    book.upsert(quota("a", gpumem=1))
    book.upsert(quota("b", gpumem=2))
    book.upsert(quota("c", namespace="other", gpumem=3))
    assert set(book.of("default")) == {"uid-a", "uid-b"}
    book.remove(quota("a"))
    assert set(book.of("default")) == {"uid-b"}


def test_the_latest_version_of_a_quota_holds(book):
    for version, limit in (("10", 1), ("12", 2), ("11", 3)):
        book.upsert(replace(quota(gpumem=limit), resource_version=version))
    assert [one.limits for one in book.all()] == [{"nvidia.com/gpumem": 2}]


def test_what_a_list_does_not_show_is_gone(book):
    book.upsert(quota("a", gpumem=1))
    book.upsert(quota("b", namespace="other", gpumem=1))
    book.prune({"uid-a"}, 0.0)
    assert [one.name for one in book.all()] == ["a"] and book.of("other") == {}


def test_removing_what_is_not_there_is_nothing(book):
    book.remove(quota("a"))
    assert book.all() == []
