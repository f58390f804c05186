"""The booking that counts of a pod: which of its annotations, its promise and its resize its booking follows.

Decided from facts alone; `pods` keeps them, and books the result. A pod holds what was written on its Binding,
until it ends. Later edits of its annotations add details at most, or say what a resize has left of the same devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from hami.model import DeviceUsage
from hami.scheduling.placement import NodeUsage
from hami.scheduling.usage import Charge
from hami.state.bookings import Booking
from hami.state.promises import Promise
from hami.state.read_pod import BookingPair, PodRecord, Reading
from hami.vendors.mig import in_mig_mode

Usages = Callable[[str], NodeUsage]
"""Returns the devices of a node."""


def what_counts(pod: PodRecord, promise: Promise | None) -> Booking | None:
    """Returns what *pod* takes of its node: the first line that applies.

    *promise*: with which a filter has answered. While it is not known whether the pod has grown, it counts with what
    it may have: its node may apply that at any moment.
    """
    if pod.terminated:
        return None
    if pod.growth is not None:
        return pod.growth[pod.init_done]
    if pod.node and pod.allocated is not None:
        return pod.allocated[pod.init_done]
    if promise is not None:
        return promise.booking
    if pod.allocated is not None:  # another scheduler has assigned it devices
        return pod.allocated[pod.init_done]
    return None


def complete(reading: Reading, usages: Usages) -> BookingPair:
    """Returns the bookings of *reading*. Of vendors whose annotations cannot be read, every device that these mention
    counts as fully used: an idle device is better than one allocated twice."""
    if not reading.problems:
        return reading.bookings
    before, after = reading.bookings
    devices = usages(before.node)
    return _with_mentioned(before, reading.texts, devices), _with_mentioned(
        after, reading.texts, devices
    )


def _with_mentioned(booking: Booking, texts: Sequence[str], usages: NodeUsage) -> Booking:
    charges = []
    for vendor, taken in booking.charges:
        taken = taken or _mentioned(texts, usages.get(vendor, ()))
        if taken:
            charges.append((vendor, taken))
    return msgspec.structs.replace(booking, charges=tuple(charges))


def _mentioned(texts: Sequence[str], usages: Sequence[DeviceUsage]) -> tuple[Charge, ...]:
    charges = []
    for usage in usages:
        device = usage.device
        if any(device.uuid in text for text in texts):
            charges.append(Charge(device.uuid, device.slots, device.memory_mib, device.cores))
    return tuple(sorted(charges, key=lambda charge: charge.uuid))


def follows(
    annotations: BookingPair, allocated: BookingPair, usages: Usages, *, is_resize: bool
) -> bool:
    """Reports whether edited *annotations* of a bound pod, which has what is *allocated*, are believed.

    *is_resize*: they have been edited by a scheduler, and can be read.
    """
    pairs = list(zip(annotations, allocated))
    if is_resize and all(has_same_devices(*pair) for pair in pairs):
        return True
    return all(refines(*pair, usages) for pair in pairs)


def has_same_devices(later: Booking, booked: Booking) -> bool:
    """Reports whether two bookings name the same devices, each with as many shares."""
    return _slots(later) == _slots(booked)


def refines(later: Booking, booked: Booking, usages: Usages) -> bool:
    """Reports whether *later*, read after an edit of the annotations, says the same as *booked* or adds details to it.

    A device plugin adds the identities of the MIG instances that it has created. One of HAMi v2.5 to v2.9 writes the
    instance of a share without a placement in a form that takes the whole device. Such a share lets no other pod on the
    device anyway.
    """
    before, after = _by_device(booked), _by_device(later)
    if before.keys() != after.keys():
        return False
    changed = []
    for key, charge in before.items():
        if _without_identities(charge) != _without_identities(after[key]):
            changed.append(key)
    if not changed:
        return True
    in_mig = _devices_in_mig_mode(usages(booked.node))
    for key in changed:
        if key not in in_mig or before[key].partitions:
            return False
        if not _covers(after[key], before[key]):
            return False
    return True


def _devices_in_mig_mode(usages: NodeUsage) -> set[tuple[str, str]]:
    found = set()
    for vendor, devices in usages.items():
        for usage in devices:
            if in_mig_mode(usage):
                found.add((vendor, usage.device.uuid))
    return found


def _by_device(booking: Booking) -> dict[tuple[str, str], Charge]:
    by_device = {}
    for vendor, charges in booking.charges:
        for charge in charges:
            by_device[vendor, charge.uuid] = charge
    return by_device


def _slots(booking: Booking) -> dict[tuple[str, str], tuple[object, ...]]:
    by_device = _by_device(booking)
    return {key: (charge.slots, charge.partitions) for key, charge in by_device.items()}


def _without_identities(charge: Charge) -> Charge:
    partitions = tuple(replace(partition, instance=()) for partition in charge.partitions)
    return msgspec.structs.replace(charge, partitions=partitions)


def _covers(later: Charge, charge: Charge) -> bool:
    return (
        later.slots >= charge.slots
        and later.memory_mib >= charge.memory_mib
        and later.cores >= charge.cores
    )
