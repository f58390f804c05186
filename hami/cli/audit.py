"""``hami audit``: inconsistencies, each with what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hami.cli.client import CONTEXT_SETTINGS, Client, client_options, output_options

if TYPE_CHECKING:
    from hami.inspect.tables import Style


@click.command(name="audit", context_settings=CONTEXT_SETTINGS)
@client_options
@output_options
@click.pass_context
def audit_command(ctx: click.Context, *, client: Client, style: Style) -> None:
    """Find where annotations, inventories and specifications contradict each other, and say what to do.

    Over-committed cards, allocations and inventories that cannot be read, cards and nodes that are gone, stale locks,
    ghost reservations, pods without the devices that they request. Exit status 1 if there is any.
    """
    import msgspec

    from hami.inspect.audit import audit, render_audit
    from hami.inspect.cluster import InspectedCluster
    from hami.inspect.tables import render_document

    cluster = InspectedCluster(client.read())
    found = audit(cluster)
    if style.form in ("json", "yaml"):
        click.echo(render_document({"items": msgspec.to_builtins(found)}, style.form))
    else:
        click.echo(render_audit(cluster, found))
    ctx.exit(1 if found else 0)
