"""The limit on the bodies of all requests together, and what slow clients can occupy."""

import concurrent.futures
import contextlib
import io
import re
import textwrap
import threading
from pathlib import Path

import pytest
from werkzeug.exceptions import ServiceUnavailable
from werkzeug.test import create_environ

from e2e.eventually import eventually
from hami.web.bodies import FREE, BodyBudget
from hami.web.connections import TRUSTED
from tests.web.test_server import Server

MIB = 1 << 20
BUDGET = 16 * MIB
PROGRAM = textwrap.dedent("""
    import json, sys
    from hami.runtime import logs
    from hami.scheduler.admit import Admitted
    from hami.scheduler.app import Verbs, create_app
    from hami.web.bodies import BodyBudget
    from hami.web.server import serve

    class Admitter:
        def admit(self, review):
            return Admitted(review.pod)

    def make_app():
        verbs = Verbs(Admitter(), None, None, None, None, None)
        app = create_app(verbs, lambda _: True, lambda: None, lambda *_: None, threads=256)
        return BodyBudget(app, options["budget"], is_trusted=lambda environ: False)

    options = json.loads(sys.argv[1])
    logs.configure("json", 0)
    serve(make_app, bind=("127.0.0.1", 0), threads=256, read_seconds=options["read_seconds"])
""")


@pytest.fixture
def start():
    """Starts servers of reviews and ends them after the test."""
    started = []

    def make(read_seconds):
        started.append(Server(PROGRAM, budget=BUDGET, read_seconds=read_seconds))
        assert post(started[-1], 100) == 200
        return started[-1]

    yield make
    for server in started:
        server.close()


def worker_memory(server, field):
    """Returns a field of the status of the process that serves, in bytes."""
    pid = server.process.pid
    (worker,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{worker}/status").read_text())
    return int(found[1]) * 1024


def review(size):
    """Returns a review of *size* bytes."""
    text = b'{"request": {"uid": "u", "object": {"spec": {"containers": [{}]}}}, "padding": ""}'
    return text[:-2] + b"x" * (size - len(text)) + text[-2:]


def head(size, chunked=False):
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
    lines = f"POST /webhook HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n{framing}\r\n\r\n"
    return lines.encode() + (f"{size:x}\r\n".encode() if chunked else b"")


def status(connection):
    """Returns the status of the response, ``None`` if the connection ends without one."""
    with contextlib.suppress(ConnectionResetError):
        line = connection.recv(100).split(b" ")
        return int(line[1]) if len(line) > 1 else None


def post(server, size):
    connection = server.connect()
    with connection, contextlib.suppress(BrokenPipeError):
        connection.sendall(head(size) + review(size))
        return status(connection)


def withhold(server, size, chunked):
    """Opens a connection and sends a request without its last byte."""
    connection = server.connect()
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        connection.sendall(head(size, chunked) + review(size)[:-1])
    return connection


def test_clients_that_withhold_the_last_byte_cannot_occupy_more_than_the_budget(start):
    server, clients, size = start(60), 100, 2 * MIB
    before = worker_memory(server, "VmRSS")
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(8) as pool:
        for connection in pool.map(lambda n: withhold(server, size, chunked=n % 2), range(clients)):
            stack.enter_context(connection)
        assert post(server, size) == 503
        assert post(server, FREE // 2) == 200  # most pods are smaller
        # the budget, and for each client free bytes of its body, buffers, and what malloc keeps for its thread
        assert worker_memory(server, "VmHWM") - before < clients * size / 3


def test_the_budget_is_given_back_at_the_deadline(start):
    server = start(2)
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(withhold(server, 2 * MIB, chunked=False)) for _ in range(9)]
        assert eventually(lambda: post(server, 2 * MIB) == 200, "still refused", timeout=20)
        assert {status(connection) for connection in held} <= {400, 503, None}


def test_a_client_without_its_last_byte_is_no_error_of_the_server(start):
    server = start(1)
    with withhold(server, 1000, chunked=False) as connection:
        assert status(connection) == 400
    assert not server.lines("verb failed")


class Reader:
    """An application that reads bodies of any size, and answers when it is told to."""

    def __init__(self):
        self.read = 0

    def __call__(self, environ, start_response):
        self.read = 0
        while data := environ["wsgi.input"].read(FREE):
            self.read += len(data)
        start_response("200 OK", [])
        return [b"answer"]


def ask(budget, size, *, trusted=False):
    environ = create_environ(method="POST", environ_base={"REMOTE_ADDR": "127.0.0.1", TRUSTED: trusted})
    return budget(environ | {"wsgi.input": io.BytesIO(b"x" * size)}, lambda *_: None)


def test_what_is_read_counts_until_the_answer_has_been_sent():
    budget = BodyBudget(app := Reader(), 1000)
    answer = ask(budget, FREE + 600)
    assert app.read == FREE + 600
    with pytest.raises(ServiceUnavailable, match="too many large requests"):
        ask(budget, FREE + 401)
    assert b"".join(answer) == b"answer"
    answer.close()
    ask(budget, FREE + 1000).close()


def test_small_bodies_and_trusted_clients_are_not_limited():
    budget = BodyBudget(app := Reader(), 0)
    ask(budget, FREE)
    with pytest.raises(ServiceUnavailable):
        ask(budget, FREE + 1)
    ask(budget, 10 * FREE, trusted=True)
    assert app.read == 10 * FREE


def test_a_failing_application_gives_its_bytes_back():
    class Failing(Reader):
        def __call__(self, environ, start_response):
            super().__call__(environ, start_response)
            raise KeyError("bug")

    budget = BodyBudget(Failing(), 1000)
    for _ in range(3):
        with pytest.raises(KeyError):
            ask(budget, FREE + 1000)


def test_threads_share_the_budget():
    budget, barrier = BodyBudget(Reader(), 10_000), threading.Barrier(8)

    def post_often(_):
        barrier.wait()
        for _ in range(200):
            ask(budget, FREE + 1000).close()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(post_often, range(8)))
    ask(budget, FREE + 10_000).close()
