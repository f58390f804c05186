"""Reads a pod's booking from its annotations. What cannot be read counts as taken, so no device is given out twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hami.codec.allocation import parse_shares
from hami.codec.keys import is_scheduler_owned
from hami.errors import MalformedInput
from hami.model import DeviceUsage, Pod
from hami.scheduling.index import Booking
from hami.scheduling.placement import NodeUsage
from hami.scheduling.usage import Charge, peak_charges
from hami.vendors.spec import Catalog


def read_booking(pod: Pod, node: str, vendors: Catalog,
                 usages: Callable[[str], NodeUsage]) -> tuple[Booking, tuple[str, ...]]:
    """Returns the booking of *pod* on *node*, and the problems with annotations that cannot be read.

    If an annotation cannot be read or contradicts another, every device of the node (from *usages*) that the
    scheduler-owned annotations mention counts as fully used: an idle device is better than one allocated twice.
    """
    kinds = [container.kind for container in pod.containers]
    charges: list[tuple[str, tuple[Charge, ...]]] = []
    problems: list[str] = []
    for vendor in vendors.allocated_in(pod.annotations):
        try:
            shares = parse_shares(vendor.allocated, pod.annotations[vendor.allocated])
            shares = vendor.read_shares(vendor, pod, shares) if vendor.read_shares is not None else shares
            taken = peak_charges(kinds, shares, init_done=pod.init_done)
        except MalformedInput as error:
            problems.append(str(error))
            taken = _mentioned_devices(pod, usages(node).get(vendor.key, ()))
        if taken:
            charges.append((vendor.key, taken))
    return Booking(pod.ref.uid, pod.ref.namespace, node, tuple(charges)), tuple(problems)


def _mentioned_devices(pod: Pod, usages: Sequence[DeviceUsage]) -> tuple[Charge, ...]:
    texts = [text for key, text in pod.annotations.items() if is_scheduler_owned(key)]
    devices = sorted((usage.device for usage in usages if any(usage.device.uuid in text for text in texts)),
                     key=lambda device: device.uuid)
    return tuple(Charge(device.uuid, device.slots, device.memory_mib, device.cores) for device in devices)
