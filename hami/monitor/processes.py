"""Processes of the host: which container each is in, and its PID there."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hami.monitor.cgroups import ContainerId, parse_cgroups

_INNER_PID = re.compile(r"^NSpid:[\t ](?:[0-9]+[\t ])*([0-9]{1,10})$", re.MULTILINE)
_MAX_BYTES = 65_536  # longer texts are not read: a control group has a path of 4,096 bytes at most


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
                process = os.pidfd_open(int(name))  # keeps another process from getting the PID unnoticed
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
