"""Durations in Go's notation (``5m0s``, ``28s``, ``1h2m``), from and to ``timedelta``.

A ``timedelta`` has microseconds: finer parts of the text are truncated. (The library durationpy accepts more than Go,
such as days and ``1h x 2m``.)
"""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction

from hami.errors import MalformedInput

_UNITS_NS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_LARGEST_NS = 2**63 - 1
_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_SHAPE = re.compile(rf"[+-]?(?:0|(?:{_PART.pattern})+)")


def parse_duration(text: str) -> timedelta:
    """The duration of *text*: numbers with units (ns, us, ms, s, m, h), or ``0``.

    Raises: MalformedInput, also beyond Go's range of about 292 years.
    Source: Go, package time, ParseDuration.
    """
    if _SHAPE.fullmatch(text) is None:
        raise MalformedInput(
            "duration", text, "expected numbers with units, such as 28s, 5m0s or 1h30m"
        )
    total = sum(
        Fraction(number.rstrip(".")) * _UNITS_NS[unit] for number, unit in _PART.findall(text)
    )
    if total > _LARGEST_NS:
        raise MalformedInput("duration", text, "expected at most 2562047h47m16s")
    whole = timedelta(microseconds=int(total / 1000))
    return -whole if text.startswith("-") else whole


def render_duration(duration: timedelta) -> str:
    """The text of *duration*, which is not negative, without units that are zero: ``5m``, ``900ms``."""
    rest = duration // timedelta(microseconds=1)
    text = ""
    for unit in ("h", "m", "s", "ms", "us"):
        count, rest = divmod(rest, _UNITS_NS[unit] // 1000)
        if count:
            text += f"{count}{unit}"
    return text or "0"
