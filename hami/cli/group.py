"""Commands whose errors are one line each."""

from __future__ import annotations

import errno
import importlib
import os
import re
import sys
import threading
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from hami.cli.targets import did_you_mean
from hami.errors import HamiError
from hami.inspect.tables import printable

_VERBOSITY = re.compile(r"\A-v=?([0-9]+)\Z")
_SHORT_WITH_VALUE = re.compile(r"\A(-[A-Za-z])=(.+)\Z", re.DOTALL)


PEOPLE = dict.fromkeys(("audit", "explain", "simulate", "snapshot", "top"), "hami.cli.people") | {
    "capacity": "hami.cli.room",
    "compact": "hami.cli.room",
    "record": "hami.cli.twin",
    "replay": "hami.cli.twin",
    "resize": "hami.cli.resize",
    "usage": "hami.cli.usage",
    "options": "hami.cli.client",
}
"""The commands for people, and the module that has them."""
LOCAL = {"dashboard": "hami.cli.local_dashboard"}
"""Commands for people that only the plugin has: hami's own of this name is the program in the cluster."""
PLUGIN = "kubectl hami"
"""The plugin of kubectl, as it is called."""
TROUBLE = 2
"""The exit status of a command for people that could not look, as that of diff and grep: 1 means that it found
something."""


class Command(click.Command):
    """A command whose errors are shown as one line, not as a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except HamiError as error:
            message = str(error)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # click ends the process
            message = _reason_of(error)
        click.echo(f"error: {printable(' '.join(message.splitlines()))}", err=True)
        ctx.exit(TROUBLE if self.is_for_people(ctx.invoked_subcommand) else 1)

    def is_for_people(self, name: str | None) -> bool:
        """Reports whether the command *name* is one for people."""
        return name in PEOPLE


def _reason_of(error: OSError) -> str:
    """Returns the file of *error*, if it names one, and the reason."""
    reason = error.strerror or str(error)
    if error.filename is None:
        return reason
    return f"{error.filename}: {reason}"


class Commands(Command, click.Group):
    """The commands."""

    def __init__(
        self, *args: Any, modules: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        """*modules*: by the name of a command, the module that has it as ``‹name›_command``. It is imported when the
        command is asked for: all of them together would take a program 0.1 s at its start."""
        super().__init__(*args, **options)
        self._modules = modules or {}

    def is_for_people(self, name: str | None) -> bool:
        """Reports whether the command *name* is one for people: hami's dashboard is a program, that of the plugin is
        not."""
        return self._modules.get(name or "") in (*PEOPLE.values(), *LOCAL.values())

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of the commands."""
        return sorted({*self.commands, *self._modules})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns the command of that name; ``None`` if there is none."""
        return self._imported(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command. Names the nearest one if there is none."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = did_you_mean(args[0], self.list_commands(ctx))
            raise click.UsageError(error.message + near, ctx) from error

    def all(self) -> Mapping[str, click.Command]:
        """Returns all commands by name."""
        for name in self._modules:
            self._imported(name)
        return self.commands

    def _imported(self, name: str) -> click.Command | None:
        if name in self._modules and name not in self.commands:
            module = importlib.import_module(self._modules[name])
            self.add_command(getattr(module, f"{name.replace('-', '_')}_command"))
        return self.commands.get(name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accepts ``-n=NAME`` for ``-n NAME``, as kubectl does: for click the value would be ``=NAME``. ``-v=6`` is the
        verbosity; ``-v`` alone belongs to the command."""
        args = [_VERBOSITY.sub(r"--v=\1", arg) for arg in args]
        args = [_SHORT_WITH_VALUE.sub(r"\1\2", arg) for arg in args]
        return super().parse_args(ctx, args)


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
