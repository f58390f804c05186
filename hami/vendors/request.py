"""A container's requests for devices, read from its limits, else from its requests."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from hami.model import Container, Request
from hami.vendors.resources import CoreUnit, Resources
from hami.vendors.spec import Catalog, Vendor

WHOLE = 100  # percent: all cores or memory of one device
CACHE_SIZE = 8192  # different quantities of containers
MAX_CACHED = 32  # quantities of a pod that is remembered, of LONGEST_CACHED characters; nearly all have fewer
LONGEST_CACHED = 64  # the API server writes shorter ones; clients may send any text
MAX_CONTAINERS = 128  # of a pod that requests devices

Quantities = frozenset[tuple[str, str]]
Amounts = tuple[Quantities, Quantities]
"""Limits, and requests beside them."""
_NO_QUANTITIES: Quantities = frozenset()
_NO_SHARES: Mapping[str, int] = MappingProxyType({})


def requests_devices(vendors: Catalog, containers: Sequence[Container]) -> bool:
    """Reports whether any of *containers* requests devices."""
    return bool(most_shares(vendors, containers))


def most_shares(vendors: Catalog, containers: Sequence[Container]) -> Mapping[str, int]:
    """Returns the most shares of devices that a pod with *containers* can hold, by vendor; requests for others hold 0.

    A container holds as many shares as it requests devices. Where it requests single cores, each may be on a device
    of its own. Only these numbers follow from the specification alone: memory and cores of a share depend on the device
    and on the configuration at the time of the decision, and a share never takes more than its one device.
    """
    amounts = []
    for container in containers:
        managed = _managed(vendors, container)
        if managed is not None:
            amounts.append(managed)
    if not amounts:
        return _NO_SHARES
    make = _most_shares if _is_cached(*amounts) else _most_shares.__wrapped__
    return make(vendors, tuple(amounts))


def device_requests(vendors: Catalog, container: Container) -> tuple[Request, ...]:
    """Returns the requests of *container*, sorted by vendor.

    They depend on its quantities of managed resources alone and most pods of a cluster have the same few, so results
    are cached.
    """
    amounts = _managed(vendors, container)
    if amounts is None:
        return ()
    return _requests_of(vendors, amounts)


def _managed(vendors: Catalog, container: Container) -> Amounts | None:
    """Returns the quantities of managed resources; ``None`` if there are none."""
    managed, limits, requests = vendors.resources, container.limits, container.requests
    if managed.isdisjoint(limits) and managed.isdisjoint(requests):
        return None
    beside = _NO_QUANTITIES
    if not requests.keys() <= limits.keys():  # a limit comes first, and most requests have one
        names = (managed & requests.keys()) - limits.keys()
        beside = frozenset([(name, requests[name]) for name in names])
    return frozenset([(name, limits[name]) for name in managed & limits.keys()]), beside


def _is_cached(*amounts: Amounts) -> bool:
    """Reports whether what follows from *amounts* is remembered: they are few and short."""
    count = 0
    for quantities in itertools.chain.from_iterable(amounts):
        count += len(quantities)
        for _, text in quantities:
            if len(text) > LONGEST_CACHED:
                return False
    return count <= MAX_CACHED


@functools.lru_cache(maxsize=CACHE_SIZE)
def _most_shares(vendors: Catalog, amounts: tuple[Amounts, ...]) -> Mapping[str, int]:
    shares_of: dict[str, int] = {}
    for request in itertools.chain.from_iterable([_requests_of(vendors, own) for own in amounts]):
        shares = request.count
        if request.cores > shares and vendors[request.vendor].resources.core_unit is CoreUnit.MASK:
            shares = request.cores
        shares_of[request.vendor] = shares_of.get(request.vendor, 0) + shares
    return MappingProxyType(shares_of) if shares_of else _NO_SHARES


def _requests_of(vendors: Catalog, amounts: Amounts) -> tuple[Request, ...]:
    make = _requests if _is_cached(amounts) else _requests.__wrapped__
    return make(vendors, amounts)


@functools.lru_cache(maxsize=CACHE_SIZE)
def _requests(vendors: Catalog, amounts: Amounts) -> tuple[Request, ...]:
    limits, requests = amounts
    container = Container(name="", limits=dict(limits), requests=dict(requests))
    parsed = []
    for vendor in vendors.requested_by(container.limits, container.requests):
        request = device_request(vendor, container)
        if request is not None:
            parsed.append(request)
    return tuple(parsed)


def device_request(vendor: Vendor, container: Container) -> Request | None:
    """Returns the request for *vendor*'s devices; ``None`` if there is none."""
    return (vendor.resources.parse_request or common_request)(
        vendor.key, vendor.resources, container
    )


def requested_keys(vendors: Catalog, containers: Iterable[Container]) -> list[str]:
    """Returns the keys of the vendors of which one of *containers* requests an amount that is not 0, sorted."""
    requested = set()
    for container in containers:
        for vendor in vendors.requested_by(container.limits, container.requests):
            if vendor.resources.amounts(container.limits, container.requests):
                requested.add(vendor.key)
    return sorted(requested)


def requesting(vendor: Vendor, containers: Sequence[Container]) -> list[str]:
    """Returns the names of those of *containers* that request devices of *vendor*."""
    return [item.name for item in containers if device_request(vendor, item) is not None]


def common_request(vendor: str, resources: Resources, container: Container) -> Request | None:
    """Returns the request as most vendors parse it; ``None`` if there is none.

    If an amount is not an integer, negative, or above 2³¹-1 after scaling, there is no request, as upstream. Admission
    rejects such a pod before that.
    Source: HAMi v2.10, GenerateResourceRequests in pkg/device/nvidia/device.go and its likes.
    """
    values = parse_amounts(resources, container)
    count = values.get(resources.count, 0)
    if count < 1:
        return None
    memory = values.get(resources.memory, 0)
    cores = values.get(resources.cores, resources.default_cores)
    if resources.amounts_are_totals:
        memory, cores = memory // count, cores // count
    percent = min(values.get(resources.memory_percent, 0), WHOLE)
    if memory == 0 and percent <= 0:
        memory = resources.default_memory
        percent = 0 if memory else WHOLE
    return Request(
        vendor=vendor,
        count=count,
        memory_mib=memory,
        memory_percent=percent if percent > 0 else None,
        cores=cores,
    )


def parse_amounts(resources: Resources, container: Container) -> dict[str, int]:
    """Returns the container's amounts as numbers, memory in MiB; empty if any of them is invalid."""
    values: dict[str, int] = {}
    for name, text in resources.amounts(container.limits, container.requests).items():
        value = resources.parse_amount(name, text)
        if value is None:
            return {}
        values[name] = value
    return values
