"""Holds: what is being freed on a node belongs to the pod for which others are evicted, until it is bound.

A hold books what its pod needs beyond what its victims still have. So a device never looks overcommitted, reservations
that were made before are not affected, and what victims leave is the hold's in the same step.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from hami.model import Partition, Pod, PodRef
from hami.scheduling.placement import NodeUsage
from hami.scheduling.refusal import Choice
from hami.scheduling.usage import Charge, charged_by, total_charge
from hami.state.table import Booking, Table

PREFIX = "hold/"  # of the uid of a booking; no uid of a pod has a slash
MAX_HOLDS = 512
MAX_HOLDS_OF_NAMESPACE = 256  # among them: as many as a gang may have


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
    slots = {
        usage.device.uuid: usage.device.slots
        for of_vendor in usages.values()
        for usage in of_vendor
    }
    return msgspec.structs.replace(
        booking,
        charges=tuple(
            (
                vendor,
                tuple(
                    msgspec.structs.replace(charge, slots=slots.get(charge.uuid, charge.slots))
                    for charge in charges
                ),
            )
            for vendor, charges in booking.charges
        ),
    )


def is_free(booking: Booking, usages: NodeUsage) -> bool:
    """Reports whether *usages* of its node have room for *booking*, on devices that new pods may use."""
    found = {
        (vendor, usage.device.uuid): usage
        for vendor, of_vendor in usages.items()
        for usage in of_vendor
    }
    for vendor, charges in booking.charges:
        for charge in charges:
            usage = found.get((vendor, charge.uuid))
            if (
                usage is None
                or not usage.device.healthy
                or usage.device.cordoned
                or charged_by(usage, charge).is_overcommitted
            ):
                return False
    return True


@dataclass(slots=True, eq=False, kw_only=True)
class Hold:
    """The devices on *node* that *pod* gets once its victims have ended. Only :class:`Holds` changes it.

    *units*: the uids of the victims, by those that are evicted together. *choice*: the decision. *booking*: all that it
    needs. *until*: when it ends at the latest, by the clock. *evicted*: the victims have been deleted. *checked*: the
    version of the node in which the pod certainly gets what is held.
    """

    pod: Pod
    choice: Choice
    booking: Booking
    units: tuple[frozenset[str], ...]
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

    @property
    def victims(self) -> frozenset[str]:
        """The uids of all victims."""
        return frozenset().union(*self.units)


class Holds:
    """Holds by pod uid, booked in *table*. Not thread-safe: its owner holds a lock."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._holds: dict[str, Hold] = {}

    def __len__(self) -> int:
        return len(self._holds)

    def __iter__(self) -> Iterator[Hold]:
        return iter(list(self._holds.values()))

    def get(self, uid: str) -> Hold | None:
        """Returns the hold of the pod."""
        return self._holds.get(uid)

    def has_room_for(self, ref: PodRef) -> bool:
        """Reports whether the pod may have a hold beside those of other pods."""
        others = [hold for hold in self._holds.values() if hold.ref.uid != ref.uid]
        of_namespace = sum(hold.ref.namespace == ref.namespace for hold in others)
        return len(others) < MAX_HOLDS and of_namespace < MAX_HOLDS_OF_NAMESPACE

    def add(self, hold: Hold) -> None:
        """Adds *hold*, in place of an earlier one of its pod. `settle` books it."""
        self._holds[hold.ref.uid] = hold

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
        bookings = self.bookings([hold for hold in self if not has_reservation(hold.ref.uid)])
        for hold in self:
            if (booking := bookings.get(hold.booking.uid)) is not None:
                self._table.book(booking)
            else:
                self._table.unbook(hold.booking.uid)

    def bookings(self, holds: Iterable[Hold], ended: Collection[str] = ()) -> dict[str, Booking]:
        """Returns by uid what *holds* take beyond what their victims still have, if the pods *ended* have ended.

        The pods of a gang may wait for the same victims: what one of them gets of a victim, no other does.
        """
        left: dict[tuple[str, str, str], Charge] = {}  # of a victim: by its uid, vendor and device
        for uid in {uid for hold in holds for uid in hold.victims.difference(ended)}:
            if (victim := self._table.bookings.get(uid)) is not None:
                left |= {
                    (uid, vendor, charge.uuid): charge
                    for vendor, charges in victim.charges
                    for charge in charges
                }
        bookings = {}
        for hold in holds:
            on_node = [
                uid
                for uid in sorted(hold.victims)
                if (victim := self._table.bookings.get(uid)) is not None
                and victim.node == hold.node
            ]
            charges = []
            for vendor, own in hold.booking.charges:
                beyond = [
                    rest
                    for charge in own
                    if (
                        rest := _beyond(
                            charge, left, [(uid, vendor, charge.uuid) for uid in on_node]
                        )
                    )
                    is not None
                ]
                beyond += self._quota_beyond(hold, vendor, beyond, ended)
                if beyond:
                    charges.append((vendor, tuple(beyond)))
            if charges:
                bookings[hold.booking.uid] = msgspec.structs.replace(
                    hold.booking, charges=tuple(charges)
                )
        return bookings

    def _quota_beyond(
        self, hold: Hold, vendor: str, beyond: Iterable[Charge], ended: Collection[str]
    ) -> list[Charge]:
        """Returns a charge of no device for what *hold* takes of its namespace's quotas, unless it has it *beyond* its
        victims or these have it: then no other pod of the namespace gets it meanwhile."""
        need, booked = total_charge(dict(hold.booking.charges)[vendor]), total_charge(beyond)
        theirs = total_charge(
            charge
            for uid in hold.victims.difference(ended)
            if (victim := self._table.bookings.get(uid)) is not None
            and (victim.namespace, victim.scope) == (hold.booking.namespace, hold.booking.scope)
            for charge in dict(victim.charges).get(vendor, ())
        )
        memory, cores = (
            max(0, amounts[0] - amounts[1] - amounts[2]) for amounts in zip(need, booked, theirs)
        )
        return [Charge("", 0, memory, cores)] if memory or cores else []

    def is_checked(self, hold: Hold) -> bool:
        """Reports whether the node of *hold* is as it was when it was marked."""
        return hold.checked == self._table.version_of(hold.node)

    def mark_checked(self, hold: Hold) -> None:
        """Records that the pod of *hold* gets what is held while its node does not change."""
        hold.checked = self._table.version_of(hold.node)

    def mark_evicted(self, hold: Hold) -> None:
        """Records that the victims of *hold* have been deleted."""
        hold.evicted = True

    def move(self, hold: Hold, choice: Choice, booking: Booking) -> None:
        """Holds the devices of *choice* instead."""
        hold.choice, hold.booking, hold.checked = choice, booking, -1

    def spare(self, hold: Hold) -> None:
        """Spares the victims of *hold*, since its pod fits without their end. It goes on to be held."""
        hold.units, hold.evicted = (), True

    def victims(self, priority: int | None = None) -> frozenset[str]:
        """Returns the victims of all holds, or of those for pods of *priority* or higher."""
        return frozenset().union(
            *(
                hold.victims
                for hold in self._holds.values()
                if priority is None or hold.pod.priority >= priority
            )
        )


def _beyond(
    charge: Charge,
    left: dict[tuple[str, str, str], Charge],
    victims: Sequence[tuple[str, str, str]],
) -> Charge | None:
    """Returns what *charge* needs of a device beside what *victims* have *left* of it, and takes it from there;
    ``None`` for nothing."""
    partitions = charge.partitions
    for victim in victims:
        if (other := left.get(victim)) is None:
            continue
        less = (
            min(charge.slots, other.slots),
            min(charge.memory_mib, other.memory_mib),
            min(charge.cores, other.cores),
        )
        charge, left[victim] = _minus(charge, *less), _minus(other, *less)
        partitions = tuple(
            piece for part in partitions for piece in _pieces(part, other.partitions)
        )
    if not (charge.slots or charge.memory_mib or charge.cores or partitions):
        return None
    return msgspec.structs.replace(charge, partitions=partitions)


def _minus(charge: Charge, slots: int, memory_mib: int, cores: int) -> Charge:
    return msgspec.structs.replace(
        charge,
        slots=charge.slots - slots,
        memory_mib=charge.memory_mib - memory_mib,
        cores=charge.cores - cores,
    )


def _pieces(part: Partition, others: Sequence[Partition]) -> Iterator[Partition]:
    """Yields what is left of *part* beside *others*."""
    start, end = part.start, part.start + part.size
    for other in sorted(others, key=lambda other: other.start):
        if start < other.start < end:
            yield replace(part, start=start, size=other.start - start)
        start = max(start, min(end, other.start + other.size)) if other.start < end else start
    if start < end:
        yield replace(part, start=start, size=end - start)
