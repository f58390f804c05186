"""Rows about a card that becomes unhealthy, on a real node, and about what watching its cards costs the device plugin.

NVIDIA's library is a stand-in that sends an event for each change, as a driver of release 570 and later does; the
kubelet, containerd, the scheduler and kube-scheduler are real.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.processes import Cpu, Run, cpu_seconds, disturbed
from benchmarks.realnode import STEP, missing, scheduled_node
from benchmarks.rows import Row, remarks
from testing.device_health import health_of
from testing.device_plugin import RESOURCE, DevicePlugin
from testing.driver_root import DriverRoot, compile_nvml
from testing.pods import pod
from testing.realnode import RealNode
from testing.sandbox import Sandbox
from testing.scheduler import Scheduler

__all__ = ["health_rows"]

Object = dict[str, Any]
Moments = dict[str, float]
GROUP = "health"
VERSION = "570.1"
CARDS, SLOTS = 8, 50
PODS = 40
FIRST = {"nvidia.com/use-gpuuuid": "GPU-0"}
HEALTHY, RESET = 0, 1
"""What the driver asks for."""
NEWCOMERS, PAUSE_SECONDS = 12, 0.25
"""Pods that are created while a card becomes unhealthy, and the time between two of them."""
IDLE_SECONDS, IDLE_TURNS = 40, 3
UNWATCHED = {"DP_DISABLE_HEALTHCHECKS": "all"}
SELDOM = {"FAKE_NVML_PAUSE_MS": "1000"}
"""The stand-in looks for changes in turns, which costs CPU time; the driver's library sleeps until there is one."""


def health_rows(run: Run) -> Iterator[Row]:
    """Yields rows for what is told of an unhealthy card, for new pods, and for the CPU time of the device plugin."""
    if reason := missing():
        yield Row(group=GROUP, what="a real node", measured=f"not measured: {reason}")
        return
    with scheduled_node(run) as (node, scheduler):
        driver = driver_on(node)
        plugin = DevicePlugin(
            node,
            mock_devices="",
            driver_root_ctr_path=str(driver.path),
            device_split_count=str(SLOTS),
        )
        plugin.install_limiter(b"no library: nothing is limited here\n")
        stage = Stage(run, node, scheduler, driver, plugin)
        with stage.watching():
            yield from stage.told_rows()
            yield stage.placed_row()
        yield stage.cpu_row()


def driver_on(node: RealNode) -> DriverRoot:
    """Returns a driver with cards that it asks nothing for."""
    folder = Path(tempfile.mkdtemp(prefix="driver-", dir=node.folder))
    library = folder / VERSION
    compile_nvml(library, VERSION, CARDS)
    driver = DriverRoot(folder / "root", {VERSION: library}, CARDS)
    driver.replace(VERSION)
    for card in range(CARDS):
        driver.ask(card, HEALTHY)
    return driver


class Stage:
    """A cluster with a real node whose cards a stand-in of the driver has."""

    def __init__(
        self,
        run: Run,
        node: RealNode,
        scheduler: Scheduler,
        driver: DriverRoot,
        plugin: DevicePlugin,
    ) -> None:
        self.run, self.node, self.scheduler = run, node, scheduler
        self.driver, self.plugin = driver, plugin

    @contextmanager
    def watching(self, **environment: str) -> Iterator[None]:
        """Has the device plugin run, with *environment* beside that of this process."""
        self.plugin.environment = {
            "FAKE_NVML_MODULE": str(self.driver.module),
            "FAKE_NVML_HEALTH": str(self.driver.health),
            **environment,
        }
        self.plugin.start()
        try:
            self.plugin.wait_offered(CARDS * SLOTS)
            yield
        finally:
            self.plugin.stop()

    @contextmanager
    def sandbox(self) -> Iterator[Sandbox]:
        with Sandbox.opened(self.node.kube, name="bench") as sandbox, self.node.lent(sandbox):
            yield sandbox

    def told_rows(self) -> Iterator[Row]:
        """Rows for the pods of a card that becomes unhealthy, and for the card when it is healthy again."""
        names = [f"p{number}" for number in range(PODS)]
        with self.sandbox() as sandbox:
            sandbox.create_all(pod(name, gpu=1, gpumem=1000, annotations=FIRST) for name in names)
            sandbox.running(*names, timeout=180)
            cpu = self._cpu()
            with self._asked(RESET) as follow:
                status = follow(sandbox, "Pod", lambda item: health_of(item) == ["Unhealthy"], PODS)
                events = follow(sandbox, "Event", tells_of_its_card, PODS)
                withdrawn = follow(None, "Node", self._offers(CARDS - 1), 1)
            sandbox.create(pod("waits", gpu=1, gpumem=1000, annotations=FIRST))
            sandbox.refusal("waits")
            with self._asked(HEALTHY) as follow:
                offered = follow(None, "Node", self._offers(CARDS), 1)
                well = follow(sandbox, "Pod", lambda item: health_of(item) == ["Healthy"], PODS)
                bound = follow(sandbox, "Pod", is_bound_waiter, 1)
            disturbance = disturbed(cpu.spent())
        yield self._row(
            f"a card becomes unhealthy: the status of its {PODS} pods", status, 2, disturbance
        )
        yield self._row(f"the same: an event on each of its {PODS} pods", events, 5, disturbance)
        yield self._row("the same: the kubelet offers it no more", withdrawn, None, disturbance)
        yield self._row("it is healthy again: the kubelet offers it", offered, 10, disturbance)
        yield self._row("the same: a pod that waits for it is bound", bound, None, disturbance)
        yield self._row(f"the same: the status of its {PODS} pods", well, None, disturbance)

    def placed_row(self) -> Row:
        """The row for pods that are created while a card becomes unhealthy: when the last one is bound to it."""
        with self.sandbox() as sandbox:
            logged = self.scheduler.program.log.stat().st_size
            cpu = self._cpu()
            sandbox.create(pod("before", gpu=1, gpumem=1000, annotations=FIRST))
            sandbox.running("before")
            began = time.time()
            self.driver.ask(0, RESET)
            for number in range(NEWCOMERS):
                sandbox.create(pod(f"n{number}", gpu=1, gpumem=1000, annotations=FIRST))
                time.sleep(PAUSE_SECONDS)
            sandbox.refusal(f"n{NEWCOMERS - 1}")
            disturbance = disturbed(cpu.spent())
            text = self.scheduler.program.log.read_bytes()[logged:].decode(errors="replace")
            self.driver.ask(0, HEALTHY)
        bound = [
            datetime.fromisoformat(moment).timestamp() - began
            for moment, step, name in STEP.findall(text)
            if step == "bound"
        ]
        late = [seconds for seconds in bound if seconds > 0]
        last = max(late, default=0)
        return Row(
            group=GROUP,
            what=f"the same: the last of {NEWCOMERS} new pods, one every {PAUSE_SECONDS} s, that is bound to it",
            measured=f"{last:.2f} s" if late else "none of them",
            target="2 s",
            met=last <= 2,
            compared=disturbance,
            figures={"bound_seconds": bound},
        )

    def cpu_row(self) -> Row:
        """The row for the CPU time of a device plugin that watches its cards, beside one that does not."""
        shares: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(IDLE_TURNS):
            for watched, found in shares.items():
                with self.watching(**SELDOM, **({} if watched else UNWATCHED)):
                    time.sleep(5)  # what it does once, after its start
                    pid = self.plugin.program.pid or 0
                    before = cpu_seconds(pid)
                    time.sleep(IDLE_SECONDS)
                    found.append(100 * (cpu_seconds(pid) - before) / IDLE_SECONDS)
            self.run.say(f"idle device plugin, turn {turn + 1} of {IDLE_TURNS}")
        without, watched = (statistics.median(found) for found in shares.values())
        return Row(
            group=GROUP,
            what=f"an idle device plugin watches {CARDS} cards: more CPU time than without",
            measured=f"{watched - without:.2f} % of a core",
            target="0.1 % of a core",
            met=watched - without <= 0.1,
            compared=f"{watched:.2f} %, {without:.2f} % with {list(UNWATCHED)[0]}=all; {IDLE_TURNS} turns",
            figures={"percent_watched": shares[True], "percent_unwatched": shares[False]},
        )

    @contextmanager
    def _asked(self, action: int) -> Iterator[Callable[..., Moments]]:
        """Has the driver ask for *action*; what is followed meanwhile is complete after the block."""
        with ThreadPoolExecutor() as pool:
            began = time.monotonic()
            waits = []

            def follow(
                sandbox: Sandbox | None, kind: str, is_so: Callable[[Object], bool], amount: int
            ) -> Moments:
                moments: Moments = {}

                def judged(items: dict[str, Object]) -> bool:
                    for name, item in items.items():
                        if name not in moments and is_so(item):
                            moments[name] = time.monotonic() - began
                    return len(moments) >= amount

                namespace = sandbox.namespace if sandbox else None
                waits.append(
                    pool.submit(
                        self.node.kube.wait, kind, judged, namespace, timeout=60, what=f"{kind}s"
                    )
                )
                return moments

            self.driver.ask(0, action)
            yield follow
            for each in waits:
                each.result()

    def _offers(self, amount: int) -> Callable[[Object], bool]:
        """Whether a node is the real one and offers this many cards."""

        def is_so(node: Object) -> bool:
            offered = int(node["status"].get("allocatable", {}).get(RESOURCE, 0))
            return node["metadata"]["name"] == self.node.name and offered == amount * SLOTS

        return is_so

    def _cpu(self) -> Cpu:
        return Cpu(
            {
                **{
                    name: each.pid
                    for name, each in self.node.cluster.components.items()
                    if each.pid
                },
                "hami": self.scheduler.program.pid or 0,
                "plugin": self.plugin.program.pid or 0,
            }
        )

    @staticmethod
    def _row(what: str, moments: Moments, target: float | None, disturbance: str) -> Row:
        seconds = sorted(moments.values())
        middle = f", {statistics.median(seconds):.2f} s in the middle" if len(seconds) > 1 else ""
        return Row(
            group=GROUP,
            what=what,
            measured=f"{seconds[-1]:.2f} s{middle}",
            target=f"{target} s" if target else "",
            met=seconds[-1] <= target if target else None,
            compared=remarks("the last counts" if middle else "", disturbance),
            figures={"seconds": seconds},
        )


def tells_of_its_card(event: Object) -> bool:
    """Whether an event tells a pod that its card is unhealthy."""
    return bool(event["reason"] == "GpuUnhealthy")


def is_bound_waiter(item: Object) -> bool:
    """Whether this is the pod that waits for a card, and it is bound."""
    return item["metadata"]["name"] == "waits" and bool(item["spec"].get("nodeName"))
