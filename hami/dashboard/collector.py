"""Polls, in a thread, what is viewed and not in the cache: the real use of a node's cards, and why kube-scheduler does
not place a pod. Pages never wait for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TypeVar

from hami.codec.times import render_time
from hami.dashboard.polled import PolledValues, PollTimes
from hami.dashboard.scheduling_condition import SchedulingCondition
from hami.dashboard.use import NodeUse, parse_use
from hami.errors import HamiError
from hami.model import PodRef
from hami.runtime.tasks import Task

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
R = TypeVar("R")

log = logging.getLogger(__name__)

CONCURRENCY = 4  # polls at a time
PAUSE_S = 0.5
FAILED_S = 30.0  # until a failed poll is repeated
USE_TIMES, MAX_NODES = PollTimes(interval=15.0, shown=60.0, viewed=90.0), 512
CONDITION_TIMES, MAX_PODS = PollTimes(interval=10.0, shown=60.0, viewed=90.0), 256


class Collector(Task):
    """The polled values of the pages."""

    def __init__(self, page: Callable[[str], str] | None, condition: Callable[[PodRef], SchedulingCondition], *,
                 clock: Callable[[], float], now: Callable[[], datetime]) -> None:
        """*page*: returns the metrics page of a node's monitor; ``None``: no monitor is polled. *condition*: returns
        that of a pod. Both raise HamiError, and run in threads."""
        super().__init__("polls")
        self._page = page
        self._condition = condition
        self._now = now
        self._uses = PolledValues[str, NodeUse](USE_TIMES, MAX_NODES, clock=clock)
        self._conditions = PolledValues[PodRef, SchedulingCondition](CONDITION_TIMES, MAX_PODS, clock=clock)
        self._pool = ThreadPoolExecutor(CONCURRENCY, "dashboard-polls")

    def use(self, node: str) -> NodeUse | None:
        """Returns the latest use of the cards of *node*, which is being viewed; ``None`` if it is not known."""
        return self._uses.view(node) if self._page is not None else None

    def condition(self, ref: PodRef) -> SchedulingCondition | None:
        """Returns the latest condition of the pod *ref*, which is being viewed; ``None`` if it is not known."""
        return self._conditions.view(ref)

    def changes(self) -> int:
        """Returns how often any of these values has changed."""
        return self._uses.changes + self._conditions.changes

    def step(self) -> float:
        """Polls what is viewed."""
        self.poll_due(self._pool)
        return PAUSE_S

    def finish(self) -> None:
        """Waits for the polls in progress."""
        self._pool.shutdown()

    def poll_due(self, pool: ThreadPoolExecutor) -> None:
        """Polls everything that is due, a few values at a time."""
        self._poll(pool, self._conditions, self._condition, lambda condition: condition)
        if self._page is not None:
            self._poll(pool, self._uses, self._page, self._parse)

    def _poll(self, pool: ThreadPoolExecutor, values: PolledValues[K, V], fetch: Callable[[K], R],
              parse: Callable[[R], V]) -> None:
        """Polls the *values* that are due. They are fetched in threads, and parsed here one after the other."""
        due = values.due()
        for start in range(0, len(due), CONCURRENCY):
            if self.is_stopping():
                return
            self.beat()
            batch = due[start:start + CONCURRENCY]
            for key, poll in zip(batch, [pool.submit(fetch, key) for key in batch], strict=True):
                try:
                    values.put(key, parse(poll.result()))
                except HamiError as error:
                    log.debug("dashboard poll without a result", extra={"key": str(key), "error": str(error)})
                    values.put(key, None, wait=FAILED_S)
                except Exception:
                    log.exception("dashboard poll failed", extra={"key": str(key)})
                    values.put(key, None, wait=FAILED_S)

    def _parse(self, page: str) -> NodeUse:
        return parse_use(page, render_time(self._now()))
