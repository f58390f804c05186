"""The command line: programs (``hami scheduler``, ``hami device-plugin``) and commands for people (``hami top``, …).

A command is imported when it is called, and imports the modules it needs when it runs, so that the parent process of
the server stays small.
"""

from __future__ import annotations

import click

from hami import __version__
from hami.cli.group import PEOPLE, Commands, run

MODULES = {
    "scheduler": "hami.cli.scheduler",
    "device-plugin": "hami.cli.device_plugin",
    "monitor": "hami.cli.monitor",
    "dashboard": "hami.cli.dashboard",
    "mount-regions": "hami.cli.regions",
    "vendors": "hami.cli.vendors",
    "render-template": "hami.cli.template",
    **PEOPLE,
}


@click.group(
    cls=Commands, modules=MODULES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="hami", message="%(prog)s %(version)s")
def main() -> None:
    """Share accelerators between the pods of a Kubernetes cluster."""


@main.command()
def version() -> None:
    """Print the version."""
    click.echo(f"hami {__version__}")


def console_script() -> None:
    """``hami`` as a process."""
    run(main, "hami")
