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
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from hami.errors import HamiError
from hami.runtime.options import Address
from hami.web.rights import ClientRight, common_name, right_of_certificate

PIECE = 65_536  # bytes that are read at a time, and that are drained before a connection is closed
LINGER_S = 1.0  # for which a client may still send after its answer

TlsContexts = Callable[[], ssl.SSLContext]
"""Returns the context for the next connection."""


_served: ContextVar[Connection | None] = ContextVar("served", default=None)  # by this thread


@contextmanager
def without_turn() -> Iterator[None]:
    """While this thread waits for something else than its client, or works for long, others have the turn that the
    thread has, if it has one: see :meth:`Connection.taking_turns`. That time does not count for what the client still
    has to send."""
    connection = _served.get()
    if connection is None:
        yield
        return
    with connection.turn.ended():
        begun = time.monotonic()
        try:
            yield
        finally:
            connection.deadlines.extend(time.monotonic() - begun)


def client_name(connection: Connection) -> str:
    """Returns the common name of the client's certificate, which was verified; empty if it has none."""
    if isinstance(connection._socket, ssl.SSLSocket):
        return common_name(connection._socket)
    return ""


class Turn:
    """The turn of a connection among all that share *lock*."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._is_taken = False

    def take(self) -> None:
        """Waits for the turn."""
        self._is_taken = self._lock.acquire()

    def end(self) -> None:
        """Gives the turn to others, if the connection has it."""
        if self._is_taken:
            self._is_taken = False
            self._lock.release()

    @contextmanager
    def ended(self) -> Iterator[None]:
        """Others have the turn meanwhile."""
        was_taken = self._is_taken
        self.end()
        try:
            yield
        finally:
            if was_taken:
                self.take()


class Deadlines:
    """The deadlines of a connection for its requests and its answers, on the monotonic clock. *read_until*,
    *write_until*: called at the beginning of a request and of an answer for its deadline."""

    def __init__(self, read_until: Callable[[], float], write_until: Callable[[], float]) -> None:
        self._begin = {False: read_until, True: write_until}
        self._is_answer: bool | None = None
        self._until = 0.0

    def seconds_left(self, *, is_answer: bool) -> float:
        """Returns the time that the client has for its request or its answer. Raises: TimeoutError if it has none."""
        if self._is_answer is not is_answer:
            self._is_answer = is_answer
            self._until = self._begin[is_answer]()
        seconds = self._until - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds

    def extend(self, seconds: float) -> None:
        """Gives the client more time."""
        self._until += seconds


class _Adapter(io.RawIOBase):
    """The methods that gunicorn and socketserver call beside those of `Connection`, which has deadlines."""

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


class Connection(_Adapter):
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
        """*clients*: the open connections, oldest first. *read_until*, *write_until*: of its `Deadlines`. *is_local*:
        *client* came through an address on loopback. *turn*: as :meth:`taking_turns` says; None if others never
        wait."""
        super().__init__()
        self._socket = client
        self._clients = clients
        self.deadlines = Deadlines(read_until, write_until)
        self._tls = tls
        self.scheme = "http" if tls is None else "https"
        self.is_local = is_local
        self.turn = Turn(turn or threading.Lock())
        self._takes_turns = False
        self._right: ClientRight | None = None  # not known before the handshake
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
        return not self._has_received and not _can_be_read(self._socket, 0)

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
            self.turn.take()
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
            self.turn.end()

    @contextmanager
    def _deadline(self, *, is_answer: bool) -> Iterator[None]:
        self.turn.end()
        try:
            self._socket.settimeout(self.deadlines.seconds_left(is_answer=is_answer))
            yield
        except TimeoutError as error:
            self.is_ending = True
            raise ConnectionResetError(errno.ECONNRESET, "the client is too slow") from error

    def has_data(self, milliseconds: int) -> bool:
        """Reports whether more arrives within *milliseconds*."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        return _can_be_read(self._socket, milliseconds)

    def finish(self) -> None:
        """Closes it after the answer. A client that is still sending would miss an answer whose connection is closed
        at once."""
        with suppress(OSError):
            if not self.is_ending:
                self._socket.shutdown(socket.SHUT_WR)
                _drain(self._socket)
        self.close()

    def end(self) -> None:
        """Ends it, in any thread. Its own thread notices when it reads or writes."""
        self.is_ending = True
        with suppress(OSError):
            # below TLS, whose state belongs to the thread
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def fileno(self) -> int:
        """Returns the descriptor of the socket."""
        return self._socket.fileno()

    def shutdown(self, how: int) -> None:
        """Ends one direction, or both."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """Closes it at once."""
        self._clients.pop(self, None)
        self._socket.close()
        super().close()


def _can_be_read(client: socket.socket, milliseconds: int) -> bool:
    descriptor = client.fileno()
    if descriptor < 0:  # another thread has closed it, or begins a handshake
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(milliseconds))


def _drain(client: socket.socket) -> None:
    """Reads what the client still sends, for LINGER_S and one PIECE at most. Raises: OSError."""
    until = time.monotonic() + LINGER_S
    count = 0
    while count < PIECE:
        seconds = until - time.monotonic()
        if seconds <= 0:
            return
        client.settimeout(seconds)
        data = client.recv(4096)
        if not data:
            return
        count += len(data)


def listen(host: str, port: int, *, flag: str = "", backlog: int | None = None) -> socket.socket:
    """A socket that listens on *host*, on all addresses if that is empty.

    Raises: HamiError naming the address, and the *flag* that gives it.
    """
    problem = f"cannot listen on {Address(host, port)}"
    if flag:
        problem = f"{flag}: {problem}"
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
        reason: object = error.strerror or error
        if error.errno is not None and error.errno > 0:
            reason = os.strerror(error.errno)
        raise HamiError(f"{problem}: {reason}") from error
