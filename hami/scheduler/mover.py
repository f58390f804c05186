"""The mover: moves pods so that another one fits, if somebody with the right has asked for that by its label.

One pod is moved at a time, in the whole cluster. The place of the pod that waits is held from the start. Each move is
proven before it is made: the pod has another place by the decision itself, and the rest of the moves still makes room.
The next one follows when the controller of the moved pod has another one that is bound. Where reality differs, the
moves stop after a whole one, and an event says which fact is in the way. Nothing is tried again by itself.

What the next leader needs is written on the waiting pod before each eviction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from hami.codec.keys import MAKE_ROOM, MOVES
from hami.codec.moves import MovesRecord, parse_most_moves, parse_moves_record
from hami.errors import ClusterError, Conflict, MalformedInput, NotFound
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.model import Pod, PodRef
from hami.plurals import counted
from hami.runtime.once import OncePerKey
from hami.runtime.tasks import Task
from hami.scheduler.move_maker import MOVE_TIMEOUT_S, MoveMaker, MoveMetrics, MovesUnderWay
from hami.scheduler.move_planner import MovePaused, MovePlanner, MovesStopped
from hami.scheduler.settings import APPLY, NONE, Settings
from hami.state.filtering import by_priority
from hami.state.store import Store

log = logging.getLogger(__name__)

IDLE_S = 1.0  # between looks at who asks
PERIOD_S = 0.5  # between looks at a move
RETRY_S = 5.0  # after the API server has failed


class Mover(Task):
    """Moves pods while this replica *leads*. *clock* is monotonic."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        events: EventRecorder,
        settings: Settings,
        planner: MovePlanner,
        metrics: MoveMetrics,
        *,
        leads: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        super().__init__("mover")
        self._maker = MoveMaker(cluster, store, events, planner, metrics, leads=leads, clock=clock)
        self._cluster = cluster
        self._store = store
        self._events = events
        self._mode = settings.defragment
        self._planner = planner
        self._metrics = metrics
        self._leads = leads
        self._clock = clock
        self._current: MovesUnderWay | None = None
        self._done: dict[str, PodRef] = {}  # pods whose label has still to be removed, by uid
        self._told = OncePerKey()
        self._is_new_term = False

    def step(self) -> float | None:
        """Goes on with the moves that are being made, or begins others."""
        if self._mode == NONE:
            return None
        if not self._leads():
            return IDLE_S
        if self._is_new_term:
            # the thread may still have been in a call of the earlier term
            self._is_new_term, self._current = False, None
            self._done.clear()
        try:
            self._clear()
            if self._current is None:
                self._begin_next()
            else:
                self._go_on(self._current)
        except ClusterError as error:
            log.warning("moves delayed", extra={"error": error})
            return RETRY_S
        return IDLE_S if self._current is None else PERIOD_S

    def take_over(self) -> None:
        """Holds the place for whose sake an earlier leader moves pods. A new leader calls this before it decides."""
        self._store.moves.end_all()  # of an earlier term
        self._is_new_term = True
        if self._mode != APPLY:
            return
        for pod in _asking(self._store.pods.waiting()):
            record = parse_moves_record(pod.annotations)
            if record is not None and self._store.moves.promise(pod, record.node, record.moves):
                return

    def _adopt(self, pod: Pod, record: MovesRecord) -> bool:
        """Goes on with the moves that an earlier leader has begun for *pod*, or ends them if its place cannot be held:
        the first list may have been late. Reports whether anything was to be done."""
        promise = self._store.moves.promise_for(pod.ref.uid)
        if promise is None:
            promise = self._store.moves.promise(pod, record.node, record.moves)
        if promise is not None:
            deadline = self._clock() + MOVE_TIMEOUT_S
            self._current = MovesUnderWay(pod, promise, record, record.total, deadline)
            return True
        if self._store.bindings.get(pod.ref.uid) is not None:
            return False
        self._end(pod, record.made, record.total, "its place could not be held any more")
        return True

    # One pod after the other

    def _begin_next(self) -> None:
        """Begins the moves for one pod, if one asks. Raises: ClusterError."""
        refused = self._store.moves.refused()
        for pod in self.each(_asking(self._store.pods.waiting())):
            if pod.ref.uid in self._done:
                continue
            record = parse_moves_record(pod.annotations)
            if self._mode == APPLY and record is not None and self._adopt(pod, record):
                return
            pending = refused.get(pod.ref.uid)
            if pending is None:
                continue
            if self._mode == APPLY or self._told.is_new((pod.ref.uid, pod.labels[MAKE_ROOM])):
                self._begin(pod, pending.nodes)
                return

    def _begin(self, pod: Pod, offered: tuple[str, ...] | None) -> None:
        """Plans the moves for *pod*, and holds its place. Raises: ClusterError."""
        try:
            most = parse_most_moves(pod.labels) or 0
            if MOVES in pod.annotations:
                raise MovesStopped("earlier moves for it were interrupted")
            plan = self._planner.plan(pod, offered, most)
            uids = tuple([move.uid for move in plan.moves])
            if self._mode == APPLY:
                self._hold(pod, MovesRecord(plan.node, uids))
        except (MalformedInput, MovesStopped) as stop:
            self._metrics.move("none")
            self._end(pod, 0, 0, str(stop))
            return
        moves = counted(len(uids), "move")
        message = f"it fits node {plan.node} after {moves} of other pods, which are made one by one"
        if self._mode != APPLY:
            message = f"it would fit node {plan.node} after {moves} of other pods; --defragment=apply makes them"
        self._events.record(pod.ref, "Normal", "MovePlanned", message)
        log.info("moves planned", extra={"pod": pod.ref, "node": plan.node, "moves": len(uids)})

    def _hold(self, pod: Pod, record: MovesRecord) -> None:
        """Raises: MovesStopped if the place of *pod* is taken meanwhile."""
        promise = self._store.moves.promise(pod, record.node, record.moves)
        if promise is None:
            raise MovesStopped("others are evicted for it already, or its place is taken")
        deadline = self._clock() + MOVE_TIMEOUT_S
        self._current = MovesUnderWay(pod, promise, record, record.total, deadline)

    def _go_on(self, current: MovesUnderWay) -> None:
        """Does what is next. Raises: ClusterError."""
        fact = f"this has taken {MOVE_TIMEOUT_S:g} s"
        try:
            if self._maker.advance(current):
                self._finish(current)
        except MovesStopped as stop:
            fact = str(stop)
        except MovePaused as pause:
            fact = f"{pause}, for {MOVE_TIMEOUT_S:g} s"
            if self._clock() < current.deadline:
                return
        except MalformedInput as error:
            fact = str(error)
        except ClusterError:
            if self._clock() < current.deadline:
                raise
            fact = f"the API server has failed for {MOVE_TIMEOUT_S:g} s"
        else:
            return
        self._stop(current, fact)

    # The end

    def _finish(self, current: MovesUnderWay) -> None:
        self._current = None
        self._done[current.pod.ref.uid] = current.pod.ref
        log.info("moves made", extra={"pod": current.pod.ref, "moves": current.record.made})

    def _stop(self, current: MovesUnderWay, fact: str) -> None:
        self._current = None
        self._store.moves.end(current.promise)
        self._metrics.move("stopped")
        self._end(current.pod, current.record.made, current.total, fact)

    def _end(self, pod: Pod, made: int, total: int, fact: str) -> None:
        """Says why no more pods are moved for *pod*. Who wants that asks again."""
        log.warning("moves stopped", extra={"pod": pod.ref, "made": made, "reason": fact})
        message = f"no pod is moved for this one: {fact}"
        if total:
            message = f"stopped after {made} of {counted(total, 'move')} for this pod: {fact}"
        self._events.record(pod.ref, "Warning", "MoveStopped", message)
        if self._mode == APPLY:
            self._done[pod.ref.uid] = pod.ref

    def _clear(self) -> None:
        """Removes the label and the annotation of pods for which no more pods are moved. Raises: ClusterError."""
        for uid, ref in list(self._done.items()):
            try:
                pod = self._cluster.annotate_pod(ref, {MOVES: None}, {MAKE_ROOM: None})
                self._store.pods.upsert(pod)
            except (NotFound, Conflict):
                pass  # it is gone
            except ClusterError as error:
                if error.is_temporary:
                    raise
                log.warning("label not removed", extra={"pod": ref, "error": error})
            del self._done[uid]


def _asking(pods: Iterable[Pod]) -> list[Pod]:
    """Returns those of *pods* for which others are to be moved, the highest priority first, then the oldest."""
    return sorted([pod for pod in pods if MAKE_ROOM in pod.labels], key=by_priority)
