"""Rows about ``/webhook`` over TLS, about creating pods: with it, with policies in its place, and without HAMi; and
about what the policies that only refuse cost the API server."""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import truediv
from typing import Any

from benchmarks import fleet
from benchmarks.processes import Cpu, Run, disturbed
from benchmarks.replica import Replica, stub_api
from benchmarks.rows import Latency, Row, ratio, remarks
from hami.codec.documents import parse_own_yaml
from testing.cluster import MANIFESTS, LocalCluster
from testing.eventually import eventually
from testing.kube import ApiError, Kube, path_of
from testing.nodes import fake_node, gpus
from testing.pods import pod
from testing.scheduler import Certificates, Scheduler, install, webhook_configuration
from testing.yaml_text import read_documents

__all__ = ["NOTHING", "POLICIES", "WEBHOOK", "creation_rows", "switch_to", "webhook_rows"]

Object = dict[str, Any]
NODES = 100
SECONDS = 5.0
SLICE_S = 4.0
WRITE_SLICE_S = 0.5
WRITE_SLICES = 15
CREATORS = 4
MODES = NOTHING, WEBHOOK, POLICIES = "no HAMi", "webhook", "policies"
REFUSALS = "policies that refuse"
JUDGED = "judged"
"""Namespace in which they hold."""
DRY_RUN = {"dryRun": "All"}
COMPONENT = MANIFESTS.parent / "components" / "admission-policies"
MOST = 2.0
"""How much longer the creation of a pod may take with policies than without HAMi."""
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


def load(
    replica: Replica,
    clients: int,
    path: str = "/webhook",
    body: str | None = None,
    expect: str = '"patch"',
) -> dict[str, Any]:
    cpu = Cpu({"hami": replica.pid})
    result = replica.load(
        path,
        expect,
        body=fleet.review() if body is None else body,
        clients=clients,
        seconds=SECONDS,
        warm_up=200,
    )
    spent, latency = cpu.spent(load=result["cpu_seconds"]), Latency.of(result["latencies"])
    return {
        "rate": latency.count / result["seconds"],
        "p50_ms": latency.p50,
        "p99_ms": latency.p99,
        "max_ms": latency.longest,
        "cpu_ms": 1000 * spent["hami"] / latency.count,
        "cpu_seconds": spent,
        "surprises": result["surprises"],
        "disturbed": disturbed(spent),
    }


def row(clients: int, found: dict[str, Any], plain: float, idle: float) -> Row:
    judged = clients > 1
    return Row(
        group="webhook",
        what=f"/webhook, TLS, kept alive, {clients} client{'s' if judged else ''}",
        measured=f"{found['rate']:,.0f}/s, p50 / p99 {found['p50_ms']:.2f} / {found['p99_ms']:.2f} ms; "
        f"{found['cpu_ms']:.2f} ms CPU each",
        target=f"≥ {RATE:,.0f}/s, p99 < {P99_MS:g} ms" if judged else "",
        met=found["rate"] >= RATE and found["p99_ms"] < P99_MS if judged else None,
        compared=remarks(
            ratio(found["rate"], plain, f"plain HTTP ({plain:,.0f}/s)"),
            ratio(found["rate"], idle, f"a GET that does nothing, over TLS ({idle:,.0f}/s)"),
            "upstream, measured elsewhere: 16,000/s plain",
            found["disturbed"],
        ),
        figures=found | {"plain_rate": plain, "idle_rate": idle},
    )


def creation_rows(run: Run, rounds: int) -> Iterator[Row]:
    """Yields how long the creation of a pod takes from four clients, and its CPU time, in each of MODES in turn; then
    the CPU time of the API server for writes of a pod, with and without the policies that refuse."""
    with LocalCluster.started(say=run.say) as cluster:
        certificates = Certificates(cluster.folder / "tls")
        extender = install(cluster, certificates)
        scheduler = Scheduler(cluster, certificates, extender)
        try:
            scheduler.start()
            yield from _compared(run, cluster, scheduler, rounds)
            yield from _refused(run, cluster, scheduler, Kube(extender), rounds)
        finally:
            scheduler.close()


def _compared(run: Run, cluster: LocalCluster, scheduler: Scheduler, rounds: int) -> Iterator[Row]:
    found = defaultdict[str, list[Object]](list)
    pids = {
        "kube-apiserver": cluster.components["kube-apiserver"].pid or 0,
        "hami": scheduler.program.pid or 0,
        "clients": os.getpid(),
    }
    for _ in range(rounds):
        for mode in MODES:
            run.say(f"admission: {mode}")
            switch_to(mode, cluster.kube, scheduler)
            create(cluster.kube, 0.5)
            cpu = Cpu(pids)
            latencies = create(cluster.kube, SLICE_S)
            spent, latency = cpu.spent(), Latency.of(latencies)
            found[mode].append(
                {name: 1000 * spent[name] / latency.count for name in pids}
                | {
                    "p50_ms": latency.p50,
                    "p99_ms": latency.p99,
                    "count": latency.count,
                    "cpu_seconds": spent,
                }
            )
    middle = {
        mode: {name: statistics.median(part[name] for part in parts) for name in ("p50_ms", *pids)}
        for mode, parts in found.items()
    }
    for mode in MODES:
        factor = middle[mode]["p50_ms"] / middle[NOTHING]["p50_ms"]
        yield Row(
            group="admission",
            what=f"creation of a pod, {CREATORS} clients, {mode}",
            measured=f"p50 {middle[mode]['p50_ms']:.1f} ms; CPU of the API server "
            f"{middle[mode]['kube-apiserver']:.2f} ms, of hami {middle[mode]['hami']:.2f} ms",
            target=f"≤ {MOST:g} × no HAMi" if mode == POLICIES else "",
            met=factor <= MOST if mode == POLICIES else None,
            compared=remarks(
                ratio(middle[mode]["p50_ms"], middle[NOTHING]["p50_ms"], NOTHING),
                *(disturbed(part["cpu_seconds"]) for part in found[mode]),
            ),
            figures=middle[mode] | {"slices": found[mode]},
        )


def _refused(
    run: Run, cluster: LocalCluster, scheduler: Scheduler, extender: Kube, rounds: int
) -> Iterator[Row]:
    run.say(f"admission: writes of a pod, {REFUSALS}")
    switch_to(NOTHING, cluster.kube, scheduler)
    judge(cluster.kube)
    cluster.kube.create(fake_node("n0", gpus(1)))
    writes = {
        namespace: _writes(cluster.kube, extender, namespace) for namespace in (JUDGED, "default")
    }
    server = {
        "kube-apiserver": cluster.components["kube-apiserver"].pid or 0,
        "clients": os.getpid(),
    }
    found = defaultdict[tuple[str, str], list[float]](list)
    whole = Cpu(server)
    for turn in range(WRITE_SLICES * rounds + 1):
        for name in writes[JUDGED]:
            for namespace in sorted(writes, reverse=turn % 2 == 0):
                cpu = Cpu(server)
                count = len(repeat(writes[namespace][name], WRITE_SLICE_S))
                if turn > 0:  # the first ones warm up
                    found[namespace, name].append(1000 * cpu.spent()["kube-apiserver"] / count)
    noise = disturbed(whole.spent())
    for name in writes[JUDGED]:
        judged, free = found[JUDGED, name], found["default", name]
        factor = statistics.median(map(truediv, judged, free))
        yield Row(
            group="admission",
            what=f"CPU of the API server, {name} of a pod with a GPU, {REFUSALS}",
            measured=f"{factor:.2f} × without them; {statistics.median(judged):.2f} and "
            f"{statistics.median(free):.2f} ms",
            compared=remarks(
                "median of pairs of slices, one in a namespace without the policies", noise
            ),
            figures={"factor": factor, "judged_ms": judged, "free_ms": free},
        )


def judge(kube: Kube) -> None:
    """Makes the policies that refuse hold in the namespace JUDGED only, and waits until they do."""
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": JUDGED}})
    for item in read_documents((MANIFESTS / "policies.yaml").read_text()):
        if item["kind"] == "ValidatingAdmissionPolicyBinding":
            item["spec"]["matchResources"] = {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": JUDGED}}
            }
        kube.apply(item)
    eventually(lambda: created(kube, _other("probe"), JUDGED), "pods can be created", timeout=60)
    eventually(
        lambda: not created(kube, pod("probe", gpu=1, node_name="nowhere"), JUDGED),
        "the policies hold",
        timeout=60,
    )


def _writes(kube: Kube, extender: Kube, namespace: str) -> dict[str, Callable[[int], object]]:
    """Returns what is written of each pod, as dry runs: by who creates it, the extender, and who runs it."""
    allocated = "GPU-1,NVIDIA,3000,0:;"
    keys = {
        "hami.io/vgpu-node": "n0",
        "hami.io/vgpu-time": "1",
        "hami.io/bind-time": "1",
        "hami.io/bind-phase": "allocating",
        "hami.io/vgpu-devices-allocated": allocated,
        "hami.io/vgpu-devices-to-allocate": allocated,
    }

    def bind(name: str, query: dict[str, str]) -> Object:
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "annotations": keys},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "n0"},
        }
        return extender.call("POST", path_of("Pod", namespace, name, "binding"), body, query=query)

    for name in ("waiting", "placed"):
        kube.create(_other(name), namespace)
    bind("placed", {})
    running = {"status": {"phase": "Running", "message": "a new one"}}
    return {
        "creation": lambda number: kube.call(
            "POST", path_of("Pod", namespace), _other(f"p{number}"), query=DRY_RUN
        ),
        "Binding": lambda number: bind("waiting", DRY_RUN),
        "status": lambda number: kube.call(
            "PATCH",
            path_of("Pod", namespace, "placed", "status"),
            running,
            query=DRY_RUN,
            content_type="application/strategic-merge-patch+json",
        ),
    }


def _other(name: str) -> Object:
    """Returns a pod that no scheduler takes."""
    return pod(name, scheduler="none", gpu=1, gpumem=3000)


def switch_to(mode: str, kube: Kube, scheduler: Scheduler) -> None:
    """Makes the API server admit pods in *mode*, one of MODES, and waits until it does."""
    policies = read_documents((MANIFESTS / "policies.yaml").read_text())
    own = read_documents((COMPONENT / "policies.yaml").read_text())
    webhooks = webhook_configuration(scheduler.certificates, scheduler.port)
    if mode == POLICIES:
        patch = parse_own_yaml((COMPONENT / "webhook.yaml").read_text())[-1]
        webhooks["webhooks"][1]["matchConditions"] = patch["value"]
    for item in (*policies, webhooks, *own):
        if mode == NOTHING or (item in own and mode == WEBHOOK):
            try:
                kube.delete(item["kind"], item["metadata"]["name"])
            except ApiError as error:
                if error.status != 404:
                    raise
        else:
            kube.apply(item)
    # by a policy
    refused = [] if mode == NOTHING else [pod("probe", gpu=1, node_name="nowhere", scheduler="foo")]
    wanted = "default-scheduler" if mode == NOTHING else "hami-scheduler"
    eventually(
        lambda: (
            created(kube, pod("probe", gpu=1)) == wanted
            and not any(created(kube, item) for item in refused)
        ),
        f"the API server admits pods by {mode}",
        timeout=60,
    )
    time.sleep(1)  # until the mode before has no effect any more


def created(kube: Kube, item: Object, namespace: str = "default") -> str:
    """Returns the scheduler of a pod that is not kept; empty if it is refused."""
    try:
        return str(
            kube.call("POST", path_of("Pod", namespace), item, query=DRY_RUN)["spec"][
                "schedulerName"
            ]
        )
    except ApiError:
        return ""


def create(kube: Kube, seconds: float) -> list[float]:
    """Creates pods that are not kept, from all clients at once. Returns microseconds."""

    def write(number: int) -> None:
        if not created(kube, pod(f"p{number}", gpu=1, gpumem=3000)):
            raise RuntimeError("a pod was refused")

    return repeat(write, seconds)


def repeat(write: Callable[[int], object], seconds: float) -> list[float]:
    """Calls *write* with the number of a client, from all clients at once, again and again. Returns microseconds."""
    until = time.monotonic() + seconds

    def client(number: int) -> list[float]:
        latencies = []
        while time.monotonic() < until:
            begun = time.perf_counter()
            write(number)
            latencies.append((time.perf_counter() - begun) * 1e6)
        return latencies

    with ThreadPoolExecutor(CREATORS) as threads:
        return [latency for part in threads.map(client, range(CREATORS)) for latency in part]
