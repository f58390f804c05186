"""Files that containers may write in memory, in both modes. `test_realnode_containerd1` does it on another runtime."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hami.node.region_layout import COMPUTE_SIZE, REGION_SIZE
from testing.device_plugin import HOOK, SLOTS, DevicePlugin, cards
from testing.eventually import eventually
from testing.realnode import RealNode
from testing.regions import FOLDER, find_limits_again, mounted, run_in
from testing.sandbox import Sandbox
from testing.shown import shower

pytestmark = pytest.mark.kind


@pytest.fixture(params=["start", "admission"])
def plugin(
    sandbox: Sandbox, real: RealNode, request: pytest.FixtureRequest
) -> Iterator[DevicePlugin]:
    """The device plugin, in each mode, on a node with the file system in memory."""
    with mounted(sandbox, real):
        made = DevicePlugin(real, allocate=request.param)
        made.insert(*cards(1))
        made.install_limiter(b"the limiter\n")
        made.start()
        try:
            made.wait_offered(SLOTS)
            yield made
        finally:
            made.close()
            real.kubelet.start()


def test_a_container_fills_a_file_system_of_a_fixed_size_and_not_the_disk(sandbox, real, plugin):
    sandbox.create(shower(HOOK, "a", gpu=1, gpumem=1000))
    sandbox.running("a")
    said = run_in(
        sandbox,
        real,
        "a",
        "for file in *.cache *.sm; do "
        "dd if=/dev/zero of=$file bs=1M seek=4 conv=notrunc 2>&1 || true; done",
    )
    assert said.count("No space left on device") == 2
    assert list(real.path(FOLDER).iterdir()) == [], "what lies below the mount, on the disk"
    sandbox.event("a", "RegionEnlarged")
    eventually(
        lambda: (
            run_in(sandbox, real, "a", "stat -c %s *.cache *.sm").split()
            == [str(REGION_SIZE), str(COMPUTE_SIZE)]
        ),
        "there is room again",
    )
    sandbox.create(shower(HOOK, "b", gpu=1, gpumem=2000))
    sandbox.running("b")


def test_a_container_finds_its_limits_when_the_files_are_gone(sandbox, real, plugin):
    find_limits_again(sandbox, real, plugin)
