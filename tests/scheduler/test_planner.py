"""What the planner keeps of pods and gangs is bounded."""

from hami.errors import ClusterError
from hami.model import PodGroup, PodGroupRef
from hami.runtime.in_flight import InFlight
from hami.scheduler.planner import (
    GROUPS_S,
    MAX_GROUPS,
    MAX_GROUPS_READ,
    MAX_KEPT,
    PreemptionPlanner,
)
from hami.scheduler.settings import Settings
from testing.builders import pod
from testing.fake_cluster import FakeCluster
from testing.replicas import Clock


def planner_of(cluster, clock):
    return PreemptionPlanner(cluster, Settings(), InFlight(), clock=clock, now=clock.now)


def test_the_sizes_of_many_gangs_are_not_all_kept():
    cluster, clock = FakeCluster(), Clock()
    planner = planner_of(cluster, clock)
    gangs = [pod(name=f"p{number}", group=f"gang-{number}") for number in range(MAX_GROUPS + 1)]
    cluster.pod_groups["default", "gang-0"] = PodGroup(min_count=3)
    assert [planner.gang_size(gangs[0]) for _ in range(2)] == [3, 3]
    assert len(cluster.calls) == 1
    for gang in gangs[1:]:
        assert planner.gang_size(gang) is None
    assert planner.gang_size(gangs[-1]) is None
    assert len(cluster.calls) == MAX_GROUPS + 1
    assert planner.gang_size(gangs[0]) == 3
    assert len(cluster.calls) == MAX_GROUPS + 2
    clock.seconds += GROUPS_S
    assert planner.gang_size(gangs[-1]) is None
    assert len(cluster.calls) == MAX_GROUPS + 3


def test_of_many_pods_that_are_left_to_kube_scheduler_the_latest_are_known():
    planner = planner_of(FakeCluster(), Clock())
    pods = [pod(name=f"p{number}").ref for number in range(MAX_KEPT + 1)]
    for ref in pods:
        planner.leave_to_kube_scheduler(ref, {})
    assert [planner.is_left_to_kube_scheduler(pods[number]) for number in (0, 1, MAX_KEPT)] == [
        False,
        True,
        True,
    ]


def test_very_many_pods_and_gangs_of_one_namespace_push_out_none_of_another():
    cluster, clock = FakeCluster(), Clock()
    planner = planner_of(cluster, clock)
    other = pod(name="p", namespace="other", group="gang")
    planner.leave_to_kube_scheduler(other.ref, {})
    planner.gang_size(other)
    for number in range(MAX_GROUPS + MAX_KEPT):
        one = pod(name=f"p{number}", group=f"gang-{number}")
        planner.leave_to_kube_scheduler(one.ref, {})
        planner.gang_size(one)
    calls = len(cluster.calls)
    planner.gang_size(other)
    assert planner.is_left_to_kube_scheduler(other.ref)
    assert len(cluster.calls) == calls


def test_a_plan_reads_a_bounded_number_of_groups():
    """The others are not known to it; those that another plan has read are."""
    cluster = FakeCluster()
    planner = planner_of(cluster, Clock())
    refs = [PodGroupRef("default", f"gang-{number}") for number in range(MAX_GROUPS_READ + 1)]
    cluster.pod_groups |= {(ref.namespace, ref.name): PodGroup(min_count=2) for ref in refs}
    known = planner.rules().pod_groups
    assert [known(ref) is not None for ref in refs] == [True] * MAX_GROUPS_READ + [False]
    assert len(cluster.calls_of("pod_group")) == MAX_GROUPS_READ
    known = planner.rules().pod_groups
    assert all(known(ref) is not None for ref in refs)


def test_a_group_that_may_not_be_read_is_not_known():
    cluster = FakeCluster()
    planner = planner_of(cluster, Clock())
    cluster.fail("pod_group", ClusterError("forbidden", 403))
    known = planner.rules().pod_groups
    assert known(PodGroupRef("default", "gang")) is None
