"""The budget of memory that the body of each request counts in."""

import io

import pytest
from pytest import param
from werkzeug.exceptions import ServiceUnavailable
from werkzeug.test import create_environ

from hami.quantity import MIB
from hami.scheduler.budgets import LARGE, SIMULATIONS, RequestBudgets
from hami.web.bodies import BodyBudgets
from hami.web.rights import RIGHT, ClientRight

ANYBODY, SIMULATOR, EXTENDER = ClientRight.NONE, ClientRight.SIMULATE, ClientRight.EXTENDER


def request(path, right, length=1000):
    environ = create_environ(path, method="POST", environ_base={RIGHT: right})
    environ.pop("CONTENT_LENGTH", None)
    return environ if length is None else environ | {"CONTENT_LENGTH": str(length)}


@pytest.mark.parametrize(
    ("first", "second", "is_shared"),
    [
        param(("/webhook", ANYBODY), ("/webhook", EXTENDER), True, id="a review is a review"),
        param(("/webhook", ANYBODY), ("/webhook", SIMULATOR), True, id="also of who may simulate"),
        param(("/webhook", ANYBODY), ("/filter", ANYBODY), True, id="what is refused anyway"),
        param(
            ("/webhook", ANYBODY), ("/filter", SIMULATOR), True, id="a filter of who may simulate"
        ),
        param(("/webhook", ANYBODY), ("/nothing", EXTENDER), True, id="no verb"),
        param(("/webhook", ANYBODY), ("/filter", EXTENDER), False, id="reviews and filters"),
        param(("/webhook", ANYBODY), ("/preempt", EXTENDER), False, id="reviews and preemptions"),
        param(("/webhook", ANYBODY), ("/bind", EXTENDER), False, id="reviews and binds"),
        param(
            ("/webhook", ANYBODY), ("/simulate", ANYBODY), True, id="reviews and what is refused"
        ),
        param(("/simulate", SIMULATOR), ("/simulate", EXTENDER), True, id="simulations"),
        param(("/simulate", SIMULATOR), ("/webhook", ANYBODY), False, id="simulations and reviews"),
        param(("/simulate", EXTENDER), ("/filter", EXTENDER), False, id="simulations and filters"),
        param(
            ("/simulate", EXTENDER),
            ("/filter", EXTENDER, LARGE),
            False,
            id="simulations and long filters",
        ),
        param(
            ("/simulate", EXTENDER),
            ("/filter", EXTENDER, LARGE + 1),
            True,
            id="a filter with whole nodes",
        ),
        param(
            ("/simulate", EXTENDER),
            ("/filter", EXTENDER, None),
            True,
            id="a filter of unknown length",
        ),
        param(
            ("/simulate", EXTENDER),
            ("/prioritize", EXTENDER, LARGE + 1),
            True,
            id="priorities with whole nodes",
        ),
        param(
            ("/simulate", EXTENDER),
            ("/preempt", EXTENDER, 16 * MIB),
            False,
            id="simulations and preemptions",
        ),
        param(
            ("/simulate", EXTENDER), ("/bind", EXTENDER, None), False, id="simulations and binds"
        ),
        param(("/filter", EXTENDER), ("/prioritize", EXTENDER), True, id="filters and priorities"),
        param(("/filter", EXTENDER), ("/preempt", EXTENDER), False, id="filters and preemptions"),
        param(("/filter", EXTENDER), ("/bind", EXTENDER), False, id="filters and binds"),
        param(("/preempt", EXTENDER), ("/bind", EXTENDER), False, id="preemptions and binds"),
    ],
)
def test_who_shares_a_budget(first, second, is_shared):
    budgets = RequestBudgets()
    assert (budgets(request(*first)) is budgets(request(*second))) is is_shared


OTHERS = [("/webhook", ANYBODY), ("/filter", EXTENDER), ("/preempt", EXTENDER), ("/bind", EXTENDER)]


@pytest.mark.parametrize(
    ("verb", "size"), [("/filter", LARGE), ("/preempt", 16 * MIB), ("/bind", MIB)]
)
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
