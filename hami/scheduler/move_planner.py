"""Which moves make room for a pod, and whether they still do: each is proven on the store's view, with pods as the API
server has them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime

from hami.codec.moves import MovesRecord
from hami.errors import HamiError
from hami.kube.cluster import Cluster
from hami.model import Immovable, Pod
from hami.plurals import counted
from hami.scheduling.moves import MEANINGS, MoveRules
from hami.state.moves import (
    MoveLimits,
    MoveObstacle,
    MovePlan,
    MoveSearch,
    choose_with_room,
    proven_moves,
)
from hami.state.plans import planned_uid
from hami.state.store import Store
from hami.state.view import View
from hami.vendors.request import requests_devices

SEARCH_S = 5.0  # for a plan
MAX_MOVABLE = 20_000  # pods among which a plan is searched


class MovesStopped(HamiError):
    """The moves for a pod do not go on. The text is the fact that is in the way, and names no pod of others."""


class MovePaused(HamiError):
    """The moves for a pod go on later, unless it takes too long. The text is the fact that is waited for."""


class MovePlanner:
    """Reads what a plan depends on, and proves it. *clock* is monotonic, *now* the time of day."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        *,
        min_runtime_s: float,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        """*min_runtime_s*: pods that have run for less are not moved. *clock*: also called before each step of a
        search, so that it may leave the interpreter to others."""
        self._cluster = cluster
        self._store = store
        self._min_runtime_s = min_runtime_s
        self._clock = clock
        self._now = now

    def plan(self, pod: Pod, offered: Collection[str] | None, most: int) -> MovePlan:
        """Returns at most *most* moves after which *pod* fits one of the nodes *offered*, ``None`` for all.

        Raises: MovesStopped if there are none; ClusterError; MalformedInput for an unreadable annotation.
        """
        if pod.group:
            raise MovesStopped("it is placed together with other pods")
        view = self._view_without(pod)
        names = self._names(view)
        nodes = [name for name in names if offered is None or name in offered]
        if choose_with_room(view, pod, nodes) is not None:
            raise MovesStopped("its devices fit without a move")
        search = MoveSearch(names, self._movable(view, pod), self._clock, offered=nodes)
        plan = search.plan(view, pod, MoveLimits(moves=most, seconds=SEARCH_S))
        if isinstance(plan, MovePlan):
            return plan
        if plan.is_proven:
            raise MovesStopped(f"it does not fit after {counted(most, 'move')}")
        raise MovesStopped(f"no plan was found in {SEARCH_S:g} s")

    def left_to_move(self, pod: Pod, record: MovesRecord) -> dict[str, Pod]:
        """Returns the pods of *record* that have still to move for *pod*, in order, without those that have ended.

        Raises: MovesStopped if one of them may be moved no more; MovePaused if the first may not be evicted now;
        ClusterError; MalformedInput.
        """
        rules, pods = self._rules(), dict[str, Pod]()
        for uid in record.moves:
            other = self._read(uid)
            if other is None or other.deleting or other.is_terminated:
                continue
            reason = rules.why_stays(other, pod)
            if reason is Immovable.BUDGET and not pods:
                raise MovePaused(MEANINGS[reason])
            if reason not in (None, Immovable.BUDGET):
                raise MovesStopped(f"a pod may be moved no more: {MEANINGS[reason]}")
            pods[uid] = other
        return pods

    def is_needed(self, pod: Pod, node: str, pods: Mapping[str, Pod]) -> bool:
        """Reports whether *pods* (by uid, in order) have to move so that *pod* fits *node*: it does not yet.

        Raises: MovesStopped if it does not after these moves either, or one of them has no place.
        """
        view = self._view_without(pod)
        if choose_with_room(view, pod, [node]) is not None:
            return False
        moves = proven_moves(view, pod, node, pods, self._names(view))
        if not isinstance(moves, MoveObstacle):
            return True
        if moves.uid is None:
            raise MovesStopped(f"it does not fit node {node} after {counted(len(pods), 'move')}")
        place = list(pods).index(moves.uid) + 1
        raise MovesStopped(f"pod {place} of {len(pods)} that have to move has no other place")

    def _view_without(self, pod: Pod) -> View:
        view = self._store.view()
        return view.what_if(without=[pod.ref.uid, planned_uid(pod.ref.uid)])

    def _names(self, view: View) -> list[str]:
        """Returns the nodes that kube-scheduler may offer."""
        return sorted(view.nodes.keys() - self._store.nodes.cordoned())

    def _movable(self, view: View, pod: Pod) -> dict[str, Pod]:
        rules, movable = self._rules(), dict[str, Pod]()
        for other in self._cluster.bound_pods():
            self._clock()
            if view.booking(other.ref.uid) is None or rules.why_stays(other, pod) is not None:
                continue
            if requests_devices(self._store.vendors, other.containers):
                movable[other.ref.uid] = other
            if len(movable) == MAX_MOVABLE:
                break
        return movable

    def _rules(self) -> MoveRules:
        return MoveRules(
            now=self._now().timestamp(),
            min_runtime_s=self._min_runtime_s,
            budgets=self._cluster.disruption_budgets(),
        )

    def _read(self, uid: str) -> Pod | None:
        """Returns the pod as it is now; ``None`` if it is gone."""
        record = self._store.pods.get(uid)
        if record is None:
            return None
        pod = self._cluster.pod(record.ref.namespace, record.ref.name)
        if pod is None or pod.ref.uid != uid:
            return None
        return pod
