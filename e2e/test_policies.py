"""Policies by flag and annotation, and selectors of users."""

import pytest

from testing.cases import cases
from testing.kube import ApiError
from testing.nodes import gpu, gpus
from testing.pods import pod

NODE_POLICY = "hami.io/node-scheduler-policy"
GPU_POLICY = "hami.io/gpu-scheduler-policy"
A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"


def place(sandbox, count, **annotations):
    """Creates *count* equal pods one after the other; returns their nodes and devices."""
    for number in range(count):
        sandbox.create(pod(f"p{number}", gpu=1, gpumem=10_000, annotations=annotations))
        sandbox.started()
    return set(sandbox.started().values()), set().union(
        *(sandbox.cards(f"p{number}") for number in range(count))
    )


def two_nodes(sandbox):
    sandbox.add_gpu_nodes({"n0": gpus(2), "n1": gpus(2)})


def by_flag_and_annotation(flag, **expected):
    """Returns the parameters ``by``, ``policy`` and what is expected of it, with the flag where it decides."""
    return [
        pytest.param(
            by, policy, count, marks=[pytest.mark.flags(**{flag: policy})] if by == "flag" else []
        )
        for by in ("flag", "annotation")
        for policy, count in expected.items()
    ]


@pytest.mark.parametrize(
    ("by", "policy", "nodes"), by_flag_and_annotation("node_scheduler_policy", binpack=1, spread=2)
)
def test_node_policy(sandbox, by, policy, nodes):
    two_nodes(sandbox)
    used, _ = place(sandbox, 2, **({NODE_POLICY: policy} if by == "annotation" else {}))
    assert len(used) == nodes


@pytest.mark.parametrize(
    ("by", "policy", "cards"), by_flag_and_annotation("gpu_scheduler_policy", binpack=1, spread=2)
)
def test_gpu_policy(sandbox, by, policy, cards):
    sandbox.add_gpu_node("n0", *gpus(2))
    _, used = place(sandbox, 2, **({GPU_POLICY: policy} if by == "annotation" else {}))
    assert len(used) == cards


@pytest.mark.flags(node_scheduler_policy="spread", gpu_scheduler_policy="spread")
def test_an_annotation_overrules_the_flag(sandbox):
    two_nodes(sandbox)
    nodes, cards = place(sandbox, 3, **{NODE_POLICY: "binpack", GPU_POLICY: "binpack"})
    assert len(nodes) == len(cards) == 1


@pytest.mark.installation
def test_mutex_requires_an_unused_card(sandbox):
    sandbox.add_gpu_node("n0", *gpus(2))
    assert len(place(sandbox, 2, **{GPU_POLICY: "mutex"})[1]) == 2
    sandbox.create(pod("third", gpu=1, gpumem=1000, annotations={GPU_POLICY: "mutex"}))
    assert sandbox.refusal("third", "cannot be used exclusively")


@cases(
    "annotations, node",
    ("use-type", {"nvidia.com/use-gputype": "H100"}, "h"),
    ("use-one-of-several-types", {"nvidia.com/use-gputype": "V100,h100"}, "h"),
    ("nouse-type", {"nvidia.com/nouse-gputype": "H100"}, "a"),
)
def test_type_lists(sandbox, annotations, node):
    sandbox.add_gpu_nodes({"a": [gpu(model=A100)], "h": [gpu(model=H100)]})
    sandbox.create(pod("p", gpu=1, gpumem=1000, annotations=annotations))
    assert sandbox.started() == {"p": node}


def test_an_unknown_type(sandbox):
    sandbox.add_gpu_node("a", gpu(model=A100))
    sandbox.create(pod("p", gpu=1, gpumem=1000, annotations={"nvidia.com/use-gputype": "T4"}))
    assert sandbox.refusal("p", "of another type")


@cases("key, card", ("nvidia.com/use-gpuuuid", "n0/1"), ("nvidia.com/nouse-gpuuuid", "n0/0"))
def test_uuid_lists(sandbox, key, card):
    sandbox.add_gpu_node("n0", *gpus(2))
    sandbox.create(pod("p", gpu=1, gpumem=1000, annotations={key: sandbox.uuid("n0", 1)}))
    sandbox.started()
    assert sandbox.cards("p") == {card}


def test_an_unknown_uuid(sandbox):
    sandbox.add_gpu_node("n0")
    sandbox.create(
        pod("p", gpu=1, gpumem=1000, annotations={"nvidia.com/use-gpuuuid": "GPU-elsewhere"})
    )
    assert sandbox.refusal("p", "excluded by UUID")


def test_numa_bind_keeps_a_pod_on_one_numa_node(sandbox):
    sandbox.add_gpu_node("n0", *gpus(4))  # two on NUMA node 0, two on 1
    sandbox.create(
        pod(
            "busy",
            gpu=1,
            gpumem=70_000,
            annotations={"nvidia.com/use-gpuuuid": sandbox.uuid("n0", 3)},
        )
    )
    sandbox.started()
    sandbox.create(pod("p", gpu=2, gpumem=20_000, annotations={"nvidia.com/numa-bind": "true"}))
    sandbox.started()
    assert sandbox.cards("p") == {"n0/0", "n0/1"}
    sandbox.create(pod("q", gpu=3, gpumem=1000, annotations={"nvidia.com/numa-bind": "true"}))
    assert sandbox.refusal("q", "on NUMA nodes with too few")


def test_weights_decide_between_cards(sandbox):
    """Device 0 has more memory in use, device 1 more cores; binpack follows the higher weight."""
    sandbox.add_gpu_node("n0", *gpus(2))
    here = {"gpumem": 60_000, "gpucores": 10}, {"gpumem": 10_000, "gpucores": 60}
    for card, asks in enumerate(here):
        wish = {"nvidia.com/use-gpuuuid": sandbox.uuid("n0", card)}
        sandbox.create(pod(f"there-{card}", gpu=1, annotations=wish, **asks))
    sandbox.started()
    for weights, card in (("slot=0,core=0,memory=1", "n0/0"), ("slot=0,core=1,memory=0", "n0/1")):
        name = f"p-{card[-1]}"
        sandbox.create(
            pod(
                name,
                gpu=1,
                gpumem=1000,
                gpucores=1,
                annotations={GPU_POLICY: "binpack", "hami.io/device-scoring-weights": weights},
            )
        )
        sandbox.started()
        assert sandbox.cards(name) == {card}


def test_malformed_weights_are_refused_and_quoted_in_the_event_of_a_pod_past_the_webhook(sandbox):
    sandbox.add_gpu_node("n0")
    weights = {"hami.io/device-scoring-weights": "slot=1,core=1"}
    with pytest.raises(
        ApiError, match="slot=1,core=1: expected weights such as slot=1,core=1,memory=3"
    ):
        sandbox.create(pod("refused", gpu=1, gpumem=1000, annotations=weights))
    past_the_webhook = {"hami.io/webhook": "ignore"}
    sandbox.create(
        pod(
            "p",
            gpu=1,
            gpumem=1000,
            annotations=weights,
            labels=past_the_webhook,
            scheduler="hami-scheduler",
        )
    )
    assert "expected slot, core, and memory weights" in sandbox.refusal(
        "p", "device-scoring-weights"
    )
