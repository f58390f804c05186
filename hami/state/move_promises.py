"""The part of the store for moves: promises to pods for which others are moved, one after the other.

Such a promise has all its victims from the start, and takes over what each of them leaves. The preemptor evicts nobody
for it. It stands until its pod is bound or gone, or cannot get it any more, or who makes the moves ends it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from hami.model import Pod
from hami.state.decisions import Decisions, State
from hami.state.pending import PendingPod
from hami.state.preemption import is_running, make_promise
from hami.state.promises import Promise, PromiseEnd, Stage


class MovePromises:
    """Promises to pods what others leave that are moved for them."""

    def __init__(self, state: State, decisions: Decisions) -> None:
        self._state = state
        self._decisions = decisions

    def refused(self) -> dict[str, PendingPod]:
        """Returns the pods that were refused last, wait and have no promise, by uid."""
        with self._state.lock:
            self._decisions.settle()
            refused: dict[str, PendingPod] = {}
            for pending in self._state.pending.all():
                uid = pending.pod.ref.uid
                if self._state.promises.get(uid) is None and not self._state.waits_no_longer(uid):
                    refused[uid] = pending
            return refused

    def promise(self, pod: Pod, node: str, movable: Collection[str]) -> Promise | None:
        """Promises *pod* what it needs on *node* once those of the pods *movable* (uids) have left that are there;
        ``None`` if it has a promise, or does not fit then."""
        state, decisions = self._state, self._decisions
        with state.lock:
            decisions.settle()
            if state.promises.get(pod.ref.uid) is not None:
                return None
            units: list[frozenset[str]] = []
            for uid in movable:
                if self._is_on(uid, node):
                    units.append(frozenset({uid}))
            promise = make_promise(state, decisions, pod, node, tuple(units))
            if promise is None:
                return None
            promise = replace(promise, stage=Stage.EVICTING, one_by_one=True, until=None)
            state.promises.plan(promise)
            decisions.settle()
            decisions.end_lower_plans(pod, node)
            decisions.settle()
            return promise

    def promise_for(self, uid: str) -> Promise | None:
        """Returns the promise to the pod for which others are moved."""
        with self._state.lock:
            self._decisions.settle()
            promise = self._state.promises.plan_for(uid)
            if promise is None or not promise.one_by_one:
                return None
            return promise

    def how_ended(self, uid: str) -> PromiseEnd | None:
        """Returns how the promise to the pod has ended since the last call; ``None`` if it has not."""
        with self._state.lock:
            others: list[tuple[Promise, PromiseEnd]] = []
            end: PromiseEnd | None = None
            for plan, how in self._state.ended_plans:
                if not plan.one_by_one:
                    others.append((plan, how))
                elif plan.ref.uid == uid:
                    end = how
            self._state.ended_plans[:] = others
            return end

    def end(self, promise: Promise) -> None:
        """Ends *promise* if it stands. What is assumed for its pod stays."""
        with self._state.lock:
            if self._state.promises.plan_for(promise.ref.uid) is promise:
                self._state.promises.remove(promise)

    def end_all(self) -> None:
        """Ends all such promises, which are of an earlier term of this leader."""
        with self._state.lock:
            for promise in self._state.promises.plans():
                if promise.one_by_one:
                    self._state.promises.remove(promise)

    def _is_on(self, uid: str, node: str) -> bool:
        record = self._state.pods.get(uid)
        return record is not None and record.node == node and is_running(self._state, uid)
