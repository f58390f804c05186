"""A group of commands whose errors are one line each."""

from __future__ import annotations

import re
from typing import Any

import click

from hami.errors import HamiError

_SHORT_WITH_VALUE = re.compile(r"(-[A-Za-z])=(.+)", re.DOTALL)


class Commands(click.Group):
    """The commands. An error in one is shown as one line, not as a traceback."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accepts ``-n=NAME`` for ``-n NAME``, as kubectl does: for click the value would be ``=NAME``."""
        matches = [(arg, _SHORT_WITH_VALUE.fullmatch(arg)) for arg in args]
        return super().parse_args(ctx, [found[1] + found[2] if found else arg for arg, found in matches])

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except HamiError as error:
            click.echo(f"error: {' '.join(str(error).splitlines())}", err=True)
            ctx.exit(1)
