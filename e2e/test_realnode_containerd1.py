"""The device plugin on a node whose runtime knows no CDI: Debian's containerd 1.6."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testing.cluster import LocalCluster
from testing.device_plugin import HOOK, SLOTS, DevicePlugin, cards
from testing.joined_node import NodeUnavailable
from testing.realnode import RealNode, Runtime, missing
from testing.regions import find_limits_again, mounted
from testing.shown import limits, shower

pytestmark = pytest.mark.kind


@pytest.fixture(scope="module")
def real_node(local: LocalCluster) -> Iterator[RealNode]:
    """A node with Debian's runtime, shared by the tests of this module."""
    if reason := missing():
        pytest.skip(reason)
    try:
        runtime = Runtime.debian()
    except NodeUnavailable as error:
        pytest.skip(str(error))
    with RealNode.joined(local, runtime=runtime) as node:
        yield node


@pytest.fixture
def plugin(real: RealNode) -> Iterator[DevicePlugin]:
    """The device plugin with one GPU, which the kubelet offers."""
    with DevicePlugin.offered(real, SLOTS, *cards(1)) as made:
        yield made


def test_containers_that_share_a_card_get_their_own_limits(sandbox, real, plugin):
    sandbox.create(
        *(
            shower(HOOK, name, gpu=1, gpumem=memory, gpucores=10)
            for name, memory in (("a", 1000), ("b", 2000), ("c", 3000))
        )
    )
    sandbox.running("a", "b", "c")
    assert limits(sandbox, real, "a", "b", "c") == [
        ("1000m", "10"),
        ("2000m", "10"),
        ("3000m", "10"),
    ]


def test_a_container_finds_its_limits_when_the_files_are_gone(sandbox, real, plugin):
    with mounted(sandbox, real):
        find_limits_again(sandbox, real, plugin)
