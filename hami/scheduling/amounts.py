"""Amounts of devices as people count them: memory in MiB, cores in the vendor's unit, slots."""

from __future__ import annotations

from hami.model import Device, DeviceUsage
from hami.scheduling.usage import Amounts
from hami.vendors.spec import CoreUnit, Vendor


def total_amounts(device: Device, vendor: Vendor) -> Amounts:
    """Returns what *device* has."""
    return Amounts(device.memory_mib, cores_of(vendor, device.cores), device.slots)


def used_amounts(usage: DeviceUsage, vendor: Vendor) -> Amounts:
    """Returns what is taken of a device."""
    return Amounts(usage.memory_used_mib, cores_of(vendor, usage.cores_used), usage.slots_used)


def cores_of(vendor: Vendor, cores: int) -> int:
    """Returns the number of *cores*, which some vendors write as a mask."""
    return cores.bit_count() if vendor.resources.core_unit is CoreUnit.MASK else cores
