"""Containers of a real kubelet grow and shrink while they run: scheduler, device plugin, monitor and limiter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testing.allocating import AllocatingContainer
from testing.device_plugin import DevicePlugin
from testing.eventually import eventually
from testing.fake_gpu import CARDS, FakeGpus, client, client_pod, offered_gpu
from testing.limiter.builds import Builds
from testing.limiter.rig import MIB
from testing.limiter.shares import Tenant, measured_shares
from testing.monitor import Monitor
from testing.realnode import RealNode
from testing.resizes import RESIZED, TARGET, answered, applied, booked, disagreements, resize
from testing.restarts import restarted
from testing.sandbox import Sandbox

pytestmark = pytest.mark.kind


@pytest.fixture(params=["start"])
def plugin(real: RealNode, request: pytest.FixtureRequest) -> Iterator[DevicePlugin]:
    made = DevicePlugin(real, allocate=request.param)
    yield made
    made.close()


@pytest.fixture
def gpu(real: RealNode, plugin: DevicePlugin, builds: Builds) -> FakeGpus:
    """The card, which the kubelet offers."""
    return offered_gpu(real, plugin, builds)


def started(sandbox: Sandbox, gpu: FakeGpus, name: str, memory: int) -> AllocatingContainer:
    return AllocatingContainer(sandbox, gpu, name, gpu=1, gpumem=memory, gpucores=10)


def of(memory: int, **cores: int) -> dict[str, dict[str, str | int]]:
    return {"main": {"memory": f"{memory}Mi", **cores}}


@pytest.mark.parametrize("plugin", ["start", "admission"], indirect=True)
def test_a_program_gets_more_while_it_runs(sandbox, gpu, monitor):
    container = started(sandbox, gpu, "a", 1000)
    applied(sandbox, "a", of(2000, cores=40))
    container.takes(2000)
    assert container.is_limited(2000, 40)
    assert container.status["restartCount"] == 0
    assert {one.memory_mib for share in sandbox.shares("a") for one in share} == {2000}
    eventually(
        lambda: (
            monitor.values("hami_vgpu_memory_limit_bytes", sandbox.namespace) == {"a": 2000.0 * MIB}
        ),
        monitor.log,
    )


def test_a_shrink_below_the_use_is_given_back_when_the_program_frees(sandbox, real, gpu, monitor):
    container = started(sandbox, gpu, "a", 2000)
    text = resize(sandbox, "a", of(1000))
    booked(sandbox, "a", TARGET, 1000)
    eventually(lambda: f"memory={1000 * MIB}" in container.limits(), container.limits)
    sandbox.create(client_pod("next", client("info", gpu=1, gpumem=CARDS[0].memory - 1000)))
    sandbox.refusal("next")
    answered(sandbox, "a", text, "Booked")
    assert container.ask("alloc plain 0 1")[-1] == [2]
    container.takes(2000)
    container.free()
    answered(sandbox, "a", text, "Applied")
    sandbox.running("next", timeout=120)
    assert container.is_limited(1000, 10)
    assert container.status["restartCount"] == 0


def test_a_container_that_starts_again_has_the_new_size(sandbox, real, gpu, monitor):
    """In the middle of a growth, and of a shrink, which the end of its program completes."""
    containers = [started(sandbox, gpu, "grows", 1000), started(sandbox, gpu, "shrinks", 2000)]
    texts = [resize(sandbox, "grows", of(2000)), resize(sandbox, "shrinks", of(1000))]
    booked(sandbox, "grows", RESIZED, 2000)
    booked(sandbox, "shrinks", TARGET, 1000)
    for container in containers:
        real.ctr(
            "tasks",
            "kill",
            "--signal",
            "SIGKILL",
            container.status["containerID"].rpartition("/")[2],
        )
    for container, text, memory in zip(containers, texts, (2000, 1000), strict=True):
        restarted(sandbox, container.name, 0)
        answered(sandbox, container.name, text, "Applied")
        container.takes(memory)
        assert container.is_limited(memory, 10)
    assert disagreements(sandbox) == []


def test_a_plugin_and_a_monitor_that_come_back_finish_what_was_booked(sandbox, gpu, plugin, real):
    """There is no monitor at first: nobody knows that the container which shrinks does not use more."""
    grows, shrinks = started(sandbox, gpu, "grows", 1000), started(sandbox, gpu, "shrinks", 2000)
    shrinks.free()
    plugin.kill()
    texts = {
        name: resize(sandbox, name, of(memory))
        for name, memory in (("grows", 2000), ("shrinks", 1000))
    }
    for (
        name,
        text,
    ) in texts.items():  # a card that the kubelet does not offer any more gets nothing now
        answered(sandbox, name, text, "Booked", "Deferred")
    plugin.start()
    answered(sandbox, "grows", texts["grows"], "Applied")
    grows.takes(2000)
    eventually(lambda: f"memory={1000 * MIB}" in shrinks.limits(), shrinks.limits)
    sandbox.event("shrinks", "ResizePending", "monitor")
    answered(sandbox, "shrinks", texts["shrinks"], "Booked")
    monitor = Monitor(real)
    monitor.start()
    try:
        answered(sandbox, "shrinks", texts["shrinks"], "Applied")
    finally:
        monitor.close()
    assert disagreements(sandbox) == []


def test_two_elastic_pods_share_a_card_and_use_more_of_it_alone(sandbox, gpu, monitor):
    """Each has 30 percent for itself; alone, one of them may use the whole card, and the other one 60 percent."""

    def started(name: str, most: int) -> Tenant:
        busy = client(
            "module", "launch plain idle 1", "load medium 600000", gpu=1, gpumem=1000, gpucores=30
        )
        sandbox.create(client_pod(name, busy, **{"nvidia.com/gpucores-limit": str(most)}))
        sandbox.running(name)
        gpu.answers(sandbox.pod(name), 4)
        return gpu.tenant(sandbox.pod(name))

    def uses(least: int, most: int, *tenants: Tenant) -> None:
        eventually(
            lambda: all(least <= share <= most for share in measured_shares(tenants, 2)),
            f"they use {least} to {most} percent",
        )

    first = started("a", 100)
    uses(50, 100, first)
    second = started("b", 60)
    uses(15, 42, first, second)
    sandbox.delete("a")
    uses(38, 64, second)
