"""The demonstration, as a reader starts it: what it prints, its commands for another terminal, and what it leaves."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from testing import reaper
from testing.cases import cases
from testing.eventually import eventually
from testing.farewell import BEGIN
from testing.realnode import missing

ROOT = Path(__file__).parents[1]
STEP = re.compile(r" *\d+ s  (.*)")
LONG_SECONDS = 400
REAL_NODES = pytest.mark.skipif(bool(missing()), reason=missing())


class Demo:
    """A demonstration without a terminal. *temporary*: its directory for temporary files."""

    def __init__(self, temporary: Path, *words: str) -> None:
        self.temporary = temporary
        self._networks: set[str] = set()
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "e2e.demo", *words],
            cwd=ROOT,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(temporary)},
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None, "it is a pipe"
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def steps(self) -> list[str]:
        """The steps that it has announced."""
        return [found[1] for line in list(self.lines) if (found := STEP.fullmatch(line))]

    @property
    def folders(self) -> list[Path]:
        """The directories of its runs."""
        return list(self.temporary.glob(f"{reaper.PREFIX}*"))

    def wait_for(self, check: str) -> None:
        """Waits until it has printed a line that contains *check*."""
        eventually(
            lambda: check in self.text or self._process.poll() is not None,
            lambda: self.text,
            timeout=LONG_SECONDS,
        )
        assert check in self.text, self.text

    def commands(self) -> list[str]:
        """Returns the commands for another terminal."""
        self.wait_for("Logs: ")
        block = self.lines[self.lines.index(BEGIN) + 2 :]
        return block[: block.index("")]

    def end(self, *signals: int) -> int:
        """Sends it *signals*; returns its exit status once nothing is left of it."""
        assert self.folders, "it has begun"
        with contextlib.ExitStack() as kept:
            for pid in (
                self.processes()
            ):  # the number of a namespace that is open is not given to another one
                with contextlib.suppress(OSError):
                    kept.enter_context(open(f"/proc/{pid}/ns/net"))
            self._networks = networks(self.processes()) - networks([os.getpid()])
            for number in signals:
                self._process.send_signal(number)
            status = self._process.wait(150)  # longer than it waits for what hangs
            self._reading.join()
            eventually(lambda: not self.left(), lambda: str(self.left()))
        return status

    def processes(self) -> list[int]:
        """Returns the processes of its runs."""
        return [
            pid
            for folder in self.folders
            for pid in reaper.processes_of(folder)
            if pid != self._process.pid
        ]

    def left(self) -> list[object]:
        """Returns what is left of it: files, processes, mounts, namespaces of the network, and control groups."""
        groups = [group for folder in self.folders for group in reaper.control_groups(folder.name)]
        everybody = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        pinned = [
            line
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if str(self.temporary) in line or any(network in line for network in self._networks)
        ]
        return [
            *self.temporary.iterdir(),
            *self.processes(),
            *groups,
            *(networks(everybody) & self._networks),
            *pinned,
        ]

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reading.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()


def networks(pids: Iterable[int]) -> set[str]:
    """Returns the namespaces of the network in which these processes are."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            found.add(os.readlink(f"/proc/{pid}/ns/net"))
    return found


@pytest.fixture
def demos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Demo]]:
    """Those that a test has started."""
    made: list[Demo] = []
    yield made
    for demo in made:
        demo.close()


def started(demos: list[Demo], folder: Path, *words: str) -> Demo:
    demos.append(Demo(folder, *words))
    return demos[-1]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short path: sockets lie below it."""
    return tmp_path_factory.mktemp("d")


def pasted(commands: list[str], home: Path) -> str:
    """Returns what a shell of another terminal prints."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(commands)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def is_dashboard(pid: int) -> bool:
    with contextlib.suppress(OSError):  # it has ended
        return "dashboard" in Path(f"/proc/{pid}/cmdline").read_text()
    return False


def test_its_commands_can_be_copied_and_a_signal_leaves_nothing(demos, folder, tmp_path):
    demo = started(demos, folder, "--keep")
    commands = demo.commands()
    shown = pasted(commands, tmp_path)
    assert '"hami.io/vgpu-node"' in shown
    assert "FilteringFailed" in shown
    assert re.search(r'pod "whole-card-\d+" deleted', shown)
    assert "like those of pod/large fit" in shown
    assert all(line.split()[0] in ("export", "kubectl") for line in commands)
    wanted = ["control plane (built once, on the first run)", "hami scheduler", "nodes", "pods"]
    assert [step for step in demo.steps if step in wanted] == wanted
    assert "40 of 40 pods created" in demo.text
    assert any(map(is_dashboard, demo.processes()))
    assert demo.end(signal.SIGTERM) == 0
    assert demo.lines[-1] == "stopped; nothing is left running"


TWICE, KILLED = (signal.SIGTERM, signal.SIGINT), (signal.SIGKILL,)


@cases(
    "moment, signals",
    *(
        (f"{moment}, twice", moment, TWICE)
        for moment in ("control plane", "hami scheduler", "nodes", "pods", "$ hami simulate")
    ),
    *((f"{moment}, killed", moment, KILLED) for moment in ("hami scheduler", "pods")),
)
def test_it_can_be_ended_at_any_moment(demos, folder, moment, signals):
    demo = started(demos, folder)
    demo.wait_for(moment)
    eventually(lambda: demo.folders, "it has begun")
    status = demo.end(*signals)
    assert status in [-signal.SIGKILL, *(128 + number for number in signals)], demo.text


@REAL_NODES
@cases(
    "words, signals",
    ("real node, twice", ("--real-node",), TWICE),
    ("claims, killed", ("--dra",), KILLED),
)
def test_real_nodes_leave_nothing(demos, folder, words, signals):
    demo = started(demos, folder, *words, "--keep")
    demo.wait_for("hami scheduler, hami device-plugin")
    status = demo.end(*signals)
    assert status in [-signal.SIGKILL, *(128 + number for number in signals)], demo.text


@REAL_NODES
def test_the_commands_of_a_real_node_can_be_copied(demos, folder, tmp_path):
    demo = started(demos, folder, "--real-node", "--keep")
    commands = demo.commands()
    shown = pasted(commands, tmp_path)
    assert "notebook" in shown
    assert "nvidia.com/gpu" in shown
    assert "is healthy again" in demo.text
    assert demo.end(signal.SIGINT) == 0
