"""Cleans up after a run: ends its processes, and removes its directory and its control groups.

A process belongs to a run if its command line contains the run's directory (for certificates, data or configuration),
or if its environment names that directory, as that of all processes does which a program starts that is one run as a
whole (`marked`). As a program, the module waits until its standard input ends, which means that the other process is
gone, however it has ended, and then cleans up. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["PREFIX", "claimed", "marked", "marker", "remove_leftovers"]

PREFIX = "hami-e2e-"
VARIABLE = "HAMI_E2E_FOLDERS"
"""Environment variable with the directories of the runs to which a process belongs, separated by colons."""
CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWNER = "owner.json"


@contextlib.contextmanager
def claimed(parent: Path | None = None, prefix: str = PREFIX) -> Iterator[Path]:
    """Yields a new directory in *parent* (default: that for temporary files) which belongs to this process.

    At the end, what was started meanwhile ends, and the directory is removed: also if this process is killed.
    """
    folder = Path(parent or tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(4)}"
    watcher = guard(folder)  # before there is anything to clean up
    try:
        folder.mkdir(mode=0o700)
        (folder / OWNER).write_text(
            json.dumps({"pid": os.getpid(), "started": started(os.getpid())})
        )
        yield folder
    finally:
        end(folder)
        watcher.kill()
        watcher.communicate()


def marker(folder: Path) -> dict[str, str]:
    """Returns the environment variable of processes that belong to the run with this *folder*."""
    outer = os.environ.get(VARIABLE, "")
    return {VARIABLE: f"{outer}:{folder}" if outer else str(folder)}


@contextlib.contextmanager
def marked(folder: Path) -> Iterator[None]:
    """Makes all processes that this one starts meanwhile belong to the run with this *folder*."""
    outer = os.environ.get(VARIABLE)
    os.environ.update(marker(folder))
    try:
        yield
    finally:
        if outer is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = outer


def guard(folder: Path) -> subprocess.Popen[bytes]:
    """Starts a process that cleans up *folder* when this process is gone. Kill it after the directory was removed."""
    command = [sys.executable, "-I", __file__, str(folder)]
    environment = {name: text for name, text in os.environ.items() if name != VARIABLE}
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env=environment)


def started(pid: int) -> str:
    """Returns the start time of *pid* in clock ticks, which differs for a later process with the same ID; or an empty
    text.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def processes_of(folder: Path) -> list[int]:
    """Returns the live processes of the run with this *folder*, except this one."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if belongs_to(folder, Path(entry.path)):
                    found.append(int(entry.name))
    return found


def belongs_to(folder: Path, process: Path) -> bool:
    """Reports whether a process belongs to the run with this *folder*. *process*: its directory in /proc. Raises:
    OSError if it has ended, or is another user's."""
    name = os.fsencode(folder)
    if name + b"/" in (process / "cmdline").read_bytes():
        return True
    marker = os.fsencode(VARIABLE) + b"="
    for variable in (process / "environ").read_bytes().split(b"\0"):
        if variable.startswith(marker):
            return name in variable.removeprefix(marker).split(b":")
    return False


def control_groups(name: str) -> list[Path]:
    """Returns the control groups called *name*, or at this path, and those below them, deepest first, of all
    hierarchies."""
    tops = [
        path for path in (CONTROL_GROUPS / name, *CONTROL_GROUPS.glob(f"*/{name}")) if path.is_dir()
    ]
    return [Path(folder) for top in tops for folder, _, _ in os.walk(top, topdown=False)]


def end_control_groups(name: str, deadline: float) -> None:
    """Kills the processes in the control groups called *name*, such as remaining containers, and removes the groups."""
    is_last = False
    while (groups := control_groups(name)) and not is_last:
        is_last = time.monotonic() > deadline
        for group in groups:
            with contextlib.suppress(OSError):
                for pid in (group / "cgroup.procs").read_text().split():
                    if int(
                        pid
                    ):  # 0 is a process of another namespace; kill(0) would signal this process group
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(OSError):  # busy until its processes have ended
                group.rmdir()
        time.sleep(0.02)


def end(folder: Path, timeout: float = 60) -> None:
    """Kills the processes of *folder* and removes it; all is tried at least once, if this process stood still, too."""
    deadline = time.monotonic() + timeout
    is_last = False
    while (pids := processes_of(folder)) and not is_last:
        is_last = time.monotonic() > deadline
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    end_control_groups(folder.name, deadline)
    shutil.rmtree(folder, ignore_errors=True)
    while folder.exists() and time.monotonic() < deadline:  # processes that end may still write
        time.sleep(0.05)
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(parent: Path | None = None, prefix: str = PREFIX) -> list[Path]:
    """Cleans up after dead runs in *parent* (default: the directory for temporary files); returns their directories."""
    leftovers = []
    for folder in Path(parent or tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            owner = json.loads((folder / OWNER).read_text())
        except (OSError, ValueError):
            continue  # incomplete, or not from a run of these tests
        if started(owner["pid"]) != owner["started"]:
            end(folder)
            leftovers.append(folder)
    return leftovers


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            number, signal.SIG_IGN
        )  # whoever ends a whole group of processes wants them all to be gone
    sys.stdin.buffer.read()
    end(Path(sys.argv[1]))
