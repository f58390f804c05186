"""Signals of a program, as a queue: they are handled by the main thread, between its other work."""

from __future__ import annotations

import queue
import signal

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


def listen(*others: int) -> queue.SimpleQueue[int]:
    """Returns the queue that receives the stop signals and *others* of this process from now on."""
    incoming: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (*STOP_SIGNALS, *others):
        signal.signal(number, lambda number, frame: incoming.put(number))
    return incoming
