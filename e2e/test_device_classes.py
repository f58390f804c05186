"""DeviceClasses of a DRA driver that stand for a resource of HAMi."""

import pytest

from testing.nodes import LOCK_FREE, gpu
from testing.pods import pod

CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
NAME = "gpu.nvidia.com"
FIRST = (1, 36)  # the version of Kubernetes that evaluates extendedResourceName by default
pytestmark = pytest.mark.since(*FIRST)


@pytest.fixture
def device_class(local):
    """The class that the chart of NVIDIA's DRA driver installs."""
    if local.binaries.minor < FIRST:
        pytest.skip(f"needs Kubernetes 1.36, this is {local.binaries.kube_version}")
    local.kube.call(
        "POST",
        CLASSES,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": NAME},
            "spec": {
                "extendedResourceName": "nvidia.com/gpu",
                "selectors": [{"cel": {"expression": f"device.driver == '{NAME}'"}}],
            },
        },
    )
    yield
    local.kube.call("DELETE", f"{CLASSES}/{NAME}")


def test_pods_are_placed_where_nodes_show_what_they_request(sandbox, device_class):
    """With --publish-capacity=requests they do."""
    sandbox.add_gpu_nodes({"n0": [gpu()]}, annotations=LOCK_FREE)
    sandbox.create(pod("mib", gpu=1, gpumem=1000, gpucores=10), pod("percent", gpu=1, percent=50))
    for name in ("mib", "percent"):
        sandbox.event(name, "FailedScheduling", "cannot fit resource")
    room = {
        "nvidia.com/gpumem": "81920",
        "nvidia.com/gpumem-percentage": "100",
        "nvidia.com/gpucores": "100",
    }
    sandbox.kube.merge_patch(
        "Node",
        sandbox.node("n0")["metadata"]["name"],
        {"status": {"capacity": room, "allocatable": room}},
        subresource="status",
    )
    assert sandbox.started(2) == {"mib": "n0", "percent": "n0"}
