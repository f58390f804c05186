"""TLS for the main listener: certificates that renew while the process runs, and who counts as a trusted caller.

gunicorn asks for a context at each accepted connection (setting ``ssl_context``); the one that stands is handed out
until one of its files is another. This module knows nothing of what is served, and does not look at expiry.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Mapping

from hami.errors import HamiError

__all__ = ["TlsContext", "client_is_trusted"]

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0

_Signature = tuple[tuple[int, int, int], ...]


class TlsContext:
    """Hands out the server's SSLContext, made anew when a file has changed. Safe for many threads.

    Files count as changed by inode, modification time and size. While the new ones cannot be used (key and certificate
    replaced one after the other, say) the last good context stays; they are tried again after RETRY_SECONDS, and what
    is wrong is logged once.
    With *client_ca_file* a caller may show a certificate; one that this CA did not sign ends the handshake.
    Raises: HamiError when it is made and the files cannot be used.
    """

    def __init__(self, cert_file: str, key_file: str, client_ca_file: str | None = None, *,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self.cert_file = cert_file
        self.key_file = key_file
        self._client_ca_file = client_ca_file
        self._files = {"--cert_file": cert_file, "--key_file": key_file}
        if client_ca_file:
            self._files["--client-ca-file"] = client_ca_file
        self._clock = clock
        self._lock = threading.Lock()
        self._signature = self._read_signature()
        self._problem = ""
        self._retry_at = float("-inf")
        self._context = self._build()

    def __call__(self, config: object, default_factory: object) -> ssl.SSLContext:
        """The context for the next connection; both arguments are gunicorn's and of no interest."""
        with self._lock:
            self._refresh()
            return self._context

    def _refresh(self) -> None:
        if self._clock() < self._retry_at:
            return
        try:
            signature = self._read_signature()
            if signature != self._signature:
                self._context, self._signature = self._build(), signature
                log.info("TLS files read again", extra={"cert_file": self.cert_file})
            self._problem = ""
        except HamiError as error:
            self._retry_at = self._clock() + RETRY_SECONDS
            if str(error) != self._problem:
                log.warning("TLS files cannot be used, the last good ones stay", extra={"problem": str(error)})
            self._problem = str(error)

    def _read_signature(self) -> _Signature:
        return tuple(_signature(flag, path) for flag, path in self._files.items())

    def _build(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # never h2: one thread would serve all streams of a connection one after another
        context.set_alpn_protocols(["http/1.1"])
        try:
            # a key with a passphrase must fail, not ask the terminal for it
            context.load_cert_chain(self.cert_file, self.key_file, password=lambda: b"")
        except (OSError, ValueError) as error:
            raise HamiError(f"--cert_file {self.cert_file} and --key_file {self.key_file}: "
                            f"no certificate with its key: {_reason(error)}") from error
        if self._client_ca_file:
            self._add_client_ca(context, self._client_ca_file)
        return context

    @staticmethod
    def _add_client_ca(context: ssl.SSLContext, path: str) -> None:
        try:
            context.load_verify_locations(path)
        except (OSError, ValueError) as error:
            raise HamiError(f"--client-ca-file {path}: no CA certificates: {_reason(error)}") from error
        context.verify_mode = ssl.CERT_OPTIONAL


def _signature(flag: str, path: str) -> tuple[int, int, int]:
    try:
        # opened, since a file that exists may still not be readable
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
    except OSError as error:
        raise HamiError(f"{flag} {path}: {error.strerror}") from error
    return found.st_ino, found.st_mtime_ns, found.st_size


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return str(error)


def client_is_trusted(environ: Mapping[str, object]) -> bool:
    """Whether a request came from this machine, or over a connection that showed a certificate our client CA signed.

    *environ*: WSGI's, as gunicorn fills it; headers, which anyone can write, are not looked at.
    """
    return _is_loopback(str(environ.get("REMOTE_ADDR", ""))) or _has_certificate(environ.get("gunicorn.socket"))


def _is_loopback(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def _has_certificate(connection: object) -> bool:
    """A certificate is only kept by the connection once it was verified."""
    return (isinstance(connection, ssl.SSLSocket) and connection.context.verify_mode != ssl.CERT_NONE
            and bool(connection.getpeercert()))
