"""Label selectors, as kubectl takes them with ``-l``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from hami.errors import MalformedInput

Labels = Mapping[str, str]
Matches = Callable[[Labels], bool]

_KEY = r"(?P<key>[A-Za-z0-9][-A-Za-z0-9_./]*)"
_VALUE = r"[-A-Za-z0-9_.]*"
_TERMS = re.compile(r",(?![^(]*\))")  # a comma that is not in parentheses
_EQUALITY = re.compile(rf"{_KEY}\s*(?P<operator>==|=|!=)\s*(?P<value>{_VALUE})")
_SET = re.compile(rf"{_KEY}\s+(?P<operator>in|notin)\s*\((?P<values>[-A-Za-z0-9_.,\s]*)\)")
_EXISTENCE = re.compile(rf"(?P<not>!)?\s*{_KEY}")


def parse_selector(text: str) -> Matches:
    """Returns whether labels match *text*: ``a=b,c!=d,e in (f,g),h,!i``; all labels match an empty text.

    As in Kubernetes, ``!=`` and ``notin`` match labels without the key. Raises: MalformedInput.
    """
    terms = [_parse_term(text, term.strip()) for term in _TERMS.split(text)] if text.strip() else []
    return lambda labels: all(matches(labels) for matches in terms)


def _parse_term(text: str, term: str) -> Matches:
    if found := _EQUALITY.fullmatch(term):
        key, value = found["key"], found["value"]
        if found["operator"] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if found := _SET.fullmatch(term):
        key, values = found["key"], {value.strip() for value in found["values"].split(",")}
        if found["operator"] == "notin":
            return lambda labels: labels.get(key) not in values
        return lambda labels: labels.get(key) in values
    if found := _EXISTENCE.fullmatch(term):
        key = found["key"]
        if found["not"]:
            return lambda labels: key not in labels
        return lambda labels: key in labels
    raise MalformedInput("label selector", text, f"cannot read {term!r}; expected a=b, a!=b, a in (b,c), a or !a")
