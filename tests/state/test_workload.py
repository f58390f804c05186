"""The usual pods are those that come, the latest count most, and no namespace writes the mix of the others."""

import itertools

import pytest

from hami.scheduling.usual_pods import COMMON, MERGED, UsualPod
from hami.state.workload import FIRST, HALF_LIFE, MAX_COUNTS, Workload


def kind(cores, **fields):
    return UsualPod("NVIDIA", 1, cores, **fields)


UIDS = map(str, itertools.count())


def come(workload, namespace, of_kind):
    workload.add(next(UIDS), namespace, of_kind)


def shares(workload):
    """How often each kind comes, of all pods."""
    kinds = workload.estimate()
    return {kind.cores: count / sum(kinds.values()) for kind, count in kinds.items()}


def test_kinds_count_as_often_as_they_come():
    workload = Workload()
    for number in range(100):
        come(workload, f"ns{number % 5}", kind(10 if number % 4 else 50))
    assert shares(workload) == pytest.approx({10: 0.75, 50: 0.25}, abs=0.01)


def test_earlier_pods_count_half_after_some_thousands():
    workload = Workload()
    for cores in (10, 50):
        for number in range(HALF_LIFE):
            come(workload, f"ns{number % 5}", kind(cores))
    assert shares(workload) == pytest.approx({10: 1 / 3, 50: 2 / 3}, abs=0.01)


@pytest.mark.parametrize("count", [100, 100_000])
def test_of_pods_that_are_there_at_the_start_none_counts_more_than_another(count):
    workload = Workload()
    workload.add_running({("a", kind(10)): 3 * count, ("z", kind(50)): count})
    assert workload.is_due()
    assert shares(workload) == pytest.approx({10: 0.75, 50: 0.25})


def test_many_pods_that_are_there_at_the_start_count_as_those_of_an_endless_row():
    workload = Workload()
    workload.add_running({(f"ns{number}", kind(10)): 20_000 for number in range(5)})
    for number in range(HALF_LIFE):
        come(workload, f"ns{number % 5}", kind(50))
    assert shares(workload) == pytest.approx({10: 0.5, 50: 0.5}, abs=0.01)


def test_no_pods_at_the_start():
    workload = Workload()
    workload.add_running({})
    assert (workload.size, workload.is_due(), workload.turnover) == (0, False, 1.0)


def test_a_namespace_stands_for_a_quarter_at_most():
    workload = Workload()
    for number in range(1000):
        come(workload, "flood", kind(99))
        if number % 100 == 0:
            for namespace in "abcd":
                come(workload, namespace, kind(10))
    assert shares(workload) == pytest.approx({99: 0.25, 10: 0.75}, abs=0.01)


@pytest.mark.parametrize("namespaces", [1, 3])
def test_few_namespaces_are_not_limited(namespaces):
    workload = Workload()
    for number in range(100):
        come(workload, "large", kind(99))
    for number in range(1, namespaces):
        come(workload, f"small{number}", kind(10))
    assert shares(workload)[99] > 0.9


def test_the_estimate_is_due_soon_at_first_and_seldom_later():
    workload, due = Workload(), []
    for number in range(1, 5000):
        come(workload, "ns", kind(10))
        if workload.is_due():
            workload.estimate()
            due.append(number)
    assert due[:3] == [FIRST, 2 * FIRST, 3 * FIRST]
    assert due[-1] - due[-2] == 256


def test_what_tenants_can_make_it_keep_is_bounded():
    workload = Workload()
    for number in range(3 * MAX_COUNTS):
        come(workload, f"ns{number % 1000}", kind(number % 101, memory_mib=number))
    assert len(workload.estimate()) <= COMMON + MERGED
    assert workload.size <= MAX_COUNTS + COMMON + MERGED
    workload = Workload()
    workload.add_running(
        {(f"ns{n % 1000}", kind(n % 101, memory_mib=n)): 1 for n in range(3 * MAX_COUNTS)}
    )
    assert workload.size <= MAX_COUNTS + COMMON + MERGED


def test_counts_stay_finite():
    workload = Workload()
    for _ in range(400 * HALF_LIFE // 100):
        come(workload, "ns", kind(10))
    assert shares(workload) == {10: 1.0}
