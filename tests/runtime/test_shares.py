"""An owner of very many values pushes out its own."""

from hami.runtime.shares import Shares


def test_the_owner_of_most_values_loses_its_oldest():
    shares = Shares(3)
    assert shares.put("b", 0, "b0") is None
    dropped = [shares.put("a", key, f"a{key}") for key in range(4)]
    assert dropped == [None, None, "a0", "a1"]
    assert shares.put("c", 0, "c0") == "a2"
    assert [shares.get(*key) for key in (("a", 3), ("b", 0), ("c", 0), ("a", 0), ("d", 0))] == [
        "a3",
        "b0",
        "c0",
        None,
        None,
    ]
    assert len(shares) == 3


def test_a_value_that_is_stored_again_is_the_latest():
    shares = Shares(2)
    for key in (0, 1, 0, 2):
        shares.put("a", key, key)
    assert [shares.get("a", key) for key in range(3)] == [0, None, 2]


def test_a_single_value_may_be_the_limit():
    shares = Shares(1)
    shares.put("a", 0, 0)
    assert shares.put("b", 0, 0) == 0
    assert len(shares) == 1
