"""Reads unhooked.txt: the functions that are not hooked, with the reason for each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Group", "read_unhooked"]

ROOT = Path(__file__).parent.parent
INDENT = "    "


@dataclass(frozen=True, slots=True)
class Group:
    """Functions that need no hook for one reason."""

    reason: str
    names: tuple[str, ...]


def expand(word: str) -> list[str]:
    """The names that a word stands for: ``name{,_v2}`` for ``name`` and ``name_v2``. Raises: ValueError."""
    match = re.fullmatch(r"(\w+)(?:\{([\w,]+)\})?", word)
    if match is None:
        raise ValueError(f"unhooked.txt: cannot read {word!r}")
    if match[2] is None:
        return [match[1]]
    return [match[1] + suffix for suffix in match[2].split(",")]


def read_group(paragraph: str) -> Group:
    """Lines at the margin are the reason, indented ones the names. Raises: ValueError."""
    reason: list[str] = []
    names: list[str] = []
    for line in paragraph.splitlines():
        if not line.startswith(INDENT):
            reason.append(line)
            continue
        for word in line.split():
            names += expand(word)
    if not reason or not names:
        raise ValueError(f"unhooked.txt: no reason, or no name: {paragraph!r}")
    return Group(" ".join(reason), tuple(names))


def read_unhooked(root: Path = ROOT) -> list[Group]:
    """All groups of the file. Raises: ValueError for what cannot be read."""
    text = re.sub(r"^#.*\n", "", (root / "unhooked.txt").read_text(), flags=re.MULTILINE)
    return [read_group(paragraph) for paragraph in re.split(r"\n{2,}", text.strip("\n"))]
