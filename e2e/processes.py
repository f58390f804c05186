"""Programs that run beside a test: start, stop, freeze, restart, and what they wrote.

A ``Program`` is one command line with a log file. It may have been started by someone else (kwokctl); then only its
process id is known, and it is adopted.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.eventually import eventually

__all__ = ["Program", "free_port"]

SERVER_PORTS = (20_000, 30_000)


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on.

    It is none of those that the kernel gives to clients: a client that keeps trying to reach a server which is down
    might else be given the server's own port, connect to itself, and keep the server from coming back.
    """
    for port in random.sample(range(*SERVER_PORTS), 100):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no free port from {SERVER_PORTS[0]} to {SERVER_PORTS[1]}")


def is_alive(pid: int) -> bool:
    """A thread of the process still lives. Its first may have ended before the others, which keep its sockets open."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                    return True
    return False


def group_members(group: int) -> list[int]:
    """Living processes (zombies apart) of a process group."""
    members = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                its_group = Path(entry.path, "stat").read_text().rpartition(")")[2].split()[2]
                if int(its_group) == group and is_alive(int(entry.name)):
                    members.append(int(entry.name))
    return members


class Program:
    """A command line that can be run again and again. *wanted*: nobody has ended it on purpose since it was started."""

    def __init__(self, name: str, argv: Sequence[str], log: Path, *, cwd: Path | None = None,
                 env: Mapping[str, str] | None = None, pid: int | None = None) -> None:
        self.name = name
        self.argv = list(argv)
        self.log = log
        self.cwd = cwd
        self.env = dict(env) if env is not None else None
        self.pid = pid
        self.wanted = pid is not None
        self._child: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()

    @classmethod
    def adopt(cls, name: str, pid: int, log: Path) -> Program:
        """The running process *pid*, with the command line and folder it was started with."""
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        return cls(name, [os.fsdecode(word) for word in argv], log, cwd=Path(os.readlink(f"/proc/{pid}/cwd")), pid=pid)

    def start(self) -> Program:
        with self._starting:
            self.wanted = True
            self._start()
        return self

    def restart_if_it_died(self) -> bool:
        """Start it if it has ended by itself; whether that was so."""
        with self._starting:
            if not self.wanted or self.running():
                return False
            self._start()
            return True

    def _start(self) -> None:
        if self.running():
            return
        with open(self.log, "ab") as log:
            self._child = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.cwd,
                                           env=self.env, start_new_session=True)
        self.pid = self._child.pid

    def running(self) -> bool:
        """The process is there, and it is no zombie."""
        if self._child is not None:
            return self._child.poll() is None
        if self.pid is None:
            return False
        return is_alive(self.pid)

    @property
    def exit_code(self) -> int | None:
        """As Popen has it: negative for a signal; ``None`` while it runs or when it was not our child."""
        return None if self._child is None else self._child.poll()

    def signal(self, number: int) -> None:
        if self.pid is not None and self.running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open, nothing is answered."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to it and to its children (as when a container dies), and wait until they are gone."""
        self.wanted = False
        if self._child is None or not self.running():
            self.signal(signal.SIGKILL)
            self.wait_end(10)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)  # it leads a session of its own
        self.wait_end(10)
        group = self._child.pid
        eventually(lambda: not group_members(group), f"the children of {self.name} have ended", timeout=10,
                   interval=0.01)

    def stop(self, timeout: float = 15) -> float:
        """SIGTERM, and wait until it is gone; returns the seconds that took. Raises: WaitTimeout."""
        started = time.monotonic()
        self.wanted = False
        self.signal(signal.SIGTERM)
        self.wait_end(timeout)
        return time.monotonic() - started

    def wait_end(self, timeout: float) -> None:
        """Waits until it has ended. Raises: WaitTimeout."""
        eventually(lambda: not self.running(), f"{self.name} (pid {self.pid}) has ended", timeout=timeout,
                   interval=0.01)

    def tail(self, size: int = 3000) -> str:
        """The end of its log."""
        try:
            return self.log.read_bytes()[-size:].decode(errors="replace")
        except OSError:
            return ""

    def cpu_seconds(self) -> float:
        """User and system time that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        """Resident memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
