"""The right of a client beside what everybody may do: by the address that it reached, or by the CA of its certificate.

No header and no address of a client gives a right: a proxy in the same pod has an address on loopback.
"""

from __future__ import annotations

import enum
import ssl
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

RIGHT = "hami.right"
"""Key of a WSGI environment: the right of the client. No header can set it."""

MAX_CHAIN = 8192  # bytes of the certificates that a client sends; OpenSSL keeps ten times as much for each connection
MAX_RESUMED = 1024  # certificates whose rights are remembered for sessions that clients resume


class ClientRight(enum.Enum):
    """The right of a client beside what everybody may do."""

    NONE = "none"
    SIMULATE = "simulate"
    """Simulations and nothing else."""
    EXTENDER = "extender"
    """All that kube-scheduler does, and simulations."""


def right_of(environ: Mapping[str, object]) -> ClientRight:
    """Returns the right of the client of a request."""
    right = environ.get(RIGHT)
    return right if isinstance(right, ClientRight) else ClientRight.NONE


class ServerContext(ssl.SSLContext):
    """A server's TLS context that knows what the certificates of clients are for.

    *simulators*: the CAs (DER) whose clients may simulate and nothing else. *has_extenders*: there are other CAs, whose
    clients may do all that kube-scheduler does.
    """

    def __init__(
        self,
        protocol: int,
        *,
        simulators: frozenset[bytes] = frozenset(),
        has_extenders: bool = True,
    ) -> None:
        self._simulators = simulators
        self._has_extenders = has_extenders
        self._lock = threading.Lock()  # guards _rights
        self._rights: OrderedDict[bytes, ClientRight] = OrderedDict()  # by certificate

    def right_of(self, client: ssl.SSLSocket) -> ClientRight:
        """Returns the right of a client whose certificate was verified.

        A CA of simulators limits it wherever it is in the chain, also where the chain goes on to another CA.
        """
        if not self._simulators:
            return ClientRight.EXTENDER
        if not self._has_extenders:
            return ClientRight.SIMULATE
        certificate = client.getpeercert(binary_form=True) or b""
        if (
            client.session_reused
        ):  # its chain was verified by an earlier handshake, and is not known any more
            with self._lock:
                return self._rights.get(certificate, ClientRight.NONE)
        chain = _chain(client, "verified")
        right = ClientRight.EXTENDER
        if not chain or not self._simulators.isdisjoint(chain):
            right = ClientRight.SIMULATE
        with self._lock:
            self._rights[certificate] = right
            self._rights.move_to_end(certificate)
            if len(self._rights) > MAX_RESUMED:
                self._rights.popitem(last=False)
        return right


def right_of_certificate(client: ssl.SSLSocket) -> ClientRight:
    """Returns the right that the certificate of *client* gives, after the handshake.

    Raises: ConnectionResetError if it has sent more than MAX_CHAIN bytes of certificates.
    """
    if not client.getpeercert():
        return ClientRight.NONE
    if sum(map(len, _chain(client, "unverified"))) > MAX_CHAIN:
        raise ConnectionResetError(
            f"the certificates of a client are larger than {MAX_CHAIN} bytes"
        )
    context = client.context
    return context.right_of(client) if isinstance(context, ServerContext) else ClientRight.EXTENDER


def common_name(client: ssl.SSLSocket) -> str:
    """Returns the last common name of the certificate of *client*, as Go does; empty if it has none."""
    certificate: Mapping[str, Any] = client.getpeercert() or {}
    name = ""
    for part in certificate.get("subject", ()):
        for kind, text in part:
            if kind == "commonName":
                name = str(text)
    return name


def _chain(client: ssl.SSLSocket, which: str) -> list[bytes]:
    """Returns certificates (DER), that of *client* first: the *verified* ones up to the CA, or the *unverified* ones
    that it has sent. None of them is known if it has resumed a session."""
    if sys.version_info >= (3, 13):
        chain: list[bytes] = getattr(client, f"get_{which}_chain")()
        return chain
    # before Python 3.13 only the object behind the socket tells them
    inner: Any = client._sslobj  # type: ignore[attr-defined]
    certificates = getattr(inner, f"get_{which}_chain")() or ()
    return [ssl.PEM_cert_to_DER_cert(certificate.public_bytes()) for certificate in certificates]
