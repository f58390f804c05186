"""A recording of the control plane, replayed: the same pods go to the same places."""

import os
import signal
import subprocess
import sys

from testing.eventually import eventually
from testing.nodes import gpus
from testing.people import DEVICE_CONFIG, hami
from testing.pods import pod

BINPACK = {"hami.io/node-scheduler-policy": "binpack"}
PODS = 12


def test_a_recording_is_replayed(local, sandbox, tmp_path):
    sandbox.add_gpu_nodes({"n0": gpus(2), "n1": gpus(2)})
    segments = tmp_path / "recording"
    command = [sys.executable, "-m", "hami.cli", "record", str(segments)]
    command.append(f"--device-config-file={DEVICE_CONFIG}")
    recorder = subprocess.Popen(
        command,
        env=os.environ | {"KUBECONFIG": str(local.kubeconfig)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: any(segments.glob("*.gz")), "the recording has begun")
        for number in range(PODS):
            sandbox.create(
                pod(f"p{number}", annotations=BINPACK, gpu=1, gpumem=10_000, gpucores=10)
            )
        sandbox.started(wait_for=PODS)
    finally:
        recorder.send_signal(signal.SIGINT)
        _, errors = recorder.communicate(timeout=20)
    assert recorder.returncode == 0, errors
    answer = hami(local.kubeconfig, "replay", segments, "-o", "json")
    assert answer.status == 0, answer.errors
    report = answer.document
    assert report["kind"] == "TwinReport"
    comparison = report["comparison"]
    explained = sum(cause["decisions"] for cause in comparison["causes"])
    assert comparison["decisions"] >= PODS
    assert comparison["same"] + explained == comparison["decisions"]
    assert comparison["same"] >= 0.9 * comparison["decisions"]
    assert sandbox.namespace not in answer.text
