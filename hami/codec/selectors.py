"""The devices that a pod accepts, as selectors of a claim (CEL), and back."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence

from hami.codec.expressions import LONGEST_NUMBER, Token, text_of, tokens_of
from hami.codec.slices import DRIVER
from hami.model import Selector

ATTRIBUTES = f'device.attributes["{DRIVER}"]'
_UUID = tokens_of(f"{ATTRIBUTES}.uuid")
_TYPE = tokens_of(f"{ATTRIBUTES}.productName.lowerAscii().contains(")
_SIZE = tokens_of(f"{ATTRIBUTES}.memoryMiB ==")
_LONGEST_SIZE = 200  # characters: a longer condition says something else
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
        is_negated = tokens[:1] == [_NOT]
        if is_negated:
            tokens = (
                tokens[2:-1]
                if tokens[1:2] == [_OPEN] and tokens[-1] == _CLOSE
                else _alone(tokens[1:])
            )
        if (items := _types_in(tokens)) is not None:
            name = "nouse_types" if is_negated else "use_types"
        elif (items := _uuids_in(tokens)) is not None:
            name = "nouse_uuids" if is_negated else "use_uuids"
        else:
            return None
        if name in found and not is_negated:
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
    return int(tokens[-1][1]) if len(tokens[-1][1]) <= LONGEST_NUMBER else None


def _any_type(types: Iterable[str]) -> str:
    return " || ".join(
        f"{ATTRIBUTES}.productName.lowerAscii().contains({_text(type.lower())})" for type in types
    )


def _text(value: object) -> str:
    """Returns a literal: those of JSON are also such of CEL, except for characters that are written as two."""
    return json.dumps(value, ensure_ascii=False)


def _alone(tokens: list[Token]) -> list[Token]:
    """Returns *tokens* if a negation before them is about all of them; else none."""
    return tokens if tokens[: len(_TYPE)] == _TYPE and _OR not in tokens else []


def _types_in(tokens: Sequence[Token]) -> tuple[str, ...] | None:
    """Returns the parts of names one of which the card has, in lower case; ``None`` if *tokens* say something else."""
    terms = [
        list(term)
        for is_or, term in itertools.groupby(tokens, lambda token: token == _OR)
        if not is_or
    ]
    if len(terms) != tokens.count(_OR) + 1 or any(
        len(term) != len(_TYPE) + 2 or term[:-2] != _TYPE or term[-1] != _CLOSE for term in terms
    ):
        return None
    types = _items(term[-2] for term in terms)
    return types if types is not None and all(type == type.lower() for type in types) else None


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
