"""Fake GPUs inside containers of a real node: the driver of the limiter's tests, and a CUDA program that is told what
to do, with the GPUs that NVIDIA's runtime would make visible.

Containers have the C library of this machine in a folder of their own. Needs what ``tox run -e libvgpu`` needs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from typing import Any

import pytest

from testing.device_plugin import HOOK, SLOTS, Card, DevicePlugin
from testing.eventually import eventually
from testing.limiter.builds import Builds, Unavailable
from testing.limiter.layout import Machine, Region
from testing.limiter.rig import MIB, uuid_of
from testing.limiter.shares import Tenant
from testing.pods import container, pod
from testing.realnode import RealNode

__all__ = ["CARDS", "FakeGpus", "client", "client_pod"]

Object = dict[str, Any]
FOLDER = f"{HOOK}/fake"
"""Folder on the node, and in containers."""
CARDS = tuple(Card(uuid=uuid_of(number)) for number in range(2))
CLIENT = f"CUDA_VISIBLE_DEVICES=$NVIDIA_VISIBLE_DEVICES {FOLDER}/loader {FOLDER}/client symbol"
SETTINGS = {
    "LD_LIBRARY_PATH": FOLDER,
    "FAKE_CUDA_STATE": f"{FOLDER}/machine",
    "FAKE_CUDA_CTX_MIB": "0",
    "FAKE_CUDA_DEVICES": str(len(CARDS)),
    "FAKE_CUDA_TOTAL_MIB": str(CARDS[0].memory),
}
LIBRARY = re.compile(r"(/\S+) \(0x")


def offered_gpu(node: RealNode, plugin: DevicePlugin, builds: Builds) -> FakeGpus:
    """Starts *plugin* with a card, which the kubelet offers then. Skips the test if something cannot be built here."""
    try:
        made = FakeGpus(node, builds)
    except Unavailable as error:
        pytest.skip(str(error))
    made.insert(plugin, CARDS[0])
    plugin.start().wait_offered(SLOTS)
    return made


class FakeGpus:
    """The driver of `CARDS` on a real node, and the real limiter."""

    def __init__(self, node: RealNode, builds: Builds) -> None:
        """Raises: Unavailable if something cannot be built here."""
        self.node = node
        self._builds = builds
        folder = node.path(FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "machine").unlink(
            missing_ok=True
        )  # processes of containers that have ended would count
        programs = [builds.client, builds.library(), *builds.driver.glob("*.so.1")]
        printed = subprocess.run(
            ["ldd", *programs], capture_output=True, text=True, check=True
        ).stdout
        for library in {*LIBRARY.findall(printed), *map(str, programs)}:
            shutil.copy(library, folder)
        (loader,) = (path for path in folder.iterdir() if path.name.startswith("ld-linux"))
        loader.rename(folder / "loader")

    def insert(self, plugin: DevicePlugin, *cards: Card) -> None:
        """Gives *plugin* some of the cards, and the limiter."""
        plugin.insert(*cards)
        plugin.install_limiter(self._builds.library().read_bytes())

    def used_mib(self, card: int = 0) -> int:
        """Returns the memory of a card that is in use, by the driver's account."""
        state = self.node.path(FOLDER) / "machine"
        return (
            Machine(state).allocated(card) // MIB if state.exists() else 0
        )  # the first program makes it

    def answers(self, item: Object, count: int, name: str = "main") -> list[list[int]]:
        """Returns the numbers that a container of the pod *item* has answered with, for each command, in all its runs.

        Waits until there are *count* answers.
        """

        def found() -> list[list[int]]:
            return numbers(self.node.output(item, name))

        eventually(
            lambda: len(found()) >= count,
            lambda: f"{count} answers, not {self.node.output(item, name)}",
        )
        return found()

    def run(self, container: str, *commands: str) -> list[list[int]]:
        """Returns the answers of another program in the running *container* (``containerd://…``)."""
        return numbers(self.node.run_in(container, "sh", "-c", f"({typed(commands)}) | {CLIENT}"))

    def region(self, item: Object, name: str = "main") -> Region:
        """Returns the shared region of a container of the pod *item*, as a monitor sees it."""
        directory = self.node.path(f"{HOOK}/vgpu/containers") / f"{item['metadata']['uid']}_{name}"
        (path,) = directory.glob("*.cache")
        return Region(path)

    def tenant(self, item: Object, name: str = "main") -> Tenant:
        """Returns a container of the pod *item* as one that uses a card; its program has launched a kernel."""
        return Tenant(self.region(item, name), Machine(self.node.path(FOLDER) / "machine"))


def client(*commands: str, name: str = "main", first: str = "", **asked: int | str) -> Object:
    """Returns a container whose program carries out *commands*, prints its answers, and keeps what it has.

    *first*: shell commands before that.
    """
    return container(name, **asked) | {  # type: ignore[arg-type]
        "command": ["sh", "-c", f"{first}({typed(commands)}; sleep inf) | {CLIENT}"],
        "env": [{"name": key, "value": value} for key, value in SETTINGS.items()],
        "volumeMounts": [{"name": "fake", "mountPath": FOLDER}],
    }


def client_pod(name: str, *containers: Object, **annotations: str) -> Object:
    """Returns a pod with such *containers*."""
    item = pod(name, containers=containers, scheduler="hami-scheduler", annotations=annotations)
    item["spec"]["volumes"] = [{"name": "fake", "hostPath": {"path": FOLDER}}]
    return item


def typed(commands: Iterable[str]) -> str:
    """Returns a shell script that prints them, after those that every program needs."""
    return "; ".join(f"echo {command}" for command in ("init", "ctx 0", *commands))


def numbers(text: str) -> list[list[int]]:
    """Returns the answers of a client, of which each is a line of numbers."""
    return [
        list(map(int, line.split())) for line in text.splitlines() if re.fullmatch(r"[\d ]+", line)
    ]
