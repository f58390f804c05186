"""Containers of a real kubelet grow and shrink while they run: scheduler, device plugin, monitor and limiter."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from e2e.device_plugin import HOOK, SLOTS, DevicePlugin
from e2e.eventually import eventually
from e2e.fake_gpu import CARDS, CLIENT, FakeGpus, client, client_pod, typed
from e2e.monitor import Monitor
from e2e.realnode import RealNode
from e2e.resizes import RESIZED, TARGET, answered, applied, booked, disagreements, resize
from e2e.restarts import restarted
from e2e.sandbox import Sandbox
from tests.libvgpu.rig import MIB, Builds, Unavailable
from tests.libvgpu.shares import measured_shares

pytestmark = pytest.mark.kind
PIECE = 200
"""MiB of an allocation."""


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    return Builds(tmp_path_factory.mktemp("resize"))


@pytest.fixture(params=["start"])
def plugin(real: RealNode, request: pytest.FixtureRequest) -> Iterator[DevicePlugin]:
    made = DevicePlugin(real, allocate=request.param)
    yield made
    made.close()


@pytest.fixture
def gpu(real: RealNode, plugin: DevicePlugin, builds: Builds) -> FakeGpus:
    """The card, which the kubelet offers."""
    try:
        made = FakeGpus(real, builds)
    except Unavailable as error:
        pytest.skip(str(error))
    made.insert(plugin, CARDS[0])
    plugin.start().wait_offered(SLOTS)
    return made


@pytest.fixture
def monitor(real: RealNode, gpu: FakeGpus) -> Iterator[Monitor]:
    made = Monitor(real)
    made.start()
    yield made
    made.close()


class Container:
    """The container of a pod whose program tries to allocate again and again, until it is told to free everything."""

    def __init__(self, sandbox: Sandbox, gpu: FakeGpus, name: str, memory: int, cores: int = 10) -> None:
        self._sandbox, self._gpu, self._name = sandbox, gpu, name
        loop = (f"n=0; until [ -e /tmp/free ]; do echo alloc plain $n {PIECE * MIB}; n=$((n+1)); sleep 0.2; done; "
                "for i in $(seq 0 $n); do echo free plain $i; done")
        made = client(gpu=1, gpumem=memory, gpucores=cores)
        made["command"] = ["sh", "-c", f"({typed([])}; {loop}; sleep inf) | {CLIENT}"]
        sandbox.create(client_pod(name, made))
        sandbox.running(name)
        pod = sandbox.pod(name)
        self._folder = gpu.node.path(f"{HOOK}/vgpu/containers") / f"{pod['metadata']['uid']}_main"
        self.takes(memory)
        self._region = gpu.region(pod)

    @property
    def identity(self) -> str:
        (status,) = self._sandbox.pod(self._name)["status"]["containerStatuses"]
        return str(status["containerID"])

    @property
    def restarts(self) -> int:
        (status,) = self._sandbox.pod(self._name)["status"]["containerStatuses"]
        return int(status["restartCount"])

    def takes(self, memory: int) -> None:
        """Waits until its program has so many MiB, in whole pieces."""
        region = self._gpu.region(self._sandbox.pod(self._name))
        eventually(lambda: region.total() == memory // PIECE * PIECE * MIB,
                   lambda: f"it takes {memory} MiB: {region.total() // MIB}; {self.limits()}", timeout=60)

    def free(self) -> None:
        self._gpu.node.run_in(self.identity, "touch", "/tmp/free")

    def limits(self) -> str:
        """Returns the lines of its devices in the limits file."""
        return "\n".join(re.findall(r"^device \S+ (.*)$", (self._folder / "limits").read_text(), re.MULTILINE))

    def is_limited(self, memory: int, cores: int) -> bool:
        """Reports whether file and region say so, and a program in the container sees it."""
        shown = self._gpu.run(self.identity, "info")[-1][-1]
        return (f"memory={memory * MIB} cores={cores}" in self.limits() and shown == memory * MIB
                and self._region.limit(0) == memory * MIB and self._region.number(1728, "<Q") == cores)


def of(memory: int, **cores: int) -> dict[str, dict[str, str | int]]:
    return {"main": {"memory": f"{memory}Mi", **cores}}


@pytest.mark.parametrize("plugin", ["start", "admission"], indirect=True)
def test_a_program_gets_more_while_it_runs(sandbox: Sandbox, gpu: FakeGpus, monitor: Monitor) -> None:
    container = Container(sandbox, gpu, "a", 1000)
    applied(sandbox, "a", of(2000, cores=40))
    container.takes(2000)
    assert container.is_limited(2000, 40) and container.restarts == 0
    assert {one.memory_mib for share in sandbox.shares("a") for one in share} == {2000}
    eventually(lambda: monitor.values("hami_vgpu_memory_limit_bytes", sandbox.namespace) == {"a": 2000.0 * MIB},
               monitor.log)


def test_a_shrink_below_the_use_is_given_back_when_the_program_frees(sandbox: Sandbox, real: RealNode, gpu: FakeGpus,
                                                                     monitor: Monitor) -> None:
    container = Container(sandbox, gpu, "a", 2000)
    text = resize(sandbox, "a", of(1000))
    booked(sandbox, "a", TARGET, 1000)
    eventually(lambda: f"memory={1000 * MIB}" in container.limits(), container.limits)
    sandbox.create(client_pod("next", client("info", gpu=1, gpumem=CARDS[0].memory - 1000)))
    sandbox.refusal("next")
    answered(sandbox, "a", text, "Booked")
    assert gpu.run(container.identity, "alloc plain 0 1")[-1] == [2]
    container.takes(2000)
    container.free()
    answered(sandbox, "a", text, "Applied")
    sandbox.running("next", timeout=120)
    assert container.is_limited(1000, 10) and container.restarts == 0


def test_a_container_that_starts_again_has_the_new_size(sandbox: Sandbox, real: RealNode, gpu: FakeGpus,
                                                        monitor: Monitor) -> None:
    """In the middle of a shrink, which its end completes, and of a growth."""
    container = Container(sandbox, gpu, "a", 2000)
    for memory in (1000, 1600):
        before = container.restarts
        text = resize(sandbox, "a", of(memory))
        booked(sandbox, "a", TARGET if memory == 1000 else RESIZED, memory)
        real.ctr("tasks", "kill", "--signal", "SIGKILL", container.identity.rpartition("/")[2])
        restarted(sandbox, "a", before)
        answered(sandbox, "a", text, "Applied")
        container.takes(memory)
        assert container.is_limited(memory, 10)
    assert disagreements(sandbox) == []


def test_a_plugin_and_a_monitor_that_come_back_finish_what_was_booked(sandbox: Sandbox, gpu: FakeGpus,
                                                                      plugin: DevicePlugin, real: RealNode) -> None:
    """There is no monitor at first: nobody knows that the container which shrinks does not use more."""
    grows, shrinks = Container(sandbox, gpu, "grows", 1000), Container(sandbox, gpu, "shrinks", 2000)
    shrinks.free()
    plugin.kill()
    texts = {name: resize(sandbox, name, of(memory)) for name, memory in (("grows", 2000), ("shrinks", 1000))}
    booked(sandbox, "grows", RESIZED, 2000)
    booked(sandbox, "shrinks", TARGET, 1000)
    plugin.start()
    answered(sandbox, "grows", texts["grows"], "Applied")
    grows.takes(2000)
    eventually(lambda: f"memory={1000 * MIB}" in shrinks.limits(), shrinks.limits)
    sandbox.event("shrinks", "ResizePending", "monitor", timeout=60)
    answered(sandbox, "shrinks", texts["shrinks"], "Booked")
    monitor = Monitor(real)
    monitor.start()
    try:
        answered(sandbox, "shrinks", texts["shrinks"], "Applied")
    finally:
        monitor.close()
    assert disagreements(sandbox) == []


def test_two_elastic_pods_use_the_card_alone_and_share_it(sandbox: Sandbox, gpu: FakeGpus, monitor: Monitor) -> None:
    busy = client("module", "launch plain idle 1", "load medium 120000", gpu=1, gpumem=1000, gpucores=30)
    elastic = {"nvidia.com/gpucores-limit": "100"}
    sandbox.create(client_pod("a", busy, **elastic))
    sandbox.running("a")
    gpu.answers(sandbox.pod("a"), 4)
    first = gpu.tenant(sandbox.pod("a"))
    eventually(lambda: measured_shares([first], 2)[0] > 45, "it uses what nobody else does", timeout=60)
    sandbox.create(client_pod("b", busy, **elastic))
    sandbox.running("b")
    gpu.answers(sandbox.pod("b"), 4)
    both = [first, gpu.tenant(sandbox.pod("b"))]
    eventually(lambda: all(20 <= share <= 40 for share in measured_shares(both, 2)), "each has its own", timeout=60)
