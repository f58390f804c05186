"""Paths and templates as kubectl's, and what is said of others."""

import pytest

from hami.errors import HamiError
from hami.inspect.paths import columns_of, parse_path, render_template, values_at
from testing.cases import cases

DOCUMENT = {
    "items": [
        {"name": "a", "cards": ["0", "1"], "memoryMib": 100, "node-name": "n1"},
        {"name": "b", "cards": [], "memoryMib": None},
    ]
}


@cases(
    "path, values",
    (".items[*].name", ["a", "b"]),
    ("{.items[1].name}", ["b"]),
    ("$.items[0].cards[*]", ["0", "1"]),
    (".items[0]['node-name']", ["n1"]),
    (".items[0].node-name", ["n1"]),
    (".items[7].name", []),
    (".items.name", []),
    (".nosuch.name", []),
    (".", [DOCUMENT]),
    (".items[1].memoryMib", [None]),
)
def test_values(path, values):
    assert values_at(DOCUMENT, parse_path(path)) == values


@cases(
    "path",
    ("name",),
    (".items[-1]",),
    (".items[?(@.a)]",),
    (".items[0:2]",),
    ("..name",),
    (".a b",),
)
def test_paths_that_cannot_be_read(path):
    with pytest.raises(HamiError, match="expected .field"):
        parse_path(path)


@cases(
    "template, text",
    ("{.items[*].name}", "a b"),
    (".items[0].name", "a"),
    ("first: {.items[0].name}!", "first: a!"),
    ('{range .items[*]}{.name}{"\\t"}{.memoryMib}{"\\n"}{end}', "a\t100\nb\tnull\n"),
    ("{range .items[*]}{.name}:{range .cards[*]}<{@}>{end};{end}", "a:<0><1>;b:;"),
    ("{.items[0].cards}", '["0", "1"]'),
)
def test_templates(template, text):
    assert render_template(DOCUMENT, template) == text


@cases(
    "template, said",
    ("{range .items[*]}{.name}", "without {end}"),
    ("{.name}{end}", "{end} without {range}"),
    ("{range}{end}", "expected {range PATH}"),
    ('{"x}', "Unterminated string"),
    ("{.a[}", "expected .field"),
    ("x" * 10_001, "more than 10,000 characters"),
)
def test_templates_that_cannot_be_read(template, said):
    with pytest.raises(HamiError) as error:
        render_template(DOCUMENT, template)
    assert said in str(error.value)


def test_columns():
    assert columns_of(DOCUMENT["items"], "NAME:.name,CARDS:.cards[*],NODE:{.node-name}") == [
        ["NAME", "CARDS", "NODE"],
        ["a", "0,1", "n1"],
        ["b", "<none>", "<none>"],
    ]
    with pytest.raises(HamiError, match="expected HEADING:PATH"):
        columns_of([], "NAME")
