"""Serves one WSGI application with gunicorn's threaded worker: one worker process, HTTP/1.1 with or without TLS.

There is one worker because assumed pods live in its memory. gunicorn's threads wait for a client as long as it likes;
`Connection` bounds that. This module knows nothing of Kubernetes.

Beside gunicorn's documentation (settings, hooks, custom applications and workers), it uses the names in UNDOCUMENTED.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from gunicorn.app.base import BaseApplication
from gunicorn.workers import gthread

from hami.runtime.options import Address
from hami.runtime.signals import STOP_SIGNALS
from hami.web.connections import Connection, TlsContexts, listen
from hami.web.rights import RIGHT

log = logging.getLogger(__name__)

UNDOCUMENTED = (
    "gthread.DEFAULT_WORKER_DATA_TIMEOUT",
    "gthread.ThreadWorker.handle",
    "gthread.TConn.sock",
)

# a thread waits so long for the client's next request before the event loop takes the connection back, which costs
# more than most requests
KEEP_ALIVE_MS = 50
ANSWER_S = 60.0  # for which a client may take its answer
# for which a client may send nothing while there is no room for others, or at the stop
SILENT_S = 1.0
BOOT_FAILED = 3  # the exit status of a worker that is not started again

# gunicorn has no type information: its classes are Any to mypy, hence the ignored base classes below


def serve(
    make_app: Callable[[], WSGIApplication],
    *,
    bind: tuple[str, int],
    tls: TlsContexts | None = None,
    plain: tuple[str, int] | None = None,
    threads: int,
    grace: int = 8,
    read_seconds: float = 10.0,
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """Serves until SIGTERM, SIGINT or SIGQUIT, then ends this process with status 0.

    *make_app* runs in the worker process, after the fork. An exception from it is logged and ends the process with 3.
    A worker that dies later is replaced, and *make_app* runs again.
    After the signal *on_stop* runs in a thread of its own while requests finish, for at most *grace* seconds; SIGINT or
    SIGQUIT then shorten this to two.
    Requests of clients that may not do what kube-scheduler does are worked on one at a time, so that they take little
    from those that may. The application must not wait for anything in them. None waits for another to arrive, or for
    its answer to be taken.
    *bind*: host and port; an empty host listens on all addresses. *plain*: a second address that never uses TLS.
    *read_seconds*: from the first byte to the end of a request; a fifth of it while most threads are busy.
    Raises: HamiError if an address cannot be listened on.
    """
    listeners = [listen(*address, backlog=2048) for address in (bind, plain) if address is not None]
    settings = {
        "bind": [f"fd://{listener.detach()}" for listener in listeners],
        "workers": 1,
        "worker_class": _Worker,
        "threads": threads,
        "worker_connections": 2 * threads,
        "timeout": 60,
        # longer than the 90 s of Go's clients, which do not repeat a POST on a connection that we close
        "graceful_timeout": grace,
        "keepalive": 120,
        "limit_request_fields": 32,
        "limit_request_field_size": 4096,  # 128 KiB, which a slow client can occupy
        "forwarded_allow_ips": "",  # a client's X-Forwarded-* headers are never believed
        "errorlog": None,
        "loglevel": "warning",
        "control_socket_disable": True,
        "on_starting": lambda _: _log_as_we_do(),
        "when_ready": lambda _: _ignore_signals(),
        "post_worker_init": lambda worker: worker.note_start(),
        "worker_exit": lambda _, worker: worker.end_process(),
    }
    # a worker is forked with these signals blocked, until it has its own handlers: the arbiter's would lose them
    os.register_at_fork(
        before=lambda: _mask(signal.SIG_BLOCK), after_in_parent=lambda: _mask(signal.SIG_UNBLOCK)
    )
    _Application(settings, make_app, tls, read_seconds, on_stop).run()


def _mask(how: int) -> None:
    signal.pthread_sigmask(how, STOP_SIGNALS)


def _log_as_we_do() -> None:
    """gunicorn's messages go to our log."""
    logger = logging.getLogger("gunicorn.error")
    logger.propagate = True


def _ignore_signals() -> None:
    """Disables gunicorn's reload, re-execution and further workers: the one worker holds state."""
    for number in (signal.SIGHUP, signal.SIGTTIN, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


class _Application(BaseApplication):  # type: ignore[misc]
    """The application of gunicorn, with what its worker needs."""

    def __init__(
        self,
        settings: dict[str, object],
        make_app: Callable[[], WSGIApplication],
        tls: TlsContexts | None,
        read_seconds: float,
        on_stop: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._make_app = make_app
        self.tls = tls
        self.read_seconds = read_seconds
        self.on_stop = on_stop
        super().__init__()

    def load_config(self) -> None:
        """Called once."""
        for name, value in self._settings.items():
            self.cfg.set(name, value)
        # a request reads some twenty settings, which gunicorn looks up one by one unless they are plain attributes
        self.cfg.__dict__.update(
            {name: setting.get() for name, setting in self.cfg.settings.items()}
        )

    def load(self) -> WSGIApplication:
        """Called in the worker, which has its handlers of signals by now."""
        for number in STOP_SIGNALS:  # all of them let requests finish
            signal.signal(number, signal.getsignal(signal.SIGTERM))
        _mask(signal.SIG_UNBLOCK)
        app = self._make_app()

        def describe_client(
            environ: WSGIEnvironment, start_response: StartResponse
        ) -> Iterable[bytes]:
            client: Connection = environ["gunicorn.socket"]
            environ["wsgi.url_scheme"], environ[RIGHT] = client.scheme, client.right
            return app(environ, start_response)

        return describe_client


class _Listener:
    """A listening socket of gunicorn, whose clients *connect* makes connections of."""

    def __init__(self, listener: Any, connect: Callable[[Any], Connection]) -> None:
        self._listener = listener
        self._connect = connect

    def accept(self) -> tuple[Connection, object]:
        """Returns the next client. Raises: BlockingIOError if there is none, for whatever reason."""
        try:
            client, address = self._listener.accept()
        except OSError as error:  # the client has gone
            raise BlockingIOError(errno.EAGAIN, "no client") from error
        return self._connect(client), address

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


class _Threads(ThreadPoolExecutor):
    """The threads that handle connections, and as many for those through an address on loopback, which never wait for a
    thread that others have."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._local = ThreadPoolExecutor(most)

    def submit(self, handle: Callable[[Any], object], conn: Any) -> Future[object]:  # type: ignore[override]
        """Handles a connection."""
        if conn.sock.is_local:
            return self._local.submit(handle, conn)
        return super().submit(handle, conn)


class _Worker(gthread.ThreadWorker):  # type: ignore[misc]
    """The process that serves. Everything but ``handle`` runs in its main thread, the event loop, which never waits
    for one client."""

    def __init__(
        self, age: int, ppid: int, sockets: list[Any], app: _Application, *rest: Any
    ) -> None:
        self._application = app
        self._clients: dict[Connection, None] = {}
        # of untrusted clients: the interpreter runs one thread at a time anyway
        turn = threading.Lock()
        self._listeners = []
        tls = app.tls
        for listener in sockets:
            address = Address(*listener.getsockname()[:2])
            connect = partial(
                Connection,
                clients=self._clients,
                tls=tls,
                read_until=self._read_until,
                write_until=lambda: time.monotonic() + ANSWER_S,
                turn=turn,
                is_local=address.is_loopback,
            )
            self._listeners.append(_Listener(listener, connect))
            tls = None  # of the second address
        self._handled = 0  # connections that threads have
        self._lock = threading.Lock()  # guards _handled
        self._stopper: threading.Thread | None = None
        self._has_started = False
        gthread.DEFAULT_WORKER_DATA_TIMEOUT = KEEP_ALIVE_MS / 1000
        super().__init__(age, ppid, self._listeners, app, *rest)

    def get_thread_pool(self) -> ThreadPoolExecutor:
        """Called once, by gunicorn."""
        return _Threads(self.cfg.threads)

    def note_start(self) -> None:
        """Called when the application has been made."""
        self._has_started = True
        log.info(
            "serving",
            extra={
                "bind": "%s:%s" % self._listeners[0].getsockname()[:2],
                "tls": self._application.tls is not None,
            },
        )

    def _read_until(self) -> float:
        seconds = self._application.read_seconds
        if self._is_busy():
            seconds /= 5
        return time.monotonic() + seconds

    def _is_busy(self) -> bool:
        return bool(2 * self._handled > self.cfg.threads)

    def notify(self) -> None:
        """Called in each turn of the event loop."""
        super().notify()
        if not self.alive:
            self._begin_stop()
        if not self.alive or len(self._clients) >= self.cfg.worker_connections:
            self._end_silent_clients()

    def _end_silent_clients(self) -> None:
        latest = time.monotonic() - SILENT_S
        for client in list(self._clients):
            if client.since >= latest:
                return  # the next ones are younger
            if client.is_silent:
                client.end()

    def handle(self, conn: Any) -> object:
        """In a thread: serves a request, and those that follow soon. Returns whether the connection stays open."""
        with self._lock:
            self._handled += 1
        client: Connection = conn.sock
        keep: object = True
        while keep is True:
            with client.taking_turns():
                keep = super().handle(conn)
            if keep is True and not client.has_data(self._keep_alive_ms()):
                break
        if not keep:
            client.finish()
        with self._lock:
            self._handled -= 1
        return keep

    def _keep_alive_ms(self) -> int:
        if not self.alive or self._is_busy():
            return 0
        return KEEP_ALIVE_MS

    def _begin_stop(self) -> threading.Thread:
        if self._stopper is None:
            log.info("stopping")
            self._stopper = threading.Thread(
                target=self._application.on_stop, name="stop", daemon=True
            )
            self._stopper.start()
            for listener in self._listeners:
                listener.close()
        return self._stopper

    def end_process(self) -> None:
        """Ends the process: a normal exit would wait for all threads."""
        if not self._has_started:
            os._exit(BOOT_FAILED)
        self._begin_stop().join(self.cfg.graceful_timeout)
        log.info("stopped")
        os._exit(0)
