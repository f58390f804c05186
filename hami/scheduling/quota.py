"""Namespace quotas on device memory and cores: the same arithmetic for admission, filter and accounting.

A pod counts with the sum of its :func:`hami.scheduling.usage.peak_charges`. Before its devices are known (at
admission), all its shares are assumed to be on one device, which gives the smallest possible sum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hami.model import Budget, QuotaLimits
from hami.vendors.spec import Vendor


def lowest_limit(quotas: Iterable[QuotaLimits], resource: str) -> int | None:
    """Returns the lowest limit of *quotas* for *resource*; ``None`` if none sets one."""
    return min((quota.limits[resource] for quota in quotas if resource and resource in quota.limits), default=None)


def allowed_budget(vendor: Vendor, quotas: Collection[QuotaLimits]) -> Budget:
    """Returns the limits of *quotas* on *vendor*'s devices.

    A memory limit is in the vendor's unit, as in requests. Cores are limited only if allocations and requests have
    the same unit.
    """
    resources = vendor.resources
    memory = min((resources.to_mib(quota.limits[resources.memory], is_binary=resources.memory in quota.binary)
                  for quota in quotas if resources.memory and resources.memory in quota.limits), default=None)
    return Budget(memory, lowest_limit(quotas, resources.cores) if resources.core_unit.is_request_unit else None)


def remaining_budget(vendor: Vendor, quotas: Mapping[str, QuotaLimits], used: tuple[int, int]) -> Budget:
    """Returns what *quotas* leave for *vendor*'s devices after *used* (MiB, percent)."""
    allowed = allowed_budget(vendor, quotas.values())
    return Budget(
        memory_mib=None if allowed.memory_mib is None else allowed.memory_mib - used[0],
        cores=None if allowed.cores is None else allowed.cores - used[1],
    )
