"""The page of the documents that commands print."""

import re
from pathlib import Path

from tools.documents_reference import KINDS, render

ROOT = Path(__file__).parents[1]


def test_every_kind_that_a_command_prints_is_described():
    modules = (ROOT / "hami" / "cli").glob("*.py")
    text = "".join(module.read_text() for module in modules)
    assert set(re.findall(r'kind="(\w+)"', text)) <= KINDS.keys()


def test_fields_have_the_names_of_documents_and_the_meanings_of_docstrings():
    page = render()
    assert "| `memoryFreeMib` | integer |" in page
    assert "| `state` | text | `Waiting` |" in page
    assert "| `fits` | text | the node that it would get now |" in page


def test_every_link_has_its_heading():
    page = render()
    headings = {heading.lower() for heading in re.findall(r"^###? (\w+)$", page, re.M)}
    assert set(re.findall(r"\(#(\w+)\)", page)) <= headings
