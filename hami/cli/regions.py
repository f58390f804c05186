"""``hami mount-regions``: what runs once, with privileges, before the device plugin."""

from __future__ import annotations

import click

from hami.cli.device_plugin import PLUGIN_DEFAULTS
from hami.cli.flags import GroupedCommand
from hami.runtime.options import FILE, Flag, Groups, whole_number

REGIONS_FLAGS: Groups = (
    (
        "Mount",
        (
            Flag("--hook-path", FILE, "The host's directory above vgpu, as of the device plugin."),
            Flag(
                "--size",
                whole_number(16),
                "Size in MiB: 2 for each container with shares of GPUs.  [default: 512]",
            ),
        ),
    ),
)


@click.command(
    name="mount-regions", cls=GroupedCommand, groups=REGIONS_FLAGS, defaults=(PLUGIN_DEFAULTS,)
)
def mount_regions_command(hook_path: str | None, size: int | None) -> None:
    """Mount a file system in memory for the files that containers with shares of GPUs may write.

    They can then fill that file system, and not the disk of the node. Needs CAP_SYS_ADMIN, and mounts that reach the
    host. Changes nothing where a file system is mounted already, or while containers have files on the disk.
    """
    from hami.node.region_mount import mount_regions

    click.echo(mount_regions(hook_path or PLUGIN_DEFAULTS.hook_path, size or 512))
