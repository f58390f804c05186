"""Sockets that cost a thread little: one system call for what is there, and answers that leave in one piece.

Each system call of a Python socket lets go of the interpreter, and under load getting it back costs more than the call.
An ordinary socket with a timeout makes two calls for each that is needed, and one more whenever the timeout changes.
These never block in the kernel; where nothing is there yet they poll, for as long as their timeout says. This module
knows nothing of HTTP.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

__all__ = ["PlainSocket", "TlsSocket"]

GATHERED = 65_536
_BLOCKED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

if TYPE_CHECKING:
    _Base = socket.socket
else:
    _Base = object  # a mixin: TlsSocket has it before ssl.SSLSocket


class _Frugal(_Base):
    """A socket like others; but what is sent leaves with `flush`, before the next receive, or when it is much.

    Raises (what waits): TimeoutError.
    """

    _timeout: float | None = None
    _gathered: bytes = b""

    def settimeout(self, value: float | None) -> None:
        """Seconds that receiving and flushing may wait; ``None``: for ever."""
        if super().gettimeout() != 0.0:
            super().settimeout(0.0)
        self._timeout = value

    def gettimeout(self) -> float | None:
        """As set; the kernel's own is always 0."""
        return self._timeout

    def setblocking(self, flag: bool) -> None:
        """Wait for ever, or never."""
        self.settimeout(None if flag else 0.0)

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """What is there, or what comes next; empty at the end."""
        if self._gathered:
            self.flush()
        try:
            return super().recv(buflen, flags)
        except _BLOCKED as error:
            return bytes(self._persist(error, select.POLLIN, super().recv, buflen, flags))

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Gather *data*."""
        self._gathered += data
        if len(self._gathered) > GATHERED:
            self.flush()

    def send(self, data: Any, flags: int = 0) -> int:
        """Send *data* at once, after what was gathered."""
        self.sendall(data)
        self.flush()
        return len(data)

    def flush(self) -> None:
        """Send what was gathered."""
        left, self._gathered = memoryview(self._gathered), b""
        while left:
            try:
                sent = super().send(left)
            except _BLOCKED as error:
                sent = self._persist(error, select.POLLOUT, super().send, left)
            left = left[sent:]

    def shutdown(self, how: int) -> None:
        """Flush, then send or receive no more."""
        self.flush()
        super().shutdown(how)

    def speaks(self, seconds: float) -> bool:
        """Whether the other side sends something, or leaves, within so many seconds."""
        return self._poll(select.POLLIN, seconds)

    def has_unread(self) -> bool:
        """Whether bytes of the other side, or its end, have arrived and lie in the kernel; any thread may ask."""
        return self.fileno() >= 0 and self._poll(select.POLLIN, 0.0)

    def _persist(self, error: OSError, event: int, call: Any, *arguments: Any) -> Any:
        """*call* again, after it was blocked by *error*, when *event* or what TLS waits for has come."""
        ends = None if self._timeout is None else time.monotonic() + self._timeout
        while True:
            if isinstance(error, ssl.SSLError):
                event = select.POLLIN if isinstance(error, ssl.SSLWantReadError) else select.POLLOUT
            if self._timeout == 0.0:
                raise error
            if not self._poll(event, None if ends is None else ends - time.monotonic()):
                raise TimeoutError("timed out")
            try:
                return call(*arguments)
            except _BLOCKED as blocked:
                error = blocked

    def _poll(self, event: int, seconds: float | None) -> bool:
        poller = select.poll()
        poller.register(self.fileno(), event)
        return bool(poller.poll(None if seconds is None else max(0.0, 1000 * seconds)))


class PlainSocket(_Frugal, socket.socket):
    """TCP."""

    @classmethod
    def over(cls, accepted: socket.socket) -> PlainSocket:
        """The same connection; *accepted* is used up."""
        made = cls(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        made.setblocking(True)
        return made


class TlsSocket(_Frugal, ssl.SSLSocket):
    """TLS; to be set as a context's ``sslsocket_class``."""

    def do_handshake(self, block: bool = False) -> None:
        """Agree on keys with the other side. Raises: ssl.SSLError when that fails."""
        try:
            super().do_handshake(block)
        except _BLOCKED as error:
            self._persist(error, select.POLLIN, super().do_handshake, block)

    def speaks(self, seconds: float) -> bool:
        """Whether the other side sends something, or leaves, within so many seconds."""
        return self.pending() > 0 or super().speaks(seconds)
