"""Namespace quotas on device memory and cores: one arithmetic for admission, filter and accounting.

A pod counts with what :func:`hami.scheduling.usage.collapse` says that it takes. Before its devices are known
(at admission) all its shares are taken to be of one device, which is the least that it can come to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hami.model import QuotaLimits
from hami.vendors.spec import Vendor

__all__ = ["Budget", "budget", "limit_of"]


@dataclass(frozen=True, slots=True)
class Budget:
    """What a namespace has left of one vendor, MiB and percent; ``None`` is no limit. It may be negative."""

    memory_mib: int | None = None
    cores: int | None = None

    def covers(self, memory_mib: int, cores: int) -> bool:
        """So much more may be taken."""
        return ((self.memory_mib is None or memory_mib <= self.memory_mib)
                and (self.cores is None or cores <= self.cores))


def limit_of(quotas: Iterable[QuotaLimits], resource: str) -> int | None:
    """The lowest limit that any of a namespace's *quotas* sets for *resource*; ``None`` when none does."""
    return min((quota.limits[resource] for quota in quotas if resource and resource in quota.limits), default=None)


def budget(vendor: Vendor, quotas: Mapping[str, QuotaLimits], used: tuple[int, int]) -> Budget:
    """What is left for *vendor* under *quotas* when *used* (MiB, percent) is taken.

    A memory limit is written in the vendor's unit, as its requests are.
    """
    memory, cores = limit_of(quotas.values(), vendor.memory), limit_of(quotas.values(), vendor.cores)
    return Budget(
        memory_mib=None if memory is None else memory * max(vendor.memory_factor, 1) - used[0],
        cores=None if cores is None else cores - used[1],
    )
