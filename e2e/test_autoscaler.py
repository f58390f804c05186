"""An autoscaler asks which nodes a pod fits, some of which do not exist yet."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import urllib3
import yaml

from e2e.cluster import LocalCluster
from e2e.eventually import eventually
from e2e.nodes import gpus
from e2e.people import hami
from e2e.pods import pod
from e2e.sandbox import Sandbox
from e2e.scheduler import Certificates, Scheduler
from hami.inspect.snapshot import parse_snapshot
from hami.model import Pod

Object = dict[str, Any]
GROUP = ("--model", "NVIDIA A100-SXM4-80GB", "--count", "8", "--memory", "81920")


def templates(local: LocalCluster, count: int) -> list[Object]:
    """Returns nodes of a group: half of them with the annotations, the others with the labels that the command prints.
    """
    node = yaml.safe_load(hami(local.kubeconfig, "render-template", *GROUP).text)
    nodes = [copy.deepcopy(node) for _ in range(count)]
    for number, made in enumerate(nodes):
        made["metadata"]["name"] = f"template-node-for-a100-{number}"
        if number % 2:
            del made["metadata"]["annotations"]
    return nodes


def known(local: LocalCluster, sandbox: Sandbox) -> tuple[set[str], list[Pod]]:
    """Returns the names of all nodes and the pods of the sandbox, as a snapshot has them. Other things change by
    themselves: handshakes, events, and what an earlier test leaves."""
    record = parse_snapshot(hami(local.kubeconfig, "snapshot").output, "snapshot")
    return ({node.name for node in record.nodes},
            [pod for pod in record.pods if pod.ref.namespace == sandbox.namespace])


@pytest.mark.flags(http_bind=lambda replica: f":{replica.port}",
                   client_ca_file=lambda replica: str(replica.certificates.ca_file))
def test_fifty_nodes_that_do_not_exist_change_nothing(sandbox: Sandbox, scheduler: Scheduler, local: LocalCluster,
                                                      certificates: Certificates) -> None:
    """All nodes that fit are named: real ones as they are used, the others idle. Only a client with a certificate may
    ask."""
    sandbox.add_gpu_nodes({"full": gpus(1), "free": gpus(1)})
    on_full = {"kubernetes.io/hostname": sandbox.node("full")["metadata"]["name"]}
    running = pod("running", gpu=1, gpumem=60_000)
    running["spec"]["nodeSelector"] = on_full
    sandbox.create(running)
    assert sandbox.started() == {"running": "full"}
    eventually(lambda: sandbox.pod("running")["status"]["phase"] == "Running", "it runs")
    sandbox.wait_labeled("running")
    made = templates(local, 50)
    real = [sandbox.node(name) for name in ("full", "free")]
    asked = pod("asked", gpu=1, gpumem=40_000)
    asked["metadata"] |= {"namespace": sandbox.namespace, "uid": "asked"}
    body = {"Pod": asked, "Nodes": {"items": [*real, *made]}, "NodeNames": None}
    assert scheduler.call("/simulate", body).status == 403
    before = known(local, sandbox)
    assert {node["metadata"]["name"] for node in real} <= before[0]
    assert [item.ref.name for item in before[1]] == ["running"]
    cert_file, key_file = certificates.client()
    with urllib3.PoolManager(ca_certs=str(certificates.ca_file), cert_file=str(cert_file), key_file=str(key_file),
                             retries=False, timeout=30) as client:
        address = f"https://127.0.0.1:{scheduler.port}"
        answer = client.request("POST", f"{address}/simulate", json=body).json()
        assert client.request("GET", f"{address}/reservations/asked").status == 404
    assert answer["Nodes"]["items"] == [real[1], *made]
    assert answer["FailedNodes"] == {on_full["kubernetes.io/hostname"]: "1/1 CardInsufficientMemory"}
    assert known(local, sandbox) == before
    assert 'hami_scheduler_request_duration_seconds_count{outcome="ok",verb="simulate"} 1.0' in scheduler.metrics()
