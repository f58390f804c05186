"""Asks, in a thread, for what the scheduler does not know by itself but somebody looks at: the real use of a node's
cards, and what kube-scheduler said about a pod. Pages never wait for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TypeVar

from hami.dashboard.looked import Looked, Times
from hami.dashboard.said import Said
from hami.dashboard.texts import timestamp
from hami.dashboard.use import NodeUse, parse_use
from hami.errors import HamiError
from hami.model import PodRef
from hami.runtime.watchdog import beat, beat_before_wait

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
R = TypeVar("R")

log = logging.getLogger(__name__)

AT_ONCE = 4  # questions
POLL_S = 0.5
FAILED_S = 30.0  # until a question that had no answer is asked again
USE_TIMES, MOST_NODES = Times(every=15.0, shown=60.0, looked=90.0), 512
SAID_TIMES, MOST_PODS = Times(every=10.0, shown=60.0, looked=90.0), 256


class Collector:
    """Answers questions of pages. `run` asks, until `stop`."""

    def __init__(self, page: Callable[[str], str] | None, said: Callable[[PodRef], Said], *,
                 clock: Callable[[], float], now: Callable[[], datetime]) -> None:
        """*page*: returns the metrics page of a node's monitor; ``None``: nobody is asked. *said*: what kube-scheduler
        said about a pod. Both raise HamiError, and run in threads."""
        self._page = page
        self._said = said
        self._now = now
        self._uses = Looked[str, NodeUse](USE_TIMES, MOST_NODES, clock=clock)
        self._words = Looked[PodRef, Said](SAID_TIMES, MOST_PODS, clock=clock)
        self._stopped = threading.Event()

    def use(self, node: str) -> NodeUse | None:
        """Returns the latest use of the cards of *node*, at which somebody looks; ``None`` if it is not known."""
        return self._uses.get(node) if self._page is not None else None

    def said(self, ref: PodRef) -> Said | None:
        """Returns what kube-scheduler said about a pod, at which somebody looks; ``None`` if it is not known."""
        return self._words.get(ref)

    def changes(self) -> int:
        """Returns how often any of that has changed."""
        return self._uses.changes + self._words.changes

    def run(self) -> None:
        """Asks what pages want to know, until `stop`."""
        with ThreadPoolExecutor(AT_ONCE, "dashboard-questions") as pool:
            while not self._stopped.is_set():
                self.ask_all(pool)
                beat_before_wait(POLL_S)
                self._stopped.wait(POLL_S)

    def stop(self) -> None:
        """Ends `run`, after the questions that are being asked."""
        self._stopped.set()

    def ask_all(self, pool: ThreadPoolExecutor) -> None:
        """Asks everything that is due, a few questions at a time."""
        self._ask(pool, self._words, self._said, lambda said: said)
        if self._page is not None:
            self._ask(pool, self._uses, self._page, self._parse)

    def _ask(self, pool: ThreadPoolExecutor, answers: Looked[K, V], ask: Callable[[K], R],
             read: Callable[[R], V]) -> None:
        """Keeps the answers to what is due. What is received is read here, one after the other."""
        due = answers.due()
        for start in range(0, len(due), AT_ONCE):
            if self._stopped.is_set():
                return
            beat()
            batch = due[start:start + AT_ONCE]
            for key, question in zip(batch, [pool.submit(ask, key) for key in batch], strict=True):
                try:
                    answers.put(key, read(question.result()))
                except HamiError as error:
                    log.debug("dashboard: no answer", extra={"about": str(key), "error": str(error)})
                    answers.put(key, None, wait=FAILED_S)
                except Exception:
                    log.exception("dashboard: question failed", extra={"about": str(key)})
                    answers.put(key, None, wait=FAILED_S)

    def _parse(self, page: str) -> NodeUse:
        return parse_use(page, timestamp(int(self._now().timestamp())))
