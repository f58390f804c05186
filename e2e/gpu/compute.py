"""Slot b: is the share of the GPU right, and what does it cost."""

from __future__ import annotations

import contextlib
import struct
import time
from typing import Any

from e2e.gpu import programs
from e2e.gpu.card import Card, Skipped, Way, rate

__all__ = ["accuracy", "autotune", "brackets", "costs", "events", "lazy", "samples", "tenants"]

Result = dict[str, Any]
_CHARGED = 256 + 16


def costs(card: Card) -> Result:
    """Nanoseconds of calls, the least of rounds that alternate. A driver queues a thousand launches."""
    rows = []
    for what in ("launch", "info", "alloc"):
        ways = card.ways()
        clients, open_ = [], []
        for way in ways:
            context = card.container(way, cores=100)
            container = context.__enter__()
            open_.append(context)
            clients.append(container.client(FAKE_CUDA_FAST="1").start())
        rounds = [
            [float(client.do(f"measure {what} 500 0")) for client in clients] for _ in range(20)
        ]
        rows.append([what, *(min(column) for column in zip(*rounds, strict=True))])
        for context in open_:
            context.__exit__(None, None, None)
    return {
        "rows": rows,
        "columns": ["call", *map(str, card.ways())],
        "good": all(
            row[3] - row[1] <= {"launch": 100, "info": 500, "alloc": 2000}[row[0]] for row in rows
        ),
    }


def _charged(container: Any) -> int:
    content = container.path.with_suffix(".sm").read_bytes()
    return int(struct.unpack_from("<Q", content, _CHARGED)[0])


def _bare_microseconds(card: Card, load: str) -> float:
    with card.container(Way.BARE) as container:
        client = container.client().start()
        rate(client, load, card.seconds(1))
        return 1e6 / rate(client, load, card.seconds(2))


def events(card: Card) -> Result:
    """Charged against true GPU time: of kernels of 2 us to 20 ms, launched as fast as can be."""
    rows = []
    for micro in (2, 5, 10, 50, 500, 5000, 20000):
        load = f"busy_{micro}"
        took = _bare_microseconds(card, load)
        with card.container(cores=90) as container:
            client = container.client().start()
            client.do(f"load {load} {card.seconds(1) * 1000:.0f}")
            before = _charged(container)
            count = client.do(f"load {load} {card.seconds(3) * 1000:.0f}")
            charged = (_charged(container) - before) / 1000
        rows.append([micro, took, charged / (count * took)])
        card.keep({"rows": rows})
    return {
        "rows": rows,
        "columns": ["us", "us bare", "charged / true"],
        "good": all(abs(row[2] - 1) <= 0.1 for row in rows if row[0] >= 50),
    }


def lazy(card: Card, way: Way = Way.LIMITED) -> Result:
    """Seconds to the second step: of a program that loads 200 kernels, and of a small transformer."""
    card.needs(way)
    rows = []
    for cores in (100, 90, 50, 30):
        with card.container(Way.BARE if cores == 100 else way, cores=cores) as container:
            client = container.client(FAKE_CUDA_LAZY_US="2000").start()
            rows.append(["200 kernels", cores, client.do("many busy_10 200 2")[1] / 1000])
    for loading in ("LAZY", "EAGER"):
        try:
            card.needs_module("torch")
        except Skipped as error:
            rows.append([f"transformer, {loading}", str(error)])
            continue
        for cores in (100, 90, 50, 30):
            ran = Way.BARE if cores == 100 else way
            with card.container(ran, cores=cores, memory=16 << 30) as container:
                code = (
                    f"import os; os.environ['CUDA_MODULE_LOADING'] = {loading!r}\n{programs.LAZY}"
                )
                rows.append([f"transformer, {loading}", cores, float(container.run_python(code))])
            card.keep({"rows": rows})
    bare = {row[0]: row[2] for row in rows if row[1] == 100}
    return {
        "rows": rows,
        "columns": ["program", "limit", "seconds"],
        "good": all(row[2] <= 1.2 * bare[row[0]] / row[1] * 100 for row in rows if len(row) > 2),
    }


def accuracy(card: Card, limits: tuple[int, ...] = (10, 30, 70), way: Way = Way.LIMITED) -> Result:
    """Percent of the throughput without a limit, of several loads. Kernels of 100 ms need longer than the fake card
    has."""
    card.needs(way)
    rows = []
    for load in ("busy_50", "busy_2000", "decode", *([] if card.is_fake else ["sync"])):
        with card.container(Way.BARE) as container:
            client = container.client().start()
            rate(client, load, card.seconds(1))
            full = rate(client, load, card.seconds(3))
        for limit in limits:
            with card.container(way, cores=limit) as container:
                client = container.client().start()
                rate(client, load, card.seconds(3))
                rows.append([load, limit, 100 * rate(client, load, card.seconds(6)) / full])
            card.keep({"rows": rows})
    return {
        "rows": rows,
        "columns": ["load", "limit", "percent"],
        "good": all(abs(row[2] - row[1]) <= 3 for row in rows if row[0] != "decode"),
    }


def tenants(card: Card, way: Way = Way.LIMITED, monitored: bool = False) -> Result:
    """Two containers, by what each of them gets done of what it would get done alone."""
    card.needs(way)
    rows, samples = [], []
    for load in ("busy_50", "busy_2000", "busy_20000"):
        took = _bare_microseconds(card, load)
        for shares in ((30, 70), (50, 50)):
            with (
                card.container(way, cores=shares[0]) as one,
                card.container(way, cores=shares[1]) as other,
                contextlib.ExitStack() as told,
            ):
                clients = [container.client().start() for container in (one, other)]
                for client in clients:
                    client.do("launch plain idle 1")
                if monitored:
                    samples.append(
                        told.enter_context(programs.sampled(card, [one.region, other.region]))
                    )
                for client in clients:
                    client.send(f"load {load} {card.seconds(12) * 1000:.0f}")
                if card.is_fake:
                    from testing.limiter.shares import (
                        Tenant,
                        measured_shares,
                    )  # needs what HAMi needs

                    time.sleep(card.seconds(3))
                    found = measured_shares(
                        [Tenant(one.region, one.machine), Tenant(other.region, other.machine)],
                        card.seconds(8),
                    )
                    counts = [client.answer() for client in clients]
                else:
                    counts = [client.answer() for client in clients]
                    found = [count[0] * took / 12e4 for count in counts]
            rows.append([load, f"{shares[0]}/{shares[1]}", *found])
            card.keep({"rows": rows, "samples": samples})
    return {
        "rows": rows,
        "columns": ["load", "limits", "one", "other"],
        "samples": samples,
        "good": all(
            abs(got - int(due)) <= 3
            for _, label, *both in rows
            for got, due in zip(both, label.split("/"), strict=True)
        ),
    }


def samples(card: Card) -> Result:
    """NVML's samples of two processes that share the card, each when it is new: milliseconds, and percent of each."""
    rows: list[list[Any]] = []
    nvml = programs.Nvml(card)
    with card.container(cores=50) as one, card.container(cores=50) as other:
        clients = [container.client().start() for container in (one, other)]
        for client in clients:
            client.send(f"load busy_2000 {card.seconds(6) * 1000:.0f}")
        begun, last = time.time(), 0
        while time.time() - begun < card.seconds(5):
            time.sleep(0.02)
            percent, when = nvml.percent(int((time.time() - 0.3) * 1e6))
            if percent and when != last:
                rows.append(
                    [
                        round((when / 1e6 - begun) * 1000),
                        *(percent.get(client.process.pid, 0) for client in clients),
                    ]
                )
                last = when
        for client in clients:
            client.answer()
    return {"rows": rows, "columns": ["ms", "one", "other"]}


def brackets(card: Card) -> Result:
    """Microseconds between two events around kernels: what the events themselves add."""
    rows = []
    with card.container(Way.BARE) as container:
        client = container.client().start()
        client.do("module")
        for micro in (2, 5, 10, 50, 500):
            rows.append(
                [micro, *(client.do(f"bracket busy_{micro} {kernels}") for kernels in (0, 1, 16))]
            )
    return {"rows": rows, "columns": ["us", "no kernel", "one", "16"]}


def autotune(card: Card) -> Result:
    """Shortest and longest microseconds that a program measures for the same kernel, with and without a limit."""
    rows = []
    for way in card.ways():
        with card.container(way, cores=30) as container:
            client = container.client().start()
            rows.append([str(way), *client.do("autotune busy_2000 50")])
    return {
        "rows": rows,
        "columns": ["way", "least", "most"],
        "good": all(row[2] <= 1.2 * rows[0][2] + 200 for row in rows if row[0] == Way.LIMITED),
    }
