"""The process of the dashboard, which the scheduler starts: see `hami.scheduler.dashboard_process`."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from hami.cache.reservations import ReservationChanges
from hami.dashboard.monitors import Monitors
from hami.dashboard.server import dashboard_server
from hami.errors import HamiError
from hami.kube.api import Api
from hami.runtime import logs
from hami.runtime.clock import utc_now
from hami.runtime.interpreter import FreezeGc, collect_rarely, set_switch_interval
from hami.runtime.signals import STOP_SIGNALS
from hami.runtime.tasks import problems
from hami.scheduler.settings import Settings, is_loopback
from hami.scheduler.watches import watched_cache
from hami.web.tls import TlsContext

log = logging.getLogger(__name__)

NICENESS = 10  # the processor is for those first that place pods
OOM_SCORE, KILLED_FIRST = Path("/proc/self/oom_score_adj"), "500"  # and so is the memory
TICK_S = 1.0  # between two looks at what has timed out, and at the threads


class DashboardProgram:
    """All parts of the process."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        """*listener*: the address of the pages, which listens."""
        api = Api.connect(timeout=settings.request_timeout)
        self._cache, self._watches = watched_cache(settings, api)
        self._server = dashboard_server(listener, self._cache, api, _tls(settings), now=utc_now,
                                        monitors=_monitors(settings, api), unready_reason=self._unready_reason)
        self._tasks = (*self._watches.tasks, *self._server.tasks, FreezeGc(self._watches.is_synced))

    def run(self, pipe: Connection) -> int:
        """Serves while its threads work, and follows the reservations that *pipe* tells. Returns the exit status.

        Raises: EOFError when the pipe is closed.
        """
        self._server.start()
        for task in self._tasks:
            task.start()
        while not (reason := problems(self._tasks)):
            if pipe.poll(TICK_S):
                changes: ReservationChanges = pipe.recv()
                self._cache.follow(*changes)
            self._cache.expire()
        log.error("the dashboard ends", extra={"reason": reason})
        return 1

    def _unready_reason(self) -> str:
        """Returns why the cluster cannot be shown yet; empty if it can."""
        return "" if self._watches.is_synced() else "the cluster is still being read"


def _monitors(settings: Settings, api: Api) -> Monitors | None:
    """Returns the monitors to ask; ``None`` for none."""
    selector = settings.dashboard_monitor_selector
    return Monitors(api, settings.pod_namespace, selector, settings.dashboard_monitor_port) if selector else None


def _tls(settings: Settings) -> TlsContext | None:
    """Returns the certificate; ``None`` for an address that only this machine reaches."""
    address = settings.dashboard_bind_address
    if address is None or is_loopback(address.host):
        return None
    return TlsContext(settings.cert_file, settings.key_file, is_made_later=bool(settings.self_signed_cert_dir))


def main() -> int:
    """Serves until the scheduler ends it, or has ended. Returns the exit status."""
    for number in STOP_SIGNALS:  # they are for the scheduler, which closes the pipe
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICENESS)
    with suppress(OSError):
        OOM_SCORE.write_text(KILLED_FIRST)
    set_switch_interval()
    collect_rarely()
    with suppress(EOFError), Connection(int(sys.argv[1]), writable=False) as pipe:
        settings: Settings = pipe.recv()
        logs.configure(settings.log_format, settings.log_verbosity)
        try:
            return DashboardProgram(settings, socket.socket(fileno=int(sys.argv[2]))).run(pipe)
        except HamiError as error:
            log.error("the dashboard cannot start", extra={"error": str(error)})
            return 1
    return 0


if __name__ == "__main__":
    os._exit(main())  # without freeing what has been read
