"""Rows about the dashboard of a large cluster: the time to the first byte, and what viewers cost the filter."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks import fleet
from benchmarks.processes import Run
from benchmarks.replica import Replica, stub_api
from benchmarks.rows import Latency, Row
from e2e.processes import free_port

__all__ = ["dashboard_rows"]

GROUP = "inspect"
NODES, PODS_PER_NODE = 5000, 8
FIRST_BYTE_MS, UNCHANGED_MS, FILTER_MS = 300.0, 5.0, 1.0
PAGES, UNCHANGED = 40, 300
VIEWERS = 10
POLL_SECONDS = 5.0
"""Between two questions of a viewer, as the page's script asks."""
TURNS = 6
"""Of filters without and beside viewers: the machine's speed changes from minute to minute."""
PATHS = (*(f"/?page={number}" for number in range(1, 7)), "/?sort=free", "/?state=free", "/pending", "/namespaces")
SETTLING = 3.0
PLACED = '"NodeNames":["'


def dashboard_rows(run: Run) -> Iterator[Row]:
    """Rows for pages, answers without a change, and filters without and beside viewers."""
    size = f"{NODES:,} × {fleet.GPUS} / {NODES * PODS_PER_NODE:,} pods"
    port = free_port()
    run.say(f"inspect: dashboard of {size}")
    names = [fleet.node_name(number) for number in range(NODES)]
    body = fleet.filter_args(names)
    with (stub_api(run, NODES, PODS_PER_NODE) as (kubeconfig, _, _),
          Replica.started(run, kubeconfig, flags={"dashboard-bind-address": f"127.0.0.1:{port}"}) as replica):
        replica.first_placement(names)
        time.sleep(SETTLING)
        first = ask(port, "/")[0]
        yield page_row(f"dashboard, the first page after the start, {size}", [first])
        yield page_row(f"dashboard, a page that was not rendered, {size}",
                       [ask(port, f"/?page={number}")[0] for number in range(2, 2 + PAGES)])
        yield unchanged_row(port, size)
        alone, beside, polls = list[float](), list[float](), list[int]()
        for _ in range(TURNS):
            alone += filters(replica, body)
            with viewers(port, polls):
                beside += filters(replica, body)
        yield filter_row(size, Latency.of(alone), Latency.of(beside), polls)


def filters(replica: Replica, body: str) -> list[float]:
    """Returns the microseconds of each filter of one client, like kube-scheduler, while each viewer asks once."""
    latencies: list[float] = replica.load(
        "/filter", PLACED, body=body, seconds=POLL_SECONDS, memory=fleet.MEMORY)["latencies"]
    return latencies


def ask(port: int, path: str, etag: str = "") -> tuple[float, int, str]:
    """Returns the seconds to the first byte of an answer, with the connection; its status and its ETag."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    begun = time.monotonic()
    try:
        connection.request("GET", path, headers={"If-None-Match": etag, "Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        seconds = time.monotonic() - begun
        answer.read()
        if answer.status not in (200, 304):
            raise RuntimeError(f"the dashboard answers {path} with {answer.status}")
        return seconds, answer.status, answer.headers["ETag"]
    finally:
        connection.close()


@contextmanager
def viewers(port: int, statuses: list[int]) -> Iterator[None]:
    """Lets ten viewers look at different pages. The statuses of their answers are added to *statuses*."""
    stop = threading.Event()

    def look(number: int, path: str) -> None:
        etag = ""
        stop.wait(number * POLL_SECONDS / VIEWERS)
        while not stop.is_set():
            _, status, etag = ask(port, path, etag)
            statuses.append(status)
            stop.wait(POLL_SECONDS)

    threads = [threading.Thread(target=look, args=(number, path)) for number, path in enumerate(PATHS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def page_row(what: str, seconds: list[float]) -> Row:
    slowest = 1000 * max(seconds)
    return Row(group=GROUP, what=what, measured=f"{slowest:.0f} ms to the first byte"
               + (f" (slowest of {len(seconds)})" if len(seconds) > 1 else ""),
               target=f"{FIRST_BYTE_MS:g} ms", met=slowest < FIRST_BYTE_MS, figures={"slowest_ms": slowest})


def unchanged_row(port: int, size: str) -> Row:
    """Asks for a page again that has not changed."""
    etag = ask(port, "/")[2]
    answers = [ask(port, "/", etag) for _ in range(UNCHANGED)]
    latency = Latency.of([1e6 * taken for taken, status, _ in answers if status == 304])
    return Row(group=GROUP, what=f"dashboard, 304, {size}",
               measured=f"{latency} (p50 / p99 of {latency.count}, with the connection)",
               target=f"{UNCHANGED_MS:g} ms", met=latency.p99 < UNCHANGED_MS,
               figures={"p50_ms": latency.p50, "p99_ms": latency.p99})


def filter_row(size: str, alone: Latency, beside: Latency, polls: list[int]) -> Row:
    more = beside.p99 - alone.p99
    return Row(group=GROUP, what=f"/filter beside {VIEWERS} viewers of the dashboard, {size}",
               measured=f"p50 / p99 {beside}, without them {alone} ({len(polls)} pages in {TURNS} turns)",
               target=f"{FILTER_MS:g} ms more", met=more < FILTER_MS,
               figures={"p50_alone_ms": alone.p50, "p50_beside_ms": beside.p50, "p99_alone_ms": alone.p99,
                        "p99_beside_ms": beside.p99, "filters": float(alone.count + beside.count),
                        "pages": float(len(polls))})
