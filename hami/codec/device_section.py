"""Typed reading of the device configuration's mappings: what a key must hold, and errors that say so.

What the sections mean is no business of this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from hami.errors import MalformedInput
from hami.quantity import INT32_MAX

__all__ = ["Expected", "Flagged", "Reading", "Section", "parse_resource_name"]

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_RESOURCE_RIGHT = "a resource name such as nvidia.com/gpu"


class Flagged(NamedTuple):
    """A value from the command line; *flag* is what errors call it."""

    value: object
    flag: str


class Expected(NamedTuple):
    """What a key may hold, in words; what holds without it; whether it must be there."""

    right: str
    default: object
    needed: bool


@dataclass(slots=True)
class Reading:
    """What is common to the sections of one document: where it came from, and which names are taken so far.

    *fallback*: path of a mapping → key → what a flag says for it. A flag counts where the document does not name the
    thing; with *flags_first* it counts always. *notes* collects what was skipped, one sentence each; *asked* what keys
    were asked for, by the path of their mapping.
    """

    source: str
    fallback: Mapping[str, Mapping[str, Flagged]]
    flags_first: bool = False
    notes: list[str] = field(default_factory=list)
    asked: dict[str, dict[str, Expected]] = field(default_factory=dict)
    _holders: dict[str, str] = field(default_factory=dict)

    def section(self, path: str, values: object) -> Section:
        """The mapping at *path*. Raises: MalformedInput when it is none."""
        if not isinstance(values, dict):
            raise MalformedInput(f"{self.source}: {path}", values, "expected a mapping")
        return Section(self, path, values, dict(self.fallback.get(path, {})))

    def flags(self, path: str) -> Mapping[str, Flagged]:
        """What flags say for the mappings at *path*, by key."""
        return self.fallback.get(path, {})

    def claim(self, name: str, label: str, place: str) -> None:
        """Refuse one name for two resources: nobody could say what a container asks for."""
        if (holder := self._holders.setdefault(name, label)) != label:
            raise MalformedInput(place, name, f"expected another name than that of {holder}")


class Section:
    """One mapping; remembers which keys were asked for."""

    def __init__(self, reading: Reading, path: str, values: Mapping[object, object], flags: dict[str, Flagged]) -> None:
        self.path = path
        self._reading = reading
        self._values = values
        self._flags = flags
        self._known: set[object] = set()
        self._needed: set[str] = set()

    def place(self, key: str) -> str:
        """Where the value of *key* stands, for errors: file and key, or the flag."""
        return self._flags[key].flag if self._is_flagged(key) else f"{self._reading.source}: {self.path}.{key}"

    def has(self, key: str) -> bool:
        """Whether the document has a value for *key*."""
        return self._values.get(key) is not None

    def goes_before_flags(self, key: str) -> bool:
        """Whether the document says what *key* is, so that no flag counts."""
        return self.has(key) and not self._reading.flags_first

    def offer(self, key: str, flagged: Flagged) -> None:
        """Take what a flag says for *key*."""
        self._flags[key] = flagged

    def note(self, key: str, says: str) -> None:
        """Remember that *key* was skipped, or taken in a way that may surprise."""
        self._reading.notes.append(f"{self.place(key)}: {says}")

    def note_unknown(self) -> None:
        """A note for each key that nobody asked for, and for each flag that the document overrides."""
        for key in self._values:
            if key not in self._known:
                self._reading.notes.append(f"{self._reading.source}: {self.path}.{key}: unknown key, skipped")
        for name, flagged in self._flags.items():
            if not self._is_flagged(name) and flagged.value != self._values.get(name):
                self.note(name, f"goes before {flagged.flag} {_shown(flagged.value)}")

    def integer(self, key: str, default: int, *, least: int = 0, most: int = INT32_MAX) -> int:
        right = f"a whole number from {least} to {most}"
        return self._get(key, default, lambda value: _whole(value, least, most), right)

    def needed_integer(self, key: str, right: str, *, least: int = 1, most: int = INT32_MAX) -> int:
        """An integer that must be there; *right* says what it is."""
        right = f"{right}, a whole number from {least} to {most}"
        self._check_given(key, right)
        return self._get(key, 0, lambda value: _whole(value, least, most), right)

    def factor(self, key: str) -> float:
        return self._get(key, 1.0, _positive, "a number above 0, such as 1.5")

    def flag(self, key: str) -> bool:
        return self._get(key, False, lambda value: value if isinstance(value, bool) else None, "true or false")

    def resource(self, key: str, default: str = "", *, claimed: bool = True) -> str:
        """The name of a resource that nobody else has; *claimed* false where it is read, but not used."""
        name = self._get(key, default, _qualified_name, _RESOURCE_RIGHT)
        if name and claimed:
            label = self._flags[key].flag if self._is_flagged(key) else f"{self.path}.{key}"
            self._reading.claim(name, label, self.place(key))
        return name

    def object_name(self, key: str) -> str:
        right = "the name of an object: lower case letters, digits, - and ."
        return self._get(key, "", lambda value: value if isinstance(value, str) and _is_domain(value) else None, right)

    def word(self, key: str, choices: tuple[str, ...]) -> str:
        return self._get(key, choices[0], lambda value: next((word for word in choices if word == value), None),
                         " or ".join(choices))

    def text(self, key: str) -> str:
        """Words for people, and for other programs that read the file; a number will do."""
        return self._get(key, "", _text, "a text")

    def key_part(self, key: str, right: str, most: int) -> str:
        """A word that must be there and can stand in the key of an annotation, *most* characters at most."""
        right = f"{right}: letters, digits, -, _ and ., beginning and ending with a letter or digit, {most} at most"
        self._check_given(key, right)
        return self._get(key, "", lambda value: _key_part(value, most), right)

    def words(self, key: str) -> tuple[str, ...]:
        nothing: tuple[str, ...] = ()
        found = self._get(key, nothing, _words, "a list of words")
        if not found:
            raise MalformedInput(self.place(key), self._values.get(key), "expected at least one word")
        return found

    def items(self, key: str) -> list[object]:
        """A list, empty if there is none."""
        nothing: list[object] = []
        return self._get(key, nothing, lambda value: value if isinstance(value, list) else None, "a list")

    def entries(self, key: str) -> list[Section]:
        """The mappings in a list, none if there is no list."""
        return [self._reading.section(f"{self.path}.{key}[{place}]", value)
                for place, value in enumerate(self.items(key))]

    def check_distinct(self, key: str, found: object, earlier: Collection[object], what: str) -> None:
        """Refuse *found*, the value of *key*, when an *earlier* entry of the list has it."""
        if found in earlier:
            raise MalformedInput(self.place(key), found, f"expected {what}")

    def _is_flagged(self, key: str) -> bool:
        return key in self._flags and not self.goes_before_flags(key)

    def _check_given(self, key: str, right: str) -> None:
        self._known.add(key)
        self._needed.add(key)
        if self._values.get(key) in (None, "") and not self._is_flagged(key):
            raise MalformedInput(self.place(key), "", f"missing, expected {right}")

    def _get(self, key: str, default: T, convert: Callable[[object], T | None], right: str) -> T:
        self._known.add(key)
        self._reading.asked.setdefault(self.path, {})[key] = Expected(right, default, key in self._needed)
        value = self._flags[key].value if self._is_flagged(key) else self._values.get(key)
        if value is None or value == "" and isinstance(default, str):
            return default
        if (converted := convert(value)) is None:
            quoted = " without quotes" if isinstance(value, str) and not isinstance(default, str) else ""
            raise MalformedInput(self.place(key), value, f"expected {right}{quoted}")
        return converted


def parse_resource_name(text: str) -> str:
    """*text* when it is empty (no such resource) or a resource name. Raises: MalformedInput."""
    if text and _qualified_name(text) is None:
        raise MalformedInput("resource name", text, f"expected {_RESOURCE_RIGHT}")
    return text


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _whole(value: object, least: int, most: int) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        return None
    return int(value) if least <= value <= most else None


def _positive(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < float("inf") else None


def _text(value: object) -> str | None:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def _words(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list) or not all(isinstance(word, str) and word for word in value):
        return None
    return tuple(value)


def _key_part(value: object, most: int) -> str | None:
    return value if isinstance(value, str) and len(value) <= most and _NAME.fullmatch(value) else None


def _qualified_name(value: object) -> str | None:
    """*value* when it is a name as Kubernetes' IsQualifiedName wants it."""
    if not isinstance(value, str):
        return None
    domain, slash, name = value.rpartition("/")
    legal = len(name) <= 63 and _NAME.fullmatch(name) is not None and (not slash or _is_domain(domain))
    return value if legal else None


def _is_domain(text: str) -> bool:
    return len(text) <= 253 and _DOMAIN.fullmatch(text) is not None
