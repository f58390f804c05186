"""Processes of the host: which container each is in, by its control group, and its PID there.

All forms of control groups of kubelet and runtimes are known: versions 1 and 2, the drivers systemd and cgroupfs,
containerd, CRI-O and Docker, also in control groups of another container, and relative to that of the reader
(``/../..``).
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_POD = re.compile(
    r"(?:kubepods(?:-besteffort|-burstable)?-)?pod(?P<uid>[0-9a-f_-]{32,36})(?:\.slice)?"
)
_CONTAINER = re.compile(r"(?:(?:cri-containerd|crio|docker)-)?(?P<id>[0-9a-f]{64})(?:\.scope)?")
_UNSPLIT = re.compile(  # containerd with the driver of systemd, under a kubelet with the other
    r"(?P<pod>[^:]+\.slice):cri-containerd:(?P<container>[0-9a-f]{64})"
)
_INNER_PID = re.compile(r"^NSpid:[\t ](?:[0-9]+[\t ])*([0-9]{1,10})$", re.MULTILINE)
_MAX_BYTES = 65_536  # longer texts are not read: a control group has a path of 4,096 bytes at most


@dataclass(frozen=True, slots=True)
class ContainerId:
    """A container as its control group has it. *pod*: the uid, without its dashes."""

    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class HostProcess:
    """A process in a container. *inner_pid*: in its innermost PID namespace; 0 if unknown."""

    pid: int
    container: ContainerId
    inner_pid: int


class HostProcesses:
    """Looks processes up in ``/proc`` of the host."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = str(proc)

    def find(self, pid: int) -> HostProcess | None:
        """Returns the process; ``None`` if it is in no container of a pod, or has ended."""
        container = parse_cgroups(self._read(pid, "cgroup"))
        if container is None:
            return None
        return HostProcess(pid, container, parse_inner_pid(self._read(pid, "status")))

    def end(self, containers: Collection[ContainerId]) -> int:
        """Kills all processes in *containers*; returns how many. Those that begin meanwhile are left to the next call.

        Raises: OSError.
        """
        killed = 0
        for name in filter(str.isdecimal, os.listdir(self._proc)):
            if parse_cgroups(self._read(int(name), "cgroup")) not in containers:
                continue
            with suppress(ProcessLookupError):
                process = os.pidfd_open(
                    int(name)
                )  # keeps another process from getting the PID unnoticed
                try:
                    if parse_cgroups(self._read(int(name), "cgroup")) in containers:
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                        killed += 1
                finally:
                    os.close(process)
        return killed

    def _read(self, pid: int, name: str) -> str:
        try:
            with open(f"{self._proc}/{pid}/{name}", "rb", buffering=0) as file:
                data = file.read(_MAX_BYTES + 1)  # the kernel gives such a file in one piece
        except OSError:
            return ""  # it has ended
        return "" if len(data) > _MAX_BYTES else data.decode(errors="replace")


def parse_inner_pid(text: str) -> int:
    """Returns the PID of a process in its innermost namespace; 0 if unknown. *text*: ``/proc/<pid>/status``."""
    match = _INNER_PID.search(text)
    return int(match[1]) if match is not None else 0


def plain_uid(uid: str) -> str:
    """Returns a pod's uid without dashes: systemd replaces them, and static pods have none."""
    return uid.replace("-", "").replace("_", "")


def parse_cgroups(text: str) -> ContainerId | None:
    """Returns the container of a process. *text*: ``/proc/<pid>/cgroup``.

    ``None`` if it is in none, or if its control groups do not agree.
    """
    paths = (line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2)
    containers = {container for path in paths if (container := _container(path)) is not None}
    return containers.pop() if len(containers) == 1 else None


def _container(path: str) -> ContainerId | None:
    """Returns the first container of a pod on *path*: what is below may be of its own making."""
    parts = path.split("/")
    for part, inner in zip(parts, [*parts[1:], ""]):
        if (unsplit := _UNSPLIT.fullmatch(part)) is not None:
            part, inner = unsplit["pod"], unsplit["container"]
        if (pod := _POD.fullmatch(part)) is not None:
            container = _CONTAINER.fullmatch(inner)
            return (
                None if container is None else ContainerId(plain_uid(pod["uid"]), container["id"])
            )
    return None
