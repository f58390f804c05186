"""Namespace quotas on device memory and cores: the same arithmetic for admission, filter and accounting.

A pod counts with the sum of its :func:`hami.scheduling.usage.peak_charges`. Before its devices are known there are two
bounds of that sum. Only where neither decides it is compared with the budget on each placement.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from hami.model import Allocation, Budget, ContainerKind, Pod, PodScope, QuotaLimits, Request, Share
from hami.scheduling.placement import Budgets
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.usage import peak_charges, shares_of, total_charge
from hami.vendors.request import WHOLE, device_request
from hami.vendors.spec import Rule, Vendor

ScopedUsage = Mapping[PodScope, tuple[int, int]]
"""MiB and percent that the pods of a namespace take of one vendor's devices, by the properties that select quotas."""

EXHAUSTED = Budget(-1, -1)
"""A budget that covers nothing."""


class DeviceSizes(NamedTuple):
    """The least and the most memory in MiB of a vendor's devices; *in_parts*: some are given out in parts."""

    least: int
    most: int
    in_parts: bool


class QuotaCheck(NamedTuple):
    """The effect of budgets on a pod.

    *decided*: EXHAUSTED for each vendor whose budget does not cover the least that the pod can take. *open*: the
    budgets that decide only when the devices are known.
    """

    decided: tuple[tuple[str, Budget], ...] = ()
    open: tuple[tuple[str, Budget], ...] = ()

    def covers(self, request: PodRequest, placement: Allocation) -> bool:
        """Reports whether the open budgets cover *placement*."""
        return all(
            budget.covers(*total_charge(peak_charges(request.kinds, shares_of(key, placement))))
            for key, budget in self.open
        )


def check_quota(
    request: PodRequest, budgets: Budgets, sizes: Mapping[str, DeviceSizes]
) -> QuotaCheck:
    """Compares *budgets* with the bounds of what *request* takes. *sizes*: of the devices of the cluster, by vendor."""
    decided, undecided = [], []
    for vendor in (vendor_request.vendor for vendor_request in request.vendor_requests):
        budget = budgets.get(vendor.key, Budget())
        if budget.is_unlimited or Rule.QUOTA not in vendor.decision.rules:
            continue
        least, most = demand_bounds(
            request, vendor, sizes.get(vendor.key, DeviceSizes(0, 0, False))
        )
        if not budget.covers(*least):
            decided.append((vendor.key, EXHAUSTED))
        elif not budget.covers(*most):
            undecided.append((vendor.key, budget))
    return QuotaCheck(tuple(decided), tuple(undecided))


def demand_bounds(
    request: PodRequest, vendor: Vendor, sizes: DeviceSizes
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns the least and the most MiB and percent that a pod takes of *vendor*'s devices: with the shares of all
    containers on one device that is as small as possible, and with each on its own."""
    requests = [
        next((request for request in container.requests if request.vendor == vendor.key), None)
        for container in request.containers
    ]
    if (
        vendor.decision.make_share is not None and sizes.in_parts
    ):  # a part may be a whole device, and has its own cores
        total = sum(request.count for request in requests if request is not None)
        return least_demand(request.kinds, requests, cores=0), (sizes.most * total, WHOLE * total)
    least, most = (
        [_share(request, memory_mib, WHOLE) for request in requests]
        for memory_mib in (sizes.least, sizes.most)
    )
    return (
        total_charge(peak_charges(request.kinds, least)),
        total_charge(
            peak_charges([ContainerKind.APP], [[share for shares in most for share in shares]])
        ),
    )


def least_demand(
    kinds: Sequence[ContainerKind], requests: Sequence[Request | None], cores: int
) -> tuple[int, int]:
    """Returns the least MiB and percent that containers with *requests* can take, percentages of memory as nothing.

    *cores*: the most that one share takes.
    """
    return total_charge(peak_charges(kinds, [_share(request, 0, cores) for request in requests]))


def _share(request: Request | None, device_mib: int, cores: int) -> tuple[Share, ...]:
    """Returns all shares of a request as one, on a device with *device_mib*."""
    if request is None:
        return ()
    memory = request.memory_mib or device_mib * (request.memory_percent or 0) // WHOLE
    return (
        Share(
            "", request.vendor, memory * request.count, min(request.cores, cores) * request.count
        ),
    )


def counted_by_kubernetes(
    quotas: Iterable[QuotaLimits], scope: PodScope, names: Collection[str]
) -> tuple[str, str] | None:
    """Returns a quota that limits what pods of *scope* request of a resource among *names*, and the resource; ``None``
    if there is none. Kubernetes counts the specifications of pods, and nothing else."""
    for quota in quotas:
        if quota.matches(scope) and (limited := sorted(quota.requests.intersection(names))):
            return quota.name, limited[0]
    return None


def without_scopes(quotas: Iterable[QuotaLimits]) -> list[QuotaLimits]:
    """Returns those of *quotas* that limit all pods of their namespace."""
    return [quota for quota in quotas if not quota.scopes]


def lowest_limit(quotas: Iterable[QuotaLimits], resource: str) -> int | None:
    """Returns the lowest limit of *quotas* for *resource*; ``None`` if none sets one."""
    return min(
        (quota.limits[resource] for quota in quotas if resource and resource in quota.limits),
        default=None,
    )


def allowed_budget(vendor: Vendor, quotas: Collection[QuotaLimits]) -> Budget:
    """Returns the limits of *quotas* on *vendor*'s devices.

    A memory limit is in the vendor's unit, as in requests. Cores are limited only if allocations and requests have
    the same unit.
    """
    resources = vendor.resources
    memory = min(
        (
            resources.to_mib(
                quota.limits[resources.memory], is_binary=resources.memory in quota.binary
            )
            for quota in quotas
            if resources.memory and resources.memory in quota.limits
        ),
        default=None,
    )
    return Budget(
        memory,
        lowest_limit(quotas, resources.cores) if resources.core_unit.is_request_unit else None,
    )


def budgets_of(
    vendors: Iterable[Vendor],
    quotas: Mapping[str, QuotaLimits],
    scope: PodScope,
    used: Callable[[str], ScopedUsage],
) -> dict[str, Budget]:
    """Returns what the *quotas* of a namespace leave of each vendor's devices to pods of *scope*; empty without any.

    *used*: returns what the pods of the namespace take, by vendor.
    """
    matching = [quota for quota in quotas.values() if quota.matches(scope)] if quotas else ()
    return (
        {vendor.key: remaining_budget(vendor, matching, used(vendor.key)) for vendor in vendors}
        if matching
        else {}
    )


def remaining_budget(vendor: Vendor, quotas: Collection[QuotaLimits], used: ScopedUsage) -> Budget:
    """Returns what *quotas* leave for *vendor*'s devices: the least of what each leaves after the pods
    that it counts."""
    left = [_budget_left(vendor, quota, used) for quota in quotas]
    return Budget(
        memory_mib=min(
            (budget.memory_mib for budget in left if budget.memory_mib is not None), default=None
        ),
        cores=min((budget.cores for budget in left if budget.cores is not None), default=None),
    )


def _budget_left(vendor: Vendor, quota: QuotaLimits, used: ScopedUsage) -> Budget:
    allowed = allowed_budget(vendor, [quota])
    counted = [amounts for scope, amounts in used.items() if quota.matches(scope)]
    return Budget(
        memory_mib=None
        if allowed.memory_mib is None
        else allowed.memory_mib - sum(memory for memory, _ in counted),
        cores=None if allowed.cores is None else allowed.cores - sum(cores for _, cores in counted),
    )


def quota_allows(vendors: Iterable[Vendor], budgets: Budgets, pod: Pod) -> bool:
    """Reports whether *budgets* have room for the least that *pod* can take. A pod that requests nothing is allowed
    even where the quota is exceeded."""
    kinds = [container.kind for container in pod.containers]
    for vendor in vendors if budgets else ():
        cores = WHOLE if vendor.resources.takes_cores(pod.annotations.get) else 0
        demand = least_demand(
            kinds, [device_request(vendor, container) for container in pod.containers], cores
        )
        if any(demand) and not budgets[vendor.key].covers(*demand):
            return False
    return True
