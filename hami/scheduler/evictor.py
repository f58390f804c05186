"""The evictor: the writes by which pods are evicted. Pods that are evicted together all end, or none of them does.

First all victims get the condition, then they are deleted. If one pod of a unit has been deleted, the others are, too,
whatever has become of the pod for which that was begun. Units that need not end any more are spared, and lose the
condition. The conditions tell the next leader what belongs together, so it goes on in the same way.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from hami.codec.objects import parse_resource_version
from hami.codec.pods import render_preempted
from hami.errors import ClusterError, Conflict, HamiError, NotFound
from hami.kube.api import is_unsent
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.model import EvictedTogether, PodRef
from hami.scheduler.leadership import Leadership
from hami.scheduler.metrics import Metrics
from hami.state.evictions import Evictions, MarkedUnit
from hami.state.pods import PodRecords
from hami.state.promises import Promise
from hami.state.read_pod import MAX_GRACE_S, PodRecord

log = logging.getLogger(__name__)

RETRY_S = 1.0  # until it is tried again to finish what has been begun
REFUSED_S = 60.0  # the same, after the API server has refused it
MAX_WRITES = 200  # of one step: a gang may have very many pods, and others wait for their plans
# after which a deletion that an earlier leader has sent is carried out, or never will be
INHERITED_S = 15.0


class EvictionStopped(HamiError):
    """The rest of an eviction is not wanted any more, or this replica does not lead any more."""


class EvictionPaused(HamiError):
    """The rest of an eviction follows in the next step."""


@dataclass(slots=True, eq=False)
class UnitEviction:
    """The eviction of pods that end together. Only :class:`Evictor` changes it.

    *preemptor*: the uid of the pod for which they end. *message*: of their conditions. *refs*: the pods by uid, in the
    order in which they are written. *marks*: the versions of the pods since which they have the condition, by uid.
    *deleted*: the uids of those that have been deleted. *has_begun*: one of them has been, or may have been.
    *inherited_until*: an earlier leader may have sent a deletion that arrives until then, by the clock.
    """

    preemptor: str
    message: str
    refs: dict[str, PodRef]
    marks: dict[str, int] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    has_begun: bool = False
    inherited_until: float = -math.inf


class Evictor:
    """For one thread, while this replica leads. *clock* is monotonic."""

    def __init__(
        self,
        cluster: Cluster,
        evictions: Evictions,
        pods: PodRecords,
        events: EventRecorder,
        leadership: Leadership,
        metrics: Metrics,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._cluster = cluster
        self._evictions = evictions
        self._pods = pods
        self._events = events
        self._leadership = leadership
        self._metrics = metrics
        self._clock = clock
        self._now = now
        self._units: list[UnitEviction] = []
        self._settle_from = -math.inf
        self._writes_left = MAX_WRITES

    def take_over(self) -> None:
        """Goes on with what an earlier leader has begun. A new leader calls this before it evicts anybody."""
        until = self._clock() + INHERITED_S
        self._units = [_inherited(unit, until) for unit in self._evictions.inherited_units()]

    def begin_step(self) -> None:
        """Allows as many writes as a step may have."""
        self._writes_left = MAX_WRITES

    @property
    def is_paused(self) -> bool:
        """Whether the writes of this step have been used up."""
        return self._writes_left <= 0

    def evict(
        self, promise: Promise, units: Sequence[Sequence[PodRecord]], beat: Callable[[], object]
    ) -> int:
        """Evicts the *units* of the victims of *promise*. Returns the number of pods that have been deleted for it.
        *beat* is called before each write.

        Raises: EvictionStopped if the pod of *promise* does not wait for the others any more; EvictionPaused if the
        rest follows in the next step; ClusterError.
        """
        evictions = [self._eviction(promise, unit, beat) for unit in units]
        for eviction in evictions:
            self._mark(eviction, promise, beat)
        for eviction in evictions:
            self._delete(eviction, promise, beat)
        return sum(len(eviction.deleted) for eviction in evictions)

    def settle(self, beat: Callable[[], object]) -> None:
        """Finishes units whose eviction has begun and is not wanted any more, and spares the others."""
        if self._clock() < self._settle_from:
            return
        for eviction in list(self._units):
            if self._evictions.are_under_way(eviction.refs):
                continue
            try:
                self._end(eviction, beat)
            except (EvictionStopped, EvictionPaused):
                return
            except ClusterError as error:
                log.warning(
                    "eviction not finished, will retry",
                    extra={"preemptor": eviction.preemptor, "error": error},
                )
                self._settle_from = self._clock() + (RETRY_S if error.is_temporary else REFUSED_S)

    def _end(self, eviction: UnitEviction, beat: Callable[[], object]) -> None:
        """Finishes or spares a unit, as far as that is possible now. Raises: EvictionStopped, EvictionPaused,
        ClusterError."""
        if eviction.inherited_until > -math.inf and not eviction.has_begun:
            eviction.has_begun = any(_has_ended(self._pods.get(uid)) for uid in eviction.refs)
        if eviction.has_begun:
            self._delete_rest(eviction, beat)
            self._units.remove(eviction)
        elif self._clock() >= eviction.inherited_until and self._is_spared(eviction, beat):
            self._units.remove(eviction)

    def _eviction(
        self, promise: Promise, unit: Sequence[PodRecord], beat: Callable[[], object]
    ) -> UnitEviction:
        """Returns the eviction of *unit* for the pod of *promise*: the one that is under way, or a new one.

        Others of the same pods, for another pod or of a smaller unit, end first: the next leader takes a unit of which
        some pods have another message for one that lacks pods. Raises: EvictionStopped, EvictionPaused, ClusterError.
        """
        uid, refs = promise.ref.uid, {record.ref.uid: record.ref for record in unit}
        earlier = [other for other in self._units if not other.refs.keys().isdisjoint(refs)]
        for other in earlier:
            is_of_unit = other.has_begun or refs.keys() <= other.refs.keys()
            if other.preemptor == uid and is_of_unit:
                return other
        for other in earlier:
            self._end(other, beat)
            if other in self._units:
                raise EvictionPaused("an earlier eviction of some of these pods ends first")
        message = render_preempted(uid, promise.node, _together(refs))
        eviction = UnitEviction(uid, message, dict(sorted(refs.items())))
        self._units.append(eviction)
        return eviction

    def _mark(self, eviction: UnitEviction, promise: Promise, beat: Callable[[], object]) -> None:
        """Writes the condition of all pods of a unit, unless one of them has been deleted: then all have it."""
        if eviction.has_begun:
            return
        for uid, ref in eviction.refs.items():
            if uid in eviction.marks or _has_ended(self._pods.get(uid)):
                continue
            self._check_wanted(promise)
            self._spend(beat)
            try:
                marked = self._cluster.mark_preempted(ref, eviction.message, self._now())
            except (NotFound, Conflict):
                continue  # it has ended by itself
            eviction.marks[uid] = parse_resource_version(marked.resource_version)

    def _delete(self, eviction: UnitEviction, promise: Promise, beat: Callable[[], object]) -> None:
        """Deletes all pods of a unit. Whether that is wanted is asked before the first one only."""
        if not eviction.has_begun:
            self._check_wanted(promise)
        self._delete_rest(eviction, beat)

    def _delete_rest(self, eviction: UnitEviction, beat: Callable[[], object]) -> None:
        """Deletes those pods of a unit that have not been deleted yet."""
        for uid, ref in eviction.refs.items():
            record = self._pods.get(uid)
            if uid in eviction.deleted or record is None or _has_ended(record):
                continue
            self._check_leads()
            self._spend(beat)
            self._events.record(ref, "Warning", "Preempted", eviction.message)
            try:
                self._cluster.evict(ref, min(record.traits.grace_s, MAX_GRACE_S))
            except (NotFound, Conflict):
                continue  # it has ended by itself
            except ClusterError as error:
                eviction.has_begun = eviction.has_begun or _may_have_arrived(error)
                raise
            eviction.has_begun = True
            eviction.deleted.add(uid)
            self._metrics.evicted(1)

    def _is_spared(self, eviction: UnitEviction, beat: Callable[[], object]) -> bool:
        """Removes the condition from the pods of a unit. Reports whether none has it any more.

        The last pod comes first, and none before those after it: the next leader, to whom a pod without the condition
        is one that has been deleted, spares a unit whose last pod is there without it.
        """
        for uid in sorted(eviction.marks, reverse=True):
            record = self._pods.get(uid)
            if record is not None and not _has_ended(record):
                if record.version < eviction.marks[uid]:
                    return False  # the watch is late
                if record.preempted and record.preemptor == eviction.preemptor:
                    self._check_leads()
                    self._spend(beat)
                    try:
                        self._cluster.clear_preempted(record.ref, str(record.version))
                    except Conflict:
                        return False  # the watch shows what has changed
                    except NotFound:
                        pass
                    log.info(
                        "pod not evicted",
                        extra={"pod": record.ref, "preemptor": eviction.preemptor},
                    )
            del eviction.marks[uid]
        return True

    def _check_wanted(self, promise: Promise) -> None:
        self._check_leads()
        if not self._evictions.still_wanted(promise):
            raise EvictionStopped(f"pod {promise.ref} does not wait for others any more")

    def _spend(self, beat: Callable[[], object]) -> None:
        if self.is_paused:
            raise EvictionPaused("the rest follows in the next step")
        self._writes_left -= 1
        beat()

    def _check_leads(self) -> None:
        if not self._leadership.leads():
            raise EvictionStopped("this replica of the scheduler does not lead any more")


def _inherited(unit: MarkedUnit, until: float) -> UnitEviction:
    """Returns the eviction of *unit* that an earlier leader has begun. *until*: when its deletions have arrived."""
    return UnitEviction(
        unit.preemptor,
        f"Preempted by pod {unit.preemptor}",
        refs={record.ref.uid: record.ref for record in unit.records},
        marks={record.ref.uid: record.version for record in unit.records},
        has_begun=unit.has_begun,
        inherited_until=until if unit.is_complete else -math.inf,
    )


def _together(uids: Collection[str]) -> EvictedTogether | None:
    if len(uids) == 1:
        return None
    return EvictedTogether(len(uids), max(uids))


def _has_ended(record: PodRecord | None) -> bool:
    """Reports whether a pod is gone, has terminated, or is being deleted."""
    return record is None or record.terminated or record.is_ending


def _may_have_arrived(error: ClusterError) -> bool:
    """Reports whether the API server may have carried out a call that failed."""
    is_refused = error.status is not None and 400 <= error.status < 500
    return not is_refused and not is_unsent(error)
