"""Serves one WSGI application with gunicorn's threaded worker: one worker process, HTTP/1.1 with or without TLS.

There is one worker because assumed pods live in its memory. gunicorn trusts its clients in a few places; the subclasses
below bound them: a new connection holds no thread until it sends something, reading a request has a deadline, and a
client that does not close its connection holds up nobody. This module knows nothing of Kubernetes.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import resource
import select
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from selectors import EVENT_READ
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar
from wsgiref.types import WSGIApplication

from gunicorn import util
from gunicorn.arbiter import Arbiter
from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.http.errors import NoMoreData
from gunicorn.http.parser import RequestParser
from gunicorn.workers.gthread import STOP_KEEPALIVE_LINGER, TConn, ThreadWorker

from hami.runtime.interpreter import set_switch_interval
from hami.runtime.once import OncePerKey
from hami.web.pages import listen
from hami.web.tls import TlsContext

log = logging.getLogger(__name__)

App = TypeVar("App", bound=WSGIApplication)

BACKLOG = 2048
RECEIVE_BYTES = 65_536
OTHER_FILES = 256  # file descriptors that are kept for everything but connections
WRITE_SECONDS = 60.0  # that a client may take to accept an answer
STAY_MILLISECONDS = 50  # that a thread waits for its client's next request; kube-scheduler sends one after the other
CHECK_SECONDS = 0.25  # between two checks for slow clients
CLOSE_SECONDS = 1.0  # that a client may take to close its side after the last answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds that a client may take.

    *read*: for the first byte, and from then to the end of the request's body. *read_when_full*: the same while other
    requests wait for a thread, or the server stops. *keep_alive*: between two requests; longer than the 90 s of Go's
    http.DefaultTransport, because a POST on a closing connection is not sent again.
    """

    read: float = 30.0
    read_when_full: float = 2.0
    keep_alive: int = 120


def serve(make_app: Callable[[], App], *, bind: tuple[str, int], tls: TlsContext | None = None,
          plain: tuple[str, int] | None = None, threads: int = 1024, grace: float = 8.0,
          timeouts: Timeouts = Timeouts(), on_stop: Callable[[App], None] = lambda app: None) -> int:
    """Serves until SIGTERM, SIGINT or SIGHUP; returns the exit status, 0 after such a signal.

    *make_app* runs in the worker process, after the fork. An exception from it is logged and ends the process with 1.
    A worker that dies later is replaced, and *make_app* runs again.
    On the first signal *on_stop* runs in a thread of its own while requests finish, for at most *grace* seconds,
    rounded up; a second signal stops at once.
    *bind*: host and port; an empty host listens on all addresses. *plain*: a second address that never uses TLS.
    Raises: HamiError if an address cannot be listened on.
    """
    def load() -> App:
        try:
            return make_app()
        except Exception:
            log.critical("cannot start", exc_info=True)
            os._exit(Arbiter.WORKER_BOOT_ERROR)

    listeners = [listen(*address, backlog=BACKLOG) for address in (bind, plain) if address is not None]
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    settings = {
        "bind": [f"fd://{listener.detach()}" for listener in listeners],
        "workers": 1, "worker_class": _Worker, "threads": threads,
        "worker_connections": max(threads, min(4 * threads, open_files - OTHER_FILES)),
        "timeout": 60, "graceful_timeout": math.ceil(grace), "keepalive": timeouts.keep_alive,
        "limit_request_line": 8190,
        "forwarded_allow_ips": "",  # a client's X-Forwarded-* headers are never believed
        "when_ready": partial(_handle_signals, ignore_hangup=signal.getsignal(signal.SIGHUP) is signal.SIG_IGN),
        "worker_int": lambda worker: os._exit(0),
        "logger_class": _Logger, "loglevel": "warning", "control_socket_disable": True,
        # a container's root file system is often read-only
        "worker_tmp_dir": "/dev/shm" if os.access("/dev/shm", os.W_OK) else None,
    }
    files = {"certfile": tls.cert_file, "keyfile": tls.key_file, "ssl_context": tls} if tls is not None else {}
    # the parts of gunicorn's BaseApplication that are used, and our own; plain_cfg: for connections without TLS
    application = SimpleNamespace(cfg=_config(settings | files), wsgi=load, plain_cfg=_config(settings),
                                  on_stop=on_stop, timeouts=timeouts)
    arbiter_pid = os.getpid()
    try:
        Arbiter(application).run()
    except SystemExit as end:
        if os.getpid() != arbiter_pid:
            os._exit(1)  # the worker has failed; a normal exit would wait for its threads
        return 1 if end.code == Arbiter.WORKER_BOOT_ERROR else int(end.code or 0)
    return 0


def _config(settings: dict[str, object]) -> Config:
    config = Config(prog="hami")
    for name, value in settings.items():
        config.set(name, value)
    return config


def _handle_signals(arbiter: Arbiter, *, ignore_hangup: bool) -> None:
    """Disables gunicorn's reload, re-execution and change of the number of workers: the one worker holds state."""
    requests = itertools.chain([signal.SIGTERM], itertools.repeat(signal.SIGQUIT))  # SIGQUIT: at once
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _, frame: arbiter.signal(next(requests), frame))
    for number in (signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH):
        signal.signal(number, signal.SIG_IGN)
    if ignore_hangup:  # started by nohup
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


# gunicorn has no type information: its classes are Any to mypy, hence the ignored base classes below


class _Worker(ThreadWorker):  # type: ignore[misc]
    """The process that serves. Everything but ``handle`` runs in its main thread, the event loop, which never waits
    for one client."""

    def get_thread_pool(self) -> ThreadPoolExecutor:
        """Starts threads as they are needed."""
        return _Threads(self.cfg.threads, thread_name_prefix="request")

    def init_process(self) -> None:
        self._busy: set[_Connection] = set()  # connections that a thread serves, or that wait for a thread
        self._next_check = -math.inf
        self._stopper: threading.Thread | None = None
        super().init_process()

    def run(self) -> NoReturn:
        """Serves until told to stop, then lets requests and *on_stop* finish."""
        for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends these to both processes: the parent decides
            signal.signal(number, signal.SIG_IGN)
        set_switch_interval()
        host, port, *_ = self.sockets[0].getsockname()
        log.info("serving", extra={
            "bind": f"{host}:{port}", "tls": bool(self.cfg.is_ssl), "threads": self.cfg.threads})
        super().run()
        if self._stopper is not None:
            self._stopper.join(self.cfg.graceful_timeout)
        log.info("stopped", extra={"requests_cut": len(self._busy)})
        os._exit(0)  # a normal exit would wait for all threads

    def set_accept_enabled(self, enabled: bool) -> None:
        """Also begins the stop: gunicorn calls this first, once `alive` is false."""
        super().set_accept_enabled(enabled)
        if not enabled and not self.alive and self._stopper is None:
            log.info("stopping", extra={"requests": len(self._busy)})
            self._stopper = threading.Thread(target=self.app.on_stop, args=(self.wsgi,), name="stop", daemon=True)
            self._stopper.start()
            for listener in self.sockets:
                self.accept(listener)  # these clients are connected already
                listener.close()
            for conn in self.pending_conns:
                conn.timeout = min(conn.timeout, time.monotonic() + STOP_KEEPALIVE_LINGER)

    def accept(self, listener: Any) -> None:
        """Accepts what waits at *listener*. A connection gets a thread once it can be read from."""
        cfg = self.cfg if listener is self.sockets[0] else self.app.plain_cfg
        while self.nr_conns < self.worker_connections:
            try:
                client, address = listener.accept()
            except OSError:
                return  # there are no more
            self.nr_conns += 1
            conn = _Connection(cfg, client, address, listener.getsockname())
            conn.timeout = time.monotonic() + self.app.timeouts.read
            self.pending_conns.append(conn)
            self.poller.register(client, EVENT_READ, partial(self.on_pending_socket_readable, conn))

    def enqueue_req(self, conn: _Connection) -> None:
        """Gives *conn* to the threads."""
        self._busy.add(conn)
        super().enqueue_req(conn)

    def finish_request(self, conn: _Connection, fs: Future[bool]) -> None:
        """Takes *conn* back from its thread."""
        self._busy.discard(conn)
        super().finish_request(conn, fs)

    def handle(self, conn: _Connection) -> Any:
        """In a thread: serves one request and those that follow at once. Returns whether the connection stays open.

        Each return to the event loop costs a request two changes of thread, a quarter of its CPU time.
        """
        while True:
            conn.began = time.monotonic()
            keep = super().handle(conn)
            spare = self.alive and 2 * len(self._busy) <= self.cfg.threads
            if not (keep and spare and conn.continues(STAY_MILLISECONDS)):
                break
        if not keep:
            conn.is_reading = True
            util.close_graceful(conn.sock, CLOSE_SECONDS)
        return keep

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        """Runs one turn of the event loop."""
        super().wait_for_and_dispatch_events(min(timeout, CHECK_SECONDS))
        if (now := time.monotonic()) >= self._next_check:
            self._next_check = now + CHECK_SECONDS
            self._end_slow_clients(now)

    def _end_slow_clients(self, now: float) -> None:
        timeouts: Timeouts = self.app.timeouts
        full = len(self._busy) > self.cfg.threads or not self.alive
        limit = timeouts.read_when_full if full else timeouts.read
        for conn in self._busy:
            if conn.is_reading and now - conn.began > limit:
                conn.end_reading()
        if self.nr_conns >= self.worker_connections:  # the longest idle connection makes room
            for idle in [conns[0] for conns in (self.pending_conns, self.keepalived_conns) if conns][:1]:
                idle.timeout = -math.inf


class _Threads(ThreadPoolExecutor):
    """Continues with the threads it has if the system starts no more, because of a pod's limit on processes."""

    _warned = False

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError as error:
            if not self._threads:
                raise
            if not self._warned:
                self._warned = True
                log.warning("fewer threads than configured", extra={"threads": len(self._threads), "problem": error})


class _Connection(TConn):  # type: ignore[misc]
    """One client. *is_reading*: a thread waits for its bytes; *began*: since when that thread has it."""

    began = 0.0
    is_reading = False

    def init(self) -> None:
        """Called before each request; the first time it makes the TLS handshake."""
        if not self.initialized:
            self.is_reading = True
            super().init()
            self.is_reading = False
            self.parser = RequestParser(self.cfg, self._receive(), self.client)
        self.sock.settimeout(WRITE_SECONDS)

    def _receive(self) -> Iterator[bytes]:
        """Yields the bytes of the client. An end of the stream within a request or its body is an error."""
        while True:
            self.is_reading = True
            data = self.sock.recv(RECEIVE_BYTES)
            self.is_reading = False
            if not data:
                raise NoMoreData(b"")
            yield data

    def continues(self, milliseconds: int) -> bool:
        """Reports whether the client sends its next request, or closes, within that time."""
        if self.parser.unreader.buf.getvalue() or (isinstance(self.sock, ssl.SSLSocket) and self.sock.pending()):
            return True
        poller = select.poll()
        poller.register(self.sock, select.POLLIN)
        return bool(poller.poll(milliseconds))

    def end_reading(self) -> None:
        """Lets the thread that reads see the end of the stream; it can still answer. Called from another thread."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_RD)  # not TLS's own, whose state belongs to that thread

    def close(self, graceful: bool = False) -> None:
        """Closes the socket without waiting: ``_Worker.handle`` has waited in its thread."""
        util.close(self.sock)


class _Logger(Logger):  # type: ignore[misc]
    """Writes gunicorn's log lines to our log."""

    def setup(self, cfg: Config) -> None:
        super().setup(cfg)
        self.error_log.handlers.clear()
        self.error_log.propagate = True
        self._bad_clients = OncePerKey()

    def error(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Logs an error, unless it repeats that the application cannot start."""
        if args[-1:] != (Arbiter.WORKER_BOOT_ERROR,) and not msg.startswith(("Shutting down", "Reason")):
            super().error(msg, *args, **kwargs)

    def warning(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Logs a warning. Invalid requests are logged once for each client, because they could fill the log."""
        prefix, _, rest = msg.partition("Invalid request from ip=")
        client, _, problem = rest.partition(": ")
        if prefix or not rest:
            super().warning(msg, *args, **kwargs)
        elif self._bad_clients.is_new(client):
            log.info("bad request", extra={"client": client, "problem": problem})
