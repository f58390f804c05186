"""The extender verb *preempt*: vetoes evictions in vain. It names no victims of its own, and evicts nobody.

kube-scheduler looks for victims with its own filters, so it knows CPU and memory, but no devices. Without a veto it
evicts pods from nodes whose devices are full, is refused by the verb *filter*, and starts over.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Mapping

from hami.cache.cache import Cache
from hami.errors import NodeLocked
from hami.model import Pod
from hami.scheduler.filter import LEADERSHIP_TIMEOUT_S
from hami.scheduler.leadership import Leadership

log = logging.getLogger(__name__)

MAX_NODES = 1000  # nodes that are judged; kube-scheduler stops looking at 100 or a tenth of the cluster


class PreemptionFilter:
    """Judges victims. It makes no calls to the API server and changes nothing."""

    def __init__(self, cache: Cache, leadership: Leadership) -> None:
        self._cache = cache
        self._leadership = leadership

    def filter(self, pod: Pod, victims: Mapping[str, Collection[str]]) -> Collection[str]:
        """Returns the nodes on which the devices of *pod* fit once the *victims* (uids, by node) have ended.

        All nodes remain if *pod* requests no device. Nodes that are not known, and those after the first MAX_NODES, do
        not remain.
        Raises: HamiError; then nobody may be evicted.
        """
        if not self._leadership.wait_until_leading(LEADERSHIP_TIMEOUT_S):  # there may have been no filter before
            raise NodeLocked("this replica of the scheduler does not lead yet")
        kept = self._cache.fits_without(pod, dict(itertools.islice(victims.items(), MAX_NODES)))
        if kept is None:
            return victims.keys()
        log.info("preemption judged", extra={"pod": pod.ref, "nodes": len(victims), "kept": len(kept)})
        return kept
