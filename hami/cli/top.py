"""``hami top``: what is given out, by node, card, pod or namespace."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from hami.cli.client import CONTEXT_SETTINGS, Client, client_options, output_options
from hami.errors import HamiError

if TYPE_CHECKING:
    from hami.inspect.tables import Style

KINDS = ("nodes", "cards", "pods", "namespaces")
SORTS = ("name", "memory", "cores", "free", "pods", "age")
INTERVAL_S = 2.0
PAUSE_FACTOR = 10  # the pause of -w is at least so many times as long as reading takes


@click.command(name="top", context_settings=CONTEXT_SETTINGS)
@click.argument("kind", type=click.Choice(KINDS), default="nodes")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@client_options
@output_options
@click.option("-l", "--selector", default="", metavar="SELECTOR",
              help="Label selector of nodes (nodes, cards) or pods.")
@click.option("--sort-by", "sort", type=click.Choice(SORTS), default="name", show_default=True,
              help="Order of the rows; the greatest is first, except by name.")
@click.option("-w", "--watch", is_flag=True, help=f"Show it again every {INTERVAL_S:g} seconds, or less often where "
              "reading takes long, until Ctrl-C.")
def top_command(*, client: Client, style: Style, kind: str, names: tuple[str, ...], selector: str, sort: str,
                watch: bool) -> None:
    """Show what is given out of the devices: by node, by card, by pod or by namespace.

    NAMEs are those of nodes (for nodes and cards), pods or namespaces. Pods are those of one namespace, unless -A is
    given. Memory is in MiB; bars show memory and cores that pods hold, not what they use. Needs the right to list nodes
    and pods of the cluster.
    """
    from hami.inspect.cluster import InspectedCluster
    from hami.inspect.top import TopQuery, render_top

    namespace = client.chosen_namespace() if kind == "pods" else client.namespace
    query = TopQuery(kind=kind, names=names, namespace=namespace, selector=selector, sort=sort)
    if watch and client.snapshot:
        raise HamiError("-w needs a cluster: a snapshot does not change")
    if not watch:
        click.echo(render_top(InspectedCluster(client.read()), query, style))
        return
    try:
        while True:
            begun = time.monotonic()
            text = render_top(InspectedCluster(client.read()), query, style)
            if sys.stdout.isatty():
                click.clear()
            click.echo(text)
            time.sleep(max(INTERVAL_S, PAUSE_FACTOR * (time.monotonic() - begun)))
    except KeyboardInterrupt:
        return
