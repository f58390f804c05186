"""Leadership: a replica acts once it leads and has read the cluster afresh in its own term.

A standby's cache may be stale, since another replica was writing: nothing is decided on it. A leader whose predecessor
has not released the lease waits a moment first, until the last writes of that one have arrived.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable

from hami.errors import ClusterError
from hami.kube.lease import Elector
from hami.runtime.watchdog import beat_before_wait

log = logging.getLogger(__name__)

CATCH_UP_S = 300.0  # longer than it takes, or fails
RETRY_S = 0.5  # between attempts to catch up
POLL_S = 0.05  # between looks of those who wait until this replica leads
IDLE_S = 3.0  # without a verb for this long, the leadership may be handed over


class Leadership:
    """An election that counts from when *catch_up* has succeeded.

    *elect* makes the election, which calls :meth:`started` and :meth:`stopped` and asks :meth:`is_idle`. *clock* is the
    election's.
    """

    def __init__(self, elect: Callable[[Leadership], Elector], catch_up: Callable[[], None], *,
                 clock: Callable[[], float]) -> None:
        self._catch_up = catch_up
        self._clock = clock
        self._since = math.inf
        self._term = 0
        self._caught_up = -1
        self._wake = threading.Event()
        self._stopping = False
        self._last_verb = -IDLE_S
        self.election = elect(self)

    def started(self) -> None:
        """Begins a term."""
        self._term += 1
        self._wake.set()

    def stopped(self) -> None:
        """Ends the term."""
        self._term += 1

    def run(self) -> None:
        """Catches up at the beginning of each term, until stopped."""
        while not self._stopping:
            beat_before_wait()
            self._wake.wait()
            self._wake.clear()
            term = self._term
            while not self._stopping and self._caught_up != term == self._term:
                beat_before_wait(CATCH_UP_S)
                if not self._try_to_catch_up(term):
                    self._wake.wait(RETRY_S)

    def stop(self) -> None:
        """Ends :meth:`run`."""
        self._stopping = True
        self._wake.set()

    def leads_until(self) -> float:
        """Returns the time on the clock until which this replica certainly leads; a past time if it does not."""
        return self.election.leads_until() if self._caught_up == self._term else 0.0

    def leads(self) -> bool:
        """Reports whether this replica leads now."""
        return self.leads_until() > self._clock()

    def wait_until_leading(self, timeout: float) -> bool:
        """Reports whether this replica leads. If not, asks for the leadership and waits at most *timeout* seconds."""
        self._last_verb = begun = self._clock()
        while not self.leads():
            if self._stopping or self._clock() - begun >= timeout:
                return False
            self.election.request_handover()
            threading.Event().wait(POLL_S)
        return True

    def since(self) -> float:
        """Returns when this replica began to act in its latest term, on the clock."""
        return self._since

    def is_idle(self) -> bool:
        """Reports whether no verb has come recently, so that another replica may have the leadership."""
        return self._clock() - self._last_verb > IDLE_S

    def _try_to_catch_up(self, term: int) -> bool:
        """Reports whether it worked. An expired lease may still be renewed in the same term, so it is no error."""
        if not self.election.settles_at() <= self._clock() < self.election.leads_until():
            return False
        try:
            self._catch_up()
        except ClusterError as error:
            log.warning("cluster not read yet, will retry", extra={"error": error})
            return False
        self._since = self._clock()
        self._caught_up = term
        log.info("acting as leader")
        return True
