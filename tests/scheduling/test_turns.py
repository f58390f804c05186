"""Tenants are served in turn."""

import pytest

from hami.scheduling.turns import in_turn


@pytest.mark.parametrize(
    ("items", "order"),
    [
        pytest.param("", "", id="none"),
        pytest.param("abc", "abc", id="of one owner"),
        pytest.param("abcX", "aXbc", id="one of another"),
        pytest.param("abXYc", "aXbYc", id="of two"),
        pytest.param("Xab12c", "Xa1b2c", id="of three"),
    ],
)
def test_owners_take_turns(items, order):
    kinds = [str.islower, str.isupper, str.isdigit]
    assert "".join(in_turn(items, lambda item: [kind(item) for kind in kinds].index(True))) == order
