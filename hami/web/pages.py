"""Serves an application in threads, at an address of its own: metrics, probes, and pages for people.

A server has few connections at a time, each for one request, and a client has a deadline for the whole exchange: a slow
one holds a thread for a limited time. A page is made and sent in slices: a large one is never in memory as a whole, and
other threads run between two slices. This module does not know what is on a page.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from socketserver import ThreadingTCPServer
from typing import Any
from wsgiref.handlers import SimpleHandler
from wsgiref.simple_server import WSGIRequestHandler
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client.exposition import gzip_accepted

from hami.web.connections import Connection, TlsContexts, client_name, listen

log = logging.getLogger(__name__)

CLIENTS = 16  # connections at a time; Prometheus uses one or two
POLL_S = 0.1  # between two checks for a stop
CLIENT_NAME = "hami.client-name"
"""Key of a WSGI environment: the common name of the client's certificate, which was verified; empty without one."""
CLIENT_HEADERS = "hami.client-headers"
"""Key of a WSGI environment: the headers as they came. The environment itself joins those of one name by commas, and
takes ``_`` in a name for ``-``."""
LINE_LIMIT = 65_536  # bytes of a request line


@dataclass(frozen=True, slots=True)
class Page:
    """A page. *slices* are made while they are sent."""

    slices: Iterable[bytes]
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200


Make = Callable[[str], Page]
"""Makes a page for a client that accepts a content type."""


class AppServer:
    """Serves an application in daemon threads from `start` to `stop`."""

    def __init__(
        self,
        name: str,
        bind: tuple[str, int],
        app: WSGIApplication,
        *,
        flag: str,
        tls: TlsContexts | None = None,
        timeout: float = 30.0,
    ) -> None:
        """*name*: begins log messages. *bind*: host and port, which *flag* gives; an empty host listens on all
        addresses. *tls*: ``None`` for plain HTTP. *timeout*: seconds that a client may take for its request and the
        answer together."""
        self._name = name
        self._make: Callable[[], _Server] = lambda: _Server(
            name, listen(*bind, flag=flag), app, tls, timeout
        )
        self._server: _Server | None = None

    def start(self) -> None:
        """Listens and serves. Raises: HamiError if the address cannot be listened on."""
        self._server = self._make()
        threading.Thread(
            target=self._server.serve_forever, args=(POLL_S,), name=self._name, daemon=True
        ).start()

    def stop(self) -> None:
        """Stops listening. Answers that are being sent end by themselves, or with the process."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that are listened on; the actual port where 0 was given."""
        if self._server is None:
            raise RuntimeError(f"{self._name}: the server has not been started")
        host, port = self._server.socket.getsockname()[:2]
        return str(host), port


class PageServer(AppServer):
    """Serves pages by path, each made again for each request."""

    def __init__(
        self,
        name: str,
        bind: tuple[str, int],
        pages: Mapping[str, Make],
        *,
        flag: str,
        timeout: float = 30.0,
    ) -> None:
        super().__init__(
            name,
            bind,
            lambda environ, start: _show(name, pages, environ, start),
            flag=flag,
            timeout=timeout,
        )


class Health:
    """Reports to the kubelet's probes whether the running program is ready, and whether its threads work."""

    def __init__(self) -> None:
        self._unready_reason: Callable[[], str] = lambda: "starting"
        self._hung_reason: Callable[[], str] = str

    def follow(
        self, unready_reason: Callable[[], str], hung_reason: Callable[[], str] = str
    ) -> None:
        """Reports what these return from now on; empty means ready, or that all threads work."""
        self._unready_reason, self._hung_reason = unready_reason, hung_reason

    def readyz(self, accept: str) -> Page:
        """Returns status 200 if the program is ready, otherwise 503 with the reason."""
        return _probe_page(self._unready_reason(), 503)

    def healthz(self, accept: str) -> Page:
        """Returns status 200, or 500 with what has died or hangs. A failed start is no reason."""
        return _probe_page(self._hung_reason(), 500)


def _probe_page(reason: str, status: int) -> Page:
    if not reason:
        return Page((b"ok\n",))
    return Page((f"{reason}\n".encode(),), status=status)


def _show(
    name: str, pages: Mapping[str, Make], environ: WSGIEnvironment, start: StartResponse
) -> Iterable[bytes]:
    """Answers with the page that *environ* asks for."""
    page = _page(name, pages.get(environ["PATH_INFO"]), environ)
    headers = [("Content-Type", page.content_type)]
    if page.status == 405:
        headers.append(("Allow", "GET"))
    slices = page.slices
    if gzip_accepted(environ.get("HTTP_ACCEPT_ENCODING", "")):
        headers.append(("Content-Encoding", "gzip"))
        slices = _compressed(slices)
    start(f"{page.status} {HTTPStatus(page.status).phrase}", headers)
    if environ["REQUEST_METHOD"] == "HEAD":
        return ()
    return slices


def _page(name: str, make: Make | None, environ: WSGIEnvironment) -> Page:
    if make is None:
        return Page([b"not found\n"], status=404)
    if environ["REQUEST_METHOD"] != "GET":
        return Page([b"only GET is served here\n"], status=405)
    try:
        return make(environ.get("HTTP_ACCEPT", ""))
    except Exception:
        log.exception("%s: page failed", name)
        return Page([b"internal error, see the log\n"], status=500)


def _compressed(slices: Iterable[bytes]) -> Iterator[bytes]:
    """*slices* as one gzip stream. Meanwhile, zlib releases the interpreter lock."""
    packer = zlib.compressobj(1, wbits=31)
    for part in slices:
        yield packer.compress(part)
    yield packer.flush()


def _chunked(slices: Iterable[bytes]) -> Iterator[bytes]:
    """*slices* in HTTP/1.1 chunks. If the last one is missing, the client knows that the page is incomplete."""
    for part in slices:
        if part:
            yield b"%x\r\n%b\r\n" % (len(part), part)
    yield b"0\r\n\r\n"


class _Server(ThreadingTCPServer):
    """One thread for each connection. At the limit, a new connection ends another."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        name: str,
        listener: socket.socket,
        app: WSGIApplication,
        tls: TlsContexts | None,
        timeout: float,
    ) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.name = name
        self.app = app
        self._tls = tls
        self._client_timeout = timeout
        self._clients: dict[Connection, None] = {}
        self.base_environ = {
            "SERVER_NAME": str(listener.getsockname()[0]),
            "SERVER_PORT": str(listener.getsockname()[1]),
            "GATEWAY_INTERFACE": "CGI/1.1",
            "SCRIPT_NAME": "",
            "REMOTE_HOST": "",
            "CONTENT_LENGTH": "",
            "hami.server": name,
        }
        if tls is not None:
            self.base_environ["HTTPS"] = "on"

    def get_request(self) -> tuple[Any, Any]:
        """Accepts a connection. The handshake of TLS follows in the connection's thread, when it reads."""
        client, address = self.socket.accept()
        until = time.monotonic() + self._client_timeout
        return Connection(
            client,
            self._clients,
            tls=self._tls,
            read_until=lambda: until,
            write_until=lambda: until,
        ), address

    def process_request(self, request: Any, client_address: Any) -> None:
        clients = [client for client in list(self._clients) if not client.is_ending]
        if len(clients) > CLIENTS:  # with the new one
            log.warning(
                "%s: too many connections, one ended",
                self.name,
                extra={"client": client_address[0]},
            )
            # the oldest that has sent nothing, else the oldest
            min(clients[:-1], key=lambda client: not client.is_silent).end()
        if len(self._clients) > 2 * CLIENTS:  # many of them are ending
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        level, problem = logging.ERROR, "request failed"
        if isinstance(sys.exception(), OSError):
            level, problem = logging.DEBUG, "client lost"
        extra = {"client": client_address[0]}
        log.log(level, "%s: %s", self.name, problem, exc_info=True, extra=extra)


class _Exchange(SimpleHandler):
    """Runs the application for one request."""

    http_version = "1.1"
    server_software = "hami"
    os_environ: dict[str, str] = {}  # of this process: the application needs none of it
    headers: Any
    environ: Any
    result: Any
    status: Any

    def finish_response(self) -> None:
        """Sends the answer, in chunks if its length is not known."""
        self.headers["Connection"] = "close"
        if self._has_body_of_unknown_length():
            self.headers["Transfer-Encoding"] = "chunked"
            self.result = _chunked(self.result)
        super().finish_response()

    def _has_body_of_unknown_length(self) -> bool:
        if self.environ["REQUEST_METHOD"] == "HEAD":
            return False
        if self.status.startswith(("204", "304")) or "Content-Length" in self.headers:
            return False
        return bool(self.environ["SERVER_PROTOCOL"] > "HTTP/1.0")

    def log_exception(self, exc_info: Any) -> None:
        log.error("%s: request failed", self.environ["hami.server"], exc_info=exc_info)


class _Handler(WSGIRequestHandler):
    """Answers one request with the application, and closes the connection."""

    protocol_version = "HTTP/1.1"
    server_version = "hami"
    sys_version = ""
    server: _Server

    def handle(self) -> None:
        self.close_connection = True
        self.raw_requestline = self.rfile.readline(LINE_LIMIT + 1)
        if len(self.raw_requestline) > LINE_LIMIT:
            self.requestline, self.request_version, self.command = "", "", ""
            self.send_error(414)
        elif self.raw_requestline and self.parse_request():
            streams: tuple[Any, Any, Any] = self.rfile, self.wfile, self.get_stderr()
            environ = self.get_environ() | {
                CLIENT_NAME: client_name(self.request),
                CLIENT_HEADERS: self.headers,
            }
            _Exchange(*streams, environ, multithread=True).run(self.server.app)
        self.request.finish()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""
