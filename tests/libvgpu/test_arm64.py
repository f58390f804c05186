"""The release for arm64 on an emulated processor: its own assembler code, and the ways to find functions.

Needs Debian's packages qemu-user and libc6-arm64-cross. One process at a time: the emulator does not pass on what the
library asks of the kernel about children.
"""

import platform
import shutil
from pathlib import Path

import pytest

from testing.limiter.builds import Unavailable, arm64
from testing.limiter.rig import MIB, Rig

EMULATOR = "qemu-aarch64"
SYSTEM = Path("/usr/aarch64-linux-gnu")
LIMIT = 2048 * MIB
PATHS = ("plain", "managed", "async", "async_ptsz", "pool", "create")

pytestmark = [
    pytest.mark.skipif(
        platform.machine() == "aarch64", reason="not needed: this machine is an arm64"
    ),
    pytest.mark.skipif(
        shutil.which(EMULATOR) is None or not SYSTEM.is_dir(),
        reason="needs the packages qemu-user and libc6-arm64-cross",
    ),
]


@pytest.fixture(scope="module")
def foreign():
    """The fake driver and the client for arm64."""
    try:
        made = arm64()
        made.client
    except Unavailable as error:
        pytest.skip(str(error))
    return made


@pytest.fixture
def container(foreign, release, tmp_path):
    made = Rig(tmp_path, foreign, library=release["aarch64"])
    made.limit({"memory": LIMIT, "cores": 20})
    yield made
    made.close()


def start(container, how):
    within = (EMULATOR, "-L", SYSTEM, "-E", f"LD_PRELOAD={container.library}")
    return container.client(how, within=within, preload=False).start()


@pytest.mark.parametrize("how", ["symbol", "dlsym", "procaddr"])
def test_memory_is_limited(container, how):
    client = start(container, how)
    assert client.do("total 0") == [0, LIMIT]
    assert (client.do("defaultpool 0 0"), client.do("next")) == (0, 3)
    for kind in PATHS:
        second = 0 if kind in ("create", "pool") else 1
        assert client.do(f"alloc {kind} 0 {LIMIT} {second}") == 0
        assert client.do(f"alloc {kind} 1 {2 * MIB} {second}") == 2
        assert client.do("info") == [0, 0, LIMIT]
        assert client.do(f"free {'create' if kind == 'create' else 'plain'} 0") == 0
        assert (client.do("sync"), client.do("trim 0")) == (0, 0)
    assert container.machine.peak() == LIMIT


@pytest.mark.parametrize("how", ["plain", "ptsz", "ex", "cooperative"])
def test_launches_are_limited(container, how):
    """240 ms of work at 20 percent. The time that the emulated processor takes itself counts little beside that."""
    client = start(container, "procaddr")
    client.do("stream")
    before = container.path.with_suffix(".sm").read_bytes()
    for _ in range(6):
        assert client.do(f"launch {how} busy_40000 1") == 0
        client.do("sync")
    after = container.path.with_suffix(".sm").read_bytes()
    throttled = [
        int.from_bytes(content[256 + 24 : 256 + 32], "little") for content in (before, after)
    ]
    assert throttled[1] - throttled[0] > 100_000_000


def test_the_region_has_the_same_layout(container):
    client = start(container, "symbol")
    assert client.do(f"alloc plain 0 {MIB}") == 0
    assert [slot.totals[0] for slot in container.region.slots()] == [MIB]
    assert container.region.limit(0) == LIMIT
