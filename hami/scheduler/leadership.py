"""Who acts: the leader, once it has read the cluster afresh in its own term.

Nothing is decided on what a standby happened to know: its watches may have been late while another replica wrote.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime

from hami.kube.lease import Elector
from hami.errors import ClusterError

__all__ = ["Leadership"]

log = logging.getLogger(__name__)

RETRY = 0.5  # seconds between attempts to catch up
POLL = 0.05  # seconds between looks of those who wait to act
IDLE = 3.0  # seconds without a verb after which the leadership may go where it is asked for


class Leadership:
    """Elector that counts from when *catch_up* has succeeded. *clock* is that of the election, *now* tells
    the time of day."""

    def __init__(self, catch_up: Callable[[], None], clock: Callable[[], float], now: Callable[[], datetime]) -> None:
        self._catch_up = catch_up
        self._clock = clock
        self._now = now
        self._since = now()
        self._election: Elector | None = None
        self._term = 0
        self._caught_up = -1
        self._wake = threading.Event()
        self._stopping = False
        self._used = -IDLE

    def follow(self, election: Elector) -> None:
        """Go by *election*, whose callbacks are :meth:`started` and :meth:`stopped`."""
        self._election = election

    def started(self) -> None:
        """A term begins."""
        self._since = self._now()
        self._term += 1
        self._wake.set()

    def stopped(self) -> None:
        """The term is over."""
        self._term += 1

    def run(self) -> None:
        """Catch up at the beginning of each term, until stopped."""
        while not self._stopping:
            self._wake.wait()
            self._wake.clear()
            term = self._term
            while not self._stopping and self._caught_up != term == self._term:
                if not self._try_to_catch_up(term):
                    self._wake.wait(RETRY)

    def stop(self) -> None:
        """End :meth:`run`."""
        self._stopping = True
        self._wake.set()

    def leads_until(self) -> float:
        """The time on the clock until which this replica certainly acts; in the past when it does not."""
        return self._election.leads_until() if self._election and self._caught_up == self._term else 0.0

    def await_turn(self, timeout: float) -> bool:
        """Whether this replica acts; asks for the leadership and waits at most *timeout* seconds if it does not."""
        self._used = begun = self._clock()
        while self.leads_until() <= self._clock():
            if self._stopping or self._clock() - begun >= timeout:
                return False
            if self._election is not None:
                self._election.request_handover()
            threading.Event().wait(POLL)
        return True

    def since(self) -> datetime:
        """When the present term began."""
        return self._since

    def is_idle(self) -> bool:
        """No verb has come lately: another replica may have the leadership if it wants it."""
        return self._clock() - self._used > IDLE

    def _try_to_catch_up(self, term: int) -> bool:
        """False when it has to be tried again. A lease that ran out may yet be renewed without a new term."""
        if not self._leads():
            return False
        try:
            self._catch_up()
        except ClusterError as error:
            log.warning("cannot catch up yet", extra={"error": error})
            return False
        self._caught_up = term
        log.info("acting: leading, and caught up with the cluster")
        return True

    def _leads(self) -> bool:
        return self._election is not None and self._election.leads_until() > self._clock()
