"""Applications for people at an address of their own, over plain HTTP and TLS."""

import http.client
import socket
import ssl

import pytest

from hami.errors import HamiError
from hami.web.pages import AppServer
from hami.web.tls import TlsContext
from tests.web.test_tls import Authority


def show(environ, start):
    if environ["PATH_INFO"] == "/broken":
        raise RuntimeError("a bug")
    text = f"{environ['wsgi.url_scheme']} {environ['REQUEST_METHOD']} {environ['PATH_INFO']}?{environ['QUERY_STRING']}"
    start("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))])
    return [b"" if environ["REQUEST_METHOD"] == "HEAD" else text.encode()]


@pytest.fixture
def serve():
    """Starts servers on loopback and stops them after the test."""
    started = []

    def start(**given):
        server = AppServer("dashboard", ("127.0.0.1", 0), show, flag="--bind-address", **given)
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """The paths of a certificate and its key, and a client's context that trusts it."""
    authority, folder = Authority("ours"), tmp_path_factory.mktemp("tls")
    for name, data in zip(("tls.crt", "tls.key"), authority.issue("server"), strict=True):
        (folder / name).write_bytes(data)
    return (
        str(folder / "tls.crt"),
        str(folder / "tls.key"),
        ssl.create_default_context(cadata=authority.pem().decode()),
    )


def ask(server, path="/", method="GET", context=None):
    if context is None:
        connection = http.client.HTTPConnection(*server.address, timeout=20)
    else:
        connection = http.client.HTTPSConnection(*server.address, timeout=20, context=context)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_it_serves_plain_http(serve):
    assert ask(serve(), "/a%20b?c=d") == (200, "http GET /a b?c=d")
    assert ask(serve(), "/", "HEAD") == (200, "")


def test_it_serves_tls(serve, certificate):
    cert, key, context = certificate
    server = serve(tls=TlsContext(cert, key))
    assert ask(server, "/", context=context) == (200, "https GET /?")
    with pytest.raises((http.client.HTTPException, OSError)):
        ask(server, "/")  # no plain HTTP
    assert ask(server, "/", context=context)[0] == 200


@pytest.mark.parametrize("with_tls", [False, True])
def test_a_client_that_stays_silent_is_ended(serve, certificate, with_tls):
    cert, key, _ = certificate
    server = serve(timeout=0.3, tls=TlsContext(cert, key) if with_tls else None)
    with socket.create_connection(server.address, timeout=20) as silent:
        assert silent.recv(1) == b""


def test_an_error_of_the_application_is_logged_and_not_shown(serve, caplog):
    status, text = ask(serve(), "/broken")
    assert status == 500
    assert "a bug" not in text
    assert "request failed" in caplog.text


def test_an_address_in_use_is_named_with_its_flag(serve):
    with pytest.raises(HamiError, match="--bind-address: cannot listen on 127.0.0.1"):
        AppServer("dashboard", serve().address, show, flag="--bind-address").start()
