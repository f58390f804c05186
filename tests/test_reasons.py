"""Lists of tests with reasons: each line has both, and each test has one line."""

import pytest

from testing.cases import cases
from testing.reasons import parse_reasons


def test_an_entry_is_a_test_and_a_reason():
    text = (
        "# comment\n\ne2e/test_a.py::test_b[c d]   a slow  disk\n  [sig] name => of a test  why\n"
    )
    assert parse_reasons(text, "list.txt") == {
        "e2e/test_a.py::test_b[c d]": "a slow  disk",
        "[sig] name => of a test": "why",
    }


@cases(
    "text, error",
    ("e2e/test_a.py::test_b\n", "list.txt: no reason is given for 'e2e/test_a.py::test_b'"),
    (
        "a name with one space each\n",
        "list.txt: no reason is given for 'a name with one space each'",
    ),
    ("a  why\nb  why\na  another reason\n", "list.txt: 'a' is listed twice"),
)
def test_an_entry_without_a_reason_or_listed_twice_is_an_error(text, error):
    with pytest.raises(ValueError, match=f"^{error}$"):
        parse_reasons(text, "list.txt")
