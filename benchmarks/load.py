"""A closed loop of HTTP/1.1 clients with keep-alive, in a process of its own.

Reads a job from standard input and writes the results to standard output, both as JSON. Each client sends its next
request when it has a response. One thread serves all clients, so that the load costs little compared with the measured
process.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import resource
import selectors
import socket
import ssl
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["job"]

READ = SEND = 1 << 18
UIDS = 64
"""So many pods ask in turn. The scheduler keeps devices for few pods that its watch has not shown, and no watch shows
those of a job; a pod that asks again gives up what it was given before."""
UIDS_S = 5.0
"""After so long other pods ask: of those that its watch has not shown for ten seconds the scheduler learns that they do
not exist, and it refuses them from then on."""


def job(
    *,
    port: int,
    path: str,
    body: str = "",
    expect: str,
    ca: str | None = None,
    clients: int = 1,
    requests: int = 100_000,
    seconds: float = 60,
    warm_up: int = 20,
    uid: str = "",
    memory: str = "",
    vary: bool = False,
) -> dict[str, Any]:
    """Returns the input of ``main``.

    *body*: each request replaces *uid* by the next of `UIDS`, and *memory* by 3000, or with *vary* by another amount.
    *expect*: text of a correct response. *ca*: a CA file enables TLS. The job ends after *requests* or *seconds*; the
    first *warm_up* requests do not count.
    """
    return dict(
        port=port,
        path=path,
        body=body,
        expect=expect,
        ca=ca,
        clients=clients,
        requests=requests,
        seconds=seconds,
        warm_up=warm_up,
        uid=uid,
        memory=memory,
        vary=vary,
    )


class Requests:
    """Yields the requests of a job, all of one length."""

    def __init__(self, asked: dict[str, Any]) -> None:
        uid, memory = asked["uid"], asked["memory"]
        body = asked["body"].replace(memory, "@@@@") if memory else asked["body"]
        method = "POST" if body else "GET"
        head = (
            f"{method} {asked['path']} HTTP/1.1\r\nHost: 127.0.0.1:{asked['port']}\r\n"
            f"User-Agent: Go-http-client/1.1\r\nContent-Length: {len(body)}\r\n"
            "Content-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n"
        )
        text = head + body
        # only the front part changes from request to request, not the list of nodes
        cut = max(
            text.rfind(mark) + len(mark) for mark in (uid or "\n", "@@@@" if memory else "\n")
        )
        self._front: str = text[:cut]
        self._rest: bytes = text[cut:].encode()
        self._uid, self._vary = uid, asked["vary"]
        self._memory, self._sent = bool(memory), 0
        self._uids: Iterator[str] = iter(())
        self._uids_end = 0.0

    def next(self) -> bytes:
        self._sent += 1
        front = self._front
        if self._uid:
            front = front.replace(self._uid, self._next_uid())
        if self._memory:
            front = front.replace("@@@@", str(1000 + self._sent % 9000) if self._vary else "3000")
        return front.encode() + self._rest

    def _next_uid(self) -> str:
        now = time.monotonic()
        if now >= self._uids_end:
            self._uids = itertools.cycle([str(uuid.uuid4()) for _ in range(UIDS)])
            self._uids_end = now + UIDS_S
        return next(self._uids)


@dataclass
class Client:
    """A connection and its current request."""

    sock: socket.socket
    pending: memoryview = memoryview(b"")
    answer: bytes = b""
    begun: float = 0.0

    def send(self, request: bytes) -> None:
        self.pending, self.answer, self.begun = memoryview(request), b"", time.perf_counter()
        self.flush()

    def flush(self) -> None:
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            while self.pending:
                self.pending = self.pending[self.sock.send(self.pending) :]

    def wanted(self) -> int:
        """Returns the I/O events to wait for."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self.pending else 0)

    def receive(self) -> bool:
        """Reads available data; reports whether the response is complete. Raises: ConnectionError."""
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
            while chunk := self.sock.recv(READ):
                self.answer += chunk
                if self.is_whole():
                    return True
            raise ConnectionError(f"the server has hung up after {self.answer[:200]!r}")
        return False

    def is_whole(self) -> bool:
        head, mark, body = self.answer.partition(b"\r\n\r\n")
        if not mark:
            return False
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if not length:
            raise ConnectionError(f"an answer without Content-Length: {head!r}")
        return len(body) >= int(length)


def connect(port: int, ca: str | None) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND)
    if ca:
        sock = ssl.create_default_context(cafile=ca).wrap_socket(sock, server_hostname="127.0.0.1")
    sock.setblocking(False)
    return sock


def run(asked: dict[str, Any]) -> dict[str, Any]:
    """Executes the job."""
    requests, expect = Requests(asked), asked["expect"].encode()
    clients = [Client(connect(asked["port"], asked["ca"])) for _ in range(asked["clients"])]
    latencies: list[float] = []
    surprises: list[str] = []
    done, begun, cpu = 0, time.perf_counter(), 0.0
    with selectors.DefaultSelector() as selector:
        for client in clients:
            client.send(requests.next())
            selector.register(client.sock, client.wanted(), client)
        while (
            done < asked["requests"] + asked["warm_up"]
            and time.perf_counter() - begun < asked["seconds"]
        ):
            for key, _ in selector.select(10):
                client = key.data
                if client.pending:
                    client.flush()
                if client.receive():
                    ended = time.perf_counter()
                    done += 1
                    if done > asked["warm_up"]:
                        latencies.append((ended - client.begun) * 1e6)
                        if expect not in client.answer:
                            surprises.append(client.answer[-500:].decode(errors="replace"))
                    elif done == asked["warm_up"]:
                        begun, cpu = ended, cpu_seconds()
                    client.send(requests.next())
                if client.wanted() != key.events:
                    selector.modify(client.sock, client.wanted(), client)
    return {
        "latencies": latencies,
        "seconds": time.perf_counter() - begun,
        "cpu_seconds": cpu_seconds() - cpu,
        "surprises": len(surprises),
        "surprise": surprises[0] if surprises else "",
    }


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    json.dump(run(json.load(sys.stdin)), sys.stdout)
