"""A group of commands whose errors are one line each."""

from __future__ import annotations

from typing import Any

import click

from hami.errors import HamiError


class Commands(click.Group):
    """The commands. An error in one is shown as one line, not as a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except HamiError as error:
            click.echo(f"error: {' '.join(str(error).splitlines())}", err=True)
            ctx.exit(1)
