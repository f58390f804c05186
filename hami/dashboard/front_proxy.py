"""The front proxy of the API server: which client certificates are its own, and who it says that a user is.

Source: the Kubernetes documentation, Configure the Aggregation Layer. Nobody else can name a user: a
certificate of that CA with one of the allowed names is needed.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPMessage
from typing import Any
from urllib.parse import unquote

import msgspec

from hami.codec.config_maps import parse_config_map
from hami.errors import HamiError, MalformedInput
from hami.kube.api import Api
from hami.kube.reviews import Identity
from hami.runtime.once import OncePerKey
from hami.web.pages import CLIENT_HEADERS, CLIENT_NAME
from hami.web.tls import context_of

log = logging.getLogger(__name__)

CONFIG_MAP = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
REFRESH_S = 60.0
MAX_GROUPS = 1000  # of a user; the server reads 100 headers of a request at most


_NAMES = msgspec.json.Decoder(tuple[str, ...])


@dataclass(frozen=True, slots=True)
class ProxyTrust:
    """The front proxy as the API server publishes it. *ca*: PEM. *names*: allowed common names; empty: all.

    *users*, *groups*, *uids*: headers. *extras*: the beginnings of headers.
    """

    ca: str
    names: tuple[str, ...]
    users: tuple[str, ...]
    groups: tuple[str, ...]
    uids: tuple[str, ...]
    extras: tuple[str, ...]


def parse_trust(body: bytes) -> ProxyTrust:
    """Returns the content of the ConfigMap in *body*. Raises: MalformedInput."""
    data = parse_config_map(body).data

    def names(key: str) -> tuple[str, ...]:
        text = data.get(key, "[]")
        try:
            return _NAMES.decode(text)
        except msgspec.MsgspecError as error:
            raise MalformedInput(key, text, "expected a JSON list of texts") from error

    trust = ProxyTrust(
        ca=data.get("requestheader-client-ca-file", ""),
        names=names("requestheader-allowed-names"),
        users=names("requestheader-username-headers"),
        groups=names("requestheader-group-headers"),
        uids=names("requestheader-uid-headers"),
        extras=names("requestheader-extra-headers-prefix"),
    )
    if not trust.ca or not trust.users:
        raise MalformedInput(
            "extension-apiserver-authentication",
            "",
            "the API server has no front proxy: expected requestheader-client-ca-file and "
            "requestheader-username-headers",
        )
    return trust


class FrontProxy:
    """The front proxy that is trusted. `refresh` reads who that is; threads may share it.

    *serving*: returns the certificate of this server with its key (PEM).
    """

    def __init__(self, api: Api, serving: Callable[[], bytes]) -> None:
        self._api = api
        self._serving = serving
        self._lock = threading.Lock()  # guards the known state
        self._known: tuple[ProxyTrust, ssl.SSLContext] | None = None
        self._reported = OncePerKey()

    def refresh(self) -> None:
        """Reads certificates and trust again. If they cannot be used, the last ones stay."""
        try:
            trust = parse_trust(self._api.request("GET", CONFIG_MAP))
            context = context_of(self._serving(), client_ca=trust.ca)
        except (HamiError, OSError, ValueError) as error:
            if self._reported.is_new("trust", str(error)):
                log.warning(
                    "the front proxy of the API server cannot be trusted yet",
                    extra={"problem": str(error)},
                )
            return
        self._reported.clear("trust")
        with self._lock:
            self._known = trust, context

    def context(self) -> ssl.SSLContext:
        """Returns the context for the next connection. Raises: ConnectionResetError before trust is known."""
        with self._lock:
            known = self._known
        if known is None:
            raise ConnectionResetError("the CA of the front proxy is not known yet")
        return known[1]

    def user(self, environ: Mapping[str, Any]) -> Identity | None:
        """Returns the user for whom a request is made; ``None`` if it does not come from the front proxy, or names
        nobody that can be read."""
        with self._lock:
            known = self._known
        if known is None:
            return None
        trust = known[0]
        if trust.names and environ.get(CLIENT_NAME) not in trust.names:
            return None
        headers = environ.get(CLIENT_HEADERS)
        if not isinstance(headers, HTTPMessage):
            return None
        try:
            return _identity(headers, trust)
        except UnicodeError:
            return None


def _identity(headers: HTTPMessage, trust: ProxyTrust) -> Identity | None:
    """Returns the user whom *headers* name. Raises: UnicodeError."""
    names = _values(headers, trust.users)
    groups = _values(headers, trust.groups)
    if not names or len(groups) > MAX_GROUPS:
        return None
    extra: dict[str, tuple[str, ...]] = {}
    for header in dict.fromkeys(name.lower() for name in headers):
        for beginning in trust.extras:
            if header.startswith(beginning.lower()):
                key = unquote(header[len(beginning) :], errors="strict")
                extra[key] = extra.get(key, ()) + _values(headers, [header])
    uids = _values(headers, trust.uids)
    return Identity(username=names[0], uid=uids[0] if uids else "", groups=groups, extra=extra)


def _values(headers: HTTPMessage, names: Sequence[str]) -> tuple[str, ...]:
    """Returns all values of the headers *names*, each header of a name on its own: a group may contain a comma. Raises:
    UnicodeError."""
    values: list[str] = []
    for name in names:
        for value in headers.get_all(name, ()):
            text = value.encode("latin-1").decode("utf-8").strip()
            if text:
                values.append(text)
    return tuple(values)
