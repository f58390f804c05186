"""Rows about what a hostile node or tenant costs the others: ratios to the same filters without it."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import fleet
from benchmarks.processes import Run, memory
from benchmarks.replica import PLACED, REFUSED, Replica, stub_api
from benchmarks.rows import Latency, Row, ratio, remarks
from hami.codec.keys import GPU_ALLOCATED, NODE_RESIZES, RESIZE, RESIZE_STATUS
from hami.codec.resize import ResizeState, Size, render_resize
from testing.eventually import eventually
from testing.nodes import REGISTER, gpus, register_text, registered

__all__ = ["hostile_rows"]

NODES = 5000
REQUESTS = 600
TURNS = 6
CARDS = 256
"""The most devices that a node may register."""
PODS_PER_NODE = 8
RESIZES = 400
PATCHES = 5
"""Registrations that one node writes each second."""
CLIENTS = 32
REVIEW = 44_000
"""Bytes of a review in a flood: below the size from which reviews are worked on one after another."""
LIMIT = 256 * 1024
"""Bytes of annotations that the API server accepts for an object."""
EVIL = fleet.node_name(0)
BESIDE = "stub API server"


def hostile_rows(run: Run) -> Iterator[Row]:
    """Yields rows for one node that registers or writes too much, and for tenants with hopeless or very many pods."""
    names = [fleet.node_name(number) for number in range(NODES)]
    body = fleet.filter_args(names)
    run.say(f"hostile: stub API server with {NODES:,} nodes")
    with (
        stub_api(run, NODES, PODS_PER_NODE) as (kubeconfig, port, _),
        Replica.started(run, kubeconfig) as replica,
    ):
        replica.first_placement(names)
        quiet = Filters.measured(replica, body)
        yield from refusals(replica, body, quiet)
        yield flood(replica, body, quiet)
        yield from hostile_node(replica, port, body)
        yield resizes(run, replica, port, body)  # they wait to the end
        yield widest_node(
            replica, port
        )  # last: the filters before it would choose this node, of many devices


@dataclass(frozen=True, slots=True)
class Filters:
    """A series of filters. *p95*: milliseconds."""

    latency: Latency
    p95: float

    @classmethod
    def of(cls, microseconds: Sequence[float]) -> Filters:
        return cls(
            Latency.of(microseconds), sorted(microseconds)[int(0.95 * len(microseconds))] / 1000
        )

    @classmethod
    def measured(cls, replica: Replica, body: str, **job: Any) -> Filters:
        return cls.of(cls.micros(replica, body, **job))

    @staticmethod
    def micros(replica: Replica, body: str, *, expect: str = PLACED, **job: Any) -> list[float]:
        """Measures one client, like kube-scheduler."""
        job = {"requests": REQUESTS, "memory": fleet.MEMORY} | job
        latencies: list[float] = replica.load("/filter", expect, body=body, **job)["latencies"]
        return latencies

    def figures(self) -> dict[str, float]:
        return {"p50_ms": self.latency.p50, "p95_ms": self.p95, "p99_ms": self.latency.p99}


def hostile_node(replica: Replica, port: int, body: str) -> Iterator[Row]:
    """One node registers as much as it can, or writes it without end; the same filters with and without, in turns."""
    texts, alone = map(evil_text, itertools.count(1)), fleet.filter_args([EVIL])

    def written(text: str, *, has_devices: bool) -> None:
        register(port, text)
        eventually(
            lambda: (b"unregistered" not in replica.post("/filter", alone)) is has_devices,
            f"{EVIL} has devices: {has_devices}",
        )

    for attack, writing, limit in (
        ("registered 16,000 devices in 260 KB", False, 1.1),
        ("written that five times a second", True, 1.2),
    ):
        before, quiet, beside = memory(replica.pid).rss, list[float](), list[float]()
        for _ in range(TURNS):
            written(register_text(fleet.cards(0)), has_devices=True)
            quiet += Filters.micros(replica, body, requests=REQUESTS // TURNS)
            written(next(texts), has_devices=False)
            with (
                repeated(lambda: register(port, next(texts)), 1 / PATCHES)
                if writing
                else contextlib.nullcontext()
            ):
                beside += Filters.micros(replica, body, requests=REQUESTS // TURNS)
        grown = memory(replica.pid).rss - before
        yield filters_row(
            f"one node that has {attack}", Filters.of(beside), Filters.of(quiet), limit
        )
        yield Row(
            group="hostile",
            what=f"memory, one node that has {attack}",
            measured=f"{grown:+.0f} MiB",
            target="≤ 5 MiB",
            met=grown <= 5,
            compared=remarks(f"{before:.0f} MiB before", BESIDE),
            figures={"before_mib": before, "grown_mib": grown},
        )


def refusals(replica: Replica, body: str, quiet: Filters) -> Iterator[Row]:
    """Each pod asks for another amount, which no device has."""
    hopeless = body.replace(fleet.MEMORY, f"9{fleet.MEMORY}")
    with other_clients(replica, "/filter", REFUSED, body=hopeless, memory=fleet.MEMORY, vary=True):
        others = Filters.measured(replica, body)
    refused = Filters.measured(replica, hopeless, expect=REFUSED, requests=60, vary=True)
    yield Row(
        group="hostile",
        what="/filter p50 / p99, refused, a new request each time",
        measured=str(refused.latency),
        target="p50 ≤ 40 ms",
        met=refused.latency.p50 <= 40,
        compared=remarks(ratio(refused.latency.p50, quiet.latency.p50, "one that fits"), BESIDE),
        figures=refused.figures(),
    )
    yield filters_row("such refusals without end from another client", others, quiet, None)


def flood(replica: Replica, body: str, quiet: Filters) -> Row:
    """Anybody may send reviews."""
    padded = json.loads(fleet.review())
    padded["request"]["object"]["metadata"]["annotations"] |= {"example.com/padding": "x" * REVIEW}
    with other_clients(replica, "/webhook", '"patch"', body=json.dumps(padded), clients=CLIENTS):
        others = Filters.measured(replica, body)
    return Row(
        group="hostile",
        what=f"/filter p50 / p95 beside reviews of {REVIEW // 1000} KB from {CLIENTS} clients",
        measured=f"{others.latency.p50:.2f} / {others.p95:.2f} ms",
        target="p95 ≤ 15 ms",
        met=others.p95 <= 15,
        compared=remarks(ratio(others.p95, quiet.p95, "without"), BESIDE),
        figures=others.figures(),
    )


def resizes(run: Run, replica: Replica, port: int, body: str) -> Row:
    """Tenants ask for all memory of GPUs that others share, which is tried again whenever something changes."""
    quiet, on_card = Filters.measured(replica, body), defaultdict[str, list[Any]](list)
    for pod in fleet.bound_pods(NODES, PODS_PER_NODE):
        on_card[pod["metadata"]["annotations"][GPU_ALLOCATED].partition(",")[0]].append(pod)
    crowded = list(
        itertools.islice((pods[0] for pods in on_card.values() if len(pods) > 1), RESIZES)
    )
    text = render_resize({"main": Size(memory_percent=100)})
    keys = [
        f"namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        for pod in crowded
    ]
    for pod, key in zip(crowded, keys, strict=True):
        annotate(port, f"nodes/{pod['spec']['nodeName']}", {NODE_RESIZES: "true"})
        annotate(port, key, {RESIZE: text})
    eventually(
        lambda: all(
            ResizeState.DEFERRED in annotations_of(port, key).get(RESIZE_STATUS, "") for key in keys
        ),
        "all resizes wait for room",
        timeout=120,
    )
    run.say(f"hostile: {len(keys)} resizes wait")
    beside = Filters.measured(replica, body)
    return filters_row(f"{len(keys)} resizes that wait for room", beside, quiet, 1.1)


def widest_node(replica: Replica, port: int) -> Row:
    """The links of all devices of the node are compared."""
    cards = registered(EVIL, gpus(CARDS))
    register(port, register_text(cards))
    arguments = json.loads(fleet.filter_args([EVIL]))
    arguments["Pod"]["metadata"]["annotations"] = {"hami.io/gpu-scheduler-policy": "topology-aware"}
    for amounts in arguments["Pod"]["spec"]["containers"][0]["resources"].values():
        amounts["nvidia.com/gpu"] = "8"
    body = json.dumps(arguments, separators=(",", ":"))
    eventually(
        lambda: PLACED.encode() in replica.post("/filter", body),
        "the widest node serves eight devices",
    )
    latency = Filters.measured(replica, body, requests=60, vary=True).latency
    return Row(
        group="hostile",
        what=f"/filter p50 / p99, topology-aware, 8 of {CARDS} devices of one node",
        measured=str(latency),
        target="p50 ≤ 10 ms",
        met=latency.p50 <= 10,
        compared=BESIDE,
        figures={"p50_ms": latency.p50, "p99_ms": latency.p99},
    )


def filters_row(beside_what: str, measured: Filters, quiet: Filters, limit: float | None) -> Row:
    share = measured.latency.p50 / quiet.latency.p50
    return Row(
        group="hostile",
        what=f"/filter p50 / p99 beside {beside_what}",
        measured=str(measured.latency),
        target=f"p50 ≤ {limit:g} × without" if limit else "",
        met=share <= limit if limit else None,
        compared=remarks(
            ratio(measured.latency.p50, quiet.latency.p50, f"without ({quiet.latency})"), BESIDE
        ),
        figures=measured.figures() | {"share": share},
    )


@contextlib.contextmanager
def repeated(act: Callable[[], object], pause_s: float = 0.0) -> Iterator[None]:
    """Does *act* again and again meanwhile, *pause_s* seconds apart."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(pause_s):
            act()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def other_clients(
    replica: Replica, path: str, expect: str, **job: Any
) -> contextlib.AbstractContextManager[None]:
    """Lets other clients send requests meanwhile."""
    return repeated(lambda: replica.load(path, expect, seconds=2.0, warm_up=0, **job))


def evil_text(number: int) -> str:
    """Returns a registration as large as the API server lets it be, and different for each *number*."""
    return json.dumps(
        [{"id": f"{number}-{index:05}"[-8:]} for index in range(LIMIT // 18)], separators=(",", ":")
    )


def register(port: int, text: str) -> None:
    """Writes the registration of the hostile node."""
    annotate(port, f"nodes/{EVIL}", {REGISTER: text})


def annotate(port: int, path: str, values: Mapping[str, str]) -> None:
    """Writes annotations of an object of the stub API server."""
    ask(port, "PATCH", path, json.dumps({"metadata": {"annotations": dict(values)}}))


def annotations_of(port: int, path: str) -> Mapping[str, str]:
    """Returns the annotations of an object of the stub API server."""
    found: Mapping[str, str] = json.loads(ask(port, "GET", path))["metadata"]["annotations"]
    return found


def ask(port: int, method: str, path: str, body: str | None = None) -> bytes:
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    ) as connection:
        connection.request(
            method, f"/api/v1/{path}", body, {"Content-Type": "application/merge-patch+json"}
        )
        assert (answer := connection.getresponse().read())
        return answer
