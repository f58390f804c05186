"""Monitors that the dashboard asks: a process of ``hami monitor`` without a driver, or a page that was recorded.

They serve an address of this machine beside loopback, and pods of the API server stand for them.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testing.audit import Inventory
from testing.eventually import eventually
from testing.kube import Kube
from testing.pods import pod
from testing.processes import Program
from testing.region_bytes import Process, region_bytes
from testing.scheduler import NAMESPACE

__all__ = ["MonitorProcess", "announced", "own_address", "plausible_page", "served"]

MIB = 1 << 20
LABELS = {"app.kubernetes.io/component": "hami-monitor", "hami.io/webhook": "ignore"}


def own_address() -> str:
    """Returns an address of this machine beside loopback; empty if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("203.0.113.1", 9))  # sends nothing
        address = str(probe.getsockname()[0])
        return "" if address.startswith("127.") else address
    return ""


@contextlib.contextmanager
def announced(kube: Kube, *nodes: str) -> Iterator[None]:
    """Makes a pod for the monitor of each of *nodes*, at the address of this machine, and deletes it at the end."""
    status = {
        "podIP": own_address(),
        "podIPs": [{"ip": own_address()}],
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    for node in nodes:
        kube.create(pod(f"monitor-{node}", labels=LABELS, node_name=node), NAMESPACE)
        kube.merge_patch(
            "Pod", f"monitor-{node}", {"status": status}, NAMESPACE, subresource="status"
        )
    try:
        yield
    finally:
        for node in nodes:
            kube.delete("Pod", f"monitor-{node}", NAMESPACE, grace_seconds=0)


@contextlib.contextmanager
def served(text: str, port: int) -> Iterator[None]:
    """Serves *text* as the metrics page of a monitor."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Requests are not logged."""

    with http.server.ThreadingHTTPServer((own_address(), port), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        yield
        server.shutdown()


def plausible_page(found: Inventory) -> str:
    """Returns the metrics page of monitors of all nodes, where each pod uses some of what it holds."""
    lines = []
    for (node, uuid), card in found.cards.items():
        memory = compute = 0
        for who, hold in found.holds.get((node, uuid), {}).items():
            namespace, _, name = who.partition("/")
            share = zlib.crc32(who.encode()) % 60 + 35  # percent
            used, busy = hold.memory * share // 100, (hold.cores or 10) * share // 100
            memory, compute = memory + used, compute + busy
            part = f'device_uuid="{uuid}",namespace="{namespace}",pod="{name}"'
            lines += [
                f"hami_vgpu_memory_used_bytes{{{part}}} {used * MIB}",
                f"hami_container_device_utilization_ratio{{{part}}} {busy}",
            ]
        lines += [
            f'hami_host_gpu_memory_used_bytes{{device_uuid="{uuid}"}} {min(memory, card.memory) * MIB}',
            f'hami_host_gpu_utilization_ratio{{device_uuid="{uuid}"}} {min(compute, 100)}',
        ]
    return "\n".join([*lines, ""])


class MonitorProcess:
    """``hami monitor`` of a fake node. It has no driver: what containers use stands in their regions."""

    def __init__(self, kubeconfig: Path, node: str, folder: Path, port: int) -> None:
        self._folder = folder
        words = [
            "--node-name",
            node,
            "--hook-path",
            str(folder),
            "--interval",
            "200ms",
            "--metrics-bind-address",
            f"{own_address()}:{port}",
        ]
        self._program = Program(
            "monitor",
            [sys.executable, "-m", "hami.cli", "monitor", *words],
            folder / "log",
            env=os.environ | {"KUBECONFIG": str(kubeconfig)},
        )

    def write_region(self, item: dict[str, Any], uuid: str, *, mib: int, percent: int) -> None:
        """Writes the region of the pod's container like its limiter does."""
        name = f"{item['metadata']['uid']}_{item['spec']['containers'][0]['name']}"
        directory = self._folder / "vgpu" / "containers" / name
        directory.mkdir(parents=True)
        (directory / "x.cache").write_bytes(
            region_bytes(
                uuids=(uuid,),
                limits=(8192 * MIB,),
                processes=[Process(used={0: mib * MIB}, sm={0: percent})],
            )
        )

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Runs it."""
        self._program.start()
        try:
            eventually(
                lambda: "serving" in self._program.tail() or not self._program.running(),
                self._program.tail,
            )
            yield
        finally:
            self._program.stop()
