"""Programs of a run: where their files lie, what they cost, and that none of them outlives it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import reaper

__all__ = ["Cpu", "Memory", "Run", "cpu_seconds", "disturbed", "memory", "programs"]

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Run:
    """A folder for files and logs, and where progress is told."""

    folder: Path
    say: Callable[[str], None]

    @classmethod
    @contextlib.contextmanager
    def begun(cls, say: Callable[[str], None]) -> Iterator[Run]:
        """A run; processes that name its folder in their command line end with it, however it ends."""
        reaper.remove_leftovers()
        folder = reaper.claim()
        guard = reaper.guard(folder)
        try:
            yield cls(folder, say)
        finally:
            reaper.end(folder)
            guard.kill()
            guard.communicate()

    def ask(self, module: str, job: Mapping[str, Any], timeout: float = 300) -> dict[str, Any]:
        """What *module*, run as a process of its own, answers to *job*; both are JSON."""
        with self.asked(module, job) as answer:
            return answer(timeout)

    @contextlib.contextmanager
    def asked(self, module: str, job: Mapping[str, Any]) -> Iterator[Callable[[float], dict[str, Any]]]:
        """As ``ask``, but the process only starts here; what is yielded waits for the answer."""
        command = [sys.executable, "-m", f"benchmarks.{module}", str(self.folder / module)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(job).encode())
                process.stdin.close()
                process.stdin = None
                yield lambda timeout: answer_of(process, module, timeout)
            finally:
                process.kill()


def answer_of(process: subprocess.Popen[bytes], module: str, timeout: float) -> dict[str, Any]:
    output, _ = process.communicate(timeout=timeout)
    if process.returncode != 0:
        raise RuntimeError(f"benchmarks.{module} ended with {process.returncode}")
    answer: dict[str, Any] = json.loads(output)
    return answer


def programs(root: int) -> list[int]:
    """*root* and all its living descendants."""
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        with contextlib.suppress(OSError):
            for task in os.scandir(f"/proc/{pid}/task"):
                queue += map(int, Path(task.path, "children").read_text().split())
    return found


def cpu_seconds(root: int) -> float:
    """User and system time of *root* and its living descendants."""
    spent = 0.0
    for pid in programs(root):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            spent += (int(fields[11]) + int(fields[12])) / TICKS
    return spent


@dataclass(frozen=True, slots=True)
class Memory:
    """MiB. *rss*: of the largest process of a tree; *pss*: of all, what they share counted once."""

    rss: float
    pss: float


def memory(root: int) -> Memory:
    """Memory of *root* and its descendants."""
    rss, pss = [], []
    for pid in programs(root):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
            sizes = {line.split()[0]: int(line.split()[1]) / 1024 for line in lines}
            rss.append(sizes["Rss:"])
            pss.append(sizes["Pss:"])
    return Memory(max(rss), sum(pss))


class Cpu:
    """CPU seconds that programs use from now on."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._before = {name: cpu_seconds(pid) for name, pid in self._pids.items()}
        self._busy = busy_seconds()
        self._begun = time.monotonic()

    def spent(self, **more: float) -> dict[str, float]:
        """By name, with *more* known otherwise; ``others``: what else this machine did; ``seconds``: time passed."""
        spent = {name: cpu_seconds(pid) - self._before[name] for name, pid in self._pids.items()} | more
        others = busy_seconds() - self._busy - sum(spent.values())
        spent |= {"others": max(0.0, others), "seconds": time.monotonic() - self._begun}
        return {name: round(value, 2) for name, value in spent.items()}


def busy_seconds() -> float:
    """CPU time that the whole machine has used."""
    total = Path("/proc/stat").read_text().partition("\n")[0]
    user, nice, system, _, _, interrupts, soft, *_ = map(int, total.split()[1:])
    return (user + nice + system + interrupts + soft) / TICKS


def disturbed(spent: Mapping[str, float]) -> str:
    """A remark where other programs have taken more than a tenth of this machine; empty if they have not."""
    share = spent["others"] / (spent["seconds"] * (os.cpu_count() or 1)) if spent["seconds"] else 0.0
    return f"disturbed: other programs took {share:.0%} of the CPUs" if share > 0.1 else ""
