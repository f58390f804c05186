"""The sample agent for vendors, with the account that it is given, on a real kubelet."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from testing.device_plugin import account_kubeconfig
from testing.eventually import eventually
from testing.placing import bind
from testing.pods import container, pod
from testing.realnode import NodeProgram, RealNode
from testing.sandbox import Sandbox
from testing.shown import END

pytestmark = pytest.mark.kind
Object = dict[str, Any]
ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "vendor-agent"
RESOURCE = "acme.example/card"
LOCK = "hami.io/mutex.lock"
PHASE = "hami.io/bind-phase"
TO_ALLOCATE = "hami.io/acme-devices-to-allocate"


@pytest.fixture
def acme(real: RealNode) -> Iterator[NodeProgram]:
    """The agent on the node, whose slots the kubelet offers."""
    kubeconfig = account_kubeconfig(real, "acme-agent", str(FOLDER / "rbac.yaml"))
    program = real.program(
        "acme-agent",
        [sys.executable, str(FOLDER / "agent.py"), f"--node-name={real.name}"],
        env={**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONPATH": str(ROOT)},
    )
    program.start()
    try:
        real.wait_allocatable(RESOURCE, 8)
        yield program
    finally:
        program.stop()
        real.kubelet.start()
        real.wait_node(
            lambda node: node["status"]["allocatable"].get(RESOURCE, "0") == "0",
            what="offers nothing of an agent that is gone",
        )
        note(real, {key: None for key in real.node()["metadata"]["annotations"] if "acme" in key})


def note(real: RealNode, notes: dict[str, str | None]) -> None:
    """Writes annotations of the node."""
    real.kube.merge_patch("Node", real.name, {"metadata": {"annotations": notes}})


def place(sandbox: Sandbox, real: RealNode, item: Object, shares: str) -> None:
    """Creates a pod and does with it what HAMi's scheduler does with its devices."""
    name = item["metadata"]["name"]
    sandbox.kube.create(item, sandbox.namespace)
    note(real, {LOCK: f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ},{sandbox.namespace},{name}"})
    bind(
        sandbox,
        real,
        name,
        {
            "hami.io/vgpu-node": real.name,
            "hami.io/bind-time": str(int(datetime.now(UTC).timestamp())),
            PHASE: "allocating",
            TO_ALLOCATE: shares,
            TO_ALLOCATE.replace("to-allocate", "allocated"): shares,
        },
    )


def shower(name: str, *counts: int) -> Object:
    """Returns a pod whose containers print their variables, and request so many cards."""
    containers = []
    for place, count in enumerate(counts):
        made = container(f"c{place}", **({RESOURCE: count} if count else {}))
        made["command"] = ["sh", "-c", f"env; echo {END}; sleep inf"]
        containers.append(made)
    return pod(name, containers=containers, scheduler="nobody")


def test_the_agent_registers_its_cards_and_hands_out_what_the_scheduler_chose(sandbox, real, acme):
    annotations = real.node()["metadata"]["annotations"]
    assert '"id": "ACME-0"' in annotations["hami.io/node-acme-register"]
    assert annotations["hami.io/node-handshake-acme"].startswith("Reported")
    shares = "ACME-1,Acme,4096,0:;;ACME-0,Acme,1024,0:ACME-1,Acme,2048,0:;"
    place(sandbox, real, shower("asking", 1, 0, 2), shares)
    sandbox.running("asking")
    found = [variables(real, sandbox, "asking", f"c{index}") for index in range(3)]
    assert found == [
        {"ACME_VISIBLE_CARDS": "ACME-1", "ACME_MEMORY_LIMIT_0": "4096m"},
        {},
        {
            "ACME_VISIBLE_CARDS": "ACME-0,ACME-1",
            "ACME_MEMORY_LIMIT_0": "1024m",
            "ACME_MEMORY_LIMIT_1": "2048m",
        },
    ]
    after = sandbox.annotations("asking")
    assert (after[TO_ALLOCATE], after[PHASE]) == (";;;", "success")
    assert LOCK not in real.node()["metadata"]["annotations"]


def test_the_agent_survives_a_restart_of_the_kubelet(sandbox, real, acme):
    begun = len(acme.log.read_text())
    real.kubelet.stop()
    real.kubelet.start()
    eventually(
        lambda: acme.log.read_text()[begun:].count("registered with the kubelet") == 1,
        "the agent registers again",
    )
    real.wait_allocatable(RESOURCE, 8)
    place(sandbox, real, shower("later", 1), "ACME-0,Acme,1024,0:;")
    sandbox.running("later")
    assert variables(real, sandbox, "later", "c0")["ACME_VISIBLE_CARDS"] == "ACME-0"


def variables(real: RealNode, sandbox: Sandbox, name: str, of: str) -> dict[str, str]:
    """Returns the variables of Acme that a container has printed."""
    text = real.output(sandbox.pod(name), of, until=END)
    pairs = (line.partition("=") for line in text.splitlines() if line.startswith("ACME_"))
    return {key: value for key, _, value in pairs}
