"""Nouns and verbs that agree with a number."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Returns a number with its noun: ``1 node``, ``2,000 nodes``."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def are(number: int) -> str:
    """Returns the verb for a number of things: ``is``, ``are``."""
    return "is" if number == 1 else "are"


def have(number: int) -> str:
    """Returns the verb for a number of things: ``has``, ``have``."""
    return "has" if number == 1 else "have"
