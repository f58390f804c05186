"""Serves a WSGI application for people at an address of its own, over plain HTTP or TLS.

It has the bounds of `hami.web.pages`: few connections, one request for each, a deadline for the whole exchange.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable
from typing import IO, Any, cast
from wsgiref.handlers import SimpleHandler
from wsgiref.simple_server import WSGIRequestHandler
from wsgiref.types import WSGIApplication

from hami.errors import HamiError
from hami.web.pages import LINE_LIMIT, POLL_SECONDS, BoundedServer, listen

log = logging.getLogger(__name__)

TlsContexts = Callable[[object, object], ssl.SSLContext]
"""Returns the context for the next connection, as :class:`hami.web.tls.TlsContext` does."""


class AppServer:
    """Serves an application in daemon threads from `start` to `stop`."""

    def __init__(self, name: str, bind: tuple[str, int], app: WSGIApplication, *, flag: str,
                 tls: TlsContexts | None = None, timeout: float = 30.0) -> None:
        """*name*, *bind*, *flag*, *timeout*: as for `hami.web.pages.PageServer`. *tls*: ``None`` for plain HTTP.
        Nothing listens yet."""
        self._name = name
        self._bind = bind
        self._app = app
        self._flag = flag
        self._tls = tls
        self._timeout = timeout
        self._server: _Server | None = None

    def start(self) -> None:
        """Listens and serves. Raises: HamiError with the flag if the address cannot be listened on."""
        try:
            listener = listen(*self._bind)
        except HamiError as error:
            raise HamiError(f"{self._flag}: {error}") from error
        self._server = _Server(self._name, listener, self._app, self._tls, self._timeout)
        threading.Thread(target=self._server.serve_forever, args=(POLL_SECONDS,), name=self._name, daemon=True).start()

    def stop(self) -> None:
        """Stops listening. Answers that are being sent end by themselves, or with the process."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def address(self) -> tuple[str, int]:
        """The address that it listens on."""
        assert self._server is not None
        host, port, *_ = self._server.socket.getsockname()
        return str(host), port


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

    def log_exception(self, exc_info: Any) -> None:
        log.error("dashboard: request failed", exc_info=exc_info)


class _AppHandler(WSGIRequestHandler):
    """Answers one request and closes the connection."""

    server: _Server

    def handle(self) -> None:
        self.close_connection = True
        self.raw_requestline = self.rfile.readline(LINE_LIMIT + 1)
        if len(self.raw_requestline) > LINE_LIMIT:
            self.requestline, self.request_version, self.command = "", "", ""
            self.send_error(414)
        elif self.raw_requestline and self.parse_request():
            self.server.note_request(self.request)
            exchange = _Exchange(cast(IO[bytes], self.rfile), cast(IO[bytes], self.wfile), self.get_stderr(),
                                 self.get_environ(), multithread=True)
            exchange.run(self.server.app)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""
