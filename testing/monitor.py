"""``hami monitor`` as a process on a real node, with the flags and permissions of its DaemonSet.

It is in the node's namespace of processes, as the DaemonSet's pod is. There is no driver: GPUs are those of the mock
file that the device plugin has.
"""

from __future__ import annotations

import os
import subprocess
import sys

import urllib3
from prometheus_client.parser import text_string_to_metric_families

from testing.cluster import MANIFESTS
from testing.device_plugin import HOOK, account_kubeconfig
from testing.eventually import PATIENCE_S, eventually
from testing.processes import free_port
from testing.realnode import NodeProgram, RealNode
from testing.scheduler import shipped_flags

__all__ = ["Monitor"]

ACCOUNT = "hami-monitor"


class Monitor:
    """The monitor of one node. Flags are keyword arguments with underscores."""

    def __init__(self, node: RealNode, **flags: str) -> None:
        self.node = node
        self._flags = (
            shipped_flags("monitor.yaml", "monitor")
            | {
                "node_name": node.name,
                "mock_devices": str(node.folder / "cards.yaml"),
                "hook_path": HOOK,
                "config_file": str(MANIFESTS / "device-config.yaml"),
                "metrics_bind_address": f"127.0.0.1:{free_port()}",  # all programs share the addresses of the machine
            }
            | flags
        )
        self.url = f"http://{self._flags['metrics_bind_address']}"
        self.program = self._program("monitor")

    def start(self) -> None:
        """Starts it and waits until it is ready."""
        self.program.start()

        def is_ready() -> bool:
            assert self.program.running(), (
                f"hami monitor ended ({self.program.exit_code}):\n{self.log()}"
            )
            try:
                return self.answer("/readyz")[0] == 200
            except urllib3.exceptions.HTTPError:
                return False

        eventually(is_ready, self.log)

    def stop(self) -> None:
        """Sends SIGTERM and waits until it has ended. Raises: WaitTimeout."""
        self.program.stop()

    def close(self) -> None:
        if self.program.running():
            self.program.kill()

    def once(self, *words: str) -> str:
        """Returns what ``hami monitor --once`` prints."""
        program = self._program("monitor-once", "--once", *words)
        return subprocess.run(
            program.argv, env=program.env, capture_output=True, text=True, check=True
        ).stdout

    def answer(self, path: str) -> tuple[int, str]:
        """Returns status and body of a page."""
        answer = urllib3.request("GET", f"{self.url}{path}", retries=False, timeout=PATIENCE_S)
        return answer.status, answer.data.decode().strip()

    def page(self) -> str:
        """Returns the metrics."""
        status, text = self.answer("/metrics")
        assert status == 200, text
        return text + "\n"

    def values(self, metric: str, namespace: str) -> dict[str, float]:
        """Returns the values of *metric* in *namespace*, by pod."""
        return {
            sample.labels["pod"]: sample.value
            for family in text_string_to_metric_families(self.page())
            for sample in family.samples
            if sample.name == metric and sample.labels.get("namespace") == namespace
        }

    def log(self) -> str:
        """Returns the end of the log."""
        return self.program.tail()

    def _program(self, name: str, *words: str) -> NodeProgram:
        flags = [f"--{flag.replace('_', '-')}={value}" for flag, value in self._flags.items()]
        return self.node.program(
            name,
            [sys.executable, "-m", "hami.cli", "monitor", *flags, *words],
            env={
                **{
                    key: value
                    for key, value in os.environ.items()
                    if key not in ("NODE_NAME", "HOOK_PATH")
                },
                "KUBECONFIG": str(account_kubeconfig(self.node, ACCOUNT, "monitor-rbac.yaml")),
                "PYTHONUNBUFFERED": "1",
            },
        )
