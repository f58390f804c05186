"""Requests that two programs could read differently: no server answers what is hidden in one, and each serves the next
client. The ports of all programs have one of these three servers."""

import contextlib
import socket

import pytest
from prometheus_client import CollectorRegistry

from hami.web.exporter import Exporter
from hami.web.pages import AppServer
from testing.cases import cases
from testing.eventually import PATIENCE_S
from tests.web.test_apps import show
from tests.web.test_server import Server, fetch, read_to_end

HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"


def post(*headers, body=b"0\r\n\r\n"):
    return b"\r\n".join((b"POST /echo HTTP/1.1", b"Host: x", *headers, b"", body))


def chunked(body):
    return post(b"Transfer-Encoding: chunked", body=body)


AMBIGUOUS = {
    "length and chunks": post(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    "chunks and length": post(b"Transfer-Encoding: chunked", b"Content-Length: 5"),
    "two lengths": post(b"Content-Length: 0", b"Content-Length: 5"),
    "two equal lengths": post(b"Content-Length: 5", b"Content-Length: 5"),
    "list of lengths": post(b"Content-Length: 5, 5"),
    "signed length": post(b"Content-Length: +5"),
    "negative length": post(b"Content-Length: -5"),
    "hexadecimal length": post(b"Content-Length: 0x5"),
    "underscore in the length": post(b"Content-Length: 0_5"),
    "length in other digits": post("Content-Length: ٥".encode()),
    "length with a space before the colon": post(b"Content-Length : 5"),
    "length that is folded": post(b"Content-Length:", b" 5"),
    "unknown encoding": post(b"Transfer-Encoding: xchunked"),
    "chunks that are not last": post(b"Transfer-Encoding: chunked, identity"),
    "chunks twice": post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    "chunks with a space before the colon": post(b"Transfer-Encoding : chunked"),
    "chunks that are folded": post(b"Transfer-Encoding:", b" chunked"),
    "chunks after a tab": post(b"X: y", b"\tTransfer-Encoding: chunked"),
    "chunks with a vertical tab": post(b"Transfer-Encoding: \x0bchunked"),
    "header with NUL": post(b"X: a\x00b", b"Content-Length: 5"),
    "header with a lone CR": post(b"X: a\rContent-Length: 5"),
    "header without a name": post(b": 5"),
    "chunks in HTTP/1.0": b"POST /echo HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "negative chunk": chunked(b"-1\r\n"),
    "signed chunk": chunked(b"+1\r\na\r\n0\r\n\r\n"),
    "prefix of a chunk": chunked(b"0x1\r\na\r\n0\r\n\r\n"),
    "underscore in a chunk": chunked(b"0_1\r\na\r\n0\r\n\r\n"),
    "word for a chunk": chunked(b"five\r\na\r\n0\r\n\r\n"),
    "chunk of too many bytes": chunked(b"1\r\naa\r\n0\r\n\r\n"),
    "chunk without its end": chunked(b"1\r\na0\r\n\r\n"),
    "chunk after a bare LF": chunked(b"1\na\r\n0\r\n\r\n"),
    "lines that end in LF": b"POST /echo HTTP/1.1\nHost: x\nContent-Length: 5\n\n0\r\n\r\n",
}


@pytest.fixture(scope="module", params=["webhook and verbs", "metrics and health", "dashboard"])
def address(request):
    """Host and port of a server, which is stopped after the tests."""
    if request.param == "webhook and verbs":
        server = Server(threads=8, read_seconds=1)
        yield "127.0.0.1", server.port
        server.close()
        return
    server = (
        Exporter(CollectorRegistry(), ("127.0.0.1", 0), timeout=1.0)
        if request.param == "metrics and health"
        else AppServer("dashboard", ("127.0.0.1", 0), show, flag="--bind-address", timeout=1.0)
    )
    server.start()
    yield server.address
    server.stop()


@pytest.mark.parametrize("request_", AMBIGUOUS.values(), ids=AMBIGUOUS)
@cases("path", ("body that is read", b"/echo"), ("body that nobody reads", b"/hello"))
def test_what_is_hidden_in_an_ambiguous_request_is_not_answered(address, request_, path):
    client = socket.create_connection(address, timeout=PATIENCE_S)
    client.sendall(request_.replace(b"/echo", path) + HIDDEN)
    answer = read_to_end(client)
    assert answer.count(b" 200 OK\r\n") <= 1
    assert b"hidden" not in answer
    assert fetch(address[1], "/metrics")[0] == 200


@cases(
    "part",
    ("headers", b"GET /metrics HTTP/1.1\r\n"),
    ("body", b"POST /echo HTTP/1.1\r\nContent-Length: 1000\r\n\r\n"),
)
def test_a_request_that_trickles_in_ends_at_its_deadline(address, part):
    """A byte now and then extends no deadline."""
    with (
        socket.create_connection(address, timeout=0.02) as client,
        contextlib.suppress(ConnectionError),
    ):
        client.sendall(part)
        answer = None
        while answer != b"":  # for ever, if each byte did
            client.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                answer = client.recv(4096)
