"""Selectors of devices (CEL) that are read without an interpreter: comparisons of what our slices publish, with ``!``,
``&&``, ``||`` and parentheses. The expressions that admission writes, and those of the documentation, are among them.

Anything else is not read: callers say so instead of guessing.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from hami.codec.claim_amounts import MAX_EXPRESSION
from hami.codec.slices import DRIVER, SHARE, published_text
from hami.errors import MalformedInput
from hami.model import Device
from hami.quantity import MIB, parse_quantity

Condition = Callable[[Device], bool]
"""Reports whether a device meets a selector."""
Token = tuple[str, str]
"""The kind of a token (``text``, ``number``, ``word``, ``sign``), and how it is written."""

_STANDARD = "resource.kubernetes.io"
LONGEST_NUMBER = 18  # digits
_MAX_DEPTH = 16  # of parentheses and negations
_TOKEN = re.compile(
    r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|\'[^\'\\]*\')|(?P<number>-?[0-9]+)'
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign>&&|\|\||[=!<>]=|[!<>().,\[\]]))"
)
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = MappingProxyType(
    {
        "==": operator.eq,
        "!=": operator.ne,
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
    }
)
_TEXT_METHODS: Mapping[str, Callable[[str, str], bool]] = MappingProxyType(
    {"contains": operator.contains, "startsWith": str.startswith, "endsWith": str.endswith}
)
_ATTRIBUTES: Mapping[tuple[str, str], tuple[type, Callable[[Device], str | int]]] = (
    MappingProxyType(
        {
            (DRIVER, "type"): (str, lambda device: "gpu"),
            (DRIVER, "uuid"): (str, lambda device: device.uuid),
            (DRIVER, "productName"): (str, lambda device: published_text(device.model)),
            (DRIVER, "mode"): (str, lambda device: published_text(device.mode)),
            (DRIVER, "index"): (int, lambda device: device.index),
            (DRIVER, "memoryMiB"): (int, lambda device: device.memory_mib),
            (_STANDARD, "numaNode"): (int, lambda device: device.numa),
        }
    )
)
_CAPACITIES: Mapping[str, Callable[[Device], int]] = MappingProxyType(
    {
        "memory": lambda device: device.memory_mib * MIB,
        "cores": lambda device: device.cores,
        "share": lambda device: SHARE,
    }
)


class _Operand(NamedTuple):
    """A value of a device, or a literal. *type*: of the value."""

    type: type
    value: Callable[[Device], str | int]


@functools.lru_cache(maxsize=512)
def parse_condition(text: str) -> Condition | None:
    """Returns the condition in the selector *text*; ``None`` if it is not read."""
    try:
        return _Parser(_tokens(text)).condition()
    except _Unread:
        return None


def tokens_of(text: str) -> list[Token]:
    """Returns the tokens of *text*; none if it is no expression of this kind."""
    try:
        return _tokens(text)
    except _Unread:
        return []


def text_of(token: Token) -> str | None:
    """Returns the text that the literal *token* stands for; ``None`` if it is no such literal."""
    kind, literal = token
    if kind != "text":
        return None
    if literal.startswith("'"):
        return literal[1:-1]
    try:
        return str(json.loads(literal))
    except ValueError:
        return None


def attribute_of(device: Device, name: str) -> str | int | None:
    """Returns the attribute *name* (with its domain, else of our driver) of *device*; ``None`` if our slices publish
    none, or it is not known here."""
    domain, slash, identifier = name.rpartition("/")
    found = _ATTRIBUTES.get((domain if slash else DRIVER, identifier))
    return found[1](device) if found is not None else None


class _Unread(Exception):
    """An expression of another kind."""


def _tokens(text: str) -> list[Token]:
    if len(text.encode(errors="surrogatepass")) > MAX_EXPRESSION:
        raise _Unread
    tokens, end, text = [], 0, text.rstrip()
    while end < len(text):
        if (match := _TOKEN.match(text, end)) is None:
            raise _Unread
        tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
        end = match.end()
    return tokens


class _Parser:
    """Reads the tokens of an expression, one after the other. Each method raises _Unread."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def condition(self) -> Condition:
        """Returns the condition that all tokens make."""
        condition = self._either()
        if self._next != len(self._tokens):
            raise _Unread
        return condition

    def _either(self) -> Condition:
        parts = [self._both()]
        while self._skip("||"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else lambda device: any(part(device) for part in parts)

    def _both(self) -> Condition:
        parts = [self._negated()]
        while self._skip("&&"):
            parts.append(self._negated())
        return parts[0] if len(parts) == 1 else lambda device: all(part(device) for part in parts)

    def _negated(self) -> Condition:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _Unread
        if self._skip("!"):
            condition = _negation(self._negated())
        elif self._skip("("):
            condition = self._either()
            self._expect(")")
        else:
            condition = self._comparison()
        self._depth -= 1
        return condition

    def _comparison(self) -> Condition:
        left = self._operand()
        if self._skip("in"):
            choices = frozenset(self._list(left.type))
            return lambda device: left.value(device) in choices
        if self._skip("."):
            return self._method(left)
        compare = _COMPARISONS.get(self._take())
        right = self._operand()
        if compare is None or left.type is not right.type or left.type is float:
            raise _Unread
        return lambda device: compare(left.value(device), right.value(device))

    def _method(self, left: _Operand) -> Condition:
        name = self._take()
        self._expect("(")
        if name == "compareTo":
            return self._compared(left)
        method, right = _TEXT_METHODS.get(name), self._operand()
        self._expect(")")
        if method is None or left.type is not str or right.type is not str:
            raise _Unread
        return lambda device: method(str(left.value(device)), str(right.value(device)))

    def _compared(self, left: _Operand) -> Condition:
        """Returns the condition of ``compareTo(quantity("…")) >= 0``."""
        self._expect("quantity", "(")
        try:
            amount = parse_quantity(str(self._literal(str)))
        except MalformedInput:
            raise _Unread from None
        self._expect(")", ")")
        compare = _COMPARISONS.get(self._take())
        if compare is None or self._literal(int) != 0 or left.type is not float:
            raise _Unread
        return lambda device: compare(left.value(device), amount)

    def _operand(self) -> _Operand:
        kind, token = self._peek()
        if kind in ("text", "number"):
            literal = self._literal(str if kind == "text" else int)
            return _Operand(type(literal), lambda device: literal)
        self._expect("device", ".")
        match self._take():
            case "driver":
                operand = _Operand(str, lambda device: DRIVER)
            case "attributes":
                attribute = _ATTRIBUTES.get((self._domain(), self._take()))
                if attribute is None:
                    raise _Unread
                operand = _Operand(*attribute)
            case "capacity" if (
                self._domain() == DRIVER and (amount := _CAPACITIES.get(self._take())) is not None
            ):
                return _Operand(
                    float, amount
                )  # a quantity, which only quantities are compared with
            case _:
                raise _Unread
        if self._tokens[self._next : self._next + len(_LOWER)] != _LOWER:
            return operand
        self._next += len(_LOWER)
        if operand.type is not str:
            raise _Unread
        return _Operand(str, lambda device: _lower_ascii(str(operand.value(device))))

    def _domain(self) -> str:
        self._expect("[")
        domain = str(self._literal(str))
        self._expect("]", ".")
        return domain

    def _list(self, type: type) -> list[str | int]:
        self._expect("[")
        items: list[str | int] = []
        while not self._skip("]"):
            if items:
                self._expect(",")
            items.append(self._literal(type))
        return items

    def _literal(self, type: type) -> str | int:
        kind, token = self._peek()
        if (kind, type) not in (("text", str), ("number", int)) or (
            kind == "number" and len(token) > LONGEST_NUMBER
        ):
            raise _Unread
        self._next += 1
        value = int(token) if kind == "number" else text_of((kind, token))
        if value is None:
            raise _Unread
        return value

    def _peek(self) -> Token:
        if self._next == len(self._tokens):
            raise _Unread
        return self._tokens[self._next]

    def _take(self) -> str:
        kind, token = self._peek()
        if kind not in ("word", "sign"):
            raise _Unread
        self._next += 1
        return token

    def _skip(self, token: str) -> bool:
        """Takes *token* if it is the next one."""
        is_next = self._next < len(self._tokens) and self._tokens[self._next] in (
            ("sign", token),
            ("word", token),
        )
        self._next += is_next
        return is_next

    def _expect(self, *tokens: str) -> None:
        if not all([self._skip(token) for token in tokens]):
            raise _Unread


def _negation(condition: Condition) -> Condition:
    return lambda device: not condition(device)


_LOWER = [("sign", "."), ("word", "lowerAscii"), ("sign", "("), ("sign", ")")]


def _lower_ascii(text: str) -> str:
    return "".join(character.lower() if character.isascii() else character for character in text)
