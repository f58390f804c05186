"""A container on a fake GPU whose program allocates as much as it gets, while its limits change."""

from __future__ import annotations

import re
from typing import Any

from testing.device_plugin import HOOK
from testing.eventually import eventually
from testing.fake_gpu import CLIENT, FakeGpus, client, client_pod, typed
from testing.limiter.rig import MIB
from testing.sandbox import Sandbox

__all__ = ["PIECE_MIB", "AllocatingContainer"]

Object = dict[str, Any]
PIECE_MIB = 200
LOOP = f"""n=0
until [ -e /tmp/free ]; do echo alloc plain $n {PIECE_MIB * MIB}; n=$((n+1)); sleep 0.2; done
for i in $(seq 0 $n); do echo free plain $i; done"""
CORES_LIMIT = 1728
"""Where the region has the cores of its first device."""


class AllocatingContainer:
    """The only container of a pod. Its program tries to allocate a piece five times a second, until it is told to free
    all."""

    def __init__(self, sandbox: Sandbox, gpus: FakeGpus, name: str, **asked: int) -> None:
        """Creates the pod, and waits until its program has all that *asked* gives it."""
        self.name = name
        self._sandbox, self._gpus = sandbox, gpus
        made = client(**asked)
        made["command"] = ["sh", "-c", f"({typed([])}\n{LOOP}\nsleep inf) | {CLIENT}"]
        sandbox.create(client_pod(name, made))
        sandbox.running(name)
        pod = sandbox.pod(name)
        self._folder = gpus.node.path(f"{HOOK}/vgpu/containers") / f"{pod['metadata']['uid']}_main"
        self.takes(asked["gpumem"])

    @property
    def status(self) -> Object:
        """Its status in the pod."""
        (status,) = self._sandbox.pod(self.name)["status"]["containerStatuses"]
        return dict(status)

    def takes(self, memory_mib: int) -> None:
        """Waits until its program has so much, in whole pieces."""
        region = self._gpus.region(self._sandbox.pod(self.name))
        eventually(
            lambda: region.total() == memory_mib // PIECE_MIB * PIECE_MIB * MIB,
            lambda: f"it takes {memory_mib} MiB, not {region.total() // MIB}; {self.limits()}",
        )

    def free(self) -> None:
        """Tells its program to free all, and to allocate no more."""
        self._gpus.node.run_in(self.status["containerID"], "touch", "/tmp/free")

    def ask(self, *commands: str) -> list[list[int]]:
        """Returns the answers of another program in the container."""
        return self._gpus.run(self.status["containerID"], *commands)

    def limits(self) -> str:
        """Returns what the limits file says of its devices."""
        return "\n".join(
            re.findall(r"^device \S+ (.*)$", (self._folder / "limits").read_text(), re.MULTILINE)
        )

    def is_limited(self, memory_mib: int, cores: int) -> bool:
        """Reports whether file and region say so, and a program in the container sees it."""
        region, total = self._gpus.region(self._sandbox.pod(self.name)), memory_mib * MIB
        return (
            f"memory={total} cores={cores}" in self.limits()
            and self.ask("info")[-1][-1] == total
            and region.limit(0) == total
            and region.number(CORES_LIMIT, "<Q") == cores
        )
