"""Namespace quotas on device memory and cores: the same arithmetic for admission, filter and accounting.

A pod counts with the sum of its :func:`hami.scheduling.usage.peak_charges`. Before its devices are known there are two
bounds of that sum. Only where neither decides it is compared with the budget on each placement.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from hami.model import Allocation, Budget, ContainerKind, Pod, PodScope, QuotaLimits, Request, Share
from hami.scheduling.placement import Budgets
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.usage import Amounts, peak_charges, shares_of, total_charge
from hami.vendors.request import WHOLE, device_request
from hami.vendors.resources import CoreUnit
from hami.vendors.spec import Vendor

ScopedUsage = Mapping[PodScope, Amounts]
"""What the pods of a namespace take of one vendor's devices, by the properties that select quotas."""

EXHAUSTED = Budget(-1, -1, -1)
"""A budget that covers nothing."""


class DeviceSizes(NamedTuple):
    """The least and the most memory in MiB of a vendor's devices; *in_parts*: some are allocated in parts."""

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
        for key, budget in self.open:
            charges = peak_charges(request.kinds, shares_of(key, placement))
            if not budget.covers(*total_charge(charges)):
                return False
        return True


def check_quota(
    request: PodRequest, budgets: Budgets, sizes: Mapping[str, DeviceSizes]
) -> QuotaCheck:
    """Compares *budgets* with the bounds of what *request* takes. *sizes*: of the devices of the cluster, by vendor."""
    decided, undecided = [], []
    for vendor_request in request.vendor_requests:
        vendor = vendor_request.vendor
        budget = budgets.get(vendor.key, Budget())
        if budget.is_unlimited:
            continue
        size = sizes.get(vendor.key, DeviceSizes(0, 0, False))
        least, most = demand_bounds(request, vendor, size)
        if not budget.covers(*least):
            decided.append((vendor.key, EXHAUSTED))
        elif not budget.covers(*most):
            undecided.append((vendor.key, budget))
    return QuotaCheck(tuple(decided), tuple(undecided))


def demand_bounds(
    request: PodRequest, vendor: Vendor, sizes: DeviceSizes
) -> tuple[Amounts, Amounts]:
    """Returns the least and the most that a pod takes of *vendor*'s devices: with the shares of all
    containers on one device that is as small as possible, and with each on its own."""
    requests = [container.request_to(vendor.key) for container in request.containers]
    most_devices = sum([most_devices_of(vendor, own) for own in requests])
    if _rounds(vendor, sizes):
        # a part may be a whole device, and has its own cores
        count = 0
        for own in requests:
            if own is not None:
                count += own.count
        least = least_demand(request.kinds, requests, cores=0)
        return least, Amounts(sizes.most * count, WHOLE * count, most_devices)
    shares = [_share(own, sizes.least, WHOLE) for own in requests]
    most = [_share(own, sizes.most, WHOLE) for own in requests]
    alone = total_charge(peak_charges([ContainerKind.APP], [list(chain.from_iterable(most))]))
    least = total_charge(peak_charges(request.kinds, shares))
    least_devices = devices_demanded(request.kinds, requests)
    return least._replace(slots=least_devices), alone._replace(slots=most_devices)


def _rounds(vendor: Vendor, sizes: DeviceSizes) -> bool:
    """Reports whether a share may be larger than its request: a part of a device, or a profile."""
    if vendor.decision.make_share is None:
        return False
    return sizes.in_parts or vendor.decision.allows_repeats is None


def devices_demanded(kinds: Sequence[ContainerKind], requests: Sequence[Request | None]) -> int:
    """Returns how many devices containers with *requests* hold at one time, if they share as many as they can."""
    always = together = largest = 0
    for kind, request in zip(kinds, requests):
        count = 0 if request is None else request.count
        if kind is ContainerKind.SIDECAR:
            always += count
        elif kind is ContainerKind.INIT:
            largest = max(largest, count)
        else:
            together += count
    return always + max(largest, together)


def most_devices_of(vendor: Vendor, request: Request | None) -> int:
    """Returns the most shares of devices that a container with *request* holds: each core may be on its own."""
    if request is None:
        return 0
    if vendor.resources.core_unit is CoreUnit.MASK:
        return max(request.count, request.cores)
    return request.count


def least_demand(
    kinds: Sequence[ContainerKind], requests: Sequence[Request | None], cores: int
) -> Amounts:
    """Returns the least that containers with *requests* can take, percentages of memory as nothing.

    *cores*: the most that one share takes.
    """
    total = total_charge(peak_charges(kinds, [_share(request, 0, cores) for request in requests]))
    return total._replace(slots=devices_demanded(kinds, requests))


def _share(request: Request | None, device_mib: int, cores: int) -> tuple[Share, ...]:
    """Returns all shares of a request as one, on a device with *device_mib*."""
    if request is None:
        return ()
    memory = request.memory_mib or device_mib * (request.memory_percent or 0) // WHOLE
    cores = min(request.cores, cores)
    return (Share("", request.vendor, memory * request.count, cores * request.count),)


def counted_by_kubernetes(
    quotas: Iterable[QuotaLimits], scope: PodScope, names: Collection[str]
) -> tuple[str, str] | None:
    """Returns a quota that limits what pods of *scope* request of a resource among *names*, and the resource; ``None``
    if there is none. Kubernetes counts the specifications of pods, and nothing else."""
    for quota in quotas:
        limited = quota.requests.intersection(names)
        if limited and quota.matches(scope):
            return quota.name, min(limited)
    return None


def without_scopes(quotas: Iterable[QuotaLimits]) -> list[QuotaLimits]:
    """Returns those of *quotas* that limit all pods of their namespace."""
    return [quota for quota in quotas if not quota.scopes]


def lowest_limit(quotas: Iterable[QuotaLimits], resource: str) -> int | None:
    """Returns the lowest limit of *quotas* for *resource*; ``None`` if none sets one."""
    limits = [quota.limits[resource] for quota in quotas if resource in quota.limits]
    return min(limits, default=None)


def allowed_budget(vendor: Vendor, quotas: Iterable[QuotaLimits]) -> Budget:
    """Returns the limits of *quotas* on *vendor*'s devices."""
    return _lowest([_limits(vendor, quota) for quota in quotas])


def _limits(vendor: Vendor, quota: QuotaLimits) -> Budget:
    """Returns the limits of *quota*: devices, and memory in the vendor's unit, as in requests. Cores are limited only
    if allocations and requests have the same unit."""
    resources = vendor.resources
    memory, cores = quota.limits.get(resources.memory), None
    if memory is not None:
        memory = resources.quota_mib(memory, is_binary=resources.memory in quota.binary)
    if resources.core_unit.is_request_unit:
        cores = quota.limits.get(resources.cores)
    return Budget(memory, cores, quota.limits.get(resources.count))


def _lowest(budgets: Iterable[Budget]) -> Budget:
    memory, cores, devices = [], [], []
    for budget in budgets:
        if budget.memory_mib is not None:
            memory.append(budget.memory_mib)
        if budget.cores is not None:
            cores.append(budget.cores)
        if budget.devices is not None:
            devices.append(budget.devices)
    return Budget(min(memory, default=None), min(cores, default=None), min(devices, default=None))


def budgets_of(
    vendors: Iterable[Vendor],
    quotas: Mapping[str, QuotaLimits],
    scope: PodScope,
    used: Callable[[str], ScopedUsage],
) -> dict[str, Budget]:
    """Returns what the *quotas* of a namespace leave of each vendor's devices to pods of *scope*; empty without any.

    *used*: returns what the pods of the namespace take, by vendor.
    """
    matching = [quota for quota in quotas.values() if quota.matches(scope)]
    if not matching:
        return {}
    return {vendor.key: remaining_budget(vendor, matching, used(vendor.key)) for vendor in vendors}


def remaining_budget(vendor: Vendor, quotas: Iterable[QuotaLimits], used: ScopedUsage) -> Budget:
    """Returns what *quotas* leave for *vendor*'s devices: the least of what each leaves after the pods
    that it counts."""
    budgets = []
    for quota in quotas:
        budget = _limits(vendor, quota)
        for scope, amounts in used.items():
            if quota.matches(scope):
                budget = budget.without(*amounts)
        budgets.append(budget)
    return _lowest(budgets)


def quota_allows(vendors: Iterable[Vendor], budgets: Budgets, pod: Pod) -> bool:
    """Reports whether *budgets* have room for the least that *pod* can take. A pod that requests nothing is allowed
    even where the quota is exceeded."""
    if not budgets:
        return True
    kinds = [container.kind for container in pod.containers]
    for vendor in vendors:
        requests = [device_request(vendor, container) for container in pod.containers]
        cores = 0
        if vendor.resources.takes_cores(pod.annotations.get):
            cores = WHOLE
        demand = least_demand(kinds, requests, cores)
        if any(demand) and not budgets[vendor.key].covers(*demand):
            return False
    return True
