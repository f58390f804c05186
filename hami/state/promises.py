"""Promises: devices of a node for pods that are not bound yet.

A promise begins with a filter, which assumes devices for its pod, or with a plan for whose sake other pods are evicted.
What these leave belongs to the pod, so it is assumed from there. A promise is kept while its Binding is waited for and
written, and ends when the pod watch shows the pod bound: from then on the pod has a booking of its own. If a bind does
not come about, what others have been evicted for is promised further.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from hami.codec.objects import parse_resource_version
from hami.model import Pod, PodRef
from hami.scheduling.placement import NodeUsage
from hami.scheduling.refusal import Choice
from hami.state.binding_annotations import render_annotations
from hami.state.bookings import Booking, Bookings
from hami.vendors.spec import Vendor

PREFIX = "planned/"  # of the uid of a booking; no uid of a pod has a slash
ASSUMED_TTL_S = 900.0  # kube-scheduler shows when it gives up a pod; this is for when it does not
NOMINATED_TTL_S = 600.0  # after kube-scheduler has said that it binds the pod to the node: a volume may take minutes
GROUP_TTL_S = 10.0  # of a pod of a group, without such a sign: where the group does not fit, no condition changes
# after which a Binding that was sent without an answer is written, or never will be
ANSWER_S = 60.0


class Stage(enum.Enum):
    """The stages of a promise on its way to a bound pod."""

    PLANNED = "planned"  # victims are chosen, and have not all been deleted
    EVICTING = "evicting"  # they have been deleted, and may not have ended
    ASSUMED = "assumed"  # answered to kube-scheduler
    WAITING = "waiting"  # /bind waits for the node locks
    WRITING = "writing"  # the Binding is being written
    FINISHED = "finished"  # written, but not seen by the pod watch yet


PLANS = (Stage.PLANNED, Stage.EVICTING)
BINDS = (Stage.WAITING, Stage.WRITING, Stage.FINISHED)


class PromiseEnd(enum.StrEnum):
    """The ways in which a promise ends for whose pod others are evicted."""

    BOUND = "bound"
    DELETED = "deleted"  # its pod
    EXPIRED = "expired"  # a victim has not ended in time, or kube-scheduler has not placed the pod
    UNFIT = "unfit"  # a device is gone or sick
    TAKEN = "taken"  # by a pod of higher priority
    RELEASED = "released"  # the pod fits without it, or kube-scheduler evicts others


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The facts at the time of a filter from which the annotations of the Binding are made."""

    vendors: tuple[Vendor, ...]
    """The vendors of the devices."""
    usages: NodeUsage
    """The devices of the node."""
    assumed: datetime
    """The time of day of the decision."""
    lock_free: frozenset[str]
    """The vendors that need no lock, as the node said."""


@dataclass(slots=True, eq=False, kw_only=True)
class Promise:
    """Devices of a node that *pod* gets, as *choice* says. Only the package ``hami.state`` changes it, under the lock.

    A plan becomes what a filter has answered with, and keeps these devices then: whoever is handed the promise reads
    it without the lock, so another decision is another promise.
    """

    pod: Pod
    choice: Choice
    booking: Booking
    """All that the pod needs."""
    stage: Stage

    units: tuple[frozenset[str], ...] = ()
    """The uids of the victims, by those that are evicted together."""
    one_by_one: bool = False
    """The victims are moved one after the other, not evicted for a pod of higher priority."""
    until: float | None = None
    """When what is evicted for the pod is promised at the latest, by the clock; ``None`` if nobody has been."""
    checked: int = -1
    """The version of the node in which the pod certainly gets what is planned."""

    terms: Terms | None = None
    """From the filter on."""
    since: float = 0.0
    """When it was assumed, or its Binding written or last tried, on the monotonic clock."""
    outcome_unknown: bool = False
    """A Binding was sent without an answer, so it may have been written."""
    nominated: bool = False
    """kube-scheduler has shown that it binds the pod to this node."""
    unshown_since: float | None = None
    """When the pod was first assumed for, without a break, if the pod watch has not shown it yet."""
    _annotations: Mapping[str, str] | None = None
    _token: uuid.UUID | None = None

    @property
    def ref(self) -> PodRef:
        """The pod's identity."""
        return self.pod.ref

    @property
    def node(self) -> str:
        """The node."""
        return self.booking.node

    @property
    def is_assumed(self) -> bool:
        """Whether a filter has answered with it."""
        return self.stage not in PLANS

    @property
    def victims(self) -> frozenset[str]:
        """The uids of all victims."""
        return frozenset().union(*self.units)

    @property
    def is_wanted(self) -> bool:
        """Whether kube-scheduler has shown that it binds the pod, or does so."""
        return self.nominated or self.outcome_unknown or self.stage in BINDS

    @property
    def lock_keys(self) -> tuple[str, ...]:
        """The annotations of the node locks that the bind has to take, sorted."""
        terms = self.filtered
        keys = {
            vendor.annotations.lock for vendor in terms.vendors if vendor.key not in terms.lock_free
        }
        return tuple(sorted(keys - {""}))

    @property
    def annotations(self) -> Mapping[str, str]:
        """The annotations of the Binding, except for the time of the bind."""
        if self._annotations is None:
            terms = self.filtered
            self._annotations = render_annotations(
                self.pod,
                self.node,
                terms.vendors,
                self.choice.placement,
                terms.lock_free,
                terms.usages,
                terms.assumed,
            )
        return self._annotations

    @property
    def filtered(self) -> Terms:
        """The terms of a promise that a filter has answered with."""
        assert self.terms is not None, "a filter has assumed it"
        return self.terms

    @property
    def token(self) -> uuid.UUID:
        """A value that no other decision has. It tells which of them has written a claim."""
        if self._token is None:
            self._token = uuid.uuid4()
        return self._token

    def enter(
        self, stage: Stage, *, since: float | None = None, outcome_unknown: bool | None = None
    ) -> None:
        """Records that it is in *stage*."""
        self.stage = stage
        if since is not None:
            self.since = since
        if outcome_unknown is not None:
            self.outcome_unknown = outcome_unknown

    def change(self, choice: Choice, booking: Booking) -> None:
        """Plans other devices."""
        self.choice = choice
        self.booking = booking
        self.checked = -1

    def mark_checked(self, version: int) -> None:
        """Records that the pod gets what is planned while its node has this *version*."""
        self.checked = version

    def mark_evicted(self, *, are_spared: bool = False) -> None:
        """Records that the victims have been deleted, or *are_spared*, since the pod fits without their end."""
        if are_spared:
            self.units = ()
        if self.stage is Stage.PLANNED:
            self.stage = Stage.EVICTING

    def nominate(self, clock: float) -> None:
        """Notes that kube-scheduler binds the pod to this node."""
        self.nominated = True
        self.since = clock

    def is_overdue(self, clock: float) -> bool:
        """Reports whether it has been assumed for so long that it ends."""
        if self.stage is not Stage.ASSUMED:
            return False
        if self.outcome_unknown:
            lifetime_s = ANSWER_S
        elif self.nominated:
            lifetime_s = NOMINATED_TTL_S
        elif self.pod.group:
            lifetime_s = GROUP_TTL_S
        else:
            lifetime_s = ASSUMED_TTL_S
        return clock - self.since >= lifetime_s


def is_bound_without_lock(promise: Promise) -> bool:
    """Reports whether the Binding is written, and the node said that it needs no lock."""
    if promise.stage is not Stage.FINISHED or not promise.filtered.lock_free:
        return False
    return not promise.lock_keys


class UnshownPods:
    """Promises of pods that the watch has not shown: it is late, or they do not exist. The oldest comes first."""

    def __init__(self) -> None:
        self._promises: dict[str, Promise] = {}
        self._sizes: dict[str, int] = {}
        self._size = 0

    def put(self, promise: Promise) -> None:
        """Adds *promise*, in place of an earlier one."""
        uid = promise.ref.uid
        self.pop(uid)
        self._promises[uid] = promise
        self._sizes[uid] = promise.pod.size
        self._size += promise.pod.size

    def pop(self, uid: str) -> Promise | None:
        """Removes the pod's promise and returns it, if there is one."""
        self._size -= self._sizes.pop(uid, 0)
        return self._promises.pop(uid, None)

    def all(self) -> list[Promise]:
        """Returns the promises."""
        return list(self._promises.values())

    def beside(self, uid: str) -> tuple[int, int]:
        """Returns how many other pods there are than the one of *uid*, and their size in bytes."""
        return len(self._promises) - (uid in self._promises), self._size - self._sizes.get(uid, 0)


class Promises:
    """Promises by pod uid, booked in *bookings*. Its owner holds a lock; only single look-ups do without.

    What is planned is booked elsewhere, since that depends on what the victims still have.
    """

    def __init__(self, bookings: Bookings, clock: Callable[[], float]) -> None:
        self._bookings = bookings
        self._clock = clock
        self._promises: dict[str, Promise] = {}
        self._plans: dict[str, Promise] = {}  # those for whose pods others are evicted
        self.unshown = UnshownPods()

    def get(self, uid: str) -> Promise | None:
        """Returns the pod's promise in any stage."""
        return self._promises.get(uid)

    def assumed(self, uid: str) -> Promise | None:
        """Returns the pod's promise if a filter has answered with it."""
        promise = self._promises.get(uid)
        return promise if promise is not None and promise.is_assumed else None

    def plan_for(self, uid: str) -> Promise | None:
        """Returns the pod's promise if others are evicted for it, also when it is assumed by now."""
        return self._plans.get(uid)

    def all_assumed(self) -> list[Promise]:
        """Returns the promises that a filter has answered with."""
        return [promise for promise in self._promises.values() if promise.is_assumed]

    def plans(self) -> list[Promise]:
        """Returns the promises for whose pods others are evicted, also those that are assumed by now."""
        return list(self._plans.values())

    def plan(self, promise: Promise) -> None:
        """Adds *promise*, for which others are to be evicted, in place of an earlier one. It is not booked yet."""
        self._promises[promise.ref.uid] = self._plans[promise.ref.uid] = promise

    def assume(self, promise: Promise) -> None:
        """Adds *promise*, which a filter answers with, and books it, in place of an earlier one. If there is a plan for
        its pod, that is kept."""
        uid = promise.ref.uid
        self.confirm(uid)
        plan = self._plans.get(uid)
        if plan is not None:
            _answer_with(plan, promise)
            promise = plan
        self._promises[uid] = promise
        if promise.unshown_since is not None:
            self.unshown.put(promise)
        self._bookings.put(promise.booking)

    def forget(self, uid: str) -> None:
        """Ends what is assumed for the pod, with its booking. A plan for it stands further."""
        if self.confirm(uid):
            self._bookings.pop(uid)

    def confirm(self, uid: str) -> bool:
        """Ends what is assumed for a pod that the watch shows bound: the booking is the pod's from now on. Reports
        whether anything was."""
        self.unshown.pop(uid)
        promise = self.assumed(uid)
        if promise is None:
            return False
        if uid not in self._plans:
            del self._promises[uid]
            return True
        plan = Promise(
            pod=promise.pod,
            choice=promise.choice,
            booking=promise.booking,
            stage=Stage.EVICTING,
            units=promise.units,
            one_by_one=promise.one_by_one,
            until=promise.until,
        )
        self.plan(plan)
        return True

    def remove(self, promise: Promise) -> None:
        """Ends the plan that *promise* is. What is assumed stays."""
        uid = promise.ref.uid
        self._plans.pop(uid, None)
        self._bookings.pop(PREFIX + uid)
        if not promise.is_assumed:
            self._promises.pop(uid, None)

    def prune(self, seen: set[str], started: float) -> None:
        """Forgets pods that were bound before a list was requested (*started*) and are not in it (*seen*)."""
        for promise in self.all_assumed():
            is_bound = promise.stage is Stage.FINISHED and promise.since < started
            if is_bound and promise.ref.uid not in seen:
                self.forget(promise.ref.uid)

    def observe(self, pod: Pod) -> None:
        """Follows what kube-scheduler shows of *pod*, which is not bound: it never tells an extender of a failure.

        The node that it nominates is the one that it binds the pod to. A failure after the filter, or a nomination that
        is gone, ends what is assumed. A bind that has begun goes on.
        """
        promise = self._promises.get(pod.ref.uid)
        if promise is None or promise.stage is not Stage.ASSUMED or promise.outcome_unknown:
            return
        decided_on = promise.pod
        if parse_resource_version(pod.resource_version) <= parse_resource_version(
            decided_on.resource_version
        ):
            return
        if pod.nominated_node == promise.node:
            promise.nominate(self._clock())
        elif promise.nominated or pod.scheduling_failure not in ("", decided_on.scheduling_failure):
            self.forget(pod.ref.uid)

    def mark_shown(self, uid: str) -> None:
        """Notes that the watch has shown the pod, or that the API server has it."""
        promise = self.unshown.pop(uid)
        if promise is not None:
            promise.unshown_since = None


def _answer_with(plan: Promise, decision: Promise) -> None:
    """Makes *plan* what a filter has answered with. Its victims are spared, unless they have been deleted."""
    if plan.stage is Stage.PLANNED:
        plan.units = ()
    plan.change(decision.choice, decision.booking)
    plan.pod = decision.pod
    plan.terms = decision.terms
    plan.since = decision.since
    plan.unshown_since = decision.unshown_since
    plan.stage = decision.stage  # last, since look-ups without the lock rely on the rest
