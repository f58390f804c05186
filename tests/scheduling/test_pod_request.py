"""PreFilter: a pod's request."""

import re
from dataclasses import replace

import pytest

from hami.codec.device_config import chart_config
from hami.codec.policies import parse_device_policy
from hami.errors import MalformedInput
from hami.model import NodePolicy, Selector, Weights
from hami.scheduling.node_order import node_order_of
from hami.scheduling.pod_request import make_pod_request
from hami.vendors.catalog import vendors
from testing.builders import (
    APP,
    INIT,
    ONLY_NVIDIA,
    SIDECAR,
    container,
    gpus,
    pod,
    pod_request,
    request,
)
from testing.cases import cases

CPU = container({"cpu": "1"})


def test_containers_in_their_order_and_kind():
    asked = pod_request(gpus(1, 1000), CPU, gpus(1, 2000, kind=INIT), gpus(1, 3000, kind=SIDECAR))
    assert asked.kinds == (INIT, SIDECAR, APP, APP)
    assert [c.requests for c in asked.containers] == [
        (request(1, 2000),),
        (request(1, 3000),),
        (request(1, 1000),),
        (),
    ]


@cases(
    "containers",
    ("none", ()),
    ("cpu", (CPU,)),
    ("zero", (gpus(0, 1000),)),
    ("void", (gpus(1, "1.5"),)),
)
def test_a_pod_that_asks_for_no_device(containers):
    assert make_pod_request(pod(*containers), ONLY_NVIDIA, "spread") is None


def test_one_claim_a_vendor_with_selectors():
    selectors = {
        "nvidia.com/use-gputype": "A40",
        "nvidia.com/nouse-gpuuuid": "GPU-1",
        "nvidia.com/vgpu-mode": "hami-core",
    }
    asked = pod_request(gpus(), gpus(), annotations=selectors)
    (vendor_request,) = asked.vendor_requests
    assert vendor_request is asked.vendor_request("NVIDIA")
    assert vendor_request.selector == Selector(
        use_types=("A40",), nouse_uuids=("GPU-1",), mode="hami-core"
    )


@cases(
    "annotations, policy, numa_bind",
    ({}, "binpack", False),
    ({"hami.io/gpu-scheduler-policy": "mutex"}, "mutex", False),
    ({"hami.io/gpu-scheduler-policy": ""}, "binpack", False),
    ({"hami.io/gpu-scheduler-policy": " "}, "binpack", False),
    ({"hami.io/gpu-scheduler-policy": "sprad"}, "binpack", False),
    ({"hami.io/gpu-scheduler-policy": "Spread"}, "spread", False),
    ({"hami.io/gpu-scheduler-policy": "Spread, numa"}, "spread,numa", False),
    ({"nvidia.com/numa-bind": "TRUE "}, "binpack", True),
    ({"nvidia.com/numa-bind": "t"}, "binpack", True),
    ({"nvidia.com/numa-bind": "yes"}, "binpack", False),
)
def test_policy(annotations, policy, numa_bind):
    asked = pod_request(gpus(), annotations=annotations, policy="binpack")
    assert asked.policy == parse_device_policy(policy, numa_bind=numa_bind)


def test_weights():
    assert pod_request(gpus()).weights == Weights(1, 1, 1)
    weighted = pod_request(
        gpus(), annotations={"hami.io/device-scoring-weights": "slot=1,core=1,memory=3"}
    )
    assert weighted.weights == Weights(1, 1, 3)


def test_unreadable_weights():
    with pytest.raises(MalformedInput, match="expected slot, core, and memory weights"):
        pod_request(gpus(), annotations={"hami.io/device-scoring-weights": "slot=1,core=1"})


def test_equal_pods_ask_the_same_so_that_verdicts_can_be_remembered():
    first, second = (
        make_pod_request(pod(gpus(1, 1000), name=name), ONLY_NVIDIA, "spread")
        for name in ("a", "b")
    )
    assert first == second
    assert hash(first) == hash(second)


def claiming(*containers, **fields):
    return pod(*containers, claim="hami-0", **fields)


def test_a_pod_with_a_claim_asks_in_another_allocation_mode():
    plain, claimed = (
        make_pod_request(make(gpus(1, 1000)), ONLY_NVIDIA, "spread") for make in (pod, claiming)
    )
    assert claimed.by_claims
    assert not plain.by_claims
    assert replace(plain, by_claims=True) == claimed != plain
    assert claimed.fit_context("NVIDIA").by_claims
    assert not plain.fit_context("NVIDIA").by_claims


@cases(
    "made, problem",
    (claiming(claim_problem="cannot be read"), "claim hami-0: cannot be read"),
    (claiming(CPU), "claim hami-0: the pod has a claim, but requests no NVIDIA GPU"),
    (claiming(container({"amd.com/gpu": 1})), "the pod has a claim, but requests no NVIDIA GPU"),
    (
        claiming(gpus(), container({"amd.com/gpu": 1})),
        "container c: amd.com/gpu=1: claims are for NVIDIA GPUs only",
    ),
    (
        claiming(gpus(), container({"nvidia.com/mig-1g.5gb": 1})),
        "nvidia.com/mig-1g.5gb=1: claims are for NVIDIA",
    ),
    (claiming(gpus(20), gpus(13)), "a claim has at most 32 GPUs"),
)
def test_a_claim_that_cannot_give_what_the_pod_asks_for(made, problem):
    with pytest.raises(MalformedInput, match=re.escape(problem)):
        make_pod_request(made, vendors(chart_config()), "spread")


@cases(
    "annotation, default, policy",
    (None, "binpack", NodePolicy.BINPACK),
    ("what", "spread", NodePolicy.SPREAD),
    ("", "spread", NodePolicy.SPREAD),
    ("Spread", "binpack", NodePolicy.SPREAD),
    ("KUBE", "spread", NodePolicy.SPREAD),
)
def test_node_policy(annotation, default, policy):
    annotations = {} if annotation is None else {"hami.io/node-scheduler-policy": annotation}
    assert node_order_of(pod(gpus(), annotations=annotations), default).policy is policy


def test_a_pod_with_too_many_containers_is_not_placed():
    with pytest.raises(MalformedInput, match="containers: expected at most 128: '129'"):
        make_pod_request(pod(gpus(), *[CPU] * 128), ONLY_NVIDIA, "spread")
    assert make_pod_request(pod(*[CPU] * 1000), ONLY_NVIDIA, "spread") is None


@pytest.mark.parametrize(
    "key",
    [
        "nvidia.com/use-gputype",
        "nvidia.com/nouse-gputype",
        "nvidia.com/use-gpuuuid",
        "nvidia.com/nouse-gpuuuid",
    ],
)
def test_a_list_of_too_many_devices_is_not_compared_with_them(key):
    """It would keep the scheduler busy: all items are compared with all devices of the cluster."""
    items = [f"GPU-{n}" for n in range(1025)]
    with pytest.raises(MalformedInput, match=f"{key}: expected at most 1024 items"):
        pod_request(gpus(), annotations={key: ",".join(items)})
    assert pod_request(gpus(), annotations={key: ",".join(items[1:])}) is not None
