"""The budget of memory that the body of each request counts in."""

import io

import pytest
from werkzeug.exceptions import ServiceUnavailable
from werkzeug.test import create_environ

from hami.quantity import MIB
from hami.scheduler.budgets import LARGE, SIMULATIONS, RequestBudgets
from hami.web.bodies import BodyBudgets
from hami.web.rights import RIGHT, ClientRight
from testing.cases import cases

ANYBODY, SIMULATOR, EXTENDER = ClientRight.NONE, ClientRight.SIMULATE, ClientRight.EXTENDER


def request(path, right, length=1000):
    environ = create_environ(path, method="POST", environ_base={RIGHT: right})
    environ.pop("CONTENT_LENGTH", None)
    return environ if length is None else environ | {"CONTENT_LENGTH": str(length)}


@cases(
    "first, second, is_shared",
    ("a review is a review", ("/webhook", ANYBODY), ("/webhook", EXTENDER), True),
    ("also of who may simulate", ("/webhook", ANYBODY), ("/webhook", SIMULATOR), True),
    ("what is refused anyway", ("/webhook", ANYBODY), ("/filter", ANYBODY), True),
    ("a filter of who may simulate", ("/webhook", ANYBODY), ("/filter", SIMULATOR), True),
    ("no verb", ("/webhook", ANYBODY), ("/nothing", EXTENDER), True),
    ("reviews and filters", ("/webhook", ANYBODY), ("/filter", EXTENDER), False),
    ("reviews and preemptions", ("/webhook", ANYBODY), ("/preempt", EXTENDER), False),
    ("reviews and binds", ("/webhook", ANYBODY), ("/bind", EXTENDER), False),
    ("reviews and what is refused", ("/webhook", ANYBODY), ("/simulate", ANYBODY), True),
    ("simulations", ("/simulate", SIMULATOR), ("/simulate", EXTENDER), True),
    ("simulations and reviews", ("/simulate", SIMULATOR), ("/webhook", ANYBODY), False),
    ("simulations and filters", ("/simulate", EXTENDER), ("/filter", EXTENDER), False),
    ("simulations and long filters", ("/simulate", EXTENDER), ("/filter", EXTENDER, LARGE), False),
    ("a filter with whole nodes", ("/simulate", EXTENDER), ("/filter", EXTENDER, LARGE + 1), True),
    ("a filter of unknown length", ("/simulate", EXTENDER), ("/filter", EXTENDER, None), True),
    (
        "priorities with whole nodes",
        ("/simulate", EXTENDER),
        ("/prioritize", EXTENDER, LARGE + 1),
        True,
    ),
    (
        "simulations and preemptions",
        ("/simulate", EXTENDER),
        ("/preempt", EXTENDER, 16 * MIB),
        False,
    ),
    ("simulations and binds", ("/simulate", EXTENDER), ("/bind", EXTENDER, None), False),
    ("filters and priorities", ("/filter", EXTENDER), ("/prioritize", EXTENDER), True),
    ("filters and preemptions", ("/filter", EXTENDER), ("/preempt", EXTENDER), False),
    ("filters and binds", ("/filter", EXTENDER), ("/bind", EXTENDER), False),
    ("preemptions and binds", ("/preempt", EXTENDER), ("/bind", EXTENDER), False),
)
def test_who_shares_a_budget(first, second, is_shared):
    budgets = RequestBudgets()
    assert (budgets(request(*first)) is budgets(request(*second))) is is_shared


OTHERS = [("/webhook", ANYBODY), ("/filter", EXTENDER), ("/preempt", EXTENDER), ("/bind", EXTENDER)]


@cases("verb, size", ("/filter", LARGE), ("/preempt", 16 * MIB), ("/bind", MIB))
def test_no_other_request_takes_the_room_of_a_verb(verb, size):
    """Others take as much as they get. Each verb still has room for several bodies of its limit."""
    budgets, held = RequestBudgets(), []

    def app(environ, start_response):
        while environ["wsgi.input"].read(MIB):
            pass
        start_response("200 OK", [])
        return [b""]

    def post(path, right, size):
        environ = request(path, right, size) | {"wsgi.input": io.BytesIO(b"x" * size)}
        held.append(BodyBudgets(app, budgets)(environ, lambda *_: None))

    for path, right in OTHERS:
        if path != verb:
            with pytest.raises(ServiceUnavailable):
                for _ in range(30):
                    post(path, right, LARGE)
    for _ in range(SIMULATIONS):
        post("/simulate", SIMULATOR, 64 * MIB)
    for _ in range(4):
        post(verb, EXTENDER, size)
