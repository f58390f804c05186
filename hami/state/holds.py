"""Holds: what is being freed on a node belongs to the pod for which others are evicted, until it is bound.

A hold books what its pod needs beyond what its victims still have. So a device never looks overcommitted, reservations
that were made before are not affected, and what victims leave is the hold's in the same step.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from hami.model import Pod, PodRef
from hami.scheduling.placement import NodeUsage
from hami.scheduling.usage import Charge
from hami.state.table import Booking, Table

PREFIX = "hold/"  # of the uid of a booking; no uid of a pod has a slash
MAX_HOLDS = 256


def is_hold(booking: Booking) -> bool:
    """Reports whether *booking* is that of a hold."""
    return booking.uid.startswith(PREFIX)


def hold_uid(uid: str) -> str:
    """Returns the uid of the booking of the hold for the pod *uid*."""
    return PREFIX + uid


class HoldEnd(enum.StrEnum):
    """The ways in which a hold ends."""

    BOUND = "bound"
    DELETED = "deleted"  # its pod
    EXPIRED = "expired"  # a victim has not ended in time, or kube-scheduler has not placed the pod
    UNFIT = "unfit"  # a device is gone or sick
    TAKEN = "taken"  # by a pod of higher priority
    RELEASED = "released"  # the pod fits without it, or kube-scheduler evicts others


def alone(booking: Booking, usages: NodeUsage) -> Booking:
    """Returns *booking* with all slots of its devices, for a pod that shares them with nobody."""
    slots = {usage.device.uuid: usage.device.slots for of_vendor in usages.values() for usage in of_vendor}
    return msgspec.structs.replace(booking, charges=tuple(
        (vendor, tuple(msgspec.structs.replace(charge, slots=slots.get(charge.uuid, charge.slots))
                       for charge in charges)) for vendor, charges in booking.charges))


@dataclass(slots=True, eq=False, kw_only=True)
class Hold:
    """The devices on *node* that *pod* gets once its *victims* (uids) have ended. Only :class:`Holds` changes it.

    *booking*: all that it needs. *until*: when it ends at the latest, by the clock. *evicted*: the victims have been
    deleted. *checked*: the version of the node in which the pod certainly gets what is held.
    """

    pod: Pod
    booking: Booking
    victims: frozenset[str]
    until: float
    evicted: bool = False
    checked: int = -1

    @property
    def ref(self) -> PodRef:
        """The identity of its pod."""
        return self.pod.ref

    @property
    def node(self) -> str:
        """The node."""
        return self.booking.node


class Holds:
    """Holds by pod uid, booked in *table*. Not thread-safe: its owner holds a lock."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._holds: dict[str, Hold] = {}

    def __bool__(self) -> bool:
        return bool(self._holds)

    def __len__(self) -> int:
        return len(self._holds)

    def __iter__(self) -> Iterator[Hold]:
        return iter(list(self._holds.values()))

    def get(self, uid: str) -> Hold | None:
        """Returns the hold of the pod."""
        return self._holds.get(uid)

    def add(self, hold: Hold) -> None:
        """Adds *hold*, in place of an earlier one of its pod, and books it."""
        self._holds[hold.ref.uid] = hold
        self._book(hold)

    def remove(self, hold: Hold) -> None:
        """Ends *hold*."""
        self._holds.pop(hold.ref.uid, None)
        self._table.unbook(hold.booking.uid)

    def lift(self, holds: Iterable[Hold]) -> None:
        """Makes what these hold free, until `settle`."""
        for hold in holds:
            self._table.unbook(hold.booking.uid)

    def below(self, priority: int) -> list[Hold]:
        """Returns the holds of pods of lower priority."""
        return [hold for hold in self._holds.values() if hold.pod.priority < priority]

    def settle(self, has_reservation: Callable[[str], bool]) -> None:
        """Books all holds as their victims are now; not those of pods that have a reservation."""
        for hold in self._holds.values():
            if has_reservation(hold.ref.uid):
                self._table.unbook(hold.booking.uid)
            else:
                self._book(hold)

    def is_checked(self, hold: Hold) -> bool:
        """Reports whether the node of *hold* is as it was when it was marked."""
        return hold.checked == self._table.version_of(hold.node)

    def mark_checked(self, hold: Hold) -> None:
        """Records that the pod of *hold* gets what is held while its node does not change."""
        hold.checked = self._table.version_of(hold.node)

    def mark_evicted(self, hold: Hold) -> None:
        """Records that the victims of *hold* have been deleted."""
        hold.evicted = True

    def spare(self, hold: Hold) -> None:
        """Spares the victims of *hold*, since its pod fits without their end. It goes on to be held."""
        hold.victims, hold.evicted = frozenset(), True
        self._book(hold)

    def victims(self) -> frozenset[str]:
        """Returns the victims of all holds."""
        return frozenset().union(*(hold.victims for hold in self._holds.values()))

    def _book(self, hold: Hold) -> None:
        booking = self._beyond_victims(hold.booking, hold.victims)
        if booking.charges:
            self._table.book(booking)
        else:
            self._table.unbook(booking.uid)

    def _beyond_victims(self, booking: Booking, victims: Collection[str]) -> Booking:
        """Returns *booking* without what the victims still have of it."""
        theirs: dict[tuple[str, str], list[Charge]] = {}
        for uid in victims:
            victim = self._table.bookings.get(uid)
            if victim is not None and victim.node == booking.node:
                for vendor, charges in victim.charges:
                    for charge in charges:
                        theirs.setdefault((vendor, charge.uuid), []).append(charge)
        left = tuple((vendor, tuple(rest for charge in charges
                                    if (rest := _beyond(charge, theirs.get((vendor, charge.uuid), ()))) is not None))
                     for vendor, charges in booking.charges)
        return msgspec.structs.replace(booking, charges=tuple(item for item in left if item[1]))


def _beyond(charge: Charge, held: Iterable[Charge]) -> Charge | None:
    """Returns what *charge* needs of a device beside what is *held* of it; ``None`` for nothing."""
    slots, memory_mib, cores, partitions = charge.slots, charge.memory_mib, charge.cores, charge.partitions
    for other in held:
        slots, memory_mib, cores = slots - other.slots, memory_mib - other.memory_mib, cores - other.cores
        partitions = tuple(one for one in partitions if not any(map(one.overlaps, other.partitions)))
    if slots <= 0 and memory_mib <= 0 and cores <= 0 and not partitions:
        return None
    return msgspec.structs.replace(charge, slots=max(0, slots), memory_mib=max(0, memory_mib), cores=max(0, cores),
                                   partitions=partitions)
