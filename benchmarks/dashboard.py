"""Rows about the dashboard of a large cluster: the time to the first byte, and what viewers cost the filter."""

from __future__ import annotations

import http.client
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import urllib3

from benchmarks import fleet
from benchmarks.processes import Cpu, Run
from benchmarks.replica import PLACED, Replica, stub_api
from benchmarks.rows import Latency, Row
from testing.dashboard import dashboard
from testing.eventually import eventually
from testing.processes import free_port

__all__ = ["dashboard_rows"]

GROUP = "inspect"
NODES, PODS_PER_NODE = 5000, 8
FIRST_BYTE_MS, UNCHANGED_MS, FILTER_MS = 300.0, 5.0, 1.0
PAGES, UNCHANGED = 24, 300
VIEWERS = 10
POLL_S = 5.0
"""Between two questions of a viewer, as the page's script asks."""
TURNS = 10
"""Of filters without and beside viewers, and of pages that have not changed. The half of them counts in which other
machines of the host took least: they take some percent of the time or nothing, and longer than most answers at once."""
PATHS = (
    *(f"/?page={number}" for number in range(1, 7)),
    "/?sort=free",
    "/?state=free",
    "/pending",
    "/pods",
    "/pods?sort=memory",
    "/health",
    "/namespaces",
)
SETTLING = 3.0


def dashboard_rows(run: Run) -> Iterator[Row]:
    """Rows for pages, answers without a change, and filters without and beside viewers."""
    size = f"{NODES:,} × {fleet.GPUS} / {NODES * PODS_PER_NODE:,} pods"
    port = free_port()
    run.say(f"inspect: dashboard of {size}")
    names = [fleet.node_name(number) for number in range(NODES)]
    body = fleet.filter_args(names)
    with (
        stub_api(run, NODES, PODS_PER_NODE) as (kubeconfig, _, _),
        Replica.started(run, kubeconfig) as replica,
        dashboard(kubeconfig, run.folder, port),
    ):
        replica.first_placement(names)
        wait_until_read(port)
        time.sleep(SETTLING)
        first = ask(port, "/")[0]
        yield page_row(f"dashboard, the first page after the start, {size}", [first])
        yield page_row(
            f"dashboard, a page that was not rendered, {size}",
            [ask(port, f"/?page={number}")[0] for number in range(2, 2 + PAGES)],
        )
        yield unchanged_row(port, size)
        alone, beside, polls = list[Turn](), list[Turn](), list[int]()
        for _ in range(TURNS):
            alone.append(filters(replica, body))
            with viewers(port, polls):
                beside.append(filters(replica, body))
        yield filter_row(size, alone, beside, polls)


@dataclass(frozen=True, slots=True)
class Turn:
    """The latency of some hundred answers. *stolen*: seconds that the host gave to other machines meanwhile."""

    latency: Latency
    stolen: float


def filters(replica: Replica, body: str) -> Turn:
    """Sends filters like kube-scheduler, one client, while each viewer asks once."""
    cpu = Cpu({})
    answer = replica.load("/filter", PLACED, body=body, seconds=POLL_S, memory=fleet.MEMORY)
    return Turn(Latency.of(answer["latencies"]), cpu.spent()["stolen"])


def wait_until_read(port: int) -> None:
    """Waits until the dashboard has read the cluster."""

    def is_ready() -> bool:
        with suppress(urllib3.exceptions.HTTPError):
            return (
                urllib3.request("GET", f"http://127.0.0.1:{port}/readyz", retries=False).status
                == 200
            )
        return False

    eventually(is_ready, "the dashboard has read the cluster", timeout=120)


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
        stop.wait(number * POLL_S / VIEWERS)
        while not stop.is_set():
            _, status, etag = ask(port, path, etag)
            statuses.append(status)
            stop.wait(POLL_S)

    threads = [
        threading.Thread(target=look, args=(number, path)) for number, path in enumerate(PATHS)
    ]
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
    return Row(
        group=GROUP,
        what=what,
        measured=f"{slowest:.0f} ms to the first byte"
        + (f" (slowest of {len(seconds)})" if len(seconds) > 1 else ""),
        target=f"{FIRST_BYTE_MS:g} ms",
        met=slowest < FIRST_BYTE_MS,
        figures={"slowest_ms": slowest},
    )


def unchanged_row(port: int, size: str) -> Row:
    """Asks for a page again that has not changed."""
    etag = ask(port, "/")[2]
    turns = [unchanged(port, etag) for _ in range(TURNS)]
    p50, p99 = (
        statistics.median(getattr(turn.latency, name) for turn in quietest(turns))
        for name in ("p50", "p99")
    )
    return Row(
        group=GROUP,
        what=f"dashboard, 304, {size}",
        measured=f"p50 / p99 {p50:.1f} / {p99:.1f} ms, with the connection "
        f"(medians of the quieter half of {TURNS} turns of {UNCHANGED})",
        target=f"{UNCHANGED_MS:g} ms",
        met=p99 < UNCHANGED_MS,
        figures={
            "p50_ms": p50,
            "p99_ms": p99,
            "stolen_seconds": sum(turn.stolen for turn in turns),
        },
    )


def unchanged(port: int, etag: str) -> Turn:
    """Asks for a page with its *etag*."""
    cpu = Cpu({})
    answers = [ask(port, "/", etag) for _ in range(UNCHANGED)]
    return Turn(
        Latency.of([1e6 * taken for taken, status, _ in answers if status == 304]),
        cpu.spent()["stolen"],
    )


def filter_row(size: str, alone: list[Turn], beside: list[Turn], polls: list[int]) -> Row:
    figures = {
        f"{name}_{where}_ms": statistics.median(
            getattr(turn.latency, name) for turn in quietest(turns)
        )
        for where, turns in (("alone", alone), ("beside", beside))
        for name in ("p50", "p99")
    }
    texts = {
        where: f"{figures[f'p50_{where}_ms']:.1f} / {figures[f'p99_{where}_ms']:.1f} ms"
        for where in ("alone", "beside")
    }
    return Row(
        group=GROUP,
        what=f"/filter beside {VIEWERS} viewers of the dashboard, {size}",
        measured=f"p50 / p99 {texts['beside']}, without them {texts['alone']} "
        f"(medians of the quieter half of {TURNS} turns, {len(polls)} pages)",
        target=f"{FILTER_MS:g} ms more",
        met=figures["p99_beside_ms"] - figures["p99_alone_ms"] < FILTER_MS,
        figures=figures
        | {
            "filters": float(sum(turn.latency.count for turn in (*alone, *beside))),
            "stolen_seconds": sum(turn.stolen for turn in (*alone, *beside)),
            "pages": float(len(polls)),
        },
    )


def quietest(turns: list[Turn]) -> list[Turn]:
    return sorted(turns, key=lambda turn: turn.stolen)[: len(turns) // 2]
