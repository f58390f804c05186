"""Rows about pods with claims (Dynamic Resource Allocation), which kube-scheduler allocates without an extender, or
HAMi's scheduler.

On fake nodes: pods with a claim of each kind and pods without devices, in turns. On a real node: pods with a claim and
pods of the device plugin, in turns; each asks for another amount of memory, and prints its limit.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from benchmarks import fleet, realnode
from benchmarks.placing import (
    CLIENT_LIFTED,
    NAMESPACE,
    Asks,
    Case,
    Outcome,
    Stage,
    disturbance,
    each,
    figures,
    mean,
    trouble,
)
from benchmarks.processes import Run
from benchmarks.rows import Latency, Row, ratio, remarks
from hami.codec.slices import render_slices
from hami.model import Device
from testing import claims
from testing.cluster import LocalCluster
from testing.device_plugin import HOOK, DevicePlugin, cards
from testing.eventually import eventually
from testing.realnode import RealNode
from testing.sandbox import Sandbox
from testing.scheduler import Scheduler
from testing.shown import seen, shower

__all__ = ["dra_rows"]

Object = dict[str, Any]
GROUP = "dra"
ALLOCATION_MODES = ("device-plugin", "dra")
NO_DEVICES = Case(
    "without devices", 200, 300, extender=False, asks=Asks.NOTHING, client=CLIENT_LIFTED
)
CLAIMS = replace(NO_DEVICES, name="with a claim", asks=Asks.CLAIM)
OWN_CLAIMS = replace(
    NO_DEVICES, name="with a claim of its own", asks=Asks.OWN_CLAIM, extender=True, lock_free=True
)
TEMPLATES = replace(OWN_CLAIMS, name="with a claim of its own for a template", asks=Asks.CLAIM)
LARGE = 1000
LARGE_PODS = 100
BESIDE_KUBE_SCHEDULER = {CLAIMS.nodes: 2, LARGE: 5}
"""How many times as fast as kube-scheduler HAMi's own must be, by the number of nodes."""
WRITERS = 8  # of slices
IN_TURN = 20
REST_SECONDS = 20
LEAST_MIB = 1000
"""Memory of the pod that asks for least."""
NAMES = [f"p{number}" for number in range(realnode.PODS)]
SLICE_WRITES = re.compile(
    r'^apiserver_request_total\{.*resource="resourceslices".*'
    r'verb="(?:POST|PUT|PATCH|APPLY|DELETE)".*\} (\S+)$',
    re.MULTILINE,
)


def dra_rows(run: Run, rounds: int) -> Iterator[Row]:
    """Yields what claims cost the control plane, and how long they take on a real node."""
    if reason := claims.missing():
        yield Row(group=GROUP, what="pods with claims", measured=f"not measured: {reason}")
        return
    with LocalCluster.started(say=run.say) as cluster:
        cluster.components["kube-scheduler"].kill()
        stage = ClaimStage(run, cluster)
        for item in claims.component():
            cluster.kube.apply(item)
        for name in ("rbac", "policies"):
            cluster.kube.apply_yaml((claims.ALLOCATE / f"{name}.yaml").read_text())
        cluster.kube.create(
            claims.template(Asks.CLAIM, claims.spec_of(main=claims.share(3000, 10))), NAMESPACE
        )
        for nodes, pods, turns in ((CLAIMS.nodes, CLAIMS.pods, rounds), (LARGE, LARGE_PODS, 1)):
            with stage.nodes(nodes):
                outcomes = [stage.play_all(nodes, pods) for _ in range(turns)]
            bare, claiming, own, templated = map(list, zip(*outcomes, strict=True))
            yield placed_row(replace(CLAIMS, nodes=nodes, pods=pods), bare, claiming)
            yield own_row(replace(OWN_CLAIMS, nodes=nodes, pods=pods), bare, claiming, own)
            yield template_row(replace(TEMPLATES, nodes=nodes, pods=pods), own, templated)
    yield from real_node_rows(run, rounds)


class ClaimStage(Stage):
    """A control plane without HAMi."""

    def play_all(self, nodes: int, pods: int) -> list[Outcome]:
        """Runs each case once: without devices, with claims of kube-scheduler, and of HAMi's scheduler, for pods with
        the text of the device plugin and for such that name a template."""
        bare, claiming, own, templated = (
            replace(case, nodes=nodes, pods=pods)
            for case in (NO_DEVICES, CLAIMS, OWN_CLAIMS, TEMPLATES)
        )
        with self.published():
            outcomes = [self.play(bare), self.play(claiming)]
        with self.published(by_claims=True):
            return [*outcomes, self.play(own), self.play(templated)]

    @contextlib.contextmanager
    def published(self, *, by_claims: bool = False) -> Iterator[None]:
        """Publishes the cards of all nodes as claims need them. *by_claims*: HAMi's scheduler allocates them."""
        slices = [
            item
            for name in self.names
            for item in render_slices(
                name,
                [
                    Device(
                        uuid=f"GPU-{name}-{index}",
                        vendor="NVIDIA",
                        model="NVIDIA A100-SXM4-80GB",
                        slots=10,
                        memory_mib=81_920,
                        index=index,
                        by_claims=by_claims,
                    )
                    for index in range(fleet.GPUS)
                ],
            )
        ]
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(self.kube.create, slices))
            yield
            list(
                pool.map(
                    lambda item: self.kube.delete(item["kind"], item["metadata"]["name"]), slices
                )
            )

    def clear(self, namespace: str = NAMESPACE) -> None:
        super().clear(namespace)
        self.kube.wait(
            "ResourceClaim",
            lambda found: not found,
            namespace,
            timeout=180,
            what="the claims are gone",
        )


def placed_row(case: Case, bare: list[Outcome], claiming: list[Outcome]) -> Row:
    rate, usual = mean(claiming, "rate"), mean(bare, "rate")
    return Row(
        group=GROUP,
        what=f"{case.pods} pods with a claim, {case.nodes:,} × {fleet.GPUS}, kube-scheduler alone",
        measured=remarks(
            f"{rate:.1f} pods/s {each(claiming)}".strip(), cost(claiming), trouble(claiming)
        ),
        compared=remarks(
            ratio(rate, usual, f"pods without devices ({usual:.1f} pods/s; {cost(bare)})"),
            disturbance(claiming),
        ),
        figures={"claims": figures(claiming), "without_devices": figures(bare)},
    )


def own_row(case: Case, bare: list[Outcome], claiming: list[Outcome], own: list[Outcome]) -> Row:
    rate, usual, other = (mean(outcomes, "rate") for outcomes in (own, bare, claiming))
    least = BESIDE_KUBE_SCHEDULER[case.nodes]
    return Row(
        group=GROUP,
        what=f"{case.pods} pods with a claim of their own, {case.nodes:,} × {fleet.GPUS}, HAMi's "
        "scheduler",
        measured=remarks(f"{rate:.1f} pods/s {each(own)}".strip(), cost(own), trouble(own)),
        target=f"≥ 0.5 × without devices; ≥ {least} × kube-scheduler alone",
        met=rate >= 0.5 * usual
        and rate >= least * other
        and not any(outcome.missing for outcome in own),
        compared=remarks(
            ratio(rate, usual, f"pods without devices ({usual:.1f} pods/s)"),
            ratio(rate, other, f"claims of kube-scheduler ({other:.1f} pods/s)"),
            disturbance(own),
        ),
        figures={"own_claims": figures(own)},
    )


def template_row(case: Case, own: list[Outcome], templated: list[Outcome]) -> Row:
    rate, usual = mean(templated, "rate"), mean(own, "rate")
    return Row(
        group=GROUP,
        what=f"{case.pods} pods that name a template of claims, {case.nodes:,} × {fleet.GPUS}, "
        "HAMi's scheduler",
        measured=remarks(
            f"{rate:.1f} pods/s {each(templated)}".strip(), cost(templated), trouble(templated)
        ),
        compared=remarks(
            ratio(rate, usual, f"pods with a claim of their own ({usual:.1f} pods/s)"),
            disturbance(templated),
        ),
        figures={"templates": figures(templated)},
    )


def cost(outcomes: list[Outcome]) -> str:
    """Returns the CPU time of a pod by program."""
    spent = {
        name: 1000 * sum(outcome.cpu[name] / outcome.pods for outcome in outcomes) / len(outcomes)
        for name in outcomes[0].cpu
        if name not in ("others", "stolen", "seconds", "load")
    }
    parts = ", ".join(f"{name.removeprefix('kube-')} {took:.1f}" for name, took in spent.items())
    return f"{sum(spent.values()):.1f} ms CPU a pod: {parts}"


def real_node_rows(run: Run, rounds: int) -> Iterator[Row]:
    if reason := realnode.missing():
        yield Row(group=GROUP, what="claims on a real node", measured=f"not measured: {reason}")
        return
    with realnode.scheduled_node(run) as (node, scheduler):
        claims.class_and_rights(node.kube)
        alone: dict[str, list[Object]] = {
            allocation_mode: [] for allocation_mode in ALLOCATION_MODES
        }
        crowds: dict[str, list[Object]] = {
            allocation_mode: [] for allocation_mode in ALLOCATION_MODES
        }
        writes: list[float] = []
        for _ in range(rounds):
            for allocation_mode in ALLOCATION_MODES:
                with opened(run, node, scheduler, allocation_mode) as stage:
                    turns, crowd = (
                        stage.play(*([name] for name in NAMES[:IN_TURN])),
                        stage.play(NAMES),
                    )
                    run.say(
                        f"{allocation_mode}: {sorted(turns['batch_seconds'])[IN_TURN // 2]:.2f} s a pod, "
                        f"{realnode.PODS} at once {crowd['seconds']:.2f} s"
                    )
                    alone[allocation_mode].append(turns)
                    crowds[allocation_mode].append(crowd)
                    if allocation_mode == "dra":
                        writes.append(stage.writes_at_rest())
    yield from pods_rows(alone, crowds)
    yield Row(
        group=GROUP,
        what=f"writes of ResourceSlices in {REST_SECONDS} s at rest",
        target="0",
        measured=", ".join(f"{count:g}" for count in writes),
        met=not any(writes),
    )


def pods_rows(alone: dict[str, list[Object]], crowds: dict[str, list[Object]]) -> Iterator[Row]:
    """Yields the rows of what `AllocationMode.play` has returned, by allocation mode: pods one after
    the other, and pods at once."""
    one, other = (
        latency(alone[allocation_mode], "batch_seconds")
        for allocation_mode in ("dra", "device-plugin")
    )
    yield Row(
        group=GROUP,
        what=f"a pod with a claim, created → running, {one.count} pods one after the other",
        measured=f"{one} (p50 / p99); prepare {latency(alone['dra'], 'allocate_seconds')}",
        target="p50 ≤ 0.6 s",
        met=one.p50 <= 600,
        figures={"runs": alone},
        compared=ratio(one.p50, other.p50, f"the device plugin's, start-time mode ({other})"),
    )
    ours, theirs = (
        sum(crowd["seconds"] for crowd in crowds[allocation_mode]) / len(crowds[allocation_mode])
        for allocation_mode in ("dra", "device-plugin")
    )
    wrong = sum(crowd["wrong"] for crowd in crowds["dra"])
    prepare = latency(crowds["dra"], "allocate_seconds")
    runs = {
        allocation_mode: ", ".join(f"{crowd['seconds']:.1f}" for crowd in crowds[allocation_mode])
        + " s"
        for allocation_mode in ALLOCATION_MODES
    }
    yield Row(
        group=GROUP,
        what=f"{realnode.PODS} pods with a claim at once on one real node: until all containers run",
        measured=remarks(
            runs["dra"],
            f"prepare {prepare}",
            f"{wrong} with a limit of another",
            f"{sum(len(crowd['failed']) for crowd in crowds['dra'])} prepared again",
        ),
        target="≤ 1.3 × start-time mode; prepare 8 / 60 ms; no limit of another",
        met=ours <= 1.3 * theirs and prepare.p50 <= 8 and prepare.p99 <= 60 and not wrong,
        compared=remarks(
            ratio(ours, theirs, f"the device plugin's, start-time mode ({runs['plugin']})"),
            *{crowd["disturbance"] for crowd in crowds["dra"]},
        ),
        figures={"runs": crowds},
    )


def latency(outcomes: list[Object], name: str) -> Latency:
    return Latency.of([1e6 * seconds for outcome in outcomes for seconds in outcome[name]])


class AllocationMode(realnode.Stage):
    """A real node whose cards are offered by the device plugin. Each pod asks for another amount of memory."""

    def asking(self, sandbox: Sandbox, name: str) -> Object:
        return shower(HOOK, name, gpu=1, gpumem=memory_of(name))

    def judged(self, sandbox: Sandbox, names: list[str]) -> Object:
        limits = {name: seen(sandbox, self.node, name).limit[1] for name in names}
        failed = self.node.kube.list(
            "Event", sandbox.namespace, fieldSelector="reason=FailedPrepareDynamicResources"
        )
        return {
            "wrong": sum(limit != f"{memory_of(name)}m" for name, limit in limits.items()),
            "failed": {event["involvedObject"]["name"]: event["message"] for event in failed},
        }

    def writes_at_rest(self) -> float:
        """Returns how often somebody writes slices while no pod comes or goes."""

        def written() -> float:
            return sum(
                map(
                    float,
                    SLICE_WRITES.findall(self.node.cluster.kubectl("get", "--raw", "/metrics")),
                )
            )

        before = written()
        time.sleep(REST_SECONDS)
        return written() - before


class ClaimAllocationMode(AllocationMode):
    """A real node whose cards are allocated by claims."""

    def asking(self, sandbox: Sandbox, name: str) -> Object:
        spec = claims.spec_of(main=claims.share(memory_of(name)))
        sandbox.kube.create(claims.template(name, spec), sandbox.namespace)
        return claims.claiming(shower(HOOK, name), name)

    def play(self, *batches: list[str]) -> Object:
        outcome = super().play(*batches)
        folder = self.node.path("/run/cdi")
        eventually(
            lambda: not list(folder.glob("hami.io-claim-*")),
            "the kubelet has unprepared them",
            timeout=60,
        )
        return outcome


def memory_of(name: str) -> int:
    """Returns for how much memory the pod *name* asks."""
    return LEAST_MIB + NAMES.index(name)


@contextlib.contextmanager
def opened(
    run: Run, node: RealNode, scheduler: Scheduler, allocation_mode: str
) -> Iterator[AllocationMode]:
    """Yields the node with this allocation mode, after a first pod."""
    plugin = DevicePlugin(node, name=f"mode-{allocation_mode}", allocation_mode=allocation_mode)
    plugin.insert(
        *cards(realnode.CARDS * (claims.SLOTS_PER_POD if allocation_mode == "dra" else 1))
    )
    plugin.install_limiter(b"no library: nothing is limited here\n")
    plugin.start()
    if allocation_mode == "dra":
        claims.wait_published(plugin)
    else:
        plugin.wait_offered(realnode.PODS)
    stage = (ClaimAllocationMode if allocation_mode == "dra" else AllocationMode)(
        run, node, scheduler, plugin
    )
    stage.play(NAMES[:1])
    yield stage
    plugin.stop()
