"""A demonstration of containers on a real kubelet: each prints its device and its limits, and is stopped there; one is
resized, and a GPU falls ill and comes back.

``python -m e2e.demo --real-node``. The GPUs and their driver are fake; webhook, schedulers, kubelet, device plugin,
containerd, containers and the limiter in them are real.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from testing import audit, interrupts
from testing.allocating import AllocatingContainer
from testing.cluster import LocalCluster
from testing.device_health import condition, health_of
from testing.device_plugin import RESOURCE, SLOTS, DevicePlugin
from testing.eventually import eventually
from testing.fake_gpu import CARDS, FakeGpus, client, client_pod
from testing.farewell import say_farewell
from testing.limiter.builds import Builds
from testing.limiter.rig import MIB
from testing.monitor import Monitor
from testing.progress import shown
from testing.realnode import RealNode, missing
from testing.resizes import answered, applied, resize
from testing.sandbox import Sandbox
from testing.scheduler import Certificates, Scheduler, install

__all__ = ["add_output", "farewell", "greedy", "output_table", "run"]

Object = dict[str, Any]
END = "-- that is all"
SCRIPT = (
    "env | grep -E '^(NVIDIA|CUDA)_' | sort; "
    "echo; echo mounted:; grep -oE ' /[^ ]*(vgpu|preload)[^ ]* r[ow],' /proc/self/mountinfo | tr -d ,; "
    f"echo '{END}'; "
)
STEP_MIB, STEPS = 500, 48
"""Each container tries to allocate so much, so many times."""
SMALL, LARGE = 2000, 6000
"""MiB of the container that is resized."""
ONE_CARD = {"hami.io/gpu-scheduler-policy": "binpack"}
PODS = {
    "notebook": {"gpu": 1, "gpumem": 4000, "gpucores": 10},
    "inference": {"gpu": 1, "percent": 25, "gpucores": 30},
    "training": {"gpu": 2, "gpumem": 20_000, "gpucores": 40},
}


def run(console: Console, *, keep: bool) -> int:
    """Starts everything, shows the output of the containers, and returns the exit status."""
    if reason := missing():
        console.print(f"[red]{reason}")
        return 1
    with (
        shown(console, "control plane (built once, on the first run)") as steps,
        LocalCluster.started(say=steps.say) as cluster,
    ):
        steps.say("a real node: kubelet, containerd")
        with RealNode.joined(cluster, say=steps.say) as node:
            steps.say("hami scheduler, hami device-plugin")
            certificates = Certificates(cluster.folder / "tls")
            Scheduler(cluster, certificates, install(cluster, certificates)).start()
            plugin = DevicePlugin(node)
            gpus = FakeGpus(node, Builds())
            gpus.insert(plugin, *CARDS)
            plugin.start().wait_offered(20)
            Monitor(node).start()
            sandbox = Sandbox.created(cluster.kube, name="demo")
            node.lend(sandbox)
            steps.say("pods")
            for name, asked in PODS.items():
                sandbox.create(client_pod(name, greedy(**asked), **ONE_CARD))
            sandbox.running(*PODS)
            steps.stop()
            show(console, node, sandbox, gpus)
            show_resizes(console, sandbox, gpus)
            show_fault(console, node, sandbox, plugin)
            violations = audit.audit(cluster.kube)
            for violation in violations:
                console.print(f"[red]the auditor found: {violation}")
            if keep:
                farewell(console, sandbox, node)
                interrupts.wait()
            return int(bool(violations))


def greedy(**asked: int) -> Object:
    """Returns a container that prints what it has got, and allocates more than that."""
    steps = [f"alloc plain {number} {STEP_MIB * MIB}" for number in range(STEPS)]
    return client("info", *steps, first=SCRIPT, **asked)


def show(console: Console, node: RealNode, sandbox: Sandbox, gpus: FakeGpus) -> None:
    """Prints what the kubelet offers, the output of each container, and what its program could allocate."""
    console.print(
        f"node [bold]{node.name}[/]: the kubelet offers {node.allocatable(RESOURCE)} {RESOURCE} of two GPUs"
    )
    table = output_table()
    for name, asked in PODS.items():
        add_output(table, name, asked, sandbox, gpus)
    console.print(table)
    for number, card in enumerate(CARDS):
        console.print(
            f"The driver has given away {gpus.used_mib(number)} of {card.memory} MiB of {card.uuid}."
        )


def show_resizes(console: Console, sandbox: Sandbox, gpus: FakeGpus) -> None:
    """Resizes a container while its program allocates what it gets, and prints what it has after each step."""
    table = Table(
        "step", "takes", "a program sees", "the pod has booked", title="resized while it runs"
    )

    def add(step: str) -> None:
        taken, (_, _, seen) = (
            gpus.region(sandbox.pod(container.name)).total(),
            container.ask("info")[-1],
        )
        ((share,),) = sandbox.shares(container.name)
        table.add_row(
            step, *(f"{size} MiB" for size in (taken // MIB, seen // MIB, share.memory_mib))
        )

    container = AllocatingContainer(sandbox, gpus, "resized", gpu=1, gpumem=SMALL, gpucores=10)
    add(f"requests {SMALL} MiB")
    began = time.monotonic()
    applied(sandbox, container.name, {"main": {"memory": f"{LARGE}Mi"}})
    seconds = time.monotonic() - began
    container.takes(LARGE)
    add(f"is resized to {LARGE} MiB: applied after {seconds:.1f} s")
    text = resize(sandbox, container.name, {"main": {"memory": f"{SMALL}Mi"}})
    eventually(lambda: f"memory={SMALL * MIB} " in container.limits(), container.limits)
    add(f"is to have {SMALL} MiB: cannot grow, and keeps what it takes")
    container.free()
    began = time.monotonic()
    answered(sandbox, container.name, text, "Applied")
    add(f"frees what it has taken: given back after {time.monotonic() - began:.1f} s")
    restarts = container.status["restartCount"]
    console.print(table)
    console.print(f"The container has run all the time: {restarts} restarts.")


def show_fault(console: Console, node: RealNode, sandbox: Sandbox, plugin: DevicePlugin) -> None:
    """Makes a GPU unhealthy, then healthy again, and prints what node and pods say before, meanwhile and after."""
    table = Table(
        "step",
        f"{RESOURCE} offered",
        "condition HamiGpuHealthy of the node",
        "status of the pods",
        title="a GPU becomes unhealthy, and healthy again",
    )

    def add(step: str, status: str, offered: int) -> None:
        node.wait_node(lambda item: condition(item)[0] == status, what=f"says {status}")
        plugin.wait_offered(offered)
        eventually(lambda: has_unhealthy() == (status == "False"), "the pods say so")
        pods = [f"{name}: {', '.join(health_of(sandbox.pod(name)))}" for name in PODS]
        table.add_row(step, str(offered), ": ".join(condition(node.node())), "\n".join(pods))

    def has_unhealthy() -> bool:
        return any("Unhealthy" in health_of(sandbox.pod(name)) for name in PODS)

    card = CARDS[0].uuid
    add("before", "True", 2 * SLOTS)
    plugin.set_health(card, "the driver asks: reset the GPU")
    add(f"{card} falls ill", "False", SLOTS)
    message = sandbox.event("training", "GpuUnhealthy", card)
    plugin.set_health(card, True)
    add("it comes back", "True", 2 * SLOTS)
    console.print(table)
    console.print(
        f"Events of training: {message}; {sandbox.event('training', 'GpuHealthy', card)}."
    )


def output_table() -> Table:
    table = Table(show_lines=True, expand=True)
    table.add_column("pod", no_wrap=True)
    table.add_column("requests", no_wrap=True)
    table.add_column("output of its container", ratio=1, overflow="fold")
    table.add_column("its program allocates", no_wrap=True)
    return table


def add_output(
    table: Table, name: str, asked: Mapping[str, object], sandbox: Sandbox, gpus: FakeGpus
) -> int:
    """Adds a row for the pod *name*, whose container is greedy. Returns the memory in MiB that its program sees."""
    printed = gpus.node.output(sandbox.pod(name), until=END).partition(END)[0].strip()
    _, _, (_, _, total), *steps = gpus.answers(sandbox.pod(name), 3 + STEPS)
    granted = steps.count([0])
    table.add_row(
        name,
        "\n".join(f"{key} {value}" for key, value in asked.items()),
        Text(printed),
        "\n".join(
            (
                f"sees {total // MIB} MiB",
                f"gets {granted} × {STEP_MIB} MiB = {granted * STEP_MIB} MiB",
                f"then {STEPS - granted} times CUDA error {steps[-1][0]}, out of memory",
            )
        ),
    )
    return total // MIB


def farewell(console: Console, sandbox: Sandbox, *nodes: RealNode) -> None:
    """Prints how to use the cluster."""
    say_farewell(
        console,
        nodes[0].cluster,
        sandbox.namespace,
        (
            "kubectl get pods -o wide",
            *(f"kubectl describe node {node.name}" for node in nodes),
            *(
                f"ls {shlex.quote(str(node.path('/var/log/pods')))}   # output of containers"
                for node in nodes
            ),
        ),
        [f"Logs: {node.folder}/device-plugin.log, kubelet.log, containerd.log" for node in nodes],
    )
