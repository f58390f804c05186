"""Runs tests on several clusters, one at a time on each, since many tests fill all nodes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import replace

from testing.conformance.clusters import ReadyCluster
from testing.conformance.suite import Interrupted, Result, State, Suite
from testing.eventually import WaitTimeout

__all__ = ["Run"]

HEARTBEAT_S = 60.0


class Run:
    """A run of *tests*, in this order.

    *opened* opens a cluster. A test that has failed may have left something behind: the next one
    gets a new cluster. *report* is called with each result, and *say* with a line when there was
    none for a minute.
    """

    def __init__(
        self,
        suite: Suite,
        opened: Callable[[], AbstractContextManager[ReadyCluster]],
        tests: Iterable[str],
        *,
        report: Callable[[Result], None],
        say: Callable[[str], None],
    ) -> None:
        self._suite = suite
        self._opened = opened
        self._report = report
        self._say = say
        self._ended = threading.Event()
        self._lock = threading.Lock()  # guards the next three, and reports
        self._waiting = deque(tests)
        self._running: dict[str, float] = {}
        self._results: list[Result] = []

    def carry_out(self, clusters: int) -> list[Result]:
        """Runs all tests on so many *clusters*; returns the results.

        Raises what opening a cluster raises.
        """
        with ThreadPoolExecutor(clusters) as pool:
            workers = [pool.submit(self._work) for _ in range(clusters)]
            try:
                self._wait(workers)
            finally:
                self._ended.set()
        for worker in workers:
            worker.result()
        return self._results

    def _wait(self, workers: list[Future[None]]) -> None:
        """Waits until all *workers* have ended, or one by an exception."""
        while True:
            known = len(self._results)
            done, others = wait(workers, timeout=HEARTBEAT_S, return_when=FIRST_EXCEPTION)
            if not others or any(worker.exception() for worker in done):
                return
            with self._lock:
                if len(self._results) == known:
                    self._say(f"  still running: {self._under_way()}")

    def _under_way(self) -> str:
        now = time.monotonic()
        return "; ".join(f"{test} ({now - since:.0f} s)" for test, since in self._running.items())

    def _work(self) -> None:
        while self._waiting and not self._ended.is_set():
            with self._opened() as ready:
                self._use(ready)

    def _use(self, ready: ReadyCluster) -> None:
        """Runs tests on a cluster until there are no more, or one has failed."""
        while (test := self._next()) is not None:
            try:
                result = self._try(test, ready)
            except Interrupted:
                return
            with self._lock:
                del self._running[test]
                self._results.append(result)
                self._report(result)
            if result.state is State.FAILED:
                return

    def _next(self) -> str | None:
        with self._lock:
            if not self._waiting or self._ended.is_set():
                return None
            test = self._waiting.popleft()
            self._running[test] = time.monotonic()
            return test

    def _try(self, test: str, ready: ReadyCluster) -> Result:
        """Returns the result of *test*, which also fails by what its pods hold.

        Raises: Interrupted.
        """
        before = ready.slices.bound()
        result = self._suite.run(test, ready.cluster.kubeconfig, ready.cluster.folder, self._ended)
        objections = []
        try:
            ready.clear()
        except WaitTimeout as error:
            objections.append(str(error))
        objections += ready.objections()
        result = replace(result, pods=ready.slices.bound() - before)
        if objections and result.state is not State.FAILED:
            result = replace(result, state=State.FAILED, reason="; ".join(objections))
        if result.state is State.FAILED:
            result = replace(result, log=f"{result.log}\n{ready.logs()}")
        return result
