"""A demonstration of containers on a real kubelet: each prints its device and its limits, and is stopped there.

``python -m e2e.demo --real-node``. The GPUs and their driver are fake; webhook, schedulers, kubelet, device plugin,
containerd, containers and the limiter in them are real.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from e2e import audit
from e2e.cluster import LocalCluster
from e2e.device_plugin import RESOURCE, DevicePlugin
from e2e.fake_gpu import CARDS, FakeGpus, client, client_pod
from e2e.realnode import RealNode, missing
from e2e.sandbox import Sandbox
from e2e.scheduler import Certificates, Scheduler, install
from tests.libvgpu.rig import MIB, Builds

__all__ = ["add_output", "farewell", "greedy", "output_table", "run"]

Object = dict[str, Any]
END = "-- that is all"
SCRIPT = ("env | grep -E '^(NVIDIA|CUDA)_' | sort; "
          "echo; echo mounted:; grep -oE ' /[^ ]*(vgpu|preload)[^ ]* r[ow],' /proc/self/mountinfo | tr -d ,; "
          f"echo '{END}'; ")
STEP_MIB, STEPS = 500, 48
"""Each container tries to allocate so much, so many times."""
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
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console,
                  transient=True) as progress:
        task = progress.add_task("control plane (built once, on the first run)")

        def say(line: str) -> None:
            progress.update(task, description=line)

        with LocalCluster.started(say=say) as cluster:
            say("a real node: kubelet, containerd")
            with RealNode.joined(cluster, say=say) as node:
                say("hami scheduler, hami device-plugin")
                certificates = Certificates(cluster.folder / "tls")
                Scheduler(cluster, certificates, install(cluster, certificates)).start()
                plugin = DevicePlugin(node)
                with tempfile.TemporaryDirectory() as folder:
                    gpus = FakeGpus(node, Builds(Path(folder)))
                    gpus.insert(plugin, *CARDS)
                plugin.start().wait_offered(20)
                with Sandbox.opened(cluster.kube, name="demo") as sandbox, node.lent(sandbox):
                    say("pods")
                    for name, asked in PODS.items():
                        sandbox.create(client_pod(name, greedy(**asked), **ONE_CARD))
                    sandbox.running(*PODS)
                    progress.stop()
                    show(console, node, sandbox, gpus)
                    violations = audit.audit(cluster.kube)
                    for violation in violations:
                        console.print(f"[red]the auditor found: {violation}")
                    if keep:
                        farewell(console, sandbox, node)
                        threading.Event().wait()
                    return int(bool(violations))


def greedy(**asked: int) -> Object:
    """Returns a container that prints what it has got, and allocates more than that."""
    steps = [f"alloc plain {number} {STEP_MIB * MIB}" for number in range(STEPS)]
    return client("info", *steps, first=SCRIPT, **asked)


def show(console: Console, node: RealNode, sandbox: Sandbox, gpus: FakeGpus) -> None:
    """Prints what the kubelet offers, the output of each container, and what its program could allocate."""
    console.print(f"node [bold]{node.name}[/]: the kubelet offers {node.allocatable(RESOURCE)} {RESOURCE} of two GPUs")
    table = output_table()
    for name, asked in PODS.items():
        add_output(table, name, asked, sandbox, gpus)
    console.print(table)
    for number, card in enumerate(CARDS):
        console.print(f"The driver has given away {gpus.used_mib(number)} of {card.memory} MiB of {card.uuid}.")


def output_table() -> Table:
    table = Table(show_lines=True, expand=True)
    table.add_column("pod", no_wrap=True)
    table.add_column("requests", no_wrap=True)
    table.add_column("output of its container", ratio=1, overflow="fold")
    table.add_column("its program allocates", no_wrap=True)
    return table


def add_output(table: Table, name: str, asked: Mapping[str, object], sandbox: Sandbox, gpus: FakeGpus) -> int:
    """Adds a row for the pod *name*, whose container is greedy. Returns the memory in MiB that its program sees."""
    printed = gpus.node.output(sandbox.pod(name), until=END).partition(END)[0].strip()
    _, _, (_, _, total), *steps = gpus.answers(sandbox.pod(name), 3 + STEPS)
    granted = steps.count([0])
    table.add_row(name, "\n".join(f"{key} {value}" for key, value in asked.items()), Text(printed), "\n".join((
        f"sees {total // MIB} MiB", f"gets {granted} × {STEP_MIB} MiB = {granted * STEP_MIB} MiB",
        f"then {STEPS - granted} times CUDA error {steps[-1][0]}, out of memory")))
    return total // MIB


def farewell(console: Console, sandbox: Sandbox, *nodes: RealNode) -> None:
    """Prints how to use the cluster."""
    cluster = nodes[0].cluster
    console.print(Panel.fit(Text("\n".join((
        "The cluster stays up until Ctrl-C. In another terminal:", "",
        f"  alias k='{cluster.binaries['kubectl']} --kubeconfig {cluster.kubeconfig} -n {sandbox.namespace}'",
        "  k get pods -o wide",
        *(f"  k describe node {node.name}" for node in nodes), "",
        *(f"Containers' output: {node.path('/var/log/pods')}" for node in nodes),
        *(f"Logs: {node.folder}/device-plugin.log, kubelet.log, containerd.log" for node in nodes)))), title="kept"))
