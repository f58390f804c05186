"""Serves one WSGI application with gunicorn's threaded worker: one worker process, HTTP/1.1 with or without TLS.

There is one worker because assumed pods live in its memory. gunicorn's threads wait for a client as long as it likes;
the worker below and its connections bound that: a silent client is given back to the event loop, a request must arrive
before a deadline, and a client that does not close its connection does not delay others. This module knows nothing of
Kubernetes.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from wsgiref.types import WSGIApplication

from gunicorn import sock, util
from gunicorn.arbiter import Arbiter
from gunicorn.config import Config
from gunicorn.workers.gthread import ThreadWorker

from hami.runtime.signals import STOP_SIGNALS
from hami.web.bounded import listen
from hami.web.connection import Connection
from hami.web.tls import TlsContext

log = logging.getLogger(__name__)

# a thread waits so long for the client's next request before the event loop takes the connection back, which costs
# more than most requests
KEEP_ALIVE_MS = 50


def serve(make_app: Callable[[], WSGIApplication], *, bind: tuple[str, int], tls: TlsContext | None = None,
          plain: tuple[str, int] | None = None, threads: int, grace: int = 8, read_seconds: float = 10.0,
          on_stop: Callable[[], None] = lambda: None) -> None:
    """Serves until SIGTERM, SIGINT or SIGQUIT, then ends this process with status 0.

    *make_app* runs in the worker process, after the fork. An exception from it is logged and ends the process with 3.
    A worker that dies later is replaced, and *make_app* runs again.
    After the signal *on_stop* runs in a thread of its own while requests finish, for at most *grace* seconds; SIGINT or
    SIGQUIT then shorten this to two.
    *bind*: host and port; an empty host listens on all addresses. *plain*: a second address that never uses TLS.
    *read_seconds*: from the first byte to the end of a request; a fifth of it while most threads are busy.
    Raises: HamiError if an address cannot be listened on.
    """
    listeners = [listen(*address, backlog=2048) for address in (bind, plain) if address is not None]
    settings = {
        "bind": [f"fd://{listener.detach()}" for listener in listeners],
        "workers": 1, "worker_class": _Worker, "threads": threads, "worker_connections": 2 * threads, "timeout": 60,
        # longer than the 90 s of Go's clients, which do not repeat a POST on a connection that we close
        "graceful_timeout": grace, "keepalive": 120, "when_ready": _ignore_signals,
        "limit_request_fields": 32, "limit_request_field_size": 4096,  # 128 KiB, which a slow client can occupy
        "forwarded_allow_ips": "",  # a client's X-Forwarded-* headers are never believed
        # a normal exit would wait for all threads
        "worker_exit": lambda _, worker: os._exit(0 if worker.booted else Arbiter.WORKER_BOOT_ERROR),
        "errorlog": None, "loglevel": "warning", "control_socket_disable": True,
    }
    # gunicorn wants to see a file, and does not read it
    files = {"certfile": os.devnull, "ssl_context": tls} if tls is not None else {}
    # the parts of gunicorn's BaseApplication that are used, and our own; plain_cfg: for connections without TLS
    arbiter = Arbiter(SimpleNamespace(cfg=_config(settings | files), plain_cfg=_config(settings), wsgi=make_app,
                                      on_stop=on_stop, read_seconds=read_seconds))
    arbiter.log.error_log.propagate = True  # gunicorn's messages go to our log
    # a worker is forked with these signals blocked, until it has its own handlers: the arbiter's would lose them
    os.register_at_fork(before=lambda: _mask(signal.SIG_BLOCK), after_in_parent=lambda: _mask(signal.SIG_UNBLOCK))
    arbiter.run()


def _config(settings: dict[str, object]) -> Config:
    config = Config(prog="hami")
    for name, value in settings.items():
        config.set(name, value)
    # a request reads some twenty settings, which gunicorn looks up one by one unless they are plain attributes
    vars(config).update({name: setting.get() for name, setting in config.settings.items()})
    return config


def _mask(how: int) -> None:
    signal.pthread_sigmask(how, STOP_SIGNALS)


def _ignore_signals(arbiter: Arbiter) -> None:
    """Disables gunicorn's reload, re-execution and further workers: the one worker holds state."""
    for number in (signal.SIGHUP, signal.SIGTTIN, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


# gunicorn has no type information: its classes are Any to mypy, hence the ignored base class below


class _Worker(ThreadWorker):  # type: ignore[misc]
    """The process that serves. Everything but ``handle`` runs in its main thread, the event loop, which never waits
    for one client."""

    handle_quit = ThreadWorker.handle_exit  # SIGINT and SIGQUIT stop it as SIGTERM does

    def init_signals(self) -> None:
        """Takes signals from now on."""
        super().init_signals()
        _mask(signal.SIG_UNBLOCK)

    def run(self) -> None:
        """Serves until told to stop, then lets requests and *on_stop* finish."""
        self._stopper = threading.Thread(target=self.app.on_stop, name="stop", daemon=True)
        log.info("serving", extra={"bind": "%s:%s" % self.sockets[0].getsockname()[:2], "tls": bool(self.cfg.is_ssl)})
        super().run()
        self._stopper.join(self.cfg.graceful_timeout)
        log.info("stopped")

    def _cap_keepalive(self, deadline: float) -> None:
        """gunicorn calls this once, at the beginning of the stop. Idle connections end at *deadline*."""
        super()._cap_keepalive(deadline)
        log.info("stopping")
        self._stopper.start()
        for listener in self.sockets:
            listener.close()

    def accept(self, listener: sock.BaseSocket) -> None:
        """Accepts a client of *listener*."""
        with suppress(OSError):  # the client has gone
            client, address = listener.accept()
            cfg = self.cfg if listener is self.sockets[0] else self.app.plain_cfg
            self.enqueue_req(Connection(cfg, client, address, listener.getsockname()))
            self.nr_conns += 1

    def murder_pending(self) -> None:
        """Closes new connections that stay silent: after a second while there is no room for others, or at the stop."""
        if self.nr_conns >= self.worker_connections or not self.alive:
            for conn in self.pending_conns:
                conn.timeout = min(conn.timeout, time.monotonic() + 1.0)
        super().murder_pending()

    def handle(self, conn: Connection) -> object:
        """In a thread: serves a request, and those that follow soon. Returns whether the connection stays open."""
        while True:
            busy = self.nr_conns - len(self.pending_conns) - len(self.keepalived_conns)
            is_busy = 2 * busy > self.cfg.threads
            conn.deadline = time.monotonic() + self.app.read_seconds / (5 if is_busy else 1)
            conn.keep_alive_ms = KEEP_ALIVE_MS if self.alive and not is_busy else 0
            keep = super().handle(conn)
            if keep is not True or not conn.keep_alive_ms or not conn.wait_for_data():
                break
        if not keep and time.monotonic() < conn.deadline:
            util.close_graceful(conn.sock, timeout=1.0)  # until the client has closed its side
        return keep
