"""Which budget of memory the body of a request counts in, so that no kind of request takes what another needs."""

from __future__ import annotations

from wsgiref.types import WSGIEnvironment

from werkzeug.wsgi import get_content_length

from hami.quantity import MIB
from hami.web.bodies import BodyBudget, ByteBudget, TurnBudget
from hami.web.rights import ClientRight, right_of

WEBHOOK_BYTES = 64 * MIB  # of reviews: anybody can send them
FILTER_BYTES = 64 * MIB  # of filters and priorities
PREEMPT_BYTES = 64 * MIB
BIND_BYTES = 16 * MIB

LARGE = 4 * MIB
"""Bytes of a filter that has whole nodes, like a simulation: 20,000 names of nodes take a third of that."""
# whose bodies are read, or whose answers are sent, at once; each may have 64 MiB, twice
SIMULATIONS = 2
WAITING_SIMULATIONS = 32
SIMULATION_WAIT_S = 300.0  # clients have timeouts of their own


class RequestBudgets:
    """Returns the budget of a request. The budgets last as long as this object."""

    def __init__(self) -> None:
        self._anybody = ByteBudget(WEBHOOK_BYTES)
        filters = ByteBudget(FILTER_BYTES)
        self._extender: dict[str, BodyBudget] = {
            "/filter": filters,
            "/prioritize": filters,
            "/preempt": ByteBudget(PREEMPT_BYTES),
            "/bind": ByteBudget(BIND_BYTES),
        }
        self._simulations = TurnBudget(SIMULATIONS, WAITING_SIMULATIONS, SIMULATION_WAIT_S)

    def __call__(self, environ: WSGIEnvironment) -> BodyBudget:
        """Returns the budget that the body of a request counts in, by its path and the right of its client."""
        path, right = environ["PATH_INFO"], right_of(environ)
        if path == "/simulate" and right is not ClientRight.NONE:
            return self._simulations
        if path not in self._extender or right is not ClientRight.EXTENDER:
            return self._anybody
        if path in ("/filter", "/prioritize") and _is_large(environ):
            return self._simulations
        return self._extender[path]


def _is_large(environ: WSGIEnvironment) -> bool:
    """Reports whether a body is large, or does not say so: kube-scheduler always announces its length."""
    length = get_content_length(environ)
    return length is None or length > LARGE
