"""``hami mount-regions``: what runs once, with privileges, before the device plugin."""

from __future__ import annotations

import click

from hami.cli.flags import GroupedCommand
from hami.plugin.settings import PluginSettings
from hami.runtime.options import FILE, Flag, Sections, whole_number

HOOK_PATH = PluginSettings.hook_path
SIZE_MIB = 512
REGIONS_FLAGS: Sections = {
    "Mount": (
        Flag(
            "--hook-path",
            "The host's directory above vgpu, as of the device plugin.",
            FILE,
            default=HOOK_PATH,
        ),
        Flag(
            "--size",
            "Size in MiB: 2 for each container with shares of GPUs.",
            whole_number(16),
            default=SIZE_MIB,
        ),
    ),
}


@click.command(name="mount-regions", cls=GroupedCommand, sections=REGIONS_FLAGS)
def mount_regions_command(hook_path: str | None, size: int | None) -> None:
    """Mount a file system in memory for shared regions.

    Containers with shares of GPUs write them. They can then fill that file system, and not the disk of the node. Needs
    CAP_SYS_ADMIN, and mounts that reach the host. Changes nothing where a file system is mounted already, or while
    containers have files on the disk.
    """
    from hami.node.region_mount import mount_regions

    click.echo(mount_regions(hook_path or HOOK_PATH, size or SIZE_MIB))
