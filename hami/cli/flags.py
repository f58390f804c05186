"""Flags on the command line, and a command whose help groups them.

Flags are upstream's, so that its manifests work with the image changed. ``-`` and ``_`` in a name are equivalent, and
booleans are Go's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from hami.codec.durations import render_duration
from hami.runtime import logs
from hami.runtime.options import ADDRESS, BOOLEAN, DURATION, Flag, Sections, all_flags

GO_FLAGS = {"token_normalize_func": lambda name: name.replace("_", "-"), "max_content_width": 120}
OUTPUT = "--v --log-format"
"""The flags that every program has in its section Output."""


def command_line_flags(
    ctx: click.Context, sections: Sections, values: dict[str, object]
) -> Iterator[tuple[Flag, object]]:
    """The flags of the command line and their values; *values* are the parameters of the command."""
    for flag in all_flags(sections):
        if ctx.get_parameter_source(flag.parameter) is not ParameterSource.COMMANDLINE:
            continue
        value = values[flag.parameter]
        if flag.repeated and isinstance(value, tuple):
            value = tuple(dict.fromkeys(itertools.chain.from_iterable(value)))
        yield flag, value


def command_line_values(
    ctx: click.Context, sections: Sections, values: dict[str, object]
) -> dict[str, object]:
    """The values of the flags of the command line, by field."""
    return {flag.parameter: value for flag, value in command_line_flags(ctx, sections, values)}


def run_program(
    ctx: click.Context, serve: Callable[..., int], settings: Any, *arguments: object
) -> NoReturn:
    """Sets up the log, and runs *serve* with *settings* and *arguments*.
    Tests pass their own as the context's object."""
    logs.configure(settings.log_format, settings.verbosity)
    ctx.exit((ctx.obj or serve)(settings, *arguments))


class GroupedCommand(click.Command):
    """A command whose help shows its flags in sections."""

    def __init__(self, *, sections: Sections, **kwargs: Any) -> None:
        self._sections = {
            title: [_option(flag) for flag in flags] for title, flags in sections.items()
        }
        kwargs["params"] = list(itertools.chain.from_iterable(self._sections.values()))
        super().__init__(context_settings=GO_FLAGS, **kwargs)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the sections, then --help."""
        sections = dict(self._sections)
        if help_option := self.get_help_option(ctx):
            sections["Other"] = [help_option]
        for title, options in sections.items():
            records = (option.get_help_record(ctx) for option in options)
            with formatter.section(title):
                formatter.write_dl([record for record in records if record])


def _option(flag: Flag) -> click.Option:
    """The option for click. A boolean needs no value."""
    names, text = [flag.name, *flag.also.split(), flag.parameter], _help(flag)
    if flag.type is BOOLEAN:
        return click.Option(
            names, type=flag.type, help=text, metavar="[BOOL]", is_flag=False, flag_value="true"
        )
    return click.Option(
        names, type=flag.type, help=text, metavar=flag.type.name.upper(), multiple=flag.repeated
    )


def _help(flag: Flag) -> str:
    text = meaning(flag)
    if flag.environment:
        text += f"  [{', '.join(flag.environment.split())}]"
    if default := default_text(flag):
        text += f"  [default: {default}]"
    return text


def meaning(flag: Flag) -> str:
    """The meaning of *flag* in words, without its default."""
    sentences = []
    if flag.key is not None:
        sentences.append(f"Sets {flag.key}.")
    if flag.help:
        sentences.append(flag.help)
    if flag.requires:
        sentences.append(f"Requires {flag.requires}.")
    return " ".join(sentences)


def default_text(flag: Flag) -> str:
    """The default of *flag* as on the command line; empty if there is none."""
    value = flag.default
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        if flag.type is DURATION:
            return render_duration(timedelta(seconds=value))
        return f"{value:g}"
    if isinstance(value, tuple) and flag.type is not ADDRESS:
        return ",".join(map(str, value))
    return "" if value is None else str(value)
