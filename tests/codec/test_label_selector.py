"""Label selectors."""

import pytest

from hami.codec.label_selector import parse_selector
from hami.errors import MalformedInput
from testing.cases import cases

LABELS = {"app": "web", "example.com/tier": "a1", "empty": ""}


@cases(
    "text, matches",
    ("", True),
    ("app=web", True),
    ("app==web", True),
    ("app=db", False),
    ("app!=db", True),
    ("app!=web", False),
    ("zone!=b", True),
    ("app", True),
    ("zone", False),
    ("!zone", True),
    ("! app", False),
    ("empty=", True),
    ("app in (db, web)", True),
    ("app in (db)", False),
    ("app notin (db)", True),
    ("zone notin (b)", True),
    ("app=web,example.com/tier=a1", True),
    ("app=web,zone", False),
    ("app in (web,db),!zone", True),
    (" app = web , !zone ", True),
    ("app in ()", False),
)
def test_matches(text, matches):
    assert parse_selector(text)(LABELS) is matches


@pytest.mark.parametrize(
    "text", ["=", "a=b=c", "a>1", "a in b", "a in (b", "a=b,", "!", "a b", "ä=b"]
)
def test_what_cannot_be_read_is_an_error(text):
    with pytest.raises(MalformedInput, match="label selector"):
        parse_selector(text)
