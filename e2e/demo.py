"""A demonstration: forty pods share the GPUs of four nodes, some have to wait, and an urgent one has not.

``python -m e2e.demo`` starts the local control plane, ``hami scheduler``, four fake nodes with eight GPUs each, and a
mix of pods. ``--keep`` keeps the cluster and the dashboard running until Ctrl-C. ``--pictures`` takes pictures of the
dashboard. ``--real-node`` shows containers on a real kubelet, which print their limits; ``--dra`` shows two, of which
one has a claim. Nothing is left at the end, whatever ends it.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import shlex
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import urllib3
from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from e2e import demo_dra, demo_realnode
from testing import audit, browser, interrupts, measured
from testing.agent import NodeAgent
from testing.arguments import folder_to_write
from testing.binaries import BinariesMissing
from testing.cluster import LocalCluster
from testing.dashboard import PAGES, dashboard
from testing.eventually import eventually
from testing.farewell import say_farewell
from testing.joined_node import NodeUnavailable
from testing.kube import ApiError
from testing.limiter.builds import Unavailable
from testing.nodes import gpus
from testing.people import DEVICE_CONFIG, ask
from testing.pods import container, init, pod, replica_set, sidecar
from testing.priorities import add_priorities, of_priority
from testing.processes import free_port
from testing.progress import Steps, shown
from testing.sandbox import Sandbox, served
from testing.scheduler import Certificates, Scheduler, install

__all__ = ["main"]

Object = dict[str, Any]
A100 = {"memory_mib": 81_920, "model": "NVIDIA A100-SXM4-80GB"}
T4 = {"memory_mib": 15_360, "model": "NVIDIA T4"}
PODS = 40
SETTLED_SECONDS = 2
SUMMARY_SECONDS = 2
TIMEOUT_SECONDS = 180
PLAIN_WIDTH = 120
JOB, ROOM = Path(__file__).with_name("demo_job.yaml"), Path(__file__).with_name("demo_room.yaml")
OWNED = ("notebook", "inference")
"""ReplicaSets, whose pods may be moved."""
FIRST_STEP = "control plane (built once, on the first run)"
EXPLAINED = 2
"""Waiting pods that are explained."""


class Outcome(NamedTuple):
    """The state of the cluster at one time."""

    pods: dict[str, Object]
    reasons: dict[str, list[str]]

    @property
    def started(self) -> int:
        return sum(served(item) for item in self.pods.values())

    @property
    def waiting(self) -> list[str]:
        return [name for name, item in self.pods.items() if not item["spec"].get("nodeName")]

    @property
    def open(self) -> list[str]:
        """The pods that have neither their devices nor a reason."""
        return [
            name
            for name, item in self.pods.items()
            if not served(item) and (item["spec"].get("nodeName") or not self.reasons.get(name))
        ]

    @property
    def summary(self) -> str:
        """One line about all pods."""
        return (
            f"{len(self.pods)} of {PODS} pods created, {self.started} have their devices, "
            f"{len(self.waiting)} wait"
        )

    @property
    def settled(self) -> bool:
        """Reports whether each pod has its devices or a reason."""
        return len(self.pods) >= PODS and not self.open


def mixture() -> list[Object]:
    """Returns forty pods as teams might submit them; five of them never fit."""
    pods = [
        *(
            pod(f"notebook-{n}", labels={"app": "notebook"}, gpu=1, gpumem=4000, gpucores=10)
            for n in range(14)
        ),
        *(
            pod(
                f"inference-{n}",
                labels={"app": "inference"},
                gpu=1,
                percent=25,
                gpucores=20,
                annotations={"nvidia.com/use-gputype": "T4"},
            )
            for n in range(8)
        ),
        *(pod(f"train-{n}", gpu=2, gpumem=40_000, gpucores=50) for n in range(6)),
        *(
            pod(f"whole-card-{n}", gpu=1, annotations={"nvidia.com/use-gputype": "A100"})
            for n in range(3)
        ),
        *(
            pod(
                f"service-{n}",
                inits=[init("load", gpu=1, gpumem=12_000), sidecar("metrics", gpu=1, gpumem=1000)],
                containers=[container("serve", gpu=1, gpumem=8000, gpucores=25)],
            )
            for n in range(4)
        ),
        pod("too-much-memory-0", gpu=1, gpumem=100_000),
        pod(
            "too-much-memory-1", gpu=1, gpumem=20_000, annotations={"nvidia.com/use-gputype": "T4"}
        ),
        pod("no-such-card-0", gpu=1, gpumem=1000, annotations={"nvidia.com/use-gputype": "H100"}),
        pod("nine-on-one-node-0", gpu=9, gpumem=1000),
        pod("one-numa-node-0", gpu=6, gpumem=1000, annotations={"nvidia.com/numa-bind": "true"}),
    ]
    random.Random(7).shuffle(pods)
    return pods


def adopt(sandbox: Sandbox) -> None:
    """Creates ReplicaSets for pods that are there: they take them over."""
    of_app: dict[str, list[Object]] = defaultdict(list)
    for item in mixture():
        of_app[item["metadata"]["labels"].get("app", "")].append(item)
    for name in OWNED:
        sandbox.create(replica_set(name, of_app[name][0], count=len(of_app[name])))


def look(sandbox: Sandbox) -> Outcome:
    reasons: dict[str, list[str]] = defaultdict(list)
    events = sandbox.kube.list("Event", sandbox.namespace)
    for event in sorted(events, key=lambda event: int(event["metadata"]["resourceVersion"])):
        if event["reason"] in ("FilteringFailed", "FailedScheduling"):
            reasons[event["involvedObject"]["name"]].append(event["message"])
    pods = {item["metadata"]["name"]: item for item in sandbox.kube.list("Pod", sandbox.namespace)}
    return Outcome(pods, dict(reasons))


def bar(used: int, there: int, width: int = 16) -> Text:
    """Returns a colored bar for a ratio."""
    share = used / there if there else 0
    filled = round(share * width)
    color = "green" if share < 0.6 else "yellow" if share < 0.95 else "red"
    return (
        Text("█" * filled, style=color)
        + Text("░" * (width - filled), style="grey37")
        + Text(f" {share:4.0%}")
    )


def node_tables(sandbox: Sandbox, outcome: Outcome) -> list[Table]:
    """Returns a table for each node: its GPUs, their usage, and how many pods share them."""
    nodes = sandbox.kube.list("Node", labelSelector=f"hami-e2e/sandbox={sandbox.namespace}")
    found = audit.inventory(nodes, outcome.pods.values())
    by_node: dict[str, list[audit.Card]] = defaultdict(list)
    for card in found.cards.values():
        by_node[card.node].append(card)
    tables = []
    for node, cards in sorted(by_node.items()):
        table = Table(
            title=f"{sandbox.short(node)}  ({cards[0].model}, {cards[0].memory:,} MiB)",
            title_justify="left",
        )
        for heading, width in (("card", 4), ("memory", 21), ("cores", 21), ("pods", 4)):
            table.add_column(heading, width=width)
        for card in sorted(cards, key=lambda card: card.index):
            used, holds = found.used((node, card.uuid)), found.holds.get((node, card.uuid), {})
            table.add_row(
                str(card.index),
                bar(used.memory, card.memory),
                bar(used.cores, card.cores),
                str(len(holds)),
            )
        tables.append(table)
    return tables


def submit_and_watch(console: Console, sandbox: Sandbox, steps: Steps) -> Outcome:
    """Creates the pods in the background, and shows the state until it is settled: in tables on a terminal, else as
    *steps*."""
    failed: list[BaseException] = []

    def create() -> None:
        try:
            sandbox.create_all(mixture())
        except BaseException as error:  # raised by the drawing thread
            failed.append(error)

    creation = threading.Thread(target=create, daemon=True)
    creation.start()
    outcome, deadline, quiet_since = look(sandbox), time.monotonic() + TIMEOUT_SECONDS, None
    with tables(console, sandbox, steps) as update:
        while time.monotonic() < deadline and not failed:
            outcome = look(sandbox)
            update(outcome)
            if outcome.settled:
                quiet_since = quiet_since or time.monotonic()
                if time.monotonic() - quiet_since > SETTLED_SECONDS:
                    break
            else:
                quiet_since = None
            time.sleep(0.15)
    creation.join()
    if failed:
        raise failed[0]
    return outcome


class Summaries:
    """The state as steps, one in SUMMARY_SECONDS if it has changed, and the last one."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._latest = self._said = ""
        self._said_at = -math.inf

    def say(self, outcome: Outcome) -> None:
        self._latest = outcome.summary
        if time.monotonic() - self._said_at >= SUMMARY_SECONDS:
            self.finish()

    def finish(self) -> None:
        if self._latest != self._said:
            self._said, self._said_at = self._latest, time.monotonic()
            self._steps.say(self._latest)


@contextlib.contextmanager
def tables(console: Console, sandbox: Sandbox, steps: Steps) -> Iterator[Callable[[Outcome], None]]:
    """Yields a function that shows the state. Ends *steps*."""
    if not console.is_terminal:
        summaries = Summaries(steps)
        yield summaries.say
        summaries.finish()
        steps.stop()
        return
    steps.stop()
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        yield lambda outcome: live.update(
            Group(Text(outcome.summary, style="bold"), Columns(node_tables(sandbox, outcome)))
        )


def show(console: Console, cluster: LocalCluster, sandbox: Sandbox, outcome: Outcome) -> None:
    """Prints what users would: where the pods are, why others wait, and what would happen to more of them."""
    ask(console, cluster, sandbox, "top", "cards")
    ask(console, cluster, sandbox, "top", "nodes")
    for name in sorted(outcome.waiting)[:EXPLAINED]:
        ask(console, cluster, sandbox, "explain", "pod", name)
    ask(console, cluster, sandbox, "simulate", "-f", os.path.relpath(JOB), statuses=(0, 1))
    console.print(
        f"[bold]{outcome.started}[/] pods have their devices, [bold]{len(outcome.waiting)}[/] wait: "
        f"{', '.join(sorted(outcome.waiting)) or 'none'}."
    )


def preempt(console: Console, cluster: LocalCluster, sandbox: Sandbox) -> None:
    """Shows an urgent pod that takes the place of others, whose containers take a moment to end."""

    def patch_all(finalizers: list[str] | None) -> None:
        for item in cluster.kube.list("Pod", sandbox.namespace):
            try:
                cluster.kube.merge_patch(
                    "Pod",
                    item["metadata"]["name"],
                    {"metadata": {"finalizers": finalizers}},
                    sandbox.namespace,
                )
            except ApiError as error:
                if error.status != 404:  # it has ended meanwhile
                    raise

    def ending() -> bool:
        return any(
            item["metadata"].get("deletionTimestamp")
            for item in cluster.kube.list("Pod", sandbox.namespace)
        )

    add_priorities(cluster.kube, ["urgent"])
    urgent = of_priority(
        "urgent", pod("urgent-0", gpu=8, annotations={"nvidia.com/use-gputype": "A100"})
    )
    patch_all(["hami-e2e/ends-later"])
    try:
        sandbox.create(urgent)
        eventually(ending, "pods are evicted for the urgent one")
        ask(console, cluster, sandbox, "explain", "pod", "urgent-0")
    finally:
        patch_all(None)
    node = cluster.kube.wait(
        "Pod", lambda pods: pods["urgent-0"]["spec"].get("nodeName"), sandbox.namespace
    )
    console.print(
        f"[bold]urgent-0[/], of higher priority, has taken eight cards of {sandbox.short(node)}."
    )


@contextlib.contextmanager
def monitors(sandbox: Sandbox, outcome: Outcome, port: int) -> Iterator[None]:
    """Serves what monitors of the nodes would, for the dashboard. This machine needs an address beside loopback."""
    if not measured.own_address():
        yield
        return
    found = audit.inventory(sandbox.kube.list("Node"), outcome.pods.values())
    nodes = [sandbox.node(name)["metadata"]["name"] for name in sandbox.nodes]
    with (
        measured.served(measured.plausible_page(found), port),
        measured.announced(sandbox.kube, *nodes),
    ):
        yield


def take_pictures(address: str, sandbox: Sandbox, folder: Path) -> None:
    """Writes pictures of all pages of the dashboard at each width, once they show the use of all nodes, if it is known,
    and why a pod waits."""
    outcome = look(sandbox)
    pod_name = min(name for name, item in outcome.pods.items() if served(item))
    waiting = min(outcome.waiting)
    share = sandbox.shares(pod_name)[0][0]
    node, index = share.card.split("/")
    names = {
        "node": sandbox.node(node)["metadata"]["name"],
        "uuid": sandbox.uuid(node, int(index)),
        "namespace": sandbox.namespace,
        "pod": pod_name,
        "waiting": waiting,
    }

    def read(path: str) -> Any:
        return urllib3.request("GET", f"{address}{path}?format=json").json()

    def is_known() -> bool:
        explained = (read(f"/pods/{sandbox.namespace}/{waiting}")["waits"] or {}).get("explanation")
        uses = [item["use"] for item in read("/")["items"]]
        return bool(explained) and (all(uses) or not measured.own_address())

    eventually(is_known, "the dashboard shows the use of all nodes, and why a pod waits")
    with browser.browser() as started:
        for width in browser.WIDTHS:
            with browser.Visit.started(started, width=width) as visit:
                for kind, path in PAGES.items():
                    visit.page.goto(address + path.format(**names))
                    visit.picture(folder / f"{kind}-{width}.png")


def farewell(console: Console, cluster: LocalCluster, sandbox: Sandbox, address: str) -> None:
    """Prints how to use the cluster."""
    names = sorted(sandbox.bound(1))
    notebook, whole = (
        next(name for name in names if name.startswith(kind)) for kind in ("notebook", "whole-card")
    )
    configured = f"--device-config-file={shlex.quote(str(DEVICE_CONFIG))}"
    say_farewell(
        console,
        cluster,
        sandbox.namespace,
        (
            "kubectl get pods -o wide",
            f"kubectl hami top cards {configured}",
            f"kubectl hami capacity -f {shlex.quote(str(ROOM))} --defragment {configured}",
            "kubectl get events --field-selector reason=FilteringFailed",
            f"kubectl get pod {notebook} -o jsonpath='{{.metadata.annotations}}'",
            f"kubectl delete pod {whole}   # and a waiting pod is placed",
        ),
        (f"Dashboard: {address}", f"Logs: {cluster.folder}/hami-scheduler-0.log"),
    )


def run(console: Console, *, keep: bool, pictures: Path | None) -> int:
    with shown(console, FIRST_STEP) as steps, LocalCluster.started(say=steps.say) as cluster:
        steps.say("hami scheduler")
        certificates = Certificates(cluster.folder / "tls")
        port, monitor_port = free_port(), free_port()
        address = f"http://localhost:{port}"
        scheduler = Scheduler(cluster, certificates, install(cluster, certificates)).start()
        with (
            dashboard(cluster.kubeconfig, cluster.folder, port, monitor_port=str(monitor_port)),
            NodeAgent(cluster.kube),
        ):
            sandbox = Sandbox.created(cluster.kube, name="demo")
            steps.say("nodes")
            sandbox.add_gpu_nodes(
                {f"node-{n}": gpus(8, **(A100 if n < 2 else T4)) for n in range(4)}
            )
            steps.say("pods")
            outcome = submit_and_watch(console, sandbox, steps)
            adopt(sandbox)
            show(console, cluster, sandbox, outcome)
            preempt(console, cluster, sandbox)
            violations = audit.audit(cluster.kube)
            for violation in violations:
                console.print(f"[red]the auditor found: {violation}")
            if not outcome.settled:
                console.print(
                    f"[red]not settled after {TIMEOUT_SECONDS} s: "
                    f"{', '.join(outcome.open) or 'pods are missing'}; the scheduler's log ends:"
                )
                console.print(scheduler.program.tail(), markup=False)
            if keep or pictures:
                with monitors(sandbox, outcome, monitor_port):
                    if pictures:
                        take_pictures(address, sandbox, pictures)
                    if keep:
                        farewell(console, cluster, sandbox, address)
                        interrupts.wait()
            return int(bool(violations) or not outcome.settled)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.demo", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--keep", action="store_true", help="keep the cluster running until Ctrl-C")
    parser.add_argument(
        "--pictures",
        type=folder_to_write,
        metavar="DIRECTORY",
        help="write pictures of all pages of the dashboard at two widths; "
        "needs Chromium and the Python packages of the extra e2e",
    )
    parser.add_argument(
        "--real-node",
        action="store_true",
        help="show containers on a real kubelet that are stopped at their limits",
    )
    parser.add_argument(
        "--dra",
        action="store_true",
        help="show, on two real kubelets, that a pod with a claim "
        "(Dynamic Resource Allocation) and one without are stopped at the same limits",
    )
    arguments = parser.parse_args()
    if arguments.pictures and (lacks := browser.missing()):
        parser.error(f"--pictures: {lacks}")
    if (real := arguments.real_node or arguments.dra) and arguments.pictures:
        parser.error("--real-node and --dra have no dashboard for --pictures")
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    try:
        if real:
            status = (demo_dra if arguments.dra else demo_realnode).run(
                console, keep=arguments.keep
            )
        else:
            status = run(console, keep=arguments.keep, pictures=arguments.pictures)
    except (BinariesMissing, NodeUnavailable, Unavailable) as error:
        console.print(f"[red]{error}")
        return 1
    if arguments.keep:
        console.print("stopped; nothing is left running")
    return status


if __name__ == "__main__":
    sys.exit(interrupts.run_whole(main))
