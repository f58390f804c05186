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
_EQUALITY = re.compile(rf"{_KEY}\s*(?P<operator>==|=|!=)\s*(?P<values>{_VALUE})")
_SET = re.compile(rf"{_KEY}\s+(?P<operator>in|notin)\s*\((?P<values>[-A-Za-z0-9_.,\s]*)\)")
_EXISTENCE = re.compile(rf"(?P<operator>!)?\s*{_KEY}")


def parse_selector(text: str) -> Matches:
    """Returns whether labels match *text*: ``a=b,c!=d,e in (f,g),h,!i``; all labels match an empty text.

    As in Kubernetes, ``!=`` and ``notin`` match labels without the key. Raises: MalformedInput.
    """
    terms = []
    if text.strip():
        for term in _TERMS.split(text):
            terms.append(_parse_term(text, term.strip()))
    return lambda labels: all(matches(labels) for matches in terms)


def _parse_term(text: str, term: str) -> Matches:
    for shape in (_EQUALITY, _SET, _EXISTENCE):
        match = shape.fullmatch(term)
        if match is not None:
            return _matcher(match)
    raise MalformedInput(
        "label selector", text, f"cannot read {term!r}; expected a=b, a!=b, a in (b,c), a or !a"
    )


def _matcher(match: re.Match[str]) -> Matches:
    key, is_negated = match["key"], match["operator"] in ("!=", "notin", "!")
    if match.re is _EXISTENCE:
        return lambda labels: (key in labels) != is_negated
    values = set(map(str.strip, match["values"].split(",")))
    return lambda labels: (labels.get(key) in values) != is_negated
