"""Flags as the programs declare them, the types of their values, and the files that they name."""

from __future__ import annotations

import ipaddress
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import click

from hami.codec.device_config import Key
from hami.codec.durations import parse_duration
from hami.codec.register import parse_bool
from hami.errors import HamiError, MalformedInput
from hami.quantity import parse_integer


class Address(NamedTuple):
    """A listening address; an empty host means all addresses."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether it is reached from this machine only."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_address(text: str) -> Address:
    """Host and port in ``127.0.0.1:8080``, ``[::1]:8080`` or ``:8080``. Raises: MalformedInput."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    legal = (
        colon
        and port.isascii()
        and port.isdigit()
        and int(port) <= 65_535
        and (bracketed or ":" not in host)
    )
    if not legal:
        raise MalformedInput(
            "address", text, "expected host:port, [IPv6]:port or :port, with a port from 0 to 65535"
        )
    return Address(host[1:-1] if bracketed else host, int(port))


def parse_boolean(text: str) -> bool:
    """The boolean of *text* as Go's ParseBool. Raises: MalformedInput."""
    value = parse_bool(text)
    if value is None:
        raise MalformedInput(
            "boolean",
            text,
            "expected true or false (or 1, t, T, TRUE, True, 0, f, F, FALSE, False)",
        )
    return value


def parse_seconds(text: str) -> float:
    """The seconds of a Go duration, which must not be negative. Raises: MalformedInput."""
    seconds = parse_duration(text).total_seconds()
    if seconds < 0:
        raise MalformedInput("duration", text, "expected no negative duration")
    return seconds


def parse_timeout(text: str) -> float:
    """The seconds of a Go duration, or a number of seconds. Raises: MalformedInput.

    Source: client-go, tools/clientcmd/helpers.go, ParseTimeout.
    """
    if text.isascii() and text.isdecimal():
        text += "s"
    return parse_seconds(text)


def parse_named(text: str, parse: Callable[[str], object], place: str) -> object:
    """The value of *text*. Raises: MalformedInput, which names *place*."""
    try:
        return parse(text)
    except MalformedInput as error:
        raise MalformedInput(place, text, error.problem) from error


def read_text(flag: str, path: str | Path) -> str:
    """The text of the file at *path*, which *flag* names. Raises: HamiError with flag, path and reason."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise HamiError(f"{flag} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise HamiError(f"{flag} {path}: not UTF-8 text: {error.reason}") from error


class Value(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """A type of flag values: *parse* converts the text. Its MalformedInput becomes an error that names the flag."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self.parse = parse

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        """The parsed value of the text *value*."""
        try:
            return self.parse(str(value))
        except MalformedInput as error:
            self.fail(f"{error.text!r}: {error.problem}", param, ctx)


def choice(name: str, *words: str) -> Value:
    """The type of one of *words*."""

    def parse(text: str) -> str:
        if text not in words:
            raise MalformedInput(name, text, f"expected {' or '.join(words)}")
        return text

    return Value(name, parse)


def whole_number(least: int) -> Value:
    """The type of integers from *least*."""

    def parse(text: str) -> int:
        value = parse_integer(text.removeprefix("="))  # -v=4: click keeps the = of short flags
        if value is None or value < least:
            raise MalformedInput("integer", text, f"expected a whole number, {least} or more")
        return value

    return Value("int", parse)


def _number(name: str, is_allowed: Callable[[float], bool], expected: str) -> Value:
    """The type of finite numbers that are allowed."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or not is_allowed(value):
            raise MalformedInput(name, text, expected)
        return value

    return Value(name, parse)


STRING = Value("text", str)
FILE = Value("file", str)
BOOLEAN = Value("bool", parse_boolean)
COUNT = whole_number(0)
RATE = _number("number", lambda value: value >= 0, "expected a number, 0 or more")
FACTOR = _number("factor", lambda value: value > 0, "expected a number above 0, such as 1.5")
DURATION = Value("duration", parse_seconds)
TIMEOUT = Value("duration", parse_timeout)
ADDRESS = Value("host:port", parse_address)
_TYPES: Mapping[Any, Value] = {str: STRING, bool: BOOLEAN, int: COUNT, Address: ADDRESS}

File = Annotated[str, FILE]
Seconds = Annotated[float, DURATION]


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag, as the annotation of the field that it sets: ``retries: Annotated[int, Flag("--retries", "…")] = 3``.

    Other flags stand alone: those that set a key of the device configuration, and those without effect.
    """

    name: str
    """The name, which is upstream's."""

    help: str = ""

    type: Value = STRING
    """How its text is read. For the flag of a field, the annotation says it."""

    also: str = ""
    """Other names, like variables and keys separated by blanks."""

    environment: str = ""
    """Variables that set the field, too; the first one that is not empty counts."""

    keys: str = ""
    """Keys that set the field in the sections ``flags``, ``flags.plugin`` and ``imex`` of the device configuration,
    which NVIDIA's own plugin defines."""

    repeated: bool = False
    """Whether it may be given several times: the values are concatenated."""

    key: Key | None = None
    """The key of the device configuration that it sets where the file has none."""

    requires: str = ""
    """The flag without which it is skipped."""

    field: str = ""
    default: object = None

    @property
    def parameter(self) -> str:
        """The name of the command's parameter, which is the field if there is one."""
        return self.field or parameter(self.name)


def parameter(name: str) -> str:
    """Returns the name of the parameter for the flag *name*."""
    return name.lstrip("-").replace("-", "_")


def flags_of(record: object) -> dict[str, Flag]:
    """Returns the flags of the fields of a dataclass by name. Their defaults are the values in *record*.

    An annotation may say how the text is read: ``Annotated[float, RATE, Flag(…)]``.
    """
    flags: dict[str, Flag] = {}
    for field, hint in get_type_hints(type(record), include_extras=True).items():
        parsed = _TYPES.get(getattr(hint, "__origin__", None), STRING)
        for note in getattr(hint, "__metadata__", ()):
            if isinstance(note, Value):
                parsed = note
            elif isinstance(note, Flag):
                default = getattr(record, field)
                flags[note.name] = replace(note, type=parsed, field=field, default=default)
    return flags


Sections = Mapping[str, Sequence[Flag]]
"""The flags of a command by the titles of its help, in the order of the help."""


def section(flags: Mapping[str, Flag], names: str) -> tuple[Flag, ...]:
    """Returns those of *flags* that *names* lists."""
    return tuple(flags[name] for name in names.split())


def all_flags(sections: Sections) -> list[Flag]:
    """Returns the flags of all *sections*."""
    return list(itertools.chain.from_iterable(sections.values()))
