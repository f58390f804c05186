"""Places pods one after the other as kube-scheduler does, with the verbs of the extender, in a process of its own.

Reads a job from standard input and writes the results to standard output, both as JSON.
"""

from __future__ import annotations

import http.client
import json
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

__all__ = ["job"]

Object = dict[str, Any]


def job(*, port: int, pods: Sequence[Object], names: Sequence[str]) -> dict[str, Any]:
    """Returns the input of ``main``: *pods* as the API server has them, and the *names* of all nodes."""
    return dict(port=port, pods=list(pods), names=list(names))


def run(asked: dict[str, Any]) -> dict[str, Any]:
    """Executes the job. Returns the microseconds of each pod, and how many nodes it could choose from."""
    connection = http.client.HTTPConnection("127.0.0.1", asked["port"], timeout=60)
    chance = random.Random(len(asked["pods"]))
    times, choices = [], []
    for pod in asked["pods"]:
        whole = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": asked["names"]}).encode()
        begun = time.perf_counter()
        names = call(connection, "/filter", whole)["NodeNames"]
        if len(names) > 1:
            call(
                connection,
                "/prioritize",
                json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode(),
            )
        meta = pod["metadata"]
        answer = call(
            connection,
            "/bind",
            json.dumps(
                {  # kube-scheduler adds scores of its own: it may choose any
                    "PodName": meta["name"],
                    "PodNamespace": meta["namespace"],
                    "PodUID": meta["uid"],
                    "Node": chance.choice(names),
                }
            ).encode(),
        )
        times.append((time.perf_counter() - begun) * 1e6)
        choices.append(len(names))
        if answer["Error"]:
            raise RuntimeError(f"{meta['name']} was not bound: {answer['Error']}")
    return {"microseconds": times, "choices": choices}


def call(connection: http.client.HTTPConnection, verb: str, body: bytes) -> Any:
    connection.request("POST", verb, body, {"Content-Type": "application/json"})
    return json.loads(connection.getresponse().read())


if __name__ == "__main__":
    json.dump(run(json.load(sys.stdin)), sys.stdout)
