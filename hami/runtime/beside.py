"""Computes something in another process while this one computes something else."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

T = TypeVar("T")


class Beside(Generic[T]):
    """Computes *compute* in a copy of this process. Where no copy can be made safely, or it ends without a result,
    `result` computes it here: both must give the same."""

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute = compute
        self._receiver: Connection | None = None
        if not _may_copy():
            return
        context = multiprocessing.get_context("fork")
        self._receiver, sender = context.Pipe(duplex=False)
        # a daemon: it ends with this process
        process = context.Process(target=_send, args=(sender, compute), daemon=True)
        process.start()
        sender.close()

    def result(self) -> T:
        """Waits for the result. To be called once."""
        if self._receiver is not None:
            with contextlib.suppress(EOFError), self._receiver:
                result: T = self._receiver.recv()
                return result
        return self._compute()


def _may_copy() -> bool:
    """Reports whether a copy of this process can go on: other threads may hold locks, and libraries of macOS break."""
    if sys.platform != "linux" or threading.active_count() > 1:
        return False
    return (os.cpu_count() or 1) > 1


def _send(sender: Connection, compute: Callable[[], T]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process ends this one
    sender.send(compute())
