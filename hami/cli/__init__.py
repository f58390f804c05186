"""The command line: ``hami scheduler``, ``hami device-plugin``, ``hami vendors`` and ``hami version``.

A command imports the modules it needs when it runs, so that the parent process of the server stays small.
"""

from __future__ import annotations

from typing import Any

import click

from hami import __version__
from hami.cli.device_plugin import device_plugin_command
from hami.cli.scheduler import scheduler_command
from hami.cli.vendors import vendors_command
from hami.errors import HamiError


class _Commands(click.Group):
    """The commands. An error in one is shown as one line, not as a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except HamiError as error:
            click.echo(f"error: {' '.join(str(error).splitlines())}", err=True)
            ctx.exit(1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hami", message="%(prog)s %(version)s")
def main() -> None:
    """Share accelerators between the pods of a Kubernetes cluster."""


@main.command()
def version() -> None:
    """Print the version."""
    click.echo(f"hami {__version__}")


for command in (scheduler_command, device_plugin_command, vendors_command):
    main.add_command(command)
