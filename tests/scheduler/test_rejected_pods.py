"""Pods that their kubelet has rejected for good, in rounds of the controller."""

from dataclasses import replace

import pytest

from hami.codec.pods import REJECTED
from hami.errors import ClusterError
from hami.model import OwnerRef
from hami.scheduler.rejected_pods import RETRY_S, SETTLE_S
from hami.scheduler.settings import NONE, Settings
from testing.builders import gpu, gpus, node, pod
from testing.replicas import Clock, Replica, WatchedCluster

MESSAGE = (
    "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices "
    "nvidia.com/gpu, which is unexpected"
)
EARLY, LATE = "2026-08-21T11:00:00Z", "2026-08-21T11:30:00Z"
RS = OwnerRef("default", "web-1", "rs", "ReplicaSet", "apps/v1")


def failed(name, controller="rs", reason=REJECTED, message=MESSAGE, started=EARLY, **fields):
    return pod(
        gpus(),
        name=name,
        node_name="n1",
        phase="Failed",
        failure=f"{reason}: {message}",
        started=started,
        controller=controller,
        **fields,
    )


def running(name, controller="rs", started=LATE, phase="Running"):
    return pod(
        gpus(), name=name, node_name="n2", phase=phase, started=started, controller=controller
    )


def waiting(name, controller="rs"):
    return pod(gpus(), name=name, phase="Pending", controller=controller)


def world(*pods, owners=(RS,), settings=Settings(), **options):
    fake = WatchedCluster(pods=pods, nodes=[node("n1", gpu("GPU-0"))])
    fake.owners = {owner.uid: owner for owner in owners}
    return Replica(fake, Clock(), settings=settings, **options)


def settle(made, seconds=SETTLE_S):
    """Runs a round in which rejected pods are first seen, and one later."""
    made.controller.step()
    made.clock.seconds += seconds
    made.controller.step()
    made.watch()


def left(made):
    return sorted(name for _, name in made.fake.pods if made.fake.pods["default", name].failure)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([failed("a"), running("b")], []),
        ([failed("a"), running("b", phase="Succeeded")], []),
        ([failed("a"), waiting("b")], ["a"]),
        ([failed("a")], ["a"]),
        ([failed("a"), running("b", started=EARLY.replace("11", "10"))], ["a"]),
        ([failed("a"), running("b", controller="other")], ["a"]),
        ([failed("a"), failed("b"), running("c"), waiting("d")], ["b"]),
        ([failed("a"), failed("b"), running("c"), running("d")], []),
        ([failed("a", reason="Evicted"), running("b")], ["a"]),
        ([failed("a", message="the plugin says no"), running("b")], ["a"]),
        ([failed("a", message="no healthy devices amd.com/gpu"), running("b")], ["a"]),
    ],
    ids=[
        "its replacement runs",
        "its replacement has finished",
        "its replacement waits",
        "nothing replaces it",
        "another one runs since before",
        "a pod of another controller runs",
        "one of two replacements runs",
        "both replacements run",
        "another reason",
        "no resource",
        "a resource that it does not request",
    ],
)
def test_a_rejected_pod_goes_once_a_pod_in_its_place_runs(pods, expected):
    made = world(*pods)
    settle(made)
    assert left(made) == expected


def test_the_owner_is_told():
    made = world(failed("a"), running("b"))
    settle(made)
    assert made.events.reasons() == ["RejectedPodDeleted"]
    assert made.events.subjects == [RS]
    assert "pod a" in made.events[0][1]
    assert "node n1" in made.events[0][1]


def test_a_controller_has_time_to_replace_a_pod():
    """Of two replicas one runs elsewhere for some time: it takes the place of none."""
    made = world(failed("a"), running("b"))
    settle(made, SETTLE_S - 1)
    assert left(made) == ["a"]
    made.clock.seconds += 1
    made.controller.step()
    assert left(made) == []


@pytest.mark.parametrize("settings", [Settings(), Settings(clean_rejected=NONE)], ids=str)
def test_a_pod_without_a_controller_is_told_once_what_to_do(settings):
    made = world(failed("a", controller=""), running("b", controller=""), settings=settings)
    settle(made)
    settle(made)
    assert left(made) == ["a"]
    assert made.events.reasons() == ["DevicesNotReady"]
    assert made.events.subjects == [made.fake.pods["default", "a"].ref]
    assert "or with a claim" in made.events[0][1]


def test_a_controller_that_may_not_replace_its_pods_is_named():
    ray = OwnerRef("default", "ray", "rs", "RayCluster", "ray.io/v1")
    made = world(failed("a"), running("b"), owners=[ray])
    settle(made)
    settle(made)
    assert left(made) == ["a"]
    assert made.events.reasons() == ["DevicesNotReady"]
    assert "RayCluster ray may not replace it" in made.events[0][1]
    assert len(made.fake.calls_of("controller")) == 1


def test_none_is_deleted_if_the_flag_says_so():
    made = world(failed("a"), running("b"), settings=Settings(clean_rejected=NONE))
    settle(made)
    assert left(made) == ["a"]
    assert made.events == []


def test_only_the_leader_deletes_pods():
    made = world(failed("a"), running("b"), leads=False)
    settle(made)
    assert left(made) == ["a"]


@pytest.mark.parametrize("method", ["controller", "evict"])
def test_a_refusal_is_not_repeated_every_round(method):
    made = world(failed("a"), running("b"))
    made.fake.fail(method, ClusterError("forbidden", 403), times=2)
    settle(made)
    for _ in range(3):
        made.clock.seconds += 1
        made.controller.step()
    assert len(made.fake.calls_of(method)) == 1
    assert left(made) == ["a"]
    settle(made, RETRY_S)
    settle(made, RETRY_S)
    assert left(made) == []


def test_a_pod_of_that_name_which_has_come_since_stays():
    made = world(failed("a"), running("b"))
    made.controller.step()
    made.clock.seconds += SETTLE_S
    again = running("a")
    made.fake.put_pod(replace(again, ref=replace(again.ref, uid="new")))
    made.controller.step()
    assert made.fake.pods["default", "a"].ref.uid == "new"
