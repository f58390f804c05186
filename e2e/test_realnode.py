"""A real node runs pods, survives the end of its kubelet, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testing.cases import cases
from testing.eventually import eventually
from testing.pods import container, pod
from testing.realnode import missing
from testing.reaper import control_groups, processes_of

pytestmark = pytest.mark.kind
Object = dict[str, Any]
ELSEWHERE = (
    ""
    if not {"HAMI_E2E_KIND", "HAMI_E2E_KUBECONFIG"} & os.environ.keys()
    else "needs the local control plane"
)


def says(name: str, script: str) -> Object:
    """Returns a pod without devices that runs *script*."""
    return pod(
        name,
        containers=[container() | {"command": ["sh", "-c", script]}],
        scheduler="hami-scheduler",
    )


def left_of(folder: Path) -> tuple[list[int], list[Path], bool]:
    """Returns processes, control groups and existence of the run in *folder*."""
    return processes_of(folder), control_groups(folder.name), folder.exists()


def test_a_pod_runs_and_its_output_can_be_read(sandbox, real):
    sandbox.create(says("plain", 'echo one; echo "two on $HOSTNAME"; sleep inf'))
    sandbox.running("plain")
    assert real.output(sandbox.pod("plain"), until="two") == "one\ntwo on plain\n"


def test_containers_outlive_the_kubelet(sandbox, real):
    sandbox.create(says("steady", "echo up; sleep inf"))
    before = sandbox.running("steady")
    real.kill_kubelet()
    assert real.containers() == 2
    real.start_kubelet()
    real.wait_ready()
    assert sandbox.running("steady") == before
    assert real.output(sandbox.pod("steady"), until="up") == "up\n"


@pytest.mark.skipif(bool(ELSEWHERE or missing()), reason=ELSEWHERE or missing() or "-")
@cases("number", ("killed", signal.SIGKILL), ("interrupted", signal.SIGINT))
def test_nothing_outlives_the_run(number):
    run = subprocess.Popen(
        [sys.executable, "-m", "testing.realnode"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    with run:
        assert run.stdout is not None
        folder = Path(run.stdout.readline().partition("=")[2].strip()).parent
        assert all(left_of(folder))
        run.send_signal(number)
    eventually(
        lambda: left_of(folder) == ([], [], False), lambda: f"nothing is left: {left_of(folder)}"
    )
