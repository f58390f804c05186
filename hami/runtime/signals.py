"""Signals of a program, as a queue: they are handled by the main thread, between its other work."""

from __future__ import annotations

import logging
import queue
import signal
from typing import Protocol

from hami.runtime.interpreter import freeze_gc

log = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
CHECK_S = 1.0  # between two looks at the threads of a program


class Program(Protocol):
    """A program that works in threads of its own."""

    def start(self) -> None:
        """Starts the threads. Raises: HamiError."""

    def stop(self) -> None:
        """Ends them."""

    def hung_reason(self) -> str:
        """Returns why only a new process can go on, such as a thread that has died or hangs; empty if this one can."""


def listen(*others: int) -> queue.SimpleQueue[int]:
    """Returns the queue that receives the stop signals and *others* of this process from now on."""
    incoming: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (*STOP_SIGNALS, *others):
        signal.signal(number, lambda number, frame: incoming.put(number))
    return incoming


def run_until_signal(program: Program, incoming: queue.SimpleQueue[int]) -> int:
    """Runs *program* until a stop signal. Returns the exit status: 1 if only a new process can go on. Raises: HamiError
    if it cannot be started."""
    program.start()
    freeze_gc()
    try:
        while True:
            try:
                incoming.get(timeout=CHECK_S)
            except queue.Empty:
                if reason := program.hung_reason():
                    log.error("exiting", extra={"reason": reason})
                    return 1
                continue
            return 0
    finally:
        program.stop()
