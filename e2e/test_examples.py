"""Each example is applied as a user would apply it, on a node with two fake GPUs, and does what its comment says."""

import re
from pathlib import Path

import pytest

from testing.accounts import permit_priority
from testing.cases import cases
from testing.eventually import WaitTimeout
from testing.nodes import gpus, mig_gpu
from testing.quickstart import DOCS, script
from testing.yaml_text import read_documents

FOLDER = Path(__file__).parent.parent / "examples"
CARDS = gpus(2, memory_mib=40_960, model="NVIDIA A100-SXM4-40GB")
WORKLOADS = ("Pod", "Job", "Deployment")
LEFT = ("Deployment", "Service", "ResourceQuota")  # not removed by the sandbox
ELSEWHERE = {"gang.yaml", "claim.yaml"}  # by test_gangs.py and test_realnode_dra.py
FOREIGN = {
    "jobset.yaml",
    "kueue.yaml",
    "kueue-configuration.yaml",
    "leaderworkerset.yaml",
    "rayjob.yaml",
}
"""Of projects that are not installed here: tests/test_examples.py simulates them."""
SHARES = {
    "pod.yaml": [(4000, 30)],
    "two-tenants.yaml": [(20_480, 50), (20_480, 50)],
    "vllm-deployment.yaml": [(20_000, 0)],
    "pytorch-job.yaml": [(8000, 50)] * 4,  # two at a time
    "jupyter.yaml": [(10_240, 0)],
    "quota.yaml": [(4000, 0), (4000, 0)],
    "priority.yaml": [(4000, 0), (4000, 0)],
}
"""MiB and percent of each pod."""


@pytest.fixture
def example(sandbox):
    """Applies an example and returns the shares of each pod, in the order of their names, once *count* are bound."""
    applied = []

    def apply(name, count):
        if name == "priority.yaml":
            permit_priority(sandbox)
        for item in read_documents((FOLDER / name).read_text()):
            applied.append((item["kind"], item["metadata"]["name"]))
            if item["kind"] in WORKLOADS:
                sandbox.create(item)
            else:
                sandbox.kube.create(item, sandbox.namespace)
        return {
            pod: share
            for pod in sorted(sandbox.started(count))
            for ((share,),) in [sandbox.shares(pod)]
        }

    yield apply
    for kind, name in applied:
        if kind in LEFT:
            sandbox.kube.delete(kind, name, sandbox.namespace)
    sandbox.kube.delete_all("ReplicaSet", sandbox.namespace)


@cases("name, shares", *SHARES.items())
def test_the_pods_of_an_example_hold_what_they_request(sandbox, example, name, shares):
    sandbox.add_gpu_node("gpu-0", *CARDS)
    assert [
        (share.memory_mib, share.cores) for share in example(name, len(shares)).values()
    ] == shares


@pytest.mark.parametrize("name", ["two-tenants.yaml", "priority.yaml"])
def test_these_pods_share_one_card(sandbox, example, name):
    sandbox.add_gpu_node("gpu-0", *CARDS)
    assert len({share.card for share in example(name, 2).values()}) == 1


def test_the_pods_of_the_quickstart_share_one_card(sandbox):
    """On a node with the mock GPUs of the overlay kind."""
    (manifest,) = re.findall(
        r"<<YAML\n(.*?)^YAML$", script(DOCS / "quickstart.md"), re.MULTILINE | re.DOTALL
    )
    sandbox.add_gpu_node("gpu-0", *gpus(2))
    for item in read_documents(manifest):
        sandbox.create(item)
        sandbox.started()
    assert len(sandbox.cards("a") | sandbox.cards("b")) == 1
    assert sandbox.shares("a")[0][0].memory_mib == 20_000


def test_two_of_the_three_pods_of_the_quota_run(sandbox, example):
    sandbox.add_gpu_node("gpu-0", *CARDS)
    example("quota.yaml", 2)
    with pytest.raises(WaitTimeout):
        sandbox.started(3, timeout=3)


def test_the_pod_of_the_mig_example_gets_the_smallest_instance(sandbox, example):
    sandbox.add_gpu_node("gpu-0", *CARDS)
    sandbox.add_gpu_node("gpu-1", mig_gpu())
    (share,) = example("mig.yaml", 1).values()
    assert share.card == "gpu-1/0"
    assert share.memory_mib >= 8000


def test_every_example_is_applied_here():
    files = {path.name for path in FOLDER.glob("*.yaml")}
    assert SHARES.keys() | {"mig.yaml"} | ELSEWHERE | FOREIGN == files
