"""``hami snapshot`` and ``hami replay``: a cluster as a file."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from hami.cli.client import CONTEXT_SETTINGS, Client, client_options, output_options, read_snapshot
from hami.errors import HamiError

if TYPE_CHECKING:
    from hami.inspect.tables import Style


@click.command(name="snapshot", context_settings=CONTEXT_SETTINGS)
@click.option("--anonymize", is_flag=True, help="Replace the names of nodes, pods, namespaces, quotas, priority "
              "classes and devices, and leave labels and events out.")
@client_options
def snapshot_command(*, client: Client, anonymize: bool) -> None:
    """Write what HAMi's decisions depend on to standard output: hami snapshot > FILE.

    The file is compressed JSON: nodes, pods with devices, quotas, the device configuration and why pods could not be
    scheduled; no environment variables and no secrets. Every other command answers from it with --snapshot FILE.
    """
    from hami.inspect.snapshot import anonymize as anonymous
    from hami.inspect.snapshot import render_snapshot

    if sys.stdout.isatty():
        raise HamiError("a snapshot is not for terminals: hami snapshot > FILE")
    record = client.read()
    if not client.snapshot:
        record = replace(record, events=client.all_events())
    click.echo(render_snapshot(anonymous(record) if anonymize else record), nl=False)


@click.command(name="replay", context_settings=CONTEXT_SETTINGS)
@click.argument("file")
@output_options
@click.pass_context
def replay_command(ctx: click.Context, *, style: Style, file: str) -> None:
    """Decide once more about the pods of a snapshot, in the order in which they were placed; show what differs.

    Each pod is decided beside what was recorded before it. Pods that had ended before the snapshot are missing from it.
    Exit status 1 if a decision differs.
    """
    import msgspec

    from hami.inspect.replay import render_replay, replay
    from hami.inspect.tables import render_document

    found = replay(read_snapshot(file))
    if style.form in ("json", "yaml"):
        click.echo(render_document({"items": msgspec.to_builtins(found)}, style.form))
    else:
        click.echo(render_replay(found, style))
    ctx.exit(0 if all(one.is_same for one in found) else 1)
