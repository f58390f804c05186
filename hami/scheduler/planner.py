"""The rules of preemption as they are now, which pods kube-scheduler makes room for by itself, and when to plan."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from datetime import datetime

from hami.errors import HamiError
from hami.kube.cluster import Cluster
from hami.model import DisruptionBudget, Pod, PodRef
from hami.runtime.in_flight import InFlight
from hami.runtime.shares import Shares
from hami.scheduler.settings import Settings
from hami.state.preemption import PreemptionRules

log = logging.getLogger(__name__)

Offers = Mapping[str, Collection[str]]
"""The uids of the victims on each node."""

BUDGETS_S = 2.0  # for which PodDisruptionBudgets that have been read are used
LEFT_S = 10.0  # for which kube-scheduler may evict the pods that it was offered
YIELD_S = 0.005  # for which a step of a plan waits for requests in flight
SIZES_S = 10.0  # for which the size of a gang that has been read is used
MAX_KEPT = 500  # pods that are left to kube-scheduler, and gangs whose sizes are known; namespaces have shares
MAX_OFFERED = 100  # nodes that are remembered of those that kube-scheduler was offered for a pod


class PreemptionPlanner:
    """Shared by the verb *preempt* and the preemptor. *clock* is monotonic, *now* the time of day."""

    def __init__(self, cluster: Cluster, settings: Settings, in_flight: InFlight, *, clock: Callable[[], float],
                 now: Callable[[], datetime], used: Callable[[], float] = time.thread_time) -> None:
        self._cluster = cluster
        self.used = used
        """Returns the processor time of the calling thread, in seconds."""
        self._in_flight = in_flight
        self._is_strict = settings.preemption == "strict"
        self._min_runtime_s = settings.preemption_min_runtime
        self._clock = clock
        self._now = now
        self._lock = threading.Lock()  # guards the rest; not held across I/O
        self._budgets: list[DisruptionBudget] = []
        self._read_at = -math.inf
        self._left = Shares[str, tuple[float, Offers]](MAX_KEPT)
        self._sizes = Shares[str, tuple[float, int | None]](MAX_KEPT)
        self.is_enabled = settings.preemption != "off"
        """Whether pods may be evicted."""

    def rules(self) -> PreemptionRules:
        """Returns the rules, with PodDisruptionBudgets that were read a moment ago.

        Raises: HamiError if these cannot be read and none may be violated.
        """
        with self._lock:
            budgets, is_fresh = self._budgets, self._clock() - self._read_at < BUDGETS_S
        if not is_fresh:
            try:
                budgets = self._cluster.disruption_budgets()
            except HamiError as error:
                if self._is_strict:
                    raise
                log.warning("PodDisruptionBudgets not read", extra={"error": error})
            with self._lock:
                self._budgets, self._read_at = budgets, self._clock()
        return PreemptionRules(now=self._now().timestamp(), budgets=budgets, strict=self._is_strict,
                               min_runtime_s=self._min_runtime_s)

    def gang_size(self, pod: Pod) -> int | None:
        """Returns how many pods of the gang of *pod* are placed together, as was read a moment ago; ``None`` if that
        cannot be read."""
        namespace = pod.ref.namespace
        with self._lock:
            until, size = self._sizes.get(namespace, pod.group) or (-math.inf, None)
        if self._clock() < until:
            return size
        try:
            size = self._cluster.gang_size(pod)
        except HamiError as error:
            log.warning("PodGroup not read", extra={"pod": pod.ref, "error": error})
            size = None
        with self._lock:
            self._sizes.put(namespace, pod.group, (self._clock() + SIZES_S, size))
        return size

    def leave_to_requests(self) -> None:
        """Leaves the interpreter to the requests in flight, before each step of a plan, and for a moment only."""
        self._in_flight.wait_idle(YIELD_S)

    def leave_to_kube_scheduler(self, ref: PodRef, offers: Offers) -> None:
        """Records that kube-scheduler was offered nodes on which it makes room for the pod."""
        remembered = dict(itertools.islice(offers.items(), MAX_OFFERED))
        with self._lock:
            self._left.put(ref.namespace, ref.uid, (self._clock() + LEFT_S, remembered))

    def is_left_to_kube_scheduler(self, ref: PodRef) -> bool:
        """Reports whether kube-scheduler may make room for the pod by itself now."""
        return self.offers(ref) is not None

    def offers(self, ref: PodRef) -> Offers | None:
        """Returns the nodes on which kube-scheduler may make room for the pod now, or the first MAX_OFFERED of them;
        ``None`` if it may on none."""
        with self._lock:
            until, offers = self._left.get(ref.namespace, ref.uid) or (-math.inf, {})
        return offers if until > self._clock() else None
