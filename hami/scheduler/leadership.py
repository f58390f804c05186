"""Leadership: a replica acts once it leads and has read the cluster afresh in its own term.

A standby's store may be stale, since another replica was writing: nothing is decided on it. A leader whose predecessor
has not released the lease waits a moment first, until the last writes of that one have arrived.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from hami.errors import ClusterError, NodeLocked
from hami.kube.election import Elector
from hami.runtime.tasks import Task

log = logging.getLogger(__name__)

CATCH_UP_S = 300.0  # longer than it takes, or fails
RETRY_S = 0.5  # between attempts to catch up
VERB_S = 5.0  # for which a verb waits until this replica leads
REQUEST_S = 2.0  # between requests for the leadership, of a verb that waits for it


class Leadership(Task):
    """An election whose terms count from when *catch_up* has succeeded. *clock* is the election's."""

    def __init__(
        self,
        election: Elector,
        catch_up: Callable[[], None],
        *,
        clock: Callable[[], float],
    ) -> None:
        super().__init__("leadership", limit_s=CATCH_UP_S)
        self._election = election
        self._catch_up = catch_up
        self._clock = clock
        self._since = math.inf
        self._caught_up = 0  # the election's term for which that is done

    def step(self) -> float:
        """Waits for the beginning of a term and catches up. Returns the seconds until it is tried again."""
        election = self._election
        self.beat(math.inf)
        with election.changed:
            election.changed.wait_for(lambda: self.is_stopping() or self._is_behind())
            term = election.term
        self.beat()
        if self.is_stopping():
            return 0.0
        if (early_s := election.settles_at() - self._clock()) > 0:
            return early_s
        try:
            self._catch_up()
        except ClusterError as error:
            log.warning("cluster not read yet, will retry", extra={"error": error})
            return RETRY_S
        with election.changed:
            self._since, self._caught_up = self._clock(), term
            election.changed.notify_all()
        log.info("acting as leader")
        return 0.0

    def wake(self) -> None:
        """Ends all waits, also those of verbs if the task stops."""
        super().wake()
        with self._election.changed:
            self._election.changed.notify_all()

    def leads_until(self) -> float:
        """Returns the time on the clock until which this replica certainly leads; a past time if it does not."""
        if self._caught_up != self._election.term:
            return 0.0
        return self._election.leads_until()

    def leads(self) -> bool:
        """Reports whether this replica leads now."""
        return self.leads_until() > self._clock()

    def wait_until_leading(self, timeout: float) -> bool:
        """Reports whether this replica leads. If not, asks for the leadership and waits at most *timeout* seconds."""
        deadline = self._clock() + timeout
        self._election.need()
        if self.leads():
            return True
        with self._election.changed:
            while not self.leads():
                left_s = deadline - self._clock()
                if self.is_stopping() or left_s <= 0:
                    return False
                self._election.need()
                self._election.changed.wait(min(left_s, REQUEST_S))
        return True

    def require(self) -> None:
        """Waits a moment until this replica leads, for a verb that decides something.

        Raises: NodeLocked if it does not; kube-scheduler retries the pod then.
        """
        if not self.wait_until_leading(VERB_S):
            raise NodeLocked("this replica of the scheduler does not lead yet")

    def since(self) -> float:
        """Returns when this replica began to act in its latest term, on the clock."""
        return self._since

    def _is_behind(self) -> bool:
        return self._caught_up != self._election.term and self._election.is_leader()
