"""Tenants are served in turn."""

from hami.scheduling.turns import in_turn
from testing.cases import cases


@cases(
    "items, order",
    ("none", "", ""),
    ("of one owner", "abc", "abc"),
    ("one of another", "abcX", "aXbc"),
    ("of two", "abXYc", "aXbYc"),
    ("of three", "Xab12c", "Xa1b2c"),
)
def test_owners_take_turns(items, order):
    kinds = [str.islower, str.isupper, str.isdigit]
    assert "".join(in_turn(items, lambda item: [kind(item) for kind in kinds].index(True))) == order
