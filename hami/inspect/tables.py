"""Tables for terminals, and the same rows as JSON or YAML. No text of others reaches the terminal as control codes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

import click
import msgspec
import yaml

from hami.errors import HamiError, MalformedInput
from hami.inspect.paths import columns_of, render_template

R = TypeVar("R")

API_VERSION = "inspect.hami.io/v1alpha1"  # of documents
NONE = "–"  # an empty cell
METER_WIDTH = 10
_NOT_PRINTABLE = re.compile(r"[^\n\x20-\x7e]")  # and others, which :func:`_escaped` keeps
_PRINTED = re.compile(r"[^\n\t]+")  # of a template
_FULL, _HIGH = 0.95, 0.6  # shares from which a meter is red, or yellow
FIRST_NAMES = 2  # of a list in a cell
FORMS = ("table", "wide", "json", "yaml", "name")
CSV, FOCUS = "csv", "focus"
"""Forms of some commands."""
TEMPLATES = ("jsonpath", "custom-columns")
"""Forms that are followed by ``=`` and what to show."""


def parse_form(text: str, more: Sequence[str] = ()) -> str:
    """Returns a form of the output: one of FORMS, of TEMPLATES or of *more*. Raises: MalformedInput for what is
    none."""
    kind, equals, template = text.partition("=")
    if text in (*FORMS, *more) or (kind in TEMPLATES and template):
        return text
    expected = ", ".join([*FORMS, *more, *(f"{name}=…" for name in TEMPLATES)])
    raise MalformedInput("output", text, f"expected one of {expected}")


def _field_name(name: str) -> str:
    """Returns the name of a field in Kubernetes' style, which writes seconds out."""
    if name.endswith("_s"):
        name += "econds"
    first, *words = name.split("_")
    return first + "".join(map(str.capitalize, words))


class OutputRecord(msgspec.Struct, rename=_field_name, frozen=True):
    """A record that JSON and YAML show: its fields have the names of Kubernetes' style there. Memory is in MiB."""


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """*text* returns the cell of a row, or names the field that it shows. *wide*: only in wide tables. *share*: the
    share that colors the cell. *full*: the field that wide tables show instead of *text*."""

    title: str
    text: Callable[[R], str] | str
    wide: bool = False
    share: Callable[[R], float | None] | None = None
    full: str = ""

    def cell(self, row: R, form: str = "table") -> str:
        """Returns the text of the cell in a table of *form*, empty if there is nothing to show."""
        text = self.text
        if self.full and form == "wide":
            text = self.full
        if not isinstance(text, str):
            return text(row)
        value = attrgetter(text)(row)
        if value is None:
            return ""
        return ", ".join(value) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True, slots=True)
class Style:
    """The looks of a table. *color*: with colors, which only repeat what the text says."""

    form: str = "table"
    headers: bool = True
    color: bool = False

    @property
    def is_document(self) -> bool:
        """Reports whether the output is made of a document: JSON, YAML, or parts of it."""
        return self.form not in ("table", "wide", CSV, FOCUS)


def versioned(kind: str, document: object) -> dict[str, Any]:
    """Returns a record or a mapping with the version and the *kind* of its form, as Kubernetes' objects have them."""
    return {"apiVersion": API_VERSION, "kind": kind, **msgspec.to_builtins(document)}


def render_rows(rows: Sequence[R], columns: Sequence[Column[R]], style: Style) -> str:
    """Returns *rows* as a table."""
    shown = [column for column in columns if not column.wide or style.form == "wide"]
    cells: list[list[str]] = []
    colors: list[list[str | None]] = []
    if style.headers:
        cells.append([column.title for column in shown])
        colors.append([None] * len(shown))
    for row in rows:
        cells.append([_cell(column, row, style.form) for column in shown])
        colors.append([_color_of(column, row, style) for column in shown])
    return _aligned(cells, colors)


def _cell(column: Column[R], row: R, form: str) -> str:
    return printable(column.cell(row, form)) or NONE


def first_names(names: Sequence[str]) -> str:
    """Returns the first of *names*, and how many more there are, as kubectl does."""
    text = ", ".join(names[:FIRST_NAMES])
    more = len(names) - FIRST_NAMES
    if more > 0:
        text += f" + {more:,} more..."
    return text


def render_document(document: object, form: str, *, headers: bool = True) -> str:
    """Returns records or plain values in one of the FORMS, ``json`` or ``yaml``, or by one of the TEMPLATES, with
    characters that are not printable escaped. Raises: HamiError for a template that cannot be read, and for a form
    that the document does not have."""
    document = msgspec.to_builtins(document)
    if form == "name":
        raise HamiError("-o name: only top and explain have names")
    if "=" in form:
        return _by_template(document, form, headers)
    if form == "json":
        return _NOT_PRINTABLE.sub(_escaped, json.dumps(document, indent=2, ensure_ascii=False))
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    if not text.replace("\n", "").isprintable():
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=False)
    return text.rstrip()


def _by_template(document: object, form: str, headers: bool) -> str:
    kind, _, template = form.partition("=")
    if kind == "jsonpath":
        text = render_template(document, template)
        return _PRINTED.sub(lambda match: printable(match[0]), text)
    rows = columns_of(_items(document, form), template)
    if not headers:
        del rows[0]
    cells = [list(map(printable, row)) for row in rows]
    return _aligned(cells, [[None] * len(row) for row in cells])


def _items(document: object, form: str) -> list[object]:
    """Returns the rows of *document*. Raises: HamiError if it is none of rows."""
    items = document.get("items") if isinstance(document, dict) else None
    if not isinstance(items, list):
        raise HamiError(f"-o {form}: this command has no rows; use -o jsonpath=TEMPLATE")
    return items


def _escaped(match: re.Match[str]) -> str:
    return match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1]


def _aligned(cells: Sequence[Sequence[str]], colors: Sequence[Sequence[str | None]]) -> str:
    """Returns lines with *cells* in columns, and their *colors*."""
    if not cells:
        return ""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for number, row in enumerate(cells):
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        padded[-1] = padded[-1].rstrip()
        padded = [
            click.style(cell, fg=color) if color else cell
            for cell, color in zip(padded, colors[number], strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def meter(used: int, total: int | None) -> str:
    """Returns a bar with the percentage: ``████░░░░░░  38%``. More than everything fills it."""
    if not total or total < 0:
        return NONE
    filled = min(METER_WIDTH, max(0, round(METER_WIDTH * used / total)))
    if 0 < used and filled == 0:
        filled = 1  # something is taken
    return f"{'█' * filled}{'░' * (METER_WIDTH - filled)} {100 * used // total:3}%"


def meter_column(title: str, used: str, total: str) -> Column[Any]:
    """Returns a column with the meter of two fields of a row; without a total it is empty."""
    amounts = attrgetter(used, total)

    def share(row: Any) -> float | None:
        part, whole = amounts(row)
        return part / whole if whole and whole > 0 else None

    return Column(title, lambda row: meter(*amounts(row)), share=share)


def gib(memory_mib: int) -> str:
    """Returns memory in GiB with one digit, for totals: ``1,520.0``."""
    return f"{memory_mib / 1024:,.1f}"


def printable(text: str) -> str:
    """Returns *text* with a question mark for each character that could change the terminal."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "?" for character in text)


def _color_of(column: Column[R], row: R, style: Style) -> str | None:
    """Returns the color of a cell; ``None`` for that of the terminal."""
    if column.share is None or not style.color:
        return None
    share = column.share(row)
    if share is None:
        return None
    if share >= _FULL:
        return "red"
    return "yellow" if share >= _HIGH else "green"
