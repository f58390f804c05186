"""An API server of ready-made answers, for clusters that a real one on this machine takes too long to fill.

It lists in pages, watches, and takes the writes that the scheduler makes (annotations, Bindings, events). It checks
nothing. Its use is stated wherever a figure was measured beside it. Plain HTTP, a process of its own::

    python -m benchmarks.stub_api FOLDER --nodes 5000 --pods-per-node 8 --port 8001

It says ``ready`` on standard output. ``POST /-/churn?rate=1000`` makes pods come, go and change from then on.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from benchmarks import fleet

__all__ = ["Store"]

Object = dict[str, Any]
VERSION = b'"resourceVersion":"%d"'
BOOKMARK = b'{"type":"BOOKMARK","object":{"kind":"%s","apiVersion":"v1","metadata":{%s}}}\n'
REMEMBERED = 100_000
BOOKMARK_S = 30.0


class Collection:
    """Objects of one kind as JSON, with their changes."""

    def __init__(self, store: Store, kind: str) -> None:
        self.store, self.kind = store, kind
        self.items: dict[str, bytes] = {}
        self.events: deque[tuple[int, bytes]] = deque(maxlen=REMEMBERED)
        self.lists: dict[str, list[bytes]] = {}

    def put(self, key: str, item: bytes, *, told: bool = True) -> bytes:
        """Stores *item* with a new version."""
        with self.store.changed:
            change = b"MODIFIED" if key in self.items else b"ADDED"
            self.items[key] = stamped = restamped(item, self.store.next_version())
            if told:
                self.tell(change, stamped)
            return stamped

    def drop(self, key: str) -> None:
        with self.store.changed:
            self.tell(b"DELETED", restamped(self.items.pop(key), self.store.next_version()))

    def tell(self, change: bytes, item: bytes) -> None:
        self.events.append((self.store.version, b'{"type":"%s","object":%s}\n' % (change, item)))
        self.store.changed.notify_all()

    def page(self, limit: int, token: str) -> bytes:
        """Returns one page of a list; the pages of a token are consistent."""
        with self.store.changed:
            serial, _, start = token.partition(":")
            items = self.lists.pop(serial) if token else list(self.items.values())
            begin, end = int(start or 0), int(start or 0) + (limit or len(items))
            meta: Object = {"resourceVersion": serial or str(self.store.version)}
            if end < len(items):
                self.lists[meta["resourceVersion"]] = items
                meta["continue"] = f"{meta['resourceVersion']}:{end}"
        return b'{"kind":"%sList","apiVersion":"v1","metadata":%s,"items":[%s]}' % (
            self.kind.encode(),
            json.dumps(meta).encode(),
            b",".join(items[begin:end]),
        )

    def watch(self, since: int, seconds: float) -> Iterator[bytes]:
        """Yields changes after the version *since*, and bookmarks."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            with self.store.changed:
                if not self.events or self.events[-1][0] <= since:
                    self.store.changed.wait(min(left, BOOKMARK_S))
                recent = itertools.takewhile(lambda event: event[0] > since, reversed(self.events))
                news = [text for _, text in recent][::-1]
                since = self.store.version
            yield b"".join(news) or BOOKMARK % (self.kind.encode(), VERSION % since)


class Store:
    """The objects of the stub."""

    def __init__(self, nodes: int, pods_per_node: int) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.version = 1000
        self.nodes, self.pods, self.quotas = (
            Collection(self, kind) for kind in ("Node", "Pod", "ResourceQuota")
        )
        for node in fleet.nodes(nodes):
            self.nodes.put(node["metadata"]["name"], as_bytes(node), told=False)
        for pod in fleet.bound_pods(nodes, pods_per_node):
            self.pods.put(key_of(pod), as_bytes(started(pod)), told=False)

    def next_version(self) -> int:
        self.version += 1
        return self.version

    def change(self, collection: Collection, key: str, edit: Object) -> bytes | None:
        """Merges *edit* into the object and notifies watchers; ``None`` if it does not exist."""
        with self.changed:
            if (known := collection.items.get(key)) is None:
                return None
            return collection.put(key, as_bytes(merged(json.loads(known), edit)))

    def churn(self, rate: float) -> None:
        """Repeatedly replaces one pod and changes two others without effect."""
        begun, count = time.monotonic(), 0
        keys = deque(self.pods.items)
        while True:
            with self.changed:
                key = keys[0]
                keys.rotate(-1)
                known = self.pods.items[key]
                if count % 4 == 0:
                    self.pods.drop(key)
                    known = as_bytes(
                        merged(json.loads(known), {"metadata": {"uid": str(uuid.uuid4())}})
                    )
                    count += 1
                self.pods.put(key, known)
                count += 1
            time.sleep(max(0.0, begun + count / rate - time.monotonic()))


def started(pod: Object) -> Object:
    """Returns a pod as its kubelet would report it."""
    fleet.with_defaults(pod)["metadata"]["uid"] = str(uuid.uuid4())
    now = pod["status"]["startTime"] = pod["metadata"]["creationTimestamp"]
    pod["status"] |= {
        "phase": "Running",
        "hostIP": "10.0.0.1",
        "podIP": "10.1.0.1",
        "podIPs": [{"ip": "10.1.0.1"}],
        "conditions": [
            {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
            for kind in (
                "PodReadyToStartContainers",
                "Initialized",
                "Ready",
                "ContainersReady",
                "PodScheduled",
            )
        ],
        "containerStatuses": [
            {
                "name": "main",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "image": "x",
                "imageID": "sha256:0",
                "containerID": "containerd://0",
                "state": {"running": {"startedAt": now}},
                "lastState": {},
            }
        ],
    }
    return pod


def key_of(item: Object) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def as_bytes(item: Object) -> bytes:
    """Returns JSON in which the version of the object precedes all others."""
    meta = {"resourceVersion": "", "uid": str(uuid.uuid4()), **item["metadata"]}
    return json.dumps(item | {"metadata": meta}, separators=(",", ":")).encode()


def restamped(item: bytes, version: int) -> bytes:
    """Returns *item* with another version at the start of its metadata."""
    head, mark, rest = item.partition(b'"resourceVersion":"')
    return head + VERSION % version + rest.partition(b'"')[2]


def merged(into: Object, edit: Object) -> Object:
    """Applies a merge patch (RFC 7396)."""
    result = dict(into)
    for key, value in edit.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key) or {}, value) if isinstance(value, dict) else value
    return result


class Handler(BaseHTTPRequestHandler):
    """Translates HTTP to calls of the store."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16

    def __init__(self, *args: Any, store: Store) -> None:
        self.store = store
        super().__init__(*args)

    def do_GET(self) -> None:
        path, query = self.asked()
        collections = {
            "nodes": self.store.nodes,
            "pods": self.store.pods,
            "resourcequotas": self.store.quotas,
        }
        match path:
            case ["api", "v1", name] if name in collections:
                if query.get("watch"):
                    self.stream(
                        collections[name].watch(
                            int(query["resourceVersion"]), float(query["timeoutSeconds"])
                        )
                    )
                else:
                    self.answer(
                        collections[name].page(
                            int(query.get("limit", 0)), query.get("continue", "")
                        )
                    )
            case ["api", "v1", "nodes", name]:
                self.answer(self.store.nodes.items.get(name))
            case ["api", "v1", "namespaces", namespace, "pods", name]:
                self.answer(self.store.pods.items.get(f"{namespace}/{name}"))
            case _:
                self.answer(None)

    def do_POST(self) -> None:
        path, query = self.asked()
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        match path:
            case ["-", "churn"]:
                threading.Thread(
                    target=self.store.churn, args=(float(query["rate"]),), daemon=True
                ).start()
                self.answer(b"{}")
            case ["api", "v1", "namespaces", namespace, "pods", name, "binding"]:
                binding = json.loads(body)
                meta = {
                    key: binding["metadata"].get(key) or {} for key in ("annotations", "labels")
                }
                bound = {"metadata": meta, "spec": {"nodeName": binding["target"]["name"]}}
                done = self.store.change(self.store.pods, f"{namespace}/{name}", bound)
                self.answer(done and b'{"kind":"Status","status":"Success"}', 201)
            case _:
                self.answer(body, 201)

    def do_PATCH(self) -> None:
        path, _ = self.asked()
        edit = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        match path:
            case ["api", "v1", "nodes", name]:
                self.answer(self.store.change(self.store.nodes, name, edit))
            case ["api", "v1", "namespaces", namespace, "pods", name]:
                self.answer(self.store.change(self.store.pods, f"{namespace}/{name}", edit))
            case _:
                self.answer(None)

    def asked(self) -> tuple[list[str], dict[str, str]]:
        parts = urlsplit(self.path)
        return parts.path.strip("/").split("/"), dict(parse_qsl(parts.query))

    def answer(self, body: bytes | None, status: int = 200) -> None:
        if body is None:
            status, body = (
                404,
                b'{"kind":"Status","status":"Failure","message":"not found","code":404}',
            )
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def stream(self, chunks: Iterator[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        with contextlib.suppress(ConnectionError):
            for chunk in chunks:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: there are thousands of requests."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stub_api")
    parser.add_argument("folder")
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--pods-per-node", type=int, default=8)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    store = Store(arguments.nodes, arguments.pods_per_node)
    with Server(("127.0.0.1", arguments.port), functools.partial(Handler, store=store)) as server:
        print("ready", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
