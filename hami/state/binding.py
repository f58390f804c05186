"""The part of the store for /bind, and for whoever looks after promises that nobody binds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from hami.errors import Rejected
from hami.model import PodRef, Share
from hami.scheduling.usage import usage_by_device
from hami.state.binding_annotations import add_bind_time
from hami.state.bookings import Bookings
from hami.state.decisions import State
from hami.state.plans import is_planned
from hami.state.promises import Promise, Stage

UNSHOWN_S = 10.0  # after which the API server is asked for a pod that the watch has not shown


class Bindings:
    """The binds of promises that a filter has answered with."""

    def __init__(self, state: State) -> None:
        self._state = state

    def get(self, uid: str) -> Promise | None:
        """Returns what is assumed for a pod whose Binding has not been written."""
        promise = self._state.promises.assumed(uid)
        if promise is None or promise.stage is Stage.FINISHED:
            return None
        return promise

    def is_bound(self, uid: str, node: str) -> bool:
        """Reports whether the pod is known to be bound to *node*."""
        with self._state.lock:
            return self._state.bound_node(uid) == node

    def is_current(self, promise: Promise) -> bool:
        """Reports whether *promise* still stands: no later filter has replaced it and the pod is not gone."""
        return promise.is_assumed and self._state.promises.get(promise.ref.uid) is promise

    def start(self, ref: PodRef, node: str) -> Promise:
        """Returns the promise to bind. It does not expire until the bind finishes or is canceled.

        Raises: Rejected if there is none for this node, or it is being bound already.
        """
        with self._state.lock:
            promise = self._state.promises.assumed(ref.uid)
            if promise is None:
                raise Rejected(
                    f"pod {ref} has no reservation (it may have expired): it must be filtered again"
                )
            if promise.node != node:
                raise Rejected(f"pod {ref} is reserved on node {promise.node}, not on {node}")
            if promise.stage is not Stage.ASSUMED:
                raise Rejected(f"pod {ref} is already being bound")
            promise.enter(Stage.WAITING)
            return promise

    def prepare(self, promise: Promise) -> Mapping[str, str]:
        """Checks the promised devices once more. Returns the annotations of the Binding, which must be written now.

        Raises: Rejected; the promise ends, unless an earlier Binding of it may still be written.
        """
        with self._state.lock:
            if not self.is_current(promise):
                raise Rejected(f"pod {promise.ref}: the reservation was replaced or dropped")
            problem = self._problem(promise)
            if problem is not None:
                if not promise.outcome_unknown:
                    self._state.promises.forget(promise.ref.uid)
                raise Rejected(f"pod {promise.ref}: {problem}")
            promise.enter(Stage.WRITING)
        return add_bind_time(promise.annotations, self._state.now())

    def finish(self, promise: Promise) -> None:
        """Records that the Binding is written. The promise stays until the pod watch confirms it."""
        with self._state.lock:
            if self.is_current(promise):
                # an earlier attempt has no effect any more
                promise.enter(Stage.FINISHED, since=self._state.clock(), outcome_unknown=False)

    def cancel(self, promise: Promise) -> None:
        """Records that the bind failed. The promise stays until it expires, so the bind can be tried again."""
        with self._state.lock:
            if self.is_current(promise):
                was_sent = promise.outcome_unknown and promise.stage is Stage.WRITING
                promise.enter(Stage.ASSUMED, since=self._state.clock() if was_sent else None)

    def drop(self, promise: Promise) -> None:
        """Ends *promise* if it still stands."""
        with self._state.lock:
            if self.is_current(promise):
                self._state.promises.forget(promise.ref.uid)

    def mark_unknown(self, promise: Promise) -> bool:
        """Keeps *promise* until the outcome of its Binding is known. Reports whether it was marked before."""
        with self._state.lock:
            if not self.is_current(promise):
                return False
            was_marked = promise.outcome_unknown
            promise.enter(promise.stage, outcome_unknown=True)
            return was_marked

    def _problem(self, promise: Promise) -> str | None:
        """Returns why *promise* cannot be bound as it was made."""
        node = promise.node
        if self._state.nodes.lock_free(node) != promise.filtered.lock_free:
            return f"the device plugins of node {node} that need no lock have changed"
        usages = usage_by_device(self._state.table.usages(node))
        shares = itertools.chain.from_iterable(promise.choice.placement)
        for key, share in {(share.type, share.uuid): share for share in shares}.items():
            usage = usages.get(key)
            if usage is None or not usage.device.healthy:
                return f"device {share.uuid} on node {node} is gone or unhealthy"
            if usage.is_overcommitted and self._is_overcommitted(node, share):
                return f"device {share.uuid} on node {node} was taken by another pod meanwhile"
        return None

    def _is_overcommitted(self, node: str, share: Share) -> bool:
        """Reports whether pods alone overcommit the device of *share*. What is only planned for others does not
        count."""
        table, bookings = self._state.table, Bookings()
        for booking in table.bookings.on(node):
            if not is_planned(booking):
                bookings.put(booking)
        for usage in bookings.usages_of(node, table.nodes[node].devices)[share.type]:
            if usage.device.uuid == share.uuid and usage.is_overcommitted:
                return True
        return False


class OpenBindings:
    """The promises that a filter has answered with and that are not bound, for whoever looks after them."""

    def __init__(self, state: State) -> None:
        self._state = state

    def unbound(self) -> int:
        """Returns how many have no Binding yet."""
        with self._state.lock:
            stages = [promise.stage for promise in self._state.promises.all_assumed()]
        return len(stages) - stages.count(Stage.FINISHED)

    def are_binding(self) -> bool:
        """Reports whether a pod is being bound, or a Binding without an answer may still be written."""
        with self._state.lock:
            for promise in self._state.promises.all_assumed():
                if promise.outcome_unknown or promise.stage in (Stage.WAITING, Stage.WRITING):
                    return True
            return False

    def unknown(self) -> list[Promise]:
        """Returns promises whose Binding was sent so long ago that the API server has written it or never will."""
        return [promise for promise in self._overdue() if promise.outcome_unknown]

    def clear_unknown(self, promise: Promise) -> None:
        """Ends a promise from :meth:`unknown` whose pod is not bound, unless it was tried again."""
        with self._state.lock:
            if self._state.promises.get(promise.ref.uid) is not promise:
                return
            if promise.outcome_unknown and promise.is_overdue(self._state.clock()):
                self._state.promises.forget(promise.ref.uid)

    def expire(self) -> list[Promise]:
        """Ends and returns the promises that were not bound in time."""
        with self._state.lock:
            expired = [promise for promise in self._overdue() if not promise.outcome_unknown]
            for promise in expired:
                self._state.promises.forget(promise.ref.uid)
            return expired

    def unshown(self) -> list[Promise]:
        """Returns those that nobody binds and whose pods the watch should have shown, oldest first."""
        with self._state.lock:
            latest = self._state.clock() - UNSHOWN_S
            found: list[Promise] = []
            for promise in self._state.promises.unshown.all():
                if not promise.is_wanted and (promise.unshown_since or 0.0) <= latest:
                    found.append(promise)
            return found

    def _overdue(self) -> list[Promise]:
        with self._state.lock:
            clock = self._state.clock()
            return [
                promise
                for promise in self._state.promises.all_assumed()
                if promise.is_overdue(clock)
            ]
