"""Raw calls to the API server, with the configuration, TLS, credentials and connections of the ``kubernetes`` client.

Only error responses are decoded, and nothing is retried: the caller knows whether that is safe. There is no client-side
rate limit; the API server has its own.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

import msgspec
import urllib3
import yaml
from kubernetes.client import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config import (
    ConfigException,
    list_kube_config_contexts,
    load_incluster_config,
    load_kube_config,
)
from kubernetes.config.incluster_config import SERVICE_HOST_ENV_NAME, SERVICE_TOKEN_FILENAME
from urllib3 import HTTPHeaderDict
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ProtocolError

from hami.errors import ClusterError, Conflict, Gone, NotFound
from hami.kube.access import UserAccess
from hami.kube.kubeconfig import find_fault, user_names

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"

CREDENTIALS_S = 1.0
"""Seconds between two requests to the client for current credentials, which take a sixth of the time of a call."""

DEFAULT_RETRY_AFTER_S = 1.0
"""Seconds to wait after 429, too many requests, if the response names none."""
MAX_RETRY_AFTER_S = 30.0
"""Longer waits that a response asks for are cut to this many seconds."""

_USER_AGENT = "hami"
_OVERRIDING = "of the command line"  # a context
_READ_AHEAD = 65_536
_DISCARD_ON_CLOSE = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
_UNUSABLE = (
    ConfigException,
    OSError,
    yaml.YAMLError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    RecursionError,
)
"""What the client raises for a configuration that it cannot use. It looks at no types."""
_KINDS: Mapping[int, type[ClusterError]] = {404: NotFound, 409: Conflict, 410: Gone}


class _ApiStatus(msgspec.Struct):
    code: int | None = None
    message: str | None = None


API_STATUS = msgspec.json.Decoder(_ApiStatus)
"""Decodes a Status, the API server's description of an error."""


class Api:
    """A connection pool to one API server. Threads may share it."""

    def __init__(
        self, configuration: Configuration, *, timeout: float = 10.0, pool: int = 32
    ) -> None:
        """*timeout*: seconds that a call may take. *pool*: connections that are kept open between calls."""
        configuration.connection_pool_maxsize = pool
        # the kernel would go on sending a request that has timed out, and it could arrive a minute later
        configuration.socket_options = [*HTTPConnection.default_socket_options, _DISCARD_ON_CLOSE]
        self._configuration = configuration
        self._base, self._pool = _pool(
            RESTClientObject(configuration).pool_manager, configuration.host.rstrip("/")
        )
        self._timeout = timeout
        # guards the credentials, here and in the configuration; held while they are refreshed, which may run a plugin
        self._lock = threading.Lock()
        self._credentials: dict[str, str] = {}
        self._valid_until = -math.inf
        self._impersonation: tuple[tuple[str, str], ...] = ()

    @classmethod
    def connect(
        cls,
        access: UserAccess = UserAccess(),
        *,
        timeout: float = 10.0,
        pool: int = 32,
        kubeconfig: str = "",
    ) -> Api:
        """Returns the API server of ``KUBECONFIG``, else of ``~/.kube/config``, else of the cluster of this pod.

        *kubeconfig*: that of *access*, for those who need no more of it.
        Opens no connection yet. Raises: ClusterError if there is no configuration, or it cannot be used.
        """
        if kubeconfig:
            access = replace(access, kubeconfig=kubeconfig)
        configuration = _configuration(access)
        try:
            api = cls(configuration, timeout=timeout, pool=pool)
        except ValueError as error:  # no URL
            raise ClusterError(
                f"no API server to talk to: its address {configuration.host!r}: {error}"
            ) from error
        api._impersonation = access.impersonation
        return api

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout: float | None = None,
    ) -> bytes:
        """Makes one call, in one attempt, and returns the body of the response.

        *timeout*: seconds to wait for a connection and for each part of the response; by default the Api's own. A body
        is not sent later than that, so a write does not arrive afterwards.
        Raises: NotFound, Conflict, Gone or another ClusterError with the server's status and message; a ClusterError
        without a status if there was no response, in which case a write may have taken effect (see `is_unsent`).
        """
        return self.send(method, path, query, body, content_type, timeout=timeout).data

    def stream(self, path: str, query: Mapping[str, str], *, read_timeout: float) -> Stream:
        """Returns a watch. Entering it with ``with`` sends the request; then it can be iterated.

        *read_timeout*: seconds without data after which the server is considered hung.
        """
        return Stream(self, path, query, read_timeout)

    def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None = None,
        content_type: str = JSON,
        *,
        timeout: float | None = None,
        preload_content: bool = True,
    ) -> urllib3.BaseHTTPResponse:
        """Sends a request like `request`, but returns the response.

        *preload_content*: whether its body is read already.
        """
        response = self._exchange(
            method,
            path,
            query,
            body,
            {"Content-Type": content_type} if body is not None else {},
            timeout=timeout,
            preload_content=preload_content,
        )
        if response.status < 400:
            return response
        try:
            data = response.data
        except (HTTPError, OSError) as error:
            raise _unreachable(f"{method} {path}", error) from error
        raise _refusal(f"{method} {path}", response, data)

    def forward(self, path: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        """Returns the answer to a GET with *headers*, whatever its status is. Its body is not read yet.

        *path*: with its query. Raises: ClusterError if there is no answer.
        """
        return self._exchange("GET", path, None, None, headers, preload_content=False)

    @property
    def server(self) -> str:
        """The address of the API server."""
        return str(self._configuration.host).rstrip("/")

    def bearer_token(self) -> str:
        """Returns the token with which this user comes; empty if the user has none, such as one with a certificate.

        Raises: ClusterError if it cannot be renewed.
        """
        for name, value in self._headers().items():
            if name.lower() == "authorization" and value.lower().startswith("bearer "):
                return str(value[len("bearer ") :]).strip()
        return ""

    def _exchange(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        more_headers: Mapping[str, str],
        *,
        timeout: float | None = None,
        preload_content: bool,
    ) -> urllib3.BaseHTTPResponse:
        """Returns the answer to a request, of any status. Raises: ClusterError if there is none."""
        seconds = self._timeout if timeout is None else timeout
        until = time.monotonic() + seconds
        headers, parts, url = self._headers(), None, f"{self._base}{path}"
        headers.update(more_headers)
        if body is not None:
            headers["Content-Length"] = str(len(body))
            parts = _in_time(body, until)
        if query:
            url += f"?{urlencode(query)}"
        try:
            return self._pool.urlopen(
                method,
                url,
                body=parts,
                headers=headers,
                retries=False,
                redirect=False,
                timeout=urllib3.Timeout(total=seconds),
                preload_content=preload_content,
            )
        except (HTTPError, OSError) as error:
            raise _unreachable(f"{method} {path}", error) from error

    def _headers(self) -> MutableMapping[str, str]:
        """Returns the headers of a call, with current credentials."""
        with self._lock:
            if time.monotonic() >= self._valid_until:
                self._credentials = self._ask_for_credentials()
                self._valid_until = time.monotonic() + CREDENTIALS_S
            headers = {"Accept": JSON, "User-Agent": _USER_AGENT, **self._credentials}
        if not self._impersonation:
            return headers
        impersonating = HTTPHeaderDict(headers)
        for name, value in self._impersonation:
            impersonating.add(name, value)
        return impersonating

    def _ask_for_credentials(self) -> dict[str, str]:
        """Returns the headers with credentials. The client's hook refreshes tokens that are about to expire."""
        try:
            settings: Any = self._configuration.auth_settings()
        except (ConfigException, OSError) as error:
            raise ClusterError(
                f"credentials for the API server cannot be renewed: {error}"
            ) from error
        headers = {}
        for setting in settings.values():
            if setting["in"] == "header" and setting["value"]:
                headers[setting["key"]] = setting["value"]
        return headers


class Stream:
    """The lines of one watch. Any thread may `close` it, which ends the iteration without an error."""

    def __init__(self, api: Api, path: str, query: Mapping[str, str], read_timeout: float) -> None:
        self._api = api
        self._path = path
        self._query = query
        self._read_timeout = read_timeout
        self._lock = threading.Lock()  # guards the response and its socket; not held across I/O
        self._closed = threading.Event()
        self._response: urllib3.BaseHTTPResponse | None = None
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        """Sends the request and waits for the response's headers. Raises: like `Api.request`, Gone among others."""
        response = self._api.send("GET", self._path, self._query, preload_content=False)
        with self._lock:
            self._response = response
            self._socket = getattr(response.connection, "sock", None)
            if self._socket is not None and not self._closed.is_set():
                self._socket.settimeout(self._read_timeout)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
        if self._response is not None:
            self._response.close()  # only in the reading thread, because it frees what a reader uses

    def __iter__(self) -> Iterator[bytes]:
        """Yields complete lines without line ends, until the server or `close` ends the watch.

        Raises: ClusterError without a status if the connection breaks, times out or ends within a line.
        """
        rest = b""
        for chunk in self._chunks():
            head, *others = chunk.split(b"\n")
            rest += head
            for line in others:
                if rest:
                    yield rest
                rest = line
        if rest and not self._closed.is_set():
            raise ClusterError(f"GET {self._path}: the watch ended within a line")

    def close(self) -> None:
        """Ends the watch promptly, also while another thread waits for a line."""
        with self._lock:
            self._closed.set()
            if self._socket is not None:
                with contextlib.suppress(OSError):  # it may be closed already
                    # below TLS, whose state belongs to the reading thread
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _chunks(self) -> Iterator[bytes]:
        """Yields data as it arrives. The API server sends each event as a chunk."""
        response = self._response
        if response is None or self._closed.is_set():
            return
        try:
            yield from iter(lambda: response.read1(_READ_AHEAD, decode_content=False), b"")
        except (HTTPError, OSError, ValueError) as error:  # ValueError: closed while it was read
            if not self._closed.is_set():
                raise _unreachable(f"GET {self._path}", error) from error


def is_unsent(error: BaseException) -> bool:
    """Reports whether the call certainly had no effect: the connection failed, or the server answered 429."""
    if not isinstance(error, ClusterError):
        return False
    if error.status == 429:
        return True
    return isinstance(error.__cause__, (NewConnectionError, ConnectTimeoutError))


def is_disconnect(error: BaseException) -> bool:
    """Reports whether the connection broke before the response was complete. The call may have taken effect."""
    return isinstance(error, ClusterError) and isinstance(error.__cause__, ProtocolError)


def _in_time(body: bytes, until: float) -> Iterator[bytes]:
    """Yields *body* once there is a connection. Looking up the host, trying its addresses and the TLS handshake are
    not covered by timeouts as a whole. Raises: ConnectTimeoutError after *until* (monotonic clock)."""
    if time.monotonic() > until:
        raise ConnectTimeoutError("connected too late, the request is not sent")
    yield body


def _pool(
    manager: urllib3.PoolManager, host: str
) -> tuple[str, urllib3.PoolManager | urllib3.HTTPConnectionPool]:
    """Returns the start of URLs and the pool for *host*.

    It is the host's own pool, because the manager's lookup takes a sixth of the time of a call. A proxy, however, needs
    complete URLs for plain HTTP, which only the manager makes.
    """
    parts = urlsplit(host)
    if manager.proxy is not None and parts.scheme != "https":
        return host, manager
    return parts.path, manager.connection_from_url(host)


def context_namespace(kubeconfig: str = "", context: str = "") -> str:
    """Returns the namespace that a context of the user's configuration sets; ``default`` if it sets none.

    *kubeconfig*, *context*: as in UserAccess. Raises: ClusterError if the file cannot be used.
    """
    path = _path_of(kubeconfig)
    if not path:
        return "default"
    return str(_context_of(path, context).get("namespace") or "default")


def _context_of(path: str, name: str) -> Mapping[str, Any]:
    """Returns a context of the files of *path*: the current one if *name* is empty. Raises: ClusterError."""
    try:
        contexts, current = list_kube_config_contexts(path)  # type: ignore[no-untyped-call]
        if name:
            current = {entry["name"]: entry for entry in contexts}.get(name, {})
        return dict((current or {}).get("context") or {})
    except _UNUSABLE as error:
        raise _unconfigured(path, error) from error


def uses_pod_account(access: UserAccess) -> bool:
    """Reports whether *access* is that of the account of the pod in which this process runs."""
    if access != UserAccess() or _path_of(""):
        return False
    return SERVICE_HOST_ENV_NAME in os.environ


def _configuration(access: UserAccess) -> Configuration:
    configuration, path = Configuration(), _path_of(access.kubeconfig)
    try:
        if path or access != UserAccess():
            with _chosen(path, access) as (files, context):
                load_kube_config(  # type: ignore[no-untyped-call]
                    config_file=files or None,
                    context=context or None,
                    client_configuration=configuration,
                )
        else:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            configuration.refresh_api_key_hook = _read_token  # type: ignore[assignment]
    except _UNUSABLE as error:
        raise _unconfigured(path, error) from error
    if access.server:
        configuration.host = access.server
    return configuration


@contextlib.contextmanager
def _chosen(path: str, access: UserAccess) -> Iterator[tuple[str, str]]:
    """Returns the files to load instead of *path*, and the context: a file before them has one with the cluster and the
    user of *access*, if these differ from the context's own."""
    if not access.cluster and not access.user:
        yield path, access.context
        return
    if access.user and access.user not in user_names(path):
        raise _unconfigured(path, LookupError(f"there is no user {access.user}"))
    context = _context_of(path, access.context)
    cluster, user = access.cluster or context.get("cluster"), access.user or context.get("user")
    overriding = {"name": _OVERRIDING, "context": {"cluster": cluster, "user": user}}
    with tempfile.NamedTemporaryFile("w", suffix=".kubeconfig") as file:
        json.dump({"contexts": [overriding]}, file)
        file.flush()
        yield f"{file.name}{os.pathsep}{path}", _OVERRIDING


def _read_token(configuration: Configuration) -> None:
    """Reads the token of the pod. The client's own hook does so by the time of day: set back, that would keep a token
    beyond its end. Raises: OSError."""
    configuration.api_key["BearerToken"] = f"bearer {Path(SERVICE_TOKEN_FILENAME).read_text()}"


def _path_of(kubeconfig: str) -> str:
    """Returns the configuration file to use; empty if there is none."""
    path = kubeconfig or os.environ.get("KUBECONFIG")
    if path:
        return path
    home = Path("~/.kube/config").expanduser()
    return str(home) if home.exists() else ""


def _unconfigured(path: str, error: Exception) -> ClusterError:
    fault = find_fault(path)
    if fault:
        return ClusterError(f"no API server to talk to: {fault}")
    where = f"kubeconfig {path}"
    if not path:
        where = "KUBECONFIG is not set, ~/.kube/config is missing, and in-cluster"
    return ClusterError(f"no API server to talk to: {where}: {error}")


def _unreachable(call: str, error: Exception) -> ClusterError:
    return ClusterError(f"{call}: {type(error).__name__}: {error}")


def _refusal(call: str, response: urllib3.BaseHTTPResponse, body: bytes) -> ClusterError:
    """Returns the error for a *response* with a status ≥ 400, with the message of the Status in *body*, if any."""
    status = response.status
    try:
        message = API_STATUS.decode(body).message
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = None
    text = message or body[:200].decode(errors="replace") or "no message"
    pause = response.headers.get("Retry-After", "")
    seconds = 0.0
    if pause.isascii() and pause.isdigit():  # the API server writes whole seconds
        seconds = min(float(pause), MAX_RETRY_AFTER_S)
    elif status == 429:
        seconds = DEFAULT_RETRY_AFTER_S
    return _KINDS.get(status, ClusterError)(f"{call}: {status}: {text}", status, seconds)
