"""Rows about ``/webhook`` over TLS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks import fleet
from benchmarks.processes import Cpu, Run, disturbed
from benchmarks.replica import Replica, stub_api
from benchmarks.rows import Latency, Row, ratio, remarks
from e2e.scheduler import Certificates

__all__ = ["webhook_rows"]

NODES = 100
SECONDS = 5.0
RATE = 1800.0
P99_MS = 20.0


def webhook_rows(run: Run) -> Iterator[Row]:
    """Yields requests per second from one client and from sixteen with keep-alive, and the cost of TLS."""
    run.say("webhook: ECDSA certificate, connections kept alive")
    certificates = Certificates(run.folder / "webhook-tls")
    with stub_api(run, NODES) as (kubeconfig, _, _):
        plain = {}
        with Replica.started(run, kubeconfig) as replica:
            replica.wait_healthy()
            for clients in (1, 16):
                plain[clients] = load(replica, clients)["rate"]
        with Replica.started(run, kubeconfig, certificates) as replica:
            replica.wait_healthy()
            for clients in (1, 16):
                idle = load(replica, clients, path="/version", body="", expect="version")
                yield row(clients, load(replica, clients), plain[clients], idle["rate"])


def load(replica: Replica, clients: int, path: str = "/webhook", body: str | None = None,
         expect: str = '"patch"') -> dict[str, Any]:
    cpu = Cpu({"hami": replica.pid})
    result = replica.load(path, expect, body=fleet.review() if body is None else body, clients=clients,
                          seconds=SECONDS, warm_up=200)
    spent, latency = cpu.spent(load=result["cpu_seconds"]), Latency.of(result["latencies"])
    return {"rate": latency.count / result["seconds"], "p50_ms": latency.p50, "p99_ms": latency.p99,
            "max_ms": latency.longest, "cpu_ms": 1000 * spent["hami"] / latency.count,
            "cpu_seconds": spent, "surprises": result["surprises"], "disturbed": disturbed(spent)}


def row(clients: int, found: dict[str, Any], plain: float, idle: float) -> Row:
    judged = clients > 1
    return Row(group="webhook", what=f"/webhook, TLS, kept alive, {clients} client{'s' if judged else ''}",
               measured=f"{found['rate']:,.0f}/s, p50 / p99 {found['p50_ms']:.2f} / {found['p99_ms']:.2f} ms; "
                        f"{found['cpu_ms']:.2f} ms CPU each",
               target=f"≥ {RATE:,.0f}/s, p99 < {P99_MS:g} ms" if judged else "",
               met=found["rate"] >= RATE and found["p99_ms"] < P99_MS if judged else None,
               compared=remarks(ratio(found["rate"], plain, f"plain HTTP ({plain:,.0f}/s)"),
                                ratio(found["rate"], idle, f"a GET that does nothing, over TLS ({idle:,.0f}/s)"),
                                "upstream, measured elsewhere: 16,000/s plain", found["disturbed"]),
               figures=found | {"plain_rate": plain, "idle_rate": idle})
