"""The command line: programs (``hami scheduler``, ``hami device-plugin``) and commands for people (``hami top``, …).

A command imports the modules it needs when it runs, so that the parent process of the server stays small.
"""

from __future__ import annotations

import click

from hami import __version__
from hami.cli.dashboard import dashboard_command
from hami.cli.device_plugin import device_plugin_command
from hami.cli.group import Commands, run
from hami.cli.monitor import monitor_command
from hami.cli.people import PEOPLE
from hami.cli.regions import mount_regions_command
from hami.cli.scheduler import scheduler_command
from hami.cli.template import render_template_command
from hami.cli.vendors import vendors_command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hami", message="%(prog)s %(version)s")
def main() -> None:
    """Share accelerators between the pods of a Kubernetes cluster."""


@main.command()
def version() -> None:
    """Print the version."""
    click.echo(f"hami {__version__}")


for command in (scheduler_command, device_plugin_command, monitor_command, dashboard_command, mount_regions_command,
                vendors_command, render_template_command, *PEOPLE):
    main.add_command(command)


def console_script() -> None:
    """``hami`` as a process."""
    run(main, "hami")
