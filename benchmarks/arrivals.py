"""Creates pods as fast as the API server accepts them, and records when each is bound, in a process of its own.

Reads a job from standard input and writes the results to standard output, both as JSON.
"""

from __future__ import annotations

import http.client
import json
import queue
import resource
import ssl
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kubernetes import config as kubernetes_config

from testing.kube import Kube, path_of

__all__ = ["job"]

PHASE = "hami.io/bind-phase"
BOUND = {"fieldSelector": "spec.nodeName!="}


def job(
    *,
    kubeconfig: Path,
    pod: dict[str, Any],
    namespace: str,
    count: int,
    allocated: bool,
    creators: int = 8,
    timeout: float = 180,
) -> dict[str, Any]:
    """Returns the input of ``main``: *count* pods like *pod*, from *creators* connections.

    A pod is done when it is bound; with *allocated*, when its device plugin has also allocated its devices.
    """
    return dict(
        kubeconfig=str(kubeconfig),
        pod=pod,
        namespace=namespace,
        count=count,
        allocated=allocated,
        creators=creators,
        timeout=timeout,
    )


def run(asked: dict[str, Any]) -> dict[str, Any]:
    """Executes the job. Times are in seconds since the first request."""
    kube = Kube(Path(asked["kubeconfig"]))
    path = path_of("Pod", asked["namespace"])
    bodies: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    for number in range(asked["count"]):
        pod = asked["pod"] | {"metadata": asked["pod"]["metadata"] | {"name": f"pod-{number:04}"}}
        bodies.put(json.dumps(pod).encode())
    for _ in range(asked["creators"]):
        bodies.put(None)
    version = kube.page("Pod", asked["namespace"])["metadata"]["resourceVersion"]
    connections = [connect(asked["kubeconfig"]) for _ in range(asked["creators"])]
    refused: list[str] = []
    creators = [
        threading.Thread(target=create, args=(connection, path, bodies, refused), daemon=True)
        for connection in connections
    ]
    begun = time.monotonic()
    for creator in creators:
        creator.start()
    times = {"created": 0.0}
    waiter = threading.Thread(target=lambda: note_end(creators, times, begun), daemon=True)
    waiter.start()
    bound, done = follow(kube, path, version, asked, begun)
    waiter.join()
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "created": times["created"],
        "bound": sorted(bound.values()),
        "done": sorted(done.values()),
        "refused": refused[:3],
        "cpu_seconds": used.ru_utime + used.ru_stime,
    }


def note_end(creators: list[threading.Thread], times: dict[str, float], begun: float) -> None:
    for creator in creators:
        creator.join()
    times["created"] = time.monotonic() - begun


def connect(kubeconfig: str) -> http.client.HTTPSConnection:
    configuration = kubernetes_config.new_client_from_config(kubeconfig).configuration
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    context.load_cert_chain(configuration.cert_file, configuration.key_file)
    parts = urlsplit(configuration.host)
    connection = http.client.HTTPSConnection(
        parts.hostname or "", parts.port, context=context, timeout=60
    )
    connection.connect()
    return connection


def create(
    connection: http.client.HTTPSConnection,
    path: str,
    bodies: queue.SimpleQueue[bytes | None],
    refused: list[str],
) -> None:
    while (body := bodies.get()) is not None:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 201:
            refused.append(text.decode(errors="replace"))


def follow(
    kube: Kube,
    path: str,
    version: str,
    asked: dict[str, Any],
    begun: float,
) -> tuple[dict[str, float], dict[str, float]]:
    """Records when each pod was bound and when it was done."""
    bound: dict[str, float] = {}
    done: dict[str, float] = {}

    def see(pod: dict[str, Any]) -> None:
        now, name = time.monotonic() - begun, pod["metadata"]["name"]
        bound.setdefault(name, now)
        if (
            not asked["allocated"]
            or (pod["metadata"].get("annotations") or {}).get(PHASE) == "success"
        ):
            done.setdefault(name, now)

    while len(done) < asked["count"] and (left := asked["timeout"] + begun - time.monotonic()) > 0:
        for change, pod in kube.watch(path, version, left, BOUND):
            if change in ("ADDED", "MODIFIED"):
                see(pod)
            if len(done) == asked["count"]:
                return bound, done
        page = kube.call("GET", path, query=BOUND)  # the server has ended the watch
        version = page["metadata"]["resourceVersion"]
        for pod in page["items"] or []:
            see(pod)
    return bound, done


if __name__ == "__main__":
    json.dump(run(json.load(sys.stdin)), sys.stdout)
