"""Signals end a program as an error does, once."""

import os
import signal
import subprocess
import sys

import pytest

from testing.cases import cases
from testing.eventually import eventually
from testing.quickstart import ROOT

PROGRAM = """
import os, signal, sys, threading, time, traceback
from testing import interrupts

interrupts.HUNG_S = {hung_s}

def interrupt_once_waiting():
    main = threading.main_thread().ident
    files = calls = ()
    while interrupts.wait.__code__ not in calls or files[0] != threading.__file__:
        time.sleep(0.01)
        calls = [frame.f_code for frame, _ in traceback.walk_stack(sys._current_frames()[main])]
        files = [call.co_filename for call in calls]
    os.kill(os.getpid(), signal.SIGINT)

def main():
    try:
        print("works", flush=True)
        {work}
    finally:
        print("cleans up", flush=True)
        {cleans}
        print("is clean", flush=True)
    return 3

sys.exit(interrupts.run(main))
"""
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def started(work="time.sleep(1000)", cleans="time.sleep(0.3)", hung_s=60, **options):
    """A program that works, and then cleans up."""
    program = PROGRAM.format(work=work, cleans=cleans, hung_s=hung_s)
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )
    assert process.stdout.readline() == "works\n"
    return process


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_ends_a_program_that_cleans_up(number):
    process = started()
    process.send_signal(number)
    output, errors = process.communicate(timeout=20)
    assert output == "cleans up\nis clean\n"
    assert errors == f"ended by {number.name}; nothing is left running\n"
    assert process.returncode == 128 + number


@pytest.mark.parametrize("second", SIGNALS, ids=lambda number: number.name)
def test_a_second_signal_does_not_disturb_that(second):
    process = started()
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "cleans up\n"
    process.send_signal(second)
    assert process.communicate(timeout=20)[0] == "is clean\n"
    assert process.returncode == 128 + signal.SIGTERM


@cases(
    "cleans, hung_s, status",
    ("cleans up", "pass", 60, 128 + signal.SIGTERM),
    ("hangs", "time.sleep(1000)", 1, -signal.SIGALRM),
)
def test_a_program_that_hangs_meanwhile_is_ended(cleans, hung_s, status):
    process = started(cleans=cleans, hung_s=hung_s)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == status


def test_an_error_after_the_signal_is_not_shown():
    """What the program talks to may have ended by the same signal."""
    process = started(cleans="raise OSError('connection refused')")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert errors == "ended by SIGTERM; nothing is left running\n"
    assert process.returncode == 143


def test_without_a_signal_an_error_is_one():
    process = started(work="raise OSError('no space')")
    assert "OSError: no space" in process.communicate(timeout=20)[1]
    assert process.returncode == 1


def test_a_program_that_waits_for_its_signal_ends_well():
    """Before it waits, a signal ends it as any other."""
    interrupt = "threading.Thread(target=interrupt_once_waiting).start()"
    process = started(work=f"{interrupt}; interrupts.wait()", cleans="pass")
    assert process.communicate(timeout=20) == ("cleans up\nis clean\n", "")
    assert process.returncode == 3


def test_a_hangup_that_is_ignored_stays_ignored():
    """As by nohup."""
    process = started(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 143


def test_an_interrupt_that_a_shell_has_ignored_counts():
    process = started(preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print(child.pid, flush=True)
child.wait()
"""


@cases("variables, ends", ("of tox", {"TOX_ENV_NAME": "demo"}, True), ("another", {}, False))
def test_a_program_ends_with_a_tox_that_was_terminated(tmp_path, variables, ends):
    """tox does nothing then, and would leave it running."""
    program = PROGRAM.format(
        work="time.sleep(1000)", cleans=f"open({str(tmp_path / 'clean')!r}, 'w')", hung_s=60
    )
    environment = {
        name: text for name, text in os.environ.items() if name != "TOX_ENV_NAME"
    } | variables
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, program],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    lines = {parent.stdout.readline(), parent.stdout.readline()}
    (child,) = [int(line) for line in lines if line.strip().isdigit()]
    parent.terminate()
    parent.wait()
    if not ends:
        os.kill(child, signal.SIGTERM)
    eventually((tmp_path / "clean").exists, "it cleans up")
    parent.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_fixtures_of_pytest_clean_up_after_a_signal(tmp_path, number):
    (tmp_path / "conftest.py").write_text(
        "from testing import interrupts\ndef pytest_configure():\n    interrupts.interrupt_pytest()\n"
    )
    (tmp_path / "test_it.py").write_text(
        "import pathlib, pytest, time\n@pytest.fixture\ndef made():\n    yield\n    pathlib.Path('clean').touch()\n"
        "def test_it(made):\n    pathlib.Path('works').touch()\n    time.sleep(1000)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=."]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    eventually((tmp_path / "works").exists, "the test runs")
    process.send_signal(number)
    process.communicate(timeout=60)
    assert (tmp_path / "clean").exists()
