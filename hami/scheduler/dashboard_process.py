"""The scheduler's side of the dashboard, which is a process of its own: pages are rendered beside filters, and never
hold the interpreter's lock that these need.

The process reads the cluster with watches of its own. What only the scheduler knows, reservations of pods that are not
bound yet, it learns through a pipe. It ends when the pipe is closed.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import socket
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

from hami.cache.reservations import Reservations
from hami.runtime.tasks import Task
from hami.scheduler.settings import Settings

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "hami.scheduler.dashboard_program")
POLL_S = 0.25  # between two looks at the reservations
RESTART_S = 5.0  # until a process that has ended is started again
END_S = 2.0  # for the process to end by itself


class DashboardProcess(Task):
    """Keeps the dashboard's process running, and tells it the reservations."""

    def __init__(self, settings: Settings, listener: socket.socket, reservations: Reservations, *,
                 command: tuple[str, ...] = COMMAND, restart_s: float = RESTART_S) -> None:
        """*listener*: the address of the pages; clients wait until the process serves them. *command*: its arguments
        are the file descriptors of the pipe and of *listener*."""
        super().__init__("dashboard", limit_s=math.inf)  # no deadline: the dashboard is optional
        self._settings = settings
        self._listener = listener
        self._reservations = reservations
        self._command = command
        self._restart_s = restart_s

    def step(self) -> float:
        """Runs the process until it ends. Returns the seconds until it is started again."""
        try:
            status = self._run_once()
        except OSError as error:
            log.error("the dashboard cannot be started and is tried again", extra={"error": str(error)})
        else:
            if not self.is_stopping():
                log.error("the dashboard has ended and is started again", extra={"status": status})
        return self._restart_s

    def _run_once(self) -> int:
        """Starts the process. Returns its exit status when it has ended. Raises: OSError if it cannot be started."""
        theirs, ours = multiprocessing.Pipe(duplex=False)
        with ours:
            with theirs:
                fds = theirs.fileno(), self._listener.fileno()
                process = subprocess.Popen([*self._command, *map(str, fds)], stdin=subprocess.DEVNULL, pass_fds=fds)
            with suppress(OSError):  # the process has ended
                self._tell(process, ours)
        try:
            return process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _tell(self, process: subprocess.Popen[bytes], pipe: Connection) -> None:
        """Tells the process the settings, then each change of the reservations: until it ends or has to end, or more
        has changed than is kept."""
        pipe.send(self._settings)
        self._reservations.start_following()
        while (process.poll() is None and not self.pause(POLL_S)
               and (changes := self._reservations.take_changes()) is not None):
            if any(changes):
                pipe.send(changes)
