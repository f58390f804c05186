"""Reads a pod's booking from its annotations, and compares it with an earlier one.

What cannot be read counts as taken, so no device is given out twice. What the pod's specification does not request
does not count, whatever the annotations say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from hami.codec.keys import is_scheduler_owned
from hami.errors import MalformedInput
from hami.model import DeviceUsage, Pod
from hami.scheduling.placement import NodeUsage
from hami.scheduling.usage import Charge, peak_charges
from hami.state.table import Booking
from hami.vendors.mig import in_mig_mode
from hami.vendors.shares import read_allocation
from hami.vendors.spec import Catalog


def read_booking(pod: Pod, node: str, vendors: Catalog, most: Mapping[str, int],
                 usages: Callable[[str], NodeUsage]) -> tuple[Booking, tuple[str, ...]]:
    """Returns the booking of *pod* on *node*, and the problems with annotations that cannot be read.

    If an annotation cannot be read or contradicts another, every device of the node (from *usages*) that the
    scheduler-owned annotations mention counts as fully used: an idle device is better than one allocated twice.
    Vendors that the pod does not request are left out, and shares beyond *most*, the most that its request allows.
    """
    kinds = [container.kind for container in pod.containers]
    charges: list[tuple[str, tuple[Charge, ...]]] = []
    problems: list[str] = []
    for vendor in vendors.allocated_in(pod.annotations):
        if vendor.key not in most:
            continue
        try:
            shares = read_allocation(pod, vendor, most[vendor.key])
            taken = peak_charges(kinds, shares, init_done=pod.init_done)
        except MalformedInput as error:
            problems.append(str(error))
            taken = _mentioned_devices(pod, usages(node).get(vendor.key, ()))
        if taken:
            charges.append((vendor.key, taken))
    return Booking(pod.ref.uid, pod.ref.namespace, node, tuple(charges), pod.priority), tuple(problems)


def refines(later: Booking, booked: Booking, usages: Callable[[str], NodeUsage]) -> bool:
    """Reports whether *later*, read after an edit of the annotations, says the same as *booked* or adds details to it.

    A device plugin adds the identities of the MIG instances that it has created. One of HAMi v2.5 to v2.9 writes the
    instance of a share without a placement in a form that takes the whole device. Such a share lets no other pod on the
    device anyway.
    """
    before, after = _by_device(booked), _by_device(later)
    if before.keys() != after.keys():
        return False
    changed = [key for key in before if _without_identities(before[key]) != _without_identities(after[key])]
    if not changed:
        return True
    in_mig = {(vendor, usage.device.uuid) for vendor, devices in usages(booked.node).items() for usage in devices
              if in_mig_mode(usage)}
    return all(key in in_mig and not before[key].partitions and _covers(after[key], before[key]) for key in changed)


def _by_device(booking: Booking) -> dict[tuple[str, str], Charge]:
    return {(vendor, charge.uuid): charge for vendor, charges in booking.charges for charge in charges}


def _without_identities(charge: Charge) -> Charge:
    partitions = tuple(replace(partition, instance=()) for partition in charge.partitions)
    return msgspec.structs.replace(charge, partitions=partitions)


def _covers(later: Charge, charge: Charge) -> bool:
    return later.slots >= charge.slots and later.memory_mib >= charge.memory_mib and later.cores >= charge.cores


def _mentioned_devices(pod: Pod, usages: Sequence[DeviceUsage]) -> tuple[Charge, ...]:
    texts = [text for key, text in pod.annotations.items() if is_scheduler_owned(key)]
    devices = sorted((usage.device for usage in usages if any(usage.device.uuid in text for text in texts)),
                     key=lambda device: device.uuid)
    return tuple(Charge(device.uuid, device.slots, device.memory_mib, device.cores) for device in devices)
