"""Tables for terminals."""

import json
from argparse import Namespace

import msgspec
import pytest
import yaml

from hami.inspect.tables import (
    Column,
    Style,
    first_names,
    meter,
    printable,
    render_document,
    render_rows,
    versioned,
)
from testing.cases import cases


class Line(msgspec.Struct, rename="camel"):
    """A row."""

    name: str
    memory_mib: int


LINES = [Line("a", 5), Line("long-name", 95)]
COLUMNS = (
    Column("NAME", lambda line: line.name),
    Column("MIB", lambda line: str(line.memory_mib), wide=True),
    Column(
        "MEMORY", lambda line: meter(line.memory_mib, 100), share=lambda line: line.memory_mib / 100
    ),
)


@cases(
    "used, total, text",
    (0, 100, "░░░░░░░░░░   0%"),
    (1, 1000, "█░░░░░░░░░   0%"),
    (38, 100, "████░░░░░░  38%"),
    (100, 100, "██████████ 100%"),
    (150, 100, "██████████ 150%"),
    (1, 0, "–"),
)
def test_meters(used, total, text):
    assert meter(used, total) == text


def test_a_table():
    assert render_rows(LINES, COLUMNS, Style()).splitlines() == [
        "NAME       MEMORY",
        "a          █░░░░░░░░░   5%",
        "long-name  ██████████  95%",
    ]


def test_a_wide_table_without_headings():
    assert render_rows(LINES[:1], COLUMNS, Style("wide", headers=False)) == "a  5  █░░░░░░░░░   5%"


@cases(
    "names, short",
    ((), ""),
    (("a", "b"), "a, b"),
    (("a", "b", "c"), "a, b + 1 more..."),
    (tuple("abcdefg"), "a, b + 5 more..."),
)
def test_wide_tables_have_all_of_a_list_and_others_the_first(names, short):
    column = Column("PODS", lambda row: first_names(row.argv), full="argv")
    row = Namespace(argv=names)
    assert column.cell(row) == short
    assert column.cell(row, "wide") == ", ".join(names)


def test_an_empty_table_has_headings():
    assert render_rows([], COLUMNS, Style()) == "NAME  MEMORY"
    assert render_rows([], COLUMNS, Style(headers=False)) == ""


def test_colors_change_no_text():
    colored = render_rows(LINES, COLUMNS, Style(color=True))
    assert "\x1b[32m" in colored
    assert "\x1b[31m" in colored
    plain = colored
    for code in ("\x1b[32m", "\x1b[31m", "\x1b[0m"):
        plain = plain.replace(code, "")
    assert plain == render_rows(LINES, COLUMNS, Style())


@pytest.mark.parametrize("form, load", [("json", json.loads), ("yaml", yaml.safe_load)])
def test_documents(form, load):
    document = versioned("LineList", {"items": LINES})
    assert load(render_document(document, form)) == {
        "apiVersion": "inspect.hami.io/v1alpha1",
        "kind": "LineList",
        "items": [{"name": "a", "memoryMib": 5}, {"name": "long-name", "memoryMib": 95}],
    }


def test_texts_of_others_cannot_control_the_terminal():
    assert printable("a\x1b[2Jb\nc\u202ed") == "a?[2Jb?c?d"
    assert "\x1b" not in render_rows([Line("\x1b]0;x\x07", 1)], COLUMNS, Style())


@pytest.mark.parametrize("form, load", [("json", json.loads), ("yaml", yaml.safe_load)])
@pytest.mark.parametrize(
    "text", ["\x1b[2J\x07", "\u202egnp", "a\x7f\x9b", "\u200b\u2066", "\U000e0001", "ä\n€"]
)
def test_documents_escape_what_is_not_printable(form, load, text):
    document = {"items": [text], text: 1}
    rendered = render_document(document, form)
    assert load(rendered) == document
    assert rendered.replace("\n", "").isprintable()
