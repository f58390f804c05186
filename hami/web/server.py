"""Serves one WSGI application with gunicorn: one worker process, many threads, HTTP/1.1 with or without TLS.

One worker, for assumed pods live in its memory; a thread for each ``/bind`` that waits. What gunicorn leaves to the
client's good will is bounded here: a connection that has sent nothing holds no thread; handshake, head and body have
deadlines; and when no thread is left, those that wait for a client's bytes are taken back first. This module knows
nothing of Kubernetes.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import resource
import select
import signal
import socket
import ssl
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from selectors import EVENT_READ
from types import FrameType
from typing import Any, Generic, NoReturn, TypeVar
from wsgiref.types import WSGIApplication

from gunicorn import util
from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.glogging import Logger
from gunicorn.http.errors import NoMoreData
from gunicorn.http.parser import RequestParser
from gunicorn.http.unreader import SocketUnreader
from gunicorn.sock import ssl_wrap_socket
from gunicorn.workers.gthread import STOP_KEEPALIVE_LINGER, TConn, ThreadWorker

from hami.runtime.interpreter import set_switch_interval
from hami.web.pages import listen
from hami.web.tls import TlsContext

__all__ = ["App", "Timeouts", "serve"]

log = logging.getLogger(__name__)

App = TypeVar("App", bound=WSGIApplication)

BACKLOG = 2048
CONNECTIONS_PER_THREAD = 4
OPEN_FILES = 65_536
LINGER_BYTES = 65_536
WORKER_SILENCE_SECONDS = 60
# a thread waits so long for its client's next request, as kube-scheduler asks for one pod after the other
STAY_SECONDS = 0.05
TURN_SECONDS = 0.1
LOOK_SECONDS = 0.25  # between two looks at who keeps a thread waiting
_STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_BAD_REQUEST = "Invalid request from ip="
_OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long a client may take, in seconds.

    *head*: for a first byte, a TLS handshake, the head of a request. *request*: from the first byte to the end of the
    body. *write*: to take the answer. *keep_alive*: between requests; longer than the 90 s for which Go's clients keep
    theirs, as a POST that meets a closing connection is not sent again. *timeout*: to hold a thread without sending
    while others wait for one; longer than an honest client takes on a machine that has no time for it. *linger*: to
    send the rest of a request once the stop has begun, and to close after the last answer.
    Source: HAMi v2.10 has 15 and 60 seconds for head and request; Go's http.DefaultTransport.IdleConnTimeout.
    """

    head: float = 15.0
    request: float = 60.0
    write: float = 60.0
    keep_alive: float = 120.0
    timeout: float = 2.0
    linger: float = 1.0


def serve(
    make_app: Callable[[], App],
    *,
    bind: tuple[str, int],
    tls: TlsContext | None = None,
    plain: tuple[str, int] | None = None,
    threads: int = 1024,
    grace: float = 8.0,
    timeouts: Timeouts = Timeouts(),
    waiting: Collection[str] = (),
    on_start: Callable[[App], None] | None = None,
    on_stop: Callable[[App], None] | None = None,
) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP; returns the exit status, 0 after a stop that was asked for.

    The application is made in the worker process, after the fork: *make_app*, then *on_start*, then requests. On the
    first signal *on_stop* runs in a thread of its own, beside requests that finish, for at most *grace* seconds
    (rounded up); a second signal ends what is left. An exception out of *make_app* or *on_start* is logged once and
    ends the process with 1; a worker that is killed later is started anew, with both called again.
    *bind*: host and port; an empty host listens on all addresses. *plain*: a second one, without TLS whatever the first
    speaks. *waiting*: paths whose requests wait for others.
    Raises: HamiError when the address cannot be listened on.
    """
    application = _Application(
        _Plan(make_app=make_app, on_start=on_start, on_stop=on_stop, tls=tls, threads=threads, grace=math.ceil(grace),
              timeouts=timeouts, waiting=frozenset(waiting)),
        [listen(*address, backlog=BACKLOG) for address in (bind, plain) if address is not None])
    arbiter_pid = os.getpid()
    try:
        _Arbiter(application).run()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
        if os.getpid() != arbiter_pid:
            _leave(status)
        return 1 if status == Arbiter.WORKER_BOOT_ERROR else status
    return 0


def _leave(status: int) -> NoReturn:
    """End this process at once: no exit handler of the parent, no wait for threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan(Generic[App]):
    """What ``serve`` was asked for."""

    make_app: Callable[[], App]
    on_start: Callable[[App], None] | None
    on_stop: Callable[[App], None] | None
    tls: TlsContext | None
    threads: int
    grace: int
    timeouts: Timeouts
    waiting: frozenset[str]


# gunicorn ships no types: its classes are Any to mypy, hence the ignored base classes below


class _Application(BaseApplication):  # type: ignore[misc]
    """gunicorn's settings, and the application, made when the worker asks for it."""

    def __init__(self, plan: _Plan[Any], listeners: list[socket.socket]) -> None:
        self.plan = plan
        self._listeners = listeners
        super().__init__(prog="hami")

    def load_config(self) -> None:
        plan = self.plan
        settings: dict[str, object] = {
            "bind": [f"fd://{listener.detach()}" for listener in self._listeners],
            "workers": 1,
            "worker_class": _Worker,
            "threads": plan.threads,
            "worker_connections": plan.threads * CONNECTIONS_PER_THREAD,
            "timeout": WORKER_SILENCE_SECONDS,
            "graceful_timeout": plan.grace,
            "keepalive": math.ceil(plan.timeouts.keep_alive),
            "limit_request_line": 8190,
            "limit_request_fields": 100,
            "limit_request_field_size": 8190,
            "http_protocols": "h1",
            "logger_class": _Logger,
            "preload_app": False,
            # a caller's word about who it speaks for counts for nothing
            "forwarded_allow_ips": "",
            "proxy_protocol": "off",
            "control_socket_disable": True,
            # the root file system of a container is often read-only
            "worker_tmp_dir": "/dev/shm" if os.access("/dev/shm", os.W_OK) else None,
        }
        if plan.tls is not None:
            settings |= {"certfile": plan.tls.cert_file, "keyfile": plan.tls.key_file, "ssl_context": plan.tls}
        for name, value in settings.items():
            self.cfg.set(name, value)

    def load(self) -> WSGIApplication:
        """The application, in the worker process; what goes wrong is said in one line and ends everything."""
        try:
            app: WSGIApplication = self.plan.make_app()
            if self.plan.on_start is not None:
                self.plan.on_start(app)
        except Exception:
            log.critical("cannot start", exc_info=True)
            sys.exit(Arbiter.WORKER_BOOT_ERROR)
        return app


class _Arbiter(Arbiter):  # type: ignore[misc]
    """The parent process: keeps the one worker running, passes on the wish to stop."""

    _stopping = False

    def init_signals(self) -> None:
        hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        super().init_signals()
        if hangup_ignored:  # started by nohup
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def signal(self, sig: int, frame: FrameType | None) -> None:
        """Remember *sig* for the main loop; the second wish to stop is one to hurry."""
        super().signal(signal.SIGQUIT if self._stopping and sig in _STOP_SIGNALS else sig, frame)

    def handle_term(self) -> None:
        """Stop; requests may finish."""
        raise StopIteration

    handle_int = handle_hup = handle_term

    def _disregard(self) -> None:
        """A second worker, or a new one beside the old one, would not know what the first has reserved."""

    handle_ttin = handle_ttou = handle_usr2 = handle_winch = _disregard

    def stop(self, graceful: bool = True) -> None:
        """End the worker; SIGTERM first when *graceful*."""
        self._stopping = True
        super().stop(graceful)

    def halt(self, reason: str | None = None, exit_status: int = 0) -> None:
        """Stop and exit; the reason was logged by the worker."""
        self.stop()
        sys.exit(exit_status)

    def spawn_worker(self) -> Any:
        """Start a worker, which takes a signal to stop only once it knows what to do with it."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        try:
            return super().spawn_worker()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)


class _Worker(ThreadWorker):  # type: ignore[misc]
    """The process that serves. All that is not ``handle`` runs in its main thread, the event loop."""

    alive: bool
    worker_connections: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._plan: _Plan[Any] = self.app.plan
        # connections that were given to the threads, those that still queue for one included
        self._busy: set[_Connection] = set()
        # those that a thread has closed, to be counted off in the next turn of the loop
        self._closed: SimpleQueue[_Connection] = SimpleQueue()
        self._stop_began: float | None = None

    # start and stop

    def init_process(self) -> None:
        # made here, after the fork: Python 3.13 does not start a thread that its parent has made
        self._stopper = threading.Thread(target=self._call_on_stop, name="stop", daemon=True)
        self._turns = _Turns()
        set_switch_interval()
        _allow_open_files(OPEN_FILES)
        super().init_process()

    def init_signals(self) -> None:
        super().init_signals()
        # a terminal sends these to parent and worker alike: the parent decides
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)

    def get_thread_pool(self) -> ThreadPoolExecutor:
        """Threads are started as they are needed."""
        return _Threads(self.cfg.threads, thread_name_prefix="request")

    def run(self) -> NoReturn:
        """Serve until told to stop, then let requests and the stop hook finish."""
        host, port, *_ = self.sockets[0].getsockname()
        log.info("serving", extra={"bind": f"{host}:{port}", "tls": self._plan.tls is not None,
                                   "threads": self._plan.threads})
        super().run()
        if self._stop_began is not None:
            self._stopper.join(max(0.0, self._stop_began + self._plan.grace - time.monotonic()))
        log.info("stopped", extra={"requests_cut": len(self._busy)})
        _leave(0)

    def is_parent_alive(self) -> bool:
        """Without its parent the worker stops as if told to."""
        self.alive = self.alive and super().is_parent_alive()
        return self.alive

    def set_accept_enabled(self, enabled: bool) -> None:
        """Called with False when there are connections enough, and first of all when the worker stops."""
        super().set_accept_enabled(enabled)
        if not enabled and not self.alive and self._stop_began is None:
            self._begin_stop()

    def _begin_stop(self) -> None:
        self._stop_began = time.monotonic()
        log.info("stopping", extra={"requests": len(self._busy)})
        self._stopper.start()
        for listener in self.sockets:
            self.accept(listener)  # those who are already connected were promised an answer
            listener.close()
        for conn in self.pending_conns:
            conn.timeout = min(conn.timeout, self._stop_began + STOP_KEEPALIVE_LINGER)

    def _call_on_stop(self) -> None:
        try:
            if self._plan.on_stop is not None and self.wsgi is not None:
                self._plan.on_stop(self.wsgi)
        except Exception:
            log.exception("stop hook failed")

    def handle_quit(self, sig: int, frame: FrameType | None) -> None:
        """End at once: the parent was told a second time."""
        os._exit(0)

    # connections

    def accept(self, listener: socket.socket) -> None:
        """Take what waits at *listener*; a connection gets a thread when it has something to say."""
        while self.nr_conns < self.worker_connections:
            try:
                client, address = listener.accept()
            except OSError as error:
                if error.errno in _OUT_OF_FILES:
                    self.worker_connections = max(1, self.nr_conns)
                    log.warning("fewer connections from now on", extra={
                        "connections": self.worker_connections, "problem": error.strerror})
                elif error.errno not in (errno.EAGAIN, errno.ECONNABORTED):
                    raise
                return
            self.nr_conns += 1
            tls = self.cfg.is_ssl and listener is self.sockets[0]
            conn = _Connection(self.cfg, client, address, listener.getsockname(), self._plan.timeouts, tls=tls)
            if conn.has_unread():
                conn.data_ready = True  # else its thread would look anew, with a selector of its own
                self.enqueue_req(conn)
            else:
                self._park(conn)

    def _park(self, conn: _Connection) -> None:
        conn.timeout = time.monotonic() + self._plan.timeouts.head
        self.pending_conns.append(conn)
        self.poller.register(conn.sock, EVENT_READ, partial(self.on_pending_socket_readable, conn))

    def enqueue_req(self, conn: _Connection) -> None:
        """Give *conn* to the threads."""
        self._busy.add(conn)
        self.tpool.submit(self._serve, conn)

    def _serve(self, conn: _Connection) -> None:
        """In a thread: answer *conn*, then close it, or let the loop wait for its next request.

        The loop is not woken for a connection that was closed, unless it waits for just that.
        """
        keep = False
        try:
            keep = self.handle(conn)
        except Exception:
            log.exception("connection failed")
        if keep:
            self.method_queue.defer(self._keep, conn)
            return
        conn.close()
        self._closed.put(conn)
        if self._stop_began is not None or not self._accepting:
            self.method_queue.defer(lambda: None)

    def _keep(self, conn: _Connection) -> None:
        """Wait for the next request of *conn*."""
        self._busy.discard(conn)
        if conn.parser.unreader.buf.getvalue():
            self.enqueue_req(conn)
            return
        conn.set_timeout()
        if not self.alive:
            conn.timeout = min(conn.timeout, time.monotonic() + STOP_KEEPALIVE_LINGER)
        self.keepalived_conns.append(conn)
        self.poller.register(conn.sock, EVENT_READ, partial(self.on_client_socket_readable, conn))

    def _count_off(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                self._busy.discard(self._closed.get_nowait())
                self.nr_conns -= 1

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        """One turn of the loop; shorter ones while someone waits for a thread."""
        if len(self._busy) > self._plan.threads or self._stop_began is not None:
            timeout = min(timeout, self._plan.timeouts.timeout / 4, LOOK_SECONDS)
        super().wait_for_and_dispatch_events(timeout)
        self._count_off()

    def murder_pending(self) -> None:
        """Called in each turn: close what has timed out, and what stands in the way of others."""
        if self.nr_conns >= self.worker_connections:
            oldest = next((conns[0] for conns in (self.pending_conns, self.keepalived_conns) if conns), None)
            if oldest is not None:
                oldest.timeout = -math.inf
        super().murder_pending()
        wanted = len(self._busy) if self._stop_began is not None else len(self._busy) - self._plan.threads
        if wanted > 0:
            self._cut_slow_clients(wanted)

    def _cut_slow_clients(self, wanted: int) -> None:
        """Take threads back from up to *wanted* clients that have kept one waiting for longest."""
        timeouts = self._plan.timeouts
        limit = time.monotonic() - (timeouts.timeout if self._stop_began is None else timeouts.linger)
        waiting = [(since, conn) for conn in self._busy
                   if (since := conn.reading_since) is not None and since <= limit and not conn.has_unread()]
        for _, conn in sorted(waiting, key=lambda entry: entry[0])[:wanted]:
            conn.cut()

    # in a thread

    def handle(self, conn: _Connection) -> Any:
        """Serve a request of *conn*, and those that follow at once; whether the connection stays.

        The way through the event loop costs a request two changes of thread, half of what all the rest costs.
        """
        keep = super().handle(conn)
        while keep is True and self._is_spare() and conn.speaks(STAY_SECONDS):
            keep = super().handle(conn)
        if not keep:
            conn.linger()
        return keep

    def handle_request(self, req: Any, conn: _Connection) -> Any:
        """Let the application answer; whether the connection stays."""
        if req.path in self._plan.waiting:
            return super().handle_request(req, conn)
        with self._turns.one():
            return super().handle_request(req, conn)

    def _is_spare(self) -> bool:
        """This thread may wait for a client: there are enough for others, and no end is near."""
        return self.alive and 2 * len(self._busy) <= self._plan.threads

    def handle_error(self, req: Any, client: socket.socket, addr: Any, exc: Exception) -> None:
        """Answer what cannot be read as HTTP, unless there is no TLS to answer over."""
        if isinstance(exc, ssl.SSLError):
            self.log.complain("TLS failed", addr[0], exc.reason or str(exc))
        else:
            super().handle_error(req, client, addr, exc)


class _Threads(ThreadPoolExecutor):
    """Makes do with the threads that it has when the system gives it no more: a container's limit of processes."""

    _complained = False

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()  # no part of its documented face; the same in 3.11 to 3.14
        except RuntimeError as error:
            if not self._threads:
                raise
            if not self._complained:
                self._complained = True
                log.warning("fewer threads than asked for", extra={"threads": len(self._threads), "problem": error})


class _Turns:
    """Lets one thread compute at a time, in the order of arrival.

    Threads that fight for the interpreter cost each other more than the work itself, and without an order some wait for
    long. Whoever keeps its turn for long waits for something else: others then go on without one.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._line: deque[threading.Lock] = deque()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """A turn, or none after TURN_SECONDS."""
        has_turn = self._take()
        try:
            yield
        finally:
            if has_turn:
                self._pass_on()

    def _take(self) -> bool:
        with self._guard:
            if not self._taken:
                self._taken = True
                return True
            place = threading.Lock()
            place.acquire()
            self._line.append(place)
        if place.acquire(timeout=TURN_SECONDS):
            return True
        with self._guard:
            if place not in self._line:
                return True  # it has come just now
            self._line.remove(place)
            return False

    def _pass_on(self) -> None:
        with self._guard:
            if self._line:
                self._line.popleft().release()
            else:
                self._taken = False


def _allow_open_files(wanted: int) -> None:
    """Raise the soft limit, often 1024, as far as the hard one lets us, to *wanted*."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class _Connection(TConn):  # type: ignore[misc]
    """One client. *reading_since*: since when a thread has been waiting for its bytes; the loop looks at it."""

    initialized: bool
    data_ready: bool
    sock: socket.socket

    def __init__(self, cfg: Any, sock: socket.socket, client: Any, server: Any, timeouts: Timeouts, *,
                 tls: bool) -> None:
        super().__init__(cfg, sock, client, server)
        self.timeouts = timeouts
        self.tls = tls
        self.reading_since: float | None = None

    def init(self) -> None:
        """Called before each request, with a blocking socket; the first time it makes the handshake."""
        if not self.initialized:
            self.initialized = True
            if self.tls:
                self._shake_hands()
            self.parser = _Parser(self)
        self.sock.settimeout(self.timeouts.write)

    def _shake_hands(self) -> None:
        self.sock.settimeout(self.timeouts.head)
        self.sock = secured = ssl_wrap_socket(self.sock, self.cfg)
        self.reading_since = time.monotonic()
        try:
            secured.do_handshake()
        except TimeoutError:
            raise NoMoreData(b"") from None
        finally:
            self.reading_since = None

    def speaks(self, seconds: float) -> bool:
        """Whether the client sends something, or leaves, within so many seconds."""
        if self.parser.unreader.buf.getvalue() or (isinstance(self.sock, ssl.SSLSocket) and self.sock.pending()):
            return True
        return self.has_unread(seconds)

    def has_unread(self, seconds: float = 0.0) -> bool:
        """Whether bytes of the client, or its end, lie in the kernel within so many seconds; any thread may ask."""
        if (number := self.sock.fileno()) < 0:
            return False
        poller = select.poll()
        poller.register(number, select.POLLIN)
        return bool(poller.poll(1000 * seconds))

    def set_timeout(self) -> None:
        """Start the time that the client may leave between two requests."""
        self.timeout = time.monotonic() + self.timeouts.keep_alive

    def cut(self) -> None:
        """End it from another thread: whoever waits for its bytes sees the end of them."""
        try:
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)
        except OSError:
            pass  # already gone, or not yet wrapped: the next turn sees to it

    def linger(self) -> None:
        """Say that nothing more will come, and wait for the client to have read: unread bytes would reset it."""
        deadline = time.monotonic() + self.timeouts.linger
        self.reading_since = time.monotonic()
        unread = LINGER_BYTES
        try:
            self.sock.settimeout(self.timeouts.linger)
            self.sock.shutdown(socket.SHUT_WR)
            while unread > 0 and (left := deadline - time.monotonic()) > 0:
                self.sock.settimeout(left)
                if not (data := self.sock.recv(4096)):
                    break
                unread -= len(data)
        except OSError:
            pass  # it has left, or has had its time

    def close(self, graceful: bool = False) -> None:
        """Close the socket; called in the loop, which must not wait for anybody (``linger`` did)."""
        util.close(self.sock)


class _Parser(RequestParser):  # type: ignore[misc]
    """Reads requests from one connection, each with its deadlines."""

    def __init__(self, conn: _Connection) -> None:
        super().__init__(conn.cfg, conn.sock, conn.client)
        self._timeouts = conn.timeouts
        self._scheme = "https" if conn.tls else "http"
        self.unreader: _Unreader = _Unreader(conn)

    def __next__(self) -> Any:
        started = time.monotonic()
        self.unreader.expect(started, started + self._timeouts.head)
        message = super().__next__()
        message.scheme = self._scheme
        self.unreader.expect(started, started + self._timeouts.request)
        return message


class _Unreader(SocketUnreader):  # type: ignore[misc]
    """Receives from one connection, until a deadline."""

    def __init__(self, conn: _Connection) -> None:
        super().__init__(conn.sock)
        self._conn = conn
        self._started = self._deadline = 0.0

    def expect(self, started: float, deadline: float) -> None:
        """All that is read from now on belongs to a request that *started* then and must be there by *deadline*."""
        self._started, self._deadline = started, deadline

    def chunk(self, size_hint: int | None = None) -> bytes:
        """What comes next. Raises: NoMoreData when the deadline has passed."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise NoMoreData(b"")
        usual = self.sock.gettimeout()
        self.sock.settimeout(left if usual is None else min(left, usual))
        self._conn.reading_since = self._started
        try:
            return bytes(super().chunk(size_hint))
        except TimeoutError:
            raise NoMoreData(b"") from None
        finally:
            self._conn.reading_since = None
            self.sock.settimeout(usual)


class _Logger(Logger):  # type: ignore[misc]
    """gunicorn's lines in our log; no access log."""

    def __init__(self, cfg: Any) -> None:
        self._complaints_lock = threading.Lock()
        self._next_complaint = -math.inf
        self._kept_back = 0
        super().__init__(cfg)

    def setup(self, cfg: Any) -> None:
        self.cfg = cfg
        self._access_log_enabled = False
        self.error_log.propagate = True

    def error(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Log it, unless it repeats that the application could not be made."""
        if not (msg.startswith("Worker (pid:%s) exited") and args[-1] == Arbiter.WORKER_BOOT_ERROR):
            super().error(msg, *args, **kwargs)

    def warning(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Log it, in our words when it is about a request that is no HTTP."""
        if msg.startswith(_BAD_REQUEST):
            client, _, problem = msg.removeprefix(_BAD_REQUEST).partition(": ")
            self.complain("bad request", client, problem)
        else:
            super().warning(msg, *args, **kwargs)

    def complain(self, message: str, client: str, problem: str) -> None:
        """Say what a client did wrong, once a second at most: whoever sends garbage must not fill the log with it."""
        with self._complaints_lock:
            if (now := time.monotonic()) < self._next_complaint:
                self._kept_back += 1
                return
            kept_back, self._kept_back, self._next_complaint = self._kept_back, 0, now + 1.0
        log.info(message, extra={"client": client, "problem": problem, "kept_back": kept_back})
