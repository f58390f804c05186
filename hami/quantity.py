"""Kubernetes quantities (``3000``, ``3k``, ``16Gi``, ``500m``, ``1e3``), exactly, without floats."""

from __future__ import annotations

import functools
import re
from fractions import Fraction

from hami.errors import MalformedInput

__all__ = ["INT32_MAX", "parse_integer", "parse_quantity", "rounded_up", "strict_integer"]

INT32_MAX = 2**31 - 1

LONGEST = 1000  # characters of a quantity; beyond some thousand digits Python refuses to make a number of them
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_SHAPE = re.compile(r"(?P<sign>[+-]?)(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
                    r"(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,3})?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse_integer(text: str, bits: int = 32) -> int | None:
    """The signed integer of so many *bits* that *text* writes in decimal digits; ``None`` when it is none.

    Source: Go's strconv.ParseInt, which upstream reads the fields of annotations with.
    """
    if not _INTEGER.fullmatch(text):
        return None
    return value if -(1 << bits - 1) <= (value := int(text)) < 1 << bits - 1 else None


@functools.lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Fraction:
    """The exact value of a quantity.

    Raises: MalformedInput when it is none.
    Source: k8s.io/apimachinery, pkg/api/resource, ParseQuantity.
    """
    found = _SHAPE.fullmatch(text)
    if found is None or len(text) > LONGEST:
        raise MalformedInput("quantity", text,
                             "expected a number with an optional suffix such as k, M, Mi, Gi, m or e3")
    suffix = found["suffix"] or ""
    value = Fraction(found["number"].rstrip("."))
    if suffix in _BINARY:
        value *= 1 << _BINARY[suffix]
    elif suffix:
        value *= Fraction(10) ** (_DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:]))
    return -value if found["sign"] == "-" else value


def strict_integer(text: str) -> int | None:
    """The value when it is written as an integer, else ``None``.

    A decimal point or a suffix below one makes it no integer, even in ``1.0``.
    Source: Quantity.AsInt64, which upstream reads requests with.
    """
    if text.isdecimal() and text.isascii() and len(text) < LONGEST:  # nearly all are; a Fraction costs ten times that
        return int(text)
    value = parse_quantity(text)
    if "." in text or text[-1:] in ("n", "u", "m") or "-" in text[1:] or value.denominator != 1:
        return None
    return value.numerator


def rounded_up(text: str) -> int:
    """The value, rounded away from zero. Source: Quantity.Value, which upstream's admission reads with."""
    value = parse_quantity(text)
    whole = -(-abs(value.numerator) // value.denominator)
    return whole if value >= 0 else -whole
