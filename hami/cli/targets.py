"""Arguments that name objects as kubectl's do: ``TYPE NAME``, ``TYPE/NAME``, with singular, plural and short types."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import click

TYPES = {
    "nodes": ("nodes", "node", "no"),
    "cards": ("cards", "card", "devices", "device", "gpus", "gpu"),
    "pods": ("pods", "pod", "po"),
    "namespaces": ("namespaces", "namespace", "ns"),
}
"""The types that commands know, each with all its names."""


def type_and_names(words: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Returns the type of the objects that *words* name, ``nodes`` without any, and their names.

    Raises: click.UsageError for another type.
    """
    if not words:
        return "nodes", ()
    if "/" not in words[0]:
        return _type_of(words[0]), tuple(words[1:])
    types: set[str] = set()
    names: list[str] = []
    for word in words:
        type_, slash, name = word.partition("/")
        if not slash:
            raise click.UsageError(f"{word!r} has no type; expected TYPE/NAME, as before it")
        types.add(_type_of(type_))
        names.append(name)
    if len(types) > 1:
        raise click.UsageError(f"expected objects of one type, found {', '.join(sorted(types))}")
    return types.pop(), tuple(names)


def pod_and_rest(words: Sequence[str], most: int) -> tuple[str, Sequence[str]]:
    """Returns the name of the pod that *words* name, and what follows it, *most* words at most.

    Raises: click.UsageError for another type, if a name is missing, or if there are too many words.
    """
    first, rest = words[0], words[1:]
    if "/" in first:
        type_, _, name = first.partition("/")
        _type_of(type_, ("pods",))
    elif first in TYPES["pods"] or len(rest) > most:
        _type_of(first, ("pods",))
        name, *rest = rest or [""]
    else:
        name = first
    if not name:
        raise click.UsageError(f"expected the name of a pod after {first!r}")
    if len(rest) > most:
        raise click.UsageError(f"unexpected argument {rest[most]!r}")
    return name, rest


def _type_of(word: str, types: Sequence[str] = tuple(TYPES)) -> str:
    """Returns the type that *word* means, one of *types*. Raises: click.UsageError."""
    known: dict[str, str] = {}
    for type_ in types:
        known.update(dict.fromkeys(TYPES[type_], type_))
    if word.lower() in known:
        return known[word.lower()]
    expected = types[0] if len(types) == 1 else ", ".join(types)
    raise click.UsageError(
        f"there is no resource type {word!r} here; expected {expected}.{did_you_mean(word, known)}"
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns the question whether the nearest of *known* was meant; empty if none is near."""
    nearest = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""
