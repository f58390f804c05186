"""Programs that people start, and end by a signal: at any moment, they leave nothing behind.

The first signal ends a program as an error does: what it has started ends before it. Cleaning up takes seconds, and
later signals change nothing. A program that is killed, or hangs meanwhile, leaves the rest to `testing.reaper`.
Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from testing import reaper

__all__ = ["Interrupted", "interrupt_pytest", "run", "run_whole", "wait"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HUNG_S = 90
"""Seconds after which the kernel ends a program that still cleans up: it may have been interrupted in a place that does
not bear it, such as between taking a lock and the block that releases it."""
REPEAT_S = 0.1
"""Seconds in which the main thread notices a signal, if it can."""
PR_SET_PDEATHSIG = 1


class Interrupted(KeyboardInterrupt):
    """A signal asks this program to end."""


class Interrupts:
    """The handler of the signals: raises in the main thread, which makes it, once."""

    def __init__(self) -> None:
        self.number = 0
        """The first signal; 0 if there was none."""
        self._main = threading.get_ident()

    def install(self) -> None:
        """Begins to handle them. A hangup that is ignored, as by nohup, stays ignored; an interrupt does not, which a
        shell has programs in the background ignore."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=self._repeat, args=(reader,), name="signals", daemon=True).start()
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def _repeat(self, reader: int) -> None:
        """Sends a signal again that the main thread does not notice: it came just before a system call that waits."""
        while not self.number:
            (number,) = os.read(reader, 1)
            time.sleep(REPEAT_S)
            if not self.number:
                signal.pthread_kill(self._main, number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.number:
            return
        self.number = number
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(HUNG_S)
        raise Interrupted


def run(main: Callable[[], int]) -> int:
    """Runs *main*, which returns the exit status, until it ends or a signal ends it.

    Returns the status for the shell.
    """
    interrupts = Interrupts()
    interrupts.install()
    end_with_tox()
    try:
        return main()
    except BaseException:
        if not interrupts.number:
            raise
        # what else was raised since then is a consequence: what main has started is gone by now
        name = signal.Signals(interrupts.number).name
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(f"ended by {name}; nothing is left running", file=sys.stderr, flush=True)
        return 128 + interrupts.number


def run_whole(main: Callable[[], int]) -> int:
    """As `run`; and when the program ends, or is killed, all processes end that it has started."""

    def reaped() -> int:
        with reaper.claimed() as folder, reaper.marked(folder):
            return main()

    return run(reaped)


def wait() -> None:
    """Returns after a signal: for a program that people look at until they end it."""
    with contextlib.suppress(Interrupted):
        threading.Event().wait()


def interrupt_pytest() -> None:
    """Makes a signal that asks pytest to end an interrupt, which it knows: its fixtures clean up."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    end_with_tox()


def end_with_tox() -> None:
    """Under tox, has the kernel send SIGTERM to this process when tox ends: it ends nothing when it is terminated."""
    if "TOX_ENV_NAME" not in os.environ:
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
