"""Serves pages over plain HTTP at an address of their own, such as metrics and readiness.

A page is made and sent in slices: a large one is never in memory as a whole, and other threads run between two slices.
This module does not know what is on a page.
"""

from __future__ import annotations

import logging
import socket
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from prometheus_client.exposition import gzip_accepted

from hami.web.bounded import BoundedServer, OneRequestHandler, ServerThread, listen_as_flagged

log = logging.getLogger(__name__)

BODY_LIMIT = 65_536  # bytes of an unexpected body that are read before the answer


@dataclass(frozen=True, slots=True)
class Page:
    """A page. *slices* are made while they are sent."""

    slices: Iterable[bytes]
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200


Make = Callable[[str], Page]
"""Makes a page for a client that accepts a content type."""


class PageServer(ServerThread):
    """Serves pages in daemon threads from `start` to `stop`."""

    def __init__(self, name: str, bind: tuple[str, int], pages: Mapping[str, Make], *, flag: str,
                 timeout: float = 30.0) -> None:
        """*name*: begins log messages. *bind*: host and port, which *flag* gives; an empty host listens on all
        addresses. *pages*: by path; each is made again for each request. *timeout*: seconds that a client may take for
        its request and the answer together."""
        super().__init__(name, partial(listen_as_flagged, flag, bind),
                         lambda listener: _PagesServer(name, listener, pages, timeout))


class _PagesServer(BoundedServer):
    """Serves *pages*, by path."""

    def __init__(self, name: str, listener: socket.socket, pages: Mapping[str, Make], timeout: float) -> None:
        super().__init__(name, listener, _Handler, timeout)
        self.pages = pages


class _Handler(OneRequestHandler):
    """Answers one request with its page."""

    server: _PagesServer
    protocol_version = "HTTP/1.1"
    server_version = "hami"
    sys_version = ""

    def answer(self) -> None:
        """Makes the page and sends it."""
        self._send(self._page())

    def _page(self) -> Page:
        make = self.server.pages.get(self.path.partition("?")[0])
        if make is None:
            return Page([f"not found; pages: {', '.join(self.server.pages)}\n".encode()], status=404)
        if self.command != "GET":
            return Page([b"only GET is served here\n"], status=405)
        try:
            return make(", ".join(self.headers.get_all("Accept", ())))
        except Exception:
            log.exception("%s: page failed", self.server.name)
            return Page([b"internal error, see the log\n"], status=500)

    def _send(self, page: Page) -> None:
        """Sends *page*. A short body is read first: a client that is still sending would miss the answer."""
        length = self.headers.get("Content-Length", "")
        self.rfile.read(min(int(length), BODY_LIMIT) if length.isdigit() else 0)
        slices = page.slices
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        if page.status == 405:
            self.send_header("Allow", "GET")
        if gzip_accepted(", ".join(self.headers.get_all("Accept-Encoding", ()))):
            self.send_header("Content-Encoding", "gzip")
            slices = _compressed(slices)
        if self.request_version > "HTTP/1.0":
            self.send_header("Transfer-Encoding", "chunked")
            slices = _chunked(slices)
        self.send_header("Connection", "close")
        self.end_headers()
        for part in slices if self.command != "HEAD" else ():
            self.wfile.write(part)


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
