"""Namespace quotas on device memory and cores: one arithmetic for admission, filter and accounting.

A pod counts with what :func:`hami.scheduling.usage.collapse` says that it takes. Before its devices are known
(at admission) all its shares are taken to be of one device, which is the least that it can come to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hami.model import Budget, QuotaLimits
from hami.vendors.request import in_mib
from hami.vendors.spec import Vendor

__all__ = ["allowance", "budget", "limit_of"]


def limit_of(quotas: Iterable[QuotaLimits], resource: str) -> int | None:
    """The lowest limit that any of a namespace's *quotas* sets for *resource*; ``None`` when none does."""
    return min((quota.limits[resource] for quota in quotas if resource and resource in quota.limits), default=None)


def allowance(vendor: Vendor, quotas: Collection[QuotaLimits]) -> Budget:
    """What *quotas* allow of *vendor*'s devices in all.

    A memory limit is written in the vendor's unit, as its requests are. Cores count where allocations are written in
    the unit of requests.
    """
    memory = min((in_mib(vendor, quota.limits[vendor.memory], is_binary=vendor.memory in quota.binary)
                  for quota in quotas if vendor.memory and vendor.memory in quota.limits), default=None)
    return Budget(memory, limit_of(quotas, vendor.cores) if vendor.cores_in.is_asked else None)


def budget(vendor: Vendor, quotas: Mapping[str, QuotaLimits], used: tuple[int, int]) -> Budget:
    """What is left for *vendor* under *quotas* when *used* (MiB, percent) is taken."""
    allowed = allowance(vendor, quotas.values())
    return Budget(
        memory_mib=None if allowed.memory_mib is None else allowed.memory_mib - used[0],
        cores=None if allowed.cores is None else allowed.cores - used[1],
    )
