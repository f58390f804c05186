"""A limit on the memory that the bodies of requests take together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from werkzeug.exceptions import ServiceUnavailable
from werkzeug.wsgi import ClosingIterator

from hami.web.connections import client_is_trusted

FREE = 65_536  # bytes of each body that do not count


class BodyBudget:
    """A WSGI application: *app*, which can read at most *size* bytes of the bodies of unanswered requests.

    Bytes count from when they are read until the answer has been sent, or has failed. Announced bytes do not count: a
    client that sends nothing takes nothing. The first FREE bytes of a body do not count either, so small requests are
    served while clients use up the budget with large ones. Trusted clients are not limited.
    """

    def __init__(self, app: WSGIApplication, size: int, *,
                 is_trusted: Callable[[WSGIEnvironment], bool] = client_is_trusted) -> None:
        self._app = app
        self._left = size
        self._is_trusted = is_trusted
        self._lock = threading.Lock()  # guards _left

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serves a request. Reading beyond the budget raises ServiceUnavailable in *app*."""
        if self._is_trusted(environ):
            return self._app(environ, start_response)
        body = environ["wsgi.input"] = _CountedBody(environ["wsgi.input"], self.take)
        try:
            answer = self._app(environ, start_response)
        except BaseException:
            body.release()
            raise
        return ClosingIterator(answer, body.release)

    def take(self, count: int) -> None:
        """Takes *count* bytes; a negative number gives them back. Raises: ServiceUnavailable."""
        with self._lock:
            if count > self._left:
                raise ServiceUnavailable("too many large requests at once, try again later")
            self._left -= count


class _CountedBody:
    """The body of one request. *take* is told of each byte that is read after the first FREE."""

    def __init__(self, stream: Any, take: Callable[[int], None]) -> None:
        self._stream = stream
        self._take = take
        self._free = FREE
        self._taken = 0

    def read(self, size: int) -> bytes:
        """Returns at most *size* bytes; none at the end."""
        data: bytes = self._stream.read(size)
        self._free -= len(data)
        if self._free < 0:
            self._take(-self._free)
            self._taken -= self._free
            self._free = 0
        return data

    def release(self) -> None:
        """Gives back what was taken."""
        if self._taken:
            self._take(-self._taken)
            self._taken = 0
