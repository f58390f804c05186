"""The bookings of plans: what is being freed on a node belongs to the pod for which others are evicted.

A plan books what its pod needs beyond what its victims still have. So a device never looks overcommitted, promises
that were made before are not affected, and what victims leave is the plan's in the same step.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from hami.model import Partition, Pod
from hami.scheduling.placement import NodeUsage
from hami.scheduling.refusal import Choice
from hami.scheduling.usage import Charge, charged_by, total_charge, usage_by_device
from hami.state.bookings import Booking, booking_of
from hami.state.promises import PREFIX, Promise, Stage
from hami.state.view import View

BookingsByUid = Mapping[str, Booking]
"""What pods hold, by uid."""


def is_planned(booking: Booking) -> bool:
    """Reports whether *booking* is that of a plan."""
    return booking.uid.startswith(PREFIX)


def planned_uid(uid: str) -> str:
    """Returns the uid of the booking of a plan for the pod *uid*."""
    return PREFIX + uid


def alone(booking: Booking, usages: NodeUsage) -> Booking:
    """Returns *booking* with all slots of its devices, for a pod that shares them with nobody."""
    by_device = usage_by_device(usages)
    made: list[tuple[str, tuple[Charge, ...]]] = []
    for vendor, charges in booking.charges:
        whole: list[Charge] = []
        for charge in charges:
            usage = by_device.get((vendor, charge.uuid))
            if usage is not None:
                charge = msgspec.structs.replace(charge, slots=usage.device.slots)
            whole.append(charge)
        made.append((vendor, tuple(whole)))
    return msgspec.structs.replace(booking, charges=tuple(made))


def planned_booking(view: View, pod: Pod, choice: Choice) -> Booking:
    """Returns all that *pod* needs for *choice*, which was made in *view*: if it shares devices with nobody, nobody
    else may get them before."""
    request = view.request_of(pod)
    assert request is not None, "a chosen pod requests devices"
    booking = booking_of(pod, request, choice)
    if not request.needs_devices_alone:
        return booking
    return alone(booking, view.usages(choice.node))


def planned_promise(
    view: View,
    pod: Pod,
    choice: Choice,
    units: tuple[frozenset[str], ...],
    until: float | None = None,
) -> Promise:
    """Returns the promise of *choice*, which was made in *view* without the victims *units*. *until*: see Promise."""
    return Promise(
        pod=pod,
        choice=choice,
        booking=planned_booking(view, pod, choice),
        stage=Stage.PLANNED,
        units=units,
        until=until,
    )


def is_free(booking: Booking, usages: NodeUsage) -> bool:
    """Reports whether *usages* of its node have room for *booking*, on devices that new pods may use."""
    found = usage_by_device(usages)
    for vendor, charges in booking.charges:
        for charge in charges:
            usage = found.get((vendor, charge.uuid))
            if usage is None or not usage.device.healthy or usage.device.cordoned:
                return False
            if charged_by(usage, charge).is_overcommitted:
                return False
    return True


def planned_bookings(
    plans: Iterable[Promise], booked: BookingsByUid, ended: Collection[str] = ()
) -> dict[str, Booking]:
    """Returns by uid what *plans* take beyond what their victims still have, if the pods *ended* have ended.

    The pods of a gang may wait for the same victims: what one of them gets of a victim, no other does. *booked*: what
    all pods hold.
    """
    remaining: dict[tuple[str, str, str], Charge] = {}  # of a victim: by its uid, vendor and device
    for plan in plans:
        for uid in _held_by(plan, booked, ended):
            for vendor, charges in booked[uid].charges:
                for charge in charges:
                    remaining[uid, vendor, charge.uuid] = charge
    bookings: dict[str, Booking] = {}
    for plan in plans:
        charges_beyond = _charges_beyond(plan, booked, remaining, ended)
        if charges_beyond:
            uid = planned_uid(plan.ref.uid)
            bookings[uid] = msgspec.structs.replace(
                plan.booking, uid=uid, charges=tuple(charges_beyond)
            )
    return bookings


def _held_by(plan: Promise, booked: BookingsByUid, ended: Collection[str]) -> list[str]:
    """Returns the victims of *plan* that still hold devices, sorted."""
    return sorted(booked.keys() & plan.victims.difference(ended))


def _charges_beyond(
    plan: Promise,
    booked: BookingsByUid,
    remaining: dict[tuple[str, str, str], Charge],
    ended: Collection[str],
) -> list[tuple[str, tuple[Charge, ...]]]:
    """Returns the charges of *plan* beside what its victims have *remaining*, and takes it from there."""
    on_node = [uid for uid in sorted(booked.keys() & plan.victims) if booked[uid].node == plan.node]
    charges: list[tuple[str, tuple[Charge, ...]]] = []
    for vendor, needs in plan.booking.charges:
        beyond: list[Charge] = []
        for need in needs:
            victims = [(uid, vendor, need.uuid) for uid in on_node]
            rest = _beyond(need, remaining, victims)
            if rest is not None:
                beyond.append(rest)
        beyond += _quota_beyond(plan, vendor, beyond, booked, ended)
        if beyond:
            charges.append((vendor, tuple(beyond)))
    return charges


def _quota_beyond(
    plan: Promise,
    vendor: str,
    beyond: Iterable[Charge],
    booked: BookingsByUid,
    ended: Collection[str],
) -> list[Charge]:
    """Returns a charge of no device for what *plan* takes of its namespace's quotas, unless it has it *beyond* its
    victims or these have it: then no other pod of the namespace gets it meanwhile."""
    booking = plan.booking
    of_victims: list[Charge] = []
    for uid in _held_by(plan, booked, ended):
        victim = booked[uid]
        if (victim.namespace, victim.scope) == (booking.namespace, booking.scope):
            of_victims += dict(victim.charges).get(vendor, ())
    amounts = zip(
        total_charge(dict(booking.charges)[vendor]),
        total_charge(beyond),
        total_charge(of_victims),
    )
    memory, cores, devices = (
        max(0, need - booked_now - theirs) for need, booked_now, theirs in amounts
    )
    if not memory and not cores and not devices:
        return []
    return [Charge("", devices, memory, cores)]


def _beyond(
    charge: Charge,
    remaining: dict[tuple[str, str, str], Charge],
    victims: Sequence[tuple[str, str, str]],
) -> Charge | None:
    """Returns what *charge* needs of a device beside what *victims* have *remaining* of it, and takes it from there;
    ``None`` for nothing."""
    partitions = charge.partitions
    for victim in victims:
        if (other := remaining.get(victim)) is None:
            continue
        less = (
            min(charge.slots, other.slots),
            min(charge.memory_mib, other.memory_mib),
            min(charge.cores, other.cores),
        )
        charge, remaining[victim] = _minus(charge, *less), _minus(other, *less)
        pieces = (_pieces(part, other.partitions) for part in partitions)
        partitions = tuple(itertools.chain.from_iterable(pieces))
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
