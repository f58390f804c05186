"""TLS certificates that are renewed while the process runs.

A server asks for a context for each connection; it gets the same one until one of the files changes. This module knows
nothing of what is served, and does not check expiry.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import threading
import time
from collections.abc import Callable

from hami.errors import HamiError
from hami.runtime.files import FileVersion, version_of
from hami.runtime.once import OncePerKey
from hami.web.rights import ServerContext

log = logging.getLogger(__name__)

RETRY_S = 1.0
CLIENT_CA, SIMULATE_CA = "--client-ca-file", "--simulate-client-ca-file"

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

_Signature = tuple[FileVersion, ...]


class TlsContext:
    """Provides the server's SSLContext and replaces it when a file changes. Threads may share it.

    A file has changed if its inode, modification time or size differs. While the new files cannot be used, for example
    because only one of key and certificate has been replaced, the last good context stays in use. They are tried again
    after RETRY_S, and each problem is logged once.
    With a file of CAs a client may present a certificate; the handshake fails if none of the CAs has signed it. Clients
    of *client_ca_file* may do what kube-scheduler does, those of *simulate_client_ca_file* may simulate and nothing
    else.
    *until_made*: the context until the files can be used for the first time.
    Raises: HamiError if the files cannot be used when the object is made, unless there is such a context.
    """

    def __init__(
        self,
        cert_file: str,
        key_file: str,
        client_ca_file: str = "",
        simulate_client_ca_file: str = "",
        *,
        until_made: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cert_file = cert_file
        self.key_file = key_file
        self._files = {"--cert_file": cert_file, "--key_file": key_file}
        if client_ca_file:
            self._files[CLIENT_CA] = client_ca_file
        if simulate_client_ca_file:
            self._files[SIMULATE_CA] = simulate_client_ca_file
        self._clock = clock
        self._lock = threading.Lock()  # guards all that follows; held while the files are read
        self._reported = OncePerKey()
        self._retry_at = float("-inf")
        self._signature: _Signature = () if until_made else self._read_signature()
        self._context = until_made or self._build()

    def __call__(self) -> ssl.SSLContext:
        """Returns the context for the next connection."""
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
            self._reported.clear("files")
        except HamiError as error:
            self._retry_at = self._clock() + RETRY_S
            if self._reported.is_new("files", str(error)):
                log.warning(
                    "TLS files cannot be used, the last good ones stay",
                    extra={"problem": str(error)},
                )

    def _read_signature(self) -> _Signature:
        return tuple(_readable_version(flag, path) for flag, path in self._files.items())

    def _build(self) -> ssl.SSLContext:
        extenders = self._read_authorities(CLIENT_CA)
        simulators = self._read_authorities(SIMULATE_CA)
        if extenders & simulators:
            raise HamiError(
                f"{SIMULATE_CA} {self._files[SIMULATE_CA]}: has a CA of {CLIENT_CA} "
                f"{self._files[CLIENT_CA]}, whose clients may do more than simulate"
            )
        context = _new_context(simulators, has_extenders=bool(extenders))
        try:
            # a key with a passphrase must fail, not ask the terminal for it
            context.load_cert_chain(self.cert_file, self.key_file, password=lambda: b"")
        except (OSError, ValueError) as error:
            raise HamiError(
                f"--cert_file {self.cert_file} and --key_file {self.key_file}: "
                f"no certificate with its key: {_reason(error)}"
            ) from error
        if authorities := extenders | simulators:
            context.load_verify_locations(cadata=b"".join(authorities))
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _read_authorities(self, flag: str) -> frozenset[bytes]:
        """Returns the CAs (DER) in the file of *flag*; none without the flag. Raises: HamiError.

        The file is read once: the CAs that are trusted are those whose clients are told apart.
        """
        if (path := self._files.get(flag)) is None:
            return frozenset()
        try:
            with open(path, "rb") as file:
                blocks = _CERTIFICATE.findall(file.read())
            authorities = frozenset(ssl.PEM_cert_to_DER_cert(block.decode()) for block in blocks)
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(
                cadata=b"".join(authorities)
            )
        except (OSError, ValueError) as error:
            raise HamiError(f"{flag} {path}: no CA certificates: {_reason(error)}") from error
        return authorities


def context_of(pem: bytes, *, client_ca: str = "") -> ssl.SSLContext:
    """Returns the context of a certificate and its key, which stay in memory. *client_ca* (PEM): clients need a
    certificate of it."""
    context = _new_context()
    with open(os.memfd_create("tls"), "wb") as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    if client_ca:
        context.load_verify_locations(cadata=client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _new_context(
    simulators: frozenset[bytes] = frozenset(), *, has_extenders: bool = False
) -> ServerContext:
    context = ServerContext(
        ssl.PROTOCOL_TLS_SERVER, simulators=simulators, has_extenders=has_extenders
    )
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # not h2: one thread would serve all streams of a connection, one after another
    context.set_alpn_protocols(["http/1.1"])
    return context


def _readable_version(flag: str, path: str) -> FileVersion:
    try:
        with open(path, "rb") as file:  # because a file that exists may not be readable
            return version_of(os.fstat(file.fileno()))
    except OSError as error:
        raise HamiError(f"{flag} {path}: {error.strerror}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return str(error)
