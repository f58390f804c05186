"""A condition is reported once, until it changes or ends."""

from hami.runtime.once import OncePerKey


def test_a_value_is_new_once():
    once = OncePerKey()
    assert [once.is_new("a", value) for value in (1, 1, 2, 2, 1)] == [
        True,
        False,
        True,
        False,
        True,
    ]


def test_keys_do_not_hide_each_other():
    once = OncePerKey()
    assert once.is_new("a")
    assert once.is_new("b")
    assert not once.is_new("a")


def test_what_has_ended_is_new_again():
    once = OncePerKey()
    once.is_new("a")
    assert once.clear("a")
    assert not once.clear("a")
    assert once.is_new("a")


def test_keys_that_are_not_kept_are_new_again():
    once = OncePerKey()
    once.is_new("a"), once.is_new("b")
    once.keep_only({"a"})
    assert not once.is_new("a")
    assert once.is_new("b")


def test_the_oldest_key_is_dropped_at_the_limit():
    once = OncePerKey(limit=2)
    for key in ("a", "b", "a", "c"):
        once.is_new(key)
    assert not once.is_new("a")
    assert once.is_new("b")
