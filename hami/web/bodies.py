"""Limits on the memory that the bodies of requests take together.

Requests share budgets, so that those of one kind cannot use up what another kind needs. A request enters its budget
when its body is first read, and leaves it when its answer has been sent, or has failed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from werkzeug.exceptions import ServiceUnavailable
from werkzeug.wsgi import ClosingIterator

from hami.web.connections import without_turn

FREE = 65_536  # bytes of each body that do not count


class BodyBudget(Protocol):
    """The memory that the bodies of some requests may take together."""

    def enter(self) -> None:
        """Called before the first byte of a body is read. Raises: ServiceUnavailable."""

    def take(self, count: int) -> None:
        """Called when *count* more bytes of a body have been read. Raises: ServiceUnavailable."""

    def leave(self, taken: int) -> None:
        """Called once for each body that has entered, with the sum of what was taken."""


class ByteBudget:
    """A budget of *size* bytes. What does not fit into it is refused.

    Bytes count from when they are read. Announced bytes do not count: a client that sends nothing takes nothing. The
    first FREE bytes of a body do not count either, so small requests are served while clients use up the budget with
    large ones.
    """

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()  # guards _left

    def enter(self) -> None:
        """Does nothing."""

    def take(self, count: int) -> None:
        """Takes *count* bytes. Raises: ServiceUnavailable."""
        with self._lock:
            if count > self._left:
                raise ServiceUnavailable("too many large requests at once, try again later")
            self._left -= count

    def leave(self, taken: int) -> None:
        """Gives *taken* bytes back."""
        with self._lock:
            self._left += taken


class TurnBudget:
    """A budget of *at_once* bodies of any size. Others wait before they are read.

    At most *waiting* requests wait, each for *wait_s* seconds; further ones are refused. A client that waits is not too
    slow for that.
    """

    def __init__(self, at_once: int, waiting: int, wait_s: float) -> None:
        self._turns = threading.BoundedSemaphore(at_once)
        self._places = threading.BoundedSemaphore(at_once + waiting)
        self._wait_s = wait_s

    def enter(self) -> None:
        """Waits for a turn. Raises: ServiceUnavailable."""
        if not self._places.acquire(blocking=False):
            raise ServiceUnavailable("too many large requests wait already, try again later")
        with without_turn():
            has_turn = self._turns.acquire(timeout=self._wait_s)
        if not has_turn:
            self._places.release()
            raise ServiceUnavailable(
                f"other large requests take longer than {self._wait_s:g} s, try again later"
            )

    def take(self, count: int) -> None:
        """Does nothing."""

    def leave(self, taken: int) -> None:
        """Ends the turn."""
        self._turns.release()
        self._places.release()


class BodyBudgets:
    """A WSGI application: *app*, whose requests share the budgets that *budget_of* returns for them."""

    def __init__(
        self, app: WSGIApplication, budget_of: Callable[[WSGIEnvironment], BodyBudget]
    ) -> None:
        self._app = app
        self._budget_of = budget_of

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serves a request. Reading beyond its budget raises ServiceUnavailable in *app*."""
        body = environ["wsgi.input"] = _CountedBody(environ["wsgi.input"], self._budget_of(environ))
        try:
            answer = self._app(environ, start_response)
        except BaseException:
            body.release()
            raise
        return ClosingIterator(answer, body.release)


class _CountedBody:
    """The body of one request, which enters *budget* with its first byte."""

    def __init__(self, stream: Any, budget: BodyBudget) -> None:
        self._stream = stream
        self._budget = budget
        self._has_entered = False
        self._free = FREE
        self._taken = 0

    def read(self, size: int) -> bytes:
        """Returns at most *size* bytes; none at the end."""
        if not self._has_entered:
            self._budget.enter()
            self._has_entered = True
        data: bytes = self._stream.read(size)
        self._free -= len(data)
        if self._free < 0:
            more = -self._free
            self._budget.take(more)
            self._taken += more
            self._free = 0
        return data

    def release(self) -> None:
        """Leaves the budget."""
        if self._has_entered:
            self._has_entered = False
            self._budget.leave(self._taken)
            self._taken = 0
