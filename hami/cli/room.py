"""The commands for people about room: capacity, and compact."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from hami.cli.client import Answer, Client, people_command
from hami.cli.people import SCHEDULER_NAME, make_admit, read_files, with_claims
from hami.errors import HamiError
from hami.inspect.tables import Style
from hami.runtime.options import DURATION

if TYPE_CHECKING:
    from hami.inspect.cluster import InspectedCluster
    from hami.inspect.moves import MovesReport
    from hami.model import Pod

MOVES = click.IntRange(1, 100)  # of a plan
MANY_MOVES = click.IntRange(1, 1000)  # of a compaction
SECONDS = click.FloatRange(0.1, 300)
FILES = click.option(
    "-f",
    "--filename",
    "files",
    type=click.File("r", encoding="utf-8"),
    multiple=True,
    help="Manifest (YAML or JSON) with one Pod or one workload; - reads standard input.",
)
MIN_RUNTIME = click.option(
    "--min-runtime",
    type=DURATION,
    default="0s",
    show_default=True,
    metavar="DURATION",
    help="Do not move pods that were started more recently.",
)


@people_command(
    "capacity",
    examples="""
hami capacity -f pod.yaml
hami capacity -f pod.yaml --defragment
hami capacity --pod train-0 --defragment --apply
""",
    hidden=("-A",),
)
@FILES
@click.option(
    "--pod", "waiting", default="", metavar="NAME", help="A pod that waits, instead of -f."
)
@click.option(
    "--defragment",
    is_flag=True,
    help="Show the fewest moves of other pods after which one fits, and which pods cannot be moved.",
)
@click.option(
    "--apply",
    is_flag=True,
    help="Ask the scheduler to make these moves, one after the other, for the pod of --pod.",
)
@click.option("--moves", type=MOVES, default=8, show_default=True, help="Most moves of a plan.")
@click.option(
    "--seconds",
    type=SECONDS,
    default=2.0,
    show_default=True,
    help="Time for the search of a plan.",
)
@MIN_RUNTIME
@SCHEDULER_NAME
def capacity_command(
    *,
    client: Client,
    style: Style,
    files: tuple[Any, ...],
    waiting: str,
    defragment: bool,
    apply: bool,
    scheduler_name: str,
    **limits: Any,
) -> Answer:
    """Show how many more pods of a manifest would fit.

    It also shows how many on each node. With --defragment also the fewest moves after which one fits: each pod is
    evicted, its controller makes it again, and HAMi's own decision places it, while the place is held. To count with
    PodDisruptionBudgets needs the right to list them. Nothing is written without --apply, which needs the right to
    patch the pod and to request moves.
    """
    from hami.inspect.moves import find_moves, movables, render_moves
    from hami.inspect.simulate import capacity_for, render_capacity
    from hami.inspect.stranded import free_report
    from hami.state.moves import MoveLimits

    if bool(files) == bool(waiting):
        raise click.UsageError("expected either -f FILE or --pod NAME")
    if apply and not (waiting and defragment):
        raise click.UsageError("--apply needs --pod NAME and --defragment")
    cluster, title, pod = _asked(client, files, waiting, scheduler_name)
    nodes = capacity_for(cluster, pod)
    free = free_report(cluster.view)
    document: dict[str, object] = {
        "pods": sum(node.pods for node in nodes),
        "nodes": nodes,
        "free": free,
    }
    text = [render_capacity(title, nodes, free, style)]
    if defragment:
        movable = movables(cluster, client.budgets(), pod, limits.pop("min_runtime"))
        report = find_moves(cluster, pod, movable, MoveLimits(**limits), time.monotonic)
        document["defragmentation"] = report
        text += ["", render_moves(report)]
        if apply:
            text += ["", _request(client, pod, report)]
    return Answer(document=document, text=lambda: "\n".join(text), kind="Capacity")


def _request(client: Client, pod: Pod, report: MovesReport) -> str:
    """Asks that the moves of *report* are made, and returns what was asked. Raises: HamiError."""
    from hami.inspect.moves import request_moves

    if client.snapshot:
        raise HamiError("a snapshot does not change: --apply needs the cluster")
    if not report.moves:
        return "Nothing is requested."
    return request_moves(client.writer(), pod, len(report.moves))


def _asked(
    client: Client, files: tuple[Any, ...], waiting: str, scheduler_name: str
) -> tuple[InspectedCluster, str, Pod]:
    """Returns the cluster, and the pod that is asked about with its title. Raises: HamiError."""
    from hami.inspect.cluster import unknown_pod
    from hami.inspect.simulate import Scenario, admitted_pod
    from hami.vendors.request import requests_devices

    namespace = client.single_namespace("new pods have one namespace")
    if not waiting:
        sources = read_files(files)
        if len(sources) != 1:
            raise HamiError(
                f"expected one pod or workload, found {', '.join(source.title for source in sources)}"
            )
        cluster = client.cluster()
        (source,) = with_claims(client, sources, cluster)
        scenario = Scenario(namespace=namespace)
        return (
            cluster,
            source.title,
            admitted_pod(cluster, source, scenario, make_admit(scheduler_name)),
        )
    cluster = client.cluster()
    pod = cluster.pod_named(namespace, waiting)
    if pod is None:
        raise unknown_pod(cluster, namespace, waiting)
    if pod.node_name:
        raise HamiError(f"pod {pod.ref} runs on node {pod.node_name} already")
    if not requests_devices(cluster.vendors, pod.containers):
        raise HamiError(f"pod {pod.ref} requests no devices that HAMi manages")
    return cluster, f"pod/{waiting}", pod


@people_command(
    "compact",
    examples="""
hami compact --shapes 4x1.0,8x1.0
hami compact --from-queue --moves 20
""",
    hidden=("-n", "-A"),
)
@click.option(
    "--shapes",
    default="",
    metavar="COUNTxPART,…",
    help="Kinds of pods: devices, and the part of each, such as 4x1.0 or 1x0.5.",
)
@click.option(
    "--from-queue", is_flag=True, help="The kinds of the pods that wait, instead of --shapes."
)
@click.option(
    "--vendor", default="NVIDIA", show_default=True, help="The vendor of the devices of --shapes."
)
@click.option(
    "--moves", type=MANY_MOVES, default=50, show_default=True, help="Most moves for a kind."
)
@click.option(
    "--seconds",
    type=SECONDS,
    default=30.0,
    show_default=True,
    help="Time for the search for a kind.",
)
@MIN_RUNTIME
def compact_command(
    *,
    client: Client,
    style: Style,
    shapes: str,
    from_queue: bool,
    vendor: str,
    min_runtime: float,
    **limits: Any,
) -> Answer:
    """Show how many pods fit after moves of others.

    Each kind is asked for alone. The moves are those that make room for one pod after the other, each proven by HAMi's
    own decision. Nothing is written.
    """
    from hami.inspect.moves import (
        compact,
        movables,
        parse_shapes,
        queued_shapes,
        render_compaction,
    )
    from hami.state.moves import MoveLimits

    if bool(shapes) == from_queue:
        raise click.UsageError("expected either --shapes or --from-queue")
    cluster = client.cluster()
    if from_queue:
        kinds = queued_shapes(cluster)
    else:
        kinds = parse_shapes(shapes, cluster.vendors, vendor)
    movable = movables(cluster, client.budgets(), None, min_runtime)
    rows = compact(cluster, kinds, movable, MoveLimits(**limits), time.monotonic)
    return Answer(
        document={"items": rows},
        text=lambda: render_compaction(rows, style),
        kind="CompactionList",
    )
