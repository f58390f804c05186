"""The moves for one pod: what is next, and what must hold for it."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from hami.codec.keys import MOVES
from hami.codec.moves import MovesRecord, parse_most_moves, render_moves_record
from hami.errors import ClusterError, Conflict, NotFound
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.kube.pods import is_budget_refusal
from hami.model import Immovable, Pod
from hami.plurals import counted
from hami.scheduler.move_planner import MovePaused, MovePlanner, MovesStopped
from hami.scheduling.moves import MEANINGS
from hami.state.promises import Promise, PromiseEnd
from hami.state.read_pod import MAX_GRACE_S
from hami.state.store import Store

log = logging.getLogger(__name__)

MOVE_TIMEOUT_S = 120.0
"""Seconds for a move, beside the grace period of its pod, and for the pod that waits after the last one."""
_ENDS: Mapping[PromiseEnd | None, str] = MappingProxyType(
    {
        PromiseEnd.DELETED: "it is gone",
        PromiseEnd.UNFIT: "a device of its place is gone, unhealthy or cordoned, or taken by others",
        PromiseEnd.TAKEN: "a pod of higher priority has taken its place",
    }
)


class MoveMetrics(Protocol):
    """Counts moves, such as :class:`hami.scheduler.metrics.Metrics`."""

    def move(self, result: str) -> None: ...


class MoveStage(enum.Enum):
    """The stages of moves for a pod."""

    NEXT = "the next pod is proven and evicted"
    EVICTED = "its controller makes another one"
    PLACING = "all are made, and kube-scheduler binds the pod that waits"


@dataclass(slots=True, eq=False)
class MovesUnderWay:
    """The moves for *pod*, which has *promise*. Only :class:`Mover` changes it.

    *total*: the number of moves, with those that have been made. *deadline*: of the stage, by the clock.
    *end*: how the promise has ended. *is_permitted*: the API server has been asked whether it would evict all pods.
    """

    pod: Pod
    promise: Promise
    record: MovesRecord
    total: int
    deadline: float
    stage: MoveStage = MoveStage.NEXT
    is_permitted: bool = False
    end: PromiseEnd | None = None

    def enter(self, stage: MoveStage, deadline: float) -> None:
        """Records the next stage."""
        self.stage = stage
        self.deadline = deadline


class MoveMaker:
    """Makes moves while this replica *leads*. *clock* is monotonic."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        events: EventRecorder,
        planner: MovePlanner,
        metrics: MoveMetrics,
        *,
        leads: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._events = events
        self._planner = planner
        self._metrics = metrics
        self._leads = leads
        self._clock = clock

    def advance(self, current: MovesUnderWay) -> bool:
        """Does what is next. Reports whether that was the last.

        Raises: MovesStopped, MovePaused, MalformedInput, ClusterError.
        """
        self._store.preemptions.promised()  # ends those that do not fit any more
        current.end = self._store.moves.how_ended(current.pod.ref.uid) or current.end
        record = self._store.pods.get(current.pod.ref.uid)
        if record is None or record.terminated:
            raise MovesStopped("it is gone")
        if current.stage is MoveStage.EVICTED:
            self._await_replacement(current)
        if record.node:
            return True
        self._check_place(current)
        if current.promise.is_assumed:
            raise MovePaused("it fits, and kube-scheduler has not bound it")
        if current.stage is MoveStage.PLACING:
            raise MovePaused("its place is free, and kube-scheduler has not bound it")
        self._move(current)
        return False

    def _check_place(self, current: MovesUnderWay) -> None:
        """Raises: MovesStopped if the place of the pod is not held any more, or is another one."""
        promise = self._store.moves.promise_for(current.pod.ref.uid)
        if promise is None:
            if self._store.bindings.is_bound(current.pod.ref.uid, current.record.node):
                raise MovePaused("it is bound")  # the watch shows that soon
            raise MovesStopped(_ENDS.get(current.end, "its place is not held any more"))
        current.promise = promise
        if promise.node != current.record.node:
            raise MovesStopped(f"it fits node {promise.node} now")

    def _move(self, current: MovesUnderWay) -> None:
        """Evicts the next pod, if it is proven that this is needed, and helps.

        Raises: MovesStopped, MovePaused, MalformedInput, ClusterError.
        """
        pod, record = self._asking_now(current), current.record
        pods = self._planner.left_to_move(pod, record)
        if record.controller and record.moves[0] not in pods:
            current.enter(MoveStage.EVICTED, self._clock() + MOVE_TIMEOUT_S)
            return
        if not self._planner.is_needed(pod, record.node, pods):
            current.record = MovesRecord(record.node, (), record.made)
            current.enter(MoveStage.PLACING, self._clock() + MOVE_TIMEOUT_S)
            return
        if not current.is_permitted:
            for other in pods.values():
                self._evict(other, dry_run=True)
            current.is_permitted = True
        moved = next(iter(pods.values()))
        current.record = MovesRecord(
            record.node,
            tuple(pods),
            record.made,
            moved.controller,
            self._running(moved.controller),
        )
        self._write(pod, current.record)
        if not self._leads():
            raise MovePaused("another replica leads")
        self._evict(moved)
        grace_s = min(moved.grace_s, MAX_GRACE_S)
        current.enter(MoveStage.EVICTED, self._clock() + grace_s + MOVE_TIMEOUT_S)
        message = f"evicted from node {moved.node_name} so that pod {pod.ref.uid} fits there, or another moved one"
        self._events.record(moved.ref, "Normal", "Moved", message)
        log.info("pod moved", extra={"pod": moved.ref, "node": moved.node_name, "for": pod.ref})

    def _asking_now(self, current: MovesUnderWay) -> Pod:
        """Returns the waiting pod as it is now.

        Raises: MovesStopped if it does not wait, or nobody asks for so many moves any more; MovePaused; MalformedInput;
        ClusterError.
        """
        ref = current.pod.ref
        pod = self._cluster.pod(ref.namespace, ref.name)
        if pod is None or pod.ref.uid != ref.uid:
            raise MovesStopped("it is gone")
        if pod.node_name:
            raise MovePaused("it is bound")  # the watch shows that soon
        most = parse_most_moves(pod.labels)
        if most is None:
            raise MovesStopped("the request has been withdrawn")
        if most <= current.record.made:
            raise MovesStopped(f"no more than {counted(most, 'move')} may be made for it")
        return pod

    def _write(self, pod: Pod, record: MovesRecord) -> None:
        """Writes how far the moves for *pod* have come, for the next leader. Raises: MovesStopped, MovePaused,
        ClusterError."""
        annotations = {MOVES: render_moves_record(record)}
        try:
            self._cluster.annotate_pod(pod.ref, annotations, resource_version=pod.resource_version)
        except NotFound as error:
            raise MovesStopped("it is gone") from error
        except Conflict as error:
            raise MovePaused("it changes all the time") from error

    def _evict(self, pod: Pod, *, dry_run: bool = False) -> None:
        """Raises: MovesStopped, MovePaused, ClusterError."""
        try:
            self._cluster.request_eviction(pod.ref, dry_run=dry_run)
        except (NotFound, Conflict) as error:
            raise MovePaused("the pod to move is ending") from error  # the next look says so
        except ClusterError as error:
            if is_budget_refusal(error):
                raise MovePaused(MEANINGS[Immovable.BUDGET]) from error
            if error.is_temporary:
                raise
            log.warning("pod not moved", extra={"pod": pod.ref, "error": error})
            raise MovesStopped(f"the API server refuses the eviction ({error.status})") from error

    def _await_replacement(self, current: MovesUnderWay) -> None:
        """Records the move as made. Raises: MovePaused while there is no bound pod in place of the moved one."""
        record = current.record
        moved = self._store.pods.get(record.moves[0])
        if moved is not None and not moved.terminated:
            raise MovePaused("the moved pod has not ended")
        if self._running(record.controller) < record.pods:
            raise MovePaused("the controller of the moved pod has no other one that is bound")
        current.record = MovesRecord(record.node, record.moves[1:], record.made + 1)
        current.enter(MoveStage.NEXT, self._clock() + MOVE_TIMEOUT_S)
        self._metrics.move("moved")
        made = f"{current.record.made} of {counted(current.total, 'move')} made for this pod"
        self._events.record(current.pod.ref, "Normal", "Moved", made, replaces=True)

    def _running(self, controller: str) -> int:
        """Returns how many pods of *controller* (a uid) are bound and neither end nor have ended."""
        count = 0
        for record in self._store.pods.by_uid().values():
            if record.traits.controller == controller and record.is_running:
                count += not record.ends_by
        return count
