"""Bytes to and from the API server, over the ``kubernetes`` client's configuration, TLS, credentials and connections.

This module knows URLs, statuses and connections. It decodes nothing but error answers and retries nothing:
who calls knows whether once more is right. There is no client-side rate limit; the API server has its own.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

import msgspec
import urllib3
import yaml
from kubernetes.client import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ProtocolError

from hami.errors import ClusterError, Conflict, Gone, NotFound

__all__ = ["JSON", "MERGE_PATCH", "STRATEGIC_MERGE_PATCH", "Api", "Stream", "is_disconnect", "is_unsent"]

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"

_USER_AGENT = "hami"
_READ_AHEAD = 65_536
_KINDS: Mapping[int, type[ClusterError]] = {404: NotFound, 409: Conflict, 410: Gone}


class _ApiStatus(msgspec.Struct):
    message: str | None = None


class Api:
    """Raw calls to one API server; threads may share it."""

    def __init__(self, configuration: Configuration, *, timeout: float = 10.0, pool: int = 32) -> None:
        """*timeout*: seconds a call may wait for the server. *pool*: connections kept open between calls."""
        configuration.connection_pool_maxsize = pool
        self._configuration = configuration
        self._base, self._pool = _pool(RESTClientObject(configuration).pool_manager, configuration.host.rstrip("/"))
        self._timeout = timeout
        self._credentials = threading.Lock()  # a refresh may run a plugin and changes the configuration in steps

    @classmethod
    def connect(cls, *, timeout: float = 10.0, pool: int = 32) -> Api:
        """The API server of ``KUBECONFIG``, else of ``~/.kube/config``, else of the cluster that this pod runs in.

        Opens no connection yet. Raises: ClusterError when none of them is there or the one that is cannot be used.
        """
        return cls(_configuration(), timeout=timeout, pool=pool)

    def request(self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: bytes | None = None,
                content_type: str = JSON, timeout: float | None = None) -> bytes:
        """Body of the answer to one call, made once.

        *timeout*: seconds to wait for a connection and for each part of the answer; the Api's own if ``None``.
        Raises: NotFound, Conflict, Gone or another ClusterError with the server's status and message; a ClusterError
        without a status when there was no answer, and then a write may or may not have happened (see `is_unsent`).
        """
        headers = self._headers()
        if body is not None:
            headers["Content-Type"] = content_type
        limit = urllib3.Timeout(total=self._timeout if timeout is None else timeout)
        try:
            response = self._pool.urlopen(method, self._url(path, query), body=body, headers=headers,
                                          timeout=limit, retries=False, redirect=False)
        except (HTTPError, OSError) as error:
            raise _unreachable(f"{method} {path}", error) from error
        if response.status >= 400:
            raise _refusal(f"{method} {path}", response.status, response.data)
        return response.data

    def stream(self, path: str, query: Mapping[str, str], *, read_timeout: float) -> Stream:
        """A watch, not opened yet: use it in ``with``, which asks the server, then iterate over its lines.

        *read_timeout*: seconds of silence after which the server counts as hung.
        """
        return Stream(self, path, query, read_timeout)

    def open(self, path: str, query: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        """An answer whose head has arrived and whose body has not been read. Raises: as `request`."""
        try:
            response = self._pool.urlopen("GET", self._url(path, query), headers=self._headers(), retries=False,
                                          redirect=False, timeout=urllib3.Timeout(total=self._timeout),
                                          preload_content=False)
            if response.status < 400:
                return response
            body = response.data
        except (HTTPError, OSError) as error:
            raise _unreachable(f"GET {path}", error) from error
        raise _refusal(f"GET {path}", response.status, body)

    def _url(self, path: str, query: Mapping[str, str] | None) -> str:
        return f"{self._base}{path}?{urlencode(query)}" if query else f"{self._base}{path}"

    def _headers(self) -> dict[str, str]:
        """Credentials of this moment: the client's hook renews tokens that are about to expire."""
        headers = {"Accept": JSON, "User-Agent": _USER_AGENT}
        try:
            with self._credentials:
                settings: Any = self._configuration.auth_settings()
        except (ConfigException, OSError) as error:
            raise ClusterError(f"credentials for the API server cannot be renewed: {error}") from error
        for setting in settings.values():
            if setting["in"] == "header" and setting["value"]:
                headers[setting["key"]] = setting["value"]
        return headers


class Stream:
    """The lines of one watch. Any thread may `close` it; the one that reads then sees a quiet end."""

    def __init__(self, api: Api, path: str, query: Mapping[str, str], read_timeout: float) -> None:
        self._api = api
        self._path = path
        self._query = query
        self._read_timeout = read_timeout
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._response: urllib3.BaseHTTPResponse | None = None
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        """Ask the server and wait for the head of its answer. Raises: as `Api.request`, Gone among them."""
        response = self._api.open(self._path, self._query)
        with self._lock:
            self._response = response
            self._socket = getattr(response.connection, "sock", None)
            if self._socket is not None and not self._closed.is_set():
                self._socket.settimeout(self._read_timeout)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()
        if self._response is not None:
            self._response.close()  # the thread that reads does this: it frees what a reader may be using

    def __iter__(self) -> Iterator[bytes]:
        """Complete lines without their line ends, until the server or `close` ends the watch.

        Raises: ClusterError without status when the connection breaks, stays silent too long or ends within a line.
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
        """End the watch promptly, from any thread, even while another one waits for its next line."""
        with self._lock:
            self._closed.set()
            if self._socket is not None:
                _shut(self._socket)

    def _chunks(self) -> Iterator[bytes]:
        """What has arrived, in parts of at least one byte; the API server sends each event as a chunk."""
        response = self._response
        if response is None or self._closed.is_set():
            return
        try:
            if response.chunked:
                yield from response.read_chunked(_READ_AHEAD, decode_content=False)
            else:  # behind a proxy of an older kind
                yield from iter(lambda: response.read1(_READ_AHEAD, decode_content=False), b"")
        except (HTTPError, OSError, ValueError) as error:  # ValueError: closed under the reader's hands
            if not self._closed.is_set():
                raise _unreachable(f"GET {self._path}", error) from error


def is_unsent(error: BaseException) -> bool:
    """The server certainly has not acted: it refused the connection, or turned the call away (429)."""
    if not isinstance(error, ClusterError):
        return False
    return error.status == 429 or isinstance(error.__cause__, (NewConnectionError, ConnectTimeoutError))


def is_disconnect(error: BaseException) -> bool:
    """The connection broke before the answer was whole; the server may have acted."""
    return isinstance(error, ClusterError) and isinstance(error.__cause__, ProtocolError)


def _pool(manager: urllib3.PoolManager,
          host: str) -> tuple[str, urllib3.PoolManager | urllib3.HTTPConnectionPool]:
    """Who sends requests to *host*, and what their URLs begin with there.

    The host's own pool: the manager's search for it is a sixth of what a call costs us. But a proxy wants whole URLs
    for plain HTTP, and only the manager knows that.
    """
    parts = urlsplit(host)
    if manager.proxy is not None and parts.scheme != "https":
        return host, manager
    return parts.path, manager.connection_from_url(host)


def _configuration() -> Configuration:
    configuration, path = Configuration(), _kubeconfig()
    try:
        if path:
            load_kube_config(config_file=path, client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError, yaml.YAMLError) as error:
        where = f"kubeconfig {path}" if path else "KUBECONFIG is not set, ~/.kube/config is missing, and in-cluster"
        raise ClusterError(f"no API server to talk to: {where}: {error}") from error
    return configuration


def _kubeconfig() -> str:
    """The user's kubeconfig, several joined by colons perhaps; empty if there is none."""
    if path := os.environ.get("KUBECONFIG"):
        return path
    home = Path("~/.kube/config").expanduser()
    return str(home) if home.exists() else ""


def _unreachable(call: str, error: Exception) -> ClusterError:
    return ClusterError(f"{call}: {type(error).__name__}: {error}")


def _refusal(call: str, status: int, body: bytes) -> ClusterError:
    """The error for an answer of *status* ≥ 400, in the words of the Status in *body*, if it is one."""
    try:
        message = msgspec.json.decode(body, type=_ApiStatus).message
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = None
    text = message or body[:200].decode(errors="replace") or "no message"
    return _KINDS.get(status, ClusterError)(f"{call}: {status}: {text}", status)


def _shut(sock: socket.socket) -> None:
    """End both directions below TLS, which would take its own state from under a reading thread."""
    try:
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        pass  # not connected any more: as wanted
