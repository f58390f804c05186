"""Processes beside a test: start, stop, suspend, restart, and their logs.

A ``Program`` is a command line with a log file. A process that was started by another program (kwokctl) is adopted by
its process ID.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from testing.eventually import PATIENCE_S, eventually

__all__ = ["Program", "free_port"]

SERVER_PORTS = (20_000, 30_000)
MAX_CLAIMS = 256
# sockets with abstract names, of which each can be bound once on this machine
_claims: deque[int] = deque()


def free_port() -> int:
    """Returns a TCP port of the loopback interface on which nothing listens.

    The port is outside of the kernel's range for clients. A client that repeatedly connects to a stopped server could
    otherwise get the port of the server, connect to itself, and prevent the restart of the server.

    Nobody else gets it from this function before this process has ended, or has asked for MAX_CLAIMS more: servers
    begin to listen later.
    """
    if len(_claims) == MAX_CLAIMS:
        os.close(_claims.popleft())
    for port in random.sample(range(*SERVER_PORTS), 100):
        claim = socket.socket(socket.AF_UNIX)
        with socket.socket() as listener, contextlib.suppress(OSError):
            claim.bind(f"\0hami-port-{port}")
            listener.bind(("127.0.0.1", port))
            _claims.append(claim.detach())
            return port
        claim.close()
    raise OSError(f"no free port from {SERVER_PORTS[0]} to {SERVER_PORTS[1]}")


def is_alive(pid: int) -> bool:
    """Reports whether a thread of the process is alive. The first may end before others that keep its sockets open."""
    return bool(thread_states(pid) - set("ZX"))


def thread_states(pid: int) -> set[str]:
    """Returns the states of the process's threads, as /proc has them: Z and X have ended, T are suspended."""
    states = set()
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                states.add(
                    Path(f"/proc/{pid}/task/{thread}/stat")
                    .read_text()
                    .rpartition(")")[2]
                    .split()[0]
                )
    return states


def group_members(group: int) -> list[int]:
    """Returns the live processes of a process group, without zombies."""
    members = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                its_group = Path(entry.path, "stat").read_text().rpartition(")")[2].split()[2]
                if int(its_group) == group and is_alive(int(entry.name)):
                    members.append(int(entry.name))
    return members


class Program:
    """A command line that can be started repeatedly. *wanted*: it was started and not stopped on purpose."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        log: Path,
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        pid: int | None = None,
    ) -> None:
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
        """Returns the running process *pid* with its command line and working directory."""
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        return cls(
            name,
            [os.fsdecode(word) for word in argv],
            log,
            cwd=Path(os.readlink(f"/proc/{pid}/cwd")),
            pid=pid,
        )

    def start(self) -> Program:
        with self._starting:
            self.wanted = True
            self._start()
        return self

    def restart_if_it_died(self) -> bool:
        """Starts it if it ended by itself; reports whether it did."""
        with self._starting:
            if not self.wanted or self.running():
                return False
            self._start()
            return True

    def _start(self) -> None:
        if self.running():
            return
        with open(self.log, "ab") as log:
            self._child = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.cwd,
                env=self.env,
                start_new_session=True,
            )
        self.pid = self._child.pid

    def running(self) -> bool:
        """Reports whether the process exists and is not a zombie."""
        if self._child is not None:
            return self._child.poll() is None
        if self.pid is None:
            return False
        return is_alive(self.pid)

    @property
    def exit_code(self) -> int | None:
        """Exit code as in Popen, negative for a signal; ``None`` while it runs or if it is not a child."""
        return None if self._child is None else self._child.poll()

    def signal(self, number: int) -> None:
        if self.pid is not None and self.running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def pause(self) -> None:
        """Suspends it (SIGSTOP), and waits until it is: connections stay open, nothing is answered.
        Its children go on."""
        self.signal(signal.SIGSTOP)
        eventually(
            self._is_suspended,
            f"{self.name} (pid {self.pid}) is suspended",
            interval=0.01,
        )

    def _is_suspended(self) -> bool:
        states = thread_states(self.pid) if self.pid is not None else set()
        return "T" in states and states <= set("TZX")

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspends it and its children meanwhile, as when a machine is suspended. Not for nsenter: it suspends itself
        again when it sees that its child was."""
        self.pause()
        assert self.pid is not None, "it runs"
        children = [pid for pid in group_members(self.pid) if pid != self.pid]
        for pid in children:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            self.resume()

    def kill(self) -> None:
        """Kills it and its children, as when a container is killed, and waits until they have ended."""
        self.wanted = False
        if self._child is None or not self.running():
            self.signal(signal.SIGKILL)
            self.wait_end()
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)  # the leader of its own session
        self.wait_end()
        group = self._child.pid
        eventually(
            lambda: not group_members(group),
            f"the children of {self.name} have ended",
            interval=0.01,
        )

    def stop(self) -> None:
        """Sends SIGTERM and waits until it has ended. Raises: WaitTimeout."""
        self.wanted = False
        self.signal(signal.SIGTERM)
        self.wait_end()

    def wait_end(self, timeout: float = PATIENCE_S) -> None:
        """Waits until it has ended. Raises: WaitTimeout."""
        eventually(
            lambda: not self.running(),
            f"{self.name} (pid {self.pid}) has ended",
            timeout=timeout,
            interval=0.01,
        )

    def tail(self, size: int = 3000) -> str:
        """Returns the end of its log."""
        try:
            return self.log.read_bytes()[-size:].decode(errors="replace")
        except OSError:
            return ""

    def cpu_seconds(self) -> float:
        """Returns its user and system time."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        """Returns its resident memory."""
        return (
            int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            * os.sysconf("SC_PAGE_SIZE")
            / 2**20
        )
