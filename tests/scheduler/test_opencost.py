"""The metric by which OpenCost charges: which containers stand for pods, and which share these hold."""

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hami.scheduler.opencost import DeviceContainers, allocation_family
from hami.web.exposition import render
from testing.builders import INIT, ONLY_NVIDIA, container
from testing.cases import cases
from testing.usage_stage import UsageReplica, UsageStage, bound

GPU = {"nvidia.com/gpu": 1}


@pytest.fixture
def replica():
    return UsageReplica(UsageStage())


@pytest.fixture
def containers(replica):
    return DeviceContainers(replica.held, replica.store)


def shares(replica, containers):
    """The samples by namespace, pod, container and node."""
    family = allocation_family(replica.store.view(), ONLY_NVIDIA, containers.names())
    (parsed,) = text_string_to_metric_families("".join(render([family])))
    found = {}
    for sample in parsed.samples:
        labels = sample.labels
        key = tuple([labels[name] for name in ("namespace", "pod", "container", "node")])
        found[key] = sample.value
    return found


@cases(
    "memory, cores, share",
    ("by memory", 10_000, 10, 0.25),
    ("by cores", 10_000, 50, 0.5),
    ("whole", 40_000, 100, 1.0),
)
def test_a_pod_has_the_larger_of_its_shares(replica, containers, memory, cores, share):
    pod = bound("a", 1, memory=memory, cores=cores)
    containers.upsert(pod)
    name = pod.containers[0].name
    assert shares(replica, containers) == {("default", "a", name, "n1"): share}


@cases(
    "made, expected",
    ("the first with devices", [container({}, name="web"), container(GPU, name="gpu")], "gpu"),
    (
        "init containers last",
        [container(GPU, name="load", kind=INIT), container(GPU, name="main")],
        "main",
    ),
    ("none", [container({}, name="web")], None),
)
def test_one_container_stands_for_the_pod(containers, made, expected):
    pod = replace(bound("a", 1), containers=tuple(made))
    containers.upsert(pod)
    assert containers.names().get(pod.ref.uid) == expected


@cases(
    "end",
    ("finished", lambda containers, pod: containers.upsert(replace(pod, phase="Succeeded"))),
    ("deleted", lambda containers, pod: containers.remove(pod)),
    ("gone from a list", lambda containers, pod: containers.prune(set(), 1.0)),
)
def test_a_pod_that_has_ended_holds_nothing(replica, containers, end):
    pod = bound("a", 1)
    containers.upsert(pod)
    end(containers, pod)
    assert containers.names() == {}
    assert shares(replica, containers) == {}
