"""The forms of texts that people write in annotations and labels: words, lists of names, numbers and switches.

A form tells a text that says something from a mistake, and how programs of vendors, which compare letters, expect it.
An absent and a blank text are the same, so no form is asked about a blank one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from hami.codec.policies import parse_weights
from hami.errors import MalformedInput
from hami.quantity import parse_integer

__all__ = [
    "BOOLEAN",
    "Form",
    "FreeText",
    "Mistake",
    "NameList",
    "Number",
    "Switches",
    "Weighted",
    "Words",
    "enumerated",
    "nearest",
    "written",
]

MAX_NAMES = 1024  # of a list of types or UUIDs; each device is compared with all of them
MAX_CONTAINERS = 128  # that switches may name
SHORTEST_START = 3  # characters of a start of a word by which it is recognised
LONGEST_WORD = 256  # characters of a text that is compared with words
NOT_IN_NAMES = r"""\[\]{}"';\n\r\t"""
"""Characters of a list in JSON, or of one that has other separators than commas; part of a regular expression, also
in the policies: RE2."""
_NOT_IN_NAMES = re.compile(f"[{NOT_IN_NAMES}]")


@dataclass(frozen=True, slots=True)
class Mistake:
    """A text has not the form of its key. *expected*: what to write. *nearest*: the word that is probably meant; empty
    if none is near."""

    expected: str
    nearest: str = ""

    def __str__(self) -> str:
        if not self.nearest:
            return f"expected {self.expected}"
        return f"expected {self.expected}; did you mean {self.nearest}?"


class Form(Protocol):
    """The shape of the texts of a key."""

    @property
    def expected(self) -> str:
        """The text to write, after «expected»."""

    def read(self, text: str) -> str | Mistake:
        """Returns *text*, which is not blank, as programs expect it."""


@dataclass(frozen=True, slots=True)
class Words:
    """One of *words*, or several of them separated by commas if *is_list*, in any letter case.

    *synonyms* are words, too, but are not recommended to anybody.
    """

    words: tuple[str, ...]
    is_list: bool = False
    synonyms: tuple[str, ...] = ()

    @property
    def expected(self) -> str:
        """The words."""
        text = enumerated(self.words)
        if self.is_list:
            text += ", or several of them separated by commas"
        return text

    @property
    def all(self) -> tuple[str, ...]:
        """The words and their synonyms."""
        return self.words + self.synonyms

    def read(self, text: str) -> str | Mistake:
        """Returns the words of *text* in their own letter case, without blanks."""
        if text in self.words:
            return text
        if len(text) > LONGEST_WORD:
            return Mistake(self.expected)
        items = [text]
        if self.is_list:
            items = text.split(",")
        words = [word for word in (item.strip().lower() for item in items) if word]
        for word in words:
            if word not in self.all:
                return Mistake(self.expected, nearest(word, self.words))
        if not words:
            return Mistake(self.expected)
        return ",".join(words)


BOOLEAN = Words(("true", "false"), synonyms=("1", "0", "t", "f"))


@dataclass(frozen=True, slots=True)
class NameList:
    """At least one name, and at most MAX_NAMES of them separated by commas. *of*: what they name, in the plural."""

    of: str

    @property
    def expected(self) -> str:
        """The shape of such a list."""
        return f"{self.of}, separated by commas, without brackets and quotes"

    def read(self, text: str) -> str | Mistake:
        """Returns *text*, if it is such a list."""
        items = text.split(",")
        if len(items) > MAX_NAMES:
            return Mistake(f"at most {MAX_NAMES} items")
        names = [name for name in (item.strip() for item in items) if name]
        if not names:
            return Mistake(self.expected)
        for name in names:
            if _NOT_IN_NAMES.search(name):
                return Mistake(self.expected)
        return text


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number from *least* to *most*. *meaning*: after «the»; empty if the number says enough."""

    least: int
    most: int
    meaning: str = ""

    @property
    def expected(self) -> str:
        """The range."""
        text = f"a whole number from {self.least} to {self.most}"
        if self.meaning:
            text += f", the {self.meaning}"
        return text

    def read(self, text: str) -> str | Mistake:
        """Returns *text*, if it is such a number in its usual form."""
        value = parse_integer(text)
        if value is None or text != str(value):
            return Mistake(self.expected)
        if not self.least <= value <= self.most:
            return Mistake(self.expected)
        return text


@dataclass(frozen=True, slots=True)
class Weighted:
    """Weights of the score of a device."""

    @property
    def expected(self) -> str:
        """An example."""
        return "weights such as slot=1,core=1,memory=3: all three, whole numbers, not all 0"

    def read(self, text: str) -> str | Mistake:
        """Returns *text* in small letters."""
        lower = text.lower()
        try:
            parse_weights(lower)
        except MalformedInput as error:
            return Mistake(f"{self.expected} ({error.problem})")
        return lower


@dataclass(frozen=True, slots=True)
class Switches:
    """An object in JSON with a boolean, as text, for each of some containers by name."""

    @property
    def expected(self) -> str:
        """An example."""
        return """an object such as {"main": "false"}, with true or false in quotes for names of containers"""

    def read(self, text: str) -> str | Mistake:
        """Returns *text*, with booleans in the letters that programs compare."""
        switches = self.parse(text)
        if switches is None:
            return Mistake(self.expected)
        rendered = {}
        for name, value in switches.items():
            boolean = BOOLEAN.read(value)
            if isinstance(boolean, Mistake):
                return Mistake(self.expected, boolean.nearest)
            rendered[name] = boolean
        if rendered == switches:
            return text
        return msgspec.json.encode(rendered).decode()

    @staticmethod
    def parse(text: str) -> dict[str, str] | None:
        """Returns the texts by container; ``None`` if *text* is no such object."""
        try:
            switches = msgspec.json.decode(text, type=dict[str, str])
        except (msgspec.DecodeError, UnicodeEncodeError):
            return None
        if len(switches) > MAX_CONTAINERS:
            return None
        return switches


@dataclass(frozen=True, slots=True)
class FreeText:
    """A text that is not checked. *expected*: what it is."""

    expected: str

    def read(self, text: str) -> str | Mistake:
        """Returns *text*."""
        return text


def written(text: str | None) -> str | None:
    """Returns *text*; ``None`` if it is blank, which is the same as absent."""
    if text is None or not text.strip():
        return None
    return text


def enumerated(words: Sequence[str]) -> str:
    """Returns *words* as a choice: ``a, b or c``."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} or {words[-1]}"


def nearest(word: str, words: Iterable[str]) -> str:
    """Returns the one of *words* that is most like *word*; empty if none is."""
    if len(word) > LONGEST_WORD:
        return ""
    known = list(words)
    longer = [other for other in known if other.startswith(word)]
    if len(longer) == 1 and len(word) >= SHORTEST_START:
        return longer[0]
    return "".join(difflib.get_close_matches(word, known, n=1))
