"""A WSGI application of a few fixed paths. Without a framework, a small request takes half of the CPU time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from wsgiref.types import StartResponse, WSGIEnvironment

log = logging.getLogger(__name__)

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response."""

    body: bytes
    status: int = 200
    content_type: str = JSON


Handler = Callable[[WSGIEnvironment], Answer]


def text(line: str, status: int = 200) -> Answer:
    """Returns a response of one line."""
    return Answer(f"{line}\n".encode(), status, TEXT)


class Routes:
    """A WSGI application that answers each request with what the handler of its path returns.

    *handlers*: by path and method. A path that ends with ``/`` stands for all paths with one more segment. GET answers
    HEAD, too.
    """

    def __init__(self, handlers: Mapping[str, Mapping[str, Handler]]) -> None:
        self._handlers = handlers

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serves a request. An error of a handler becomes a status and one line, never a traceback."""
        try:
            answer = self._answer(environ)
        except Exception:
            log.exception("request failed", extra={"path": environ["PATH_INFO"]})
            answer = text("internal error, see the scheduler's log", 500)
        start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}",
                       [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))])
        return (answer.body,)

    def _answer(self, environ: WSGIEnvironment) -> Answer:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        methods = self._handlers.get(path) or self._handlers.get(path[:path.rfind("/") + 1])
        if methods is None:
            return text("Not Found", 404)
        handler = methods.get("GET" if method == "HEAD" else method)
        return handler(environ) if handler is not None else text("Method Not Allowed", 405)
