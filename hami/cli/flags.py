"""Flags on the command line, and a command whose help groups them.

Flags are upstream's, so that its manifests work with the image changed. ``-`` and ``_`` in a name are equivalent, and
booleans are Go's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, NoReturn

import click
import durationpy
from click.core import ParameterSource

from hami.runtime import logs
from hami.runtime.options import ADDRESS, BOOLEAN, COUNT, DURATION, Flag, Groups, Value, choice

GO_FLAGS = {"token_normalize_func": lambda name: name.replace("_", "-"), "max_content_width": 120}


VERBOSITY = Flag(
    "--v",
    COUNT,
    "Verbosity: 0 logs outcomes and warnings, 4 or more also debug messages.",
    "verbosity",
    also=("-v",),
)
LOG_FORMAT = Flag(
    "--log-format",
    choice("format", *logs.FORMATS),
    "text (key=value) or json, one line for each message, on standard error.",
)


def flags_given(
    ctx: click.Context, groups: Groups, values: dict[str, object]
) -> Iterator[tuple[Flag, object]]:
    """The flags of the command line and their values; *values* are the parameters of the command."""
    for flag in (flag for _, flags in groups for flag in flags):
        if ctx.get_parameter_source(flag.parameter) is ParameterSource.COMMANDLINE:
            value = values[flag.parameter]
            if flag.repeated and isinstance(value, tuple):
                value = tuple(dict.fromkeys(word for words in value for word in words))
            yield flag, value


def fields_given(
    ctx: click.Context, groups: Groups, values: dict[str, object]
) -> dict[str, object]:
    """The values of the flags of the command line, by field."""
    return {flag.parameter: value for flag, value in flags_given(ctx, groups, values)}


def run_program(
    ctx: click.Context, serve: Callable[..., int], settings: Any, *arguments: object
) -> NoReturn:
    """Sets up the log, and runs *serve* with *settings* and *arguments*.
    Tests pass their own as the context's object."""
    logs.configure(settings.log_format, settings.verbosity)
    ctx.exit((ctx.obj or serve)(settings, *arguments))


class GroupedCommand(click.Command):
    """A command whose help shows its flags in groups. *defaults*: records that hold the default of each field.

    *moved*: flags that another command has now, and what to give instead.
    """

    def __init__(
        self,
        *,
        groups: Groups,
        defaults: Iterable[object],
        moved: Mapping[str, str] = MappingProxyType({}),
        **kwargs: Any,
    ) -> None:
        self._moved = moved
        self._groups = [
            (title, [_option(flag, defaults) for flag in flags]) for title, flags in groups
        ]
        kwargs["params"] = [option for _, options in self._groups for option in options]
        super().__init__(context_settings=GO_FLAGS, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuses flags that have moved, with the new place."""
        for name in (arg.partition("=")[0].replace("_", "-") for arg in args):
            if name in self._moved:
                raise click.UsageError(
                    f"{name} is no flag of {self.name} any more: use {self._moved[name]}", ctx
                )
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the groups, then --help."""
        others = [option for option in (self.get_help_option(ctx),) if option is not None]
        for title, options in [*self._groups, ("Other", others)]:
            with formatter.section(title):
                formatter.write_dl(
                    [record for option in options if (record := option.get_help_record(ctx))]
                )


def _option(flag: Flag, defaults: Iterable[object]) -> click.Option:
    """The option for click. A boolean needs no value."""
    names, text = [flag.name, *flag.also, flag.parameter], _help(flag, defaults)
    if flag.type is BOOLEAN:
        return click.Option(
            names, type=flag.type, help=text, metavar="[BOOL]", is_flag=False, flag_value="true"
        )
    return click.Option(
        names, type=flag.type, help=text, metavar=flag.type.name.upper(), multiple=flag.repeated
    )


def _help(flag: Flag, defaults: Iterable[object]) -> str:
    if flag.config_key:
        return " ".join(filter(None, (f"Sets {_described(flag.config_key)}.", flag.help)))
    values = (
        getattr(record, flag.parameter) for record in defaults if hasattr(record, flag.parameter)
    )
    default = _render(next(values, None), flag.type)
    variables = f"  [{', '.join(flag.environment)}]" if flag.environment else ""
    return f"{flag.help}{variables}" + (f"  [default: {default}]" if default else "")


def _described(path: str) -> str:
    """The key at *path* of the device configuration, in words."""
    mapping, _, key = path.rpartition(".")
    section, bracket, word = mapping.rstrip("]").partition("[")
    if word:
        return f"{key} of {word} in {section}"
    return f"{key} of the one entry of {section} that lacks it" if bracket else path


def _render(value: object, type: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return durationpy.to_str(timedelta(seconds=value)) if type is DURATION else f"{value:g}"
    if isinstance(value, tuple) and type is not ADDRESS:
        return ",".join(map(str, value))
    return "" if value is None else str(value)
