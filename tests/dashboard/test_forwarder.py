"""The pages of the dashboard in the cluster, on loopback: what travels, what does not, and what is wrong."""

import io
from urllib.parse import unquote

import pytest
import urllib3
from werkzeug.test import Client, EnvironBuilder
from werkzeug.wrappers import Response

from hami.dashboard import forwarder
from hami.dashboard.forwarder import forwarding_app, proxy_path
from hami.dashboard.login import COOKIE, FORWARDED
from hami.errors import ClusterError
from testing.cases import cases

PREFIX = "/api/v1/namespaces/hami/services/https:hami-dashboard:8445/proxy"


class Api:
    """Answers each request with *status*, *headers* and *body*."""

    def __init__(self, body=b"", status=200, headers=None, error=None):
        self.body, self.status, self.headers, self.error = body, status, headers or {}, error
        self.asked = []

    def forward(self, path, headers):
        self.asked.append((path, headers))
        if self.error:
            raise self.error
        return urllib3.HTTPResponse(
            body=io.BytesIO(self.body),
            status=self.status,
            headers=self.headers,
            preload_content=False,
        )


def ask(api, path="/", host="localhost:8445", method="GET", **headers):
    client = Client(forwarding_app(api, "hami", "t-dev"), use_cookies=False)
    return client.open(path, method=method, headers={"Host": host, **headers})


def test_a_page_is_fetched_with_the_token_in_the_cookie():
    api = Api(b"page", headers={"Content-Type": "text/html", "ETag": '"1"', "Set-Cookie": "a=b"})
    answer = ask(
        api,
        "/pods?namespace=team&namespace=b&node=n 1",
        **{"If-None-Match": '"0"', "Cookie": "x=y"},
    )
    (asked,) = api.asked
    assert asked == (
        PREFIX + "/pods?namespace=team&namespace=b&node=n+1",
        {"Cookie": f"{COOKIE}=t-dev", FORWARDED: "true", "If-None-Match": '"0"'},
    )
    assert (answer.status_code, answer.data, answer.headers["ETag"]) == (200, b"page", '"1"')
    assert "Set-Cookie" not in answer.headers


def test_addresses_of_pages_lose_the_path_of_the_proxy():
    page = f'<a href="{PREFIX}/pods">Pods</a>'.encode()
    assert ask(Api(page)).data == b'<a href="/pods">Pods</a>'
    assert proxy_path("hami") == PREFIX


@cases("status", (304,), (401,), (403,), (404,), (503,))
def test_the_status_is_that_of_the_dashboard(status):
    assert ask(Api(status=status)).status_code == status


@cases(
    "path, expected",
    ("/pods/a/...", "/pods/a/..."),
    ("/cards/n1/GPU-1::2", "/cards/n1/GPU-1::2"),
    ("/nodes/%3Fx", "/nodes/%3Fx"),
    ("/nodes/%C3%A9", "/nodes/%C3%A9"),
)
def test_a_path_stays_what_it_is(path, expected):
    api = Api()
    ask(api, path)
    assert api.asked[0][0] == PREFIX + expected


@pytest.mark.parametrize(
    "path", ["/../../secrets", "/%2e%2e/%2e%2e/secrets", "/x/%2E%2E%2Fsecrets", "/./x", "/.."]
)
def test_no_path_leads_to_the_rest_of_the_api_server(path):
    api = Api()
    environ = EnvironBuilder("/", headers={"Host": "localhost"}).get_environ()
    environ["PATH_INFO"] = unquote(path)
    answer = Response.from_app(forwarding_app(api, "hami", "t-dev"), environ)
    assert (answer.status_code, api.asked) == (404, [])


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8445", ""])
def test_a_foreign_name_is_refused(host):
    api = Api()
    assert ask(api, host=host).status_code == 403
    assert api.asked == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_is_sent(method):
    api = Api()
    assert ask(api, method=method).status_code == 405
    assert api.asked == []


def test_what_is_wrong_is_said(monkeypatch):
    answer = ask(Api(error=ClusterError("GET /: no route to host")))
    assert (answer.status_code, answer.text) == (502, "GET /: no route to host\n")
    monkeypatch.setattr(forwarder, "ANSWER_LIMIT", 10)
    assert "longer than 10 bytes" in ask(Api(b"x" * 11)).text
