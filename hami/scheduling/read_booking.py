"""What the allocation annotations of a pod say that it takes, read so that nothing is taken for free by mistake."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hami.codec.allocation import parse_shares
from hami.codec.keys import is_scheduler_owned
from hami.errors import MalformedInput
from hami.model import Pod, DeviceUsage
from hami.scheduling.index import Booking
from hami.scheduling.usage import Charge, collapse
from hami.vendors.spec import Catalog

__all__ = ["read_booking"]


def read_booking(pod: Pod, node: str, vendors: Catalog,
                 views: Callable[[str], Mapping[str, Sequence[DeviceUsage]]]) -> tuple[Booking, tuple[str, ...]]:
    """What *pod* takes on *node*, and what of its annotations could not be read.

    Where a text cannot be read, or does not go together with another, every device of the node (*views* gives them)
    that the scheduler's own annotations mention counts as taken whole: better a device that stands idle than one that
    is handed out twice.
    """
    kinds = [container.kind for container in pod.containers]
    charges: list[tuple[str, tuple[Charge, ...]]] = []
    problems: list[str] = []
    for vendor in vendors.allocated_in(pod.annotations):
        try:
            shares = parse_shares(vendor.allocated, pod.annotations[vendor.allocated])
            shares = vendor.read(vendor, pod, shares) if vendor.read is not None else shares
            taken = collapse(kinds, shares, init_done=pod.init_done)
        except MalformedInput as error:
            problems.append(str(error))
            taken = _mentioned(pod, views(node).get(vendor.key, ()))
        if taken:
            charges.append((vendor.key, taken))
    return Booking(pod.ref.uid, pod.ref.namespace, node, tuple(charges)), tuple(problems)


def _mentioned(pod: Pod, views: Sequence[DeviceUsage]) -> tuple[Charge, ...]:
    texts = [text for key, text in pod.annotations.items() if is_scheduler_owned(key)]
    devices = sorted((view.device for view in views if any(view.device.uuid in text for text in texts)),
                     key=lambda device: device.uuid)
    return tuple(Charge(device.uuid, device.slots, device.memory_mib, device.cores) for device in devices)
