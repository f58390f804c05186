"""Parsers of flags and environment variables that several programs share, and the files that flags name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hami.codec.durations import parse_duration
from hami.codec.register import parse_bool
from hami.errors import HamiError, MalformedInput

__all__ = ["Address", "parse_address", "parse_boolean", "parse_choice", "parse_seconds", "read_text"]


class Address(NamedTuple):
    """A listening address; an empty host means all addresses."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Host and port in ``127.0.0.1:8080``, ``[::1]:8080`` or ``:8080``. Raises: MalformedInput."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    legal = colon and port.isascii() and port.isdigit() and int(port) <= 65_535 and (bracketed or ":" not in host)
    if not legal:
        raise MalformedInput("address", text, "expected host:port, [IPv6]:port or :port, with a port from 0 to 65535")
    return Address(host[1:-1] if bracketed else host, int(port))


def parse_boolean(text: str) -> bool:
    """The boolean of *text* as Go's ParseBool. Raises: MalformedInput."""
    value = parse_bool(text)
    if value is None:
        raise MalformedInput("boolean", text, "expected true or false (or 1, t, T, TRUE, True, 0, f, F, FALSE, False)")
    return value


def parse_choice(*words: str) -> Callable[[str], str]:
    """Returns a parser of one of *words*, which raises MalformedInput."""
    def parse(text: str) -> str:
        if text not in words:
            raise MalformedInput("word", text, f"expected {' or '.join(words)}")
        return text
    return parse


def parse_seconds(text: str) -> float:
    """The seconds of a Go duration, which must not be negative. Raises: MalformedInput."""
    seconds = parse_duration(text).total_seconds()
    if seconds < 0:
        raise MalformedInput("duration", text, "expected no negative duration")
    return seconds


def read_text(flag: str, path: str | Path) -> str:
    """The text of the file at *path*, which *flag* names. Raises: HamiError with flag, path and reason."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise HamiError(f"{flag} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise HamiError(f"{flag} {path}: not UTF-8 text: {error.reason}") from error
