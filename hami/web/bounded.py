"""Servers in threads, at an address of their own, for clients that nobody vouches for.

A server has few connections at a time, each for one request, and a client has a deadline for the whole exchange: a slow
one holds a thread for a limited time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hami.errors import HamiError
from hami.runtime.options import Address

log = logging.getLogger(__name__)

CLIENTS = 16  # connections at a time; Prometheus uses one or two
POLL_SECONDS = 0.1  # between two checks for a stop and for deadlines
LINE_LIMIT = 65_536  # bytes of a request line


class ServerThread:
    """Serves in daemon threads from `start` to `stop`."""

    def __init__(self, name: str, listen: Callable[[], socket.socket],
                 make: Callable[[socket.socket], BoundedServer]) -> None:
        """*name*: of the thread. *listen* returns the socket to serve, which listens. *make* returns its server."""
        self._name = name
        self._listen = listen
        self._make = make
        self._server: BoundedServer | None = None

    def start(self) -> None:
        """Listens and serves. Raises what *listen* raises."""
        self._server = self._make(self._listen())
        threading.Thread(target=self._server.serve_forever, args=(POLL_SECONDS,), name=self._name, daemon=True).start()

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


@dataclass(slots=True)
class _Client:
    """An open connection. *deadline*: on the monotonic clock."""

    deadline: float
    has_asked: bool = False
    is_ending: bool = False


class BoundedServer(ThreadingHTTPServer):
    """One thread for each connection. At the limit, a new connection ends another."""

    block_on_close = False

    def __init__(self, name: str, listener: socket.socket, handler: type[BaseHTTPRequestHandler],
                 timeout: float) -> None:
        """*name*: begins log messages. *handler*: calls `note_request` when the request of its connection has arrived.
        *timeout*: seconds that a client may take for its request and the answer together."""
        super().__init__(("", 0), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.name = name
        self._client_timeout = timeout
        self._clients: dict[Any, _Client] = {}  # open connections

    def process_request(self, request: Any, client_address: Any) -> None:
        clients = {key: client for key, client in self._clients.copy().items() if not client.is_ending}
        if len(clients) >= CLIENTS:
            log.warning("%s: too many connections, one ended", self.name, extra={"client": client_address[0]})
            # the oldest without a request, else the oldest
            oldest = min(clients, key=lambda key: clients[key].has_asked)
            self._end(oldest, clients[oldest])
        if len(self._clients) >= 2 * CLIENTS:  # many of them are ending
            self.shutdown_request(request)
            return
        self._clients[request] = _Client(time.monotonic() + self._client_timeout)
        super().process_request(request, client_address)

    def note_request(self, request: Any) -> None:
        """Called when the request of a connection has arrived."""
        client = self._clients[request]
        client.has_asked = True

    def shutdown_request(self, request: Any) -> None:
        """Called at the end of each connection, also if its thread could not be started."""
        self._clients.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called every POLL_SECONDS: ends connections whose time is up."""
        for request, client in self._clients.copy().items():
            if time.monotonic() > client.deadline:
                self._end(request, client)

    def _end(self, request: Any, client: _Client) -> None:
        """Ends a connection. Its thread notices when it reads or writes."""
        client.is_ending = True
        with contextlib.suppress(OSError):
            socket.socket.shutdown(request, socket.SHUT_RDWR)  # below TLS, whose state belongs to the thread

    def handle_error(self, request: Any, client_address: Any) -> None:
        lost = isinstance(sys.exception(), OSError)
        log.log(logging.DEBUG if lost else logging.ERROR, "%s: %s", self.name,
                "client lost" if lost else "request failed", exc_info=True, extra={"client": client_address[0]})


class OneRequestHandler(BaseHTTPRequestHandler):
    """Answers one request and closes the connection."""

    server: BoundedServer

    def handle(self) -> None:
        self.close_connection = True
        self.raw_requestline = self.rfile.readline(LINE_LIMIT + 1)
        if len(self.raw_requestline) > LINE_LIMIT:
            self.requestline, self.request_version, self.command = "", "", ""
            self.send_error(414)
        elif self.raw_requestline and self.parse_request():
            self.server.note_request(self.request)
            self.answer()

    def answer(self) -> None:
        """Answers the request whose line and headers have been read."""
        raise NotImplementedError

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def listen_as_flagged(flag: str, bind: tuple[str, int]) -> socket.socket:
    """A socket that listens on *bind*, the address that *flag* gives. Raises: HamiError naming both."""
    try:
        return listen(*bind)
    except HamiError as error:
        raise HamiError(f"{flag}: {error}") from error


def listen(host: str, port: int, *, backlog: int | None = None) -> socket.socket:
    """A socket that listens on *host*, on all addresses if that is empty. Raises: HamiError naming the address."""
    shown = Address(host, port)
    if not 0 <= port <= 65_535:
        raise HamiError(f"cannot listen on {shown}: expected a port from 0 to 65535")
    try:
        if not host and socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog)
        family = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        # getaddrinfo's numbers are its own and negative; of the others Python's text repeats the address
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
        raise HamiError(f"cannot listen on {shown}: {reason}") from error
