"""What a run leaves behind, however it ends: nothing."""

import os
import signal
import subprocess
import sys

import pytest

from testing import reaper
from testing.eventually import eventually
from testing.processes import is_alive

OWNER = """
import subprocess, sys, time
from pathlib import Path
from testing import reaper
with reaper.claimed(Path(sys.argv[1]), "run-") as folder, reaper.marked(folder):
    inner = "import subprocess; subprocess.run(['sleep', '1000'])"
    subprocess.Popen([sys.executable, "-c", inner], start_new_session=True)
    (folder / "file").write_text("x")
    print(folder, flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def owner(tmp_path):
    """A process with a run whose processes know of its folder only by their environment; the folder, too."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    folder = tmp_path / process.stdout.readline().strip()
    eventually(
        lambda: len(reaper.processes_of(folder)) == 2, lambda: str(reaper.processes_of(folder))
    )
    yield process, folder
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda n: n.name
)
def test_a_run_that_is_killed_leaves_nothing(owner, number):
    process, folder = owner
    started = reaper.processes_of(folder)
    process.send_signal(number)
    eventually(lambda: not folder.exists(), "the folder is removed")
    eventually(lambda: not any(map(is_alive, started)), "the processes have ended")


def test_signals_to_the_whole_group_do_not_end_what_cleans_up(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    folder = tmp_path / process.stdout.readline().strip()
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    eventually(lambda: not folder.exists() and not reaper.processes_of(folder), "nothing is left")


def test_the_end_of_a_run_ends_its_processes(tmp_path):
    with reaper.claimed(tmp_path, "run-") as folder, reaper.marked(folder):
        child = subprocess.Popen(["sleep", "1000"])
        other = subprocess.Popen(
            ["sleep", "1000"], env={**os.environ, reaper.VARIABLE: f"{folder}x"}
        )
    assert child.wait(20) == -signal.SIGKILL
    assert other.poll() is None, "it belongs to a run with a longer name"
    other.kill()
    other.wait()
    assert list(tmp_path.iterdir()) == []
    assert reaper.VARIABLE not in os.environ


def test_runs_within_a_run_end_by_themselves(tmp_path):
    with reaper.claimed(tmp_path, "outer-") as outer, reaper.marked(outer):
        first = subprocess.Popen(["sleep", "1000"])
        with reaper.claimed(tmp_path, "inner-") as inner:
            second = subprocess.Popen(["sleep", "1000"], env={**os.environ, **reaper.marker(inner)})
        assert second.wait(20) == -signal.SIGKILL
        assert first.poll() is None
    assert first.wait(20) == -signal.SIGKILL


def test_what_dead_runs_have_left_is_removed(tmp_path):
    """Such as those of a machine that was switched off."""
    dead = tmp_path / "build-1"
    dead.mkdir()
    (dead / reaper.OWNER).write_text('{"pid": 1, "started": "never"}')
    (tmp_path / "build-2").mkdir()
    with reaper.claimed(tmp_path, "build-") as alive:
        assert reaper.remove_leftovers(tmp_path, "build-") == [dead]
        assert alive.exists()
        assert (tmp_path / "build-2").exists()
    assert not dead.exists()
