"""``hami monitor``: the process of the monitor, and one look at the node."""

from __future__ import annotations

import os

import click

from hami.cli.flags import OUTPUT, GroupedCommand, command_line_values, run_program
from hami.monitor.settings import MonitorSettings, read_monitor_settings
from hami.runtime.options import Sections, flags_of, section

_FLAGS = flags_of(MonitorSettings())
MONITOR_FLAGS: Sections = {
    "Node": section(
        _FLAGS, "--node-name --config-file --hook-path --mock-devices --driver-root-ctr-path"
    ),
    "Rounds": section(_FLAGS, "--interval --feedback --limit-uncounted --once --output"),
    "Serving": section(_FLAGS, "--metrics-bind-address --legacy-metrics --kube-timeout"),
    "Output": section(_FLAGS, OUTPUT),
}


@click.command(name="monitor", cls=GroupedCommand, sections=MONITOR_FLAGS)
@click.pass_context
def monitor_command(ctx: click.Context, /, **values: object) -> None:
    """Show what containers use of this node's devices.

    Containers give way to those of higher priority. A flag overrides the environment variable in brackets. - and _ in a
    flag's name are equivalent; a BOOL may be omitted (true). A DURATION is written as 1s or 500ms. With --once it
    prints what containers use now.
    """
    run_program(
        ctx,
        run_monitor,
        read_monitor_settings(command_line_values(ctx, MONITOR_FLAGS, values), os.environ),
    )


def run_monitor(settings: MonitorSettings) -> int:
    """Serves until a stop signal arrives, or prints one round. Returns the exit status."""
    # the parent process of the scheduler stays small
    from hami.monitor.program import print_once, serve

    if settings.once:
        return print_once(settings, lambda text: click.echo(text, nl=False))
    return serve(settings)
