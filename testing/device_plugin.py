"""``hami device-plugin`` as a process on a real node, with GPUs from a mock file.

It has the flags and permissions of its DaemonSet (a token of the shipped ServiceAccount). Its files and the directory
of the limiter are on this machine; the directory of the kubelet is that of every node.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import urllib3
import yaml

from testing.cluster import MANIFESTS
from testing.eventually import PATIENCE_S, eventually
from testing.kube import write_kubeconfig
from testing.nodes import REGISTER
from testing.placing import LOCK_FREE
from testing.processes import free_port
from testing.realnode import NodeProgram, RealNode
from testing.revision import THIS, Revision
from testing.scheduler import shipped_flags
from testing.yaml_text import read_documents

__all__ = ["CHECKPOINT", "HOOK", "RESOURCE", "SLOTS", "Card", "DevicePlugin", "cards"]

Object = dict[str, Any]
RESOURCE = "nvidia.com/gpu"
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
HOOK = "/var/lib/hami"
"""Host directory above ``vgpu``, on the node."""
SLOTS = 10
"""Slices of a GPU, by the shipped device configuration."""
ACCOUNT = "hami-device-plugin"
CONTAINER = "device-plugin"
NAMESPACE = "kube-system"
ALLOCATED = re.compile(r'"(?:devices allocated|claim prepared)" .*\bseconds=([0-9.]+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU in the mock file. *health*: ``True``, or why it is unhealthy. *mig*: its instances."""

    uuid: str
    model: str = "NVIDIA A100-SXM4-80GB"
    memory: int = 81_920
    health: bool | str = True
    mig: Object = field(default_factory=dict)


def cards(count: int, **fields: Any) -> tuple[Card, ...]:
    """Returns *count* equal GPUs."""
    return tuple(
        Card(uuid=f"GPU-00000000-0000-4000-8000-{number:012d}", **fields) for number in range(count)
    )


class DevicePlugin:
    """The plugin of one node. Flags are keyword arguments with underscores."""

    def __init__(
        self,
        node: RealNode,
        *,
        name: str = "device-plugin",
        revision: Revision = THIS,
        **flags: str,
    ) -> None:
        self.node = node
        self.name = name
        self.cards: tuple[Card, ...] = ()
        self.environment: Object = {}
        """Variables that it has beside those of this process."""
        self._file = node.folder / "cards.yaml"
        self._revision = revision
        self._defaults = (
            shipped_flags("device-plugin.yaml", CONTAINER, revision)
            | {
                "node_name": node.name,
                "mock_devices": str(self._file),
                "hook_path": HOOK,
                "config_file": str(revision.manifests / "device-config.yaml"),
                "node_config_file": str(revision.manifests / "node-config.json"),
                "library_source": "",  # `install_limiter` installs the limiter
                "health_bind_address": f"127.0.0.1:{free_port()}",  # all plugins share the addresses of the machine
            }
            | flags
        )
        self.program: NodeProgram
        self._begun = 0

    # -- what it is given

    def insert(self, *cards: Card) -> None:
        """Replaces the GPUs of the node."""
        self.cards = cards
        fresh = self._file.with_suffix(".new")
        fresh.write_text(yaml.safe_dump({"cards": [asdict(card) for card in cards]}))
        fresh.rename(self._file)

    def set_health(self, uuid: str, health: bool | str) -> None:
        """Sets the health of a GPU."""
        self.insert(
            *(replace(card, health=health) if card.uuid == uuid else card for card in self.cards)
        )

    def install_limiter(self, content: bytes) -> None:
        """Installs the files of the limiter like the image of the plugin does: each is replaced atomically."""
        folder = self.node.path(HOOK) / "vgpu"
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in (
            ("libvgpu.so", content),
            ("ld.so.preload", f"{HOOK}/vgpu/libvgpu.so\n".encode()),
        ):
            fresh = folder / f".{name}.new"
            fresh.write_bytes(data)
            fresh.rename(folder / name)

    # -- life

    def start(self, **flags: str) -> DevicePlugin:
        """Starts it with its flags, changed by *flags*; does not wait for the registration."""
        words = [
            f"--{name.replace('_', '-')}={value}"
            for name, value in (self._defaults | flags).items()
        ]
        self.program = self.node.program(
            self.name,
            [sys.executable, "-m", "hami.cli", "device-plugin", *words],
            env={
                **{
                    key: value
                    for key, value in os.environ.items()
                    if key not in ("NODE_NAME", "HOOK_PATH")
                },
                **self.environment,
                **self._revision.environment,
                "KUBECONFIG": str(account_kubeconfig(self.node)),
                "PYTHONUNBUFFERED": "1",
            },
        )
        self._begun = self.program.log.stat().st_size if self.program.log.exists() else 0
        self.program.start()
        return self

    def kill(self) -> None:
        self.program.kill()

    def stop(self) -> None:
        """Sends SIGTERM and waits until it has ended. Raises: WaitTimeout."""
        self.program.stop()

    @classmethod
    @contextlib.contextmanager
    def offered(
        cls, node: RealNode, amount: int, *cards: Card, **flags: str
    ) -> Iterator[DevicePlugin]:
        """Yields one that runs with *cards* and a limiter, of which the kubelet offers *amount* slices."""
        made = cls(node, **flags)
        made.insert(*cards)
        made.install_limiter(b"the limiter\n")
        made.start()
        try:
            made.wait_offered(amount)
            node.wait_node(made._is_announced, what="has all annotations of the plugin")
            yield made
        finally:
            made.close()

    def close(self) -> None:
        if hasattr(self, "program") and self.program.running():
            self.program.kill()

    def _is_announced(self, item: Object) -> bool:
        """Reports whether a node has its annotations, which it writes besides what the kubelet offers."""
        found = item["metadata"].get("annotations") or {}
        if any(card.uuid not in found.get(REGISTER, "") for card in self.cards):
            return False
        return LOCK_FREE in found or "allocate=start" not in self.log()

    def restart_kubelet(self, amount: int) -> None:
        """Kills the kubelet, starts it again and waits until it offers *amount* slices of this plugin.

        It hears nothing of the API server until it knows the devices: before, it fails pods with devices for good.
        """
        self.node.kill_kubelet()
        self.node.kube.merge_patch(
            "Node",
            self.node.name,
            {"status": {"allocatable": {RESOURCE: "0"}}},
            subresource="status",
        )
        self._begun = self.program.log.stat().st_size
        checkpoint = self.node.path(CHECKPOINT)
        before = checkpoint.stat().st_mtime_ns
        self.node.cluster.pause_api_server()
        try:
            self.node.start_kubelet()
            self.wait_registered()
            eventually(
                lambda: checkpoint.stat().st_mtime_ns != before, "the kubelet has the devices"
            )
        finally:
            self.node.cluster.resume_api_server()
        self.wait_offered(amount)

    # -- what it has done

    def wait_offered(self, amount: int, *, timeout: float = PATIENCE_S) -> None:
        """Waits until it has registered and the kubelet offers *amount* slices."""
        self.wait_registered(timeout)
        try:
            self.node.wait_allocatable(RESOURCE, amount, timeout=timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.program.tail()}") from None

    def log(self) -> str:
        """Returns the log since the last start, of it or of the kubelet by `restart_kubelet`."""
        return self.program.log.read_bytes()[self._begun :].decode(errors="replace")

    def wait_registered(self, timeout: float = PATIENCE_S) -> None:
        """Waits until the kubelet has accepted its registration."""

        def registered() -> bool:
            assert self.program.running(), (
                f"hami device-plugin ended ({self.program.exit_code}):\n{self.log()[-3000:]}"
            )
            return "registered with the kubelet" in self.log()

        eventually(
            registered, lambda: f"the plugin has registered:\n{self.log()[-3000:]}", timeout=timeout
        )

    def readiness(self) -> tuple[int, str]:
        """Returns status and body of its readiness probe."""
        answer = urllib3.request(
            "GET", f"http://{self._defaults['health_bind_address']}/readyz", retries=False
        )
        return answer.status, answer.data.decode().strip()

    def allocate_seconds(self) -> list[float]:
        """Returns the durations of its successful Allocate calls, or of the claims that it prepared, from its log."""
        return [float(found[1]) for found in ALLOCATED.finditer(self.log())]


def account_kubeconfig(
    node: RealNode, account: str = ACCOUNT, rights: str = "device-plugin-rbac.yaml"
) -> Path:
    """Returns a kubeconfig with a token of a shipped account on *node*, created once. *rights*: the manifest of it."""
    target = node.folder / f"{account}.kubeconfig"
    if target.exists():
        return target
    for item in read_documents((MANIFESTS / rights).read_text()):
        node.kube.apply(item)
    token = node.kube.token(account, NAMESPACE, bound_to=node.node())
    return write_kubeconfig(node.cluster.kubeconfig, token, target)
