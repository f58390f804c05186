"""Programs that build the control plane first, and are ended meanwhile: no process and no file of the build is left.

Go is a shell script here, which never ends by itself.
"""

import os
import signal
import subprocess
import sys

import pytest

from testing.binaries import BUILD_VARIABLE, DEFAULT, MINOR_VARIABLE
from testing.cases import cases
from testing.eventually import eventually
from testing.processes import is_alive
from testing.quickstart import ROOT

GO = """#!/bin/sh
[ "$1" != env ] || {{ echo go{version}; exit; }}
mkdir "$GOTMPDIR/go-build1"
(echo $$ >>"{pids}"; exec sleep 1000) &
echo $! >>"{pids}"
exec sleep 1000
"""
DEMO = ("e2e.demo",)
BEING_BUILT = "etcd is being built"


class Scene:
    """A machine without programs, and a program that is started there."""

    def __init__(self, path):
        self.temporary, self.cache, self.pids = path / "tmp", path / "cache", path / "pids"
        programs = path / "bin"
        for folder in (self.temporary, programs):
            folder.mkdir()
        for name, text in (
            ("go", GO.format(version=DEFAULT.go_version, pids=self.pids)),
            ("nice", '#!/bin/sh\nexec "$@"\n'),
        ):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        known = ("HAMI_E2E_BIN", BUILD_VARIABLE, MINOR_VARIABLE, "TOX_ENV_NAME")
        environment = {name: text for name, text in os.environ.items() if name not in known}
        self._environment = environment | {
            "PATH": f"{programs}:/usr/bin:/bin",
            "XDG_CACHE_HOME": str(self.cache),
            BUILD_VARIABLE: "always",
            "TMPDIR": str(self.temporary),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def start(self, *words):
        """Starts the module, and returns it when it builds, and what it has printed until then."""
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env=self._environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        printed = []
        for line in process.stdout:
            printed.append(line)
            if BEING_BUILT in line:
                break
        assert printed, "".join(printed)
        assert BEING_BUILT in printed[-1], "".join(printed)
        eventually(lambda: len(self.builders()) == 2, "Go and one of its processes run")
        return process

    def builders(self):
        """Returns the processes of the build."""
        return [int(line) for line in self.pids.read_text().split()] if self.pids.exists() else []

    def left(self):
        """Returns what is left: processes and files. The folder of the programs and its lock are a cache."""
        return [
            *filter(is_alive, self.builders()),
            *self.temporary.iterdir(),
            *self.cache.rglob("build-*"),
        ]


@pytest.fixture
def scene(tmp_path):
    """One without programs."""
    made = Scene(tmp_path)
    yield made
    for pid in filter(is_alive, made.builders()):
        os.kill(pid, signal.SIGKILL)


@cases(
    "words, signals",
    *(
        (f"demo {number.name}", DEMO, [number])
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    ),
    ("demo twice", DEMO, [signal.SIGTERM, signal.SIGTERM]),
    ("demo by another one", DEMO, [signal.SIGINT, signal.SIGHUP]),
    ("binaries", ("testing.binaries",), [signal.SIGTERM]),
    ("real node", ("testing.realnode",), [signal.SIGTERM]),
    ("benchmarks", ("benchmarks", "admission"), [signal.SIGTERM]),
    ("compatibility", ("testing.compatibility",), [signal.SIGTERM]),
)
def test_a_signal_ends_a_program_that_builds(scene, words, signals):
    process = scene.start(*words)
    for number in signals:
        process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode in [128 + number for number in signals], (
        output
    )  # two may arrive together
    name = signal.Signals(process.returncode - 128).name
    assert output.splitlines()[-1] == f"ended by {name}; nothing is left running"
    assert scene.left() == []


def test_a_program_that_is_killed_while_it_builds_leaves_nothing_either(scene):
    process = scene.start(*DEMO)
    process.kill()
    process.communicate()
    eventually(lambda: scene.left() == [], lambda: str(scene.left()))
