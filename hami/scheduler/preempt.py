"""The extender verb *preempt*: vetoes evictions in vain. It names no victims of its own, and evicts nobody.

kube-scheduler looks for victims with its own filters, so it knows CPU and memory, but no devices. Without a veto it
evicts pods from nodes whose devices are full, is refused by the verb *filter*, and starts over.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping

from hami.cache.cache import Cache
from hami.errors import NodeLocked
from hami.model import Pod
from hami.scheduler.filter import LEADERSHIP_TIMEOUT_S
from hami.scheduler.leadership import Leadership

log = logging.getLogger(__name__)

MAX_NODES = 1000  # nodes that are judged; kube-scheduler stops looking at 100 or a tenth of the cluster
CATCH_UP_S = 0.1  # kube-scheduler may see the end of a pod this long before our watch does
CATCH_UP_PERIOD_S = 1.0  # for one wait, since kube-scheduler places no pods meanwhile
CATCH_UPS_AT_ONCE = 10  # after a pause: several pods may end within a second


class PreemptionFilter:
    """Judges victims. It makes no calls to the API server and changes nothing. *clock* is monotonic."""

    def __init__(self, cache: Cache, leadership: Leadership, *, clock: Callable[[], float],
                 sleep: Callable[[float], None] = time.sleep) -> None:
        self._cache = cache
        self._leadership = leadership
        self._clock = clock
        self._sleep = sleep
        self._waits_paid_until = -math.inf

    def filter(self, pod: Pod, victims: Mapping[str, Collection[str]]) -> Collection[str]:
        """Returns the nodes on which the devices of *pod* fit once the *victims* (uids, by node) have ended.

        All nodes remain if *pod* requests no device. Nodes that are not known, and those after the first MAX_NODES, do
        not remain.
        Raises: HamiError; then nobody may be evicted.
        """
        if not self._leadership.wait_until_leading(LEADERSHIP_TIMEOUT_S):  # there may have been no filter before
            raise NodeLocked("this replica of the scheduler does not lead yet")
        judged = dict(itertools.islice(victims.items(), MAX_NODES))
        kept = self._cache.fits_without(pod, judged)
        if kept is None:
            return victims.keys()
        if not kept and self._may_wait():
            self._sleep(CATCH_UP_S)
            kept = self._cache.fits_without(pod, judged) or []
        log.info("preemption judged", extra={"pod": pod.ref, "nodes": len(victims), "kept": len(kept)})
        return kept

    def _may_wait(self) -> bool:
        """Reports whether a veto may wait until the watch has caught up.

        kube-scheduler tries the pod again when another one ends, at once, and after a veto not for minutes: the pod
        would wait beside a free device, and no reminder reaches it, since no filter has refused it.
        """
        now = self._clock()
        if self._waits_paid_until > now + (CATCH_UPS_AT_ONCE - 1) * CATCH_UP_PERIOD_S:
            return False
        self._waits_paid_until = max(self._waits_paid_until, now) + CATCH_UP_PERIOD_S
        return True
