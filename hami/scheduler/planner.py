"""The rules of preemption as they are now, which pods kube-scheduler makes room for by itself, and when to plan."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from datetime import datetime

from hami.codec.gangs import pod_group_of
from hami.errors import HamiError
from hami.kube.cluster import Cluster
from hami.model import DisruptionBudget, Pod, PodGroup, PodGroupRef, PodRef
from hami.runtime.in_flight import InFlight
from hami.runtime.once import OncePerKey
from hami.runtime.shares import Shares
from hami.scheduler.settings import Settings
from hami.scheduling.preemption import PodGroups
from hami.state.victims import PreemptionRules

log = logging.getLogger(__name__)

Offers = Mapping[str, Collection[str]]
"""The uids of the victims on each node."""

BUDGETS_S = 2.0  # for which PodDisruptionBudgets that have been read are used
LEFT_S = 10.0  # for which kube-scheduler may evict the pods that it was offered
YIELD_S = 0.005  # for which a step of a plan waits for requests in flight
GROUPS_S = 30.0  # for which a PodGroup that has been read is used
MAX_KEPT = 500  # pods that are left to kube-scheduler; namespaces have shares
MAX_GROUPS = 2000  # PodGroups that are known; namespaces have shares
MAX_GROUPS_READ = 100  # for one plan
MAX_OFFERED = 100  # nodes that are remembered of those that kube-scheduler was offered for a pod


class PreemptionPlanner:
    """Shared by the verb *preempt* and the preemptor. *clock* is monotonic, *now* the time of day."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        in_flight: InFlight,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        used: Callable[[], float] = time.thread_time,
    ) -> None:
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
        self._groups = Shares[PodGroupRef, tuple[float, PodGroup | None]](MAX_GROUPS)
        self._reported = OncePerKey()
        self.is_enabled = settings.preemption != "off"
        """Whether pods may be evicted."""

    def rules(self) -> PreemptionRules:
        """Returns the rules for one plan, with PodDisruptionBudgets that were read a moment ago.

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
        return PreemptionRules(
            now=self._now().timestamp(),
            budgets=budgets,
            strict=self._is_strict,
            min_runtime_s=self._min_runtime_s,
            pod_groups=self._pod_groups_of_a_plan(),
        )

    def gang_size(self, pod: Pod) -> int | None:
        """Returns how many pods of the gang of *pod* are placed together; ``None`` if that cannot be read."""
        group = self._pod_group(pod_group_of(pod))
        return group.min_count if group is not None else None

    def _pod_groups_of_a_plan(self) -> PodGroups:
        """Returns a function that returns PodGroups, of which it reads MAX_GROUPS_READ at most: the others are not
        known to this plan."""
        left = MAX_GROUPS_READ

        def pod_group(ref: PodGroupRef) -> PodGroup | None:
            nonlocal left
            if not self._is_known(ref):
                if left == 0:
                    return None
                left -= 1
            return self._pod_group(ref)

        return pod_group

    def _is_known(self, ref: PodGroupRef) -> bool:
        with self._lock:
            until, _ = self._groups.get(ref.namespace, ref) or (-math.inf, None)
        return self._clock() < until

    def _pod_group(self, ref: PodGroupRef) -> PodGroup | None:
        """Returns a PodGroup as it was read a moment ago; ``None`` if it cannot be read."""
        with self._lock:
            until, group = self._groups.get(ref.namespace, ref) or (-math.inf, None)
        if self._clock() < until:
            return group
        try:
            group = self._cluster.pod_group(ref)
        except HamiError as error:
            if self._reported.is_new(str(error)):
                log.warning(
                    "PodGroup not read",
                    extra={"namespace": ref.namespace, "group": ref.name, "error": error},
                )
            group = None
        with self._lock:
            self._groups.put(ref.namespace, ref, (self._clock() + GROUPS_S, group))
        return group

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
