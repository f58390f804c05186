"""The metrics page over loopback."""

import contextlib
import gzip
import http.client
import logging
import socket
import threading

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from hami.errors import HamiError
from hami.web.exporter import Exporter
from hami.web.exposition import Family
from hami.web.pages import CLIENTS
from testing.cases import cases

OURS = Family("hami_gauge", "Ours", ())


@pytest.fixture
def serve():
    """Starts exporters on loopback and stops them after the test."""
    started = []

    def start(
        families=lambda: [
            Family("hami_gauge", "Ours", ("hami_gauge 1", 'hami_gauge{zone="vGPU"} 2'))
        ],
        **given,
    ):
        registry = CollectorRegistry()
        Counter("hami_scheduler_things", "Theirs", registry=registry).inc()
        exporter = Exporter(
            registry, ("127.0.0.1", 0), families, pause=lambda seconds: None, **given
        )
        exporter.start()
        started.append(exporter)
        return exporter

    yield start
    for exporter in started:
        exporter.stop()


def ask(exporter, method="GET", path="/metrics", body=None, **headers):
    """Status, headers and body of the response."""
    connection = http.client.HTTPConnection(*exporter.address, timeout=30)
    try:
        connection.request(
            method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def send(exporter, text):
    """The complete response to *text*."""
    with socket.create_connection(exporter.address, timeout=30) as connection:
        connection.sendall(text)
        return read_all(connection)


def connect(exporter):
    return socket.create_connection(exporter.address, timeout=30)


def read_all(connection):
    parts = []
    with contextlib.suppress(
        ConnectionResetError
    ):  # the server closed it before reading everything
        while part := connection.recv(1 << 20):
            parts.append(part)
    return b"".join(parts)


def test_page_has_the_gauges_first_and_then_the_registry(serve):
    status, headers, body = ask(serve())
    assert status == 200
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = list(parse_text(body.decode()))
    assert [family.name for family in found][:2] == ["hami_gauge", "hami_scheduler_things"]
    assert [sample.value for sample in found[0].samples] == [1, 2]


@cases(
    "accept, content_type",
    ("", "text/plain; version=0.0.4; charset=utf-8"),
    ("text/html", "text/plain; version=0.0.4; charset=utf-8"),
    ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text; version=1.0.0"),
    (
        "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "application/openmetrics-text; version=1.0.0",
    ),
    ("application/openmetrics-text;version=x.y", ""),
    ("text/plain;version=abc", ""),
)
def test_the_format_follows_the_accept_header(serve, accept, content_type):
    status, headers, body = ask(serve(), Accept=accept)
    assert status == 200
    assert headers["Content-Type"].startswith(content_type)
    parse = parse_openmetrics if "openmetrics" in headers["Content-Type"] else parse_text
    assert "hami_gauge" in [family.name for family in parse(body.decode())]


@pytest.mark.parametrize("accepted", ["gzip", "deflate, gzip;q=0.8"])
def test_the_page_is_compressed_if_the_client_accepts_it(serve, accepted):
    exporter = serve(lambda: [Family("f", "Long", (f'f{{n="{i}"}} 1' for i in range(5000)))])
    status, headers, body = ask(exporter, Accept_Encoding=accepted)
    assert (status, headers["Content-Encoding"]) == (200, "gzip")
    text = gzip.decompress(body)
    assert text.splitlines()[: 5000 + 2][-1] == b'f{n="4999"} 1'
    assert len(body) < len(text) / 4


@cases(
    "method, path, status",
    ("GET", "/", 404),
    ("GET", "/metrics/", 404),
    ("GET", "/metricsx", 404),
    ("GET", "/healthz", 404),
    ("POST", "/other", 404),
    ("GET", "/metrics?name=x", 200),
    ("POST", "/metrics", 405),
    ("HEAD", "/metrics", 405),
    ("OPTIONS", "/metrics", 405),
    ("BREW", "/metrics", 405),
)
def test_only_get_of_metrics_is_served(serve, method, path, status):
    found, headers, body = ask(
        serve(), method, path, body=b"x" * 1000 if method == "POST" else None
    )
    assert found == status
    assert headers.get("Allow") == ("GET" if status == 405 else None)
    assert (body == b"") is (method == "HEAD")


@cases(
    "text",
    ("one word", b"GARBAGE\r\n\r\n"),
    ("version", b"GET /metrics HTTP/x\r\n\r\n"),
    ("TLS", b"\x16\x03\x01\x02\x00\x01\r\n\r\n"),
    ("long line", b"GET /" + b"x" * 65_540 + b" HTTP/1.1\r\n\r\n"),
    ("many headers", b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n"),
)
def test_a_malformed_request_is_refused_and_the_next_is_served(serve, text):
    exporter = serve()
    answer = send(exporter, text)
    assert answer.startswith(b"HTTP/1.1 4") or b"Error code: 4" in answer
    assert ask(exporter)[0] == 200


def test_http_1_0_clients_are_served_without_chunks(serve):
    head, _, body = send(serve(), b"GET /metrics HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")
    assert b"Transfer-Encoding" not in head
    assert body.startswith(b"# HELP hami_gauge Ours\n")


def test_a_thread_that_cannot_start_frees_its_connection_slot(serve, monkeypatch):
    exporter = serve()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_to_start)
        for _ in range(CLIENTS + 1):
            assert send(exporter, b"") == b""
    assert ask(exporter)[0] == 200


def refuse_to_start(thread):
    raise RuntimeError("can't start new thread")


def test_a_failing_source_is_an_error_response(serve, caplog):
    def broken():
        raise KeyError("bug")

    assert ask(serve(broken))[0] == 500
    assert "metrics: page failed" in caplog.messages


def test_a_truncated_page_is_recognizably_incomplete(serve, caplog):
    def lines():
        yield "f 1"
        raise KeyError("bug")

    with pytest.raises(http.client.IncompleteRead):
        ask(serve(lambda: [Family("f", "Broken", lines())]))
    assert caplog.messages == ["metrics: request failed"]


def test_a_client_that_does_not_finish_its_request_is_dropped(serve):
    exporter = serve(timeout=0.05)
    assert send(exporter, b"GET /metrics HTT") == b""
    assert send(exporter, b"") == b""


def test_a_client_that_does_not_read_is_dropped(serve):
    left = threading.Event()

    def endless():
        try:
            while True:
                yield "f " + "1" * 1000
        finally:
            left.set()

    exporter = serve(lambda: [Family("f", "Endless", endless())], timeout=0.5)
    with socket.create_connection(exporter.address, timeout=30) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert left.wait(30)
        assert not read_all(connection).endswith(b"0\r\n\r\n")


def test_a_slow_client_does_not_block_others(serve):
    exporter = serve()
    with socket.create_connection(exporter.address, timeout=30) as slow:
        slow.sendall(b"GET /metr")
        assert ask(exporter)[0] == 200
        slow.sendall(b"ics HTTP/1.0\r\n\r\n")
        assert b" 200 OK\r\n" in read_all(slow)


def test_idle_clients_do_not_block_scrapes(serve, caplog):
    exporter = serve()
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(connect(exporter)) for _ in range(3 * CLIENTS)]
        assert ask(exporter)[0] == 200
        assert "metrics: too many connections, one ended" in caplog.messages
        assert read_all(crowd[0]) == b""


def test_clients_that_do_not_read_block_neither_scrapes_nor_their_threads(serve):
    def endless():
        while not left.is_set():
            yield "f " + "1" * 1000

    left = threading.Event()
    families = [Family("f", "Endless", endless()) for _ in range(2 * CLIENTS)]
    exporter = serve(lambda: [families.pop()] if families else [OURS])
    with contextlib.ExitStack() as stack:
        stack.callback(left.set)
        for _ in range(2 * CLIENTS):
            client = stack.enter_context(connect(exporter))
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert client.recv(1)
        while (
            ask_or_none(exporter) is None
        ):  # connections that are ending still occupy their places for a moment
            pass


def test_a_client_with_a_request_is_ended_after_those_without(serve):
    exporter, goes_on, has_begun = (
        serve(lambda: [Family("f", "Slow", slow())]),
        threading.Event(),
        threading.Event(),
    )

    def slow():
        has_begun.set()
        goes_on.wait(30)
        yield "f 1"

    with contextlib.ExitStack() as stack:
        first = stack.enter_context(connect(exporter))
        first.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert has_begun.wait(30)
        crowd = [stack.enter_context(connect(exporter)) for _ in range(2 * CLIENTS)]
        assert read_all(crowd[CLIENTS]) == b""
        goes_on.set()
        assert b"f 1\n" in read_all(first)


def ask_or_none(exporter):
    try:
        return ask(exporter)
    except (http.client.RemoteDisconnected, ConnectionResetError):
        return None


def test_a_stopped_exporter_can_be_started_again(serve):
    exporter = serve()
    address = exporter.address
    exporter.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=30)
    exporter.start()
    assert ask(exporter)[0] == 200


def test_nothing_listens_before_start():
    exporter = Exporter(CollectorRegistry(), ("127.0.0.1", 0))
    with pytest.raises(RuntimeError, match="not been started"):
        exporter.address  # noqa: B018
    exporter.stop()


@pytest.mark.parametrize("host", ["", "127.0.0.1", "localhost"])
def test_hosts_to_listen_on(host):
    exporter = Exporter(CollectorRegistry(), (host, 0))
    exporter.start()
    try:
        with socket.create_connection(("127.0.0.1", exporter.address[1]), timeout=30):
            pass
    finally:
        exporter.stop()


@cases(
    "bind, problem",
    (("203.0.113.1", 9395), "203.0.113.1:9395: Cannot assign requested address"),
    (("127.0.0.1", 70_000), "127.0.0.1:70000: expected a port from 0 to 65535"),
    (("127.0.0.1", -1), "127.0.0.1:-1: expected a port from 0 to 65535"),
    (("2001:db8::1", 70_000), r"\[2001:db8::1\]:70000: expected a port"),
)
def test_an_unusable_address_is_named_with_its_flag(bind, problem):
    with pytest.raises(HamiError, match=f"^--metrics-bind-address: cannot listen on {problem}"):
        Exporter(CollectorRegistry(), bind).start()


def test_an_address_in_use_is_named_with_its_flag(serve):
    with pytest.raises(HamiError, match="^--metrics-bind-address: .*: Address already in use$"):
        Exporter(CollectorRegistry(), serve().address).start()


def test_scrapes_are_not_logged(serve, caplog):
    caplog.set_level(logging.DEBUG)
    ask(serve())
    assert caplog.messages == []
