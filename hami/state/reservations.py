"""Reservations: devices held for pods until the pod watch shows them bound.

A reservation is assumed by a filter, kept while its Binding is waited for and written, and confirmed when the pod watch
shows the pod bound: from then on the pod has a booking of its own. One that is not needed any more is forgotten.
"""

from __future__ import annotations

import enum
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from hami.codec.objects import parse_resource_version
from hami.errors import HamiError
from hami.model import Allocation, DeviceUsage, Pod, PodRef, Share
from hami.quantity import MIB
from hami.state.binding import add_bind_time, render_annotations, render_labels
from hami.state.holds import is_hold
from hami.state.nodes import NodeCache
from hami.state.table import Booking, Table
from hami.vendors.spec import Vendor

RESERVATION_TTL_S = (
    900.0  # kube-scheduler shows when it gives up a pod; this is for when it does not
)
NOMINATED_TTL_S = 600.0  # after kube-scheduler has said that it binds the pod to the node: a volume may take minutes
UNSHOWN_S = 10.0  # after which the API server is asked for a pod that the watch has not shown
MAX_UNSHOWN = 500  # such pods that have reservations; clients may name any uid
MAX_UNSHOWN_BYTES = 8 * MIB  # of their JSON; in memory it may take many times as much
GROUP_TTL_S = 10.0  # of a pod of a group, without such a sign: where the group does not fit, no condition changes
YIELD_S = 2.0  # after which the reservations of a group that only waits may go to a pod that fits without them
ANSWER_S = (
    60.0  # after which a Binding that was sent without an answer is written, or never will be
)


class Rejected(HamiError):
    """The verb cannot be carried out for this pod now; the text says why."""


class BindingStage(enum.Enum):
    """The stages of a reservation on its way to a bound pod."""

    ASSUMED = "assumed"
    WAITING = "waiting"  # /bind waits for the node locks
    WRITING = "writing"  # the Binding is being written
    FINISHED = "finished"  # written, but not seen by the pod watch yet


@dataclass(slots=True, eq=False, kw_only=True)
class Reservation:
    """Devices reserved for *pod* on *node*. Only :class:`Reservations` changes it, under its lock.

    *vendors*: of the devices. *usages*: the node's devices by vendor. *assumed*: the time of day of the decision.
    *lock_free*: the vendors that need no lock, as the node said. *lock_keys*: the annotations of the node locks that
    the bind has to take. *since*: when it was assumed, or its Binding written or last tried, on the monotonic clock.
    *outcome_unknown*: a Binding was sent without an answer, so it may have been written. *nominated*: kube-scheduler
    has shown that it binds the pod to this node. *unshown_since*: when the pod was first reserved for, without a break,
    if the pod watch has not shown it yet, on the monotonic clock; ``None`` if it has.
    """

    pod: Pod
    node: str
    placement: Allocation
    vendors: tuple[Vendor, ...]
    usages: Mapping[str, Sequence[DeviceUsage]]
    assumed: datetime
    lock_free: frozenset[str]
    since: float
    stage: BindingStage = BindingStage.ASSUMED
    outcome_unknown: bool = False
    nominated: bool = False
    unshown_since: float | None = None
    _annotations: Mapping[str, str] | None = None
    _token: uuid.UUID | None = None

    @property
    def ref(self) -> PodRef:
        """The pod's identity."""
        return self.pod.ref

    @property
    def is_wanted(self) -> bool:
        """Whether kube-scheduler has shown that it binds the pod, or does so."""
        return self.nominated or self.outcome_unknown or self.stage is not BindingStage.ASSUMED

    @property
    def lifetime_s(self) -> float:
        """The seconds for which it stands unless it is bound."""
        if self.nominated:
            return NOMINATED_TTL_S
        return GROUP_TTL_S if self.pod.group else RESERVATION_TTL_S

    @property
    def lock_keys(self) -> tuple[str, ...]:
        """The annotations of the node locks that the bind has to take, sorted."""
        return tuple(
            sorted(
                {
                    vendor.annotations.lock
                    for vendor in self.vendors
                    if vendor.annotations.lock and vendor.key not in self.lock_free
                }
            )
        )

    @property
    def annotations(self) -> Mapping[str, str]:
        """The annotations of the Binding, except for the time of the bind."""
        if self._annotations is None:
            self._annotations = render_annotations(
                self.pod,
                self.node,
                self.vendors,
                self.placement,
                self.lock_free,
                self.usages,
                self.assumed,
            )
        return self._annotations

    @property
    def token(self) -> uuid.UUID:
        """A value that no other reservation has. It tells which of them has written a claim."""
        if self._token is None:
            self._token = uuid.uuid4()
        return self._token

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of the Binding."""
        return render_labels(self.node)


class Reservations:
    """Reservations by pod uid; their devices are booked in *table*.

    *lock* is the store's: it guards the reservations and the table; only single look-ups do without it.
    """

    def __init__(
        self,
        table: Table,
        lock: threading.RLock,
        nodes: NodeCache,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._table = table
        self._lock = lock
        self._nodes = nodes
        self._clock = clock
        self._now = now
        self._reservations: dict[str, Reservation] = {}
        self._unshown: dict[str, Reservation] = {}  # those of pods that the watch has not shown

    def __contains__(self, uid: str) -> bool:
        return uid in self._reservations

    def assume(self, reservation: Reservation, booking: Booking) -> None:
        """Adds *reservation* and books its devices."""
        with self._lock:
            self._reservations[reservation.ref.uid] = reservation
            if reservation.unshown_since is not None:
                self._unshown[reservation.ref.uid] = reservation
            self._table.book(booking)

    def get(self, uid: str) -> Reservation | None:
        """Returns the reservation of a pod whose Binding has not been written."""
        reservation = self._reservations.get(uid)
        return (
            reservation if reservation and reservation.stage is not BindingStage.FINISHED else None
        )

    def find(self, uid: str) -> Reservation | None:
        """Returns the pod's reservation in any stage. The caller holds the lock."""
        return self._reservations.get(uid)

    def is_current(self, reservation: Reservation) -> bool:
        """Reports whether *reservation* still holds: no later filter has replaced it and the pod is not gone."""
        return self._reservations.get(reservation.ref.uid) is reservation

    def unbound(self) -> int:
        """Returns how many reservations have no Binding yet."""
        with self._lock:
            return sum(
                reservation.stage is not BindingStage.FINISHED
                for reservation in self._reservations.values()
            )

    def are_binding(self) -> bool:
        """Reports whether a pod is being bound, or a Binding without an answer may still be written."""
        with self._lock:
            return any(
                reservation.outcome_unknown
                or reservation.stage in (BindingStage.WAITING, BindingStage.WRITING)
                for reservation in self._reservations.values()
            )

    def refs(self) -> list[PodRef]:
        """Returns the pods that have a reservation."""
        with self._lock:
            return [reservation.ref for reservation in self._reservations.values()]

    def waiting_groups(self) -> dict[tuple[str, str], list[Reservation]]:
        """Returns reservations by namespace and group, of groups of which kube-scheduler has bound and nominated no pod
        for some time: they may lack a member. The longest waiting come first."""
        groups: dict[tuple[str, str], list[Reservation]] = {}
        with self._lock:
            for reservation in self._reservations.values():
                if reservation.pod.group:
                    groups.setdefault(
                        (reservation.ref.namespace, reservation.pod.group), []
                    ).append(reservation)
            latest = self._clock() - YIELD_S
            oldest = {
                group: min(reservation.since for reservation in own)
                for group, own in groups.items()
                if not any(reservation.is_wanted for reservation in own)
            }
            in_order = sorted(oldest, key=lambda group: (oldest[group], group))
            return {group: groups[group] for group in in_order if oldest[group] <= latest}

    # Binding

    def start_binding(self, ref: PodRef, node: str) -> Reservation:
        """Returns the reservation to bind. It does not expire until the bind finishes or is canceled.

        Raises: Rejected if there is none for this node, or it is being bound already.
        """
        with self._lock:
            reservation = self._reservations.get(ref.uid)
            if reservation is None:
                raise Rejected(
                    f"pod {ref} has no reservation (it may have expired): it must be filtered again"
                )
            if reservation.node != node:
                raise Rejected(f"pod {ref} is reserved on node {reservation.node}, not on {node}")
            if reservation.stage is not BindingStage.ASSUMED:
                raise Rejected(f"pod {ref} is already being bound")
            reservation.stage = BindingStage.WAITING
            return reservation

    def prepare_binding(self, reservation: Reservation) -> Mapping[str, str]:
        """Checks the reserved devices once more. Returns the annotations of the Binding, which must be written now.

        Raises: Rejected; the reservation is forgotten, unless an earlier Binding of it may still be written.
        """
        with self._lock:
            if not self.is_current(reservation):
                raise Rejected(f"pod {reservation.ref}: the reservation was replaced or dropped")
            if problem := self._problem(reservation):
                if not reservation.outcome_unknown:
                    self.forget(reservation.ref.uid)
                raise Rejected(f"pod {reservation.ref}: {problem}")
            reservation.stage = BindingStage.WRITING
        return add_bind_time(reservation.annotations, self._now())

    def finish_binding(self, reservation: Reservation) -> None:
        """Records that the Binding is written. The reservation stays until the pod watch confirms it."""
        with self._lock:
            if self.is_current(reservation):
                reservation.stage, reservation.since = BindingStage.FINISHED, self._clock()
                reservation.outcome_unknown = False  # an earlier attempt has no effect any more

    def cancel_binding(self, reservation: Reservation) -> None:
        """Records that the bind failed. The reservation stays until it expires, so the bind can be tried again."""
        with self._lock:
            if self.is_current(reservation):
                if reservation.outcome_unknown and reservation.stage is BindingStage.WRITING:
                    reservation.since = self._clock()
                reservation.stage = BindingStage.ASSUMED

    def drop(self, reservation: Reservation) -> None:
        """Forgets *reservation* if it still holds."""
        with self._lock:
            if self.is_current(reservation):
                self.forget(reservation.ref.uid)

    # Bindings whose outcome is unknown

    def mark_unknown(self, reservation: Reservation) -> bool:
        """Keeps *reservation* until the outcome of its Binding is known. Reports whether it was marked before."""
        with self._lock:
            if not self.is_current(reservation):
                return False
            was_marked, reservation.outcome_unknown = reservation.outcome_unknown, True
            return was_marked

    def unknown_bindings(self) -> list[Reservation]:
        """Returns reservations whose Binding was sent so long ago that the API server has written it or never will."""
        with self._lock:
            return [
                reservation
                for reservation in self._reservations.values()
                if reservation.outcome_unknown and self._is_overdue(reservation)
            ]

    def clear_unknown(self, reservation: Reservation) -> None:
        """Forgets a reservation from :meth:`unknown_bindings` whose pod is not bound, unless it was tried again."""
        with self._lock:
            if (
                self.is_current(reservation)
                and reservation.outcome_unknown
                and self._is_overdue(reservation)
            ):
                self.forget(reservation.ref.uid)

    # Pods that the watch has not shown: it is late, or they do not exist

    def check_room_for_unshown(self, pod: Pod) -> None:
        """Raises: Rejected if too many pods that the watch has not shown have reservations. *pod* is one more."""
        with self._lock:
            others = [
                reservation.pod for uid, reservation in self._unshown.items() if uid != pod.ref.uid
            ]
        size = pod.size + sum(other.size for other in others)
        if len(others) >= MAX_UNSHOWN or size > MAX_UNSHOWN_BYTES:
            raise Rejected(
                f"pod {pod.ref}: too many pods that the watch has not shown yet have reservations"
            )

    def mark_shown(self, uid: str) -> None:
        """Notes that the watch has shown the pod, or that the API server has it."""
        with self._lock:
            if (reservation := self._unshown.pop(uid, None)) is not None:
                reservation.unshown_since = None

    def overdue_unshown(self) -> list[Reservation]:
        """Returns the reservations that nobody binds and whose pods the watch should have shown, oldest first."""
        with self._lock:
            latest = self._clock() - UNSHOWN_S
            return [
                reservation
                for reservation in self._unshown.values()
                if not reservation.is_wanted and (reservation.unshown_since or 0.0) <= latest
            ]

    # How reservations end

    def forget(self, uid: str) -> None:
        """Removes the pod's reservation and its booking."""
        with self._lock:
            self._unshown.pop(uid, None)
            if self._reservations.pop(uid, None) is not None:
                self._table.unbook(uid)

    def confirm(self, uid: str) -> None:
        """Removes the reservation of a pod that the watch shows bound, whose booking is the pod's from now on."""
        with self._lock:
            self._unshown.pop(uid, None)
            self._reservations.pop(uid, None)

    def observe(self, pod: Pod) -> None:
        """Follows what kube-scheduler shows of *pod*, which is not bound: it never tells an extender of a failure.

        The node that it nominates is the one that it binds the pod to. A failure after the filter, or a nomination that
        is gone, ends the reservation. A bind that has begun goes on.
        """
        with self._lock:
            reservation = self._reservations.get(pod.ref.uid)
            if (
                reservation is None
                or reservation.stage is not BindingStage.ASSUMED
                or reservation.outcome_unknown
            ):
                return
            if parse_resource_version(pod.resource_version) <= parse_resource_version(
                reservation.pod.resource_version
            ):
                return
            if pod.nominated_node == reservation.node:
                self.mark_nominated(pod.ref.uid)
            elif reservation.nominated or pod.scheduling_failure not in (
                "",
                reservation.pod.scheduling_failure,
            ):
                self.forget(pod.ref.uid)

    def mark_nominated(self, uid: str) -> bool:
        """Notes that kube-scheduler binds the pod to the node of its reservation. Reports whether it has one."""
        with self._lock:
            if (reservation := self._reservations.get(uid)) is not None:
                reservation.nominated, reservation.since = True, self._clock()
            return reservation is not None

    def expire(self) -> list[Reservation]:
        """Forgets and returns the reservations that were not bound in time."""
        with self._lock:
            expired = [
                reservation
                for reservation in self._reservations.values()
                if not reservation.outcome_unknown and self._is_overdue(reservation)
            ]
            for reservation in expired:
                self.forget(reservation.ref.uid)
            return expired

    def prune(self, seen: set[str], started: float) -> None:
        """Forgets pods that were bound before a list was requested (*started*) and are not in it (*seen*)."""
        with self._lock:
            for uid, reservation in list(self._reservations.items()):
                if (
                    uid not in seen
                    and reservation.stage is BindingStage.FINISHED
                    and reservation.since < started
                ):
                    self.forget(uid)

    def _is_overdue(self, reservation: Reservation) -> bool:
        limit_s = ANSWER_S if reservation.outcome_unknown else reservation.lifetime_s
        return (
            reservation.stage is BindingStage.ASSUMED
            and self._clock() - reservation.since >= limit_s
        )

    def _problem(self, reservation: Reservation) -> str | None:
        if self._nodes.lock_free(reservation.node) != reservation.lock_free:
            return f"the device plugins of node {reservation.node} that need no lock have changed"
        usages = {
            (vendor, usage.device.uuid): usage
            for vendor, of_vendor in self._table.usages(reservation.node).items()
            for usage in of_vendor
        }
        for share in {
            (share.type, share.uuid): share for shares in reservation.placement for share in shares
        }.values():
            device = usages.get((share.type, share.uuid))
            if device is None or not device.device.healthy:
                return f"device {share.uuid} on node {reservation.node} is gone or unhealthy"
            if device.is_overcommitted and self._is_overcommitted(reservation.node, share):
                return f"device {share.uuid} on node {reservation.node} was taken by another pod meanwhile"
        return None

    def _is_overcommitted(self, node: str, share: Share) -> bool:
        """Reports whether pods alone overcommit the device of *share*. What is only held for others does not count."""
        table = Table()
        for booking in self._table.bookings_on(node):
            if not is_hold(booking):
                table.book(booking)
        devices = {
            vendor: [usage.device for usage in of_vendor]
            for vendor, of_vendor in self._table.usages(node).items()
        }
        return any(
            usage.is_overcommitted
            for usage in table.usages_of(node, devices)[share.type]
            if usage.device.uuid == share.uuid
        )
