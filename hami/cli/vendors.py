"""``hami vendors``: prints the devices that are scheduled."""

from __future__ import annotations

import click

from hami.cli.client import show_note
from hami.cli.flags import GroupedCommand
from hami.cli.scheduler import DEVICE_SECTIONS, settings_of_command_line
from hami.runtime.options import Flag, Sections, choice
from hami.scheduler.settings import read_settings

# as in hami.inspect.vendors, which is imported when the command runs
TABLE_FORMATS = ("text", "markdown", "json")
VENDORS_FLAGS: Sections = {
    "Format": (
        Flag(
            "--output",
            f"{', '.join(TABLE_FORMATS)}.",
            choice("format", *TABLE_FORMATS),
            default=TABLE_FORMATS[0],
        ),
    ),
    **DEVICE_SECTIONS,
}


@click.command(name="vendors", cls=GroupedCommand, sections=VENDORS_FLAGS)
@click.pass_context
def vendors_command(ctx: click.Context, /, **values: object) -> None:
    """Print the devices that are scheduled.

    It prints their names in pods and on nodes, units and defaults. Disabled backends are shown and marked. A backend
    without names in the device configuration does not exist and is not shown.
    """
    from hami.inspect.vendors import entries, render

    settings = settings_of_command_line(ctx, DEVICE_SECTIONS, values, read_settings)
    for note in settings.devices.notes:
        show_note(note)
    rows = entries(
        settings.devices, ascend=settings.enable_ascend, iluvatar=settings.enable_iluvatar
    )
    click.echo(render(rows, str(values["output"] or TABLE_FORMATS[0])))
