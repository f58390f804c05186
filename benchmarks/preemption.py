"""Rows about preemption: how long a pod waits for what others leave, and what a plan costs."""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks import fleet
from benchmarks.hostile import Filters, other_clients, repeated
from benchmarks.processes import Run
from benchmarks.replica import REFUSED, Replica, stub_api
from benchmarks.rows import Row, ratio, remarks
from hami.state.store import Store
from hami.state.victims import PreemptionRules, plan_preemption
from hami.state.view import Policies, View
from testing import builders
from testing.cluster import LocalCluster
from testing.eventually import eventually
from testing.nodes import LOCK_FREE, gpus
from testing.pods import pod
from testing.priorities import add_priorities, of_priority
from testing.replicas import Clock, holding
from testing.sandbox import Sandbox
from testing.scheduler import Certificates, Scheduler, install, wait_for_webhook

__all__ = ["preemption_rows"]

Object = dict[str, Any]
NODES, CARDS, CARD = 4, 2, 80_000
PREEMPTORS = 6
LATE_S = 3.0
"""Seconds that the containers of a victim take to end."""
KEPT = "benchmarks/kept"
LOW, HIGH = 100, 1000
PLAN_S = 1.0
"""Seconds between two pods that need a plan."""
BESIDE = 4000
"""Filters beside plans."""
FLEET = 1000
"""Nodes of eight cards, each held by a pod of lower priority."""


def preemption_rows(run: Run) -> Iterator[Row]:
    """Yields rows for pods of high priority, one after the other, and for plans in a large cluster."""
    yield from plan_rows(run)
    yield from beside_rows(run)
    run.say(f"preemption: {NODES} nodes")
    with LocalCluster.started(durable=False) as cluster:
        certificates = Certificates(cluster.folder / "tls")
        scheduler = Scheduler(cluster, certificates, install(cluster, certificates)).start()
        wait_for_webhook(cluster.kube)
        add_priorities(cluster.kube)
        for late_s, target in ((0.0, 0.3), (LATE_S, LATE_S + 0.5)):
            with Sandbox.opened(cluster.kube) as sandbox:
                yield waiting_row(sandbox, late_s, target)
        scheduler.close()


def waiting_row(sandbox: Sandbox, late_s: float, target: float) -> Row:
    """Each preemptor needs a card that two pods hold."""
    sandbox.add_gpu_nodes(
        {f"n{number}": gpus(CARDS, memory_mib=CARD) for number in range(NODES)},
        annotations=LOCK_FREE,
    )
    sandbox.create_all(
        of("low", f"low-{number}", CARD // 2, kept=late_s > 0)
        for number in range(2 * NODES * CARDS)
    )
    sandbox.bound(timeout=60)
    waits = []
    for number in range(PREEMPTORS):
        begun = time.monotonic()
        sandbox.create(of("high", f"high-{number}", CARD))
        if late_s:
            victims = eventually(lambda: ending(sandbox, 2), "two victims end", interval=0.01)
            time.sleep(max(0.0, begun + late_s - time.monotonic()))
            for name in victims:
                sandbox.kube.merge_patch(
                    "Pod", name, {"metadata": {"finalizers": None}}, sandbox.namespace
                )
        sandbox.kube.wait(
            "Pod", lambda pods: pods[f"high-{number}"]["spec"].get("nodeName"), sandbox.namespace
        )
        waits.append(time.monotonic() - begun)
    evicted = 2 * NODES * CARDS - sum(
        item["metadata"]["name"].startswith("low")
        for item in sandbox.kube.list("Pod", sandbox.namespace)
    )
    for item in sandbox.kube.list("Pod", sandbox.namespace) if late_s else ():
        sandbox.kube.merge_patch(
            "Pod", item["metadata"]["name"], {"metadata": {"finalizers": None}}, sandbox.namespace
        )
    what = f"victims end after {late_s:g} s" if late_s else "victims end at once"
    return Row(
        group="preemption",
        what=f"preemptor created to bound, {NODES} nodes, {what}, longest of {PREEMPTORS}",
        measured=f"{max(waits):.2f} s (median {statistics.median(waits):.2f} s); {evicted} pods evicted",
        target=f"≤ {target:g} s; {2 * PREEMPTORS} evicted",
        met=max(waits) <= target and evicted == 2 * PREEMPTORS,
        figures={"seconds": waits, "evicted": evicted},
    )


def of(priority: str, name: str, memory: int, *, kept: bool = False) -> Object:
    made = of_priority(priority, pod(name, gpu=1, gpumem=memory))
    if kept:
        made["metadata"]["finalizers"] = [KEPT]
    return made


def ending(sandbox: Sandbox, count: int) -> list[str]:
    """Returns the pods that are being deleted if they are *count*."""
    names = [
        item["metadata"]["name"]
        for item in sandbox.kube.list("Pod", sandbox.namespace)
        if item["metadata"].get("deletionTimestamp")
    ]
    return names if len(names) == count else []


def plan_rows(run: Run) -> Iterator[Row]:
    run.say(f"preemption: plans among {FLEET:,} nodes")
    view, clock = crowded()
    names, rules = list(view.nodes), PreemptionRules(now=clock.now().timestamp())
    for what, count in (("one card", 1), ("two cards of a node", 2), ("a whole node", 8)):
        item = builders.pod(builders.gpus(count, memory=CARD, cores=0), name="high", priority=HIGH)
        times = []
        with no_gc():
            for _ in range(5):
                begun = time.perf_counter()
                plan = plan_preemption(view, item, names, rules)
                times.append(1000 * (time.perf_counter() - begun))
        assert plan is not None, plan
        assert len(plan.uids) == count, plan
        yield Row(
            group="preemption",
            what=f"plan for {what}, {FLEET:,} × 8, {FLEET * 8:,} pods of lower priority",
            measured=f"{statistics.median(times):.0f} ms",
            target="≤ 150 ms",
            met=statistics.median(times) <= 150,
            compared="in-process; other filters go on meanwhile",
            figures={"milliseconds": times},
        )


def beside_rows(run: Run) -> Iterator[Row]:
    """Another client asks for whole nodes for pods of higher priority: each needs a plan, if there is time."""
    names = [fleet.node_name(number) for number in range(FLEET)]
    body = fleet.filter_args(names)
    asked = json.loads(body)
    for amounts in asked["Pod"]["spec"]["containers"][0]["resources"].values():
        amounts |= {"nvidia.com/gpu": "8", "nvidia.com/gpucores": "100"}
    hopeless = json.dumps(asked)
    asked["Pod"]["spec"]["priority"] = HIGH
    urgent = json.dumps(asked)
    run.say(f"preemption: stub API server with {FLEET:,} nodes")
    with stub_api(run, FLEET) as (kubeconfig, _, _), Replica.started(run, kubeconfig) as replica:
        replica.first_placement(names)
        quiet = Filters.measured(replica, body, requests=BESIDE)
        before = planned(replica)
        with repeated(lambda: replica.post("/filter", urgent), PLAN_S):
            others = Filters.measured(replica, body, requests=BESIDE)
        plans = planned(replica) - before
        yield Row(
            group="preemption",
            what=f"/filter p50 / p99 beside a plan each second, {FLEET:,} × 8",
            measured=f"{others.latency}; {plans} plans",
            target="p99 ≤ 5 ms",
            met=others.latency.p99 <= 5 and plans > 1,
            figures=others.figures() | {"plans": plans},
            compared=remarks(
                ratio(others.latency.p99, quiet.latency.p99, f"without ({quiet.latency})"),
                "stub API server",
            ),
        )

        def beside(refused: str) -> Filters:
            with other_clients(
                replica, "/filter", REFUSED, body=refused, memory=fleet.MEMORY, vary=True
            ):
                return Filters.measured(replica, body)

        plain, others = beside(hopeless), beside(urgent)
        yield Row(
            group="preemption",
            what=f"/filter p50 / p99 beside refusals of urgent pods without end, {FLEET:,} × 8",
            measured=str(others.latency),
            figures=others.figures(),
            compared=remarks(
                ratio(
                    others.latency.p99,
                    plain.latency.p99,
                    f"beside those of other pods ({plain.latency})",
                ),
                "stub API server",
            ),
        )


def planned(replica: Replica) -> int:
    """Returns how many plans the replica has made that evict somebody."""
    return replica.program.log.read_text().count("preemption planned")


def crowded() -> tuple[View, Clock]:
    """Returns a cluster in which each card is held by a pod of one of seven priorities."""
    clock = Clock()
    store = Store(builders.ONLY_NVIDIA, Policies(), clock=clock, now=clock.now)
    for number in range(FLEET):
        store.nodes.upsert(
            builders.node(
                f"n{number}",
                *(
                    builders.gpu(f"GPU-{number}-{card}", index=card, memory_mib=CARD)
                    for card in range(8)
                ),
            )
        )
        for card in range(8):
            store.pods.upsert(
                holding(
                    f"low-{number}-{card}",
                    f"n{number}",
                    f"GPU-{number}-{card},NVIDIA,{CARD},0:;",
                    resource_version="5",
                    priority=LOW + (number * 8 + card) % 7,
                    started="2026-08-21T11:00:00Z",
                )
            )
    return store.view(), clock


@contextmanager
def no_gc() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
