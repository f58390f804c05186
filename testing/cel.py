"""Expressions of CEL, parsed into nodes, for tests that ask what a policy of the API server says.

The grammar is that of the language definition, with the optional syntax that Kubernetes adds (``a.?b``, ``a[?k]``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "Binary",
    "Call",
    "CelError",
    "Conditional",
    "Index",
    "Items",
    "Literal",
    "Name",
    "Node",
    "Not",
    "Select",
    "parse",
]


class CelError(ValueError):
    """An expression is not one of CEL."""


@dataclass(frozen=True)
class Node:
    """A part of an expression."""

    @property
    def parts(self) -> tuple[Node, ...]:
        """The nodes of which it consists."""
        return ()


@dataclass(frozen=True)
class Literal(Node):
    """A text, a number, a boolean or null."""

    value: object


@dataclass(frozen=True)
class Name(Node):
    """A variable."""

    name: str


@dataclass(frozen=True)
class Select(Node):
    """A field of *target*."""

    target: Node
    field: str

    @property
    def parts(self) -> tuple[Node, ...]:
        return (self.target,)


@dataclass(frozen=True)
class Index(Node):
    """The item of *target* at *key*."""

    target: Node
    key: Node

    @property
    def parts(self) -> tuple[Node, ...]:
        return (self.target, self.key)


@dataclass(frozen=True)
class Call(Node):
    """A function, or a method or macro of *target*."""

    target: Node | None
    function: str
    arguments: tuple[Node, ...]

    @property
    def parts(self) -> tuple[Node, ...]:
        target = () if self.target is None else (self.target,)
        return (*target, *self.arguments)


@dataclass(frozen=True)
class Items(Node):
    """A list, a map or an object: its keys and values."""

    items: tuple[Node, ...]

    @property
    def parts(self) -> tuple[Node, ...]:
        return self.items


@dataclass(frozen=True)
class Not(Node):
    """The opposite of a boolean."""

    operand: Node

    @property
    def parts(self) -> tuple[Node, ...]:
        return (self.operand,)


@dataclass(frozen=True)
class Binary(Node):
    """An operator between two values, such as ``&&``, ``==`` and ``in``; ``-`` before one value has 0 on its left."""

    operator: str
    left: Node
    right: Node

    @property
    def parts(self) -> tuple[Node, ...]:
        return (self.left, self.right)


@dataclass(frozen=True)
class Conditional(Node):
    """One of two values."""

    condition: Node
    then: Node
    otherwise: Node

    @property
    def parts(self) -> tuple[Node, ...]:
        return (self.condition, self.then, self.otherwise)


TOKEN = re.compile(
    r"""
    (?P<space>\s+|//[^\n]*)
  | (?P<text>[rR]?(?:'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"))
  | (?P<number>\d+(?:\.\d+)?u?)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<operator>&&|\|\||[=!<>]=|\.\?|\[\?|[-+*/%<>!?:.,()\[\]{}])
""",
    re.VERBOSE,
)
PRECEDENCE = {
    "||": 1,
    "&&": 2,
    "==": 3,
    "!=": 3,
    "<": 3,
    "<=": 3,
    ">": 3,
    ">=": 3,
    "in": 3,
    "+": 4,
    "-": 4,
    "*": 5,
    "/": 5,
    "%": 5,
}
CONSTANTS = {"true": True, "false": False, "null": None}


def parse(text: str) -> Node:
    """Returns the expression in *text*. Raises: CelError."""
    parser = _Parser(list(_tokens(text)))
    node = parser.expression()
    if parser.next:
        raise CelError(f"unexpected {parser.next!r} in: {text}")
    return node


def _tokens(text: str) -> Iterator[str]:
    place = 0
    while place < len(text):
        token = TOKEN.match(text, place)
        if token is None:
            raise CelError(f"unexpected {text[place]!r} in: {text}")
        place = token.end()
        if token.lastgroup != "space":
            yield token[0]


class _Parser:
    """Takes the tokens of an expression one after the other."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._place = 0

    @property
    def next(self) -> str:
        """The next token; empty at the end."""
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def _take(self) -> str:
        token = self.next
        if not token:
            raise CelError("the expression ends too early")
        self._place += 1
        return token

    def _skip(self, token: str) -> bool:
        if self.next != token:
            return False
        self._place += 1
        return True

    def _expect(self, token: str) -> None:
        found = self._take()
        if found != token:
            raise CelError(f"expected {token!r}, not {found!r}")

    def expression(self) -> Node:
        condition = self._operation(1)
        if not self._skip("?"):
            return condition
        then = self.expression()
        self._expect(":")
        return Conditional(condition, then, self.expression())

    def _operation(self, least: int) -> Node:
        """Returns operations of the precedence *least* or a higher one."""
        left = self._unary()
        while PRECEDENCE.get(self.next, 0) >= least:
            operator = self._take()
            left = Binary(operator, left, self._operation(PRECEDENCE[operator] + 1))
        return left

    def _unary(self) -> Node:
        if self._skip("!"):
            return Not(self._unary())
        if self._skip("-"):
            return Binary("-", Literal(0), self._unary())
        return self._member()

    def _member(self) -> Node:
        node = self._primary()
        while True:
            if self._skip(".") or self._skip(".?"):
                node = self._field(node, self._take())
            elif self._skip("[") or self._skip("[?"):
                node = Index(node, self.expression())
                self._expect("]")
            elif self.next == "{" and isinstance(node, Name):
                node = Items(self._items("}"))
            else:
                return node

    def _field(self, target: Node, name: str) -> Node:
        if self.next == "(":
            return Call(target, name, self._items(")"))
        return Select(target, name)

    def _primary(self) -> Node:
        if self.next in ("[", "{"):
            return Items(self._items("]" if self.next == "[" else "}"))
        token = self._take()
        if token == "(":
            node = self.expression()
            self._expect(")")
            return node
        if token in CONSTANTS:
            return Literal(CONSTANTS[token])
        if token[-1] in "'\"" or token[0].isdigit():
            return Literal(ast.literal_eval(token.rstrip("u")))
        if not token[0].isalpha() and token[0] != "_":
            raise CelError(f"unexpected {token!r}")
        return Call(None, token, self._items(")")) if self.next == "(" else Name(token)

    def _items(self, end: str) -> tuple[Node, ...]:
        """Returns what stands between an opening token and *end*: the items of a list, or keys and values."""
        self._take()
        items: list[Node] = []
        while not self._skip(end):
            self._skip("?")  # an optional item
            items.append(self.expression())
            if not self._skip(":") and self.next != end:
                self._expect(",")
        return tuple(items)
