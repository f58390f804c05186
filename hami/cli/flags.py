"""Flags of the commands: their types, their table rows, and a command whose help groups them.

Flags are upstream's, so that its manifests work with the image changed. ``-`` and ``_`` in a name are equivalent, and
booleans are Go's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import click
from click.core import ParameterSource

from hami.codec.device_config import parse_resource_name
from hami.codec.durations import render_duration
from hami.errors import MalformedInput
from hami.runtime import logs
from hami.runtime.options import parse_address, parse_boolean, parse_choice, parse_seconds

__all__ = [
    "ADDRESS", "BOOLEAN", "COUNT", "DURATION", "FILE", "GO_FLAGS", "LOG_FORMAT", "RATE", "RESOURCE", "STRING",
    "VERBOSITY", "Flag", "Groups", "GroupedCommand", "Value", "flags_given", "whole_number",
]

GO_FLAGS = {"token_normalize_func": lambda name: name.replace("_", "-"), "max_content_width": 120}


class Value(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """A type of flag values: *parse* converts the text. Its MalformedInput becomes an error that names the flag."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> object:
        """The parsed value of the text *value*."""
        try:
            return self.parse(str(value))
        except MalformedInput as error:
            self.fail(f"{error.text!r}: {error.problem}", param, ctx)


def whole_number(least: int) -> Value:
    """The type of integers from *least*."""
    def parse(text: str) -> int:
        digits = text.removeprefix("=")  # -v=4: click keeps the = of short flags
        if not (digits.removeprefix("-").isascii() and digits.removeprefix("-").isdigit()) or int(digits) < least:
            raise MalformedInput("integer", text, f"expected a whole number, {least} or more")
        return int(digits)
    return Value("int", parse)


def _parse_rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise MalformedInput("number", text, "expected a number, 0 or more")
    return value


STRING = Value("text", str)
FILE = Value("file", str)
BOOLEAN = Value("bool", parse_boolean)
COUNT = whole_number(0)
RATE = Value("number", _parse_rate)
DURATION = Value("duration", parse_seconds)
ADDRESS = Value("host:port", parse_address)
RESOURCE = Value("name", parse_resource_name)


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: its name as upstream's, its type, its help, and the field of the settings that it sets.

    The default is that of the field. *config_key*: the key of the device configuration that the flag replaces where the
    file has none: mapping, dot, key, the mapping as in :data:`hami.codec.device_config.Fallback`. A flag with neither
    is accepted without effect. *also*: other names. *environment*: variables that set the field, too. *repeated*: the
    flag may be given several times, and its values are concatenated.
    """

    name: str
    type: Value
    help: str = ""
    field: str = ""
    also: tuple[str, ...] = ()
    config_key: str = ""
    environment: tuple[str, ...] = ()
    repeated: bool = False

    @property
    def parameter(self) -> str:
        """The name of the command's parameter."""
        return self.field or self.name.lstrip("-").replace("-", "_")

    def option(self, default_of: Callable[[str], object]) -> click.Option:
        """The option for click. A boolean needs no value. *default_of* returns the default of a field."""
        names = [self.name, *self.also, self.parameter]
        if self.type.parse is parse_boolean:
            return click.Option(names, type=self.type, help=self._help(default_of), metavar="[BOOL]", is_flag=False,
                                flag_value="true")
        return click.Option(names, type=self.type, help=self._help(default_of), metavar=self.type.name.upper(),
                            multiple=self.repeated)

    def _help(self, default_of: Callable[[str], object]) -> str:
        if self.config_key:
            return " ".join(filter(None, (f"Sets {_described(self.config_key)}.", self.help)))
        default = _render(default_of(self.field), self.type) if self.field else ""
        variables = f"  [{', '.join(self.environment)}]" if self.environment else ""
        return f"{self.help}{variables}" + (f"  [default: {default}]" if default else "")


Groups = tuple[tuple[str, tuple[Flag, ...]], ...]
"""Titles and the flags below them, in the order of the help."""

VERBOSITY = Flag("--v", COUNT, "Verbosity: 0 logs outcomes and warnings, 4 or more also debug messages.", "verbosity",
                 also=("-v",))
LOG_FORMAT = Flag("--log-format", Value("format", parse_choice(*logs.FORMATS)),
                  "text (key=value) or json, one line for each message, on standard error.", "log_format")


def flags_given(ctx: click.Context, groups: Groups, values: dict[str, object]) -> Iterator[tuple[Flag, object]]:
    """The flags of the command line and their values; *values* are the parameters of the command."""
    for flag in (flag for _, flags in groups for flag in flags):
        if ctx.get_parameter_source(flag.parameter) is ParameterSource.COMMANDLINE:
            value = values[flag.parameter]
            if flag.repeated and isinstance(value, tuple):
                value = tuple(dict.fromkeys(word for words in value for word in words))
            yield flag, value


class GroupedCommand(click.Command):
    """A command whose help shows its flags in groups."""

    def __init__(self, *, groups: Groups, default_of: Callable[[str], object], **kwargs: Any) -> None:
        self._groups = [(title, [flag.option(default_of) for flag in flags]) for title, flags in groups]
        kwargs["params"] = [option for _, options in self._groups for option in options]
        super().__init__(context_settings=GO_FLAGS, **kwargs)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the groups, then --help."""
        others = [option for option in (self.get_help_option(ctx),) if option is not None]
        for title, options in [*self._groups, ("Other", others)]:
            with formatter.section(title):
                formatter.write_dl([record for option in options if (record := option.get_help_record(ctx))])


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
        return render_duration(timedelta(seconds=value)) if type is DURATION else f"{value:g}"
    if isinstance(value, tuple) and type is not ADDRESS:
        return ",".join(map(str, value))
    return "" if value is None else str(value)
