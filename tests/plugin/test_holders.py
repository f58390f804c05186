"""Which pods hold a card, or a MIG instance on it."""

from dataclasses import replace

import pytest
from pytest import param

from hami.codec.keys import MIG_ALLOCATIONS
from hami.devices.cards import MigDevice
from hami.dra.guard import PreparedRequest, PreparedShare
from hami.node.checkpoint import CheckpointEntry
from hami.plugin.holders import CardHolders
from testing.plugin_stage import ALLOCATED, NVIDIA, A, B, asking, placed, share

ON_A = placed(asking(), name="on-a", shares=[[share(A)]])
ON_BOTH = placed(asking(), asking("d"), name="on-both", shares=[[share(B)], [share(A)]])
NEITHER = replace(placed(asking(), name="neither", shares=[[share(B)]]))


def with_uid(pod, uid):
    return replace(pod, ref=replace(pod.ref, uid=uid))


PODS = [with_uid(pod, pod.ref.name) for pod in (ON_A, ON_BOTH, NEITHER)]


def claimed(pod, *shares):
    return PreparedRequest(
        namespace="default",
        claim="c",
        uid="u",
        request="gpu",
        pod=pod,
        container="main",
        shares=tuple(shares),
    )


def names(found):
    return [pod.name for pod in found]


def holders(pods=PODS, prepared=(), allocations=()):
    return CardHolders(NVIDIA, lambda: pods, lambda: prepared, lambda: allocations)


def test_pods_that_the_scheduler_gave_the_card():
    assert names(holders().find(A)) == ["on-a", "on-both"]
    assert names(holders().find(B)) == ["on-both", "neither"]
    assert names(holders().find("GPU-other")) == []


def test_pods_that_have_ended_hold_nothing():
    assert names(holders([replace(PODS[0], phase="Failed")]).find(A)) == []


def test_an_allocation_that_cannot_be_read_holds_nothing():
    broken = replace(PODS[0], annotations={**PODS[0].annotations, ALLOCATED: "x,y"})
    assert names(holders([broken]).find(A)) == []


def test_pods_that_have_the_card_by_a_claim():
    bare = with_uid(replace(placed(asking(count=0), name="claims"), annotations={}), "claims")
    found = holders(
        [bare, *PODS],
        [claimed("claims", PreparedShare(uuid=A, memory_mib=1, cores=1, share_milli=1))],
    )
    assert names(found.find(A)) == ["claims", "on-a", "on-both"]
    assert names(found.find(B)) == ["on-both", "neither"]


def test_pods_that_have_an_instance_of_the_card_by_the_kubelet():
    made = holders(
        [with_uid(replace(placed(asking(), name="static"), annotations={}), "s")],
        allocations=[
            CheckpointEntry("s", "main", "nvidia.com/mig-1g.10gb", {"-1": ["MIG-1"]}),
            CheckpointEntry("t", "main", "nvidia.com/mig-1g.10gb", {"-1": ["MIG-2"]}),
        ],
    )
    assert names(made.find(A)) == []
    made.update_instances(
        [
            MigDevice(
                gpu=A,
                uuid=f"MIG-{number}",
                profile="1g.10gb",
                memory_mib=1,
                gpu_instance=number,
                compute_instance=0,
            )
            for number in (1, 2)
        ]
    )
    assert names(made.find(A)) == ["static"]
    assert names(made.find(A, (1, 0))) == ["static"]
    assert names(made.find(A, (2, 0))) == []


@pytest.mark.parametrize(
    "instance, expected",
    [
        param((5, 0), ["mig"], id="its"),
        param((6, 0), [], id="another"),
        param(None, ["mig"], id="card"),
    ],
)
def test_pods_that_the_scheduler_gave_an_instance(instance, expected):
    text = (
        '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"%s","profile":"1g.10gb",'
        '"placement":{"start":0,"size":1},"migUUID":"MIG-1","gpuInstanceID":5,'
        '"computeInstanceID":0}]' % A
    )
    pod = replace(
        PODS[0],
        ref=replace(PODS[0].ref, name="mig"),
        annotations={**PODS[0].annotations, MIG_ALLOCATIONS: text},
    )
    assert names(holders([pod]).find(A, instance)) == expected


def test_pods_that_are_not_known():
    assert holders(None).find(A) is None


def test_the_cards_of_a_pod_are_those_of_its_allocation_and_its_claims():
    share_of_b = PreparedShare(uuid=B, memory_mib=1, cores=1, share_milli=1)
    made = holders(prepared=[claimed("on-a", share_of_b)])
    assert made.cards_of("on-a") == {A, B}
    assert made.cards_of("neither") == {B}
    assert made.cards_of("unknown") == set()
    assert holders(None).cards_of("on-a") is None
