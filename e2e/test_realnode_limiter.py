"""The limiter in containers of a real kubelet: limits that hold, on a fake GPU whose memory all containers share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami.node.region_layout import COMPUTE_SIZE, REGION_SIZE
from testing.device_plugin import HOOK, DevicePlugin
from testing.eventually import eventually
from testing.fake_gpu import CARDS, FakeGpus, client, client_pod, offered_gpu
from testing.limiter.builds import Builds
from testing.limiter.rig import MIB
from testing.limiter.shares import SETTLE_S, measured_shares, sampled
from testing.placing import Part, place
from testing.realnode import RealNode
from testing.sandbox import Sandbox

pytestmark = pytest.mark.kind
MODES = ("start", "admission")


@pytest.fixture(params=MODES)
def plugin(real: RealNode, request: pytest.FixtureRequest) -> Iterator[DevicePlugin]:
    """The device plugin, in each mode of allocation."""
    made = DevicePlugin(real, allocate=request.param)
    yield made
    made.close()


@pytest.fixture
def gpu(real: RealNode, plugin: DevicePlugin, builds: Builds) -> FakeGpus:
    """The card, which the kubelet offers."""
    return offered_gpu(real, plugin, builds)


def all_of(mib: int) -> list[str]:
    """Returns commands that ask for the memory, take all of it, and one byte more."""
    return ["info", f"alloc plain 0 {mib * MIB}", "alloc plain 1 1"]


def stopped_at(mib: int) -> list[list[int]]:
    """Returns the answers to these commands, after those of the initialization, where the limit holds."""
    return [[0], [0], [0, mib * MIB, mib * MIB], [0], [2]]


def kill(sandbox: Sandbox, real: RealNode, name: str) -> None:
    (status,) = sandbox.pod(name)["status"]["containerStatuses"]
    real.ctr("tasks", "kill", "--signal", "SIGKILL", status["containerID"].rpartition("/")[2])


def test_two_pods_on_one_card_are_stopped_at_their_own_limits(sandbox, real, gpu):
    wanted = {"a": 1500, "b": 2502}  # whole pages of 2 MiB: of 2501 MiB, 2500 can be had
    before = gpu.used_mib()
    sandbox.create(
        *(
            client_pod(name, client(*all_of(size), gpu=1, gpumem=size))
            for name, size in wanted.items()
        )
    )
    sandbox.running(*wanted)
    for name, size in wanted.items():
        assert gpu.answers(sandbox.pod(name), 5) == stopped_at(size)
    assert gpu.used_mib() - before == sum(wanted.values())
    assert [gpu.region(sandbox.pod(name)).total() for name in wanted] == [
        size * MIB for size in wanted.values()
    ]


def test_containers_of_a_pod_and_their_processes(sandbox, real, gpu):
    """Each container has a limit of its own; processes of one container share it."""
    item = client_pod(
        "a",
        client("alloc plain 0 1000", name="left", gpu=1, gpumem=1000),
        client(f"alloc plain 0 {1500 * MIB}", name="right", gpu=1, gpumem=2000),
    )
    sandbox.create(item)
    sandbox.running("a")
    made = sandbox.pod("a")
    assert gpu.answers(made, 3, "left")[-1] == gpu.answers(made, 3, "right")[-1] == [0]
    right = next(one for one in made["status"]["containerStatuses"] if one["name"] == "right")
    more = gpu.run(
        right["containerID"], "info", f"alloc plain 0 {500 * MIB + 1}", f"alloc plain 0 {500 * MIB}"
    )
    assert more == [[0], [0], [0, 500 * MIB, 2000 * MIB], [2], [0]]


def test_the_whole_limit_is_there_again_after_a_restart(sandbox, real, gpu):
    sandbox.create(client_pod("a", client(*all_of(1500), gpu=1, gpumem=1500)))
    sandbox.running("a")
    assert gpu.answers(sandbox.pod("a"), 5) == stopped_at(1500)
    region = gpu.region(sandbox.pod("a"))
    kill(sandbox, real, "a")
    assert gpu.answers(sandbox.pod("a"), 10) == stopped_at(1500) * 2
    assert region.total() == 1500 * MIB  # it is the same file, and nothing of the first run counts


def test_neither_the_pod_nor_the_container_can_change_its_limit(sandbox, real, gpu):
    """Variables of the pod, which the webhook has not seen; the file; an old region."""
    item = client_pod("a", client(*all_of(1500), gpu=1, gpumem=1500))
    item["spec"]["containers"][0]["env"] += [
        {"name": name, "value": value}
        for name, value in (
            ("CUDA_DEVICE_MEMORY_LIMIT_0", "9000m"),
            ("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/tmp/mine.cache"),
        )
    ]
    place(sandbox, real, item, [Part(CARDS[0].uuid, 1500)])
    sandbox.running("a")
    assert gpu.answers(sandbox.pod("a"), 5) == stopped_at(1500)
    (status,) = sandbox.pod("a")["status"]["containerStatuses"]
    tried = real.run_in(
        status["containerID"],
        "sh",
        "-c",
        f"""
        cd {HOOK}/vgpu
        (echo > limits) 2>/dev/null && echo written
        rm -f limits 2>/dev/null && echo removed
        touch another 2>/dev/null; ls; cat limits""",
    ).split("\n")
    assert "written" not in tried
    assert "removed" not in tried
    assert f"device {CARDS[0].uuid} memory={1500 * MIB} cores=100" in tried
    directory = real.path(f"{HOOK}/vgpu/containers") / f"{sandbox.pod('a')['metadata']['uid']}_main"
    assert not (directory / "another").exists()


FILL = """
cd {folder}
for file in *.cache *.sm; do
    truncate -s 8G $file
    dd if=/dev/zero of=$file bs=1M seek=4 count=100 conv=notrunc 2>&1
done
mkdir /tmp/vgpulock && echo "no directory of the host"
grep -oE ' {folder}/[^ ]+ rw,' /proc/self/mountinfo
"""


def test_a_container_cannot_fill_the_disk_through_its_files(sandbox, real, gpu):
    """They are truncated within seconds; its limit holds, and an event names the container."""
    sandbox.create(client_pod("a", client(f"alloc plain 0 {500 * MIB}", gpu=1, gpumem=1500)))
    sandbox.running("a")
    made = sandbox.pod("a")
    assert gpu.answers(made, 3)[-1] == [0]
    (status,) = made["status"]["containerStatuses"]
    done = real.run_in(status["containerID"], "sh", "-c", FILL.format(folder=f"{HOOK}/vgpu"))
    assert done.count("100+0 records out") == 2
    assert "no directory of the host" in done
    writable = [Path(line.split()[0]) for line in done.splitlines() if line.endswith(" rw,")]
    assert sorted(path.suffix for path in writable) == [".cache", ".sm"]
    directory = real.path(f"{HOOK}/vgpu/containers") / f"{made['metadata']['uid']}_main"
    files = [directory / path.name for path in sorted(writable)]

    def is_small() -> bool:
        found = [file.stat() for file in files]
        return [status.st_size for status in found] == [REGION_SIZE, COMPUTE_SIZE] and sum(
            512 * status.st_blocks for status in found
        ) < 4 * MIB

    eventually(is_small, lambda: f"files have their sizes again: {[file.stat() for file in files]}")
    assert gpu.run(status["containerID"], "info", f"alloc plain 0 {1000 * MIB + 1}") == [
        [0],
        [0],
        [0, 1000 * MIB, 1500 * MIB],
        [2],
    ]
    assert "container main has enlarged its shared region" in sandbox.event("a", "RegionEnlarged")


@pytest.mark.parametrize("plugin", ["start"], indirect=True)
def test_two_pods_on_one_card_get_their_shares_of_its_time(sandbox, gpu):
    """By the clock of the card, while both pods are busy; the test writes the samples of a node monitor.

    A process that shares two CPUs with a control plane launches late, which costs it some points of its share, and no
    other container gets them. Nothing gives it points beyond its share.
    """
    due = {"thirty": 30, "seventy": 70}
    sandbox.create(
        *(
            client_pod(
                name,
                client(
                    "module",
                    "launch plain idle 1",
                    "load medium 600000",
                    gpu=1,
                    gpumem=1000,
                    gpucores=cores,
                ),
            )
            for name, cores in due.items()
        )
    )
    sandbox.running(*due)
    for name in due:
        assert gpu.answers(sandbox.pod(name), 4)[-1] == [0]
    tenants = [gpu.tenant(sandbox.pod(name)) for name in due]
    time.sleep(SETTLE_S)
    unsampled = measured_shares(tenants, 5)
    with sampled(tenants):
        time.sleep(SETTLE_S)
        shares = measured_shares(tenants, 10)
    print(f"percent of the card, without samples of a monitor {unsampled}, with them {shares}")
    for found in (unsampled, shares):
        assert all(
            share <= percent + 4 for share, percent in zip(found, due.values(), strict=True)
        ), found
    assert all(
        share >= percent - 10 for share, percent in zip(shares, due.values(), strict=True)
    ), shares
