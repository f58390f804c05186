"""What pods request of the CPU and memory of their nodes, as kube-scheduler counts it."""

from dataclasses import replace

import pytest
from pytest import param

from hami.model import ContainerKind
from hami.scheduling.node_resources import NodeResources, amounts, requested
from testing.builders import container, pod

APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR


def asking(cpu, memory="0", kind=APP):
    return container(kind=kind, requests={"cpu": cpu, "memory": memory})


@pytest.mark.parametrize(
    ("containers", "fields", "milli_cpu", "memory_mib"),
    [
        param([], {}, 0, 0, id="no containers"),
        param([container()], {}, 0, 0, id="no requests"),
        param(
            [asking("1", "1Gi"), asking("250m", "512Mi")], {}, 1250, 1536, id="apps run together"
        ),
        param(
            [asking("1"), asking("3", kind=INIT)], {}, 3000, 0, id="an init container needs more"
        ),
        param(
            [asking("3", kind=INIT), asking("2", kind=INIT), asking("1")],
            {},
            3000,
            0,
            id="init containers run one after the other",
        ),
        param(
            [asking("1"), asking("2", kind=SIDECAR)], {}, 3000, 0, id="a sidecar runs beside apps"
        ),
        param(
            [
                asking("1", kind=SIDECAR),
                asking("4", kind=INIT),
                asking("2", kind=SIDECAR),
                asking("1"),
            ],
            {},
            5000,
            0,
            id="an init container runs beside the sidecars before it",
        ),
        param(
            [asking("1", "1Gi")], {"requests": {"cpu": "4"}}, 4000, 1024, id="the pod's own first"
        ),
        param(
            [asking("1", "1Gi")],
            {"overhead": {"cpu": "100m", "memory": "1"}},
            1100,
            1025,
            id="the overhead of the runtime class, rounded up",
        ),
        param([asking("1e30", "-1")], {}, 2**31 - 1, 0, id="out of bounds"),
        param([asking("much", "1Gi")], {}, 0, 1024, id="not a quantity"),
    ],
)
def test_pods_request_what_kube_scheduler_counts(containers, fields, milli_cpu, memory_mib):
    asked = replace(
        pod(**fields), containers=tuple(containers)
    )  # in the order of the specification
    assert requested(asked) == NodeResources(milli_cpu, memory_mib)


def test_amounts_that_are_missing_are_zero():
    assert amounts({"memory": "2Gi", "nvidia.com/gpu": "1"}) == NodeResources(0, 2048)
