"""The amounts that pods hold of the devices of their nodes, as usage counts them, and since when."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from itertools import chain

from hami.codec.times import parse_time
from hami.codec.usage_sums import MAX_NAME, NOTHING_HELD, HeldAmounts, UsageKey
from hami.model import Device, Pod
from hami.scheduling.usage import Charge
from hami.state.ledger import HeldDevices
from hami.state.read_pod import PodRecord
from hami.state.store import Store
from hami.vendors.spec import CoreUnit

KINDS = 16_384  # of pods that hold the same; these share a record of it
DEVICE_PLUGIN, DRA = "device-plugin", "dra"
"""Allocation modes."""
UNKNOWN_MODEL = "unknown"
"""The model of a device that its node does not name."""
_WHOLE = 1000  # thousandths of a device

Charges = tuple[tuple[str, tuple[Charge, ...]], ...]


class HeldReader:
    """Reads what pods hold, from what is booked for them and the devices of their nodes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        in_units = []
        for vendor in store.vendors:
            if vendor.resources.core_unit is CoreUnit.COMPUTE_UNITS:
                in_units.append(vendor.key)
        self._in_units = frozenset(in_units)
        # equal ones are one object
        self._held = functools.lru_cache(KINDS)(HeldDevices)

    def read(self, pod: Pod, node: str, charges: Charges) -> HeldDevices:
        """Returns what *charges* of *pod* take of the devices of *node*."""
        mode = DRA if pod.claim else DEVICE_PLUGIN
        devices = self._devices_of(node)
        parts: dict[UsageKey, HeldAmounts] = {}
        for vendor, of_vendor in charges:
            for charge in of_vendor:
                device = devices.get((vendor, charge.uuid))
                model = device.model if device is not None else UNKNOWN_MODEL
                key = UsageKey(
                    pod.ref.namespace,
                    vendor[:MAX_NAME],
                    model[:MAX_NAME],
                    pod.scope.priority_class[:MAX_NAME],
                    mode,
                )
                amounts = amounts_of(charge, device, in_units=vendor in self._in_units)
                parts[key] = parts.get(key, NOTHING_HELD).plus(amounts)
        kind, name = pod.workload
        if not kind:
            kind, name = "Pod", pod.ref.name
        return self._held((kind[:MAX_NAME], name[:MAX_NAME]), tuple(sorted(parts.items())))

    def _devices_of(self, node: str) -> Mapping[tuple[str, str], Device]:
        devices = chain.from_iterable(
            [of_node for _, _, of_node in self._store.nodes.registered([node])]
        )
        return {(device.vendor, device.uuid): device for device in devices}


def begin_of(pod: Pod, record: PodRecord, now: int) -> int:
    """Returns when the pod was bound: by its Binding, else by its kubelet, else now. Times that cannot be are skipped:
    others may have written them."""
    created = parse_time(pod.created)
    for time in (record.bound_at, record.assigned_at, record.started):
        if 0 < time <= now:
            return max(time, created)
    return now


def amounts_of(charge: Charge, device: Device | None, *, in_units: bool) -> HeldAmounts:
    """Returns what *charge* takes of its device. *in_units*: its cores are compute units, not percent."""
    cores = max(0, charge.cores)
    if in_units and device is not None and device.cores > 0:
        cores = -(-cores * 100 // device.cores)
    of_memory = 0
    if device is not None and device.memory_mib > 0:
        of_memory = _thousandths(charge.memory_mib, device.memory_mib)
    share = max(min(cores * 10, _WHOLE), of_memory)
    if not share:  # neither is limited
        slots = device.slots if device is not None else 1
        share = _thousandths(charge.slots, slots)
    return HeldAmounts(1, max(0, charge.memory_mib), cores, share, of_memory)


def _thousandths(part: int, whole: int) -> int:
    return max(0, min(round(_WHOLE * part / max(1, whole)), _WHOLE))
