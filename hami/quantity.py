"""Kubernetes quantities (``3000``, ``3k``, ``16Gi``, ``500m``, ``1e3``), exactly, without floats."""

from __future__ import annotations

import functools
import re
from fractions import Fraction

from hami.errors import MalformedInput

MIB, GIB = 1 << 20, 1 << 30
INT32_MAX = 2**31 - 1

LONGEST = 1000  # characters of a quantity; Python refuses to convert more than some thousand digits
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")  # as many digits as one of 64 bits
_SHAPE = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,3})?"
)
_FRACTIONAL = re.compile(r"\.|.-|[num]$")
"""What makes the form of a quantity that of a fraction: a decimal point, a negative exponent, or a small unit."""
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse_integer(text: str, bits: int = 32) -> int | None:
    """Parses *text* as a decimal signed integer of *bits* bits; ``None`` if it is not one.

    Source: Go's strconv.ParseInt, with which upstream reads the fields of annotations.
    """
    if _INTEGER.fullmatch(text) is None:
        return None
    value, limit = int(text), 1 << bits - 1
    if not -limit <= value < limit:
        return None
    return value


@functools.lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Fraction:
    """Returns the exact value of a quantity.

    Raises: MalformedInput if *text* is not a quantity.
    Source: k8s.io/apimachinery, pkg/api/resource, ParseQuantity.
    """
    found = _SHAPE.fullmatch(text)
    if found is None or len(text) > LONGEST:
        raise MalformedInput(
            "quantity",
            text,
            "expected a number with an optional suffix such as k, M, Mi, Gi, m or e3",
        )
    suffix = found["suffix"]
    value = Fraction(found["sign"] + found["number"].rstrip("."))
    if suffix is None:
        return value
    if suffix in _BINARY:
        return value * (1 << _BINARY[suffix])
    exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    return value * Fraction(10) ** exponent


def render_mib(mib: int) -> str:
    """Returns *mib* MiB as the API server writes it: ``3000Mi``, ``80Gi``. Source: Quantity.CanonicalizeBytes."""
    return _render(mib, 1024, ("Mi", "Gi", "Ti", "Pi", "Ei"))


def render_milli(thousandths: int) -> str:
    """Returns *thousandths* as the API server writes them: ``6666m``, ``10``. For less than ``1k``."""
    return _render(thousandths, 1000, ("m", ""))


def _render(value: int, step: int, suffixes: tuple[str, ...]) -> str:
    """Returns *value* with the last of *suffixes* that needs no fraction."""
    suffix, *others = suffixes
    for other in others:
        if value % step or not value:
            break
        value, suffix = value // step, other
    return f"{value}{suffix}" if value else "0"


def strict_integer(text: str) -> int | None:
    """Returns the value of a quantity that is written as an integer; ``None`` for any other text.

    A quantity with a decimal point or a suffix below one is not an integer, not even ``1.0``.
    Source: Quantity.AsInt64, with which upstream reads requests.
    """
    if text.isdecimal() and text.isascii() and len(text) < LONGEST:
        return int(text)  # the common case; a Fraction costs ten times more
    try:
        value = parse_quantity(text)
    except MalformedInput:
        return None
    if _FRACTIONAL.search(text) or value.denominator != 1:
        return None
    return value.numerator


@functools.lru_cache(maxsize=4096)
def rounded_up(text: str, unit: str = "") -> int:
    """Returns the value in *unit* (``m``, ``Mi``; empty for ones), rounded away from zero.

    Source: Quantity.Value, as used by upstream's admission, and Quantity.MilliValue.
    """
    value = parse_quantity(text) / parse_quantity(f"1{unit}")
    whole = -(-abs(value.numerator) // value.denominator)
    return whole if value >= 0 else -whole
