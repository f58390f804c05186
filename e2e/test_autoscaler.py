"""An autoscaler asks which nodes a pod fits, some of which do not exist yet. Its certificate opens nothing else."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import urllib3

from hami.codec.documents import parse_own_yaml
from hami.inspect.snapshot import parse_snapshot
from hami.model import Pod
from hami.quantity import MIB, parse_quantity
from testing.cluster import MANIFESTS, LocalCluster
from testing.eventually import PATIENCE_S
from testing.nodes import gpus
from testing.people import hami
from testing.pods import pod
from testing.processes import group_members
from testing.sandbox import Sandbox
from testing.scheduler import Certificates, Scheduler

Object = dict[str, Any]
GROUP = ("--model", "NVIDIA A100-SXM4-80GB", "--count", "8", "--memory", "81920")


def templates(local: LocalCluster, count: int) -> list[Object]:
    """Returns nodes of a group: half of them with the annotations, the others with the labels that the
    command prints."""
    node = parse_own_yaml(hami(local.kubeconfig, "render-template", *GROUP).text)
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
    return (
        {node.name for node in record.nodes},
        [pod for pod in record.pods if pod.ref.namespace == sandbox.namespace],
    )


@functools.cache
def simulators(folder: Path) -> Certificates:
    """Returns the CA for autoscalers, beside that of the session in *folder*."""
    return Certificates(folder / "simulators")


FLAGS = {
    "http_bind": lambda replica: f":{replica.port}",
    "client_ca_file": lambda replica: str(replica.certificates.ca_file),
    "simulate_client_ca_file": lambda replica: str(
        simulators(replica.certificates.ca_file.parent).ca_file
    ),
}


CLOSE = {"Connection": "close"}
"""The server closes a connection that is idle for long, as while a busy machine creates a pod."""


class Client:
    """A client of the Service of the webhook, with a certificate."""

    def __init__(self, scheduler: Scheduler, pool: urllib3.PoolManager) -> None:
        self._address = f"https://127.0.0.1:{scheduler.port}"
        self._pool = pool

    def post(self, path: str, body: Object) -> urllib3.BaseHTTPResponse:
        return self._pool.request("POST", self._address + path, json=body, headers=CLOSE)

    def get(self, path: str) -> urllib3.BaseHTTPResponse:
        return self._pool.request("GET", self._address + path, headers=CLOSE)

    def size_of_answer(self, path: str, body: bytes) -> int:
        """Returns how many bytes the answer has, which is not kept. Raises: AssertionError for another status."""
        answer = self._pool.request(
            "POST",
            self._address + path,
            body=body,
            preload_content=False,
            timeout=300,
            headers={"Content-Type": "application/json"},
        )
        size = sum(map(len, answer.stream(MIB)))
        assert answer.status == 200
        answer.release_conn()
        return size


@contextlib.contextmanager
def client(scheduler: Scheduler, authority: Certificates) -> Iterator[Client]:
    """Yields a client with a certificate of *authority*."""
    cert_file, key_file = authority.client()
    with urllib3.PoolManager(
        ca_certs=str(scheduler.certificates.ca_file),
        cert_file=str(cert_file),
        maxsize=20,
        key_file=str(key_file),
        retries=False,
        timeout=PATIENCE_S,
    ) as pool:
        yield Client(scheduler, pool)


@pytest.fixture
def autoscaler(scheduler: Scheduler, certificates: Certificates) -> Iterator[Client]:
    with client(scheduler, simulators(certificates.ca_file.parent)) as made:
        yield made


@pytest.mark.flags(**FLAGS)
def test_fifty_nodes_that_do_not_exist_change_nothing(sandbox, scheduler, local, autoscaler):
    """All nodes that fit are named: real ones as they are used, the others idle. Only a client with a certificate may
    ask."""
    sandbox.add_gpu_nodes({"full": gpus(1), "free": gpus(1)})
    on_full = {"kubernetes.io/hostname": sandbox.node("full")["metadata"]["name"]}
    running = pod("running", gpu=1, gpumem=60_000)
    running["spec"]["nodeSelector"] = on_full
    sandbox.create(running)
    assert sandbox.started() == {"running": "full"}
    sandbox.wait_phase("Running", "running")
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
    answer = autoscaler.post("/simulate", body).json()
    assert answer["Nodes"]["items"] == [real[1], *made]
    assert answer["FailedNodes"] == {
        on_full["kubernetes.io/hostname"]: "1/1 CardInsufficientMemory"
    }
    assert known(local, sandbox) == before
    assert (
        'hami_scheduler_request_duration_seconds_count{outcome="ok",verb="simulate"} 1.0'
        in scheduler.metrics()
    )


@pytest.mark.flags(**FLAGS)
def test_each_certificate_opens_what_it_is_for(sandbox, scheduler, autoscaler, certificates):
    """That of an autoscaler simulates; that of a kube-scheduler elsewhere filters, binds and sees reservations, too."""
    sandbox.add_gpu_node("a")
    node = sandbox.node("a")
    sandbox.create(pod("waits", gpu=1, gpumem=1000, scheduler="nobody"))
    waiting = sandbox.pod("waits")
    filtered = {"Pod": waiting, "Nodes": None, "NodeNames": [node["metadata"]["name"]]}
    bound = {
        "PodName": "waits",
        "PodNamespace": sandbox.namespace,
        "PodUID": waiting["metadata"]["uid"],
        "Node": node["metadata"]["name"],
    }
    simulated = {"Pod": waiting, "Nodes": {"items": [node]}, "NodeNames": None}
    reserved = f"/reservations/{waiting['metadata']['uid']}"
    for path, body in (
        ("/filter", filtered),
        ("/prioritize", filtered),
        ("/preempt", filtered),
        ("/bind", bound),
    ):
        assert autoscaler.post(path, body).status == 403
    assert autoscaler.get(reserved).status == 403
    assert autoscaler.post("/simulate", simulated).json()["Nodes"]["items"] == [node]
    with client(scheduler, certificates) as elsewhere:
        assert elsewhere.get(reserved).status == 404
        assert elsewhere.post("/simulate", simulated).json()["Nodes"]["items"] == [node]
        assert elsewhere.post("/filter", filtered).json()["NodeNames"] == [node["metadata"]["name"]]
        assert elsewhere.get(reserved).json()["node"] == node["metadata"]["name"]
        assert elsewhere.post("/bind", bound).json() == {"Error": ""}
    assert sandbox.pod("waits")["spec"]["nodeName"] == node["metadata"]["name"]


CLIENTS, BODY = 14, 61 * MIB


@pytest.mark.flags(**FLAGS, leader_elect="false")
def test_large_simulations_leave_memory_and_room_for_kube_scheduler(
    sandbox, scheduler, local, autoscaler
):
    """Two are read at once, and the others wait. Filters are answered meanwhile."""
    sandbox.add_gpu_node("a")
    name = sandbox.node("a")["metadata"]["name"]
    sandbox.create(pod("waits", gpu=1, gpumem=1000, scheduler="nobody"))
    filtered = {"Pod": sandbox.pod("waits"), "Nodes": None, "NodeNames": [name]}
    body = large(templates(local, 2)[1], sandbox.pod("waits"))
    reset_peaks(scheduler)
    answered = 0
    with ThreadPoolExecutor(CLIENTS) as pool:
        sizes = [pool.submit(autoscaler.size_of_answer, "/simulate", body) for _ in range(CLIENTS)]
        while not all(size.done() for size in sizes):
            answer = scheduler.call_extender("/filter", filtered)
            assert answer.json()["NodeNames"] == [name]
            answered += not all(size.done() for size in sizes)
        assert min(size.result() for size in sizes) > BODY - MIB
    assert answered
    assert peak(scheduler) < shipped_limit()


def large(template: Object, asked: Object) -> bytes:
    """Returns a simulation of 5,000 nodes with one card, of BODY bytes."""
    template["metadata"]["labels"]["hami.io/node-template"] = "1x81920.10.100.NVIDIA_A100-SXM4-80GB"
    nodes = []
    for number in range(5000):
        node = copy.deepcopy(template)
        node["metadata"]["name"] = f"new-{number:04}"
        node["metadata"]["annotations"] = {"note": ""}
        nodes.append(node)
    document = {"Pod": asked, "Nodes": {"items": nodes}, "NodeNames": None}
    padding = (BODY - len(json.dumps(document))) // len(nodes)
    for node in nodes:
        node["metadata"]["annotations"]["note"] = "x" * padding
    return json.dumps(document).encode()


def shipped_limit() -> int:
    """Returns the bytes that the shipped Deployment permits the container."""
    deployment = parse_own_yaml((MANIFESTS / "deployment.yaml").read_text())
    (extender,) = (
        item
        for item in deployment["spec"]["template"]["spec"]["containers"]
        if item["name"] == "extender"
    )
    return int(parse_quantity(extender["resources"]["limits"]["memory"]))


def reset_peaks(scheduler: Scheduler) -> None:
    for pid in processes(scheduler):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak(scheduler: Scheduler) -> int:
    """Returns the most bytes that its processes have had in memory, each at its worst moment."""
    peaks = [
        re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        for pid in processes(scheduler)
    ]
    return sum(int(found[1]) * 1024 for found in peaks if found is not None)


def processes(scheduler: Scheduler) -> list[int]:
    assert scheduler.program.pid is not None, "it runs"
    return group_members(scheduler.program.pid)
