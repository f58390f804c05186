"""The ways of a pod, a watch event, a claim and a resize through the packages become shorter, never longer."""

import pytest

from hami.kube.api import is_unsent
from hami.quantity import parse_integer
from hami.scheduling.turns import in_turn
from testing.cases import cases
from tools import walk

pytestmark = pytest.mark.files

BOUNDS = {
    # scene: modules, climbs
    "pod": (41, 0),
    "watch-event": (20, 0),
    "claim": (24, 0),
    "resize": (40, 0),
}
"""What holds today. Lower a bound when a way has become shorter."""


@pytest.fixture(scope="module")
def walks():
    return dict(walk.walks(walk.SCENES))


@pytest.mark.parametrize("scene", walk.SCENES)
def test_a_way_is_no_longer_than_its_bound(walks, scene):
    modules, climbs = BOUNDS[scene]
    assert len(walks[scene].modules) <= modules, walk.render(scene, walks[scene])
    assert len(walks[scene].climbs) <= climbs, walk.render(scene, walks[scene])


def numbers():
    """A fake, which calls the package itself."""
    return list(map(parse_integer, "12"))


@cases(
    "act, modules, returns, climbs",
    ("a call", lambda: parse_integer("1"), ["quantity.py"], 0, 0),
    ("the same module again", numbers, ["quantity.py"], 1, 0),
    (
        "a function of a lower layer",
        lambda: list(in_turn("12", parse_integer)),
        ["scheduling/turns.py", "quantity.py"],
        1,
        0,
    ),
    (
        "a function of a higher layer",
        lambda: list(in_turn([OSError()], is_unsent)),
        ["scheduling/turns.py", "kube/api.py"],
        0,
        1,
    ),
    (
        "what a fake calls",
        lambda: list(in_turn("12", lambda text: parse_integer(text))),
        ["scheduling/turns.py"],
        0,
        0,
    ),
)
def test_a_way(act, modules, returns, climbs):
    found = walk.follow(act)
    assert found.modules == modules
    assert found.returns == returns
    assert len(found.climbs) == climbs


def test_the_layers_are_those_of_the_contract():
    levels = walk.layers()
    assert levels["errors"] < levels["codec"] < levels["state"] < levels["scheduler"]
    assert levels["kube"] == levels["devices"]


def test_a_way_is_rendered_by_packages():
    way = walk.Walk(["a/x.py", "a/y.py", "model.py", "a/z.py"], 4, ["m -> a f", "m -> a f"])
    assert (
        walk.render("resize", way)
        == """\
A pod asks for more memory, and gets it (`resize`): 4 modules, 4 times entered again, 2 climbs.

1. `a`: x, y
2. `model`
3. `a`: z

Climb, 2 ×: `m -> a f`
"""
    )
