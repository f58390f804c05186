"""The devices that a pod accepts, as selectors of a claim (CEL), and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from hami.codec.expressions import Token, text_of, tokens_of
from hami.codec.slices import DRIVER
from hami.model import Selector

ATTRIBUTES = f'device.attributes["{DRIVER}"]'
_UUID = tokens_of(f"{ATTRIBUTES}.uuid")
_TYPE = tokens_of(f"{ATTRIBUTES}.productName.lowerAscii().contains(")
_SIZE = tokens_of(f"{ATTRIBUTES}.memoryMiB ==")
_LONGEST_SIZE = 200  # characters: a longer condition says something else
_LONGEST_NUMBER = 18  # digits
_OR, _NOT, _OPEN, _CLOSE, _COMMA = (("sign", text) for text in ("||", "!", "(", ")", ","))


def render_selectors(selector: Selector) -> Iterator[str]:
    """Yields the conditions on cards, or on those of MIG instances."""
    uuid = f"{ATTRIBUTES}.{'parentUUID' if selector.is_for_instances else 'uuid'}"
    if selector.use_types is not None:
        yield _any_type(selector.use_types)
    if selector.nouse_types:
        yield f"!({_any_type(selector.nouse_types)})"
    if selector.use_uuids is not None:
        yield f"{uuid} in {_text(list(selector.use_uuids))}"
    if selector.nouse_uuids:
        yield f"!({uuid} in {_text(list(selector.nouse_uuids))})"
    if selector.mode is not None and not selector.is_for_instances:
        yield f"{_text(selector.mode)}.contains({ATTRIBUTES}.mode)"


def parse_selectors(expressions: Iterable[str]) -> Selector | None:
    """The selection of cards by types and UUIDs that *expressions* say together, as :func:`render_selectors` says it;
    ``None`` if one of them says something else."""
    found: dict[str, tuple[str, ...]] = {}
    for expression in expressions:
        tokens = tokens_of(expression)
        name = "use"
        if tokens[:1] == [_NOT]:
            name, tokens = "nouse", _negated(tokens)
        items = _types_in(tokens)
        if items is not None:
            name += "_types"
        else:
            items = _uuids_in(tokens)
            name += "_uuids"
        if items is None:
            return None
        if name in found and name.startswith("use"):
            return None  # a list says that one of its items is met, not each
        found[name] = (*found.get(name, ()), *items)
    return Selector(
        use_types=found.get("use_types"),
        nouse_types=found.get("nouse_types"),
        use_uuids=found.get("use_uuids"),
        nouse_uuids=found.get("nouse_uuids"),
    )


def render_size(memory_mib: int) -> str:
    """Returns the condition on cards with so much memory."""
    return f"{ATTRIBUTES}.memoryMiB == {memory_mib}"


def parse_size(expression: str) -> int | None:
    """The memory in MiB that cards need to meet *expression*; ``None`` if it says something else."""
    tokens = tokens_of(expression) if len(expression) < _LONGEST_SIZE else []
    if tokens[:-1] != _SIZE or tokens[-1][0] != "number":
        return None
    return int(tokens[-1][1]) if len(tokens[-1][1]) <= _LONGEST_NUMBER else None


def _any_type(types: Iterable[str]) -> str:
    return " || ".join(
        f"{ATTRIBUTES}.productName.lowerAscii().contains({_text(type.lower())})" for type in types
    )


def _text(value: object) -> str:
    """Returns a literal: those of JSON are also such of CEL, except for characters that are written as two."""
    return json.dumps(value, ensure_ascii=False)


def _negated(tokens: list[Token]) -> list[Token]:
    """Returns the tokens that the negation at the beginning of *tokens* is about; none if that is not all of them."""
    if tokens[1:2] == [_OPEN] and tokens[-1] == _CLOSE:
        return tokens[2:-1]
    if tokens[1 : 1 + len(_TYPE)] != _TYPE or _OR in tokens:
        return []
    return tokens[1:]


def _types_in(tokens: Sequence[Token]) -> tuple[str, ...] | None:
    """Returns the parts of names one of which the card has, in lower case; ``None`` if *tokens* say something else."""
    terms: list[list[Token]] = [[]]
    for token in tokens:
        if token == _OR:
            terms.append([])
        else:
            terms[-1].append(token)
    literals: list[Token] = []
    for term in terms:
        if len(term) != len(_TYPE) + 2 or term[:-2] != _TYPE or term[-1] != _CLOSE:
            return None
        literals.append(term[-2])
    types = _items(literals)
    if types is None or any(type != type.lower() for type in types):
        return None
    return types


def _uuids_in(tokens: Sequence[Token]) -> tuple[str, ...] | None:
    """Returns the UUIDs one of which the card has; ``None`` if *tokens* say something else."""
    rest = tokens[len(_UUID) :]
    if tokens[: len(_UUID)] != _UUID or len(rest) < 2:
        return None
    if rest[0] == ("sign", "=="):
        return _items(rest[1:])
    if rest[:2] != [("word", "in"), ("sign", "[")] or rest[-1] != ("sign", "]"):
        return None
    inner = rest[2:-1]
    return _items(inner[::2]) if inner and all(token == _COMMA for token in inner[1::2]) else None


def _items(tokens: Iterable[Token]) -> tuple[str, ...] | None:
    """Returns the texts of literals, as items of a list in an annotation; ``None`` if one cannot be such an item."""
    texts = [text_of(token) for token in tokens]
    items = [text for text in texts if text and text == text.strip() and "," not in text]
    return tuple(items) if len(items) == len(texts) > 0 else None
