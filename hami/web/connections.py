"""Clients of a server: connections whose requests and answers have deadlines, and the addresses that they reach.

Any client may connect, so none may hold a thread for longer than its deadlines allow.
"""

from __future__ import annotations

import errno
import io
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any

from hami.errors import HamiError
from hami.runtime.options import Address
from hami.web.rights import ClientRight, right_of_certificate

PIECE = 65_536  # bytes that are read at a time, and that are drained before a connection is closed
LINGER_S = 1.0  # for which a client may still send after its answer

TlsContexts = Callable[[], ssl.SSLContext]
"""Returns the context for the next connection."""


_served: ContextVar[Connection | None] = ContextVar("served", default=None)  # by this thread


def without_turn() -> AbstractContextManager[None]:
    """While this thread waits for something else than its client, or works for long, others have the turn that the
    thread has, if it has one: see :meth:`Connection.taking_turns`. That time does not count for what the client still
    has to send."""
    connection = _served.get()
    return nullcontext() if connection is None else connection._without_turn()


class Connection(io.RawIOBase):
    """The socket of a client, with deadlines; it is blocking, and other timeouts are ignored.

    The first `recv` makes the handshake of TLS. Clients that are too slow are errors of `recv` and `sendall`.
    """

    def __init__(
        self,
        client: socket.socket,
        clients: dict[Connection, None],
        *,
        read_until: Callable[[], float],
        write_until: Callable[[], float],
        tls: TlsContexts | None = None,
        is_local: bool = False,
        turn: threading.Lock | None = None,
    ) -> None:
        """*clients*: the open connections, oldest first. *read_until*, *write_until*: called at the beginning of a
        request and of an answer for its deadline, on the monotonic clock. *is_local*: *client* came through an address
        on loopback. *turn*: as :meth:`taking_turns` says."""
        super().__init__()
        self._socket = client
        self._clients = clients
        self._deadlines = {False: read_until, True: write_until}
        self._tls = tls
        self.is_local = is_local
        self._turn = turn
        self._takes_turns = self._has_turn = False
        self._right: ClientRight | None = None  # not known before the handshake
        self._is_answer: bool | None = None
        self._until = 0.0
        self.since = time.monotonic()
        self._has_received = False
        self.is_ending = False
        clients[self] = None

    @property
    def right(self) -> ClientRight:
        """The right of the client: on loopback that of kube-scheduler, elsewhere that of its certificate.

        Raises: ConnectionResetError as :func:`hami.web.rights.right_of_certificate`.
        """
        if self._right is None:
            if self.is_local:
                self._right = ClientRight.EXTENDER
            elif isinstance(self._socket, ssl.SSLSocket):
                self._right = right_of_certificate(self._socket)
            else:
                self._right = ClientRight.NONE
        return self._right

    @property
    def is_silent(self) -> bool:
        """Whether the client has sent nothing yet, in any thread. What waits for a thread to read it is something; the
        beginning of a handshake that a thread has read is not."""
        return not self._has_received and not self._can_be_read(0)

    @property
    def scheme(self) -> str:
        """The scheme of requests."""
        return "http" if self._tls is None else "https"

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Returns at least one byte. Raises: OSError, also at the end: gunicorn takes a short body for a whole one."""
        if data := self._receive(size):
            return data
        raise ConnectionResetError(errno.ECONNRESET, "the client has ended the connection")

    def readinto(self, buffer: Any) -> int:
        """Reads once, for `makefile`. Returns 0 at the end. Raises: OSError."""
        data = self._receive(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _receive(self, size: int) -> bytes:
        if self.is_ending:
            raise ConnectionResetError(errno.ECONNRESET, "the connection is being ended")
        with self._deadline(is_answer=False):
            if self._tls is not None and not isinstance(self._socket, ssl.SSLSocket):
                self._socket = self._tls().wrap_socket(
                    self._socket, server_side=True, do_handshake_on_connect=False
                )
            data = self._socket.recv(min(size, PIECE))
        if not data:  # the end, maybe before the handshake
            return data
        self._has_received = True
        is_limited = self.right is not ClientRight.EXTENDER
        if self._takes_turns and is_limited:
            self._take_turn()
        return data

    def sendall(self, data: bytes) -> None:
        """Sends *data*. Raises: OSError."""
        with self._deadline(is_answer=True):
            self._socket.sendall(data)

    send = sendall

    @contextmanager
    def taking_turns(self) -> Iterator[None]:
        """While it is served, the thread of a client that may not do what kube-scheduler does has the turn from when it
        has received something until it waits for the client again."""
        self._takes_turns = True
        token = _served.set(self)
        try:
            yield
        finally:
            _served.reset(token)
            self._takes_turns = False
            self._end_turn()

    @contextmanager
    def _without_turn(self) -> Iterator[None]:
        had_turn = self._has_turn
        self._end_turn()
        begun = time.monotonic()
        try:
            yield
        finally:
            self._until += time.monotonic() - begun
            if had_turn:
                self._take_turn()

    def _take_turn(self) -> None:
        if self._turn is not None:
            self._has_turn = self._turn.acquire()

    def _end_turn(self) -> None:
        if self._turn is not None and self._has_turn:
            self._has_turn = False
            self._turn.release()

    @contextmanager
    def _deadline(self, *, is_answer: bool) -> Iterator[None]:
        self._end_turn()
        if self._is_answer is not is_answer:
            self._is_answer, self._until = is_answer, self._deadlines[is_answer]()
        try:
            if (left := self._until - time.monotonic()) <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            yield
        except TimeoutError as error:
            self.is_ending = True
            raise ConnectionResetError(errno.ECONNRESET, "the client is too slow") from error

    def has_data(self, milliseconds: int) -> bool:
        """Reports whether more arrives within *milliseconds*."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        return self._can_be_read(milliseconds)

    def _can_be_read(self, milliseconds: int) -> bool:
        poll = select.poll()
        if (
            descriptor := self._socket.fileno()
        ) < 0:  # another thread has closed it, or begins a handshake
            return True
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(milliseconds))

    def finish(self) -> None:
        """Closes it after the answer. A client that is still sending would miss an answer whose connection is closed
        at once."""
        with suppress(OSError):
            if not self.is_ending:
                self._socket.shutdown(socket.SHUT_WR)
                until, left = time.monotonic() + LINGER_S, PIECE
                while left > 0 and (seconds := until - time.monotonic()) > 0:
                    self._socket.settimeout(seconds)
                    data = self._socket.recv(4096)
                    left -= len(data) or left
        self.close()

    def end(self) -> None:
        """Ends it, in any thread. Its own thread notices when it reads or writes."""
        self.is_ending = True
        with suppress(OSError):
            socket.socket.shutdown(
                self._socket, socket.SHUT_RDWR
            )  # below TLS, whose state belongs to the thread

    # the rest of what gunicorn and socketserver call

    def fileno(self) -> int:
        return self._socket.fileno()

    def readable(self) -> bool:
        return True

    def makefile(self, mode: str, size: int = io.DEFAULT_BUFFER_SIZE) -> io.BufferedReader:
        return io.BufferedReader(self)

    def setblocking(self, flag: bool) -> None:
        pass

    def gettimeout(self) -> None:
        pass

    def settimeout(self, seconds: float | None) -> None:
        pass

    def shutdown(self, how: int) -> None:
        self._socket.shutdown(how)

    def close(self) -> None:
        self._clients.pop(self, None)
        self._socket.close()
        super().close()


def listen(host: str, port: int, *, flag: str = "", backlog: int | None = None) -> socket.socket:
    """A socket that listens on *host*, on all addresses if that is empty.

    Raises: HamiError naming the address, and the *flag* that gives it.
    """
    problem = f"{flag and flag + ': '}cannot listen on {Address(host, port)}"
    if not 0 <= port <= 65_535:
        raise HamiError(f"{problem}: expected a port from 0 to 65535")
    try:
        if not host and socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
            )
        family = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0][0]
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        # getaddrinfo's numbers are its own and negative; of the others Python's text repeats the address
        reason = (
            os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
        )
        raise HamiError(f"{problem}: {reason}") from error
