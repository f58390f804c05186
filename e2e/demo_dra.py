"""A demonstration of both allocation modes: two pods ask for the same part of a GPU, the second with a claim
(Dynamic Resource Allocation), and are stopped at the same limits.

``python -m e2e.demo --dra``. There are two real kubelets, one for each allocation mode. What is fake and what is
real: as in `e2e.demo_realnode`.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from rich.console import Console

from e2e.demo_realnode import add_output, farewell, greedy, output_table
from testing import interrupts, realnode
from testing.claims import (
    claiming,
    class_and_rights,
    missing,
    share,
    spec_of,
    template,
    wait_published,
)
from testing.cluster import LocalCluster
from testing.device_plugin import SLOTS, DevicePlugin
from testing.fake_gpu import CARDS, FakeGpus, client_pod
from testing.limiter.builds import Builds
from testing.people import ask
from testing.progress import shown
from testing.realnode import RealNode
from testing.sandbox import Sandbox
from testing.scheduler import Certificates, Scheduler, install

__all__ = ["run"]

Object = dict[str, Any]
NODES = {"device-plugin": "plugin", "dra": "claims"}
"""Names of nodes by allocation mode. Sockets are in folders of these names, and a path of one has 104 bytes at most."""
MEMORY_MIB, CORES = 3000, 30
TIMEOUT_SECONDS = 150  # the kubelet tries a claim again after a minute


def run(console: Console, *, keep: bool) -> int:
    """Starts everything, shows the output of the containers, and returns the exit status: 1 if their limits differ from
    what both ask for."""
    if reason := realnode.missing() or missing():
        console.print(f"[red]{reason}")
        return 1
    with (
        shown(console, "control plane (built once, on the first run)") as steps,
        LocalCluster.started(say=steps.say) as cluster,
        ExitStack() as stack,
    ):
        steps.say("two real nodes: kubelet, containerd")
        nodes = {
            allocation_mode: stack.enter_context(RealNode.joined(cluster, name=name, say=steps.say))
            for allocation_mode, name in NODES.items()
        }
        steps.say("hami scheduler, hami device-plugin")
        certificates = Certificates(cluster.folder / "tls")
        Scheduler(cluster, certificates, install(cluster, certificates)).start()
        class_and_rights(cluster.kube)
        gpus = with_gpus(nodes)
        sandbox = Sandbox.created(cluster.kube, name="demo")
        for node in nodes.values():
            node.lend(sandbox)
        steps.say("pods")
        pods = {
            "by-plugin": client_pod("by-plugin", greedy(gpu=1, gpumem=MEMORY_MIB, gpucores=CORES)),
            "by-claim": claiming(client_pod("by-claim", greedy()), "slice"),
        }
        sandbox.kube.create(
            template("slice", spec_of(main=share(MEMORY_MIB, CORES))), sandbox.namespace
        )
        sandbox.create(*pods.values())
        sandbox.running(*pods, timeout=TIMEOUT_SECONDS)
        steps.stop()
        seen = show(console, sandbox, gpus)
        ask(console, cluster, sandbox, "top", "cards")
        if keep:
            farewell(console, sandbox, *nodes.values())
            interrupts.wait()
        return int(seen != [MEMORY_MIB, MEMORY_MIB])


def with_gpus(nodes: dict[str, RealNode]) -> dict[str, FakeGpus]:
    """Gives each node a GPU and a device plugin, whose allocation mode is the label of the node."""
    gpus = {}
    builds = Builds()
    for card, (allocation_mode, node) in zip(CARDS, nodes.items(), strict=True):
        node.kube.merge_patch(
            "Node",
            node.name,
            {"metadata": {"labels": {"hami.io/allocation-mode": allocation_mode}}},
        )
        plugin = DevicePlugin(node, allocation_mode="auto")
        gpus[allocation_mode] = FakeGpus(node, builds)
        gpus[allocation_mode].insert(plugin, card)
        plugin.start()
        if allocation_mode == "dra":
            wait_published(plugin)
        else:
            plugin.wait_offered(SLOTS)
    return gpus


def show(console: Console, sandbox: Sandbox, gpus: dict[str, FakeGpus]) -> list[int]:
    """Prints the output of both containers, and what their programs could allocate. Returns the memory in MiB that each
    sees."""
    for allocation_mode, fake in gpus.items():
        console.print(
            f"node [bold]{fake.node.name}[/] has the label hami.io/allocation-mode={allocation_mode}"
        )
    table = output_table()
    seen = [
        add_output(
            table,
            "by-plugin",
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem": MEMORY_MIB, "nvidia.com/gpucores": CORES},
            sandbox,
            gpus["device-plugin"],
        ),
        add_output(
            table,
            "by-claim",
            {"claim of": "gpu.hami.io", "memory": f"{MEMORY_MIB}Mi", "cores": CORES},
            sandbox,
            gpus["dra"],
        ),
    ]
    console.print(table)
    return seen
