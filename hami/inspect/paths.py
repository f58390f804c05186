"""Values of documents by paths and templates as kubectl's: ``.items[*].name``, ``{range .items[*]}{.name};{end}``.

Fields, indexes, ``[*]``, texts and ranges; no filters and no slices.
Source: the Kubernetes documentation, JSONPath Support and Custom columns.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Sequence

from hami.errors import HamiError

Path = tuple[str | int, ...]
ALL = "*"
NOTHING = "<none>"
MAX_TEMPLATE = 10_000  # characters
_STEP = re.compile(r"\.([A-Za-z_][\w-]*)|\[(\d{1,9}|\*)\]|\['([^']+)'\]")
_PART = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"range\s+(\S+)")


@functools.lru_cache(256)
def parse_path(text: str) -> Path:
    """Returns the steps of a path. Raises: HamiError."""
    path: list[str | int] = []
    inner = text.strip().removeprefix("{").removesuffix("}")
    place = len("$") if inner.startswith("$") else 0
    if inner[place:] == ".":
        return ()
    while place < len(inner):
        match = _STEP.match(inner, place)
        if match is None:
            raise HamiError(f"{text}: expected .field, [0] or [*] at {inner[place:]!r}")
        field, index, quoted = match.groups()
        if index is None or index == ALL:
            path.append(field or quoted or ALL)
        else:
            path.append(int(index))
        place = match.end()
    return tuple(path)


def values_at(document: object, path: Path) -> list[object]:
    """Returns the values that *path* leads to, in order; none for a field that is not there."""
    values = [document]
    for step in path:
        after: list[object] = []
        for value in values:
            after += _children(value, step)
        values = after
    return values


def _children(value: object, step: str | int) -> Sequence[object]:
    if isinstance(value, dict):
        if step == ALL:
            return list(value.values())
        return [value[step]] if step in value else []
    if isinstance(value, list):
        if step == ALL:
            return value
        if isinstance(step, int) and step < len(value):
            return [value[step]]
    return []


def render_template(document: object, template: str) -> str:
    """Returns *template* with the values of its paths. Raises: HamiError."""
    if len(template) > MAX_TEMPLATE:
        raise HamiError(f"the template has more than {MAX_TEMPLATE:,} characters")
    if "{" not in template:
        template = f"{{{template}}}"
    parts = _PART.split(template)  # texts, and what is in braces after each
    ends = _ends(parts)
    return "".join(_rendered(parts, 0, len(parts), ends, document))


def _ends(parts: Sequence[str]) -> dict[int, int]:
    """Returns the position of the end of each range. Raises: HamiError."""
    ends: dict[int, int] = {}
    begun: list[int] = []
    for place in range(1, len(parts), 2):
        if parts[place].startswith("range"):
            begun.append(place)
        elif parts[place] == "end":
            if not begun:
                raise HamiError("{end} without {range}")
            ends[begun.pop()] = place
    if begun:
        raise HamiError(f"{{{parts[begun[0]]}}} without {{end}}")
    return ends


def _rendered(
    parts: Sequence[str], place: int, until: int, ends: dict[int, int], value: object
) -> Iterator[str]:
    """Yields the texts of *parts* from *place* until *until*."""
    while place < until:
        part = parts[place]
        if place % 2 == 0:
            yield part
        elif place in ends:
            match = _RANGE.fullmatch(part)
            if match is None:
                raise HamiError(f"{{{part}}}: expected {{range PATH}}")
            for each in values_at(value, parse_path(match[1])):
                yield from _rendered(parts, place + 1, ends[place], ends, each)
            place = ends[place]
        else:
            yield _text_of(part, value)
        place += 1


def _text_of(part: str, value: object) -> str:
    if part.startswith('"'):
        try:
            return str(json.loads(part))
        except ValueError as error:
            raise HamiError(f"{{{part}}}: {error}") from error
    found = values_at(value, parse_path(part.removeprefix("@")))
    return " ".join([text_of(each) for each in found])


def text_of(value: object) -> str:
    """Returns *value* as kubectl writes it: texts as they are, others as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def columns_of(items: Sequence[object], columns: str) -> list[list[str]]:
    """Returns the headings of *columns* (``NAME:.name,MEMORY:.memoryMib``), and a row for each of *items*.

    Raises: HamiError.
    """
    paths: list[Path] = []
    rows: list[list[str]] = [[]]
    for column in columns.split(","):
        heading, colon, path = column.partition(":")
        if not heading or not colon:
            raise HamiError(f"{column!r}: expected HEADING:PATH, such as NAME:.name")
        rows[0].append(heading)
        paths.append(parse_path(path))
    for item in items:
        rows.append([_cell(item, path) for path in paths])
    return rows


def _cell(item: object, path: Path) -> str:
    found = [text_of(value) for value in values_at(item, path)]
    return ",".join(found) or NOTHING
