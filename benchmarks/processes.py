"""The processes of a run: their files, their cost, and their end."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testing import reaper

__all__ = [
    "Cpu",
    "Memory",
    "Run",
    "cpu_seconds",
    "disturbed",
    "loop_seconds",
    "memory",
    "objects_seconds",
    "programs",
]

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Run:
    """A directory for files and logs, and a callback for progress."""

    folder: Path
    say: Callable[[str], None]

    @classmethod
    @contextlib.contextmanager
    def begun(cls, say: Callable[[str], None]) -> Iterator[Run]:
        """Yields a run; ends all processes with its directory in their command line."""
        reaper.remove_leftovers()
        with reaper.claimed() as folder:
            yield cls(folder, say)

    def ask(self, module: str, job: Mapping[str, Any], timeout: float = 300) -> dict[str, Any]:
        """Runs *module* as a process with *job* as input; returns its output. Both are JSON."""
        with self.asked(module, job) as answer:
            return answer(timeout)

    @contextlib.contextmanager
    def asked(
        self, module: str, job: Mapping[str, Any]
    ) -> Iterator[Callable[[float], dict[str, Any]]]:
        """Like ``ask``, but only starts the process; the yielded function waits for the output."""
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
    """Returns *root* and its live descendants."""
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        with contextlib.suppress(OSError):
            for task in os.scandir(f"/proc/{pid}/task"):
                queue += map(int, Path(task.path, "children").read_text().split())
    return found


def cpu_seconds(root: int) -> float:
    """Returns user and system time of *root* and its live descendants."""
    spent = 0.0
    for pid in programs(root):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            spent += (int(fields[11]) + int(fields[12])) / TICKS
    return spent


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in MiB. *rss*: largest process of the tree; *pss*: all processes, shared memory counted once."""

    rss: float
    pss: float


def memory(root: int) -> Memory:
    """Returns the memory of *root* and its descendants."""
    rss, pss = [], []
    for pid in programs(root):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
            sizes = {line.split()[0]: int(line.split()[1]) / 1024 for line in lines}
            rss.append(sizes["Rss:"])
            pss.append(sizes["Pss:"])
    return Memory(max(rss), sum(pss))


class Cpu:
    """CPU seconds of programs since its creation."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._before = {name: cpu_seconds(pid) for name, pid in self._pids.items()}
        self._busy, self._stolen = machine_seconds()
        self._begun = time.monotonic()

    def spent(self, **more: float) -> dict[str, float]:
        """Returns the time of each program, with *more*; ``others``: other programs; ``stolen``: that the host gave to
        other machines while programs wanted it; ``seconds``: elapsed time."""
        spent = {
            name: cpu_seconds(pid) - self._before[name] for name, pid in self._pids.items()
        } | more
        busy, stolen = machine_seconds()
        others = busy - self._busy - sum(spent.values())
        spent |= {
            "others": max(0.0, others),
            "stolen": stolen - self._stolen,
            "seconds": time.monotonic() - self._begun,
        }
        return {name: round(value, 2) for name, value in spent.items()}


def loop_seconds() -> float:
    """Returns the CPU time of a million steps of Python, the best of five: how fast this machine computes today."""

    def once() -> float:
        begun = time.thread_time()
        total = 0
        for number in range(1_000_000):
            total += number * number % 7
        return time.thread_time() - begun

    return min(once() for _ in range(5))


def objects_seconds() -> float:
    """Returns the CPU time of decoding 100,000 records and looking each up, the best of five: how fast this machine's
    memory is today, which it shares with others. It can be half as fast from one hour to the next."""
    text = json.dumps(
        [
            {
                "uid": f"{number:032x}",
                "node": f"node-{number % 5000}",
                "cards": [number, number + 1],
            }
            for number in range(100_000)
        ]
    )
    order = [f"{number:032x}" for number in range(100_000)]
    random.Random(0).shuffle(order)

    def once() -> float:
        begun = time.thread_time()
        records = {record["uid"]: record for record in json.loads(text)}
        sum(records[uid]["cards"][1] for uid in order)
        return time.thread_time() - begun

    return min(once() for _ in range(5))


def machine_seconds() -> tuple[float, float]:
    """Returns the CPU time of the whole machine, and what its host gave to other machines instead."""
    total = Path("/proc/stat").read_text().partition("\n")[0]
    user, nice, system, _, _, interrupts, soft, stolen, *_ = map(int, total.split()[1:])
    return (user + nice + system + interrupts + soft) / TICKS, stolen / TICKS


def disturbed(spent: Mapping[str, float]) -> str:
    """Returns a remark if other programs used more than a tenth of the machine, or other machines of its host more than
    a fiftieth; empty otherwise. Where 5 % are stolen, the rest is slower, too: caches and memory are shared."""
    whole = spent["seconds"] * (os.cpu_count() or 1) or 1.0
    shares = {
        "other programs": (spent["others"] / whole, 0.1),
        "other machines": (spent["stolen"] / whole, 0.02),
    }
    told = [
        f"{name} took {share:.0%} of the CPUs"
        for name, (share, least) in shares.items()
        if share > least
    ]
    return f"disturbed: {', '.join(told)}" if told else ""
