"""With ``--fewer-examples``, every test runs, and of those with random input each case with some seeds."""

from types import SimpleNamespace

from tests.conftest import superfluous


def item(name, **parameters):
    return SimpleNamespace(parent="module", originalname=name, callspec=SimpleNamespace(params=parameters))


def kept(items):
    left_out = [id(item) for item in superfluous(items)]
    return [item for item in items if id(item) not in left_out]


def test_every_seventh_seed_is_kept():
    found = kept([item("test_a", seed=seed) for seed in range(20)])
    assert [one.callspec.params["seed"] for one in found] == [0, 7, 14]


def test_each_case_keeps_seeds():
    cases = [{"mode": "locks"}, {"mode": "none"}]
    found = kept([item("test_a", seed=seed, case=case) for case in cases for seed in range(8)])
    assert [one.callspec.params for one in found] == [{"seed": seed, "case": case} for case in cases for seed in (0, 7)]


def test_tests_are_counted_apart_and_those_without_seed_stay():
    others = [SimpleNamespace(), item("test_c", case=1), item("test_c", case=2)]
    found = [*others, *(item(name, seed=seed) for name in ("test_a", "test_b") for seed in range(8))]
    assert len(kept(found)) == 3 + 2 + 2 and kept(found)[:3] == others
