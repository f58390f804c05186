"""A recording of the control plane, replayed: the same pods go to the same places."""

import os
import signal
import subprocess
import sys

import pytest
import yaml

from testing.cluster import MANIFESTS
from testing.eventually import PATIENCE_S, eventually
from testing.kube import write_kubeconfig
from testing.nodes import gpus
from testing.people import DEVICE_CONFIG, hami
from testing.pods import pod
from testing.yaml_text import read_documents

BINPACK = {"hami.io/node-scheduler-policy": "binpack"}
PODS = 12
RECORD = MANIFESTS.parent / "record" / "record.yaml"
RIGHTS = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


@pytest.fixture
def account(local, tmp_path):
    """A kubeconfig of the account that records in a cluster, with its rights."""
    objects = [item for item in read_documents(RECORD.read_text()) if item["kind"] in RIGHTS]
    local.kube.apply_yaml(yaml.safe_dump_all(objects), "hami-record")
    token = local.kube.token("hami-record", "hami-record")
    return write_kubeconfig(local.kubeconfig, token, tmp_path / "record.kubeconfig")


def recorded(local, segments):
    """Returns the report on what is recorded and safe by now; ``None`` if nothing is."""
    answer = hami(local.kubeconfig, "replay", segments, "-o", "json")
    return answer.document if answer.status == 0 else None


def test_a_recording_is_replayed(local, sandbox, account, tmp_path):
    sandbox.add_gpu_nodes({"n0": gpus(2), "n1": gpus(2)})
    segments = tmp_path / "recording"
    command = [sys.executable, "-m", "hami.cli", "record", str(segments)]
    command.append(f"--device-config-file={DEVICE_CONFIG}")
    recorder = subprocess.Popen(
        command,
        env=os.environ | {"KUBECONFIG": str(account)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # pods that are there at first were decided before
        sandbox.create(pod("first", gpu=1, gpumem=1000))
        eventually(
            lambda: (recorded(local, segments) or {"pods": 0})["pods"], "the recording has begun"
        )
        for number in range(PODS):
            sandbox.create(
                pod(f"p{number}", annotations=BINPACK, gpu=1, gpumem=10_000, gpucores=10)
            )
            sandbox.started(wait_for=number + 2)  # each is decided beside pods that are bound
        eventually(
            lambda: recorded(local, segments)["comparison"]["decisions"] >= PODS,
            "the recording has all decisions",
        )
    finally:
        recorder.send_signal(signal.SIGINT)
        _, errors = recorder.communicate(timeout=PATIENCE_S)
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
