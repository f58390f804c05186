"""Serves the pages of the dashboard in the cluster on loopback, with the rights of one user.

They are fetched through the API server's proxy of services. It takes the credentials of a request for itself, so the
token travels in the dashboard's cookie.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from urllib.parse import parse_qsl, quote, urlencode
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import urllib3
from urllib3.exceptions import HTTPError

from hami.dashboard.access import check_host
from hami.dashboard.errors import PageError
from hami.dashboard.login import COOKIE, FORWARDED
from hami.errors import ClusterError
from hami.kube.api import Api
from hami.runtime.options import Address
from hami.web.pages import AppServer

ANSWER_LIMIT = 16 << 20  # bytes
SERVICE = "https:hami-dashboard:8445"
"""The dashboard in the cluster, as the API server's proxy names it."""
_SENT = {"HTTP_ACCEPT": "Accept", "HTTP_IF_NONE_MATCH": "If-None-Match"}
_RETURNED = ("Content-Type", "ETag", "Content-Security-Policy", "X-Content-Type-Options")
_METHODS = ("GET", "HEAD")


def proxy_path(namespace: str) -> str:
    """Returns the address of the dashboard in *namespace* at the API server."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/services/{SERVICE}/proxy"


def forwarding_app(api: Api, namespace: str, token: str) -> WSGIApplication:
    """Returns the application that answers with the pages of the dashboard in *namespace* for the user of *token*."""
    prefix = proxy_path(namespace)

    def fetch(environ: WSGIEnvironment) -> tuple[int, dict[str, str], bytes]:
        check_host(environ.get("HTTP_HOST", ""))
        if environ["REQUEST_METHOD"] not in _METHODS:
            raise PageError("pages are only read here", 405)
        headers = {"Cookie": f"{COOKIE}={token}", FORWARDED: "true"}
        for variable, name in _SENT.items():
            if variable in environ:
                headers[name] = environ[variable]
        answer = api.forward(prefix + _address(environ), headers)
        body = _body(answer)
        # the API server's proxy puts its own path before the addresses of a page
        body = body.replace(prefix.encode(), b"")
        returned = {name: answer.headers[name] for name in _RETURNED if name in answer.headers}
        return answer.status, returned, body

    def app(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        try:
            status, headers, body = fetch(environ)
        except PageError as error:
            status, headers, body = error.status, _PLAIN, f"{error}\n".encode()
        except (ClusterError, ValueError) as error:
            status, headers, body = 502, _PLAIN, f"{error}\n".encode()
        if status != 304:
            headers = headers | {"Content-Length": str(len(body))}
        phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else ""
        start(f"{status} {phrase}", [*headers.items(), ("Cache-Control", "no-store")])
        if environ["REQUEST_METHOD"] == "HEAD":
            return ()
        return (body,)

    return app


def _address(environ: WSGIEnvironment) -> str:
    """Returns path and query of the request. Raises: PageError for a path that could lead out of the dashboard, to the
    rest of the API server."""
    path: str = environ["PATH_INFO"]
    if not {".", ".."}.isdisjoint(path.split("/")):
        raise PageError("the dashboard has no such page", 404)
    address = quote(path.encode("latin-1"), safe="/:@")
    query = urlencode(parse_qsl(environ.get("QUERY_STRING", ""), max_num_fields=100))
    return f"{address}?{query}" if query else address


_PLAIN = {"Content-Type": "text/plain; charset=utf-8"}


def _body(answer: urllib3.BaseHTTPResponse) -> bytes:
    """Returns the body of *answer*. Raises: PageError if it is too long or breaks off."""
    try:
        body = answer.read(ANSWER_LIMIT + 1)
    except HTTPError as error:
        raise PageError(f"the answer of the dashboard broke off: {error}", 502) from error
    finally:
        answer.release_conn()
    if len(body) > ANSWER_LIMIT:
        raise PageError(f"the answer of the dashboard is longer than {ANSWER_LIMIT:,} bytes", 502)
    return body


class Forwarder:
    """The program that serves the pages of the dashboard in the cluster at *address*, which *flag* gives."""

    def __init__(self, app: WSGIApplication, address: Address, *, flag: str) -> None:
        self._server = AppServer("dashboard", address, app, flag=flag)

    def start(self) -> None:
        """Serves. Raises: HamiError if the address cannot be listened on."""
        self._server.start()

    def stop(self) -> None:
        """Stops listening."""
        self._server.stop()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the pages."""
        return self._server.address

    def hung_reason(self) -> str:
        """Returns nothing: each request has a thread of its own."""
        return ""
