"""The words of the documentation are counted as a reader meets them, and their bounds only shrink."""

import json

import pytest

from testing.cases import cases
from tools.words import BOUNDS, READERS, Words, complaints, count, measure, shrunk, sums


@cases(
    "text, words",
    ("prose", "# A pod\n\nIt waits.", Words(4, 0)),
    ("table", "| a | b c |\n|---|---|\n| `d` | — |", Words(4, 0)),
    ("block", "a\n```console\nkubectl get pods\n```\nb", Words(2, 0)),
    (
        "block in a list",
        "1. a\n\n    ```console\n    kubectl get pods\n    ```\n\n2. b",
        Words(4, 0),
    ),
    ("link", "see [the page](page.md#a-long-anchor) now", Words(4, 0)),
    ("comment", "a <!-- not read --> b", Words(2, 0)),
    (
        "a command between comments",
        "<!-- a note -->\nrun python -m x <!-- end of it -->",
        Words(4, 0),
    ),
    ("part", "a\n<!-- begin: python -m tools.x -->\nb c\n<!-- end -->\nd", Words(2, 2)),
    (
        "table of a run",
        "a\n<!-- table: written by `python -m x`, not by hand -->\nb\n<!-- end of table -->",
        Words(1, 1),
    ),
    ("devices", "<!-- begin: hami vendors --output=markdown -->\nb\n<!-- end -->\nd", Words(1, 1)),
)
def test_words_are_counted_without_code_and_apart_from_what_programs_write(text, words):
    assert count(text) == words


@pytest.mark.files
def test_every_page_has_one_reader():
    assert measure().keys() == READERS.keys()


@pytest.mark.files
def test_the_documentation_is_within_its_bounds():
    assert complaints(sums(measure()), json.loads(BOUNDS.read_text())) == []


def test_a_sum_above_its_bound_is_named_and_lowers_no_bound():
    bounds = {"users and operators": 100, "all": 300}
    totals = {"users and operators": 101, "all": 140}
    (complaint,) = complaints(totals, bounds)
    assert complaint.startswith("users and operators: 101 words, 100 allowed")
    assert shrunk(totals, bounds) == {"users and operators": 100, "all": 200}
