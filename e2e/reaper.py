"""Cleans up after a run: ends its processes, and removes its directory and its control groups.

The command line of each process of a run contains the run's directory (for certificates, data or configuration), so
that the directory identifies them. As a program, the module waits until its standard input ends, which means that the
other process is gone, and then cleans up. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

__all__ = ["PREFIX", "claim", "end", "guard", "remove_leftovers"]

PREFIX = "hami-e2e-"
CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWNER = "owner.json"


def claim() -> Path:
    """Returns a new directory that belongs to this process."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    (folder / OWNER).write_text(json.dumps({"pid": os.getpid(), "started": started(os.getpid())}))
    return folder


def guard(folder: Path) -> subprocess.Popen[bytes]:
    """Starts a process that cleans up *folder* when this process is gone. Kill it after the directory was removed."""
    command = [sys.executable, "-I", __file__, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def started(pid: int) -> str:
    """Returns the start time of *pid* in clock ticks, which differs for a later process with the same ID; or an empty
    text.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def processes_of(folder: Path) -> list[int]:
    """Returns the live processes with *folder* in their command line, except this one."""
    needle = os.fsencode(folder) + b"/"
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if needle in Path(entry.path, "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def control_groups(name: str) -> list[Path]:
    """Returns the control groups called *name*, or at this path, and those below them, deepest first, of all
    hierarchies."""
    tops = [path for path in (CONTROL_GROUPS / name, *CONTROL_GROUPS.glob(f"*/{name}")) if path.is_dir()]
    return [Path(folder) for top in tops for folder, _, _ in os.walk(top, topdown=False)]


def end_control_groups(name: str, deadline: float) -> None:
    """Kills the processes in the control groups called *name*, such as remaining containers, and removes the groups."""
    while (groups := control_groups(name)) and time.monotonic() < deadline:
        for group in groups:
            with contextlib.suppress(OSError):
                for pid in (group / "cgroup.procs").read_text().split():
                    if int(pid):  # 0 is a process of another namespace; kill(0) would signal this process group
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(OSError):  # busy until its processes have ended
                group.rmdir()
        time.sleep(0.02)


def end(folder: Path, timeout: float = 10) -> None:
    """Kills the processes of *folder* and removes it."""
    deadline = time.monotonic() + timeout
    while (pids := processes_of(folder)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    end_control_groups(folder.name, deadline)
    shutil.rmtree(folder, ignore_errors=True)
    while folder.exists() and time.monotonic() < deadline:  # processes that end may still write
        time.sleep(0.05)
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers() -> list[Path]:
    """Cleans up after dead runs; returns their directories."""
    leftovers = []
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            owner = json.loads((folder / OWNER).read_text())
        except (OSError, ValueError):
            continue  # incomplete, or not from a run of these tests
        if started(owner["pid"]) != owner["started"]:
            end(folder)
            leftovers.append(folder)
    return leftovers


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end(Path(sys.argv[1]))
