"""With ``--fewer-examples``, every test runs that depends on the interpreter, and of those with random input each case
with some seeds."""

from tests.conftest import superfluous


class Item:
    """A test as pytest has it. *marks*: the names of its marks."""

    def __init__(self, name, marks=()):
        self.parent, self.originalname, self.marks = "module", name, marks

    def get_closest_marker(self, name):
        return name in self.marks or None


def item(name, **parameters):
    made = Item(name)
    made.callspec = Callspec(parameters)
    return made


class Callspec:
    def __init__(self, params):
        self.params = params


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
    others = [Item("test_d"), item("test_c", case=1), item("test_c", case=2)]
    found = [*others, *(item(name, seed=seed) for name in ("test_a", "test_b") for seed in range(8))]
    assert len(kept(found)) == 3 + 2 + 2 and kept(found)[:3] == others


def test_those_that_read_files_are_left_out():
    assert [one.originalname for one in kept([Item("test_a", ["files"]), Item("test_b", ["kind"])])] == ["test_b"]
