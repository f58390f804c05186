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

from hami.web.bodies import FREE, BodyBudgets, ByteBudget, TurnBudget
from testing.cases import cases
from testing.eventually import eventually
from tests.web.test_server import Server

MIB = 1 << 20
BUDGET = 16 * MIB
PROGRAM = textwrap.dedent("""
    import json, sys
    from hami.runtime import logs
    from hami.scheduler.admit import Admitted
    from hami.scheduler.app import Verbs, create_app
    from hami.web.bodies import BodyBudgets, ByteBudget
    from hami.web.server import serve

    class Admitter:
        def admit(self, review):
            return Admitted(review.pod)

    def make_app():
        verbs = Verbs(Admitter(), None, None, None, None, None)
        app = create_app(verbs, lambda _: True, lambda: None, lambda *_: None, threads=256)
        budget = ByteBudget(options["budget"])
        return BodyBudgets(app, lambda environ: budget)

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
    lines = (
        f"POST /webhook HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n{framing}\r\n\r\n"
    )
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
        assert eventually(lambda: post(server, 2 * MIB) == 200, "still refused")
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


def ask(application, size):
    environ = create_environ(method="POST")
    return application(environ | {"wsgi.input": io.BytesIO(b"x" * size)}, lambda *_: None)


def within(app, budget):
    """The application *app*, all of whose requests have one *budget*."""
    return BodyBudgets(app, lambda environ: budget)


def test_what_is_read_counts_until_the_answer_has_been_sent():
    application = within(app := Reader(), ByteBudget(1000))
    answer = ask(application, FREE + 600)
    assert app.read == FREE + 600
    with pytest.raises(ServiceUnavailable, match="too many large requests"):
        ask(application, FREE + 401)
    assert b"".join(answer) == b"answer"
    answer.close()
    ask(application, FREE + 1000).close()


def test_small_bodies_are_not_limited():
    application = within(app := Reader(), ByteBudget(0))
    ask(application, FREE)
    with pytest.raises(ServiceUnavailable):
        ask(application, FREE + 1)
    assert app.read == FREE


class Failing(Reader):
    def __call__(self, environ, start_response):
        super().__call__(environ, start_response)
        raise KeyError("bug")


@cases("budget", ("bytes", ByteBudget(1000)), ("turns", TurnBudget(1, 0, 0.0)))
def test_a_failing_application_gives_back_what_it_took(budget):
    application = within(Failing(), budget)
    for _ in range(3):
        with pytest.raises(KeyError):
            ask(application, FREE + 1000)


# turns


class Counted:
    """A body of which a thread has read a part, and the rest later. *opened*: bodies of which something was read."""

    def __init__(self, opened):
        self._opened = opened
        self.goes_on = threading.Event()
        self._is_read = False

    def read(self, size):
        if self._is_read:
            return b""
        self._opened.append(self)
        assert self.goes_on.wait(30)
        self._is_read = True
        return b"x" * 10


def test_others_wait_before_they_are_read():
    application, opened = within(Reader(), TurnBudget(2, 8, 30.0)), []
    bodies = [Counted(opened) for _ in range(6)]

    def post(body):
        answer = application(create_environ(method="POST") | {"wsgi.input": body}, lambda *_: None)
        assert b"".join(answer) == b"answer"
        answer.close()

    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        answers = [pool.submit(post, body) for body in bodies]
        for number in range(len(bodies)):
            eventually(
                lambda: len(opened) == min(number + 2, len(bodies)), "as many are read as may be"
            )
            opened[number].goes_on.set()
        for answer in answers:
            answer.result(30)


def test_a_turn_lasts_until_the_answer_has_been_sent():
    application = within(Reader(), TurnBudget(1, 1, 0.0))
    answer = ask(application, 10)
    with pytest.raises(ServiceUnavailable, match="other large requests take longer than 0 s"):
        ask(application, 10)
    answer.close()
    ask(application, 10).close()


def test_few_requests_wait():
    budget = TurnBudget(1, 2, 30.0)
    application = within(Reader(), budget)
    answer = ask(application, 10)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(lambda: ask(application, 10).close()) for _ in range(2)]
        eventually(lambda: is_full(budget), "two wait")
        with pytest.raises(ServiceUnavailable, match="too many large requests wait already"):
            ask(application, 10)
        answer.close()
        for other in waiting:
            other.result(30)
    ask(application, 10).close()


def is_full(budget):
    """Whether no further request may wait. Only the budget itself knows who waits."""
    has_place = budget._places.acquire(blocking=False)
    if has_place:
        budget._places.release()
    return not has_place


def test_threads_share_the_budget():
    budget, barrier = within(Reader(), ByteBudget(10_000)), threading.Barrier(8)

    def post_often(_):
        barrier.wait()
        for _ in range(200):
            ask(budget, FREE + 1000).close()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(post_often, range(8)))
    ask(budget, FREE + 10_000).close()
