"""The scheduler's store: nodes, pods, quotas and promises, under one lock.

The lock is held for computation only, never across I/O. A filter chooses devices and promises them in one step under
the lock, so the same part of a device is never given to two pods. The watches say what there is; whoever decides is
handed the part of the store that it needs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime

from hami.state.admission import Admissions
from hami.state.binding import Bindings, OpenBindings
from hami.state.bookings import Booking
from hami.state.decisions import Decisions, State
from hami.state.evictions import Evictions
from hami.state.filtering import Filtering
from hami.state.learning import Learning
from hami.state.move_promises import MovePromises
from hami.state.nodes import NodeCache
from hami.state.plans import planned_uid
from hami.state.pods import ForeignNodes, PodCache
from hami.state.preemption import Preemptions
from hami.state.promises import Promise, Promises
from hami.state.quotas import QuotaCache
from hami.state.resize import Resizes
from hami.state.rooms import Rooms, Usual
from hami.state.table import Table
from hami.state.verdicts import Verdicts
from hami.state.view import Facts, Policies, View
from hami.vendors.spec import Catalog


class Store:
    """Nodes, pods, quotas and promises. *clock* is monotonic, *now* is the time of day in UTC.

    *foreign_reservations*: what another scheduler has written on an unbound pod counts for some time. *usual*: the pods
    that usually come, as far as that is known at first.
    """

    def __init__(
        self,
        vendors: Catalog,
        policies: Policies,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        foreign_reservations: bool = False,
        usual: Usual = Usual(),
    ) -> None:
        self.vendors = vendors
        self.policies = policies
        lock = threading.RLock()
        table = Table()
        rooms = Rooms(table, usual)
        promises = Promises(table.bookings, clock)
        self.quotas = QuotaCache(lock)
        self.foreign_nodes = ForeignNodes(lock, clock)
        self.pods = PodCache(
            vendors,
            lock,
            table,
            promises,
            self.foreign_nodes,
            foreign_reservations=foreign_reservations,
            clock=clock,
            now=now,
        )
        self.nodes = NodeCache(
            vendors, lock, table, self.pods, self.foreign_nodes, clock=clock, now=now
        )
        self._state = State(
            vendors=vendors,
            policies=policies,
            clock=clock,
            now=now,
            lock=lock,
            table=table,
            verdicts=Verdicts(table, rooms),
            nodes=self.nodes,
            pods=self.pods,
            quotas=self.quotas,
            promises=promises,
            learning=Learning(vendors, table, self.pods, rooms),
        )
        self._decisions = Decisions(self._state)
        self.admissions = Admissions(self._state, self._decisions)
        self.filtering = Filtering(self._state, self._decisions)
        self.bindings = Bindings(self._state)
        self.open_bindings = OpenBindings(self._state)
        self.preemptions = Preemptions(self._state, self._decisions)
        self.moves = MovePromises(self._state, self._decisions)
        self.evictions = Evictions(self._state, self._decisions)
        self.resizes = Resizes(self._state, self._decisions)

    def expire(self) -> list[Promise]:
        """Ends what has timed out: promises, which are returned, and silent device plugins."""
        with self._state.lock:
            expired = self.open_bindings.expire()
            self.pods.expire()
            self.nodes.expire()
            return expired

    def learn(self) -> None:
        """Counts the pods that have devices, if they have changed: without decisions, they are what is known of the
        usual pods."""
        with self._state.lock:
            self._state.learning.learn()

    def is_writing(self) -> bool:
        """Reports whether a Binding or a larger allocation may still be written."""
        with self._state.lock:
            return self.open_bindings.are_binding() or self.resizes.are_growing()

    def view(self) -> View:
        """Returns the content of the store. The lock is held only while references are copied."""
        state = self._state
        with state.lock:
            self._decisions.settle()
            reserved = {promise.ref.uid: promise.ref for promise in state.promises.all_assumed()}
            for plan in state.promises.plans():
                reserved[planned_uid(plan.ref.uid)] = plan.ref
            return View(
                state.table.copy(),
                Facts(
                    vendors=self.vendors,
                    policies=self.policies,
                    pods=self.pods.by_uid(),
                    reserved=reserved,
                    quotas=self.quotas.by_namespace(),
                    problems=self.nodes.problems(),
                    locks=self.nodes.locks(),
                    usual=state.learning.usual(),
                ),
            )

    def version(self) -> tuple[int, ...]:
        """Returns numbers of which one increases with every change of what can be read here."""
        state = self._state
        with state.lock:
            state.table.refresh()
            return (
                state.table.changes,
                self.quotas.changes,
                self.nodes.changes,
                self.pods.changes,
                state.learning.changes,
            )

    def booking(self, uid: str) -> Booking | None:
        """Returns what the pod holds."""
        with self._state.lock:
            return self._state.table.bookings.by_uid.get(uid)
