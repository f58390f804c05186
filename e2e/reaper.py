"""Nothing of a run outlives it: finds and ends the processes that a run's folder names, removes the folder, and the
control groups that are called like it.

Every program of a run has the run's folder in its command line (its certificate, its data, its configuration lie
there), so the folder is the one thing to look for. Run as a program it waits until its standard input ends, which is
when the process that holds the other end has gone, however that came about, and then tidies up. Standard library
only.
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
    """A new folder that belongs to this process."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    (folder / OWNER).write_text(json.dumps({"pid": os.getpid(), "started": started(os.getpid())}))
    return folder


def guard(folder: Path) -> subprocess.Popen[bytes]:
    """A process that tidies *folder* up as soon as this one has gone. End it by ``kill`` once the folder is removed."""
    command = [sys.executable, "-I", __file__, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def started(pid: int) -> str:
    """When *pid* started, in clock ticks since boot: a later process of that number differs. Empty without one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def processes_of(folder: Path) -> list[int]:
    """Living processes that have *folder* in their command line, this one excepted."""
    needle = os.fsencode(folder) + b"/"
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if needle in Path(entry.path, "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def control_groups(name: str) -> list[Path]:
    """Control groups called *name* in every hierarchy (version 1) or in the only one (version 2), and all below them,
    the deepest first."""
    tops = [path for path in (CONTROL_GROUPS / name, *CONTROL_GROUPS.glob(f"*/{name}")) if path.is_dir()]
    return [Path(folder) for top in tops for folder, _, _ in os.walk(top, topdown=False)]


def end_control_groups(name: str, deadline: float) -> None:
    """Kill what is in the control groups called *name*, containers that outlived their node, and remove the groups."""
    while (groups := control_groups(name)) and time.monotonic() < deadline:
        for group in groups:
            with contextlib.suppress(OSError):
                for pid in (group / "cgroup.procs").read_text().split():
                    if int(pid):  # 0 is one that cannot be seen from here; to kill 0 would be to kill ourselves
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(OSError):  # busy until its processes are gone
                group.rmdir()
        time.sleep(0.02)


def end(folder: Path, timeout: float = 10) -> None:
    """Kill what runs from *folder* and remove it."""
    deadline = time.monotonic() + timeout
    while (pids := processes_of(folder)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    end_control_groups(folder.name, deadline)
    shutil.rmtree(folder, ignore_errors=True)
    while folder.exists() and time.monotonic() < deadline:  # what dies may still write
        time.sleep(0.05)
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers() -> list[Path]:
    """End what dead runs left behind; returns their folders."""
    leftovers = []
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            owner = json.loads((folder / OWNER).read_text())
        except (OSError, ValueError):
            continue  # just being made, or not ours to judge
        if started(owner["pid"]) != owner["started"]:
            end(folder)
            leftovers.append(folder)
    return leftovers


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end(Path(sys.argv[1]))
