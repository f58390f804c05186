"""Serves a page or two over plain HTTP, on an address of their own: metrics, or how a process is.

A page is made and sent slice by slice: a large one is never in memory as a whole, and what else the process does gets
its turn between two slices. A client has a deadline for all that it sends and for all that it takes, so a slow one
holds a thread for a while and no longer. This module does not know what is on a page.
"""

from __future__ import annotations

import io
import logging
import os
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from prometheus_client.exposition import gzip_accepted

from hami.errors import HamiError

__all__ = ["CLIENTS", "Page", "PageServer", "RequestTimeouts", "listen"]

log = logging.getLogger(__name__)

CLIENTS = 16  # connections at a time; Prometheus is one or two
LINE_LIMIT = 65_536  # bytes of a request line
BODY_LIMIT = 65_536  # bytes of a body nobody asked for that are read before the refusal


@dataclass(frozen=True, slots=True)
class RequestTimeouts:
    """Seconds that a client may take in all. *head*: to send its request. *page*: to take the answer."""

    head: float = 10.0
    page: float = 60.0


@dataclass(frozen=True, slots=True)
class Page:
    """What a client gets. *slices* are made while they are sent."""

    slices: Iterable[bytes]
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200


Make = Callable[[str], Page]
"""A page for a client that accepts a content type."""


class PageServer:
    """Serves pages in daemon threads from `start` to `stop`."""

    def __init__(self, name: str, bind: tuple[str, int], pages: Mapping[str, Make], *, flag: str,
                 timeouts: RequestTimeouts = RequestTimeouts()) -> None:
        """*name*: what is served, as log lines begin. *bind*: host and port; an empty host listens on all addresses.
        *pages*: by their paths; each is made anew for each request. *flag*: what said where. Nothing listens yet."""
        self._name = name
        self._flag = flag
        self._bind = bind
        self._pages = pages
        self._timeouts = timeouts
        self._server: _Server | None = None

    def start(self) -> None:
        """Listen and serve. Raises: HamiError with the flag when the address cannot be listened on."""
        try:
            listener = listen(*self._bind)
        except HamiError as error:
            raise HamiError(f"{self._flag}: {error}") from error
        self._server = _Server(self._name, listener, self._pages, self._timeouts)
        threading.Thread(target=self._server.run, name=self._name, daemon=True).start()

    def stop(self) -> None:
        """Listen no more; pages under way end by themselves, or with the process."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that are listened on; the port is a real one also where 0 was asked for."""
        if self._server is None:
            raise RuntimeError(f"{self._name}: the server has not been started")
        host, port = self._server.server_address[:2]
        return str(host), port


class _Server(ThreadingMixIn, TCPServer):
    """A thread for each connection, up to a limit."""

    daemon_threads = True

    def __init__(self, name: str, listener: socket.socket, pages: Mapping[str, Make], timeouts: RequestTimeouts) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_address = listener.getsockname()
        self.name = name
        self.pages = pages
        self.timeouts = timeouts
        self._places = threading.BoundedSemaphore(CLIENTS)
        self._stopping = threading.Event()
        self._stopped = threading.Event()

    def run(self) -> None:
        """Take connections until `stop`. Unlike `serve_forever` it sleeps as long as nobody comes."""
        while not self._stopping.is_set():
            self.handle_request()
        self._stopped.set()

    def stop(self) -> None:
        """End `run`, which must have been started, and listen no more."""
        self._stopping.set()
        self.socket.shutdown(socket.SHUT_RDWR)  # wakes who waits for a connection
        self._stopped.wait()
        self.server_close()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            self._stopping.wait(0.1)  # out of file descriptors, most likely: the connection will still be waiting
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            log.warning("%s: too many connections, one refused", self.name, extra={"client": client_address[0]})
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        lost = isinstance(sys.exception(), OSError)
        log.log(logging.DEBUG if lost else logging.ERROR, "%s: %s", self.name,
                "client lost" if lost else "request failed", exc_info=True, extra={"client": client_address[0]})


class _Handler(BaseHTTPRequestHandler):
    """One request, one answer, and the connection is closed."""

    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "hami"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        head = _Deadline(self.connection, self.server.timeouts.head)
        self.rfile = io.BufferedReader(_Reader(self.connection, head))

    def handle(self) -> None:
        self.close_connection = True
        try:
            self.raw_requestline = self.rfile.readline(LINE_LIMIT + 1)
            if len(self.raw_requestline) > LINE_LIMIT:
                self.requestline, self.request_version, self.command = "", "", ""
                self.send_error(414)
            elif self.raw_requestline and self.parse_request():
                self._answer()
        except TimeoutError:
            log.debug("%s: client too slow", self.server.name, extra={"client": self.client_address[0]})

    def _answer(self) -> None:
        make = self.server.pages.get(self.path.partition("?")[0])
        if make is None:
            self._refuse(404, f"not found: here is {', '.join(self.server.pages)}")
        elif self.command != "GET":
            self._refuse(405, "only GET is served here")
        else:
            self._send(make)

    def _send(self, make: Make) -> None:
        try:
            page = make(", ".join(self.headers.get_all("Accept", ())))
        except Exception:
            log.exception("%s: page failed", self.server.name)
            return self._refuse(500, "the page cannot be made: the log says why")
        slices = page.slices
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        if gzip_accepted(", ".join(self.headers.get_all("Accept-Encoding", ()))):
            self.send_header("Content-Encoding", "gzip")
            slices = _compressed(slices)
        if self.request_version > "HTTP/1.0":
            self.send_header("Transfer-Encoding", "chunked")
            slices = _chunked(slices)
        self.send_header("Connection", "close")
        self.end_headers()
        deadline = _Deadline(self.connection, self.server.timeouts.page)
        for part in slices:
            deadline.apply()
            self.wfile.write(part)

    def _refuse(self, status: int, text: str) -> None:
        """Answer with *status* and one line. A short body is read first: who is still sending would miss the answer."""
        length = self.headers.get("Content-Length", "")
        self.rfile.read(min(int(length), BODY_LIMIT) if length.isdigit() else 0)
        body = f"{text}\n".encode()
        self.send_response(status)
        if status == 405:
            self.send_header("Allow", "GET")
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape is no news."""


class _Deadline:
    """The moment until which a client's socket may be used."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._end = time.monotonic() + seconds

    def apply(self) -> None:
        """Let the next call on the socket last no longer. Raises: TimeoutError when it is too late for one."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the client has had its time")
        self._connection.settimeout(left)


class _Reader(io.RawIOBase):
    """What a client sends until the deadline."""

    def __init__(self, connection: socket.socket, deadline: _Deadline) -> None:
        self._connection = connection
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._deadline.apply()
        return self._connection.recv_into(buffer)


def _compressed(slices: Iterable[bytes]) -> Iterator[bytes]:
    """*slices* as one gzip stream; the interpreter is free for others while it is made."""
    packer = zlib.compressobj(1, wbits=31)
    for part in slices:
        if packed := packer.compress(part):
            yield packed
    yield packer.flush()


def _chunked(slices: Iterable[bytes]) -> Iterator[bytes]:
    """*slices* in HTTP/1.1's chunks. Without the last one the client knows that the page is not whole."""
    for part in slices:
        if part:
            yield b"%x\r\n%b\r\n" % (len(part), part)
    yield b"0\r\n\r\n"


def listen(host: str, port: int, *, backlog: int | None = None) -> socket.socket:
    """A socket that listens on *host*, on all addresses if that is empty. Raises: HamiError naming the address."""
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
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
