"""The devices that nodes publish in ResourceSlices, and the claims that hold parts of them, as a view.

No pod is placed on them by the decision of the scheduler: kube-scheduler allocates claims.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from hami.codec.claims import AllocatedClaim, ClaimedDevice
from hami.codec.slices import SHARE, PublishedSlice, device_name, pool_name
from hami.model import Device
from hami.scheduling.usage import Charge
from hami.state.table import Booking, Table
from hami.state.view import Facts, View


def claimed_view(slices: Iterable[PublishedSlice], claims: Iterable[AllocatedClaim], facts: Facts) -> View:
    """Returns the view of the devices in the latest of *slices*, with a booking for each of *claims* that holds some.

    A booking has the uid of its claim.
    """
    table = Table()
    by_name: dict[tuple[str, str], tuple[str, Device]] = {}
    for node, devices in latest_devices(slices).items():
        for vendor in dict.fromkeys(device.vendor for device in devices):
            table.set_devices(node, vendor, tuple(device for device in devices if device.vendor == vendor))
        by_name |= {(pool_name(node), device_name(device.uuid)): (node, device) for device in devices}
    for claim in claims:
        node, charges = "", defaultdict[str, dict[str, Charge]](dict)
        for claimed in (device for request in claim.requests if not request.admin for device in request.devices):
            if (place := by_name.get((claimed.pool, claimed.device))) is not None:  # all are on one node
                node, device = place
                own = charges[device.vendor]
                own[device.uuid] = _more(own.get(device.uuid, Charge(device.uuid, 0, 0, 0)), claimed, device)
        if charges:
            table.book(Booking(claim.uid, claim.namespace, node, tuple(
                (vendor, tuple(own.values())) for vendor, own in charges.items())))
    return View(table, facts)


def latest_devices(slices: Iterable[PublishedSlice]) -> dict[str, tuple[Device, ...]]:
    """Returns the devices of each node, without slices of an earlier generation."""
    latest: dict[str, tuple[int, tuple[Device, ...]]] = {}
    for part in slices:
        generation, devices = latest.get(part.node, (part.generation, ()))
        if part.generation >= generation:
            latest[part.node] = part.generation, (*(devices if part.generation == generation else ()), *part.devices)
    return {node: devices for node, (_, devices) in latest.items()}


def _more(charge: Charge, claimed: ClaimedDevice, device: Device) -> Charge:
    """Returns *charge* with what was *claimed* of *device* added."""
    slots = claimed.share_milli // (SHARE * 1000 // device.slots) if device.slots else 0
    return Charge(device.uuid, charge.slots + slots, charge.memory_mib + claimed.memory_mib,
                  charge.cores + claimed.cores)
