"""A group of commands whose errors are one line each."""

from __future__ import annotations

import os
import re
import sys
import threading
from typing import Any, NoReturn

import click

from hami.errors import HamiError
from hami.inspect.tables import printable

_SHORT_WITH_VALUE = re.compile(r"(-[A-Za-z])=(.+)", re.DOTALL)


class Commands(click.Group):
    """The commands. An error in one is shown as one line, not as a traceback."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accepts ``-n=NAME`` for ``-n NAME``, as kubectl does: for click the value would be ``=NAME``."""
        matches = [(arg, _SHORT_WITH_VALUE.fullmatch(arg)) for arg in args]
        return super().parse_args(ctx, [match[1] + match[2] if match else arg for arg, match in matches])

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except HamiError as error:
            click.echo(f"error: {printable(' '.join(str(error).splitlines()))}", err=True)
            ctx.exit(1)


def run(commands: Commands, name: str) -> NoReturn:
    """Runs the command of this process, whose program is called *name*, and ends the process.

    A command that has read a large cluster ends without freeing it object by object, which takes a sixth of its time. A
    program with threads ends as usual.
    """
    try:
        commands(prog_name=name)
    except SystemExit as ended:
        if threading.active_count() > 1 or not isinstance(ended.code, int):
            raise
        try:
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
        except OSError:
            raise ended from None  # the interpreter reports it
        os._exit(ended.code)
    raise AssertionError("click ends the process")
