"""A demonstration of containers on a real kubelet: each prints its device and its limits.

``python -m e2e.demo --real-node``. The GPUs come from a mock file; webhook, schedulers, kubelet, device plugin,
containerd and containers are real.
"""

from __future__ import annotations

import threading
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from e2e import audit
from e2e.cluster import LocalCluster
from e2e.device_plugin import RESOURCE, DevicePlugin, cards
from e2e.pods import container, pod
from e2e.realnode import RealNode, missing
from e2e.sandbox import Sandbox
from e2e.scheduler import Certificates, Scheduler, install

__all__ = ["run"]

Object = dict[str, Any]
END = "-- that is all"
SCRIPT = ("env | grep -E '^(NVIDIA|CUDA)_' | sort; "
          "echo; echo mounted:; grep -oE ' /[^ ]*(vgpu|preload)[^ ]* r[ow],' /proc/self/mountinfo | tr -d ,; "
          f"echo '{END}'; sleep inf")
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
                plugin.insert(*cards(2))
                plugin.install_limiter("placeholder: there is no GPU to limit\n")
                plugin.start().wait_offered(20)
                with Sandbox.opened(cluster.kube, name="demo") as sandbox, node.lent(sandbox):
                    say("pods")
                    for name, asked in PODS.items():
                        shown = container(**asked) | {"command": ["sh", "-c", SCRIPT]}
                        sandbox.create(pod(name, containers=[shown], scheduler="hami-scheduler"))
                    sandbox.running(*PODS)
                    progress.stop()
                    show(console, node, sandbox)
                    violations = audit.audit(cluster.kube)
                    for violation in violations:
                        console.print(f"[red]the auditor found: {violation}")
                    if keep:
                        farewell(console, node, sandbox)
                        threading.Event().wait()
                    return int(bool(violations))


def show(console: Console, node: RealNode, sandbox: Sandbox) -> None:
    """Prints what the kubelet offers, and the output of each container."""
    console.print(f"node [bold]{node.name}[/]: the kubelet offers {node.allocatable(RESOURCE)} {RESOURCE} of two GPUs")
    table = Table(show_lines=True, expand=True)
    table.add_column("pod", no_wrap=True)
    table.add_column("requests", no_wrap=True)
    table.add_column("output of its container", ratio=1, overflow="fold")
    for name, asked in PODS.items():
        printed = node.output(sandbox.pod(name), until=END).partition(END)[0].strip()
        table.add_row(name, "\n".join(f"{key} {value}" for key, value in asked.items()), Text(printed))
    console.print(table)


def farewell(console: Console, node: RealNode, sandbox: Sandbox) -> None:
    """Prints how to use the cluster."""
    cluster = node.cluster
    console.print(Panel.fit(Text("\n".join((
        "The cluster stays up until Ctrl-C. In another terminal:", "",
        f"  alias k='{cluster.binaries['kubectl']} --kubeconfig {cluster.kubeconfig} -n {sandbox.namespace}'",
        "  k get pods -o wide",
        f"  k describe node {node.name}", "",
        f"Containers' output: {node.path('/var/log/pods')}",
        f"Logs: {node.folder}/device-plugin.log, kubelet.log, containerd.log"))), title="kept"))
