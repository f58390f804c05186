"""Serves a WSGI application for people at an address of its own, over plain HTTP or TLS.

It has the bounds of `hami.web.bounded`.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any
from wsgiref.handlers import SimpleHandler
from wsgiref.simple_server import WSGIRequestHandler
from wsgiref.types import WSGIApplication

from hami.web.bounded import BoundedServer, OneRequestHandler, ServerThread

log = logging.getLogger(__name__)

TlsContexts = Callable[[object, object], ssl.SSLContext]
"""Returns the context for the next connection, as :class:`hami.web.tls.TlsContext` does."""


class AppServer(ServerThread):
    """Serves an application in daemon threads from `start` to `stop`."""

    def __init__(self, name: str, listen: Callable[[], socket.socket], app: WSGIApplication, *,
                 tls: TlsContexts | None = None, timeout: float = 30.0) -> None:
        """*name*: begins log messages. *listen* returns the socket to serve. *tls*: ``None`` for plain HTTP. *timeout*:
        seconds that a client may take for its request and the answer together."""
        super().__init__(name, listen, lambda listener: _Server(name, listener, app, tls, timeout))


class _Server(BoundedServer):
    def __init__(self, name: str, listener: socket.socket, app: WSGIApplication, tls: TlsContexts | None,
                 timeout: float) -> None:
        super().__init__(name, listener, _AppHandler, timeout)
        self._tls = tls
        self.app = app
        self.base_environ = {
            "SERVER_NAME": str(listener.getsockname()[0]), "SERVER_PORT": str(listener.getsockname()[1]),
            "GATEWAY_INTERFACE": "CGI/1.1", "SCRIPT_NAME": "", "REMOTE_HOST": "", "CONTENT_LENGTH": "",
            **({"HTTPS": "on"} if tls is not None else {})}

    def get_request(self) -> tuple[Any, Any]:
        """Accepts a connection. The handshake of TLS follows in the connection's thread, when it reads."""
        client, address = super().get_request()
        if self._tls is not None:
            client = self._tls(None, None).wrap_socket(client, server_side=True, do_handshake_on_connect=False)
        return client, address


class _Exchange(SimpleHandler):
    """Runs the application for one request."""

    server_software = "hami"
    os_environ: dict[str, str] = {}  # of this process: the application needs none of it

    def __init__(self, name: str, *streams: Any, **options: Any) -> None:
        super().__init__(*streams, **options)
        self._name = name

    def log_exception(self, exc_info: Any) -> None:
        log.error("%s: request failed", self._name, exc_info=exc_info)


class _AppHandler(OneRequestHandler, WSGIRequestHandler):
    """Answers one request with the application."""

    server: _Server

    def answer(self) -> None:
        """Runs the application."""
        exchange = _Exchange(self.server.name, self.rfile, self.wfile, self.get_stderr(), self.get_environ(),
                             multithread=True)
        exchange.run(self.server.app)
