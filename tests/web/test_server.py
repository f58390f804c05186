"""The server, as a process of its own, over real sockets on loopback."""

import contextlib
import datetime
import http.client
import ipaddress
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hami.errors import HamiError
from hami.web.server import SILENT_S, serve
from testing.cases import cases
from testing.eventually import PATIENCE_S, eventually
from testing.processes import free_port

PROGRAM = textwrap.dedent("""
    import json, os, sys, threading, time
    from hami.runtime import logs
    from hami.errors import ClusterError
    from hami.web.server import serve
    from hami.web.connections import without_turn
    from hami.web.rights import ClientRight, right_of
    from hami.web.tls import TlsContext

    options = json.loads(sys.argv[1])
    logs.configure("json", options.pop("verbosity", 0))
    fail, stop_takes, tls = (options.pop(key, None) for key in ("fail", "stop_takes", "tls"))
    released = threading.Event()

    def app(environ, start_response):
        path = environ["PATH_INFO"]
        status, body = "200 OK", path
        if path == "/wait":
            body = "released" if released.wait(30) else "late"
        elif path == "/pause":
            with without_turn():
                body = "released" if released.wait(30) else "late"
            try:
                body += " " * bool(sent := environ["wsgi.input"].read().decode()) + sent
            except OSError as error:
                status, body = "400 Bad Request", type(error).__name__
        elif path == "/release":
            released.set()
        elif path == "/stubborn":
            time.sleep(30)
        elif path == "/echo":
            try:
                body = environ["wsgi.input"].read().decode()
            except OSError as error:
                status, body = "400 Bad Request", type(error).__name__
        elif path == "/boom":
            raise KeyError("bug")
        elif path == "/about":
            body = json.dumps({
                "pid": os.getpid(), "scheme": environ["wsgi.url_scheme"],
                "right": right_of(environ).value, "threads": threading.active_count()})
        start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
        return [body.encode()]

    def make_app():
        if fail == "cluster":
            raise ClusterError("no such thing")
        if fail == "bug":
            raise KeyError("bug")
        return app

    def on_stop():
        released.set()
        if stop_takes:
            threading.Event().wait(stop_takes)
            print("stop hook done", file=sys.stderr, flush=True)

    plain = options.pop("plain", None)
    bind = options.pop("host", "127.0.0.1"), options.pop("port", 0)
    serve(make_app, bind=bind, tls=TlsContext(*tls) if tls else None,
          plain=("127.0.0.1", plain) if plain else None, on_stop=on_stop, **options)
""")


class Server:
    """One running server; ``log`` holds its lines."""

    def __init__(self, program=PROGRAM, **options):
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, json.dumps(options)],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.log = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            with self._news:
                self.log.append(line)
                self._news.notify_all()
        with self._news:
            self.log.append("END")
            self._news.notify_all()

    def wait_for(self, pattern, count=1):
        """The last of the first *count* log lines that match *pattern*."""
        with self._news:
            assert self._news.wait_for(
                lambda: len(self.lines(pattern)) >= count or "END" in self.log, PATIENCE_S
            ), self.log
            assert len(self.lines(pattern)) >= count, self.log
            return self.lines(pattern)[count - 1]

    def lines(self, pattern):
        return [line for line in self.log if re.search(pattern, line)]

    @property
    def port(self):
        return int(json.loads(self.wait_for('"message":"serving"'))["bind"].rpartition(":")[2])

    def get(self, path="/hello", body=None, timeout=PATIENCE_S, context=None):
        """Status and body of one request on a connection of its own."""
        return fetch(self.port, path, body, timeout, context)

    def connect(self, sent=b""):
        """A raw connection over which *sent* has been sent."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        client.sendall(sent)
        return client

    def signal(self, number=signal.SIGTERM):
        os.kill(self.process.pid, number)

    def end(self):
        """Exit status. Raises: TimeoutExpired after less than the grace of a test that must not wait for it."""
        status = self.process.wait(25)
        self._reader.join(5)
        return status

    def close(self):
        """End whatever is left of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(5)
        self._reader.join(5)
        self.process.stderr.close()


def fetch(port, path, body=None, timeout=PATIENCE_S, context=None):
    """Status and body of one request on a connection of its own."""
    conn = (
        http.client.HTTPSConnection("127.0.0.1", port, timeout=timeout, context=context)
        if context
        else http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    )
    with contextlib.closing(conn):
        conn.request("POST" if body is not None else "GET", path, body)
        answer = conn.getresponse()
        return answer.status, answer.read().decode()


@pytest.fixture
def start():
    """Starts servers that end with the test."""
    with contextlib.ExitStack() as stack:

        def start(**options):
            server = Server(**{"threads": 4, "grace": 20, **options})
            stack.callback(server.close)
            return server

        yield start


@pytest.fixture(scope="module")
def shared():
    """A server for tests that leave it as it was."""
    server = Server(threads=8)
    yield server
    server.close()


@pytest.fixture(scope="module")
def short_deadline():
    """The same for clients that are too slow: it does not wait long for them."""
    server = Server(threads=8, read_seconds=0.4)
    yield server
    server.close()


def in_background(function, *args):
    """*function* in a thread; call the result for its answer."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(function(*args)))
    thread.start()

    def answer():
        thread.join(PATIENCE_S)
        return answers[0]

    return answer


def read_to_end(client):
    """All that the server still sends."""
    with client:
        return b"".join(iter(lambda: client.recv(65536), b""))


# serving


def test_requests_are_answered_on_one_connection(shared):
    conn = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=PATIENCE_S)
    with contextlib.closing(conn):
        for path in ("/a", "/b", "/c"):
            conn.request("GET", path)
            answer = conn.getresponse()
            assert (answer.status, answer.read().decode()) == (200, path)
            assert answer.getheader("Connection") == "keep-alive"


def test_clients_that_ask_again_and_again_leave_room_for_one_more(start):
    server = start(threads=2)
    for _ in range(20):
        clients = [
            http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
            for _ in range(3)
        ]
        for client in clients * 3:
            client.request("GET", "/hello")
            assert client.getresponse().read() == b"/hello"
        for client in clients:
            client.close()


def test_two_requests_sent_at_once_are_both_answered(shared):
    first, second = (
        b"GET /1 HTTP/1.1\r\nHost: x\r\n",
        b"GET /2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n",
    )
    with shared.connect(first + b"\r\n" + second + b"\r\n") as client:
        answers = read_to_end(client)
    assert answers.count(b"200 OK") == 2
    assert answers.endswith(b"/2")


def test_the_app_lives_in_a_worker(shared):
    about = json.loads(shared.get("/about")[1])
    assert about["pid"] != shared.process.pid
    assert (about["scheme"], about["right"]) == ("http", "extender")


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
def test_bodies_arrive_whole(shared, size):
    assert shared.get("/echo", "x" * size) == (200, "x" * size)


def test_a_chunked_body_arrives_whole(shared):
    with shared.connect(
        b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b"3\r\nabc\r\n"
    ) as client:
        client.sendall(b"2\r\nde\r\n0\r\n\r\n")
        assert read_to_end(client).endswith(b"\r\n\r\nabcde")


@cases("headers", ("many", b"X: y\r\n" * 33), ("long", b"X: " + b"y" * 4096 + b"\r\n"))
def test_many_or_long_headers_are_refused(shared, headers):
    """A client that never completes them occupies memory."""
    with shared.connect(b"GET /hello HTTP/1.1\r\n" + headers + b"\r\n") as client:
        assert client.recv(100).split(b" ")[1] == b"431"
    assert shared.get() == (200, "/hello")


def test_the_caller_cannot_change_path_or_scheme_by_header(shared):
    with shared.connect(
        b"GET /about HTTP/1.1\r\nHost: a\r\nSCRIPT_NAME: /x\r\nPATH_INFO: /boom\r\n"
        b"X-Forwarded-Proto: https\r\nConnection: close\r\n\r\n"
    ) as client:
        assert b'"scheme": "http"' in read_to_end(client)


@cases(
    "sent, status",
    ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
    ("version", b"GET / HTTP/9.9\r\n\r\n", b"400"),
    ("long line", b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", b"414"),
    ("many fields", b"GET / HTTP/1.1\r\n" + b"X-A: b\r\n" * 101 + b"\r\n", b"431"),
    ("length", b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n", b"400"),
    ("h2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400"),
)
def test_garbage_is_answered_and_closed(shared, sent, status):
    assert read_to_end(shared.connect(sent)).split(b" ")[1] == status


def test_garbage_is_one_line_in_the_log(start):
    server = start()
    read_to_end(server.connect(b"garbage\r\n\r\n"))
    line = json.loads(server.wait_for("Invalid request"))
    assert (line["level"], line["logger"]) == ("warning", "gunicorn.error")
    assert (
        line["message"] == "Invalid request from ip=127.0.0.1: Invalid HTTP request line: 'garbage'"
    )
    assert len(server.log) == 2


def test_a_bug_in_the_app_is_one_line_and_a_500(shared):
    assert shared.get("/boom")[0] == 500
    assert (
        "KeyError: 'bug'"
        in json.loads(shared.wait_for("Error handling request GET /boom"))["exception"]
    )
    assert shared.get()[0] == 200


# slow and broken clients


@cases(
    "sent, answer",
    ("line", b"GET /hello HT", b""),
    ("head", b"GET /hello HTTP/1.1\r\nHost:", b""),
    (
        "body",
        b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc",
        b"HTTP/1.1 400 Bad Request",
    ),
    (
        "chunk",
        b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 400 Bad Request",
    ),
    (
        "body that nobody reads",
        b"POST /hello HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc",
        b"HTTP/1.1 200 OK",
    ),
)
def test_a_client_that_stops_is_closed_in_time(short_deadline, sent, answer):
    assert read_to_end(short_deadline.connect(sent)).partition(b"\r\n")[0] == answer


def test_a_head_that_trickles_in_is_closed_in_time(short_deadline):
    with (
        short_deadline.connect(b"GET /hello HTTP/1.1\r\n") as client,
        contextlib.suppress(ConnectionError),
    ):
        client.settimeout(0.05)
        for _ in range(1000):
            with contextlib.suppress(TimeoutError):
                assert client.recv(1) == b""
                break
            client.sendall(b"X: y\r\n")
        else:
            pytest.fail("never closed")


@cases(
    "sent",
    ("nothing", b""),
    ("line", b"GET /hello HT"),
    ("body", b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc"),
    ("answered and not closed", b"GET /nowhere HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
    ("garbage", b"garbage\r\n\r\n"),
)
def test_many_such_clients_do_not_keep_another_waiting(start, sent):
    server = start(threads=8, read_seconds=1)
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(server.connect(sent))
        assert server.get("/hello", timeout=30) == (200, "/hello")


@cases("clients", ("more than threads", 500), ("more than connections", 1000))
def test_silent_clients_hold_no_thread(start, clients):
    server = start(threads=320, read_seconds=300)
    with contextlib.ExitStack() as stack:
        for _ in range(clients):
            stack.enter_context(server.connect())
        assert server.get("/hello", timeout=50) == (200, "/hello")


def test_when_connections_run_out_silent_ones_make_room(start):
    server = start(threads=2)
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(server.connect())
        assert server.get("/hello") == (200, "/hello")


def test_a_request_that_waits_for_a_thread_is_not_silence(start):
    server = start(threads=2)
    body = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
    with contextlib.ExitStack() as stack:
        slow = [
            stack.enter_context(server.connect(body)) for _ in range(2)
        ]  # both threads wait for them
        time.sleep(0.3)
        waiting = [
            in_background(server.get) for _ in range(2)
        ]  # now there are as many as there may be
        time.sleep(SILENT_S + 1.3)  # a turn of the event loop takes up to 1 s
        for client in slow:
            client.sendall(b"ok")
        assert [answer() for answer in waiting] == [(200, "/hello")] * 2


def test_waiting_requests_are_not_cut_for_others(start):
    server = start(threads=4, read_seconds=1)
    waiting = [in_background(server.get, "/wait") for _ in range(3)]
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(server.connect(b"GET /hello HT"))
        assert server.get("/hello", timeout=30) == (200, "/hello")
    server.signal()
    assert [answer() for answer in waiting] == [(200, "released")] * 3


@cases(
    "sent, rest",
    ("nothing", b"", b"GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
    ("half a line", b"GET /hello HTT", b"P/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
    (
        "half a body",
        b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nConnection: close\r\n\r\n/he",
        b"llo",
    ),
)
def test_a_client_that_pauses_within_a_request_is_not_cut_for_others(start, sent, rest):
    server = start(threads=4, read_seconds=50)
    waiting = [in_background(server.get, "/wait") for _ in range(3)]
    busy(server, 3)
    with server.connect(sent) as client:
        queueing = [in_background(server.get, "/hello") for _ in range(3)]
        threading.Event().wait(0.4)  # both cores are busy elsewhere
        client.sendall(rest)
        assert read_to_end(client).endswith(b"\r\n\r\n/hello")
    assert [answer() for answer in queueing] == [(200, "/hello")] * 3
    server.signal()
    assert [answer() for answer in waiting] == [(200, "released")] * 3


# what clients may do


def right(port, source="127.0.0.1", context=None):
    """The right that the server gives to a client with the address *source*, and headers that claim more."""
    with socket.create_connection(
        ("127.0.0.1", port), timeout=PATIENCE_S, source_address=(source, 0)
    ) as client:
        if context is not None:
            client = context.wrap_socket(client, server_hostname="127.0.0.1")
        client.sendall(
            b"GET /about HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 127.0.0.1\r\nHami.Right: extender\r\n"
            b"Hami-Right: extender\r\nConnection: close\r\n\r\n"
        )
        return json.loads(read_to_end(client).partition(b"\r\n\r\n")[2])["right"]


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.6"])
def test_an_address_on_loopback_gives_a_right_and_no_other_does(start, files, source):
    """127.0.0.6 is the address of a proxy in the same pod, through which anybody may come."""
    plain = free_port()
    server, context = (
        start(host="", tls=files, plain=plain),
        ssl.create_default_context(cafile=files[0]),
    )
    assert right(server.port, source, context) == "none"
    assert right(plain, source) == "extender"


def test_a_certificate_of_our_ca_gives_a_right_on_every_address(start, files):
    server, context = (
        start(host="", tls=[*files, files[0]]),
        ssl.create_default_context(cafile=files[0]),
    )
    assert right(server.port, context=context) == "none"
    context.load_cert_chain(*files)
    assert right(server.port, context=context) == "extender"


def test_untrusted_requests_are_worked_on_one_at_a_time(start):
    """One that is still being sent keeps nobody waiting."""
    plain = free_port()
    server = start(host="", plain=plain, threads=16)
    with server.connect(b"GET /hello HTTP/1.1\r\nHo"):
        first = in_background(server.get, "/wait")
        eventually(lambda: not is_answered(server, 0.1), "the first is worked on")
        second = in_background(server.get)
        assert fetch(plain, "/hello") == (200, "/hello")
        assert not is_answered(server, 0.1)
        assert fetch(plain, "/release") == (200, "/release")
        assert first() == (200, "released")
        assert second() == (200, "/hello")


def test_an_untrusted_request_that_waits_for_something_else_keeps_nobody_waiting(start):
    server = start(host="", threads=16)
    waiting = [in_background(server.get, "/pause") for _ in range(2)]
    busy(server, 2)
    assert server.get("/hello") == (200, "/hello")
    assert server.get("/release") == (200, "/release")
    assert [answer() for answer in waiting] == [(200, "released")] * 2


def test_a_client_whose_request_has_to_wait_before_it_is_read_is_not_too_slow(start):
    """As simulations do. What has not arrived yet still has its whole time, and no more."""
    server = start(host="", threads=16, read_seconds=5.0)
    head = b"POST /pause HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nConnection: close\r\n\r\n"
    with server.connect(head) as patient, server.connect(head) as slow:
        busy(server, 2)
        threading.Event().wait(5.5)  # longer than a request may take to arrive
        assert server.get("/release") == (200, "/release")
        patient.sendall(b"/hello")
        assert read_to_end(patient).endswith(b"\r\n\r\nreleased /hello")
        assert read_to_end(slow).endswith(b"ConnectionResetError")


def test_other_clients_take_no_thread_from_those_of_an_address_on_loopback(start):
    plain = free_port()
    server = start(host="", plain=plain, threads=4)
    waiting = [in_background(server.get, "/wait") for _ in range(4)]
    eventually(lambda: not is_answered(server, 0.1), "the threads are taken")
    assert fetch(plain, "/hello") == (200, "/hello")
    assert fetch(plain, "/release") == (200, "/release")
    assert [answer() for answer in waiting] == [(200, "released")] * 4


def test_an_untrusted_request_that_fails_ends_its_turn(start):
    server = start(host="")
    for request in (
        b"GET /boom HTTP/1.1\r\nHost: a\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"\r\n",
        b"GET /hello HT",
        b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf",
        b"POST /hello HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf",
    ):
        client = server.connect(request)
        client.shutdown(socket.SHUT_WR)
        read_to_end(client)
        assert server.get() == (200, "/hello")


def is_answered(server, timeout):
    try:
        return bool(server.get(timeout=timeout))
    except TimeoutError:
        return False


# stopping


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_ends_it_with_0_after_requests_have_finished(start, number):
    server = start()
    waiting = [in_background(server.get, "/wait") for _ in range(3)]
    busy(server, 3)
    server.signal(number)
    assert [answer() for answer in waiting] == [(200, "released")] * 3
    assert server.end() == 0
    messages = [json.loads(line)["message"] for line in server.lines("message")]
    assert messages == ["serving", "stopping", "stopped"]
    assert server.log[-1] == "END"


def busy(server, count):
    """Wait until *count* threads serve requests."""
    busy_over(lambda: server.get("/about"), count)


def is_listening(port):
    # reset: the listener was closed in the middle of the handshake
    with contextlib.suppress(ConnectionRefusedError, ConnectionResetError):
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    return False


def busy_over(about, count):
    eventually(
        lambda: (
            json.loads(about()[1])["threads"] >= count + 2
        ),  # the main thread and the one that answers
        f"{count} requests have arrived",
    )


def test_ctrl_c_in_a_terminal_lets_requests_finish_too(start):
    server = start()
    waiting = in_background(server.get, "/wait")
    busy(server, 1)
    os.killpg(server.process.pid, signal.SIGINT)  # a terminal tells parent and worker alike
    assert waiting() == (200, "released")
    assert server.end() == 0


def test_no_listening_socket_is_left_while_requests_finish(start):
    server = start(stop_takes=5)
    port = server.port
    server.signal()
    server.wait_for("stopping")
    eventually(lambda: not is_listening(port), "the server has stopped listening")
    assert server.process.poll() is None
    assert server.end() == 0
    assert server.lines("stop hook done")


def test_a_request_that_will_not_end_is_cut_after_the_grace(start):
    server = start(grace=1)
    stubborn = in_background(
        lambda: pytest.raises((OSError, http.client.HTTPException), server.get, "/stubborn")
    )
    busy(server, 1)
    server.signal()
    assert server.end() == 0
    stubborn()


def test_a_second_signal_does_not_wait(start):
    server = start(grace=30, stop_takes=30)
    server.wait_for("serving")
    server.signal()
    server.wait_for("stopping")
    server.signal(signal.SIGINT)
    assert server.end() == 0


def test_silent_and_slow_clients_do_not_delay_the_stop(start):
    server = start(grace=30, read_seconds=1)
    with contextlib.ExitStack() as stack:
        for sent in (b"", b"GET /hello HT", b"POST /echo HTTP/1.1\r\nContent-Length: 9\r\n\r\na"):
            stack.enter_context(server.connect(sent))
        server.get()
        server.signal()
        assert server.end() == 0


def test_a_signal_before_the_worker_is_ready_is_not_lost(start):
    server = start(grace=30, fail=None)
    eventually(lambda: worker_of(server.process.pid), "the worker has started")
    server.signal()
    assert server.end() == 0


def worker_of(pid):
    """The process ids of the children of *pid*."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# starting


@cases(
    "fail, problem",
    ("cluster", {"error": "ClusterError: no such thing"}),
    ("bug", {"exception": "KeyError: 'bug'"}),
)
def test_an_app_that_cannot_be_made_ends_it(start, fail, problem):
    server = start(fail=fail)
    assert server.end() == 3
    line = server.log[0]
    assert json.loads(line)["message"] == "Exception in worker process"
    ((field, text),) = problem.items()
    assert json.loads(line)[field].strip().endswith(text)


def test_a_worker_that_is_killed_is_started_anew(start):
    server = start()
    first = json.loads(server.get("/about")[1])["pid"]
    os.kill(first, signal.SIGKILL)
    server.wait_for("serving", count=2)
    assert json.loads(server.get("/about")[1])["pid"] != first
    server.signal()
    assert server.end() == 0


def test_a_worker_without_parent_ends(start):
    server = start()
    worker = json.loads(server.get("/about")[1])["pid"]
    server.signal(signal.SIGKILL)
    server.wait_for("stopped")
    assert server.end() == -signal.SIGKILL
    eventually(lambda: not Path(f"/proc/{worker}").exists(), "the worker has ended")


def test_gunicorn_s_other_signals_change_nothing(start):
    server = start()
    server.wait_for("serving")
    for number in (
        signal.SIGHUP,
        signal.SIGTTIN,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGWINCH,
        signal.SIGTTOU,
    ):
        server.signal(number)
    assert server.get()[0] == 200
    server.signal()
    assert server.end() == 0
    assert len(server.lines("message")) == 3


@pytest.mark.parametrize(
    "bind", [("192.0.2.1", 0), ("127.0.0.1", 70_000), ("no.such.host.invalid", 80)]
)
def test_an_address_that_cannot_be_had_is_named(bind):
    with pytest.raises(HamiError, match=rf"cannot listen on {bind[0]}:{bind[1]}: \S"):
        serve(lambda: None, bind=bind, threads=1)


def test_an_address_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(HamiError, match="Address already in use$"):
            serve(lambda: None, bind=taken.getsockname(), threads=1)


# TLS


def self_signed(folder):
    """Files with a certificate for 127.0.0.1 and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hami")])
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - datetime.timedelta(days=3650))
        .not_valid_after(start + datetime.timedelta(days=36500))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "tls.crt", folder / "tls.key"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return str(cert_file), str(key_file)


@pytest.fixture
def files(tmp_path):
    return self_signed(tmp_path)


@pytest.fixture
def secured(start, files):
    """A server with TLS, and the context of a client that trusts it."""
    server = start(tls=files, read_seconds=1.5)
    context = ssl.create_default_context(cafile=files[0])
    context.set_alpn_protocols(["h2", "http/1.1"])
    return server, context


def test_tls_serves_http_1_1_to_those_who_offer_h2(secured):
    server, context = secured
    assert json.loads(server.get("/about", context=context)[1])["scheme"] == "https"
    assert server.get("/echo", "x" * 300_000, context=context) == (200, "x" * 300_000)
    with context.wrap_socket(server.connect(), server_hostname="127.0.0.1") as client:
        assert client.selected_alpn_protocol() == "http/1.1"


def test_a_second_address_speaks_plain_http(start, files):
    plain = free_port()
    server, context = start(tls=files, plain=plain), ssl.create_default_context(cafile=files[0])
    server.wait_for("serving")
    waiting = in_background(lambda: fetch(plain, "/wait"))
    assert json.loads(fetch(plain, "/about")[1])["scheme"] == "http"
    assert json.loads(server.get("/about", context=context)[1])["scheme"] == "https"
    busy_over(lambda: fetch(plain, "/about"), 1)
    server.signal()
    assert waiting() == (200, "released")
    assert server.end() == 0
    with pytest.raises(ConnectionRefusedError):
        fetch(plain, "/about")


def test_a_renewed_certificate_is_served_while_open_connections_go_on(secured, files, tmp_path):
    server, context = secured
    conn = http.client.HTTPSConnection(
        "127.0.0.1", server.port, timeout=PATIENCE_S, context=context
    )
    with contextlib.closing(conn):
        conn.request("GET", "/before")
        assert conn.getresponse().read() == b"/before"
        (tmp_path / "next").mkdir()
        fresh = self_signed(tmp_path / "next")
        for new, old in zip(fresh, files, strict=True):
            os.replace(new, old)
        assert server.get(context=ssl.create_default_context(cafile=files[0])) == (200, "/hello")
        conn.request("GET", "/after")
        assert conn.getresponse().read() == b"/after"


@cases(
    "sent",
    ("nothing", b""),
    ("half a hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    ("plain HTTP", b"GET / HTTP/1.1\r\n\r\n"),
    ("garbage", b"\x16\x03\x01\x00\x05abcde"),
)
def test_a_client_without_a_handshake_is_closed_in_time_and_stops_nobody(start, files, sent):
    # half of the threads wait 5 s for them, the others 1 s, and so long for the one that greets
    server, context = (
        start(tls=files, threads=12, read_seconds=5),
        ssl.create_default_context(cafile=files[0]),
    )
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.connect(sent)) for _ in range(12)]
        assert server.get(context=context) == (200, "/hello")
        for client in clients if sent else ():
            with contextlib.suppress(ConnectionResetError):
                read_to_end(client)
    assert not server.lines('Traceback|"level":"error"')


def test_a_client_that_ends_before_a_handshake_is_no_error(start, files):
    """So does a probe of the port. The server asks who a client is where some are trusted, and others take turns."""
    plain = free_port()
    server, context = (
        start(host="", tls=[*files, files[0]], plain=plain),
        ssl.create_default_context(cafile=files[0]),
    )
    for _ in range(12):
        with server.connect(b"") as client:
            client.shutdown(socket.SHUT_WR)
            read_to_end(client)
    assert server.get(context=context) == (200, "/hello")
    assert not server.lines('Traceback|"level":"error"')


def test_a_client_that_refuses_our_certificate_is_one_line(secured):
    server, context = secured
    with pytest.raises(ssl.SSLCertVerificationError):
        server.get(context=ssl.create_default_context())
    assert "from ip=127.0.0.1: [SSL" in json.loads(server.wait_for("Invalid request"))["message"]
    assert server.get(context=context)[0] == 200


def test_requests_over_tls_finish_before_the_stop(secured):
    server, context = secured
    waiting = in_background(lambda: server.get("/wait", context=context))
    busy_over(lambda: server.get("/about", context=context), 1)
    server.signal()
    assert waiting() == (200, "released")
    assert server.end() == 0
