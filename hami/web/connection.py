"""One client of the server: its TLS handshake and its requests must arrive before deadlines that the worker sets."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from gunicorn import sock, util
from gunicorn.http.errors import NoMoreData
from gunicorn.http.parser import RequestParser
from gunicorn.workers.gthread import TConn

# gunicorn has no type information: its class is Any to mypy, hence the ignored base class below


class Connection(TConn):  # type: ignore[misc]
    """One client. *deadline*: when its request must have arrived. *keep_alive_ms*: for how long a thread waits for a
    request; the event loop waits for later ones."""

    deadline: float
    keep_alive_ms: int

    def wait_for_data(self, timeout: float = 0) -> bool:
        """Reports whether the first bytes of a request arrive soon. Ignores gunicorn's *timeout*, five seconds."""
        if self.parser is not None and self.parser.unreader.buf.getvalue():
            return True
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(self.keep_alive_ms))

    def init(self) -> None:
        """Called before each request."""
        self.parser: Any = self.parser or RequestParser(self.cfg, self._receive(), self.client)
        super().init()
        self.sock.settimeout(60)  # for writing; each read has its own

    def _receive(self) -> Iterator[bytes]:
        """Yields the bytes of the client. An end of the stream within a request or its body is an error."""
        with suppress(TimeoutError):
            if self.cfg.is_ssl:
                self.sock: Any = sock.ssl_wrap_socket(self.sock, self.cfg)  # the first recv makes the handshake
            while (left := self.deadline - time.monotonic()) > 0:
                self.sock.settimeout(left)
                data = self.sock.recv(65_536)
                if not data:
                    break
                yield data
        raise NoMoreData(b"")

    def close(self, graceful: bool = False) -> None:
        """Closes the socket without waiting: the worker's ``handle`` has waited in its thread."""
        util.close(self.sock)
