"""HAMi's own scheduler beside the local control plane, as a judge of what ours writes.

A developer builds HAMi v2.10 from its source (``go build ./cmd/scheduler``) and names the program in
``HAMI_E2E_UPSTREAM_SCHEDULER``. It runs with the flags of HAMi's chart and the device configuration of ``manifests/``.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Iterator
from typing import Any

import jsonpatch
import urllib3
from prometheus_client.parser import text_string_to_metric_families

from testing.cluster import MANIFESTS, SCHEDULER, LocalCluster
from testing.eventually import eventually
from testing.processes import Program, free_port
from testing.sandbox import Sandbox

__all__ = ["FOREIGN", "VARIABLE", "Holds", "UpstreamScheduler", "holds", "missing"]

Object = dict[str, Any]
Holds = dict[tuple[str, str], tuple[int, int]]
"""Memory in MiB and cores, by pod and device."""
VARIABLE = "HAMI_E2E_UPSTREAM_SCHEDULER"
FOREIGN = "upstream"
"""Name of a scheduler that does not run: nothing but a test places the pods that select it."""
MEMORY, CORES = "hami_vgpu_memory_allocated_bytes", "hami_vgpu_core_allocated_ratio"


def missing() -> str:
    """Returns why HAMi's scheduler cannot run here; empty if it can."""
    path = os.environ.get(VARIABLE, "")
    return (
        ""
        if path and os.access(path, os.X_OK)
        else f"{VARIABLE} names no program: HAMi's scheduler, v2.10"
    )


def holds(page: str, namespace: str) -> Holds:
    """Returns what the pods of *namespace* hold, by the metrics of a scheduler: ours and HAMi's have the same names."""
    sums: dict[str, dict[tuple[str, str], int]] = {MEMORY: {}, CORES: {}}
    for family in text_string_to_metric_families(page):
        for sample in family.samples if family.name in sums else ():
            if sample.labels["namespace"] == namespace:
                key, values = (
                    (sample.labels["pod"], sample.labels["device_uuid"]),
                    sums[family.name],
                )
                values[key] = values.get(key, 0) + int(sample.value)
    return {key: (memory >> 20, sums[CORES][key]) for key, memory in sums[MEMORY].items()}


class UpstreamScheduler:
    """A process of HAMi's scheduler. Use ``UpstreamScheduler.started(cluster)``."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.port, self.metrics_port = free_port(), free_port()
        self.program = Program(
            "upstream-scheduler",
            [
                os.environ[VARIABLE],
                f"--http_bind=127.0.0.1:{self.port}",
                f"--metrics-bind-address=127.0.0.1:{self.metrics_port}",
                f"--scheduler-name={SCHEDULER}",
                "--node-scheduler-policy=binpack",
                "--gpu-scheduler-policy=spread",
                "--force-overwrite-default-scheduler=true",
                f"--device-config-file={MANIFESTS / 'device-config.yaml'}",
                "--kube-qps=1000",
                "--kube-burst=1000",
                "-v=4",
            ],
            cluster.folder / "upstream-scheduler.log",
            env=os.environ
            | {
                "KUBECONFIG": str(cluster.kubeconfig),
                "POD_NAME": "upstream-0",
                "POD_NAMESPACE": "kube-system",
            },
        )
        self._pool = urllib3.PoolManager(retries=False, timeout=30)

    @classmethod
    @contextlib.contextmanager
    def started(cls, cluster: LocalCluster) -> Iterator[UpstreamScheduler]:
        """Yields a process that has read all pods and nodes. That takes up to 15 s, its interval."""
        scheduler = cls(cluster)
        scheduler.program.start()
        try:
            eventually(
                scheduler._is_synced,
                lambda: f"HAMi's scheduler is ready\n{scheduler.program.tail()}",
            )
            yield scheduler
        finally:
            scheduler.program.kill()
            scheduler._pool.clear()

    def _is_synced(self) -> bool:
        """Reports whether it serves; with a pod that requests nothing, a filter answers as soon as it has synced."""
        assert self.program.running(), self.program.tail()
        probe = {
            "Pod": {"metadata": {"name": "probe"}, "spec": {"containers": []}},
            "NodeNames": [],
        }
        try:
            self._call("/filter", probe)
        except urllib3.exceptions.HTTPError:
            return False
        return True

    def _call(self, path: str, body: Object) -> Object:
        answer = self._pool.request("POST", f"http://127.0.0.1:{self.port}{path}", json=body)
        assert answer.status == 200, answer.data
        result: Object = answer.json()
        return result

    def page(self) -> str:
        """Returns its metrics as text."""
        return self._pool.request(
            "GET", f"http://127.0.0.1:{self.metrics_port}/metrics"
        ).data.decode()

    def filter(self, sandbox: Sandbox, name: str) -> str | None:
        """Returns the node that it chooses for the pod, or ``None``, among all with GPUs of the sandbox."""
        nodes = [sandbox.node(node)["metadata"]["name"] for node in sandbox.nodes]
        eventually(
            lambda: all(f'node="{node}"' in self.page() for node in nodes),
            f"it has registered {nodes}",
        )
        answer = self._call("/filter", {"Pod": sandbox.pod(name), "NodeNames": nodes})
        assert not answer.get("Error"), answer
        (chosen,) = answer.get("NodeNames") or [None]
        return chosen

    def place(self, sandbox: Sandbox, name: str) -> None:
        """Binds the pod to the node that it chooses. Raises: AssertionError if it chooses or binds none."""
        node = self.filter(sandbox, name)
        assert node is not None, f"{name} fits nowhere"
        meta = sandbox.pod(name)["metadata"]
        answer = self._call(
            "/bind",
            {
                "PodName": name,
                "PodNamespace": meta["namespace"],
                "PodUID": meta["uid"],
                "Node": node,
            },
        )
        assert not answer.get("Error"), answer

    def admitted(self, item: Object) -> Object | None:
        """Returns the pod as its webhook changes it; ``None`` if it refuses the pod."""
        return admitted(self._call("/webhook", review(item)), item)


def review(item: Object) -> Object:
    """Returns the request of an API server that creates a pod."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": item["metadata"]["name"],
            "operation": "CREATE",
            "namespace": "default",
            "object": item,
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "name": item["metadata"]["name"],
            "userInfo": {"username": "user"},
        },
    }


def admitted(answer: Object, item: Object) -> Object | None:
    """Returns *item* with the patch of the answer; ``None`` if the answer is a refusal."""
    response = answer["response"]
    if not response["allowed"]:
        return None
    patch = base64.b64decode(response.get("patch", "")) or b"[]"
    changed: Object = jsonpatch.apply_patch(item, patch.decode())
    return changed
