"""``hami explain``: why a pod waits, or what it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hami.cli.client import CONTEXT_SETTINGS, Client, client_options, output_options
from hami.errors import HamiError

if TYPE_CHECKING:
    from hami.inspect.tables import Style

KINDS = ("pod",)


@click.command(name="explain", context_settings=CONTEXT_SETTINGS)
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
@client_options
@output_options
def explain_command(*, client: Client, style: Style, kind: str, name: str) -> None:
    """Explain why a pod waits and what would help, or what a bound pod holds and with whom.

    For each node and card: what is short and by how much, nearest first; what kube-scheduler said; and the smallest
    changes with which the pod would fit, each tried with the scheduler's own decision. Needs the right to list nodes
    and pods of the cluster, and events of the namespace.
    """
    import msgspec

    from hami.inspect.cluster import InspectedCluster, unknown_name
    from hami.inspect.explain import explain_pod, render_report
    from hami.inspect.tables import render_document
    from hami.model import PodRef

    namespace = client.chosen_namespace()
    if not namespace:
        raise HamiError("a pod has one namespace: use -n instead of -A")
    cluster = InspectedCluster(client.read())
    cluster.check_has_devices()
    pod = cluster.pod_named(namespace, name) or client.find_pod(PodRef(namespace, name, ""))
    if pod is None:
        known = {other.ref.name for other in cluster.pods.values() if other.ref.namespace == namespace}
        raise unknown_name(f"pod in namespace {namespace}:", name, known)
    report = explain_pod(cluster, pod, () if pod.node_name else client.events(cluster.record, pod.ref))
    if style.form in ("json", "yaml"):
        click.echo(render_document(msgspec.to_builtins(report), style.form))
    else:
        click.echo(render_report(report, wide=style.form == "wide"))
