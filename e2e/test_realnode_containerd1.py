"""The device plugin on a node whose runtime knows no CDI: Debian's containerd 1.6."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster import LocalCluster
from e2e.device_plugin import HOOK, SLOTS, DevicePlugin, cards
from e2e.joined_node import NodeUnavailable
from e2e.realnode import RealNode, Runtime, missing
from e2e.sandbox import Sandbox
from e2e.shown import limits, shower

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


def test_containers_that_share_a_card_get_their_own_limits(sandbox: Sandbox, real: RealNode) -> None:
    plugin = DevicePlugin(real)
    plugin.insert(*cards(1))
    plugin.install_limiter(b"the limiter\n")
    plugin.start()
    try:
        plugin.wait_offered(SLOTS)
        sandbox.create(*(shower(HOOK, name, gpu=1, gpumem=memory, gpucores=10)
                         for name, memory in (("a", 1000), ("b", 2000), ("c", 3000))))
        sandbox.running("a", "b", "c")
        assert limits(sandbox, real, "a", "b", "c") == [("1000m", "10"), ("2000m", "10"), ("3000m", "10")]
    finally:
        plugin.close()
